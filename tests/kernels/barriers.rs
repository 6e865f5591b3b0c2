//! No barrier is there for nothing: without any one of them, the simulator objects to a run of the kernel, or its result is
//! wrong. That none is missing is what [`conformance`](crate::conformance) shows.

use max::dtype::DType;
use max::kernel::abi::KernelKind;
use max::kernel::ptx::Module;

use crate::case::{Case, Draw, Problem, bindings};
use crate::simulator::{Compiled, Way};
use crate::table;
use crate::tensor::Layout;
use crate::threads::all;

/// Sizes with several programs a block, rows around those of a block and of shared memory, loops of several steps, and of none.
const SIZES: [[i64; 5]; 8] = [
    [70, 133, 21, 1, 1],
    [70, 40, 160, 1, 1],
    [9, 300, 70, 2, 1],
    [5, 1031, 3, 2, 2],
    [3, 9000, 1, 1, 1],
    [2, 3, 1031, 9, 5],
    [130, 70, 200, 3, 1],
    [20, 70, 0, 2, 1],
];

/// Barriers of a kernel without which everything goes well.
fn idle(case: &Case, dtypes: &[DType]) -> Result<Vec<String>, String> {
    let sizes = case.sizes.iter().copied().chain(SIZES);
    let contiguous = sizes.map(|sizes| (sizes, Layout::default()));
    // Programs of one block that copy aligned tiles and others in turn, with no step of a loop between them; and images that
    // the device copies.
    let skip = Layout { skip: 1, ..Layout::default() };
    let problems: Vec<Problem> = contiguous
        .chain([([9, 0, 64, 2, 1], skip), ([11, 20, 16, 8, 0], Layout::default())])
        .zip(3..)
        .map(|((sizes, layout), seed)| {
            let draw = Draw { sizes: sizes.to_vec(), rank: 2, layouts: vec![layout; 6], limit: 1 << 20, seed };
            case.problem(dtypes, &draw)
        })
        .collect();
    let made = case.made.iter().flat_map(|(sizes, make)| {
        let draw = |sizes: &[i64; 5]| Draw { sizes: sizes.to_vec(), rank: 2, layouts: vec![], limit: 1 << 22, seed: 1 };
        let problem = move |sizes| {
            let mut problem = case.problem(dtypes, &draw(sizes));
            make(&mut problem);
            problem
        };
        sizes.iter().map(problem)
    });
    let ascending: Vec<Problem> = made.chain(problems).collect();
    let problems: Vec<Problem> = [false, true]
        .iter()
        .flat_map(|&descending_warps| {
            ascending.iter().map(move |problem| Problem { descending_warps, ..problem.clone() })
        })
        .collect();
    // The problem that showed one barrier to be needed comes first for the next one.
    let mut order: Vec<usize> = (0..problems.len()).collect();
    let mut all = Vec::new();
    for way in Way::all().into_iter().filter(|way| way.may_differ(case.def(), dtypes)) {
        let way = Way { symbolic: true, ..way };
        let written = way.write(&problems[0])?;
        if way.differs(&problems[0], &written) {
            all.extend(idle_in(case, dtypes, (way, &written), &problems, &mut order)?);
        }
    }
    Ok(all)
}

/// The same of one form of the kernel.
fn idle_in(
    case: &Case,
    dtypes: &[DType],
    (way, written): (Way, &Module),
    problems: &[Problem],
    order: &mut [usize],
) -> Result<Vec<String>, String> {
    let lines: Vec<&str> = written.text.lines().collect();
    let form = format!("{}{dtypes:?}, {way}", case.kernel);
    // A fault that is there with all barriers would stand for that of any which is left out.
    let whole = Compiled::new(written.clone())?;
    let mut are_clean = vec![false; problems.len()];
    let mut is_noticed = |without: usize| -> Result<bool, String> {
        let others = lines.iter().enumerate().filter(|(i, _)| *i != without);
        let text = others.map(|(_, line)| format!("{line}\n")).collect();
        let compiled = Compiled::new(Module { text, ..written.clone() })?;
        let noticed = order.iter().position(|&i| compiled.check(case, &problems[i], way.error()).is_err());
        if let Some(place) = noticed {
            order[..=place].rotate_right(1);
        }
        if let Some(i) = noticed.map(|_| order[0]).filter(|&i| !are_clean[i]) {
            let run = whole.check(case, &problems[i], way.error());
            run.map_err(|e| format!("{form}, with all barriers: {e}: {}", problems[i].describe()))?;
            are_clean[i] = true;
        }
        Ok(noticed.is_some())
    };
    let mut idle = Vec::new();
    for i in (0..lines.len()).filter(|&i| lines[i].contains("bar.sync")) {
        if !is_noticed(i)? {
            idle.push(format!("{form}: line {}: {}", i + 1, lines[i].trim()));
        }
    }
    Ok(idle)
}

/// Dtypes that tensor cores multiply in each of their ways, and some that they do not.
fn is_chosen(case: &Case, dtypes: &[DType]) -> bool {
    // One macro makes the kernels of all encodings of packed weights: their lane code differs, and no barrier does.
    if case.kernel.starts_with("qmatmul_") && case.kernel != "qmatmul_q4_0" {
        return false;
    }
    // One barrier more than it needs: keys are not overwritten before values were waited for, which the emitter does not see.
    if case.kernel == "flash_attention_ragged" && dtypes[0] == DType::BF16 {
        return false;
    }
    // One barrier more than it needs: what fills a short row lies behind what others wrote, which the emitter does not see.
    if case.kernel == "select_k" {
        return false;
    }
    // One barrier more than it needs: a row of several chunks ends in a write to scratch memory, behind which nobody reads what the first
    // reduction of the next row writes.
    if case.kernel == "top_k" {
        return false;
    }
    // One barrier more than it needs: a row's last pass ends in a reduction, so that nobody reads it when the next one is copied.
    if case.kernel == "sampling_top_p" {
        return false;
    }
    // Loops over tokens and experts that one thread steps through: of the drawn batches none shows that the barrier between the
    // fills and the first loop is needed. Of loops over entries, barriers are there for the other threads, which do not use what they read.
    if ["moe_create_indices", "apply_penalties_to_logits"].contains(&case.kernel) {
        return false;
    }
    let multiplies = case.def().ir_text(dtypes, None).contains(" = dot ");
    dtypes.iter().all(|dtype| match dtype {
        DType::F32 | DType::BF16 | DType::I8 | DType::I32 => true,
        DType::F64 | DType::F8E4M3FN | DType::F8E5M2 => multiplies,
        _ => false,
    })
}

/// `MAX_TEST_KERNEL` selects one kernel.
#[test]
fn every_barrier_is_needed() {
    let (cases, only) = (table::cases(), std::env::var("MAX_TEST_KERNEL").ok());
    let programs = cases.iter().filter(|case| case.def().kind == KernelKind::Program);
    let forms: Vec<(&Case, Vec<DType>)> = programs
        .flat_map(|case| bindings(case.def()).into_iter().map(move |dtypes| (case, dtypes)))
        .filter(|(case, dtypes)| is_chosen(case, dtypes))
        .filter(|(case, _)| only.as_ref().is_none_or(|only| only == case.kernel))
        .collect();
    all(&forms, |(case, dtypes)| {
        let idle = idle(case, dtypes)?;
        if idle.is_empty() { Ok(()) } else { Err(idle.join("\n")) }
    });
}
