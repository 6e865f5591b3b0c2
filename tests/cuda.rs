//! Graphs of the built-in kernels on a GPU, over a driver that runs their PTX in the simulator, against the CPU.

#![cfg(target_os = "linux")]

#[macro_use]
#[path = "support/fake_gpu.rs"]
mod fake_gpu;
#[path = "../max-core/tests/ir/ptxas.rs"]
mod ptxas;

use std::collections::BTreeMap;

use max::engine::Float32MatmulPrecision;
use max::graph::ops::GeluApproximation;
use max::graph::{GraphError, TensorValue};
use max::prelude::*;

type Built = Result<Vec<Value>, GraphError>;

/// A tensor of small numbers of both signs, none of them twice in a row of 997 but where halves round them to the same.
fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 389 + 11) % 997) as f32 / 256.0 - 2.0;
    match dtype {
        DType::F32 => Tensor::from_vec((0..count).map(value).collect(), shape),
        DType::BF16 => Tensor::from_vec((0..count).map(|i| bf16::from_f32(value(i))).collect(), shape),
        other => panic!("numbers of {other}"),
    }
    .unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    let x = x.to(&Device::cpu()).unwrap();
    match x.dtype() {
        DType::F32 => x.iter::<f32>().unwrap().map(f64::from).collect(),
        DType::I64 => x.iter::<i64>().unwrap().map(|v| v as f64).collect(),
        DType::BF16 => x.iter::<bf16>().unwrap().map(f64::from).collect(),
        other => panic!("a result of {other}"),
    }
}

/// Builds a graph for the CPU and for the GPU, runs both, and compares all results.
#[track_caller]
fn same(shapes: &[&[usize]], build: impl Fn(&Graph, &[TensorValue]) -> Built) {
    same_of(DType::F32, shapes, build);
}

/// The same with inputs of a dtype.
#[track_caller]
fn same_of(dtype: DType, shapes: &[&[usize]], build: impl Fn(&Graph, &[TensorValue]) -> Built) {
    let gpu = Device::accelerator(0).unwrap();
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| numbers(dtype, shape)).collect();
    let run = |device: Device| {
        let name = DeviceRef::from(&device);
        let ty = |x: &Tensor| {
            let dims: Vec<i64> = x.shape().iter().map(|size| *size as i64).collect();
            TensorType::new(dtype, dims, name)
        };
        let graph = Graph::build("same", inputs.iter().map(ty).collect::<Vec<_>>(), |graph, values| {
            let values: Vec<TensorValue> = values.iter().map(|v| v.tensor().cloned()).collect::<Result<_, _>>()?;
            build(graph, &values)
        });
        let model = InferenceSession::with_devices([device]).load(&graph.unwrap()).unwrap();
        let inputs: Vec<Tensor> = inputs.iter().map(|x| x.to(&device).unwrap()).collect();
        model.execute(&inputs).unwrap()
    };
    let (expected, results) = (run(Device::cpu()), run(gpu));
    assert_eq!(results.len(), expected.len());
    for (i, (result, expected)) in results.iter().zip(&expected).enumerate() {
        assert_eq!((result.device(), result.shape()), (&gpu, expected.shape()), "result {i}");
        for (at, (a, b)) in values(result).iter().zip(values(expected)).enumerate() {
            assert!(
                (a - b).abs() <= 2e-5 * b.abs().max(1.0) || a.is_nan() && b.is_nan(),
                "result {i}, element {at}: {a} {b}"
            );
        }
    }
}

/// The lines of the driver's log that begin so, without these beginnings.
fn logged(kinds: &[&str]) -> Vec<String> {
    let log = std::env::var_os("FAKE_CUDA_LOG").expect("the driver's log");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let of = |line: &str| kinds.iter().find_map(|kind| line.strip_prefix(kind)).map(str::to_owned);
    log.lines().filter_map(of).collect()
}

/// What the driver's log says of kernels that ran: how they used memory, of those that use parts of sectors or the same banks how
/// many; and what was filled.
fn ran() -> Vec<String> {
    logged(&["ran ", "uncoalesced ", "conflicts ", "cuMemset"])
}

/// Products with weights of bytes, of what is computed and of a tile of the operand.
#[kernel(op = "weights_of_bytes", dtypes(W = [i8, u8]), tile(BM = 4, BN = 32, BK = 16, gpu(BM = 64, BN = 64, BK = 32)))]
fn weights_of_bytes<W: Int>(c: Out<f32, 2>, d: Out<f32, 2>, a: In<f32, 2>, w: In<W, 2>) {
    let [m, n] = program_id();
    let mut computed = Tile::<f32, BM, BN>::zeros();
    let mut direct = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        let t = a.tile::<BM, BK>(m, k).load();
        computed = dot(t * 2.0 + 0.5, w.tile::<BK, BN>(k, n), computed);
        direct = dot(a.tile::<BM, BK>(m, k), w.tile::<BK, BN>(k, n), direct);
    }
    c.tile::<BM, BN>(m, n).write(computed);
    d.tile::<BM, BN>(m, n).write(direct);
}

