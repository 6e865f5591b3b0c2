//! Products of `f32` by the tensor cores, executed: how factors are rounded, every way in which they can lie, computed ones,
//! shapes that do not divide, and how memory is accessed.

use max_core::dtype::DType;
use max_core::kernel::ptx::{Float32MatmulPrecision, Options, Target};
use ptx_sim::Stats;

use crate::execute::{Tensor, execute_as};
use crate::mma::{Lies, TARGETS, matrix, source, value};

fn options(target: Target) -> Options {
    Options { float32_matmul_precision: Float32MatmulPrecision::High, ..Options::new(target) }
}

/// A number that tf32 does not have, and the nearest one that it has: 10 bits behind the point, and ties go away from zero.
fn between(i: usize) -> (f32, f32) {
    let steps = (i * 7919 + 13) % 1021;
    let (more, rounded) = [(0.0, 0), (0.5, 1), (0.5 - 1.0 / 8192.0, 0), (0.5 + 1.0 / 8192.0, 1), (0.75, 1)][i % 5];
    let sign = if i.is_multiple_of(3) { -1.0 } else { 1.0 };
    (sign * (1.0 + (steps as f32 + more) / 1024.0), sign * (1.0 + (steps + rounded) as f32 / 1024.0))
}

/// Of which factors the transposes are loaded where both lie along the sum.
const ALONG: [bool; 2] = [false, true];

/// Multiplies on each target, compares, and gives what was counted. One factor, by its index, is of numbers between those of
/// tf32, the other of few bits, so that sums are exact.
#[track_caller]
fn multiply(
    [m, n, k]: [usize; 3],
    tile: [usize; 3],
    lies: [Lies; 2],
    transposed: [bool; 2],
    source: impl Fn([DType; 2], [usize; 3], [bool; 2]) -> String,
) -> [Stats; 2] {
    [0, 1]
        .map(|fine| {
            let exact = |i: usize| (value(i), value(i));
            let a = |i: usize, l: usize| if fine == 0 { between(i * k + l) } else { exact(i * k + l) };
            let b = |l: usize, j: usize| if fine == 1 { between(5 + l * n + j) } else { exact(5 + l * n + j) };
            let left = match transposed[0] {
                true => matrix::<f32>(k, m, lies[0], |l, i| a(i, l).0),
                false => matrix::<f32>(m, k, lies[0], |i, l| a(i, l).0),
            };
            let right = match transposed[1] {
                true => matrix::<f32>(n, k, lies[1], |j, l| b(l, j).0),
                false => matrix::<f32>(k, n, lies[1], |l, j| b(l, j).0),
            };
            let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
            let sum = |i: usize| (0..k).map(|l| a(i / n, l).1 * b(l, i % n).1).sum();
            let expected: Vec<f32> = (0..m * n).map(sum).collect();
            TARGETS.map(|target| {
                let c = Tensor::new(&vec![f32::NAN; m * n], &[m as i64, n as i64]);
                let mut tensors = [c, left.clone(), right.clone()];
                let source = source([DType::F32; 2], tile, transposed);
                let stats = execute_as(options(target), &source, &mut tensors, &[k as u64], &grid, 2);
                let got = tensors[0].values::<f32>();
                assert!(got == expected, "{target}: {m}x{n}x{k} in {tile:?}, {lies:?}, {transposed:?}, {fine}");
                stats
            })
        })
        .into_iter()
        .next_back()
        .expect("two of them")
}

#[test]
fn every_size_around_a_tile() {
    for size in [1, 7, 8, 9, 15, 17, 63, 64, 65, 100] {
        for (m, n, k) in [(size, 64, 32), (64, size, 32), (33, 40, size), (size, size, size)] {
            for stats in multiply([m, n, k], [64, 64, 32], [Lies::Plain; 2], [false; 2], source) {
                assert!(stats.count("mma") > 0 && stats.count("wgmma.mma_async") == 0);
            }
            // Both factors lie along the sum: warpgroups take these.
            let [warps, warpgroups] = multiply([m, n, k], [64, 64, 32], [Lies::Plain; 2], ALONG, source);
            assert!(warps.count("mma") > 0 && warps.count("wgmma.mma_async") == 0);
            assert!(warpgroups.count("mma") == 0 && warpgroups.count("wgmma.mma_async") > 0);
        }
    }
    multiply([20, 30, 0], [64, 64, 32], [Lies::Plain; 2], ALONG, source);
    multiply([20, 30, 0], [64, 64, 32], [Lies::Plain; 2], [false; 2], source);
}

#[test]
fn every_way_to_lie_in_memory() {
    let ways =
        [Lies::Plain, Lies::Padded(4), Lies::Padded(3), Lies::Transposed, Lies::From(4), Lies::From(1), Lies::Apart];
    for way in ways {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            multiply([72, 80, 40], [64, 64, 32], [way, Lies::Plain], transposed, source);
            multiply([72, 80, 40], [64, 64, 32], [Lies::Plain, way], transposed, source);
        }
    }
}

