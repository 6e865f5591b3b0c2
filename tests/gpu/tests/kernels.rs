//! Every kernel of the library on the GPU, against its compiled form on the CPU; and what a launch costs.
//!
//! `MAX_GPU_BENCH=1` also measures, one JSON object a line.

#[cfg(target_os = "linux")]
#[allow(unused_macros, reason = "one test has more to do than the macro")]
#[path = "../../support/fake_gpu.rs"]
mod fake_gpu;

// What each kernel must compute, and how its problems are drawn, is shared with the tests of the CPU and the simulator.
#[allow(dead_code, reason = "those use more of it")]
#[path = "../../kernels/case.rs"]
mod case;
#[allow(dead_code, reason = "as above")]
#[path = "../../kernels/number.rs"]
mod number;
#[path = "../../kernels/random.rs"]
mod random;
#[path = "../../kernels/table/mod.rs"]
mod table;
#[path = "../../kernels/tensor.rs"]
mod tensor;
#[path = "../../kernels/threads.rs"]
mod threads;

use std::time::Instant;

use case::{Case, Draw, bindings};
use gpu_tests::{Operand, gpu, launch, load};
use max::driver::{Device, DriverError};
use max::dtype::DType;
use max::kernel::abi::{Access, KernelKind, Level, OperandDef, ParamKind};
use max::kernel::{BoundKernel, Form, KernelLibrary, ParamArg, TensorArg};
use number::{Num, Values, draw, encode, ulp};
use random::Rng;
use tensor::{Layout, Tensor};

/// The most multiplications, or elements, of a problem, on a GPU and in the simulator.
const WORK: [i64; 2] = [1 << 24, 1 << 15];

/// Kernels that take the simulator long, and the most elements of their problems there.
const SLOW: ([&str; 4], i64) = (["rank_runs", "merge_runs", "top_k", "scatter_reduce"], 1 << 11);

/// The most of a problem whose reference is computed.
const REFERENCE: i64 = 1 << 26;

/// What a kernel is given: odd sizes, of more than a block and of less than a tile, and operands that are not dense. `whole` are
/// taken as they are, and others cut to what takes a reasonable time.
struct Sizes {
    sizes: Vec<i64>,
    layouts: Vec<Layout>,
    whole: bool,
}

fn sizes(case: &Case, dtypes: &[DType], simulated: bool) -> Vec<Sizes> {
    let dense = |sizes: &[i64]| Sizes { sizes: sizes.to_vec(), layouts: Vec::new(), whole: false };
    let whole = |sizes: &[i64]| Sizes { whole: true, ..dense(sizes) };
    let rotated = Layout { rotate: 1, ..Layout::default() };
    let gaps = Layout { gap: 1, offset: 3, ..Layout::default() };
    let views = Sizes { sizes: vec![3, 35, 17, 4, 2], layouts: vec![gaps, rotated, gaps], whole: false };
    if case.def().kind == KernelKind::Elementwise {
        return vec![dense(&[if simulated { 4_999 } else { 10_007 }]), Sizes { sizes: vec![3, 35, 17], ..views }];
    }
    let mut all = vec![dense(&[67, 71, 130, 5, 40]), dense(&[37, 1003, 64, 7, 9]), views];
    // Rows of a multiple of 16 bytes, which the device copies on sm_90a.
    if dtypes.iter().all(|dtype| dtype.is_half()) && matches!(case.kernel, "matmul" | "batch_matmul") {
        all.push(whole(&[136, 264, 520, 2, 0]));
        if !simulated {
            all.push(whole(&[2048, 2048, 520, 1, 0]));
        }
    }
    let few = |sizes: &&[i64; 5]| !simulated || (case.work)(&(case.shapes)(&sizes[..])) <= 5_000;
    all.extend(case.sizes.iter().filter(few).map(|sizes| whole(sizes)));
    all
}

/// The first element that is not that of the CPU: the same number where results are exact, and else within 2 units in its last place,
/// beside what sums in another order make of the largest result.
fn difference(dtype: DType, exact: bool, got: &[Num], want: &[Num]) -> Option<usize> {
    let finite = want.iter().map(|v| v.float().abs()).filter(|v| v.is_finite());
    let epsilon = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let sums = 200.0 * epsilon * finite.fold(0.0, f64::max);
    let differ = |(&got, &want): (&Num, &Num)| {
        let (Num::Float(p), Num::Float(q)) = (got, want) else { return got != want };
        if p.is_nan() && q.is_nan() || encode(dtype, got) == encode(dtype, want) {
            return false;
        }
        let close = !exact && !dtype.is_float8() && p.is_finite() && q.is_finite();
        !close || (p - q).abs() > 2.0 * ulp(dtype, p.abs().max(q.abs())) + sums
    };
    got.iter().zip(want).position(differ)
}