/// Products of halves with bytes.
#[kernel(op = "halves_and_bytes", transposed, dtypes(T = [f16, bf16], W = [i8, u8]), tile(BM = 4, BN = 32, BK = 16, gpu(BM = 64, BN = 64, BK = 32)))]
fn halves_and_bytes<T: Float, W: Int>(c: Out<f32, 2>, a: In<T, 2>, w: In<W, 2>) {
    let [m, n] = program_id();
    let mut sums = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        sums = dot(a.tile::<BM, BK>(m, k), w.tile::<BK, BN>(k, n), sums);
    }
    c.tile::<BM, BN>(m, n).write(sums);
}

/// Both at a time: tiles of one shape, of which one is read transposed.
#[kernel(op = "halves_and_both", dtypes(T = [f16, bf16], W = [i8, u8]), tile(BM = 4, BN = 32, BK = 16, gpu(BM = 64, BN = 64, BK = 32)))]
fn halves_and_both<T: Float, W: Int>(c: Out<f32, 2>, a: In<T, 2>, w: In<W, 2>, v: In<W, 2>) {
    let [m, n] = program_id();
    let mut sums = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        sums = dot(a.tile::<BM, BK>(m, k), w.tile::<BK, BN>(k, n), sums);
        sums = dot(a.tile::<BM, BK>(m, k), v.tile::<BN, BK>(n, k).t(), sums);
    }
    c.tile::<BM, BN>(m, n).write(sums);
}

/// Products of numbers of four bits, the lower ones of bytes, with a scale for each row.
#[kernel(op = "unpacked", dtypes(T = [f16, bf16]), tile(BM = 4, BN = 32, BK = 16, gpu(BM = 64, BN = 64, BK = 32)))]
fn unpacked<T: Float>(c: Out<f32, 2>, w: In<u8, 2>, scale: In<f32, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut sums = Tile::<f32, BM, BN>::zeros();
    let scale = scale.tile::<BM, 1>(m, 0).load();
    for k in range(0, w.dim(1), BK) {
        let numbers = w.tile::<BM, BK>(m, k).load().map(|v| (v & 15).cast::<f32>() - 8.0);
        sums = dot((numbers * scale).cast::<T>(), b.tile::<BK, BN>(k, n), sums);
    }
    c.tile::<BM, BN>(m, n).write(sums);
}

/// Sums of 32 numbers between 1 and the next number of tf32, nearer to that.
fn sums(session: impl Fn(InferenceSession) -> InferenceSession) -> Vec<f64> {
    let gpu = Device::accelerator(0).unwrap();
    let ty = |dims: [i64; 2]| TensorType::new(DType::F32, dims, DeviceRef::from(&gpu));
    let graph = Graph::build("sums", [ty([ROWS as i64, 32]), ty([32, 5])], |_, v| {
        Ok([Value::from(ops::matmul(v[0].tensor()?, v[1].tensor()?)?)])
    });
    let model = session(InferenceSession::with_devices([gpu])).load(&graph.unwrap()).unwrap();
    let full = |value: f32, dims: [usize; 2]| {
        Tensor::from_vec(vec![value; dims[0] * dims[1]], dims).unwrap().to(&gpu).unwrap()
    };
    values(&model.execute(&[full(1.0 + 5.0 / 8192.0, [ROWS, 32]), full(1.0, [32, 5])]).unwrap()[0])
}

/// More rows than those of which threads divide the sum, as exact as ever.
const ROWS: usize = 30;
const EXACT: f64 = 32.0 * (1.0 + 5.0 / 8192.0);
const ROUNDED: f64 = 32.0 * (1.0 + 8.0 / 8192.0);

