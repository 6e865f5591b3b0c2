//! Products of 8-bit floats, executed: by tensor cores that multiply them, and by those that multiply halves; every pair of
//! dtypes, sizes that do not divide, ways to lie in memory, and how memory is accessed.

use max_core::dtype::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, float8};
use max_core::kernel::ir;
use max_core::kernel::ptx::{self, Options, Target};
use ptx_sim::Stats;

use crate::execute::{Tensor, execute_as};
use crate::mma::{Lies, Number, TARGETS, matrix, source};

impl Number for F8E4M3 {
    fn from_f32(v: f32) -> Self {
        float8::e4m3fn_from_f32(v)
    }
}
impl Number for F8E5M2 {
    fn from_f32(v: f32) -> Self {
        float8::e5m2_from_f32(v)
    }
}
impl Number for F8E4M3FNUZ {
    fn from_f32(v: f32) -> Self {
        F8E4M3FNUZ::from_f32(v)
    }
}
impl Number for F8E5M2FNUZ {
    fn from_f32(v: f32) -> Self {
        F8E5M2FNUZ::from_f32(v)
    }
}

/// Numbers of both signs with as many bits as the dtype has, of which sums of products are exact.
fn value(dtype: DType, i: usize) -> f32 {
    let code = (i * 7919 + 13) % 1009;
    let steps = if matches!(dtype, DType::F8E5M2 | DType::F8E5M2FNUZ) { 4 } else { 8 };
    let magnitude = (1.0 + (code / 2 % steps) as f32 / steps as f32) * [0.25, 0.5, 1.0, 2.0, 4.0][code / 16 % 5];
    if code.is_multiple_of(2) { magnitude } else { -magnitude }
}

/// A target without products of 8-bit floats, and two with them.
const ALL: [Target; 3] = [TARGETS[0], Target { sm: 89, arch_specific: false }, TARGETS[1]];

/// Multiplies on each target, compares, and gives what was counted.
#[track_caller]
fn multiply<A: Number, B: Number>(
    [m, n, k]: [usize; 3],
    tile: [usize; 3],
    lies: [Lies; 2],
    transposed: [bool; 2],
) -> [Stats; 3] {
    let a = |i: usize, l: usize| value(A::DTYPE, i * k + l);
    let b = |l: usize, j: usize| value(B::DTYPE, 5 + l * n + j);
    let left = if transposed[0] { matrix::<A>(k, m, lies[0], |l, i| a(i, l)) } else { matrix::<A>(m, k, lies[0], a) };
    let right = if transposed[1] { matrix::<B>(n, k, lies[1], |j, l| b(l, j)) } else { matrix::<B>(k, n, lies[1], b) };
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    let expected: Vec<f32> = (0..m * n).map(|i| (0..k).map(|l| a(i / n, l) * b(l, i % n)).sum()).collect();
    let [one, other] = [A::DTYPE, B::DTYPE].map(DType::short_name);
    let source = source([A::DTYPE, B::DTYPE], tile, transposed);
    ALL.map(|target| {
        let c = Tensor::new(&vec![f32::NAN; m * n], &[m as i64, n as i64]);
        let mut tensors = [c, left.clone(), right.clone()];
        let stats = execute_as(Options::new(target), &source, &mut tensors, &[k as u64], &grid, 2);
        let got = tensors[0].values::<f32>();
        assert!(got == expected, "{target}: {one}, {other}: {m}x{n}x{k} in {tile:?}, {lies:?}, {transposed:?}");
        stats
    })
}

const TRANSPOSED: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn every_pair_of_dtypes() {
    for transposed in TRANSPOSED {
        let ([m, n, k], tile, lies) = ([70, 80, 96], [64, 64, 64], [Lies::Plain; 2]);
        for stats in [
            multiply::<F8E4M3, F8E4M3>([m, n, k], tile, lies, transposed),
            multiply::<F8E4M3, F8E5M2>([m, n, k], tile, lies, transposed),
            multiply::<F8E5M2, F8E4M3>([m, n, k], tile, lies, transposed),
            multiply::<F8E5M2, F8E5M2>([m, n, k], tile, lies, transposed),
        ] {
            // As halves on the first, of which a warp multiplies half as many at once.
            assert!(stats[0].count("mma") > 0);
            let as_they_are = !transposed[0];
            assert_eq!(stats[1].count("mma") < stats[0].count("mma"), as_they_are, "{transposed:?}");
            assert_eq!(stats[1].count("cp.async.cg") > 0, as_they_are, "{transposed:?}");
        }
        // Others are multiplied as halves everywhere.
        let stats = multiply::<F8E4M3FNUZ, F8E5M2FNUZ>([m, n, k], tile, lies, transposed);
        assert_eq!(stats[0].count("mma"), stats[1].count("mma"));
    }
}

