//! Every kernel of the library on the GPU, against its compiled form on the CPU; and what a launch costs.
//!
//! `MAX_GPU_BENCH=1` also measures, one JSON object a line.

#[cfg(target_os = "linux")]
#[allow(unused_macros, reason = "one test has more to do than the macro")]
#[path = "../../support/fake_gpu.rs"]
mod fake_gpu;

use std::time::Instant;

use gpu_tests::{Operand, gpu, launch, load, strides};
use max::dispatch;
use max::driver::{Device, DriverError, Tensor};
use max::dtype::{DType, Element};
use max::kernel::table::{Access, KernelDef, KernelKind, Level, ParamKind};
use max::kernel::{Form, KernelLibrary, ParamArg, TensorArg};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Roughly normal: the sum of twelve uniforms.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

fn push(bytes: &mut Vec<u8>, dtype: DType, random: &mut Random) {
    macro_rules! put {
        ($e:expr) => {
            bytes.extend_from_slice(&$e.to_le_bytes())
        };
    }
    let v = random.normal();
    match dtype {
        DType::Bool => bytes.push((random.next() & 1) as u8),
        DType::F32 => put!(v as f32),
        DType::F64 => put!(v),
        DType::F16 => put!(max::dtype::f16::from_f64(v).to_bits()),
        DType::BF16 => put!(max::dtype::bf16::from_f64(v).to_bits()),
        other => bytes.extend_from_slice(&random.next().to_le_bytes()[..other.size_in_bytes()]),
    }
}

/// The dims of each operand, for a kernel of this name. Odd sizes, more than a block, less than a tile.
fn shapes(def: &KernelDef) -> Option<Vec<Vec<i64>>> {
    let dims: &[&[i64]] = match def.name.as_str() {
        "sum" | "mean" | "var" | "prod" | "reduce_max" | "reduce_min" | "argmax" | "argmin" => &[&[37, 1], &[37, 1003]],
        "softmax" | "logsoftmax" | "cumsum" => &[&[37, 1003], &[37, 1003]],
        "layer_norm" => &[&[19, 777], &[19, 777], &[777], &[777]],
        "rms_norm" => &[&[19, 777], &[19, 777], &[777]],
        "top_k" => &[&[5, 7], &[5, 7], &[5, 1003]],
        "gather" => &[&[2, 31, 65], &[2, 100, 65], &[31]],
        "matmul" => &[&[67, 71], &[67, 130], &[130, 71]],
        "batch_matmul" => &[&[3, 67, 33], &[3, 67, 40], &[3, 40, 33]],
        "attention" => &[&[3, 70, 64], &[3, 70, 64], &[3, 90, 64], &[3, 90, 64]],
        _ if def.kind == KernelKind::Elementwise => {
            return Some(vec![vec![10_007]; def.operands.as_slice().len()]);
        }
        _ => return None,
    };
    Some(dims.iter().map(|d| d.to_vec()).collect())
}

/// An element as a number.
fn value(dtype: DType, bytes: &[u8]) -> f64 {
    fn read<T: Element>(bytes: &[u8]) -> f64 {
        let x = Tensor::from_slice(bytes, [bytes.len()]).and_then(|x| x.view(T::DTYPE, None));
        x.and_then(|x| x.to_vec::<T>()).expect("an element")[0].to_f64()
    }
    dispatch!(dtype, T => read::<T>(bytes))
}

/// The largest difference between two results, in the last place of their dtype for floats; infinite if they differ in
/// a dtype without tolerance.
fn difference(dtype: DType, exact: bool, a: &[u8], b: &[u8]) -> f64 {
    let size = dtype.size_in_bytes();
    let mut worst = 0.0f64;
    for (x, y) in a.chunks(size).zip(b.chunks(size)) {
        if x == y {
            continue;
        }
        let (p, q) = (value(dtype, x), value(dtype, y));
        let epsilon = match dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F64 => f64::EPSILON,
            // Whatever the sign and the bits of what is no number.
            _ if p.is_nan() && q.is_nan() => continue,
            _ => return f64::INFINITY,
        };
        if p.is_nan() && q.is_nan() {
            continue;
        }
        if exact {
            return f64::INFINITY;
        }
        worst = worst.max((p - q).abs() / (epsilon * q.abs().max(1.0)));
    }
    worst
}

