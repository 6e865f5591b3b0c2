//! Every row of the table on every engine.

use max::dtype::DType;
use max::kernel::KernelLibrary;
use max::kernel::abi::{Access, KernelKind};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRng, TestRunner};

use crate::case::{Case, Draw, Problem, bindings};
use crate::engine::{Engine, engines};
use crate::number::Num;
use crate::simulator::{Compiled, Way};
use crate::table;
use crate::tensor::Layout;
use crate::threads::all;

/// Sizes around the widths of vectors, blocks and tiles, and primes.
const SIZES: [i64; 30] = [
    0, 1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 29, 31, 32, 33, 47, 48, 61, 63, 64, 65, 67, 97, 127, 128, 129, 131, 257,
    1031,
];

fn draws() -> impl Strategy<Value = Draw> {
    let flags = || prop_oneof![3 => Just(0u8), 1 => any::<u8>()];
    let skip = prop_oneof![3 => Just(0u8), 1 => 1..=3u8];
    let layout = (0..=4u8, 0..=2u8, flags(), flags(), 0..=5u8, skip)
        .prop_map(|(rotate, gap, flip, broadcast, offset, skip)| Layout { rotate, gap, flip, broadcast, offset, skip });
    let layout = prop_oneof![1 => Just(Layout::default()), 2 => layout];
    let sizes = prop::collection::vec(prop::sample::select(&SIZES[..]), 5);
    let limit = prop_oneof![Just(200), Just(2_000), Just(50_000)];
    (sizes, 0..=5usize, prop::collection::vec(layout, 6), limit, any::<u64>())
        .prop_map(|(sizes, rank, layouts, limit, seed)| Draw { sizes, rank, layouts, limit, seed })
}

/// Draws one problem and checks every engine that takes it; says what is wrong.
fn check(case: &Case, dtypes: &[DType], engines: &[Box<dyn Engine>], draw: &Draw) -> Result<(), String> {
    check_problem(case, &case.problem(dtypes, draw), engines)
}

