//! Loops of lanes in units: the same results however rows lie, and accesses of 16 bytes where they lie in units.

use max_core::dtype::Element;
use max_core::kernel::ir::compute_dtype;
use ptx_sim::Stats;

use crate::execute::{Item, Tensor, execute};

/// How the elements of a matrix lie: what comes before the first one, the stride of rows beyond what they need, and that of
/// columns.
pub const LIES: [(usize, i64, i64); 7] = [(0, 0, 1), (1, 0, 1), (0, 1, 1), (3, 2, 1), (0, 0, 2), (0, 3, -1), (0, 0, 0)];

/// A matrix that lies so; `element(i, j)` of one whose columns have the stride 0 is `element(i, 0)`.
pub fn matrix<T: Item>(
    [rows, columns]: [usize; 2],
    (before, gap, step): (usize, i64, i64),
    x: impl Fn(usize, usize) -> T,
) -> Tensor {
    let width = (columns as i64 - 1).max(0) * step.abs() + 1;
    let pitch = width + gap;
    let start = before as i64 + if step < 0 { width - 1 } else { 0 };
    let mut all = vec![x(0, 0); before + rows * pitch as usize + 1];
    for i in 0..rows {
        for j in 0..columns {
            let at = start + i as i64 * pitch + j as i64 * step;
            all[at as usize] = x(i, if step == 0 { 0 } else { j });
        }
    }
    let whole = Tensor::new(&all, &[rows as i64, columns as i64]);
    Tensor { strides: vec![pitch, step], start: start as usize, ..whole }
}

/// The elements of a matrix, row by row.
pub fn elements<T: Item>(x: &Tensor) -> Vec<T> {
    let all: Vec<T> = x.values();
    let at = |i: i64, j: i64| all[(x.start as i64 + i * x.strides[0] + j * x.strides[1]) as usize];
    (0..x.dims[0]).flat_map(|i| (0..x.dims[1]).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect()
}

trait Number: Item + Element + PartialEq + std::fmt::Debug {
    fn small(n: usize) -> Self;
    fn add(self, other: Self) -> Self;
}

macro_rules! number {
    ($($ty:ty: $n:ident => $small:expr, ($a:ident, $b:ident) => $sum:expr;)*) => {$(
        impl Number for $ty {
            fn small($n: usize) -> Self { $small }
            fn add(self, other: Self) -> Self { let ($a, $b) = (self, other); $sum }
        }
    )*};
}
number! {
    f32: n => (n % 1009) as f32 / 7.0, (a, b) => a + b;
    f64: n => (n % 1009) as f64 / 7.0, (a, b) => a + b;
    max_core::dtype::bf16: n => Self::from_f32((n % 1009) as f32 / 7.0), (a, b) => Self::from_f32(a.to_f32() + b.to_f32());
    u8: n => n as u8, (a, b) => a.wrapping_add(b);
    i16: n => n as i16, (a, b) => a.wrapping_add(b);
    i64: n => n as i64, (a, b) => a.wrapping_add(b);
}

/// Sums rows of `x`, and writes `x + w` with a shorter `w` that is padded with 3. Loads of `x` in both loops make it a row that
/// is kept, unless `z` is read in the first one.
fn rows_and_sums<T: Number>(is_kept: bool) -> String {
    let (t, c) = (T::DTYPE.short_name(), compute_dtype(T::DTYPE).short_name());
    let (zero, three) = if T::DTYPE.is_float() { ("0.0", "3.0") } else { ("0", "3") };
    let folded = if is_kept { "x" } else { "z" };
    format!(
        "kernel \"k\" program grid(y.0) (out y: {t}[2], out s: {c}[1], in x: {t}[2], in w: {t}[2], in z: {t}[2]) {{
            %0: i64 = program_id 0 %1: i64 = dim y.1 %2: {c} = const {zero} %3: {c} = const {three}
            %4: {c} = fold %1 (%2) |%5: i64; %6: {c}| {{
                %7: {c} = load {folded}[%0, %5] %8: {c} = add %6, %7 yield %8
            }} combine |%9: {c}; %10: {c}| {{ %11: {c} = add %9, %10 yield %11 }}
            lanes %1 |%12: i64| {{
                %13: i64 = const 0
                %14: {c} = load x[%0, %12] %15: {c} = load w[%13, %12] pad %3 %16: {c} = add %14, %15
                store y[%0, %12] = %16
            }}
            store s[%0] = %4
        }}"
    )
}