gpu_test! {
    fn results_of_another_dtype_take_the_place_of_what_they_are_computed_from() {
        same(&[&[5], &[10], &[5]], |_, x| {
            let positions = ops::argsort(&x[0], true)?;
            let integers = ops::cast(&x[0], DType::I32)?;
            let twice = ops::concat([&integers, &integers], 0)?;
            Ok([
                ops::mul(ops::cast(twice, DType::F32)?, &x[1])?.into(),
                ops::cast(ops::mul(ops::cast(positions, DType::F64)?, 0.5)?, DType::F32)?.into(),
            ]
            .into())
        });
    }

    fn products_of_f32_are_as_exact_as_the_session_says() {
        assert_eq!(sums(|session| session), [EXACT; 5 * ROWS]);
        assert_eq!(sums(|session| session.float32_matmul_precision(Float32MatmulPrecision::High)), [ROUNDED; 5 * ROWS]);
        assert_eq!(sums(|session| session), [EXACT; 5 * ROWS]);
    }

    fn products_of_f32_are_as_exact_as_the_environment_says("MAX_GPU_TF32" = "1") {
        assert_eq!(sums(|session| session), [ROUNDED; 5 * ROWS]);
        assert_eq!(sums(|session| session.float32_matmul_precision(Float32MatmulPrecision::Highest)), [EXACT; 5 * ROWS]);
    }

    fn a_network() {
        same(&[&[5, 24], &[24, 48], &[48], &[48, 24], &[24], &[24]], |_, v| {
            let hidden = ops::gelu(ops::add(ops::matmul(&v[0], &v[1])?, &v[2])?, GeluApproximation::None)?;
            let residual = ops::add(ops::matmul(&hidden, &v[3])?, &v[0])?;
            let normed = ops::layer_norm(&residual, &v[4], &v[5], 1e-5)?;
            let halves = ops::rms_norm(ops::cast(&v[0], DType::BF16)?, &v[4], 1e-6)?;
            Ok(vec![ops::softmax(&normed, -1)?.into(), ops::rms_norm(&residual, &v[4], 1e-6)?.into(), halves.into()])
        });
    }

    fn elementwise_ops_in_other_kernels() {
        same(&[&[3, 5, 24], &[24, 40], &[40], &[3, 5, 40], &[40]], |_, v| {
            // Products, with dims that are merged for them.
            let y = ops::tanh(ops::add(ops::add(ops::matmul(&v[0], &v[1])?, &v[2])?, &v[3])?)?;
            // Rows: what they read and what they write, which is a result as well.
            let scores = ops::add(ops::mul(&y, 0.5)?, &v[3])?;
            let parts = ops::softmax(scores, -1)?;
            let normed = ops::layer_norm(ops::add(&parts, &v[3])?, &v[4], &v[2], 1e-5)?;
            let halves = ops::mul(ops::cast(&normed, DType::BF16)?, ops::cast(&y, DType::BF16)?)?;
            let sum = ops::sum(ops::exp(ops::abs(halves)?)?, -1)?;
            // Products of halves; all sums are exact, whatever their order.
            let half = |x: &TensorValue| ops::cast(x, DType::BF16);
            let wide = ops::add(ops::matmul(half(&v[0])?, half(&v[1])?)?, half(&v[2])?)?;
            let wide = ops::mul(ops::tanh(&wide)?, half(&v[3])?)?;
            Ok(vec![
                ops::cast(&wide, DType::F32)?.into(),
                ops::sub(&parts, &v[2])?.into(),
                parts.into(),
                ops::sqrt(ops::cast(&sum, DType::F32)?)?.into(),
                ops::relu(ops::max(ops::add(&y, &v[3])?, 1)?)?.into(),
            ])
        });
    }

    /// Weights of bytes, and what is computed before it is multiplied.
    fn factors_of_other_dtypes_than_the_sums() {
        same(&[&[70, 48], &[48, 66]], |_, v| {
            let ty = TensorType::new(DType::F32, (70, 66), v[0].device());
            let weights = |dtype| ops::cast(ops::mul(ops::abs(&v[1])?, 60.0)?, dtype);
            let mut results = Vec::new();
            for dtype in [DType::I8, DType::U8] {
                let operands = [v[0].clone(), weights(dtype)?];
                results.extend(ops::custom("weights_of_bytes", v[0].device(), operands, [&ty, &ty], ())?);
            }
            Ok(results)
        });
    }

    /// Weights of bytes, of four bits, and with scales, multiplied by halves: on tensor cores, read in units, without conflicts.
    fn quantized_weights_go_to_tensor_cores("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/quantized.log")) {
        Device::accelerator(0).unwrap();
        let check = |entry: &str, shapes: &[&[usize]], build: &dyn Fn(&[TensorValue]) -> Built| {
            let before = logged(&["multiplied "]).len();
            same(shapes, |_, v| build(v));
            assert_eq!(logged(&["multiplied "])[before..], [format!("max_{entry} by tensor cores")], "{shapes:?}");
            let trouble = logged(&["conflicts ", "uncoalesced "]);
            assert!(!trouble.iter().any(|line| line.starts_with(&format!("max_{entry}:"))), "{trouble:?}");
        };
        for half in [DType::F16, DType::BF16] {
            let of = |x: &TensorValue| ops::cast(x, half);
            for bytes in [DType::I8, DType::U8] {
                let weights = |x: &TensorValue| ops::cast(ops::mul(ops::abs(x)?, 60.0)?, bytes);
                let product = |op: &str, operands: Vec<TensorValue>| {
                    let ty = TensorType::new(DType::F32, (70, 128), operands[0].device());
                    ops::custom(op, operands[0].device(), operands, [&ty], ())
                };
                check("halves_and_bytes", &[&[70, 64], &[64, 128]], &|v| {
                    product("halves_and_bytes", vec![of(&v[0])?, weights(&v[1])?])
                });
                check("halves_and_bytes_transposed", &[&[70, 64], &[128, 64]], &|v| {
                    product("halves_and_bytes", vec![of(&v[0])?, weights(&v[1])?.t()?])
                });
                same(&[&[70, 64], &[64, 128], &[128, 64]], |_, v| {
                    product("halves_and_both", vec![of(&v[0])?, weights(&v[1])?, weights(&v[2])?])
                });
                // Left factors in front of many columns, of which a program has all.
                check("matmul", &[&[128, 64], &[64, 256]], &|v| {
                    let product = ops::matmul(ops::cast(weights(&v[0])?, half)?, of(&v[1])?)?;
                    Ok(vec![ops::cast(product, DType::F32)?.into()])
                });
                // A few rows, and weights that are converted, and scaled, where the product reads them.
                for scaled in [false, true] {
                    let dequantized = move |w: TensorValue, scale: &TensorValue| {
                        let w = ops::cast(w, half)?;
                        // Small integers, so that all sums are exact.
                        let scale = ops::cast(ops::abs(ops::round(scale)?)?, half)?;
                        if scaled { ops::mul(w, scale) } else { Ok(w) }
                    };
                    check("matmul", &[&[40, 64], &[64, 128], &[128]], &|v| {
                        let product = ops::matmul(of(&v[0])?, dequantized(weights(&v[1])?, &v[2])?)?;
                        Ok(vec![ops::cast(product, DType::F32)?.into()])
                    });
                    check("matmul_transposed", &[&[40, 64], &[128, 64], &[128, 1]], &|v| {
                        let weights = dequantized(weights(&v[1])?, &v[2])?;
                        Ok(vec![ops::cast(ops::matmul(of(&v[0])?, weights.t()?)?, DType::F32)?.into()])
                    });
                }
            }
            check("unpacked", &[&[70, 64], &[70, 1], &[64, 128]], &|v| {
                let ty = TensorType::new(DType::F32, (70, 128), v[0].device());
                let bytes = ops::cast(ops::mul(ops::abs(&v[0])?, 60.0)?, DType::U8)?;
                let operands = [bytes, ops::abs(ops::round(&v[1])?)?, of(&v[2])?];
                ops::custom("unpacked", v[0].device(), operands, [&ty], ())
            });
        }
    }

    /// Where one program reads each of its elements; what lies outside of it is 0 all the same.
    fn what_a_product_reads_is_computed_with_it("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/products.log")) {
        // The driver begins its log.
        Device::accelerator(0).unwrap();
        let launches = || {
            let log = std::env::var_os("FAKE_CUDA_LOG").expect("the driver's log");
            let log = std::fs::read_to_string(log).unwrap_or_default();
            log.lines().filter(|line| line.starts_with("cuLaunchKernel")).count()
        };
        let check = |shapes: [&[usize]; 2], computed: usize, half: bool, expected: usize| {
            let before = launches();
            same(&shapes, |_, v| {
                let mut v = [v[0].clone(), v[1].clone()];
                if half {
                    // Small integers: sums are exact, whatever their order.
                    v[1 - computed] = ops::cast(ops::cast(&v[1 - computed], DType::I64)?, DType::BF16)?;
                }
                let value = ops::exp(ops::sub(&v[computed], 1.0)?)?;
                v[computed] = if half { ops::cast(ops::round(&value)?, DType::BF16)? } else { value };
                // The weights of a layer lie in rows for each of its results.
                let right = if shapes[0][1] == shapes[1][0] { v[1].clone() } else { v[1].t()? };
                Ok(vec![ops::cast(ops::matmul(&v[0], right)?, DType::F32)?.into()])
            });
            assert_eq!(launches() - before, expected, "{shapes:?}, {computed}, {half}");
        };
        check([&[5, 24], &[24, 100]], 1, false, 1);
        check([&[70, 24], &[24, 100]], 1, false, 2);
        check([&[70, 24], &[24, 40]], 0, false, 1);
        check([&[70, 24], &[24, 100]], 0, false, 2);
        check([&[5, 72], &[72, 100]], 1, true, 2);
        check([&[5, 24], &[100, 24]], 1, false, 1);
        check([&[70, 24], &[100, 24]], 1, false, 2);
        check([&[70, 24], &[40, 24]], 0, false, 1);
        check([&[70, 24], &[100, 24]], 0, false, 2);
        check([&[5, 72], &[100, 72]], 1, true, 2);
    }

    /// What lies between ops that became one kernel is in no memory: of `f32`, each operand is read once and each result written
    /// once, in units of 16 bytes where the code for so many elements is not long. Where that is given, elements are
    /// read that often beside, as weights for each further row, and in so many accesses more.
    fn fused_kernels_read_and_write_each_element_once("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/fused.log")) {
        Device::accelerator(0).unwrap();
        let check = |kernel: &str, shapes: &[&[usize]], [beside, more]: [usize; 2], result: usize, build: &dyn Fn(&[TensorValue]) -> Built| {
            let before = ran().len();
            same(shapes, |_, v| build(v));
            let read: usize = shapes.iter().map(|shape| 4 * shape.iter().product::<usize>()).sum::<usize>() + 4 * beside;
            let (written, loads) = (4 * result, read / 16 + more);
            // A reduced row is one element.
            let stores = if ["sum", "mean", "prod", "reduce_max"].contains(&kernel) { result } else { written / 16 };
            let expected = format!("max_{kernel}: {read} bytes in {loads} loads, {written} bytes in {stores} stores");
            assert_eq!(ran()[before..], [expected], "{shapes:?}");
        };
        let (x, w): (&[usize], &[usize]) = (&[6, 1024], &[1024]);
        check("exp", &[x, x, x], [0, 0], 6 * 1024, &|v| {
            Ok(vec![ops::relu(ops::add(ops::mul(ops::exp(&v[0])?, &v[1])?, &v[2])?)?.into()])
        });
        check("softmax", &[x, x, x], [0, 0], 6 * 1024, &|v| {
            Ok(vec![ops::mul(ops::softmax(ops::abs(ops::add(&v[0], &v[1])?)?, -1)?, &v[2])?.into()])
        });
        check("layer_norm", &[x, x, w, w], [5 * 2 * 1024, 0], 6 * 1024, &|v| {
            let normed = ops::layer_norm(ops::add(&v[0], &v[1])?, &v[2], &v[3], 1e-5)?;
            Ok(vec![ops::tanh(&normed)?.into()])
        });
        check("sum", &[x, x], [0, 0], 6, &|v| Ok(vec![ops::sum(ops::exp(ops::mul(&v[0], &v[1])?)?, -1)?.into()]));
        // What follows a reduction is computed where its rows are stored: a number for each row is one load.
        let one: &[usize] = &[6, 1];
        check("mean", &[x, one], [0, 5], 6, &|v| Ok(vec![ops::sub(ops::exp(ops::mean(&v[0], -1)?)?, &v[1])?.into()]));
        check("mean", &[x], [0, 0], 6, &|v| Ok(vec![ops::sqrt(ops::mean(ops::mul(&v[0], &v[0])?, -1)?)?.into()]));
        check("sum", &[x], [0, 0], 6, &|v| Ok(vec![ops::sum(&v[0], -1)?.into()]));
        check("sum", &[x], [0, 0], 6, &|v| Ok(vec![ops::relu(ops::sum(&v[0], -1)?)?.into()]));
        check("mean", &[x], [0, 0], 6, &|v| {
            let mean = ops::mean(ops::mul(&v[0], &v[0])?, -1)?;
            Ok(vec![ops::rsqrt(ops::add(ops::mul(mean, 0.5)?, 1e-5)?)?.into()])
        });
        // Constants are in no memory, and a row that is as long as there is room for is kept beside them.
        check("mul", &[x], [0, 0], 6 * 1024, &|v| Ok(vec![ops::mul(&v[0], 0.5)?.into()]));
        let long: &[usize] = &[2, 8192];
        check("softmax", &[long], [0, 0], 2 * 8192, &|v| {
            Ok(vec![ops::softmax(ops::add(ops::mul(&v[0], 0.125)?, 1.5)?, -1)?.into()])
        });
        // One that is a result as well.
        check("prod", &[x], [0, 0], 2 * 6, &|v| {
            let prod = ops::prod(ops::add(ops::mul(&v[0], 0.001)?, 1.0)?, -1)?;
            Ok(vec![ops::tanh(&prod)?.into(), prod.into()])
        });
        check("cumsum", &[x, x, x], [0, 0], 2 * 6 * 1024, &|v| {
            let sums = ops::cumsum(ops::mul(&v[0], &v[1])?, -1, false, false)?;
            Ok(vec![ops::tanh(ops::add(&sums, &v[2])?)?.into(), sums.into()])
        });
        let (m, b): (&[usize], &[usize]) = (&[64, 64], &[64]);
        check("matmul", &[m, m, m], [0, 0], 64 * 64, &|v| {
            Ok(vec![ops::tanh(ops::add(ops::matmul(&v[0], &v[1])?, &v[2])?)?.into()])
        });
        // One number is read by each thread once for each row of a tile that it has, or for so many neighbours; so is one for each row.
        check("mul", &[x, &[1]], [1536 - 1, 1152], 6 * 1024, &|v| Ok(vec![ops::relu(ops::mul(&v[0], &v[1])?)?.into()]));
        check("matmul", &[m, m, &[1]], [4 * 256 - 1, 768], 64 * 64, &|v| {
            Ok(vec![ops::mul(ops::matmul(&v[0], &v[1])?, &v[2])?.into()])
        });
        check("matmul", &[m, m, &[1]], [4 * 256 - 1, 768], 64 * 64, &|v| {
            Ok(vec![ops::matmul(&v[0], ops::mul(&v[1], &v[2])?)?.into()])
        });
        check("matmul", &[m, m, &[64, 1]], [4 * 256 - 64, 768], 64 * 64, &|v| {
            Ok(vec![ops::add(ops::matmul(&v[0], &v[1])?, &v[2])?.into()])
        });
        // The same bias is read for each row of a tile.
        check("matmul", &[m, m, b], [63 * 64, 0], 64 * 64, &|v| {
            Ok(vec![ops::tanh(ops::add(ops::matmul(ops::exp(&v[0])?, &v[1])?, &v[2])?)?.into()])
        });
    }

    /// The same of halves, whose products tensor cores make.
    fn fused_products_of_halves_read_and_write_units("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/halves.log")) {
        Device::accelerator(0).unwrap();
        let m: &[usize] = &[64, 64];
        // On sm_90a, the device copies boxes of factors that are not computed: these are no loads of threads.
        let has_boxes = std::env::var("FAKE_CUDA_SM").ok().is_none_or(|sm| sm == "90");
        for computed in [None, Some(0), Some(1)] {
            let before = ran().len();
            same_of(DType::BF16, &[m, m, m], |_, v| {
                let mut of = [v[0].clone(), v[1].clone()];
                if let Some(factor) = computed {
                    // Sums of products with small integers are exact, whatever their order.
                    of[factor] = ops::round(&of[factor])?;
                }
                Ok(vec![ops::tanh(ops::add(ops::matmul(&of[0], &of[1])?, &v[2])?)?.into()])
            });
            // Tiles of 64 rows have 32 columns, so that the left factor is read twice; large ones are for what is not computed.
            let times = if has_boxes && computed.is_none() { 1 } else { 2 };
            let by_threads = |factor: usize| !has_boxes || computed == Some(factor);
            let (bytes, units) = (2 * 64 * 64, 2 * 64 * 64 / 16);
            let loads = (1 + times * usize::from(by_threads(0)) + usize::from(by_threads(1))) * units;
            let read = (times + 2) * bytes;
            let expected = format!("max_matmul: {read} bytes in {loads} loads, {bytes} bytes in {units} stores");
            assert_eq!(ran()[before..], [expected], "{computed:?}");
        }
    }

    /// Of each dtype; and code is loaded once for all of them.
    fn constants_of_fused_kernels_are_parameters("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/constants.log")) {
        Device::accelerator(0).unwrap();
        let loaded = || logged(&["cuModuleLoadDataEx"]).len();
        let copied = || logged(&["cuMemcpyHtoD"]).len();
        use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
        for dtype in [F32, F16, BF16, F64, I8, I16, I32, I64, U8] {
            let run = |constants: [i64; 2]| {
                same(&[&[3, 40]], |graph, v| {
                    let [scale, shift] = constants.map(|value| ops::constant(graph, value, dtype, v[0].device()));
                    let x = ops::cast(ops::mul(ops::abs(&v[0])?, 3.0)?, dtype)?;
                    let y = ops::add(ops::mul(&x, scale?)?, shift?)?;
                    Ok(vec![ops::cast(&y, F32)?.into(), ops::cast(ops::sum(&y, -1)?, F32)?.into()])
                });
            };
            let before = copied();
            run([2, 5]);
            // The input, and no constant.
            assert_eq!(copied() - before, 1, "{dtype:?}");
            let before = loaded();
            assert!(before > 0, "{dtype:?}");
            run([3, if dtype == U8 { 7 } else { -70 }]);
            assert_eq!(loaded(), before, "{dtype:?}");
        }
        // Bools, the only element of something larger, and one between others.
        same(&[&[3, 40]], |graph, v| {
            let device = v[0].device();
            let yes = ops::constant(graph, [true], Bool, device)?;
            let positive = ops::logical_xor(ops::greater(&v[0], 0.0)?, yes)?;
            let table = ops::constant(graph, [[1.0, -2.5], [4.0, 0.25]], F32, device)?;
            let one = ops::slice_tensor(&table, [1, 1])?;
            Ok(vec![ops::where_(positive, ops::mul(&v[0], one)?, ops::sub(&v[0], 0.75)?)?.into()])
        });
    }

    fn rows_columns_and_scans() {
        same(&[&[6, 35], &[4, 7, 9]], |_, v| {
            let (top, places) = ops::top_k(&v[0], 3, -1)?;
            Ok(vec![
                ops::sum(&v[0], 0)?.into(),
                ops::mean(&v[0], 1)?.into(),
                ops::max(&v[1], 1)?.into(),
                ops::argmax(&v[0], -1)?.into(),
                ops::logsoftmax(&v[1], 1)?.into(),
                ops::cumsum(&v[0], 1, false, true)?.into(),
                top.into(),
                places.into(),
            ])
        });
    }

    fn first_elements_of_long_rows_are_those_of_their_parts() {
        same(&[&[2, 9001], &[8200, 2]], |_, v| {
            let mut all = Vec::new();
            for (x, axis) in [(&v[0], -1), (&v[1], 0)] {
                // Many are equal.
                let x = ops::round(ops::mul(x, 8.0)?)?;
                for k in [1, 16, 17, 100] {
                    all.extend(<[_; 2]>::from(ops::top_k(&x, k, axis)?));
                    all.extend(<[_; 2]>::from(ops::bottom_k(&x, k, axis)?));
                }
            }
            Ok(all.into_iter().map(Into::into).collect())
        });
    }

    fn first_elements_and_updates_of_symbolic_rows() {
        let run = |device: Device, rows: usize, n: usize, updates: usize| {
            let name = DeviceRef::from(&device);
            let (x, u) = (TensorType::new(DType::F32, ("rows", "n"), name), ("rows", "updates"));
            let types = [x, TensorType::new(DType::F32, u, name), TensorType::new(DType::I32, u, name)];
            let graph = Graph::build("symbolic", types, |_, v| {
                let (values, places) = ops::top_k(&v[0], 20, -1)?;
                let (few, _) = ops::bottom_k(&v[0], 2, 1)?;
                let sum = ops::scatter_add(&v[0], &v[1], &v[2], 1)?;
                Ok::<_, max::graph::GraphError>(vec![values, places, few, sum, ops::scatter(&v[0], &v[1], &v[2], 1)?])
            });
            let model = InferenceSession::with_devices([device]).load(&graph.unwrap()).unwrap();
            let indices = Tensor::from_vec((0..rows * updates).map(|i| (i * 7 % 31) as i32 - 15).collect(), [rows, updates]);
            let inputs = [numbers(DType::F32, &[rows, n]), numbers(DType::F32, &[rows, updates]), indices.unwrap()];
            let results = model.execute(&inputs.map(|x| x.to(&device).unwrap())).unwrap();
            results.iter().map(values).collect::<Vec<_>>()
        };
        for (rows, n, updates) in [(2, 40, 9), (1, 5000, 130), (3, 20, 0)] {
            let gpu = run(Device::accelerator(0).unwrap(), rows, n, updates);
            assert_eq!(gpu, run(Device::cpu(), rows, n, updates), "{rows} rows of {n}");
        }
    }

    fn updates_are_made_in_order() {
        // Some elements have many updates, some none.
        same(&[&[3, 50], &[3, 90], &[70, 4]], |_, v| {
            let of = |x: &TensorValue, count: f64| ops::cast(ops::round(ops::mul(x, count)?)?, DType::I64);
            let (i, j) = (of(&v[1], 9.0)?, of(&v[2], 20.0)?);
            let updates = ops::mul(&v[1], 0.5)?;
            let columns = ops::broadcast_to(ops::sum(&v[2], 0)?, (70, 4))?;
            let mut all = vec![ops::scatter(&v[0], &updates, &i, 1)?, ops::scatter(&columns, &v[2], &j, 0)?];
            for (x, updates, i, axis) in [(&v[0], &updates, &i, 1), (&columns, &v[2], &j, 0)] {
                all.push(ops::scatter_add(x, updates, i, axis)?);
                all.push(ops::scatter_mul(x, updates, i, axis)?);
                all.push(ops::scatter_max(x, updates, i, axis)?);
                all.push(ops::scatter_min(x, updates, i, axis)?);
            }
            Ok(all.into_iter().map(Into::into).collect())
        });
    }

    fn elementwise_chains_views_and_casts() {
        same(&[&[4, 6], &[6], &[6, 4]], |_, v| {
            let x = ops::tanh(ops::sub(&v[0], &v[1])?)?;
            let y = ops::where_(ops::greater(&x, 0.25)?, ops::exp(&x)?, ops::mul(v[2].t()?, 0.5)?)?;
            let halves = ops::cast(ops::cast(&y, DType::BF16)?, DType::F32)?;
            let joined = ops::concat([&halves, &x], 0)?;
            Ok(vec![y.into(), joined.t()?.into(), ops::pow(ops::abs(&x)?, 1.5)?.into()])
        });
    }

    fn indices_and_attention() {
        same(&[&[20, 8], &[2, 3, 10, 16], &[2, 3, 12, 16], &[2, 3, 12, 16]], |graph, v| {
            let indices = ops::constant(graph, [3i64, 0, 19, 7], DType::I64, v[0].device())?;
            Ok(vec![
                ops::gather(&v[0], &indices, 0)?.into(),
                ops::gather(&v[0], ops::cast(&indices, DType::U8)?, 0)?.into(),
                ops::gather(&v[0], ops::constant(graph, [u64::MAX, 3], DType::U64, v[0].device())?, 0)?.into(),
                ops::attention(&v[1], &v[2], &v[3], Default::default())?.into(),
                ops::attention_masked(&v[1], &v[2], &v[3], ops::sum(v[0].slice_tensor([..10])?, 1)?, Default::default())?.into(),
                ops::matmul(&v[1], v[2].transpose(2, 3)?)?.into(),
            ])
        });
    }
}

