//! Bits of small floats, and lanes that are read in segments: what quantized weights are computed with.

use max::dtype::{F8E4M3, bf16, f16};
use max::kernel::Kernel;
use max::kernel::prelude::*;

use crate::support::{blank, check, check_unary, forms, run, tensor, vector};

#[kernel(op = "s_half")]
fn half(low: u8, high: u8) -> f32 {
    ((low as u16) | (high as u16) << 8).bitcast::<f16>() as f32
}

/// The bits of a half that is rounded to it, as a signed integer.
#[kernel(op = "s_half_bits")]
fn half_bits(x: f32) -> i16 {
    (x as bf16).bitcast::<i16>()
}

#[kernel(op = "s_byte")]
fn byte(x: i8) -> i8 {
    let y = x.bitcast::<f8_e4m3fn>() as f32;
    ((y * 0.5) as f8_e4m3fn).bitcast::<i8>()
}

#[test]
fn small_floats_are_integers_with_their_bits() {
    let bits: Vec<u16> = (0..=u16::MAX).filter(|bits| !f16::from_bits(*bits).is_nan()).step_by(7).collect();
    let [low, high]: [Vec<u8>; 2] = [0, 1].map(|i| bits.iter().map(|bits| bits.to_le_bytes()[i]).collect());
    let expected: Vec<f32> = bits.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
    check::<half, f32>(&[vector(&low), vector(&high), blank(&[bits.len() as i64], -1.0f32)], &[], &expected);

    let x: Vec<f32> = (0..300).map(|i| (i as f32 - 150.0) * 1.37e3).collect();
    let expected: Vec<i16> = x.iter().map(|x| bf16::from_f32(*x).to_bits() as i16).collect();
    check::<half_bits, i16>(&[vector(&x), blank(&[300], 0i16)], &[], &expected);

    let all: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let halved = |x: &i8| {
        let y = F8E4M3::from_bits(*x as u8).to_f32();
        F8E4M3::from_f32(y * 0.5).to_bits() as i8
    };
    check_unary::<byte, i8>(&all, &all.iter().map(halved).collect::<Vec<_>>());
}

/// Blocks of `S` bytes and two more before them: a number that all of a block are multiplied by, and one that is added.
macro_rules! blocks {
    ($name:ident $op:literal $size:literal) => {
        #[kernel(op = $op)]
        fn $name(y: Out<f32, 2>, x: In<u8, 2>) {
            let row = program_id(0);
            let x = x.row(row);
            let count = x.dim(0) / ($size + 2);
            let each = lanes(count).map(|b| (x.at(b * ($size + 2)) as f32, x.at(b * ($size + 2) + 1) as f32));
            let each = each.repeat_each::<$size>();
            let bytes = x.segments::<$size>(2, [(count, $size + 2)]);
            y.row(row).write(bytes.zip(each).map(|(v, (scale, more))| (v as f32) * scale + more));
        }
    };
}
blocks!(blocks_3 "s_blocks_3" 3);
blocks!(blocks_16 "s_blocks_16" 16);
blocks!(blocks_32 "s_blocks_32" 32);
blocks!(blocks_48 "s_blocks_48" 48);
blocks!(blocks_256 "s_blocks_256" 256);

