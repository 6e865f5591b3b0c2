//! Products of scaled integers, with groups of all sizes, few columns and many, with and without offsets.

use max::kernel::prelude::*;

use crate::support::{Operand, blank, forms, run, tensor};

/// Makes a kernel whose tiles have `R` rows of `K` integers in `G` groups, and `C` columns with `H` scales each. With offsets, bytes have
/// a sign (`i32`) or not.
macro_rules! products {
    ($($name:ident $op:literal $integer:ident $r:literal $k:literal $g:literal, $h:literal $c:literal;)*) => { $(
        #[kernel(op = $op)]
        fn $name(y: Out<f32, 2>, a: In<u8, 2>, s: In<f32, 2>, o: In<f32, 2>, b: In<u8, 2>, t: In<f32, 2>, #[param] offsets: bool) {
            let [i, j] = program_id();
            let mut acc = Tile::<f32, $r, $c>::zeros();
            for k in range(0, b.dim(1), $k) {
                // The last tile of a row may be shorter.
                let count = (a.dim(1) - k).min($k);
                let group = k / ($k / $g);
                let groups = count / ($k / $g);
                if offsets {
                    let rows = ScaledTile::<$r, $k, $g>::from_rows(|r| {
                        let row = i * $r + r;
                        let scales = s.row(row).segments::<1>(group, [(groups, 1)]);
                        let offsets = o.row(row).segments::<1>(group, [(groups, 1)]);
                        (a.row(row).words::<1>(k, [(count / 4, 4)]).map(|word| word as $integer), scales.zip(offsets))
                    });
                    acc = dot_scaled(rows, b.tile::<$c, $k>(j, k).t(), t.tile::<$c, $h>(j, k / ($k / $h)).t(), acc);
                } else {
                    let rows = ScaledTile::<$r, $k, $g>::from_rows(|r| {
                        let row = i * $r + r;
                        let scales = s.row(row).segments::<1>(group, [(groups, 1)]);
                        (a.row(row).words::<2>(k, [(count / 8, 8)]), scales)
                    });
                    acc = dot_scaled(rows, b.tile::<$c, $k>(j, k).t(), t.tile::<$c, $h>(j, k / ($k / $h)).t(), acc);
                }
            }
            y.tile::<$r, $c>(i, j).write(acc);
        }
    )* };
}

products! {
    groups_of_4 "st_4" i32 8 64 16, 1 16;
    groups_of_8 "st_8" u32 3 128 16, 16 5;
    groups_of_16 "st_16" u32 5 256 16, 1 40;
    groups_of_32 "st_32" u32 8 512 16, 16 33;
    groups_of_64 "st_64" i32 4 256 4, 4 1;
    groups_of_128 "st_128" u32 9 512 4, 2 12;
    groups_of_48 "st_48" u32 4 96 2, 1 7;
    groups_of_192 "st_192" u32 4 768 4, 1 7;
    groups_of_320 "st_320" i32 3 1280 4, 4 1;
    few_of_16 "st_few_16" u32 6 512 32, 2 8;
    few_of_32 "st_few_32" i32 9 512 16, 16 8;
}

