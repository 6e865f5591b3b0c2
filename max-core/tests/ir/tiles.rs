//! Tiles between registers and memory: the right elements in every way in which a matrix can lie, and
//! how wide its accesses are.

use max_core::dtype::{DType, bf16, f16};
use max_core::kernel::ir::compute_dtype;
use max_core::kernel::ptx::Options;
use ptx_sim::Stats;

use crate::execute::{Tensor, execute, execute_as};
use crate::mma::{Lies, Number, TARGETS, matrix, value};

impl Number for f64 {
    fn from_f32(v: f32) -> Self {
        v.into()
    }
}

/// Doubles a matrix, tile by tile.
fn source(dtype: DType, [rows, columns]: [usize; 2]) -> String {
    let (t, c) = (dtype.short_name(), compute_dtype(dtype).short_name());
    format!(
        "kernel \"twice\" program grid(y.0 / {rows}, y.1 / {columns}) (out y: {t}[2], in x: {t}[2]) {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const {rows} %3: i64 = mul %0, %2
            %4: i64 = const {columns} %5: i64 = mul %1, %4
            %6: tile<{c}, {rows}x{columns}> = tile_load x[%3, %5]
            %7: tile<{c}, {rows}x{columns}> = tile_map (%6) |%8: i64, %9: i64; %10: {c}| {{
                %11: {c} = add %10, %10 yield %11
            }}
            tile_store y[%3, %5] = %7
        }}"
    )
}

/// Doubles a matrix, looks at all that lies where the result does, and gives what was counted.
#[track_caller]
fn twice<T: Number + PartialEq>([m, n]: [usize; 2], tile: [usize; 2], [from, lies]: [Lies; 2]) -> Stats {
    let at = |i: usize, j: usize| value(i * n + j);
    let mut tensors = [matrix::<T>(m, n, lies, |_, _| 99.0), matrix::<T>(m, n, from, at)];
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    let stats = execute(&source(T::DTYPE, tile), &mut tensors, &[], &grid, 2);
    let expected = matrix::<T>(m, n, lies, |i, j| 2.0 * at(i, j));
    assert!(tensors[0].bytes == expected.bytes, "{}: {m}x{n} in {tile:?}, {from:?} to {lies:?}", T::DTYPE);
    stats
}

fn check<T: Number + PartialEq>() {
    for tile in [[64, 64], [64, 128], [8, 256], [32, 32], [16, 16], [5, 100], [100, 7]] {
        for shape in [[128, 256], [1, 1], [67, 131], [65, 136], [63, 120]] {
            for lies in [Lies::Plain, Lies::Padded(8), Lies::Padded(3), Lies::From(1), Lies::Transposed, Lies::Apart] {
                twice::<T>(shape, tile, [Lies::Plain, lies]);
                twice::<T>(shape, tile, [lies, Lies::Plain]);
            }
        }
    }
}

/// Adds a matrix to a product of halves, whose sums lie as tensor cores leave them.
#[track_caller]
fn added<T: Number>([m, n]: [usize; 2], columns: usize, lies: Lies) -> Vec<Stats> {
    let t = T::DTYPE.short_name();
    let source = format!(
        "kernel \"added\" program grid(y.0 / 64, y.1 / {columns}) (out y: f32[2], in a: f16[2], in b: f16[2], in z: {t}[2]) {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const 64 %3: i64 = mul %0, %2
            %4: i64 = const {columns} %5: i64 = mul %1, %4
            %6: i64 = const 0 %7: f32 = const 0.0
            %8: tile<f32, 64x{columns}> = tile_full %7
            %9: tile<f32, 64x16> = tile_load a[%3, %6]
            %10: tile<f32, 16x{columns}> = tile_load b[%6, %5]
            %11: tile<f32, 64x{columns}> = dot %9, %10, %8
            %12: tile<f32, 64x{columns}> = tile_load z[%3, %5]
            %13: tile<f32, 64x{columns}> = tile_map (%11, %12) |%14: i64, %15: i64; %16: f32, %17: f32| {{
                %18: f32 = add %16, %17 yield %18
            }}
            tile_store y[%3, %5] = %13
        }}"
    );
    let z = |i, j| value(3 + i * n + if lies == Lies::Repeated { 0 } else { j });
    let (a, b) = (|i, l| value(16 * i + l), |l, j| value(5 + l * n + j));
    let grid = [m.div_ceil(64) as i64, n.div_ceil(columns) as i64];
    let sum = |i: usize, j: usize| (0..16).map(|l| a(i, l) * b(l, j)).sum::<f32>() + z(i, j);
    let expected = matrix::<f32>(m, n, Lies::Plain, sum);
    let run = |target| {
        let mut tensors = [
            matrix::<f32>(m, n, Lies::Plain, |_, _| 99.0),
            matrix::<f16>(m, 16, Lies::Plain, a),
            matrix::<f16>(16, n, Lies::Plain, b),
            matrix::<T>(m, n, lies, z),
        ];
        let stats = execute_as(Options::new(target), &source, &mut tensors, &[], &grid, 2);
        assert!(tensors[0].bytes == expected.bytes, "{}, {target}: {m}x{n} by {columns}, {lies:?}", T::DTYPE);
        stats
    };
    TARGETS.map(run).into()
}