#[test]
fn a_few_units_in_the_last_place_are_a_difference() {
    for (dtype, step) in [(DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)] {
        // Of 1.25, beside a larger one whose own sums may err by less than half of the step.
        let of = |steps: f64| [1.25 + steps * step, -8.0, 0.0].map(Num::Float);
        for steps in [-2.0, 0.0, 2.0] {
            assert_eq!(difference(dtype, false, &of(steps), &of(0.0)), None, "{dtype} {steps}");
        }
        for steps in [-3.0, 3.0] {
            assert_eq!(difference(dtype, false, &of(steps), &of(0.0)), Some(0), "{dtype} {steps}");
        }
        assert_eq!(difference(dtype, true, &of(1.0), &of(0.0)), Some(0));
        let small = [1.25, -8.0, 0.01].map(Num::Float);
        assert_eq!(difference(dtype, false, &small, &of(0.0)), Some(2));
    }
    let epsilon = f64::from(f32::EPSILON);
    let of = |error: f64| [1.0, 2.0 + error, f64::NAN, f64::INFINITY].map(Num::Float);
    assert_eq!(difference(DType::F32, false, &of(300.0 * epsilon), &of(0.0)), None);
    assert_eq!(difference(DType::F32, false, &of(500.0 * epsilon), &of(0.0)), Some(1));
    assert_eq!(difference(DType::F32, false, &[Num::Float(1.0)], &of(0.0)[3..]), Some(0));
    assert_eq!(difference(DType::I32, false, &[Num::Int(3)], &[Num::Int(4)]), Some(0));
}

#[test]
fn every_kernel_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let simulated = gpu.product_name().is_ok_and(|name| name == "Simulated GPU");
    let level = *Level::available().last().expect("one level at least");
    let mut cases = table::cases();
    for case in cases.iter_mut().filter(|case| !case.same_bits) {
        // In a sum of many numbers, one that is not finite would hide all others.
        let tame = |values: &mut Values| {
            if let Values::Mostly(lo, hi) = *values {
                *values = Values::Within(lo, hi);
            }
        };
        case.values.iter_mut().for_each(tame);
    }
    let mut draws = Vec::new();
    for case in &cases {
        for dtypes in bindings(case.def()) {
            for (Sizes { sizes, layouts, whole }, seed) in sizes(case, &dtypes, simulated).into_iter().zip(1..) {
                let limit = match simulated {
                    _ if whole => i64::MAX,
                    true if SLOW.0.contains(&case.kernel) => SLOW.1,
                    _ => WORK[usize::from(simulated)],
                };
                draws.push((case, dtypes.clone(), Draw { rank: sizes.len(), sizes, layouts, limit, seed }));
            }
        }
    }
    threads::all(&draws, |(case, dtypes, draw)| check(&gpu, case, dtypes, draw, level));
    println!("{} problems agree with the CPU", draws.len());
    let library = KernelLibrary::linked();
    let ours = library.tables().filter(|def| def.krate.as_str() == "max-kernels");
    let skipped: Vec<&str> =
        ours.map(|def| def.name.as_str()).filter(|name| cases.iter().all(|case| case.kernel != *name)).collect();
    assert!(skipped.is_empty(), "not run on the GPU: {skipped:?}");
}

/// Where the fake driver writes what is called.
#[cfg(target_os = "linux")]
const LOG: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/every_kernel.log");

/// The same on the simulated GPU, where the sources of this test are at hand.
#[cfg(target_os = "linux")]
#[test]
fn every_kernel_agrees_on_the_simulated_gpu() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        println!("SKIPPED: this is not where the test was built");
        return;
    }
    let test = "kernels::every_kernel_agrees_on_the_simulated_gpu";
    fake_gpu::on_fake_gpu(test, &[("FAKE_CUDA_LOG", LOG)], || {
        every_kernel_agrees_with_the_cpu();
        // Products of halves came to tiles that the device copies.
        let log = std::fs::read_to_string(LOG).expect("the driver's log");
        let maps = log.lines().filter(|line| *line == "cuTensorMapEncodeTiled").count();
        assert!(maps >= 4, "{maps} tensor maps");
    });
}

