//! Products of few rows, of which threads divide K, executed: every dtype, every way in which the factors can lie, computed ones,
//! shapes that do not divide, sums that no loop keeps; and how memory is accessed.

use max_core::dtype::{DType, bf16, f16};
use max_core::kernel::ir::compute_dtype;
use max_core::kernel::ptx::{Options, Target};
use ptx_sim::Stats;

use crate::execute::{Tensor, execute_as};
use crate::mma::{Lies, Number, matrix};

/// Small integers, which all dtypes have, and of which sums of products are exact.
fn value(i: usize) -> f32 {
    ((i * 7919 + 13) % 13) as f32 - 6.0
}

/// What a test multiplies.
#[derive(Clone, Copy, Debug)]
struct Product {
    tile: [usize; 3],
    lies: [Lies; 2],
    transposed: [bool; 2],
    /// Factors that are negated before they are multiplied.
    computed: [bool; 2],
    /// Whether the loop looks at its sums, so that they are combined in each step.
    looks: bool,
}

const LEFT_ALONE: [bool; 2] = [false, false];
const ALONG: [bool; 2] = [false, true];

impl Product {
    fn of(tile: [usize; 3], transposed: [bool; 2]) -> Product {
        Product { tile, lies: [Lies::Plain; 2], transposed, computed: [false; 2], looks: false }
    }

    fn source(&self, dtype: DType) -> String {
        let ([rows, columns, inner], operand) = (self.tile, dtype.short_name());
        let side = if dtype.is_float() { compute_dtype(dtype).short_name() } else { operand };
        let (sum, zero) = if dtype.is_float() { (side, "0.0") } else { ("i32", "0") };
        let load = |name: &str, r: u32, c: u32, transposed: bool| match transposed {
            false => format!("tile_load {name}[%{r}, %{c}]"),
            true => format!("tile_load {name}[%{c}, %{r}] transposed"),
        };
        let mut code = String::new();
        let mut factors = [13, 14];
        for (i, n, shape) in [(0, 30, [rows, inner]), (1, 40, [inner, columns])] {
            if self.computed[i] {
                let ([r, c], from, [x, y, p, q]) = (shape, factors[i], [1, 2, 3, 4].map(|k| n + k));
                code += &format!(
                    "%{n}: tile<{side}, {r}x{c}> = tile_map (%{from}) |%{p}: i64, %{q}: i64; %{x}: {side}| {{
                        %{y}: {side} = neg %{x} yield %{y} }}\n"
                );
                factors[i] = n;
            }
        }
        // The sum is taken apart from what it is set to: of both, half.
        let set = match self.looks {
            false => "set %8 = %16".to_owned(),
            true => format!(
                "%50: tile<{sum}, {rows}x{columns}> = tile_map (%16, %15) |%51: i64, %52: i64; %53: {sum}, %54: {sum}| {{
                    %55: {sum} = sub %53, %54 %56: {sum} = add %54, %55 yield %56 }}
                 set %8 = %50"
            ),
        };
        format!(
            "kernel \"few_rows\" program grid(c.0 / {rows}, c.1 / {columns}) (out c: {sum}[2], in a: {operand}[2], in b: {operand}[2]) params(k: int) {{
                %0: i64 = program_id 0 %1: i64 = program_id 1
                %2: i64 = const {rows} %3: i64 = mul %0, %2
                %4: i64 = const {columns} %5: i64 = mul %1, %4
                %6: {sum} = const {zero}
                %7: tile<{sum}, {rows}x{columns}> = tile_full %6
                %8: var<{sum}, {rows}x{columns}> = var %7
                %9: i64 = const 0 %10: i64 = param k %11: i64 = const {inner}
                for %9 to %10 step %11 |%12: i64| {{
                    %13: tile<{side}, {rows}x{inner}> = {}
                    %14: tile<{side}, {inner}x{columns}> = {}
                    {code}
                    %15: tile<{sum}, {rows}x{columns}> = get %8
                    %16: tile<{sum}, {rows}x{columns}> = dot %{}, %{}, %15
                    {set}
                }}
                %17: tile<{sum}, {rows}x{columns}> = get %8
                tile_store c[%3, %5] = %17
            }}",
            load("a", 3, 12, self.transposed[0]),
            load("b", 12, 5, self.transposed[1]),
            factors[0],
            factors[1],
        )
    }

    /// Multiplies, compares, and gives what was counted.
    #[track_caller]
    fn check<T: Number>(&self, [m, n, k]: [usize; 3]) -> Stats {
        let a = |i: usize, l: usize| value(i * k + l);
        let b = |l: usize, j: usize| value(5 + l * n + j);
        let (lies, sign) = (self.lies, if self.computed[0] == self.computed[1] { 1.0 } else { -1.0 });
        let left = match self.transposed[0] {
            true => matrix::<T>(k, m, lies[0], |l, i| a(i, l)),
            false => matrix::<T>(m, k, lies[0], a),
        };
        let right = match self.transposed[1] {
            true => matrix::<T>(n, k, lies[1], |j, l| b(l, j)),
            false => matrix::<T>(k, n, lies[1], b),
        };
        let expected: Vec<f64> =
            (0..m * n).map(|i| (0..k).map(|l| f64::from(sign * a(i / n, l) * b(l, i % n))).sum()).collect();
        let dims = [m as i64, n as i64];
        let c = match T::DTYPE {
            DType::F64 => Tensor::new(&vec![f64::NAN; m * n], &dims),
            DType::I8 => Tensor::new(&vec![i32::MIN; m * n], &dims),
            _ => Tensor::new(&vec![f32::NAN; m * n], &dims),
        };
        let mut tensors = [c, left, right];
        let grid = [m.div_ceil(self.tile[0]) as i64, n.div_ceil(self.tile[1]) as i64];
        let options = Options::new(Target { sm: 90, arch_specific: true });
        let stats = execute_as(options, &self.source(T::DTYPE), &mut tensors, &[k as u64], &grid, 2);
        let got: Vec<f64> = match T::DTYPE {
            DType::F64 => tensors[0].values::<f64>(),
            DType::I8 => tensors[0].values::<i32>().into_iter().map(f64::from).collect(),
            _ => tensors[0].values::<f32>().into_iter().map(f64::from).collect(),
        };
        assert!(got == expected, "{}: {m}x{n}x{k}, {self:?}", T::DTYPE);
        stats
    }
}