#[test]
fn every_size_around_a_tile() {
    for size in [1, 15, 16, 17, 31, 33, 63, 64, 65, 100] {
        for transposed in [[false, false], [false, true]] {
            for [m, n, k] in [[size, 64, 64], [64, size, 64], [33, 40, size], [size; 3]] {
                multiply::<F8E4M3, F8E4M3>([m, n, k], [64, 64, 64], [Lies::Plain; 2], transposed);
            }
        }
    }
    multiply::<F8E5M2, F8E4M3>([20, 30, 0], [64, 64, 64], [Lies::Plain; 2], [false, true]);
}

#[test]
fn every_way_to_lie_in_memory() {
    let ways =
        [Lies::Plain, Lies::Padded(16), Lies::Padded(3), Lies::Transposed, Lies::From(16), Lies::From(1), Lies::Apart];
    for way in ways {
        for transposed in [[false, false], [false, true]] {
            multiply::<F8E4M3, F8E5M2>([72, 80, 80], [64, 64, 64], [way, Lies::Plain], transposed);
            multiply::<F8E4M3, F8E5M2>([72, 80, 80], [64, 64, 64], [Lies::Plain, way], transposed);
        }
    }
}

#[test]
fn tiles_of_many_shapes() {
    for tile in [[128, 16, 32], [64, 64, 32], [128, 128, 64], [48, 128, 96], [64, 64, 160], [32, 192, 128]] {
        for transposed in [[false, false], [false, true]] {
            let stats = multiply::<F8E4M3, F8E4M3>([130, 208, 144], tile, [Lies::Plain; 2], transposed);
            assert!(stats[1].count("cp.async.cg") > 0 && stats[1].count("mma") > 0, "{tile:?}");
        }
    }
    // Fragments of 8 columns are of factors that lie along the sum.
    let stats = multiply::<F8E4M3, F8E4M3>([130, 24, 80], [128, 8, 32], [Lies::Plain; 2], [false, true]);
    assert!(stats[1].count("cp.async.cg") > 0 && stats[1].count("mma") > 0);
    // Shapes of which only halves are multiplied, and those that tensor cores do not have.
    for (tile, halves) in [([64, 64, 16], true), ([64, 64, 48], true), ([16, 16, 32], false), ([64, 64, 24], false)] {
        let stats = multiply::<F8E4M3, F8E4M3>([70, 70, 70], tile, [Lies::Plain; 2], [false, true]);
        assert!(stats.iter().all(|stats| stats.count("cp.async.cg") == 0), "{tile:?}");
        assert_eq!(stats[1].count("mma") > 0, halves, "{tile:?}");
    }
}

#[test]
fn they_have_no_bank_conflicts_and_move_whole_units() {
    for tile in [[64, 64, 64], [64, 64, 32], [128, 128, 64], [64, 128, 128]] {
        for transposed in [[false, false], [false, true]] {
            let stats = multiply::<F8E4M3, F8E4M3>([256, 128, 128], tile, [Lies::Plain; 2], transposed);
            for stats in &stats[1..] {
                assert_eq!(stats.bank_conflicts, 0, "{tile:?}, {transposed:?}: {:?}", stats.bank_conflicts_by_line);
                assert_eq!(stats.count("ld.global"), 0);
                let units = (256 * 128 * (128 / tile[1]) + 128 * 128 * (256 / tile[0])) / 16;
                assert_eq!(stats.global_load_bytes, 16 * units as u64, "{tile:?}");
                // Where warpgroups multiply, the device copies boxes.
                let boxes = stats.count("wgmma.mma_async") > 0;
                assert_eq!(stats.count("cp.async.cg"), if boxes { 0 } else { units as u64 }, "{tile:?}");
                assert_eq!(stats.count("cp.async.bulk.tensor") > 0, boxes, "{tile:?}");
            }
        }
    }
}

#[test]
fn the_version_is_the_lowest_that_has_them() {
    let kernel = |dtype| ir::parse(&source([dtype; 2], [64, 64, 64], [false, true])).expect("a kernel");
    let written = |dtype, options| ptx::write(&kernel(dtype), options).expect("PTX").text;
    let version = |text: &str| text.lines().next().map(str::to_owned).expect("a line");
    for (target, others, product) in
        [(ALL[1], ".version 7.8", ".f32.e4m3.e4m3.f32 "), (ALL[2], ".version 8.0", ".f32.e4m3.e4m3 ")]
    {
        assert_eq!(version(&written(DType::F32, Options::new(target))), others);
        // Of warps on the first, of warpgroups on the second.
        let text = written(DType::F8E4M3FN, Options::new(target));
        assert!(version(&text) == ".version 8.4" && text.contains(product), "{target}");
        // A driver that does not know it gets products of halves.
        let text = written(DType::F8E4M3FN, Options { ptx_version: 83, ..Options::new(target) });
        assert!(version(&text) == others && !text.contains("e4m3") && text.contains("f16"), "{target}");
    }
    let newer = written(DType::F8E5M2, Options::new(Target { sm: 100, arch_specific: false }));
    assert!(version(&newer) == ".version 8.6" && newer.contains(".e5m2.e5m2."));
}