/// Runs a kernel at all levels and in reference form, and compares with sums in `f64`.
macro_rules! check {
    ($($name:ident $integer:ident [$r:literal, $k:literal, $g:literal, $h:literal, $c:literal])*) => { $(
        // Rows, steps and columns: parts of tiles, whole ones and several.
        for (rows, steps, columns) in [(1, $k / $h, 1), ($r, $k, $c), (2 * $r + 1, 2 * $k + $k / $h, $c + 3), ($r + 2, $k, 2 * $c)] {
            // Some integers are small: more of their products fit 16 bits.
            for (offsets, lowest, mask) in [(false, true, 255), (true, false, 255), (true, false, 15), (true, true, 31)] {
                let (group, part) = ($k / $g, $k / $h);
                let byte = |i: usize, f: usize| (i * f + i / 7 * 101 + i / 64 * 13) as u8;
                let a: Vec<u8> = (0..rows * steps).map(|i| byte(i, 37) & mask).collect();
                // Without -128, for which AVX2 has a way of its own, too.
                let b: Vec<u8> = (0..columns * steps).map(|i| byte(i, 91)).map(|v| if v == 128 && !lowest { 127 } else { v }).collect();
                let number = |i: usize| ((i * 29 % 31) as f32 - 11.0) / 8.0;
                let s: Vec<f32> = (0..rows * steps / group).map(number).collect();
                let o: Vec<f32> = (0..rows * steps / group).map(|i| number(i + 5) * 16.0).collect();
                let t: Vec<f32> = (0..columns * steps / part).map(|i| number(i + 3)).collect();
                let expected = |i: usize, j: usize| {
                    let is_signed = !offsets || stringify!($integer) == "i32";
                    let integer = |byte: u8| if is_signed { byte as i8 } else { (byte & 127) as i8 };
                    let term = |k: usize| {
                        let at = i * (steps / group) + k / group;
                        let left = f64::from(integer(a[i * steps + k])) * f64::from(s[at]);
                        let offset = if offsets { f64::from(o[at]) } else { 0.0 };
                        let right = f64::from(b[j * steps + k] as i8) * f64::from(t[j * (steps / part) + k / part]);
                        (left * right + offset * right, (left * right).abs() + (offset * right).abs())
                    };
                    (0..steps).map(term).fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1))
                };
                for form in forms() {
                    let dims = |r: usize, c: usize| [r as i64, c as i64];
                    let operands = [
                        blank(&dims(rows, columns), f32::NAN),
                        tensor(&dims(rows, steps), &a),
                        tensor(&dims(rows, steps / group), &s),
                        tensor(&dims(rows, steps / group), &o),
                        tensor(&dims(columns, steps), &b),
                        tensor(&dims(columns, steps / part), &t),
                    ];
                    let got = run::<$name>(form, &operands, &[("offsets", max::kernel::ParamArg::Bool(offsets))])[0].values::<f32>();
                    for (at, got) in got.into_iter().enumerate() {
                        let (want, scale) = expected(at / columns, at % columns);
                        let error = (f64::from(got) - want).abs();
                        let name = stringify!($name);
                        assert!(error <= scale * 1e-6, "{name} {rows} {steps} {columns} {offsets} {mask} {form:?} at {at}: {got}, not {want}");
                    }
                }
            }
        }
    )* };
}

#[test]
fn products_are_those_of_integers_times_scales() {
    check! {
        groups_of_4 i32 [8, 64, 16, 1, 16]
        groups_of_8 u32 [3, 128, 16, 16, 5]
        groups_of_16 u32 [5, 256, 16, 1, 40]
        groups_of_32 u32 [8, 512, 16, 16, 33]
        groups_of_64 i32 [4, 256, 4, 4, 1]
        groups_of_128 u32 [9, 512, 4, 2, 12]
        groups_of_48 u32 [4, 96, 2, 1, 7]
        groups_of_192 u32 [4, 768, 4, 1, 7]
        groups_of_320 i32 [3, 1280, 4, 4, 1]
        few_of_16 u32 [6, 512, 32, 2, 8]
        few_of_32 i32 [9, 512, 16, 16, 8]
    }
}

/// Makes a kernel whose bytes are less a zero point, with columns that share scales of 256 integers, or of a group.
macro_rules! with_zero {
    ($($name:ident $op:literal $g:literal $h:literal $c:literal;)*) => { $(
        #[kernel(op = $op)]
        fn $name(y: Out<f32, 2>, a: In<u8, 2>, s: In<f32, 2>, b: In<u8, 2>, t: In<f32, 2>, #[param] zero: i32) {
            let [i, j] = program_id();
            let mut acc = Tile::<f32, 5, $c>::zeros();
            for k in range(0, b.dim(1), 512) {
                let count = (a.dim(1) - k).min(512);
                let rows = ScaledTile::<5, 512, $g>::from_rows(|r| {
                    let row = i * 5 + r;
                    let scales = s.row(row).segments::<1>(k / (512 / $g), [(count / (512 / $g), 1)]);
                    (a.row(row).words::<1>(k, [(count / 4, 4)]).map(|word| word as u32), scales, zero)
                });
                acc = dot_scaled(rows, b.tile::<$c, 512>(j, k).t(), t.tile::<$c, $h>(j, k / (512 / $h)).t(), acc);
            }
            y.tile::<5, $c>(i, j).write(acc);
        }
    )* };
}

