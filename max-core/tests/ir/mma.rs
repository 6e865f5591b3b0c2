//! Products of tiles by the tensor cores, executed, by warps and by warpgroups: every way in which the factors can lie,
//! shapes that do not divide, and how memory is accessed.

use max_core::dtype::{DType, Element, bf16, f16};
use max_core::kernel::ptx::{Options, Target};
use ptx_sim::Stats;

use crate::execute::{Item, Tensor, execute_as};

/// Small numbers, of which sums of products are exact.
pub fn value(i: usize) -> f32 {
    ((i * 7919 + 13) % 31) as f32 / 4.0 - 3.75
}

pub trait Number: Item + Element {
    fn from_f32(v: f32) -> Self;
}
impl Number for f32 {
    fn from_f32(v: f32) -> Self {
        v
    }
}
impl Number for f16 {
    fn from_f32(v: f32) -> Self {
        f16::from_f32(v)
    }
}
impl Number for bf16 {
    fn from_f32(v: f32) -> Self {
        bf16::from_f32(v)
    }
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lies {
    Plain,
    /// Rows longer than the matrix.
    Padded(usize),
    /// The elements of a column are neighbours.
    Transposed,
    /// Begins at that element.
    From(usize),
    /// Every second element of a row is another's.
    Apart,
    /// All elements of a row are one.
    Repeated,
}

pub fn matrix<T: Number>(rows: usize, columns: usize, lies: Lies, at: impl Fn(usize, usize) -> f32) -> Tensor {
    let (start, row, column) = match lies {
        Lies::Plain => (0, columns, 1),
        Lies::Padded(more) => (0, columns + more, 1),
        Lies::Transposed => (0, 1, rows),
        Lies::From(start) => (start, columns, 1),
        Lies::Apart => (0, 2 * columns, 2),
        Lies::Repeated => (0, 1, 0),
    };
    // What is not of the matrix shows in every sum.
    let len = start + row * rows.max(1) + column * columns;
    let mut values = vec![T::from_f32(f32::NAN); len];
    for r in 0..rows {
        for c in 0..columns {
            values[start + r * row + c * column] = T::from_f32(at(r, c));
        }
    }
    let mut tensor = Tensor::new(&values, &[rows as i64, columns as i64]);
    tensor.strides = vec![row as i64, column as i64];
    tensor.start = start;
    tensor
}

/// A kernel that multiplies matrices of two dtypes, or their transposes, by tiles: sums of halves are of `f32`, those of integers of
/// `i32`.
pub fn source(dtypes: [DType; 2], [rows, columns, inner]: [usize; 3], transposed: [bool; 2]) -> String {
    let [a, b] = dtypes.map(|dtype| dtype.short_name());
    let ([left, right], sum, zero) = match dtypes[0].is_float() {
        true => (["f32"; 2], "f32", "0.0"),
        false => ([a, b], "i32", "0"),
    };
    let load = |name: &str, r: u32, c: u32, transposed: bool| match transposed {
        false => format!("tile_load {name}[%{r}, %{c}]"),
        true => format!("tile_load {name}[%{c}, %{r}] transposed"),
    };
    format!(
        "kernel \"matmul\" program grid(c.0 / {rows}, c.1 / {columns}) (out c: {sum}[2], in a: {a}[2], in b: {b}[2]) params(k: int) {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const {rows} %3: i64 = mul %0, %2
            %4: i64 = const {columns} %5: i64 = mul %1, %4
            %6: {sum} = const {zero}
            %7: tile<{sum}, {rows}x{columns}> = tile_full %6
            %8: var<{sum}, {rows}x{columns}> = var %7
            %9: i64 = const 0 %10: i64 = param k %11: i64 = const {inner}
            for %9 to %10 step %11 |%12: i64| {{
                %13: tile<{left}, {rows}x{inner}> = {}
                %14: tile<{right}, {inner}x{columns}> = {}
                %15: tile<{sum}, {rows}x{columns}> = get %8
                %16: tile<{sum}, {rows}x{columns}> = dot %13, %14, %15
                set %8 = %16
            }}
            %17: tile<{sum}, {rows}x{columns}> = get %8
            tile_store c[%3, %5] = %17
        }}",
        load("a", 3, 12, transposed[0]),
        load("b", 12, 5, transposed[1]),
    )
}

/// Warps multiply on the first, warpgroups on the second.
pub const TARGETS: [Target; 2] = [Target { sm: 80, arch_specific: false }, Target { sm: 90, arch_specific: true }];

