//! The PTX of four kernels as text, so that a change of the back end is read in a diff: a matrix product by `mma.sync`, one by
//! `wgmma` over tiles that TMA brings, attention, and rows.

use std::fs;

use max::dtype::DType;
use max::kernel::ptx::{Options, Target, write};
use max::kernel::{KernelLibrary, ir};

use crate::path;

const SM_80: Target = Target { sm: 80, arch_specific: false };
const SM_90A: Target = Target { sm: 90, arch_specific: true };

/// A kernel, its dtype, the target, and instructions that its text has.
type Snapshot = (&'static str, DType, Target, &'static [&'static str]);

const SNAPSHOTS: [Snapshot; 4] = [
    ("matmul", DType::BF16, SM_80, &["cp.async.", "ldmatrix.", "mma.sync."]),
    ("matmul_transposed", DType::BF16, SM_90A, &["cp.async.bulk.tensor.", "mbarrier.", "wgmma.mma_async."]),
    ("attention", DType::F16, SM_90A, &["ex2.approx.", "mma"]),
    ("softmax", DType::F32, SM_80, &["shfl.sync.", "ld.global"]),
];

#[test]
fn ptx_reads_as_the_snapshots() {
    max::kernels::link();
    let library = KernelLibrary::linked();
    let bless = std::env::var_os("MAX_BLESS").is_some();
    let mut changed = Vec::new();
    for (name, dtype, target, instructions) in SNAPSHOTS {
        let def = library.table(name).unwrap_or_else(|error| panic!("{error}"));
        let dtypes = vec![dtype; def.generics.as_slice().len()];
        let text = def.ir_text_on(target, &dtypes, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        let kernel = ir::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let ptx = write(&kernel, Options::new(target)).unwrap_or_else(|error| panic!("{name}: {error}")).text;
        for instruction in instructions {
            assert!(ptx.contains(instruction), "{name} for {target} has no `{instruction}`:\n{ptx}");
        }
        let file = path().with_file_name(format!("{name}_{}_{target}.ptx", dtype.short_name()));
        if bless {
            fs::write(&file, &ptx).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let held = fs::read_to_string(&file).unwrap_or_default();
        let differing = held.lines().zip(ptx.lines()).position(|(held, now)| held != now);
        let line = differing.unwrap_or_else(|| held.lines().count().min(ptx.lines().count()));
        if held != ptx {
            let at = |text: &str| text.lines().nth(line).unwrap_or("the end").trim().to_owned();
            let (held, now) = (at(&held), at(&ptx));
            changed.push(format!("{}:{}: `{held}`, now `{now}`", file.display(), line + 1));
        }
    }
    assert!(changed.is_empty(), "MAX_BLESS=1 accepts these:\n{}", changed.join("\n"));
}