with_zero! {
    zero_of_16 "st_zero_16" 32 2 24;
    zero_of_32 "st_zero_32" 16 16 49;
    zero_of_few "st_zero_few" 32 2 8;
}

#[test]
fn bytes_may_be_less_a_zero_point() {
    macro_rules! check {
        ($($name:ident $g:literal $h:literal $c:literal;)*) => { $(
            for (rows, steps, columns) in [(1, 256, 1), (5, 512, $c), (13, 1280, $c + 7)] {
                // Outside of 0 to 127 there is none that bytes could have.
                for zero in [0, 8, 32, 127, 200, -3] {
                    let (group, part) = (512 / $g, 512 / $h);
                    let a: Vec<u8> = (0..rows * steps).map(|i| (i * 37 + i / 7 * 101) as u8).collect();
                    let b: Vec<u8> = (0..columns * steps).map(|i| (i * 91 + i / 64 * 13) as u8).collect();
                    let number = |i: usize| ((i * 29 % 31) as f32 - 11.0) / 8.0;
                    let s: Vec<f32> = (0..rows * steps / group).map(number).collect();
                    let t: Vec<f32> = (0..columns * steps / part).map(|i| number(i + 3)).collect();
                    let dims = |r: usize, c: usize| [r as i64, c as i64];
                    for form in forms() {
                        let operands = [
                            blank(&dims(rows, columns), f32::NAN),
                            tensor(&dims(rows, steps), &a),
                            tensor(&dims(rows, steps / group), &s),
                            tensor(&dims(columns, steps), &b),
                            tensor(&dims(columns, steps / part), &t),
                        ];
                        let zero_of = [("zero", max::kernel::ParamArg::Int(zero))];
                        let got = run::<$name>(form, &operands, &zero_of)[0].values::<f32>();
                        for (at, got) in got.into_iter().enumerate() {
                            let (i, j) = (at / columns, at % columns);
                            let term = |k: usize| {
                                let left = f64::from(a[i * steps + k] & 127) * f64::from(s[(i * steps + k) / group]);
                                let offset = zero as f64 * f64::from(s[(i * steps + k) / group]);
                                let right = f64::from(b[j * steps + k] as i8) * f64::from(t[(j * steps + k) / part]);
                                ((left - offset) * right, (left * right).abs() + (offset * right).abs())
                            };
                            let (want, scale) =
                                (0..steps).map(term).fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1));
                            let name = stringify!($name);
                            let error = (f64::from(got) - want).abs();
                            assert!(error <= scale * 1e-6, "{name} {rows} {steps} {columns} {zero} {form:?} at {at}: {got}, not {want}");
                        }
                    }
                }
            }
        )* };
    }
    check! {
        zero_of_16 32 2 24;
        zero_of_32 16 16 49;
        zero_of_few 32 2 8;
    }
}

/// The result, integers and scales of rows, and of columns, of 64 integers and two scales each.
fn operands_of_64(a: &[u8], s: &[f32], b: &[u8], t: &[f32]) -> [Operand; 5] {
    let [rows, columns] = [a, b].map(|bytes| bytes.len() as i64 / 64);
    [
        blank(&[rows, columns], f32::NAN),
        tensor(&[rows, 64], a),
        tensor(&[rows, 2], s),
        tensor(&[columns, 64], b),
        tensor(&[columns, 2], t),
    ]
}