/// Results for rows that lie in some way, of the kernel above; `None` where it wrote something else than it should.
fn run<T: Number>(
    is_kept: bool,
    [rows, columns]: [usize; 2],
    x: (usize, i64, i64),
    y: (usize, i64, i64),
) -> (Vec<u8>, Stats) {
    let element = |i: usize, j: usize| T::small(31 * i + 17 * j + j * j % 13);
    let kept = columns.saturating_sub(3);
    let of_w = |_: usize, j: usize| T::small(5 * j);
    let sums = vec![0_u8; rows * compute_dtype(T::DTYPE).size_in_bytes()];
    let mut tensors = [
        matrix([rows, columns], y, |_, _| T::small(1)),
        Tensor { bytes: sums, dims: vec![rows as i64], strides: vec![1], start: 0 },
        matrix([rows, columns], x, element),
        matrix([1, kept], (x.0, 0, 1), of_w),
        matrix([rows, columns], x, element),
    ];
    let before = tensors[0].clone();
    let stats = execute(&rows_and_sums::<T>(is_kept), &mut tensors, &[], &[rows as i64], 2);
    let at = |k: usize| (k / columns, if x.2 == 0 { 0 } else { k % columns });
    let expected = |k: usize| {
        let (i, j) = at(k);
        element(i, j).add(if k % columns < kept {
            of_w(0, k % columns)
        } else {
            T::small(if T::DTYPE.is_float() { 21 } else { 3 })
        })
    };
    let found: Vec<T> = elements(&tensors[0]);
    for (k, found) in found.into_iter().enumerate() {
        assert_eq!(found, expected(k), "{rows}x{columns} of {}, {x:?} to {y:?}, element {k}", T::DTYPE);
    }
    // What lies between rows and elements is as it was.
    let restored = {
        let mut all: Vec<T> = tensors[0].values();
        let were: Vec<T> = before.values();
        let Tensor { start, strides, .. } = &before;
        for i in 0..rows as i64 {
            for j in 0..columns as i64 {
                let at = (*start as i64 + i * strides[0] + j * strides[1]) as usize;
                all[at] = were[at];
            }
        }
        all == were
    };
    assert!(restored, "{rows}x{columns} of {}, {x:?} to {y:?}", T::DTYPE);
    (tensors[1].bytes.clone(), stats)
}

fn check<T: Number>() {
    for is_kept in [true, false] {
        for columns in [1, 2, 5, 8, 64, 257, 1030, 2500] {
            let (sums, _) = run::<T>(is_kept, [3, columns], LIES[0], LIES[0]);
            for lies in &LIES[1..6] {
                // The tree is the same for all.
                assert_eq!(
                    run::<T>(is_kept, [3, columns], *lies, LIES[0]).0,
                    sums,
                    "{columns} of {}, {lies:?}",
                    T::DTYPE
                );
                assert_eq!(
                    run::<T>(is_kept, [3, columns], LIES[0], *lies).0,
                    sums,
                    "{columns} of {}, {lies:?}",
                    T::DTYPE
                );
            }
            run::<T>(is_kept, [3, columns], LIES[6], LIES[0]);
        }
    }
}

checks!(rows_of_f32 f32 rows_of_f64 f64 rows_of_bf16 max_core::dtype::bf16 rows_of_u8 u8 rows_of_i16 i16 rows_of_i64 i64);

#[test]
fn rows_are_accessed_in_units() {
    let (rows, columns) = (3, 2048);
    for is_kept in [true, false] {
        let (_, stats) = run::<f32>(is_kept, [rows, columns], LIES[0], LIES[0]);
        let units = (rows * columns / 4) as u64;
        // `w` ends before the rows do: its last elements are read one by one.
        let of_w = units - rows as u64 + rows as u64;
        let of_x = if is_kept { 0 } else { 2 * units };
        assert_eq!(stats.count("ld.global"), of_x + of_w, "{:?}", stats.by_kind);
        assert_eq!(stats.count("ld.global.v4"), of_x + of_w - rows as u64, "{:?}", stats.by_kind);
        assert_eq!(stats.count("ld.shared.v4"), if is_kept { 2 * units } else { 0 }, "{:?}", stats.by_kind);
        assert_eq!(stats.count("st.global.v4"), units, "{:?}", stats.by_kind);
        assert_eq!(stats.bank_conflicts, 0);
        // Unaligned rows are read and written by neighbouring threads next to each other.
        let (_, stats) = run::<f32>(is_kept, [rows, columns], LIES[1], LIES[0]);
        assert_eq!(stats.count("st.global"), 4 * units + rows as u64, "{:?}", stats.by_kind);
        assert_eq!(stats.bank_conflicts, 0);
    }
}