#[test]
fn tiles_of_many_shapes() {
    // Steps of a fragment and odd numbers of them; rows of two units, of many, and of numbers of them that are no power of two.
    for tile in [
        [16, 64, 8],
        [128, 8, 16],
        [64, 64, 8],
        [128, 128, 32],
        [64, 32, 24],
        [48, 64, 40],
        [32, 192, 64],
        [64, 128, 48],
    ] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            let stats = multiply([130, 136, 72], tile, [Lies::Plain; 2], transposed, source);
            let of_warpgroups = transposed == ALONG && matches!(tile, [64, 32 | 64 | 128, _] | [128, 128, _]);
            for (stats, by_warpgroups) in stats.into_iter().zip([false, of_warpgroups]) {
                assert_eq!(stats.count("mma") > 0, !by_warpgroups, "{tile:?}, {transposed:?}");
                assert_eq!(stats.count("wgmma.mma_async") > 0, by_warpgroups, "{tile:?}, {transposed:?}");
            }
        }
    }
    // Shapes that tensor cores do not have are multiplied exactly.
    for tile in [[64, 64, 4], [64, 64, 12], [16, 16, 32]] {
        let mut tensors = [(70, 70), (70, 20), (20, 70)].map(|(r, c): (i64, i64)| {
            Tensor::new(&(0..r * c).map(|i| between(i as usize).0).collect::<Vec<f32>>(), &[r, c])
        });
        let grid = [70_usize.div_ceil(tile[0]) as i64, 70_usize.div_ceil(tile[1]) as i64];
        let text = source([DType::F32; 2], tile, [false; 2]);
        let stats = execute_as(options(TARGETS[0]), &text, &mut tensors, &[20], &grid, 2);
        let a = |i: usize| f64::from(between(i).0);
        let sum: f64 = (0..20).map(|l| a(3 * 20 + l) * a(l * 70 + 5)).sum();
        assert!((f64::from(tensors[0].values::<f32>()[3 * 70 + 5]) - sum).abs() < 1e-5, "{tile:?}");
        assert_eq!(stats.count("mma"), 0, "{tile:?}");
    }
}

/// A product of the negatives of both factors, which are computed.
fn computed(dtypes: [DType; 2], tile: [usize; 3], transposed: [bool; 2]) -> String {
    let [rows, columns, inner] = tile;
    let negative = |of: u32, to: u32, [r, c]: [usize; 2]| {
        format!(
            "%{to}: tile<f32, {r}x{c}> = tile_map (%{of}) |%{}: i64, %{}: i64; %{}: f32| {{
                %{}: f32 = neg %{} yield %{} }}\n",
            to + 1,
            to + 2,
            to + 3,
            to + 4,
            to + 3,
            to + 4
        )
    };
    let product = format!("%16: tile<f32, {rows}x{columns}> = dot %13, %14, %15");
    let text = source(dtypes, tile, transposed);
    assert!(text.contains(&product));
    let (left, right) = (negative(13, 20, [rows, inner]), negative(14, 30, [inner, columns]));
    text.replace(&product, &format!("{left}{right}%16: tile<f32, {rows}x{columns}> = dot %20, %30, %15"))
}

#[test]
fn computed_factors_are_rounded_too() {
    for tile in [[64, 64, 32], [64, 64, 64], [128, 64, 24], [48, 64, 40]] {
        for stats in multiply([72, 80, 40], tile, [Lies::Plain; 2], [false; 2], computed) {
            assert!(stats.count("mma") > 0 && stats.count("cp.async.cg") == 0, "{tile:?}");
        }
    }
    // Warpgroups take them along the sum, whatever the layout of their registers: of squares it is one for both.
    for tile in [[64, 64, 32], [64, 64, 64], [128, 64, 24], [128, 128, 32], [64, 32, 40]] {
        let [warps, warpgroups] = multiply([72, 80, 40], tile, [Lies::Plain; 2], ALONG, computed);
        assert!(warps.count("mma") > 0 && warpgroups.count("wgmma.mma_async") > 0, "{tile:?}");
        assert_eq!(warpgroups.count("mma"), 0, "{tile:?}");
    }
    // Neighbours lie as tensor cores leave sums, and all meet other banks.
    for stats in multiply([128, 64, 128], [64, 64, 64], [Lies::Plain; 2], [false; 2], computed) {
        assert_eq!(stats.bank_conflicts, 0, "{:?}", stats.bank_conflicts_by_line);
    }
}

#[test]
fn they_have_no_bank_conflicts_and_read_whole_units() {
    for tile in [[64, 64, 32], [128, 128, 32], [64, 64, 64], [64, 32, 16], [64, 64, 8], [64, 128, 96]] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            let all = multiply([128, 128, 192], tile, [Lies::Plain; 2], transposed, source);
            for (stats, by_device) in all.into_iter().zip([false, transposed == ALONG]) {
                assert_eq!(stats.bank_conflicts, 0, "{tile:?}, {transposed:?}: {:?}", stats.bank_conflicts_by_line);
                assert_eq!(stats.count("ld.global"), 0);
                let units = (128 * 192 * (128 / tile[1]) + 192 * 128 * (128 / tile[0])) / 4;
                assert_eq!(stats.count("cp.async.cg"), if by_device { 0 } else { units as u64 }, "{tile:?}");
                assert_eq!(stats.count("cp.async.bulk.tensor") > 0, by_device, "{tile:?}");
                assert_eq!(stats.global_load_bytes, 16 * units as u64);
            }
        }
    }
}

#[test]
fn only_who_asks_for_it_gets_it() {
    let text = source([DType::F32; 2], [64, 64, 32], [false; 2]);
    let kernel = max_core::kernel::ir::parse(&text).expect("a kernel");
    for target in TARGETS {
        let written = |options| max_core::kernel::ptx::write(&kernel, options).expect("PTX").text;
        assert!(!written(Options::new(target)).contains("tf32"));
        assert!(written(options(target)).contains("tf32"));
    }
}