/// A product that is no variable, of a whole row of 64 integers.
#[kernel(op = "st_value")]
fn value(y: Out<f32, 2>, a: In<u8, 2>, s: In<f32, 2>, b: In<u8, 2>, t: In<f32, 2>) {
    let [i, j] = program_id();
    let rows = ScaledTile::<4, 64, 2>::from_rows(|r| {
        let row = i * 4 + r;
        (a.row(row).words::<8>(0, [(2, 32)]), s.row(row))
    });
    let one = Tile::<f32, 4, 8>::full(1.0);
    y.tile::<4, 8>(i, j).write(dot_scaled(rows, b.tile::<8, 64>(j, 0).t(), t.tile::<8, 2>(j, 0).t(), one));
}

#[test]
fn a_product_may_be_a_value() {
    let (rows, columns) = (6, 11);
    let a: Vec<u8> = (0..rows * 64).map(|i| (i * 37) as u8).collect();
    let b: Vec<u8> = (0..columns * 64).map(|i| (i * 91) as u8).collect();
    let (s, t): (Vec<f32>, Vec<f32>) = (vec![0.5; rows * 2], vec![2.0; columns * 2]);
    // Scales are powers of two, so that all is exact.
    let product = |i: usize, j: usize| {
        (0..64).map(|k| i32::from(a[i * 64 + k] as i8) * i32::from(b[j * 64 + k] as i8)).sum::<i32>()
    };
    let expected: Vec<f32> = (0..rows * columns).map(|at| product(at / columns, at % columns) as f32 + 1.0).collect();
    for form in forms() {
        let operands = operands_of_64(&a, &s, &b, &t);
        assert_eq!(run::<value>(form, &operands, &[])[0].values::<f32>(), expected, "{form:?}");
    }
}

/// A product that needs more memory than that of who calls this.
#[kernel]
fn larger_product(b: In<u8, 2>, t: In<f32, 2>) -> f32 {
    let rows = ScaledTile::<4, 128, 4>::from_rows(|r| (b.row(r).words::<1>(0, [(b.dim(1) / 4, 4)]), t.row(r)));
    let all = dot_scaled(rows, b.tile::<16, 128>(0, 0).t(), t.tile::<16, 4>(0, 0).t(), Tile::<f32, 4, 16>::zeros());
    all.element(0, 0)
}

/// The scales of the left rows are products themselves.
#[kernel(op = "st_nested")]
fn nested(y: Out<f32, 2>, a: In<u8, 2>, s: In<f32, 2>, b: In<u8, 2>, t: In<f32, 2>) {
    let [i, j] = program_id();
    let mut acc = Tile::<f32, 4, 16>::zeros();
    let rows = ScaledTile::<4, 64, 2>::from_rows(|r| {
        let row = i * 4 + r;
        (a.row(row).words::<8>(0, [(2, 32)]), s.row(row).map(|v| v * larger_product(b, t)))
    });
    acc = dot_scaled(rows, b.tile::<16, 64>(j, 0).t(), t.tile::<16, 2>(j, 0).t(), acc);
    y.tile::<4, 16>(i, j).write(acc);
}

#[test]
fn rows_may_be_made_of_products() {
    let (rows, columns) = (7, 19);
    let a: Vec<u8> = (0..rows * 64).map(|i| (i * 37 % 100) as u8).collect();
    let b: Vec<u8> = (0..columns * 64).map(|i| (i * 91 % 5) as u8).collect();
    let (s, t): (Vec<f32>, Vec<f32>) = (vec![0.5; rows * 2], vec![1.0; columns * 2]);
    let dot = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| f32::from(*a as i8) * f32::from(*b as i8)).sum::<f32>();
    let inner = dot(&b[..64], &b[..64]);
    let product = |at: usize| dot(&a[at / columns * 64..][..64], &b[at % columns * 64..][..64]) * 0.5 * inner;
    let expected: Vec<f32> = (0..rows * columns).map(product).collect();
    for form in forms() {
        let operands = operands_of_64(&a, &s, &b, &t);
        assert_eq!(run::<nested>(form, &operands, &[])[0].values::<f32>(), expected, "{form:?}");
    }
}

/// Integers of a row, of a scale of it, and of a scale of a column.
const LONG: [usize; 3] = [3072, 32, 256];