/// Runs a kernel on the GPU; the operands get what it leaves in their buffers.
fn on_gpu(gpu: &Device, bound: &BoundKernel, operands: &mut [Tensor]) -> Result<(), String> {
    let rank = operands.iter().map(|t| t.dims.len()).max().unwrap_or(0);
    let loaded = load(gpu, bound, rank).map_err(|e| e.to_string())?;
    let upload = |t: &Tensor| Operand::within(gpu, t.bytes(), t.start, &t.dims, &t.strides);
    let device = operands.iter().map(upload).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    launch(gpu, &loaded, &device).and_then(|()| gpu.synchronize()).map_err(|e| e.to_string())?;
    for (operand, device) in operands.iter_mut().zip(device) {
        operand.bytes_mut().copy_from_slice(&device.bytes().map_err(|e| e.to_string())?);
    }
    Ok(())
}

fn check(gpu: &Device, case: &Case, dtypes: &[DType], draw: &Draw, level: Level) -> Result<(), String> {
    let problem = case.problem(dtypes, draw);
    let fail = |what: String| Err(format!("{}: {what}", problem.describe()));
    let bound = problem.bind(Form::Compiled(level)).map_err(|e| e.to_string())?;
    let (mut on_device, mut on_host) = (problem.operands.clone(), problem.operands.clone());
    if let Err(e) = on_gpu(gpu, &bound, &mut on_device) {
        return fail(e);
    }
    let args: Vec<TensorArg<'_>> = on_host.iter_mut().map(Tensor::arg).collect();
    // SAFETY: one buffer for each operand, of its dtype and dims, nobody else's.
    unsafe { bound.launch(&args) }.unwrap_or_else(|e| panic!("{e}"));
    let shapes: Vec<Vec<i64>> = problem.operands.iter().map(|t| t.dims.clone()).collect();
    let mut want = ((case.work)(&shapes) <= REFERENCE).then(|| case.want(&problem).into_iter());
    for (k, operand) in problem.def.operands.as_slice().iter().enumerate() {
        let (before, after) = (&problem.operands[k], &on_device[k]);
        if operand.access == Access::In {
            if before.bytes() != after.bytes() {
                return fail(format!("operand {k} is an input and was written"));
            }
            continue;
        }
        if let Some(byte) = after.stray_write(before) {
            return fail(format!("byte {byte} of operand {k}, which starts at {}, is overwritten", after.start));
        }
        let (got, host) = (after.values(), on_host[k].values());
        let exact = case.same_bits && level >= Level::V3;
        if let Some(i) = difference(after.dtype, exact, &got, &host) {
            return fail(format!("operand {k}, element {i}: {:?}, but {:?} on the CPU", got[i], host[i]));
        }
        // And within the bound that the kernel has.
        let want = want.as_mut().and_then(Iterator::next).unwrap_or_default();
        if let Some(i) = want.iter().zip(&got).position(|(want, got)| !want.accepts(after.dtype, *got, case.ulps)) {
            return fail(format!("operand {k}, element {i}: {:?}, want {:?}", got[i], want[i]));
        }
    }
    Ok(())
}

/// What it is called; the kernel, the dtype and the dims of its operands; and its operations, 0 if memory is the limit.
type Work = (&'static str, &'static str, DType, Vec<Vec<i64>>, f64);

