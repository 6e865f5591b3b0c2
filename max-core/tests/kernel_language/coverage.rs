//! What the programs of a launch leave unwritten is 0, whatever lay there before.

use max::kernel::prelude::*;
use max::kernel::{Form, Kernel};

use crate::support::{blank, forms, run, tensor};

#[kernel(op = "w_rows")]
fn rows(y: Out<f32, 2>, z: Out<f32, 2>, x: In<f32, 2>) {
    let row = program_id(0);
    y.row(row).write(x.row(row));
    z.row(row).write(x.row(row));
}

#[kernel(op = "w_blocks")]
fn blocks(y: Out<f32, 1>, z: Out<f32, 1>, x: In<f32, 1>) {
    let part = program_id(0);
    y.block::<64>(part).write(x.block::<64>(part));
    z.block::<32>(part).write(x.block::<32>(part));
}

#[kernel(op = "w_tiles", tile(A = 4, B = 8))]
fn tiles(y: Out<f32, 2>, z: Out<f32, 2>, x: In<f32, 2>) {
    let [m, n] = program_id();
    y.tile::<A, B>(m, n).write(x.tile::<A, B>(m, n).load());
    z.tile::<B, A>(m, n).write(Tile::<f32, B, A>::full(1.0));
}

#[kernel(op = "w_diagonal")]
fn diagonal(y: Out<f32, 3>, x: In<f32, 2>) {
    let row = program_id(0);
    y.select(row).row(row).write(x.row(row));
}

#[kernel(op = "w_narrow", tile(R = 2, C = 4))]
fn narrow(y: Out<f32, 2>, x: In<f32, 2>) {
    let part = program_id(0);
    y.rows::<R, C>(part).write(x.tile::<R, C>(part, 0).load());
}

#[kernel(op = "w_named", grid(x.dim(0)))]
fn named(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = program_id(0);
    y.row(row).write(x.row(row));
}

/// Reads what it has not written yet.
#[kernel(op = "w_early")]
fn early(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = program_id(0);
    y.row(row).set(0, y.row(row).at(1) + 1.0);
    y.row(row).write(x.row(row).map(|v| v + 1.0));
}

/// The first element of each row, and of each behind an `if`.
#[kernel(op = "w_first")]
fn first(y: Out<f32, 2>, z: Out<f32, 2>, x: In<f32, 2>, #[param(default = false)] twice: bool) {
    let row = program_id(0);
    let sum = x.row(row).sum();
    if twice {
        y.row(row).set(0, 2.0 * sum);
    } else {
        y.row(row).set(0, sum);
    }
    if sum > 2.0 {
        z.row(row).set(0, sum);
    }
}

/// Results full of NaN, as they are after the launch.
fn after<K: Kernel>(form: Form, results: &[&[i64]], input: &[i64]) -> Vec<Vec<f32>> {
    let ones = vec![1.0f32; input.iter().product::<i64>() as usize];
    let mut operands: Vec<_> = results.iter().map(|dims| blank(dims, f32::NAN)).collect();
    operands.push(tensor(input, &ones));
    let after = run::<K>(form, &operands, &[]);
    after[..results.len()].iter().map(|operand| operand.values::<f32>()).collect()
}

/// So many ones, and then zeros.
fn ones(n: usize, zeros: usize) -> Vec<f32> {
    [vec![1.0; n], vec![0.0; zeros]].concat()
}

#[test]
fn a_result_with_more_rows_than_programs_ends_in_zeros() {
    for form in forms() {
        assert_eq!(after::<rows>(form, &[&[2, 4], &[4, 4]], &[4, 4]), [ones(8, 0), ones(8, 8)], "{form:?}");
        assert_eq!(after::<rows>(form, &[&[4, 4], &[2, 4]], &[4, 4]), [ones(16, 0), ones(8, 0)], "{form:?}");
        assert_eq!(after::<blocks>(form, &[&[70], &[70]], &[70]), [ones(70, 0), ones(64, 6)], "{form:?}");
        assert_eq!(after::<named>(form, &[&[4, 4]], &[2, 4]), [ones(8, 8)], "{form:?}");
    }
}

#[test]
fn parts_that_do_not_make_up_the_whole_leave_zeros() {
    for form in forms() {
        let [y, z] = &after::<tiles>(form, &[&[8, 8], &[8, 8]], &[8, 8])[..] else { panic!("two results") };
        assert_eq!(*y, ones(64, 0), "{form:?}");
        // Two rows of one tile each, of which the second lies below the result.
        let expected: Vec<f32> = (0..64).map(|i| if i % 8 < 4 { 1.0 } else { 0.0 }).collect();
        assert_eq!(*z, expected, "{form:?}");
        let cube: Vec<f32> = (0..24).map(|i| if i / 12 == i / 4 % 3 { 1.0 } else { 0.0 }).collect();
        assert_eq!(after::<diagonal>(form, &[&[2, 3, 4]], &[2, 4]), [cube], "{form:?}");
        let half: Vec<f32> = (0..16).map(|i| if i % 8 < 4 { 1.0 } else { 0.0 }).collect();
        assert_eq!(after::<narrow>(form, &[&[2, 8]], &[2, 8]), [half], "{form:?}");
    }
}

#[test]
fn a_row_of_one_element_is_its_first() {
    let operands = first::def().operands.as_slice();
    assert_eq!([operands[0].zero_init, operands[1].zero_init], [false, true]);
    for form in forms() {
        let one = after::<first>(form, &[&[40, 1], &[40, 1]], &[40, 2]);
        assert_eq!(one, [vec![2.0; 40], vec![0.0; 40]], "{form:?}");
        let more = after::<first>(form, &[&[40, 3], &[41, 1]], &[40, 3]);
        let starts: Vec<f32> = (0..120).map(|i| if i % 3 == 0 { 3.0 } else { 0.0 }).collect();
        assert_eq!(more, [starts, [vec![3.0; 40], vec![0.0]].concat()], "{form:?}");
    }
}

#[test]
fn what_is_read_before_it_is_written_is_zero() {
    for form in forms() {
        assert_eq!(after::<early>(form, &[&[2, 3]], &[2, 3]), [vec![2.0; 6]], "{form:?}");
    }
}