/// Tiles of one row and of several, of few columns and many, and with more than a warp along K.
const TILES: [[usize; 3]; 7] =
    [[1, 16, 512], [8, 32, 256], [1, 32, 256], [3, 32, 64], [4, 8, 512], [1, 2, 1024], [2, 128, 64]];

fn check<T: Number>() {
    for tile in TILES {
        let [rows, columns, inner] = tile;
        for transposed in [LEFT_ALONE, ALONG, [true, false], [true, true]] {
            for sizes in
                [[rows, columns, 2 * inner], [rows + 1, columns - 1, inner + 7], [1, 2 * columns, 33], [rows, 3, 0]]
            {
                Product::of(tile, transposed).check::<T>(sizes);
            }
        }
    }
}

checks! { of_f32 f32  of_f16 f16  of_bf16 bf16  of_f64 f64  of_i8 i8 }

#[test]
fn every_way_to_lie_in_memory() {
    let ways = [
        Lies::Plain,
        Lies::Padded(8),
        Lies::Padded(3),
        Lies::Transposed,
        Lies::From(8),
        Lies::From(1),
        Lies::Apart,
        Lies::Repeated,
    ];
    for (way, transposed) in ways.into_iter().flat_map(|way| [LEFT_ALONE, ALONG].map(|transposed| (way, transposed))) {
        // All elements of a row are then one.
        let same = |lies| Product { lies, ..Product::of([4, 16, 256], transposed) };
        if way != Lies::Repeated {
            same([way, Lies::Plain]).check::<bf16>([5, 24, 264]);
            same([Lies::Plain, way]).check::<bf16>([5, 24, 264]);
            same([Lies::Plain, way]).check::<f32>([5, 24, 264]);
        }
    }
}

#[test]
fn computed_factors() {
    for computed in [[true, false], [false, true], [true, true]] {
        for transposed in [LEFT_ALONE, ALONG, [true, true]] {
            for tile in [[1, 16, 256], [8, 32, 128], [4, 8, 64]] {
                let product = Product { computed, ..Product::of(tile, transposed) };
                product.check::<bf16>([tile[0] + 1, 20, 300]);
                product.check::<f32>([tile[0], 32, 256]);
                product.check::<f64>([1, 7, 100]);
            }
        }
    }
}