/// Multiplies on each target, compares, and gives what was counted.
#[track_caller]
fn multiply<T: Number>([m, n, k]: [usize; 3], tile: [usize; 3], lies: [Lies; 2], transposed: [bool; 2]) -> [Stats; 2] {
    let a = |i: usize, l: usize| value(i * k + l);
    let b = |l: usize, j: usize| value(5 + l * n + j);
    let left = if transposed[0] { matrix::<T>(k, m, lies[0], |l, i| a(i, l)) } else { matrix::<T>(m, k, lies[0], a) };
    let right = if transposed[1] { matrix::<T>(n, k, lies[1], |j, l| b(l, j)) } else { matrix::<T>(k, n, lies[1], b) };
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    let expected: Vec<f32> = (0..m * n).map(|i| (0..k).map(|l| a(i / n, l) * b(l, i % n)).sum()).collect();
    TARGETS.map(|target| {
        let c = Tensor::new(&vec![f32::NAN; m * n], &[m as i64, n as i64]);
        let mut tensors = [c, left.clone(), right.clone()];
        let stats = execute_as(
            Options::new(target),
            &source([T::DTYPE; 2], tile, transposed),
            &mut tensors,
            &[k as u64],
            &grid,
            2,
        );
        let got = tensors[0].values::<f32>();
        assert!(got == expected, "{target}: {m}x{n}x{k} in {tile:?}, {lies:?}, {transposed:?}");
        stats
    })
}

#[test]
fn every_size_around_a_tile() {
    for size in [1, 15, 16, 17, 63, 64, 65, 100] {
        for (m, n, k) in [(size, 64, 32), (64, size, 32), (33, 40, size), (size, size, size)] {
            let stats = multiply::<bf16>([m, n, k], [64, 64, 32], [Lies::Plain; 2], [false; 2]);
            assert!(stats[0].count("mma") > 0 && stats[1].count("wgmma.mma_async") > 0);
        }
    }
    multiply::<f16>([20, 30, 0], [64, 64, 32], [Lies::Plain; 2], [false; 2]);
}

#[test]
fn every_way_to_lie_in_memory() {
    let ways =
        [Lies::Plain, Lies::Padded(8), Lies::Padded(3), Lies::Transposed, Lies::From(8), Lies::From(1), Lies::Apart];
    for way in ways {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            multiply::<f16>([72, 80, 40], [64, 64, 32], [way, Lies::Plain], transposed);
            multiply::<bf16>([72, 80, 40], [64, 64, 32], [Lies::Plain, way], transposed);
        }
    }
}

#[test]
fn tiles_of_many_shapes() {
    // Rows of one unit, of several, of a number of them that is no power of two; warps of 8 columns.
    for tile in [
        [16, 64, 16],
        [128, 8, 16],
        [64, 64, 16],
        [128, 128, 32],
        [64, 32, 48],
        [48, 64, 80],
        [32, 192, 64],
        [64, 64, 128],
        [64, 256, 64],
        [128, 256, 64],
        [128, 64, 96],
        [128, 96, 32],
    ] {
        for transposed in [[false, false], [true, true]] {
            let stats = multiply::<f16>([130, 200, 144], tile, [Lies::Plain; 2], transposed);
            assert!(stats[0].count("mma") > 0, "{tile:?}");
            let of_warpgroups = matches!(tile, [64, 32 | 64 | 256, _] | [128, 64 | 96 | 128 | 256, _]);
            assert_eq!(stats[1].count("wgmma.mma_async") > 0, of_warpgroups, "{tile:?}");
            assert_eq!(stats[1].count("mma") > 0, !of_warpgroups, "{tile:?}");
        }
    }
}

#[test]
fn products_have_no_bank_conflicts_and_read_whole_units() {
    for tile in [[64, 64, 32], [128, 128, 32], [64, 64, 64]] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            for (i, stats) in
                multiply::<bf16>([256, 128, 128], tile, [Lies::Plain; 2], transposed).into_iter().enumerate()
            {
                assert_eq!(stats.bank_conflicts, 0, "{tile:?}, {transposed:?}: {:?}", stats.bank_conflicts_by_line);
                assert_eq!(stats.count("ld.global"), 0);
                let units = (256 * 128 * (128 / tile[1]) + 128 * 128 * (256 / tile[0])) / 8;
                // On the second target the device copies them itself.
                assert_eq!(stats.count("cp.async.cg"), if i == 0 { units as u64 } else { 0 });
                assert_eq!(stats.count("cp.async.bulk.tensor") > 0, i == 1);
                assert_eq!(stats.global_load_bytes, 16 * units as u64);
            }
        }
    }
}
