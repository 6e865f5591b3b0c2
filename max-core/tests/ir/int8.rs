//! Products of 8-bit integers by the tensor cores, executed, by warps and by warpgroups: every pair of dtypes, sizes that do not
//! divide, ways to lie in memory, and how memory is accessed.

use max_core::dtype::{DType, Element};
use max_core::kernel::{ir, ptx};
use ptx_sim::Stats;

use crate::execute::{Item, Tensor, execute_as};
use crate::mma::{TARGETS, source};
use crate::ptxas::assemble;

trait Byte: Item + Element {
    fn any(i: usize) -> Self;
    fn wide(self) -> i32;
}
macro_rules! byte {
    ($($ty:ty)*) => {$(
        impl Byte for $ty {
            fn any(i: usize) -> Self {
                ((i * 7919 + 13) % 257) as u8 as $ty
            }
            fn wide(self) -> i32 {
                self.into()
            }
        }
    )*};
}
byte!(i8 u8);

/// A matrix that begins at an element, with so many from a row to the next and from a column to the next.
fn matrix<T: Byte>([rows, columns]: [usize; 2], [start, row, column]: [usize; 3], at: impl Fn(usize) -> T) -> Tensor {
    // What is not of the matrix shows in every sum.
    let mut values = vec![T::any(11); start + row * rows.max(1) + column * columns.max(1)];
    for i in 0..rows * columns {
        values[start + i / columns * row + i % columns * column] = at(i);
    }
    let mut tensor = Tensor::new(&values, &[rows as i64, columns as i64]);
    (tensor.strides, tensor.start) = (vec![row as i64, column as i64], start);
    tensor
}

/// Multiplies, compares, and gives what was counted, on each target; the right factor may be loaded transposed. `ways` say, by
/// the columns of each factor, where it begins and its strides.
#[track_caller]
fn multiply_on_all<A: Byte, B: Byte>(
    [m, n, k]: [usize; 3],
    tile: [usize; 3],
    ways: [fn(usize, usize) -> [usize; 3]; 2],
    transposed: bool,
) -> [Stats; 2] {
    let (a, b) = (|i: usize| A::any(i), |i: usize| B::any(3 * i + 5));
    let left = matrix([m, k], ways[0](m, k), a);
    let right = match transposed {
        true => matrix([n, k], ways[1](n, k), |i| b(i % k * n + i / k)),
        false => matrix([k, n], ways[1](k, n), b),
    };
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    let source = source([A::DTYPE, B::DTYPE], tile, [false, transposed]);
    let sum = |i: usize| (0..k).map(|l| a(i / n * k + l).wide() * b(l * n + i % n).wide()).sum();
    let expected: Vec<i32> = (0..m * n).map(sum).collect();
    TARGETS.map(|target| {
        let result = Tensor::new(&vec![-1_i32; m * n], &[m as i64, n as i64]);
        let mut tensors = [result, left.clone(), right.clone()];
        let stats = execute_as(ptx::Options::new(target), &source, &mut tensors, &[k as u64], &grid, 2);
        assert!(tensors[0].values::<i32>() == expected, "{target}: {m}x{n}x{k} in {tile:?}, {transposed}");
        stats
    })
}

/// The same of a right factor that lies across the sum, by warps.
#[track_caller]
fn multiply<A: Byte, B: Byte>(sizes: [usize; 3], tile: [usize; 3], ways: [fn(usize, usize) -> [usize; 3]; 2]) -> Stats {
    let [warps, others] = multiply_on_all::<A, B>(sizes, tile, ways, false);
    assert_eq!(others.count("wgmma.mma_async"), 0);
    warps
}

/// The same of factors that both lie along the sum, by warpgroups.
#[track_caller]
fn multiply_along<A: Byte, B: Byte>(
    sizes: [usize; 3],
    tile: [usize; 3],
    ways: [fn(usize, usize) -> [usize; 3]; 2],
) -> Stats {
    let [warps, warpgroups] = multiply_on_all::<A, B>(sizes, tile, ways, true);
    assert_eq!(warps.count("wgmma.mma_async"), 0);
    warpgroups
}

fn plain(_: usize, columns: usize) -> [usize; 3] {
    [0, columns, 1]
}

#[test]
fn every_pair_of_dtypes_and_size_around_a_tile() {
    for size in [1, 15, 17, 31, 33, 63, 64, 65] {
        for [m, n, k] in [[size, 64, 64], [64, size, 64], [33, 40, size]] {
            assert!(multiply::<i8, i8>([m, n, k], [64, 64, 64], [plain; 2]).count("mma") > 0);
            let stats = multiply_along::<i8, i8>([m, n, k], [64, 64, 64], [plain; 2]);
            assert!(stats.count("wgmma.mma_async") > 0 && stats.count("mma") == 0);
        }
        multiply_along::<i8, u8>([size; 3], [64, 64, 64], [plain; 2]);
        multiply_along::<u8, i8>([size; 3], [64, 64, 64], [plain; 2]);
        multiply_along::<u8, u8>([size; 3], [64, 64, 64], [plain; 2]);
        multiply::<i8, u8>([size; 3], [64, 64, 64], [plain; 2]);
        multiply::<u8, i8>([size; 3], [64, 64, 64], [plain; 2]);
        multiply::<u8, u8>([size; 3], [64, 64, 64], [plain; 2]);
    }
    multiply::<i8, i8>([20, 30, 0], [64, 64, 64], [plain; 2]);
    multiply_along::<i8, i8>([20, 30, 0], [64, 64, 64], [plain; 2]);
}