fn check_blocks<K: Kernel>(size: usize) {
    for (rows, count) in [(1, 0), (2, 1), (3, 2), (2, 5), (1, 8), (2, 37)] {
        // A part of a block is left over.
        let bytes = count * (size + 2) + size / 2;
        let x: Vec<u8> = (0..rows * bytes).map(|i| (i * 41 % 251) as u8).collect();
        let expected: Vec<f32> = x
            .chunks(bytes.max(1))
            .flat_map(|row| row.chunks_exact(size + 2).take(count))
            .flat_map(|block| block[2..].iter().map(|v| f32::from(*v) * f32::from(block[0]) + f32::from(block[1])))
            .collect();
        let y = blank(&[rows as i64, (count * size) as i64], f32::NAN);
        for form in forms() {
            let after = run::<K>(form, &[y.clone(), tensor(&[rows as i64, bytes as i64], &x)], &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{size} {rows} {count} {form:?}");
        }
    }
}

#[test]
fn blocks_are_read_in_segments() {
    check_blocks::<blocks_3>(3);
    check_blocks::<blocks_16>(16);
    check_blocks::<blocks_32>(32);
    check_blocks::<blocks_48>(48);
    check_blocks::<blocks_256>(256);
}

/// Segments of which some are outside, before the operand and behind it, two that overlap in each step; and their sum, each times its
/// number.
#[kernel(op = "s_outside")]
fn outside(y: Out<i64, 1>, sums: Out<i64, 1>, x: In<i64, 1>) {
    let i = program_id(0);
    let n = x.dim(0) / 16;
    let x = x.pad(-7);
    let segments = x.segments::<16>(-16, [(n + 2, 16), (2, 3)]);
    let numbered = segments.zip(lanes(2 * (n + 2)).repeat_each::<16>());
    sums.set(i, numbered.fold_with(0, |sum, (v, s)| sum + v * s).sum());
    y.block::<4096>(i).write(segments);
}

#[test]
fn segments_outside_read_padding() {
    for n in [0, 1, 3, 4, 40] {
        let x: Vec<i64> = (0..n * 16 + 5).collect();
        let at = |i: i64| *x.get(usize::try_from(i).unwrap_or(usize::MAX)).unwrap_or(&-7);
        let place = |i: i64| i / 32 * 16 - 16 + i / 16 % 2 * 3 + i % 16;
        // Past their end, lanes go on.
        let expected: Vec<i64> = (0..(n + 3) * 32).map(|i| at(place(i))).collect();
        let sum: i64 = expected[..(n as usize + 2) * 32].iter().enumerate().map(|(i, v)| v * (i as i64 / 16)).sum();
        for form in forms() {
            let operands = [blank(&[(n + 3) * 32], 0i64), blank(&[1], 0i64), vector(&x)];
            let after = run::<outside>(form, &operands, &[]);
            assert_eq!(after[0].values::<i64>(), expected, "{n} {form:?}");
            assert_eq!(after[1].values::<i64>(), [sum], "{n} {form:?}");
        }
    }
}

/// Numbers of several dtypes in records of 17 bytes.
#[kernel(op = "s_records")]
fn records(y: Out<f64, 2>, x: In<u8, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0) / 17;
    let each = x.numbers::<f16>(0, [(n, 17)]).zip(x.numbers::<i32>(2, [(n, 17)])).zip(x.numbers::<f64>(6, [(n, 17)]));
    let each = each.zip(x.numbers::<i8>(14, [(n, 17)])).zip(x.numbers::<u16>(15, [(n, 17)]));
    let sums = each.map(|((((a, b), c), d), e)| (a as f64) + (b as f64) + c + (d as f64) + (e as f64));
    y.row(row).write(sums.repeat_each::<32>());
}

#[test]
fn numbers_are_read_from_bytes() {
    for n in [0, 1, 2, 3, 70] {
        // The last record is not whole: what it lacks is 0.
        let records = (0..n + 1).flat_map(|i: i32| {
            let mut bytes = f16::from_f32(i as f32 / 4.0).to_le_bytes().to_vec();
            bytes.extend((i * 100_003 - 7).to_le_bytes());
            bytes.extend((f64::from(i) * 1e-3).to_le_bytes());
            bytes.extend((-i as i8).to_le_bytes());
            bytes.extend((60_000 + i as u16).to_le_bytes());
            bytes
        });
        let row: Vec<u8> = records.collect();
        let bytes = (n * 17 + 12) as i64;
        let x: Vec<u8> = row[..bytes as usize].repeat(2);
        let sum = |i: i32| {
            let b = i * 100_003 - 7;
            f64::from(i) / 4.0 + f64::from(b) + f64::from(i) * 1e-3 + f64::from(-i as i8) + f64::from(60_000 + i as u16)
        };
        let expected: Vec<f64> = (0..n).flat_map(|i| [sum(i); 32]).collect();
        for form in forms() {
            let operands = [blank(&[2, (n * 32) as i64], f64::NAN), tensor(&[2, bytes], &x)];
            assert_eq!(
                run::<self::records>(form, &operands, &[])[0].values::<f64>(),
                expected.repeat(2),
                "{n} {form:?}"
            );
        }
    }
}

/// A product with a factor that lane code makes of bytes.
#[kernel(op = "s_product", dtypes(T = [f32]), tile(BM = 8, BN = 32, BK = 96))]
fn product<T: Float>(y: Out<T, 2>, a: In<u8, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, b.dim(0), BK) {
        let first = m * BM;
        let rows = Tile::<T, BM, BK>::from_rows(|r| {
            let row = a.row(first + r);
            row.segments::<32>(k / 32 * 33 + 1, [(BK / 32, 33)])
                .zip(row.numbers::<u8>(k / 32 * 33, [(BK / 32, 33)]).repeat_each::<32>())
                .map(|(v, scale)| (v as T) * (scale as T))
        });
        acc = dot(rows, b.tile::<BK, BN>(k, n), acc);
    }
    y.tile::<BM, BN>(m, n).write(acc);
}

#[test]
fn tiles_are_made_of_lanes() {
    for [rows, blocks, columns] in [[1, 1, 1], [8, 3, 32], [9, 4, 33], [20, 7, 5]] {
        let a: Vec<u8> = (0..rows * blocks * 33).map(|i| (i * 5 % 7) as u8).collect();
        let b: Vec<f32> = (0..blocks * 32 * columns).map(|i| (i * 3 % 11) as f32 - 5.0).collect();
        let element = |r: usize, k: usize| {
            let block = &a[r * blocks * 33 + k / 32 * 33..];
            f32::from(block[0]) * f32::from(block[1 + k % 32])
        };
        let expected: Vec<f32> = (0..rows * columns)
            .map(|i| (0..blocks * 32).map(|k| element(i / columns, k) * b[k * columns + i % columns]).sum())
            .collect();
        let dims = |r: usize, c: usize| [r as i64, c as i64];
        for form in forms() {
            let operands = [
                blank(&dims(rows, columns), f32::NAN),
                tensor(&dims(rows, blocks * 33), &a),
                tensor(&dims(blocks * 32, columns), &b),
            ];
            assert_eq!(run::<product>(form, &operands, &[])[0].values::<f32>(), expected, "{rows} {blocks} {form:?}");
        }
    }
}