/// Rows that are kept and that are not, aligned ones and others in turn.
#[track_caller]
fn of_rows(build: impl Fn(&[TensorValue]) -> Result<TensorValue, GraphError>) {
    for (rows, columns) in [(10, 300), (10, 301), (5, 9000)] {
        same(&[&[rows, columns], &[rows, columns], &[columns]], |_, v| Ok(vec![build(v)?.into()]));
    }
}

/// Products of several tiles and steps of a loop, of rows that are aligned and that are not; of few rows, for each of the forms
/// that there are for these, and of none of the sum. Those of `bf16` have sums that are exact.
#[track_caller]
fn of_products(dtype: DType, computed: bool) {
    let many = [[770, 652, 72], [330, 330, 72], [130, 72, 40], [130, 264, 200], [70, 133, 21], [330, 333, 21]];
    let few =
        [[1, 330, 1300], [5, 330, 1300], [1, 330, 0], [5, 330, 0], [13, 330, 600], [40, 330, 300], [40, 320, 304]];
    for [m, n, k] in many.into_iter().chain(few) {
        same_of(dtype, &[&[m, k], &[k, n], &[n]], |_, v| {
            let whole = |x: &TensorValue| ops::round(x);
            let (a, b) = if dtype == DType::F32 { (v[0].clone(), v[1].clone()) } else { (whole(&v[0])?, v[1].clone()) };
            let a = if computed { ops::add(a, 1.0)? } else { a };
            Ok(vec![ops::gelu(ops::add(ops::matmul(&a, &b)?, &v[2])?, GeluApproximation::Tanh)?.into()])
        });
    }
}