fn check_added<T: Number>() {
    for columns in [64, 32, 16] {
        for shape in [[128, 256], [67, 131], [65, 136]] {
            for lies in [Lies::Plain, Lies::Padded(8), Lies::Padded(3), Lies::From(1), Lies::Transposed, Lies::Repeated]
            {
                added::<T>(shape, columns, lies);
            }
        }
    }
    for stats in added::<T>([128, 256], 64, Lies::Plain) {
        let units = 128 * 256 * T::DTYPE.size_in_bytes() as u64 / 16;
        assert_eq!(stats.count("ld.global"), units, "{}: {:?}", T::DTYPE, stats.by_kind);
    }
}

#[test]
fn what_is_added_to_a_product_is_read_in_units() {
    check_added::<f16>();
    check_added::<bf16>();
    check_added::<f32>();
}

checks!(tiles_of_f32 f32 tiles_of_f64 f64 tiles_of_f16 f16 tiles_of_bf16 bf16);

#[test]
fn tiles_are_read_and_written_in_units() {
    // As many as a thread has of all its rows, up to 16 bytes.
    let check = |stats: Stats, elements: u64| {
        let counts = ["ld.global", "st.global"].map(|kind| stats.count(kind));
        assert_eq!(counts, [128 * 256 / elements; 2], "{:?}", stats.by_kind);
        assert_eq!(stats.excess_sectors, 0, "{:?}", stats.excess_sectors_by_line);
    };
    for (columns, elements) in [(128, 8), (64, 8), (32, 8), (16, 4)] {
        check(twice::<f16>([128, 256], [64, columns], [Lies::Plain; 2]), elements);
        check(twice::<bf16>([128, 256], [64, columns], [Lies::Padded(16); 2]), elements);
        check(twice::<f32>([128, 256], [64, columns], [Lies::Plain; 2]), elements.min(4));
        check(twice::<f64>([128, 256], [64, columns], [Lies::Plain; 2]), 2);
    }
}

/// Elements of a tile of any layout, of the sums of its rows, and outside of both.
fn elements(made: &str, [rows, columns]: [usize; 2]) {
    let mut places = vec![[0, 0], [rows - 1, columns - 1], [rows / 2, columns / 3], [rows / 3, columns - 1]];
    places.extend([[rows, 0], [0, columns], [usize::MAX, 0]]);
    let (mut code, mut value) = (String::new(), 20);
    for (i, [row, column]) in places.iter().enumerate() {
        let [at, j, k, v] = [0, 1, 2, 3].map(|step| value + step);
        code += &format!("%{j}: i64 = const {} %{k}: i64 = const {}\n", *row as i64, *column as i64);
        code +=
            &format!("%{v}: f32 = tile_element %10, %{j}, %{k} %{at}: i64 = const {} store y[%{at}] = %{v}\n", 2 * i);
        let [at, sum] = [4, 5].map(|step| value + step);
        code += &format!(
            "%{sum}: f32 = tile_element %11, %{j}, %0 %{at}: i64 = const {} store y[%{at}] = %{sum}\n",
            2 * i + 1
        );
        value += 6;
    }
    let source = format!(
        "kernel \"elements\" program grid(1) (out y: f32[1], in a: f16[2], in b: f16[2]) {{
            %0: i64 = const 0 %1: f32 = const 0.0
            {made}
            %11: tile<f32, {rows}x1> = tile_reduce sum %10
            {code}
        }}"
    );
    let a = |i: usize, j: usize| ((i * 7 + j) % 5) as f32;
    let b = |i: usize, j: usize| ((i + j * 3) % 4) as f32 - 1.0;
    let inner = 16;
    let element = |i: usize, j: usize| -> f32 {
        if made.contains("dot") { (0..inner).map(|k| a(i, k) * b(k, j)).sum() } else { a(i, j) }
    };
    let expected: Vec<f32> = places
        .iter()
        .flat_map(|&[i, j]| {
            let sum = if i < rows { (0..columns).map(|j| element(i, j)).sum() } else { 0.0 };
            [if i < rows && j < columns { element(i, j) } else { 0.0 }, sum]
        })
        .collect();
    let [m, n] = if made.contains("dot") { [rows, inner] } else { [rows, columns] };
    for target in TARGETS {
        let y = Tensor::new(&vec![99.0_f32; expected.len()], &[expected.len() as i64]);
        let mut tensors = [y, matrix::<f16>(m, n, Lies::Plain, a), matrix::<f16>(inner, columns, Lies::Plain, b)];
        execute_as(Options::new(target), &source, &mut tensors, &[], &[1], 1);
        assert_eq!(tensors[0].values::<f32>(), expected, "{made}");
    }
}

#[test]
fn elements_of_tiles_are_numbers_whatever_their_layout() {
    for [rows, columns] in [[5, 20], [1, 1], [1, 16], [300, 2]] {
        elements(&format!("%10: tile<f32, {rows}x{columns}> = tile_load a[%0, %0]"), [rows, columns]);
    }
    for [rows, columns] in [[64, 64], [16, 24], [128, 32]] {
        let dot = format!(
            "%2: tile<f32, {rows}x16> = tile_load a[%0, %0] %3: tile<f32, 16x{columns}> = tile_load b[%0, %0]
             %4: tile<f32, {rows}x{columns}> = tile_full %1 %10: tile<f32, {rows}x{columns}> = dot %2, %3, %4"
        );
        elements(&dot, [rows, columns]);
    }
}