#[test]
fn every_way_to_lie_in_memory() {
    let ways: [fn(usize, usize) -> [usize; 3]; 5] = [
        |_, columns| [0, columns + 16, 1],
        |_, columns| [0, columns + 3, 1],
        |rows, _| [0, 1, rows],
        |_, columns| [1, columns, 1],
        |_, columns| [0, 2 * columns, 2],
    ];
    for way in ways {
        multiply::<i8, u8>([72, 80, 80], [64, 64, 64], [way, plain]);
        multiply::<i8, u8>([72, 80, 80], [64, 64, 64], [plain, way]);
        multiply_along::<i8, u8>([72, 80, 80], [64, 64, 64], [way, plain]);
        multiply_along::<i8, u8>([72, 80, 80], [64, 64, 64], [plain, way]);
    }
}

#[test]
fn tiles_of_many_shapes() {
    for tile in [[128, 16, 32], [64, 64, 32], [128, 128, 64], [48, 128, 96], [64, 64, 160], [32, 192, 128]] {
        let stats = multiply::<i8, i8>([130, 200, 150], tile, [plain; 2]);
        assert!(stats.count("mma") > 0, "{tile:?}");
        let stats = multiply_along::<i8, i8>([130, 200, 150], tile, [plain; 2]);
        let of_warpgroups = matches!(tile, [64, 64, _] | [128, 16 | 128, _]);
        assert_eq!(stats.count("wgmma.mma_async") > 0, of_warpgroups, "{tile:?}");
        assert_eq!(stats.count("mma") > 0, !of_warpgroups, "{tile:?}");
    }
    // Shapes that tensor cores do not have.
    for tile in [[64, 64, 16], [16, 64, 32], [16, 16, 32]] {
        assert_eq!(multiply::<i8, i8>([70, 70, 70], tile, [plain; 2]).count("mma"), 0, "{tile:?}");
    }
}

#[test]
fn they_have_no_bank_conflicts_and_move_whole_units() {
    for tile in [[64, 64, 64], [64, 64, 32], [128, 128, 64], [64, 128, 128]] {
        let stats = multiply::<i8, i8>([256, 128, 128], tile, [plain; 2]);
        assert_eq!(stats.bank_conflicts, 0, "{tile:?}: {:?}", stats.bank_conflicts_by_line);
        assert_eq!(stats.count("ld.global"), 0);
        let units = (256 * 128 * (128 / tile[1]) + 128 * 128 * (256 / tile[0])) / 16;
        assert_eq!(
            (stats.count("cp.async.cg"), stats.count("st.global.v4")),
            (units as u64, 256 * 128 / 4),
            "{tile:?}"
        );
    }
}

#[test]
fn warpgroups_have_them_copied_by_the_device() {
    for tile in [[64, 64, 64], [64, 64, 32], [128, 128, 128], [64, 128, 96]] {
        let stats = multiply_along::<i8, u8>([256, 128, 384], tile, [plain; 2]);
        assert_eq!(stats.bank_conflicts, 0, "{tile:?}: {:?}", stats.bank_conflicts_by_line);
        assert_eq!((stats.count("ld.global"), stats.count("cp.async.cg")), (0, 0), "{tile:?}");
        assert_eq!(
            stats.global_load_bytes as usize,
            256 * 384 * (128 / tile[1]) + 384 * 128 * (256 / tile[0]),
            "{tile:?}"
        );
    }
}

#[test]
fn those_of_warpgroups_assemble_without_spilling() {
    let mut said = String::new();
    for tile in [[64, 64, 64], [128, 128, 64], [128, 256, 128]] {
        for dtypes in [[DType::I8, DType::I8], [DType::I8, DType::U8], [DType::U8, DType::I8], [DType::U8, DType::U8]] {
            let kernel = ir::parse(&source(dtypes, tile, [false, true])).expect("a kernel");
            let module = ptx::write(&kernel, ptx::Options::new(TARGETS[1])).expect("PTX");
            assert!(module.text.contains("wgmma.mma_async") && !module.text.contains("mma.sync"), "{tile:?}");
            said += &assemble(&format!("{dtypes:?} in {tile:?}"), "sm_90a", &module.text).unwrap_or_default();
        }
    }
    assert_eq!(said.matches(" bytes spill").count(), said.matches(" 0 bytes spill").count(), "{said}");
}

#[test]
fn signed_bytes_and_others_need_a_newer_version() {
    for (dtypes, version) in [([DType::I8; 2], "8.0"), ([DType::U8; 2], "8.0"), ([DType::I8, DType::U8], "8.4")] {
        let kernel = ir::parse(&source(dtypes, [64, 64, 64], [false, true])).expect("a kernel");
        let options = ptx::Options::new(TARGETS[1]);
        let text = ptx::write(&kernel, options).expect("PTX").text;
        assert!(text.starts_with(&format!(".version {version}\n")) && text.contains("wgmma"), "{dtypes:?}");
        // A driver that does not know it gets products of warps.
        let text = ptx::write(&kernel, ptx::Options { ptx_version: 83, ..options }).expect("PTX").text;
        assert!(text.starts_with(".version 8.0\n"), "{dtypes:?}");
        assert_eq!(text.contains("wgmma"), version == "8.0", "{dtypes:?}");
    }
}