gpu_test! {
    fn a_softmax_with_what_is_around_it() {
        of_rows(|v| ops::mul(ops::softmax(ops::abs(ops::add(&v[0], &v[1])?)?, -1)?, &v[2]));
    }

    fn a_layer_norm_with_what_is_around_it() {
        of_rows(|v| ops::tanh(ops::layer_norm(ops::add(&v[0], &v[1])?, &v[2], &v[2], 1e-5)?));
    }

    fn a_sum_with_what_is_around_it() {
        of_rows(|v| ops::sqrt(ops::abs(ops::sum(ops::mul(&v[0], &v[1])?, -1)?)?));
    }

    fn a_product_with_bias_and_gelu() {
        of_products(DType::F32, false);
    }

    fn a_product_of_halves_with_bias_and_gelu() {
        of_products(DType::BF16, true);
    }
}

/// The tests above, of kernels that have barriers and are put together of several.
const WITH_BARRIERS: [&str; 5] = [
    "a_softmax_with_what_is_around_it",
    "a_layer_norm_with_what_is_around_it",
    "a_sum_with_what_is_around_it",
    "a_product_with_bias_and_gelu",
    "a_product_of_halves_with_bias_and_gelu",
];

/// So that each block runs several programs, and large tiles are for large problems.
const DEVICE: [(&str, &str); 2] = [("FAKE_CUDA_BLOCKS", "3"), ("FAKE_CUDA_MULTIPROCESSORS", "8")];

