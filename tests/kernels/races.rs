//! No two programs race, along whichever axis of the grid they follow each other: each has a block of its own here, and the
//! simulator objects to what several blocks access, one of them to write, unless all do so atomically.

use std::iter::repeat;
use std::sync::atomic::{AtomicUsize, Ordering};

use max::dtype::DType;
use max::kernel::abi::KernelKind;
use max::kernel::ptx::Options;

use crate::case::{Case, Draw, bindings};
use crate::simulator::{Compiled, TARGETS, Way};
use crate::table;
use crate::tensor::Layout;
use crate::threads::all;

/// Sizes with several tiles, rows or windows along each axis of a grid, and not too many programs.
const SIZES: [[i64; 5]; 7] = [
    [150, 140, 21, 2, 1],
    [3, 5, 4, 3, 2],
    [2, 3, 70, 5, 5],
    [11, 20, 16, 8, 0],
    [2, 300, 3, 7, 2],
    [600, 3, 2, 2, 1],
    [3, 2100, 2, 2, 1],
];

/// Those for large tiles, and for programs that have many elements of a row.
const LARGER: [[i64; 5]; 2] = [[150, 140, 4, 1, 1], [3, 40, 600, 1, 1]];

/// The most programs of a problem that is run.
const PROGRAMS: i64 = 2_000;

/// Runs a kernel with one program a block; gives the most axes along which a grid had several programs, and all that it has.
fn check(case: &Case, dtypes: &[DType]) -> Result<[usize; 2], String> {
    let way = Way { symbolic: true, ..Way::new(Options::new(TARGETS[0])) };
    let mut axes = [0, 0];
    let mut compiled: Option<Compiled> = None;
    let sizes = SIZES.into_iter().chain(case.sizes.iter().copied());
    for (seed, (sizes, larger)) in (11..).zip(sizes.zip(repeat(false)).chain(LARGER.into_iter().zip(repeat(true)))) {
        if larger && axes[0] >= axes[1].min(2) {
            break;
        }
        let layouts = vec![Layout::default(); 6];
        let problem = case.problem(dtypes, &Draw { sizes: sizes.to_vec(), rank: 2, layouts, limit: 1 << 18, seed });
        let compiled = match &mut compiled {
            Some(compiled) => compiled,
            none => none.insert(Compiled::new(way.write(&problem)?)?),
        };
        let grid = compiled.grid(&problem);
        let programs = grid.iter().product::<i64>();
        axes[1] = compiled.axes();
        if programs <= PROGRAMS {
            axes[0] = axes[0].max(grid.iter().filter(|&&extent| extent > 1).count());
            let run = compiled.run_in(&problem, &mut problem.operands.clone(), programs);
            run.map_err(|e| format!("{}{dtypes:?}: {e}: {}", case.kernel, problem.describe()))?;
        }
    }
    Ok(axes)
}

#[test]
fn programs_do_not_race_along_any_axis() {
    let cases = table::cases();
    let programs = cases.iter().filter(|case| case.def().kind == KernelKind::Program);
    let forms: Vec<(&Case, Vec<DType>)> = programs
        .filter_map(|case| {
            // Who writes what does not depend on the dtype.
            let bindings = bindings(case.def());
            let float = bindings.iter().find(|dtypes| dtypes.first() == Some(&DType::F32));
            float.or(bindings.first()).map(|dtypes| (case, dtypes.clone()))
        })
        .collect();
    let axes: Vec<AtomicUsize> = forms.iter().map(|_| Default::default()).collect();
    let numbered: Vec<usize> = (0..forms.len()).collect();
    all(&numbered, |&i| {
        let (case, dtypes) = &forms[i];
        let [several, has] = check(case, dtypes)?;
        axes[i].store(several, Ordering::Relaxed);
        // A third axis may want larger problems than a simulator runs in a test.
        if several >= has.min(2) {
            Ok(())
        } else {
            Err(format!("{}: several programs along {several} of {has} axes", case.kernel))
        }
    });
    let with_two = axes.into_iter().filter(|axes| axes.load(Ordering::Relaxed) > 1).count();
    assert!(with_two > 15, "{with_two} kernels have several programs along two axes");
}