#[test]
fn sums_that_the_loop_looks_at() {
    for (transposed, tile) in
        [LEFT_ALONE, ALONG].into_iter().flat_map(|t| [[1, 16, 512], [8, 32, 128]].map(|tile| (t, tile)))
    {
        let looks = Product { looks: true, ..Product::of(tile, transposed) };
        looks.check::<bf16>([tile[0], 40, 1030]);
        let kept = Product::of(tile, transposed);
        // They are combined in each step instead of once.
        let barriers = |product: Product| product.check::<bf16>([tile[0], 16, 4 * tile[2]]).count("bar.sync");
        assert!(barriers(looks) > barriers(kept), "{tile:?}, {transposed:?}");
    }
}

/// Threads divide K of the first product, whose partial sums are combined in shared memory, and not of the second, whose operand waits there.
#[test]
fn products_of_both_kinds_in_a_block() {
    let load = |name: &str, columns: usize| format!("tile<f32, 128x{columns}> = tile_load {name}[%2, %2]");
    let source = format!(
        "kernel \"both\" program grid(c.0 / 4, c.1 / 32) (out c: f32[2], out d: f32[2], in a: f32[2], in b: f32[2], in e: f32[2]) params() {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const 0
            %3: f32 = const 0.0
            %4: tile<f32, 4x32> = tile_full %3
            %5: tile<f32, 4x24> = tile_full %3
            %6: tile<f32, 4x128> = tile_load a[%2, %2]
            %7: {}
            %8: {}
            %9: tile<f32, 4x32> = dot %6, %7, %4
            %10: tile<f32, 4x24> = dot %6, %8, %5
            tile_store c[%0, %1] = %9
            tile_store d[%0, %1] = %10
        }}",
        load("b", 32),
        load("e", 24),
    );
    let of = |seed: usize, rows: usize, columns: usize| {
        matrix::<f32>(rows, columns, Lies::Plain, |i, j| value(seed + i * columns + j))
    };
    let expected = |seed: usize, columns: usize| -> Vec<f32> {
        let sum = |i: usize, j: usize| (0..128).map(|l| value(i * 128 + l) * value(seed + l * columns + j)).sum();
        (0..4 * columns).map(|i| sum(i / columns, i % columns)).collect()
    };
    let result = |columns: i64| Tensor::new(&vec![f32::NAN; 4 * columns as usize], &[4, columns]);
    for target in crate::mma::TARGETS {
        let mut tensors = [result(32), result(24), of(0, 4, 128), of(3, 128, 32), of(7, 128, 24)];
        execute_as(Options::new(target), &source, &mut tensors, &[], &[1, 1], 2);
        assert_eq!(tensors[0].values::<f32>(), expected(3, 32), "{target:?}");
        assert_eq!(tensors[1].values::<f32>(), expected(7, 24), "{target:?}");
    }
}

#[test]
fn operands_are_copied_once_in_whole_units_without_conflicts() {
    for (dtype, size) in [(DType::BF16, 2), (DType::F32, 4), (DType::F64, 8), (DType::I8, 1)] {
        for (tile, transposed) in
            [[1, 32, 512 / size], [4, 32, 256 / size]].into_iter().flat_map(|t| [(t, LEFT_ALONE), (t, ALONG)])
        {
            let ([m, columns, inner], product) = (tile, Product::of(tile, transposed));
            let (n, k) = (2 * columns, 4 * inner);
            let count = |k: usize| match dtype {
                DType::BF16 => product.check::<bf16>([m, n, k]),
                DType::F32 => product.check::<f32>([m, n, k]),
                DType::F64 => product.check::<f64>([m, n, k]),
                _ => product.check::<i8>([m, n, k]),
            };
            let (stats, longer) = (count(k), count(2 * k));
            let what = format!("{dtype}, {tile:?}, {transposed:?}");
            let units = (2 * m + n) * k * size / 16;
            assert_eq!(stats.count("cp.async.cg"), units as u64, "{what}: {:?}", stats.by_kind);
            assert_eq!(stats.count("ld.global"), 0, "{what}: {:?}", stats.by_kind);
            // Only where sums are combined, behind the loop.
            assert_eq!(longer.bank_conflicts, stats.bank_conflicts, "{what}: {:?}", stats.bank_conflicts_by_line);
            assert!(stats.excess_sectors_by_line.is_empty(), "{what}: {:?}", stats.excess_sectors_by_line);
            // No product is made twice, nor of what is not there. (Those of integers are like what addresses are made with.)
            if dtype != DType::I8 {
                assert_eq!(longer.count("fma") - stats.count("fma"), (m * n * k) as u64, "{what}: {:?}", stats.by_kind);
            }
        }
    }
}