/// As of the library's kernels: without any one of the barriers of what graphs load, the simulator objects or results are wrong.
#[test]
fn every_barrier_of_fused_kernels_is_needed() {
    let check = |sm: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let passes = |test: &str, fail: &str| {
            let log = log.to_str().expect("a path of UTF-8");
            let own = [("FAKE_CUDA_SM", sm), ("FAKE_CUDA_LOG", log), ("FAKE_CUDA_FAIL", fail)];
            let environment = [&own[..], &DEVICE].concat();
            let output = fake_gpu::child(test, Some((&fake_gpu::library(), fake_gpu::NAME)), &environment);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("running 1 test"), "{test}: {said}");
            output.status.success()
        };
        let mut idle = Vec::new();
        for test in WITH_BARRIERS {
            assert!(passes(test, ""), "{test} on sm_{sm}, with all barriers");
            let said = std::fs::read_to_string(&log).expect("the driver's log");
            let count = said.lines().filter(|line| *line == "barrier").count();
            assert!(count > 0, "{test} on sm_{sm} has no barrier");
            idle.extend((1..=count).filter(|i| passes(test, &format!("barrier=1@{i}"))).map(|i| (test, i, count)));
        }
        assert!(idle.is_empty(), "sm_{sm}: {idle:?}");
    };
    std::thread::scope(|scope| {
        for sm in ["80", "90"] {
            scope.spawn(move || check(sm));
        }
    });
}