#[test]
fn speed() {
    if std::env::var("MAX_GPU_BENCH").is_err() {
        println!("SKIPPED: set MAX_GPU_BENCH=1 to measure");
        return;
    }
    let Some(gpu) = gpu() else { return };
    let mut random = Rng(42);
    let n = 8192i64;
    let from = Operand::new(&gpu, &vec![2; (n * n * 4) as usize], &[n, n]).expect("device memory");
    // Into memory that comes from the cache.
    let copy = time(&gpu, || from.memory.copy().map(drop));
    println!(
        "{{\"work\":\"copy_{n}x{n}\",\"median_us\":{:.1},\"gb_per_s\":{:.0}}}",
        copy * 1e6,
        (n * n * 8) as f64 / copy / 1e9
    );
    drop(from);
    let square = vec![n, n];
    // The last one stands in the place of a mask.
    let heads: Vec<Vec<i64>> = [vec![vec![16, 4096, 128]; 4], vec![vec![1; 3]]].concat();
    let works: &[Work] = &[
        ("relu_5", "relu", DType::F32, vec![vec![5]; 2], 0.0),
        ("add_8192x8192", "add", DType::F32, vec![square.clone(); 3], 0.0),
        ("relu_8192x8192", "relu", DType::F32, vec![square.clone(); 2], 0.0),
        ("gelu_8192x8192", "gelu", DType::F32, vec![square.clone(); 2], 0.0),
        ("softmax_8192x8192", "softmax", DType::F32, vec![square.clone(); 2], 0.0),
        ("layer_norm_8192x8192", "layer_norm", DType::F32, vec![square.clone(), square.clone(), vec![n], vec![n]], 0.0),
        ("rms_norm_8192x8192", "rms_norm", DType::F32, vec![square.clone(), square.clone(), vec![n]], 0.0),
        ("sum_rows_8192x8192", "sum", DType::F32, vec![vec![n, 1], square.clone()], 0.0),
        ("cumsum_8192x8192", "cumsum", DType::F32, vec![square.clone(); 2], 0.0),
        ("matmul_f32_4096", "matmul", DType::F32, vec![vec![4096, 4096]; 3], 2.0 * 4096f64.powi(3)),
        ("attention_h16_s4096_d128", "attention", DType::F32, heads.clone(), 4.0 * 16.0 * 4096f64.powi(2) * 128.0),
        ("matmul_bf16_4096", "matmul", DType::BF16, vec![vec![4096, 4096]; 3], 2.0 * 4096f64.powi(3)),
        ("matmul_bf16_8192", "matmul", DType::BF16, vec![square.clone(); 3], 2.0 * 8192f64.powi(3)),
        (
            "attention_bf16_h16_s4096_d128",
            "attention",
            DType::BF16,
            heads.clone(),
            4.0 * 16.0 * 4096f64.powi(2) * 128.0,
        ),
    ];
    for (work, kernel, dtype, dims, flops) in works {
        let def = KernelLibrary::linked().get(kernel).expect("a built-in kernel");
        let mut device = Vec::new();
        let mut bytes_moved = 0;
        let operand_dtype = |operand: &OperandDef| match operand.dtype.generic {
            -1 => DType::from_code(operand.dtype.fixed).expect("a dtype"),
            _ => *dtype,
        };
        let all: Vec<DType> = def.operands.as_slice().iter().map(operand_dtype).collect();
        for (shape, dtype) in dims.iter().zip(&all) {
            let count: i64 = shape.iter().product();
            let size = count as usize * dtype.size_in_bytes();
            let mut bytes = Vec::new();
            // A million random values, repeated: enough that nothing compresses or cancels.
            for _ in 0..count.min(1 << 20) {
                bytes.extend_from_slice(&draw(*dtype, Values::Within(-3.0, 3.0), &mut random)[..dtype.size_in_bytes()]);
            }
            let block = bytes.clone();
            while bytes.len() < size {
                let more = block.len().min(size - bytes.len());
                bytes.extend_from_slice(&block[..more]);
            }
            bytes_moved += bytes.len();
            device.push(Operand::new(&gpu, &bytes, shape).expect("device memory"));
        }
        let param = |name: &str| {
            let def = def.params.as_slice().iter().find(|p| p.name.as_str() == name)?;
            Some(match def.kind {
                ParamKind::Float => ParamArg::Float(1e-5),
                ParamKind::Bool => ParamArg::Bool(false),
                ParamKind::Int => ParamArg::Int(0),
                ParamKind::String => return None,
            })
        };
        let bound = def.bind(&all, param, Form::Reference).expect("operands of one dtype");
        let loaded = load(&gpu, &bound, 1).expect("PTX that the driver takes");
        let median = time(&gpu, || launch(&gpu, &loaded, &device));
        let rate = if *flops > 0.0 { flops / median / 1e12 } else { bytes_moved as f64 / median / 1e9 };
        let unit = if *flops > 0.0 { "tflop_per_s" } else { "gb_per_s" };
        println!("{{\"work\":\"{work}\",\"median_us\":{:.1},\"{unit}\":{rate:.1}}}", median * 1e6);
    }
}

/// The median time of a launch, in seconds, of batches long enough to measure.
fn time(gpu: &Device, launch: impl Fn() -> Result<(), DriverError>) -> f64 {
    let batch = |count: u32| {
        let start = Instant::now();
        for _ in 0..count {
            launch().expect("a launch");
        }
        gpu.synchronize().expect("launches that finish");
        start.elapsed().as_secs_f64() / f64::from(count)
    };
    let once = batch(3);
    let count = (0.02 / once.max(1e-6)).clamp(1.0, 1000.0) as u32;
    let mut times: Vec<f64> = (0..9).map(|_| batch(count)).collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