/// What a body does elsewhere than at its index, under conditions, or to an operand that it also reads, is done one by one.
#[test]
fn other_accesses_are_made_one_by_one() {
    let source =
        "kernel \"k\" program grid(1) (out y: f32[2], inout z: f32[1], out p: f32[1], in x: f32[2], in i: i64[1]) {
        %0: i64 = const 0 %1: i64 = dim y.1
        lanes %1 |%2: i64| {
            %3: i64 = const 2 %4: i64 = const 1
            %5: f32 = load x[%4, %2]
            %6: i64 = load i[%2]
            %7: f32 = load x[%0, %6]
            %8: i64 = rem %2, %3
            %9: bool = eq %8, %0
            %10: f32 = if %9 { %11: f32 = load x[%3, %2] store p[%2] = %11 yield %11 } else { yield %5 }
            %12: f32 = load z[%2]
            %13: f32 = add %12, %10
            store z[%2] = %13
            %14: f32 = load z[%2]
            %15: f32 = add %7, %14
            store y[%0, %2] = %15
            %16: f32 = load x[%2, %2]
            store y[%4, %2] = %16
            %17: i64 = mul %2, %4
            %18: f32 = load x[%4, %17]
            store y[%3, %2] = %18
        }
    }";
    for n in [4_usize, 301, 1024] {
        let x = |i: usize, j: usize| if i < 3 && j < n { (i * 1000 + j) as f32 } else { 0.0 };
        let order = |j: usize| n - 1 - j;
        let all: Vec<f32> = (0..3 * n).map(|k| x(k / n, k % n)).collect();
        let wide = [3, n as i64];
        let mut tensors = [
            Tensor::new(&vec![0_f32; 3 * n], &wide),
            Tensor::new(&(0..n).map(|j| j as f32).collect::<Vec<_>>(), &[n as i64]),
            Tensor::new(&vec![-1_f32; n], &[n as i64]),
            Tensor::new(&all, &wide),
            Tensor::new(&(0..n).map(|j| order(j) as i64).collect::<Vec<_>>(), &[n as i64]),
        ];
        let stats = execute(source, &mut tensors, &[], &[1], 1);
        let [y, z, p] = [0, 1, 2].map(|k| tensors[k].values::<f32>());
        for j in 0..n {
            let sum = j as f32 + if j % 2 == 0 { x(2, j) } else { x(1, j) };
            assert_eq!((z[j], p[j]), (sum, if j % 2 == 0 { x(2, j) } else { -1.0 }), "{j} of {n}");
            let expected = (x(0, order(j)) + sum, x(j, j), x(1, j));
            assert_eq!((y[j], y[n + j], y[2 * n + j]), expected, "{j} of {n}");
        }
        // Two indices have 16 bytes; the row of `x` whose number is made in the body is in units too.
        if n % 2 == 0 {
            let units = [n as u64 / 2; 2];
            assert_eq!(
                [stats.count("ld.global.v2.b64"), stats.count("ld.global.v2.f32")],
                units,
                "{:?}",
                stats.by_kind
            );
            assert_eq!(stats.count("st.global.v2"), 0, "{:?}", stats.by_kind);
        }
    }
}

/// A body with loops is left to as many threads as there are.
#[test]
fn long_bodies_are_spread_over_threads() {
    let source = "kernel \"k\" program grid(1) (out y: f32[1], in x: f32[1]) {
        %0: i64 = const 0 %1: i64 = dim y.0 %2: i64 = const 1
        lanes %1 |%3: i64| {
            %4: f32 = load x[%3]
            %5: var<f32> = var %4
            for %0 to %3 step %2 |%6: i64| { %7: f32 = get %5 %8: f32 = add %7, %4 set %5 = %8 }
            %9: f32 = get %5
            store y[%3] = %9
        }
    }";
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let mut tensors = [Tensor::new(&[0_f32; 256], &[256]), Tensor::new(&x, &[256])];
    let stats = execute(source, &mut tensors, &[], &[1], 1);
    let expected: Vec<f32> = x.iter().map(|x| x * (x + 1.0)).collect();
    assert_eq!(tensors[0].values::<f32>(), expected);
    assert_eq!(stats.count("ld.global"), 256, "{:?}", stats.by_kind);
}