#[test]
fn every_kernel_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let level = *Level::available().last().expect("one level at least");
    let (mut run, mut failures, mut skipped) = (0, Vec::new(), Vec::new());
    for def in KernelLibrary::linked().iter() {
        let name = def.name.as_str();
        let Some(dims) = shapes(def) else {
            skipped.push(name);
            continue;
        };
        let mut bindings: Vec<&[u8]> = def.instances.as_slice().iter().map(|i| i.dtypes.as_slice()).collect();
        bindings.sort_unstable();
        bindings.dedup();
        for codes in bindings {
            let dtypes: Vec<DType> = codes.iter().filter_map(|c| DType::from_code(*c)).collect();
            match check(&gpu, def, &dtypes, &dims, level) {
                Ok(()) => run += 1,
                Err(why) => failures.push(format!("{name} {dtypes:?}: {why}")),
            }
        }
    }
    println!("{run} instances agree with the CPU; without shapes here: {skipped:?}");
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), run + failures.len(), failures.join("\n"));
}

/// The same on the simulated GPU, where the sources of this test are at hand.
#[cfg(target_os = "linux")]
#[test]
fn every_kernel_agrees_on_the_simulated_gpu() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        println!("SKIPPED: this is not where the test was built");
        return;
    }
    let test = "kernels::every_kernel_agrees_on_the_simulated_gpu";
    fake_gpu::on_fake_gpu(test, &[], every_kernel_agrees_with_the_cpu);
}

fn check(
    gpu: &Device,
    def: &'static KernelDef,
    dtypes: &[DType],
    dims: &[Vec<i64>],
    level: Level,
) -> Result<(), String> {
    let operands = def.operands.as_slice();
    let dtype = |i: usize| match usize::try_from(operands[i].dtype.generic) {
        Ok(g) => dtypes[g],
        Err(_) => DType::from_code(operands[i].dtype.fixed).expect("a dtype"),
    };
    let all: Vec<DType> = (0..operands.len()).map(dtype).collect();
    let param = |name: &str| {
        let def = def.params.as_slice().iter().find(|p| p.name.as_str() == name)?;
        Some(match def.kind {
            ParamKind::Int => ParamArg::Int(3),
            ParamKind::Bool => ParamArg::Bool(true),
            ParamKind::Float => ParamArg::Float(0.125),
            ParamKind::String => ParamArg::String("none"),
        })
    };
    // A generic that no operand binds comes as a parameter; the built-in kernels have none.
    let bound = def.bind(&all, param, Form::Compiled(level)).map_err(|e| e.to_string())?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut host: Vec<Vec<u8>> = Vec::new();
    for (i, shape) in dims.iter().enumerate() {
        let n: i64 = shape.iter().product();
        let mut bytes = Vec::new();
        for _ in 0..n {
            if def.name.as_str() == "gather" && i == 2 {
                let index = (random.next() % 120) as i64 - 10;
                bytes.extend_from_slice(&index.to_le_bytes()[..all[i].size_in_bytes()]);
            } else {
                push(&mut bytes, all[i], &mut random);
            }
        }
        if operands[i].access == Access::Out {
            bytes.fill(0);
        }
        host.push(bytes);
    }
    let mut device = Vec::new();
    for (bytes, shape) in host.iter().zip(dims) {
        device.push(Operand::new(gpu, bytes, shape).map_err(|e| e.to_string())?);
    }
    let loaded = load(gpu, &bound).map_err(|e| e.to_string())?;
    launch(gpu, &loaded, &device).and_then(|()| gpu.synchronize()).map_err(|e| e.to_string())?;
    let all_strides: Vec<Vec<i64>> = dims.iter().map(|d| strides(d)).collect();
    let args: Vec<TensorArg<'_>> = host
        .iter_mut()
        .zip(dims.iter().zip(&all_strides))
        .map(|(bytes, (dims, strides))| TensorArg { ptr: bytes.as_mut_ptr(), dims, strides })
        .collect();
    // SAFETY: one buffer for each operand, of its dtype and dims, nobody else's.
    unsafe { bound.launch(&args) };
    let exact = def.kind == KernelKind::Elementwise && level >= Level::V3;
    for (i, operand) in operands.iter().enumerate() {
        if operand.access == Access::In {
            continue;
        }
        let result = device[i].bytes().map_err(|e| e.to_string())?;
        let worst = difference(all[i], exact, &result, &host[i]);
        // Sums in another order: a few hundred terms, some of them cancelling.
        if worst > 200.0 {
            return Err(format!("`{}` differs by {worst} ulp", operand.name.as_str()));
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
    let mut random = Random(42);
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
    let heads = vec![vec![16, 4096, 128]; 4];
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
        for shape in dims {
            let count: i64 = shape.iter().product();
            let size = count as usize * dtype.size_in_bytes();
            let mut bytes = Vec::new();
            // A million random values, repeated: enough that nothing compresses or cancels.
            for _ in 0..count.min(1 << 20) {
                push(&mut bytes, *dtype, &mut random);
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
        let all = vec![*dtype; def.operands.as_slice().len()];
        let bound = def.bind(&all, param, Form::Reference).expect("operands of one dtype");
        let loaded = load(&gpu, &bound).expect("PTX that the driver takes");
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