/// Makes a kernel of rows by one column, whose words are low nibbles of `S` words of four bytes, then high ones of as many, and so on.
macro_rules! nibbles {
    ($($name:ident $op:literal $s:literal;)*) => { $(
        #[kernel(op = $op)]
        fn $name(y: Out<f32, 2>, a: In<u8, 2>, s: In<f32, 2>, b: In<u8, 2>, t: In<f32, 2>) {
            let [i, j] = program_id();
            let segments = a.dim(1) / (4 * $s);
            let rows = ScaledTile::<4, 3072, 96>::from_rows(|r| {
                let shifts = lanes(segments).map(|part| (part % 2 * 4) as i32).repeat_each::<$s>();
                let words = a.row(i * 4 + r).words::<$s>(0, [(segments, 4 * $s)]).zip(shifts);
                let scales = s.row(i * 4 + r).segments::<1>(0, [(s.dim(1), 1)]);
                (words.map(|(word, shift)| ((word >> shift) & 0x0f0f_0f0f) as u32), scales)
            });
            let acc = dot_scaled(rows, b.tile::<1, 3072>(j, 0).t(), t.tile::<1, 12>(j, 0).t(), Tile::<f32, 4, 1>::zeros());
            y.tile::<4, 1>(i, j).write(acc);
        }
    )* };
}

nibbles! {
    nibbles_of_2 "st_nibbles_2" 2;
    nibbles_of_4 "st_nibbles_4" 4;
    nibbles_of_8 "st_nibbles_8" 8;
    nibbles_of_12 "st_nibbles_12" 12;
    nibbles_of_16 "st_nibbles_16" 16;
    nibbles_of_32 "st_nibbles_32" 32;
    nibbles_of_64 "st_nibbles_64" 64;
    nibbles_of_96 "st_nibbles_96" 96;
}

#[test]
fn words_of_one_column_may_lie_in_segments_of_any_length() {
    let ([steps, group, part], rows) = (LONG, 6);
    let byte = |i: usize, f: usize| (i * f + i / 7 * 101 + i / 64 * 13) as u8;
    let number = |i: usize| ((i * 29 % 31) as f32 - 11.0) / 8.0;
    let a: Vec<u8> = (0..rows * steps).map(|i| byte(i, 37)).collect();
    let b: Vec<u8> = (0..steps).map(|i| byte(i, 91)).collect();
    let s: Vec<f32> = (0..rows * steps / group).map(number).collect();
    let t: Vec<f32> = (0..steps / part).map(|i| number(i + 3)).collect();
    macro_rules! check {
        ($($name:ident $s:literal)*) => { $(
            let term = |i: usize, k: usize| {
                let integer = a[i * steps + k] >> (k / 4 / $s % 2 * 4) & 15;
                let scales = f64::from(s[i * (steps / group) + k / group]) * f64::from(t[k / part]);
                f64::from(integer) * f64::from(b[k] as i8) * scales
            };
            for form in forms() {
                let operands = [
                    blank(&[rows as i64, 1], f32::NAN),
                    tensor(&[rows as i64, steps as i64], &a),
                    tensor(&[rows as i64, (steps / group) as i64], &s),
                    tensor(&[1, steps as i64], &b),
                    tensor(&[1, (steps / part) as i64], &t),
                ];
                for (i, got) in run::<$name>(form, &operands, &[])[0].values::<f32>().into_iter().enumerate() {
                    let want: f64 = (0..steps).map(|k| term(i, k)).sum();
                    let scale: f64 = (0..steps).map(|k| term(i, k).abs()).sum();
                    assert!((f64::from(got) - want).abs() <= scale * 1e-6, "{} {form:?} {i}: {got}, not {want}", stringify!($name));
                }
            }
        )* };
    }
    check! {
        nibbles_of_2 2 nibbles_of_4 4 nibbles_of_8 8 nibbles_of_12 12
        nibbles_of_16 16 nibbles_of_32 32 nibbles_of_64 64 nibbles_of_96 96
    }
}