/// The tests above, of graphs.
const GRAPHS: [&str; 12] = [
    "products_of_f32_are_as_exact_as_the_session_says",
    "a_network",
    "elementwise_ops_in_other_kernels",
    "what_a_product_reads_is_computed_with_it",
    "factors_of_other_dtypes_than_the_sums",
    "quantized_weights_go_to_tensor_cores",
    "fused_kernels_read_and_write_each_element_once",
    "fused_products_of_halves_read_and_write_units",
    "constants_of_fused_kernels_are_parameters",
    "rows_columns_and_scans",
    "elementwise_chains_views_and_casts",
    "indices_and_attention",
];

/// The word behind another one in a text.
fn word_behind<'a>(text: &'a str, before: &str) -> &'a str {
    let rest = text.split_once(before).map_or("", |(_, rest)| rest).trim_start();
    rest.split(|c: char| c.is_whitespace() || matches!(c, '(' | ',')).next().unwrap_or_default()
}

/// Graphs compute the same on GPUs of each kind, and what is loaded for them is what `ptxas` takes without a warning: kernels that were
/// put together of several, their forms for the rows of several axes, copies.
#[test]
fn what_graphs_load_assembles() {
    std::thread::scope(|scope| {
        for (sm, target) in [("80", "sm_80"), ("90", "sm_90a"), ("100", "sm_100")] {
            scope.spawn(move || assembles(sm, target));
        }
    });
}

