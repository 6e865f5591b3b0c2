//! The order of programs that multiply tiles: each tile is made once, and those that are made one after the other share rows of the
//! left factor and columns of the right one.

use std::collections::HashSet;

use max_core::kernel::ptx::{Options, Target};

use crate::execute::{Tensor, execute_as};

/// Each program says that it is there, and fills its tile with a number for its row and column, by a product if it `multiplies`.
fn source(axes: usize, multiplies: bool) -> String {
    let ids = match axes {
        2 => "%1: i64 = const 0 %2: i64 = program_id 0 %3: i64 = program_id 1",
        _ => "%1: i64 = program_id 0 %2: i64 = program_id 1 %3: i64 = program_id 2",
    };
    let batches = if axes == 2 { "" } else { "y.0, " };
    let product = if multiplies { "dot %12, %13, %11" } else { "tile_full %10" };
    format!(
        "kernel \"order\" program grid({batches}y.1 / 8, y.2 / 8) (out y: f32[3], in x: f32[2]) {{
            {ids} %4: i64 = const 0 %5: i64 = const 8
            %6: i64 = mul %2, %5 %7: i64 = mul %3, %5
            print \"is there\" ()
            %8: i64 = mul %6, %5 %9: i64 = add %8, %3 %10: f32 = cast %9
            %11: tile<f32, 8x8> = tile_full %10
            %12: tile<f32, 8x8> = tile_load x[%4, %4]
            %13: tile<f32, 8x8> = tile_load x[%4, %4]
            %14: tile<f32, 8x8> = {product}
            tile_store y[%1, %6, %7] = %14
        }}"
    )
}

/// The indices of a grid's programs, in the order in which one block runs them.
fn order(grid: [i64; 3], axes: usize, multiplies: bool) -> Vec<[i64; 3]> {
    let [batches, rows, columns] = grid;
    let y = vec![-1.0_f32; (64 * batches * rows * columns) as usize];
    let mut tensors = [Tensor::new(&y, &[batches, 8 * rows, 8 * columns]), Tensor::new(&[0.0_f32; 64], &[8, 8])];
    let target = Options::new(Target { sm: 90, arch_specific: true });
    let stats = execute_as(target, &source(axes, multiplies), &mut tensors, &[], &grid[3 - axes..], 1);
    for (i, value) in (0..).zip(tensors[0].values::<f32>()) {
        let (row, column) = (i / (8 * columns) % (8 * rows) / 8, i % (8 * columns) / 8);
        assert_eq!(value, (64 * row + column) as f32, "{grid:?}");
    }
    let place = |line: &str| {
        let (_, ids) = line.split_once('(').expect("indices");
        let ids: Vec<i64> = ids.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse().ok()).collect();
        [ids[0], ids[1], ids[2]]
    };
    let places: Vec<[i64; 3]> = stats.printed.lines().map(place).collect();
    let different: HashSet<&[i64; 3]> = places.iter().collect();
    let all = batches * rows * columns;
    assert_eq!((places.len() as i64, different.len() as i64), (all, all), "{grid:?}: {}", stats.printed);
    places
}

#[test]
fn every_program_has_its_turn() {
    for [rows, columns] in [[1, 1], [1, 9], [9, 1], [7, 3], [8, 2], [16, 5], [19, 4]] {
        let of_batch = order([1, rows, columns], 2, true);
        let of_all = order([3, rows, columns], 3, true);
        let expected = (0..3).flat_map(|batch| of_batch.iter().map(move |&[row, column, _]| [batch, row, column]));
        assert!(of_all.into_iter().eq(expected), "{rows}x{columns}");
        // Others are in row-major order.
        let plain = order([2, rows, columns], 3, false);
        assert!(plain.is_sorted(), "{rows}x{columns}");
    }
}

#[test]
fn neighbours_share_rows_and_columns() {
    let [rows, columns] = [20, 24];
    let all = order([1, rows, columns], 2, true);
    for blocks in [16, 64] {
        for together in all[..8 * 2 * columns as usize].chunks(blocks) {
            let of = |axis: usize| together.iter().map(|place| place[axis]).collect::<HashSet<_>>().len();
            assert_eq!([of(0), of(1)], [8, blocks / 8], "{together:?}");
        }
    }
    // The last group has what rows are left.
    assert!(all[16 * columns as usize..].iter().all(|place| place[0] >= 16));
}
