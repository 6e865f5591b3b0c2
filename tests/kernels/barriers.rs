//! No barrier is there for nothing: without any one of them, the simulator objects to a run of the kernel, or its result is
//! wrong. That none is missing is what [`conformance`](crate::conformance) shows. Kernels whose warps have roles are left out:
//! theirs are for some of a block's threads, and it is not shown that each is needed.

use max::dtype::DType;
use max::kernel::ptx::{BLOCK_SIZE, Options, Target};
use max::kernel::table::KernelKind;

use crate::case::{Case, Draw, Problem, bindings};
use crate::mutations::run;
use crate::simulator::{Compiled, TARGETS, write_as};
use crate::table;
use crate::threads::all;

/// Sizes with several programs a block, rows around those of a block and of shared memory, and loops of several steps.
const SIZES: [[i64; 5]; 7] = [
    [70, 133, 21, 1, 1],
    [70, 40, 160, 1, 1],
    [9, 300, 70, 2, 1],
    [5, 1031, 3, 2, 2],
    [3, 9000, 1, 1, 1],
    [2, 3, 1031, 9, 5],
    [130, 70, 200, 3, 1],
];

/// Kernels with one barrier that nothing shows to be needed here, and why it is.
const UNSEEN: &[(&str, &str)] =
    &[("scatter_reduce", "it orders accesses to global memory, where the simulator looks for no races")];

/// Barriers of a kernel without which everything goes well.
fn idle(case: &Case, dtypes: &[DType], target: Target) -> Result<Vec<String>, String> {
    let sizes = case.sizes.iter().copied().chain(SIZES);
    let problems: Vec<Problem> = sizes
        .zip(3..)
        .map(|(sizes, seed)| {
            let draw = Draw { sizes: sizes.to_vec(), rank: 2, layouts: Vec::new(), limit: 1 << 20, seed };
            case.problem(dtypes, &draw)
        })
        .collect();
    let Some(first) = problems.first() else { return Ok(Vec::new()) };
    let written = write_as(first, Options::new(target), true)?;
    if written.block_size != BLOCK_SIZE {
        return Ok(Vec::new());
    }
    let lines: Vec<&str> = written.text.lines().collect();
    let is_noticed = |without: usize| -> Result<bool, String> {
        let mut fault = written.clone();
        fault.text =
            lines.iter().enumerate().filter(|(i, _)| *i != without).map(|(_, line)| format!("{line}\n")).collect();
        let compiled = Compiled::new(fault)?;
        Ok(problems.iter().any(|problem| run(case, problem, &compiled, 1.0).is_err()))
    };
    let mut idle = Vec::new();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("bar.sync")) {
        if !is_noticed(i)? {
            idle.push(format!("{}{dtypes:?}, {target}: line {}: {}", case.kernel, i + 1, line.trim()));
        }
    }
    Ok(idle)
}

#[test]
fn every_barrier_is_needed() {
    let cases = table::cases();
    let programs = cases.iter().filter(|case| case.def().kind == KernelKind::Program);
    let forms = programs.flat_map(|case| {
        let of = bindings(case.def());
        // One dtype that tensor cores multiply, and one that they do not.
        let chosen: Vec<Vec<DType>> = of
            .into_iter()
            .filter(|dtypes| dtypes.iter().all(|d| matches!(d, DType::F32 | DType::BF16 | DType::I8 | DType::I32)))
            .collect();
        chosen.into_iter().flat_map(move |dtypes| [TARGETS[0], TARGETS[1]].map(|target| (case, dtypes.clone(), target)))
    });
    let forms: Vec<_> = forms.collect();
    all(&forms, |(case, dtypes, target)| {
        let idle = idle(case, dtypes, *target)?;
        let unseen = UNSEEN.iter().any(|(kernel, _)| *kernel == case.kernel);
        if idle.len() <= usize::from(unseen) { Ok(()) } else { Err(idle.join("\n")) }
    });
}