fn check_problem(case: &Case, problem: &Problem, engines: &[Box<dyn Engine>]) -> Result<(), String> {
    let shapes: Vec<Vec<i64>> = problem.operands.iter().map(|t| t.dims.clone()).collect();
    let work = (case.work)(&shapes);
    let want = case.want(problem);
    let outputs: Vec<usize> =
        (0..shapes.len()).filter(|&k| problem.def.operands.as_slice()[k].access != Access::In).collect();
    let mut first: Option<(String, Vec<Vec<Num>>)> = None;
    for engine in engines.iter().filter(|e| e.affords(problem, work) && e.has(problem)) {
        let fail = |what: String| Err(format!("{}, {}: {what}", engine.name(), problem.describe()));
        let mut operands = problem.operands.clone();
        if let Err(e) = engine.run(problem, &mut operands) {
            return fail(e);
        }
        for (k, (before, after)) in problem.operands.iter().zip(&operands).enumerate() {
            if let Some(byte) = after.stray_write(before) {
                return fail(format!(
                    "operand {k}: byte {} from its first element is overwritten",
                    byte as i64 - after.start as i64
                ));
            }
            if !outputs.contains(&k) && before.bytes() != after.bytes() {
                return fail(format!("operand {k} is an input and was written"));
            }
        }
        let got: Vec<Vec<Num>> = outputs.iter().map(|&k| operands[k].values()).collect();
        for (r, &k) in outputs.iter().enumerate() {
            let dtype = operands[k].dtype;
            for (i, (&got, &want)) in got[r].iter().zip(&want[r]).enumerate() {
                if !want.accepts(dtype, got, case.ulps * engine.error()) {
                    let inputs = inputs_of(problem, i);
                    return fail(format!("operand {k}, element {i}: got {got:?}, want {want:?}{inputs}"));
                }
            }
        }
        if case.same_bits && engine.fused() {
            match &first {
                None => first = Some((engine.name(), got)),
                Some((other, bits)) => {
                    for (r, &k) in outputs.iter().enumerate() {
                        let same = |(a, b): (&Num, &Num)| {
                            a.is_nan() && b.is_nan()
                                || crate::number::encode(operands[k].dtype, *a)
                                    == crate::number::encode(operands[k].dtype, *b)
                        };
                        if let Some(i) = (0..got[r].len()).find(|&i| !same((&got[r][i], &bits[r][i]))) {
                            let inputs = inputs_of(problem, i);
                            let (a, b) = (got[r][i], bits[r][i]);
                            return fail(format!("operand {k}, element {i}: {a:?}, but {b:?} with {other}{inputs}"));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The elements that the element `i` of an elementwise kernel's result comes from, for messages.
fn inputs_of(problem: &crate::case::Problem, i: usize) -> String {
    if problem.def.kind != KernelKind::Elementwise {
        return String::new();
    }
    let inputs: Vec<Num> = problem.values.iter().filter_map(|v| v.get(i).copied()).collect();
    format!(", of {inputs:?}")
}

/// The rows of the table with each binding of the kernel's generics. `MAX_TEST_KERNEL` selects one kernel.
fn rows(cases: &[Case]) -> Vec<(&Case, Vec<DType>)> {
    let only = std::env::var("MAX_TEST_KERNEL").ok();
    let chosen = cases.iter().filter(|case| only.as_ref().is_none_or(|only| only == case.kernel));
    chosen.flat_map(|case| bindings(case.def()).into_iter().map(move |dtypes| (case, dtypes))).collect()
}

#[test]
fn every_kernel_of_the_library_has_a_case() {
    let cases = table::cases();
    let named: Vec<&str> = cases.iter().map(|case| case.kernel).collect();
    assert!(cases.iter().all(|case| case.def().name.as_str() == case.kernel));
    let missing: Vec<&str> = KernelLibrary::linked()
        .tables()
        .filter(|def| def.krate.as_str() == "max-kernels")
        .map(|def| def.name.as_str())
        .filter(|name| !named.contains(name))
        .collect();
    assert!(missing.is_empty(), "add a row to tests/kernels/table for {missing:?}");
}

#[test]
fn random_problems() {
    let (cases, engines) = (table::cases(), engines());
    all(&rows(&cases), |(case, dtypes)| {
        let few = if dtypes.len() > 1 { 6 } else { 24 };
        let config = Config { cases: few, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
        let rng = TestRng::deterministic_rng(config.rng_algorithm);
        let outcome = TestRunner::new_with_rng(config, rng)
            .run(&draws(), |draw| check(case, dtypes, &engines, &draw).map_err(TestCaseError::fail));
        match outcome {
            Ok(()) => Ok(()),
            Err(TestError::Fail(reason, _) | TestError::Abort(reason)) => Err(reason.to_string()),
        }
    });
}

#[test]
fn small_and_empty_problems() {
    let (cases, engines) = (table::cases(), engines());
    all(&rows(&cases), |(case, dtypes)| {
        let sizes: [&[i64]; 6] = [&[], &[1], &[0, 3], &[3, 0, 2], &[1, 1, 1, 1, 1], &[2, 3, 1, 5, 2]];
        sizes.iter().enumerate().try_for_each(|(seed, sizes)| {
            let (rank, mut sizes) = (sizes.len(), sizes.to_vec());
            sizes.resize(5, 1);
            let draw = Draw { sizes, rank, layouts: Vec::new(), limit: 50_000, seed: seed as u64 };
            // So that every kernel is executed everywhere, of every dtype.
            let problem = case.problem(dtypes, &draw);
            let shapes: Vec<Vec<i64>> = problem.operands.iter().map(|t| t.dims.clone()).collect();
            if let Some(engine) = engines.iter().find(|engine| !engine.affords(&problem, (case.work)(&shapes))) {
                return Err(format!("{} is not run on {}", engine.name(), problem.describe()));
            }
            check(case, dtypes, &engines, &draw)
        })
    });
}

#[test]
fn problems_of_chosen_sizes() {
    let (cases, engines) = (table::cases(), engines());
    all(&rows(&cases), |(case, dtypes)| {
        case.sizes.iter().zip(1..).try_for_each(|(sizes, seed)| {
            let draw = Draw { sizes: sizes.to_vec(), rank: 5, layouts: Vec::new(), limit: i64::MAX, seed };
            check(case, dtypes, &engines, &draw)
        })
    });
}

/// Problems whose values belong together: what is drawn leads through few loops of some kernels.
#[test]
fn problems_that_are_made() {
    let (cases, engines) = (table::cases(), engines());
    all(&rows(&cases), |(case, dtypes)| {
        let Some((all, make)) = &case.made else { return Ok(()) };
        all.iter().zip(1..).try_for_each(|(sizes, seed)| {
            let draw = Draw { sizes: sizes.to_vec(), rank: 5, layouts: Vec::new(), limit: i64::MAX, seed };
            let mut problem = case.problem(dtypes, &draw);
            make(&mut problem);
            check_problem(case, &problem, &engines)
        })
    });
}

/// Products of several tiles along each axis, and steps along the depth, which would be too much work in the simulator for every
/// dtype and draw.
#[test]
fn tiles_of_several_blocks() {
    use DType::{BF16, F8E4M3FN, F16, F32, F64, I8, U8};
    let cases = table::cases();
    let problems: [(&str, &[DType], [i64; 5]); 17] = [
        ("matmul", &[F32], [130, 70, 200, 1, 1]),
        ("matmul", &[F16], [200, 300, 330, 1, 1]),
        ("matmul", &[F64], [70, 133, 100, 1, 1]),
        ("batch_matmul", &[BF16], [130, 264, 200, 2, 1]),
        ("matmul_transposed", &[F32], [130, 72, 200, 1, 1]),
        ("batch_matmul_transposed", &[F32], [70, 133, 99, 2, 1]),
        ("matmul_integer", &[I8, U8], [130, 70, 200, 1, 1]),
        ("matmul_static_scaled_float8", &[F8E4M3FN], [130, 70, 200, 1, 1]),
        ("attention", &[F32], [70, 133, 64, 1, 0]),
        ("attention", &[BF16], [70, 133, 64, 1, 0]),
        ("attention", &[F16], [70, 140, 160, 1, 0]),
        ("attention with a mask", &[F32], [70, 133, 64, 1, 0]),
        ("attention with a mask", &[BF16], [70, 140, 160, 1, 0]),
        ("flash_attention_ragged", &[F32], [70, 127, 64, 1, 3]),
        ("flash_attention_ragged", &[BF16], [70, 127, 64, 1, 2]),
        ("flash_attention_ragged", &[F16], [70, 75, 160, 1, 4]),
        ("conv", &[BF16], [71, 70, 70, 70, 1]),
    ];
    let ways = || Way::all().into_iter().enumerate();
    let runs: Vec<_> =
        problems.iter().flat_map(|problem| ways().map(move |(seed, way)| (problem, way, seed))).collect();
    all(&runs, |((kernel, dtypes, sizes), way, seed)| {
        let case = match kernel.strip_suffix(" with a mask") {
            Some(kernel) => cases.iter().rfind(|case| case.kernel == kernel),
            None => cases.iter().find(|case| case.kernel == *kernel),
        };
        let case = case.ok_or(*kernel)?;
        let draw = Draw { sizes: sizes.to_vec(), rank: 5, layouts: Vec::new(), limit: i64::MAX, seed: *seed as u64 };
        let problem = case.problem(dtypes, &draw);
        if !way.may_differ(problem.def, dtypes) {
            return Ok(());
        }
        let written = way.write(&problem)?;
        if !way.differs(&problem, &written) {
            return Ok(());
        }
        let run = Compiled::new(written)?.check(case, &problem, way.error());
        run.map(|_| ()).map_err(|e| format!("{way}, {}: {e}", problem.describe()))
    });
}

/// Problems that are divided among threads, and results that are written by non-temporal stores.
#[test]
fn large_problems() {
    let (cases, engines) = (table::cases(), engines());
    let one = |case: &Case, dtypes: &[DType]| {
        let all = bindings(case.def());
        let f32s = |dtypes: &[DType]| dtypes.iter().filter(|d| **d == DType::F32).count();
        all.iter().max_by_key(|dtypes| f32s(dtypes)).is_some_and(|chosen| chosen == dtypes)
    };
    let rows: Vec<_> = rows(&cases).into_iter().filter(|(case, dtypes)| one(case, dtypes)).collect();
    all(&rows, |(case, dtypes)| {
        let elementwise = case.def().kind == KernelKind::Elementwise;
        let draws = if elementwise { [vec![1_100_003], vec![1031, 1031]] } else { [vec![257; 5], vec![1031; 5]] };
        draws.into_iter().try_for_each(|sizes| {
            let draw = Draw { rank: sizes.len(), sizes, layouts: Vec::new(), limit: 1_200_000, seed: 7 };
            check(case, dtypes, &engines, &draw)
        })
    });
}