fn assembles(sm: &str, target: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    for test in GRAPHS {
        let log = folder.path().join("log");
        let paths = [folder.path(), &log].map(|path| path.to_str().expect("a path of UTF-8"));
        let environment = [("FAKE_CUDA_SM", sm), ("FAKE_CUDA_PTX", paths[0]), ("FAKE_CUDA_LOG", paths[1])];
        let output = fake_gpu::child(test, Some((&fake_gpu::library(), fake_gpu::NAME)), &environment);
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let passed = output.status.success() && said[0].contains("1 passed");
        assert!(passed, "{test} on sm_{sm}: {}\n{}", said[0], said[1]);
    }
    let mut modules: Vec<(String, String, String)> = Vec::new();
    for file in std::fs::read_dir(folder.path()).expect("the folder") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            let text = std::fs::read_to_string(&path).expect("PTX");
            assert_eq!(word_behind(&text, ".target "), target);
            let entry = word_behind(&text, ".entry ").to_owned();
            modules.push((path.display().to_string(), text, entry));
        }
    }
    let has = |entry: &str| modules.iter().any(|(_, _, other)| other == entry);
    assert!(modules.len() > 30 && has("max_copy") && has("max_matmul"), "{target}: {}", modules.len());
    // Each has its place behind its name.
    let named = |(i, (_, text, entry)): (usize, &(String, String, String))| (format!(" {entry}_{i}"), text.clone());
    let texts: BTreeMap<String, String> = modules.iter().enumerate().map(named).collect();
    for file in ptxas::together(modules) {
        let said = ptxas::assemble("graphs", target, &file).unwrap_or_default();
        // The line before says of which entry it is.
        let spills = said
            .lines()
            .zip(said.lines().skip(1))
            .filter(|(_, line)| line.contains(" spill stores") && !line.contains(" 0 bytes spill stores, 0 bytes"));
        let spilling: Vec<(&str, &str)> = spills.collect();
        let is_of = |entry: &str| spilling.iter().any(|(name, _)| name.ends_with(entry));
        let shown: Vec<&str> = texts.iter().filter(|(entry, _)| is_of(entry)).map(|(_, text)| &text[..]).collect();
        assert!(spilling.is_empty(), "{target}: {spilling:?}\n{}", shown.join("\n"));
    }
}
