//! The kernel table: registration, signatures, grids, instances, and the lines that recorded IR names.

use max::dtype::DType;
#[cfg(target_arch = "x86_64")]
use max::kernel::abi::Level;
use max::kernel::prelude::*;
use max::kernel::{Kernel, KernelLibrary};

use crate::{rows, tiles};

#[kernel(op = "table_add_constant")]
fn add_constant<T: Number>(x: T, #[param] value: i64) -> T {
    x + T::from_i64(value)
}

#[test]
fn kernels_are_registered_with_their_signatures() {
    let signature = |name: &str| KernelLibrary::linked().get(name).map(|def| def.signature.as_str());
    assert_eq!(signature("table_add_constant"), Ok("add_constant<T: Number>(x: T, #[param] value: i64) -> T"));
    assert_eq!(signature("r_softmax"), Ok("softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>)"));
    assert_eq!(signature("r_counter"), Ok("counter(state: &mut Buffer<i32, 1>, by: In<i32, 1>)"));
    assert_eq!(add_constant::def().krate.as_str(), "kernel-language-tests");
    assert!(add_constant::def().file.as_str().ends_with("table.rs"));
}

#[test]
fn recorded_ir_names_the_authors_lines() {
    let text = add_constant::def().ir_text(&[DType::F32], None);
    let line = add_constant::def().line;
    assert!(text.contains(&format!("cast %1 @{}:", line + 1)), "{text}");
    assert!(text.contains(&format!("param value @{line}:")), "{text}");
}

#[test]
fn grids_follow_from_the_writes() {
    let grid = |def: &max::kernel::abi::KernelDef| {
        def.grid.as_slice().iter().map(|a| (a.operand, a.dim, a.tile, a.size)).collect::<Vec<_>>()
    };
    assert_eq!(grid(rows::softmax::def()), [(0, 0, -1, 1)]);
    assert_eq!(grid(rows::columns::def()), [(0, 1, -1, 1)]);
    assert_eq!(grid(rows::reversed_blocks::def()), [(0, 0, 0, 1)]);
    assert_eq!(grid(rows::batched::def()), [(0, 0, -1, 1), (0, 1, -1, 1)]);
    assert_eq!(grid(rows::histogram::def()), [(1, 0, -1, 16)]);
    assert_eq!(grid(tiles::matmul::def()), [(0, 0, 0, 1), (0, 1, 1, 1)]);
    assert_eq!(grid(add_constant::def()), []);
}

#[test]
fn results_that_may_stay_unwritten_start_at_zero() {
    let zeroed =
        |def: &max::kernel::abi::KernelDef| def.operands.as_slice().iter().map(|o| o.leaves_out()).collect::<Vec<_>>();
    assert_eq!(zeroed(rows::softmax::def()), [false, false]);
    // Of rows of one element, which the launch knows, its writes are all.
    assert_eq!(zeroed(rows::moments::def()), [true, false]);
    assert!(!rows::moments::def().operands.as_slice()[0].zero_init);
    assert_eq!(zeroed(rows::histogram::def()), [true, false]);
    assert_eq!(zeroed(rows::counter::def()), [false, false]);
    assert_eq!(zeroed(crate::control::program_branches::def()), [false, false]);
    assert_eq!(zeroed(rows::either::def()), [false, false]);
    assert_eq!(zeroed(rows::perhaps::def()), [true, false]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_dtype_has_its_levels() {
    let instances = add_constant::def().instances.as_slice();
    let levels = |dtype: DType| {
        let of = instances.iter().filter(|i| i.dtypes.as_slice() == [dtype as u8]);
        of.map(|i| i.level).collect::<Vec<_>>()
    };
    let all = [
        (DType::F32, &[Level::V2, Level::V3, Level::V4][..]),
        (DType::BF16, &[Level::V3, Level::V4]),
        (DType::I64, &[Level::V3]),
        (DType::U16, &[Level::V3]),
        (DType::Bool, &[]),
    ];
    for (dtype, all) in all {
        // The build asks for all of them, for the one that its machine runs, or for some.
        match option_env!("MAX_BUILD_LEVELS") {
            None | Some("all") => assert_eq!(levels(dtype), all),
            Some("native") => {
                let best = all.iter().rfind(|level| Level::available().contains(level));
                assert_eq!(levels(dtype), Vec::from_iter(best.copied()), "{dtype}");
            }
            Some(_) => assert!(levels(dtype).iter().all(|level| all.contains(level))),
        }
    }
    assert_eq!(add_constant::def().generics.as_slice()[0].dtypes.as_slice().len(), 12);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tile_constants_differ_by_target() {
    let def = rows::reversed_blocks::def();
    let at = |level| def.instances.as_slice().iter().find(|i| i.level == level).map(|i| i.tile.as_slice().to_vec());
    let compiled =
        [(Level::V3, 8), (Level::V4, 32)].map(|(level, size)| at(level).inspect(|tile| assert_eq!(*tile, [size])));
    assert!(compiled.iter().any(Option::is_some) || Level::available().len() < 3);
    assert_eq!(def.gpu_tile.as_slice(), [128]);
    assert_eq!(def.tile_names.as_slice()[0].as_str(), "N");
}