/// Words among bytes, and sums of products of their bytes.
#[kernel(op = "s_words")]
fn words(y: Out<i32, 2>, x: In<u8, 2>, z: In<u8, 2>) {
    let row = program_id(0);
    let (x, z) = (x.row(row), z.row(row));
    let n = z.dim(0) / 16;
    let words = x.words::<4>(3, [(n, 19)]);
    y.row(row).write(words.dot4(z.words::<4>(0, [(n, 16)])).zip(words).map(|(sum, word)| sum ^ word));
}

#[test]
fn words_are_four_bytes_and_have_products() {
    for n in [1, 2, 5, 16, 33] {
        // All bytes, also those of more than 7 bits and -128; the last word of x is not whole.
        let bytes = n * 19 - 2;
        let x: Vec<u8> = (0..2 * bytes).map(|i| (i * 37 + i / 7 * 101) as u8).collect();
        let z: Vec<u8> = (0..2 * n * 16).map(|i| if i % 5 == 0 { 128 } else { (i * 91 + 13) as u8 }).collect();
        let byte = |row: usize, i: usize| if i < bytes { x[row * bytes + i] } else { 0 };
        let expected = (0..2 * n * 4).map(|i| {
            let (row, word) = (i / (n * 4), i % (n * 4));
            let word = [0, 1, 2, 3].map(|k| byte(row, word / 4 * 19 + 3 + word % 4 * 4 + k));
            let products = (0..4).map(|k| i32::from(word[k] & 127) * i32::from(z[4 * i + k] as i8));
            products.sum::<i32>() ^ i32::from_le_bytes(word)
        });
        let expected: Vec<i32> = expected.collect();
        for form in forms() {
            let operands =
                [blank(&[2, (n * 4) as i64], 0i32), tensor(&[2, bytes as i64], &x), tensor(&[2, (n * 16) as i64], &z)];
            assert_eq!(run::<self::words>(form, &operands, &[])[0].values::<i32>(), expected, "{n} {form:?}");
        }
    }
}

/// The bytes of integers of all sizes, and how many of each are even, so that there are blocks of them and single ones.
#[kernel(op = "s_bytes")]
fn bytes(y: Out<u8, 2>, z: Out<u8, 2>, v: Out<i32, 1>, x: In<u8, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0) / 11;
    let long = x.numbers::<u64>(0, [(n, 11)]);
    y.row(row).write(long.map(|v| v + 1).bytes());
    z.row(row).write(
        x.numbers::<i32>(1, [(n, 11)]).bytes().zip(x.numbers::<u16>(9, [(2 * n, 5)]).bytes()).map(|(a, b)| a ^ b),
    );
    v.set(row, long.bytes().fold_with(0, |sum, byte| sum + (byte & 1) as i32).sum());
}

#[test]
fn bytes_are_those_of_integers() {
    for n in [1, 2, 7, 8, 33, 130] {
        let x: Vec<u8> = (0..2 * n * 11).map(|i| if i % 11 < 2 { 255 } else { (i * 37 + i / 7 * 101) as u8 }).collect();
        let byte = |row: usize, i: usize| if i < n * 11 { x[row * n * 11 + i] } else { 0 };
        let long = |row: usize, i: usize| u64::from_le_bytes(std::array::from_fn(|k| byte(row, i * 11 + k)));
        let rows = || (0..2).flat_map(|row| (0..n).map(move |i| (row, i)));
        let expected: Vec<u8> = rows().flat_map(|(row, i)| long(row, i).wrapping_add(1).to_le_bytes()).collect();
        let both = |i: usize| {
            let (row, k) = (i / (4 * n), i % (4 * n));
            byte(row, k / 4 * 11 + 1 + k % 4) ^ byte(row, 9 + k / 2 * 5 + k % 2)
        };
        let ones =
            |row: usize| (0..n).flat_map(|i| long(row, i).to_le_bytes()).filter(|byte| byte & 1 == 1).count() as i32;
        for form in forms() {
            let dims = |columns: usize| [2, columns as i64];
            let operands =
                [blank(&dims(8 * n), 0u8), blank(&dims(4 * n), 0u8), blank(&dims(1), 0i32), tensor(&dims(11 * n), &x)];
            let after = run::<self::bytes>(form, &operands, &[]);
            assert_eq!(after[0].values::<u8>(), expected, "{n} {form:?}");
            assert_eq!(after[1].values::<u8>(), (0..8 * n).map(both).collect::<Vec<_>>(), "{n} {form:?}");
            assert_eq!(after[2].values::<i32>(), [ones(0), ones(1)], "{n} {form:?}");
        }
    }
}
