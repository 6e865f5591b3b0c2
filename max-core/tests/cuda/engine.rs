//! Graphs on a GPU: where values lie, what is copied, and what is refused.

use std::collections::HashMap;

use crate::ops::*;
use max::driver::{Device, DeviceRef, DeviceStream, DriverError, Tensor};
use max::dtype::DType;
use max::engine::{EngineError, GpuProfiling, InferenceSession, MemoryOf};
use max::graph::{BufferType, DimSlice, Graph, GraphError, Value, Weight, ops};
use max::kernel::GpuError;
use max::kernel::ptx::PtxError;

/// Two layers and a softmax, on one device.
fn mlp(device: DeviceRef) -> Graph {
    let types = [f32s(("batch", 20), device), f32s((20, 40), device), f32s((40,), device), f32s((40, 10), device)];
    Graph::build("mlp", types, |_, inputs| {
        let [x, w, b, v] = [0, 1, 2, 3].map(|i| inputs[i].tensor().unwrap().clone());
        let hidden = ops::relu(ops::add(ops::matmul(&x, &w)?, &b)?)?;
        ops::softmax(ops::mul(ops::matmul(&hidden, &v)?, 0.5)?, -1)
    })
    .unwrap()
}

fn mlp_inputs(batch: usize) -> Vec<Tensor> {
    vec![numbers(&[batch, 20]), numbers(&[20, 40]), numbers(&[40]), numbers(&[40, 10])]
}

fn on(device: &Device, tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|x| x.to(device).unwrap()).collect()
}

/// Where ranges are written to.
const NVTX_LOG: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/nvtx.log");

/// Two kernels: of another shape, the second is no part of the first.
fn two_kernels() -> Graph {
    let ty = f32s((3,), GPU);
    Graph::build("two", [ty], |_, inputs| ops::add(ops::relu(&inputs[0])?.reshape([3, 1])?, 1.0)).unwrap()
}

gpu_test! {
    fn a_network_computes_what_it_computes_on_the_host() {
        let (host, device) = (InferenceSession::new().load(&mlp(DeviceRef::CPU)).unwrap(), load(&mlp(GPU)));
        assert_eq!(device.input_devices(), [gpu(); 4]);
        assert_eq!(device.output_devices(), [gpu()]);
        for batch in [1, 3, 50, 0] {
            let inputs = mlp_inputs(batch);
            let expected = host.execute(&inputs).unwrap();
            let results = device.execute(&on(&gpu(), &inputs)).unwrap();
            assert_eq!((results[0].device(), results[0].shape()), (&gpu(), &[batch, 10][..]));
            assert!(close(&results[0], &expected[0]), "{:?}\n{:?}", values(&results[0]), values(&expected[0]));
        }
        // Results do not depend on what was in recycled memory, nor on dropped inputs.
        let inputs = mlp_inputs(7);
        let results: Vec<_> = (0..3).map(|_| device.execute(&on(&gpu(), &inputs)).unwrap().remove(0)).collect();
        let expected = host.execute(&inputs).unwrap();
        assert!(results.iter().all(|result| close(result, &expected[0])));
    }

    fn poisoned_memory_changes_nothing("MAX_POISON" = "1") {
        let inputs = mlp_inputs(5);
        let expected = InferenceSession::new().load(&mlp(DeviceRef::CPU)).unwrap().execute(&inputs).unwrap();
        let results = load(&mlp(GPU)).execute(&on(&gpu(), &inputs)).unwrap();
        assert!(close(&results[0], &expected[0]));
    }

    /// A value goes to the GPU, is changed there, comes back, and is changed again.
    fn transfers() {
        for shape in [vec![3, 4], vec![1, 1], vec![0, 4]] {
            let graph = Graph::build("there and back", [f32s(("n", "m"), DeviceRef::CPU)], |_, inputs| {
                let x = inputs[0].tensor()?;
                // The transpose is made on the side where it is needed.
                let there = ops::relu(x.t()?.to(GPU)?)?;
                let back = ops::add(&there, 1.0)?.t()?.to(DeviceRef::CPU)?;
                Ok([Value::from(ops::mul(&back, 2.0)?), there.into()])
            });
            let model = load(&graph.unwrap());
            assert_eq!(model.output_devices(), [Device::cpu(), gpu()]);
            let x = numbers(&shape);
            let results = model.execute(&x).unwrap();
            let expected: Vec<f32> = values(&x).iter().map(|v| (v.max(0.0) + 1.0) * 2.0).collect();
            assert_eq!(values(&results[0]), expected);
            assert_eq!(results[1].shape(), [shape[1], shape[0]]);
        }
    }

    /// Constants are brought to the GPU when the graph is loaded; what depends on them alone is computed on the host.
    fn constants("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/constants.log")) {
        let graph = Graph::build("constants", [f32s((2, 3), GPU)], |graph, inputs| {
            let weights = ops::constant(graph, numbers(&[3, 3]), max::dtype::DType::F32, GPU)?;
            let host = ops::constant(graph, numbers(&[3]), max::dtype::DType::F32, DeviceRef::CPU)?;
            let bias = ops::mul(&host, 2.0)?.to(GPU)?;
            ops::add(ops::matmul(inputs[0].tensor()?, weights.t()?)?, &bias)
        });
        let model = load(&graph.unwrap());
        let uploads = || {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/constants.log")).unwrap();
            log.lines().filter(|line| line.starts_with("cuMemcpyHtoD")).count()
        };
        let x = numbers(&[2, 3]).to(&gpu()).unwrap();
        let before = uploads();
        let result = values(&model.execute(&x).unwrap()[0]);
        assert_eq!(uploads(), before, "nothing is uploaded by an execution");
        let (x, w) = (values(&x), values(&numbers(&[3, 3])));
        for (i, got) in result.iter().enumerate() {
            let dot: f32 = (0..3).map(|k| x[i / 3 * 3 + k] * w[i % 3 * 3 + k]).sum();
            let want = dot + 2.0 * values(&numbers(&[3]))[i % 3];
            assert!((got - want).abs() < 1e-5, "{got} {want}");
        }
    }

    fn views_copies_and_several_results() {
        let build = |device| {
            Graph::build("views", [f32s((4, 6), device), f32s((6,), device)], |_, inputs| {
                let [x, y] = [0, 1].map(|i| inputs[i].tensor().unwrap().clone());
                let joined = ops::concat([x.slice_tensor([DimSlice::from(1..3)])?, x.slice_tensor([DimSlice::from(0..1)])?], 0)?;
                let sums = ops::sum(x.t()?, 1)?;
                let pair = ops::custom("order", device, [x.t()?.t()?, ops::broadcast_to(&y, (4, 6))?], [x.ty(), x.ty()], ())?;
                Ok([Value::from(joined), sums.into(), x.t()?.into(), pair[0].clone(), pair[1].clone(), y.into()])
            })
            .unwrap()
        };
        let inputs = [numbers(&[4, 6]), numbers(&[6])];
        let expected = InferenceSession::new().load(&build(DeviceRef::CPU)).unwrap().execute(&inputs).unwrap();
        let results = load(&build(GPU)).execute(&on(&gpu(), &inputs)).unwrap();
        for (i, (result, expected)) in results.iter().zip(&expected).enumerate() {
            assert_eq!(result.shape(), expected.shape(), "result {i}");
            assert!(close(result, expected), "result {i}: {:?} {:?}", values(result), values(expected));
        }
    }

    fn buffers() {
        let buffer = BufferType::new(max::dtype::DType::F32, (3,), GPU);
        let graph = Graph::build("buffers", (f32s((3,), GPU), buffer), |_, inputs| {
            let (x, buffer) = (inputs[0].tensor()?, inputs[1].buffer()?);
            let before = buffer.load()?;
            ops::inplace_custom("accumulate", GPU, [inputs[1].clone(), inputs[0].clone()], (), ())?;
            let after = buffer.load()?;
            buffer.store(ops::mul(&after, x)?)?;
            buffer.store_slice(before.slice_tensor([..2])?, [DimSlice::from(1..)])?;
            Ok([before, after])
        });
        let model = load(&graph.unwrap());
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap().to(&gpu()).unwrap();
        let mut total = Tensor::full(10.0f32, [3]).unwrap().to(&gpu()).unwrap();
        let results = model.execute((&x, &mut total)).unwrap();
        assert_eq!((values(&results[0]), values(&results[1])), (vec![10.0; 3], vec![11.0, 12.0, 13.0]));
        assert_eq!(values(&total), [11.0, 10.0, 10.0]);
        let shared = total.clone();
        assert!(matches!(model.execute((&x, &mut total)), Err(EngineError::InputBuffer { .. })));
        drop(shared);
    }

    /// Weights found by name are brought to the device that they are declared on.
    fn weights_by_name() {
        let graph = Graph::build("g", [f32s(("n", 3), GPU)], |graph, inputs| {
            let [w, b] = [("w", 30), ("b", 1)].map(|(name, rows)| {
                let weight = Weight::new(name, DType::F32, [rows, 3], GPU);
                graph.add_weight(&weight)
            });
            ops::add(ops::matmul(&inputs[0], w?.t()?)?, ops::sum(b?, 1)?)
        });
        let given = HashMap::from([("w".to_owned(), numbers(&[30, 3])), ("b".to_owned(), numbers(&[1, 3]).to(&gpu()).unwrap())]);
        let model = InferenceSession::with_devices([gpu()]).load_with_weights(&graph.unwrap(), &given).unwrap();
        let x = numbers(&[2, 3]);
        let result = model.execute(&x.to(&gpu()).unwrap()).unwrap().remove(0);
        let (x, w, b) = (values(&x), values(&given["w"]), values(&given["b"]).iter().sum::<f32>());
        let at = |i: usize, j: usize| (0..3).map(|k| x[i * 3 + k] * w[j * 3 + k]).sum::<f32>() + b;
        let expected: Vec<f32> = (0..60).map(|i| at(i / 30, i % 30)).collect();
        assert!(close(&result, &Tensor::from_vec(expected, [2, 30]).unwrap()));
    }

    /// Views are copied on the device, those of another stream in the order of both.
    fn strided_inputs() {
        let stream = DeviceStream::new(&gpu()).unwrap();
        let graph = Graph::build("g", [f32s(("n", "m"), GPU)], |_, inputs| ops::add(&inputs[0], 1.0)).unwrap();
        let model = load(&graph);
        for (n, m) in [(3, 40), (1, 7), (5, 0)] {
            let x = numbers(&[m, n]);
            for there in [x.to(&gpu()).unwrap(), x.to_stream(&stream).unwrap()] {
                let expected: Vec<f32> =
                    x.transpose(0, 1).unwrap().to_vec::<f32>().unwrap().iter().map(|v| v + 1.0).collect();
                let in_use = gpu().stats().bytes_in_use;
                let results = model.execute(&there.transpose(0, 1).unwrap()).unwrap();
                assert_eq!((results[0].shape(), values(&results[0])), (&[n, m][..], expected));
                drop(results);
                assert_eq!(gpu().stats().bytes_in_use, in_use, "the copy was given back");
            }
        }
    }

    /// An input that another stream still writes is waited for, and that stream waits for the execution.
    fn inputs_of_another_stream() {
        let model = load(&Graph::build("relu", [f32s(("n",), GPU)], |_, inputs| ops::relu(&inputs[0])).unwrap());
        let stream = DeviceStream::new(&gpu()).unwrap();
        let x = numbers(&[100]).to_stream(&stream).unwrap();
        let x = x.slice(&[(..).into()]).unwrap().copy().unwrap();
        let mut results = model.execute(&x).unwrap();
        drop(x);
        let expected: Vec<f32> = values(&numbers(&[100])).iter().map(|v| v.max(0.0)).collect();
        assert_eq!(values(&results.remove(0)), expected);
    }

    /// Also an execution that fails is waited for by the streams of its inputs: what it has begun changes nothing later.
    fn what_a_failed_execution_has_begun_ends_first("FAKE_CUDA_FAIL" = "cuLaunchKernel=701@2") {
        let types = (BufferType::new(DType::F32, (3,), GPU), f32s((3,), GPU));
        let graph = Graph::build("two", types, |_, inputs| {
            ops::inplace_custom("accumulate", GPU, [inputs[0].clone(), inputs[1].clone()], (), ())?;
            ops::relu(inputs[0].buffer()?.load()?)
        });
        let model = load(&graph.unwrap());
        let stream = DeviceStream::new(&gpu()).unwrap();
        let [x, later] = [numbers(&[3]), Tensor::full(5.0f32, [3]).unwrap()].map(|x| x.to_stream(&stream).unwrap());
        let mut total = x.copy().unwrap();
        let error = model.execute((&mut total, &x)).unwrap_err();
        assert!(matches!(&error, EngineError::Gpu { op, .. } if &*op.op == "relu"), "{error}");
        total.inplace_copy_from(&later).unwrap();
        stream.synchronize().unwrap();
        gpu().synchronize().unwrap();
        assert_eq!(values(&total), [5.0; 3]);
    }

    fn two_gpus("FAKE_CUDA_DEVICES" = "2") {
        let other = DeviceRef::gpu(1);
        let graph = Graph::build("two", [f32s((50,), GPU)], |_, inputs| {
            let there = ops::relu(inputs[0].tensor()?.to(other)?)?;
            ops::add(there.to(GPU)?, inputs[0].tensor()?)
        });
        let devices = [0, 1].map(|id| Device::accelerator(id).unwrap());
        let model = InferenceSession::with_devices(devices).load(&graph.unwrap()).unwrap();
        // Each run uses the memory of the one before, which nothing has waited for.
        let results: Vec<_> = [1.0f32, 2.0, 3.0]
            .iter()
            .map(|by| {
                let x = values(&numbers(&[50])).iter().map(|v| v * by).collect();
                model.execute(&Tensor::from_vec(x, [50]).unwrap().to(&devices[0]).unwrap()).unwrap()
            })
            .collect();
        for (results, by) in results.iter().zip([1.0, 2.0, 3.0]) {
            let expected: Vec<f32> = values(&numbers(&[50])).iter().map(|v| (v * by).max(0.0) + v * by).collect();
            assert_eq!(values(&results[0]), expected);
        }
        // The plain session has no second GPU.
        let graph = Graph::build("other", [f32s((5,), other)], |_, inputs| ops::relu(&inputs[0])).unwrap();
        let error = InferenceSession::with_devices([gpu()]).load(&graph).unwrap_err();
        assert!(matches!(&error, EngineError::Device { op, device, .. } if *device == other && &*op.op == "input"), "{error}");
        assert!(error.to_string().contains("it runs on gpu:1, but the session has gpu:0, cpu:0"), "{error}");
    }

    fn mixed_devices_are_refused_when_the_graph_is_built() {
        let graph = Graph::build("mixed", [f32s((5,), GPU), f32s((5,), DeviceRef::CPU)], |_, inputs| {
            ops::add(&inputs[0], &inputs[1])
        });
        let error: GraphError = graph.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("add") && text.contains("gpu:0, cpu:0; move them to one device with `transfer_to`"), "{text}");
        assert!(text.contains(file!()), "{text}");
    }

    fn inputs_on_the_wrong_device() {
        let model = load(&Graph::build("relu", [f32s((3,), GPU)], |_, inputs| ops::relu(&inputs[0])).unwrap());
        let error = model.execute(&numbers(&[3])).unwrap_err();
        assert!(matches!(error, EngineError::InputDevice { .. }), "{error}");
        assert!(error.to_string().contains("which is on cpu:0; copy it there with `Tensor::to`"), "{error}");
    }

    /// The first op there is named: an input, or what brings a value there.
    fn a_session_without_the_gpu() {
        for (name, home) in [("input", GPU), ("transfer_to", DeviceRef::CPU)] {
            let graph = Graph::build("relu", [f32s((3,), home)], |_, inputs| {
                let x = inputs[0].tensor()?.clone();
                ops::relu(if home == GPU { x } else { x.to(GPU)? })
            });
            let error = InferenceSession::new().load(&graph.unwrap()).unwrap_err();
            let EngineError::Device { op, device: GPU, available } = &error else { panic!("{error}") };
            assert_eq!((&*op.op, &available[..]), (name, &[DeviceRef::CPU][..]));
            assert_eq!(
                error.to_string(),
                format!(
                    "model `relu`, `{name}` at {}: it runs on gpu:0, but the session has cpu:0; move it with `transfer_to`, \
                     or create the session with that device",
                    op.location
                )
            );
        }
    }

    /// A driver of the oldest version that serves takes products and rows.
    fn a_network_on_an_older_driver("FAKE_CUDA_VERSION" = "11040") {
        let inputs = mlp_inputs(7);
        let expected = InferenceSession::new().load(&mlp(DeviceRef::CPU)).unwrap().execute(&inputs).unwrap();
        let results = load(&mlp(GPU)).execute(&on(&gpu(), &inputs)).unwrap();
        assert!(close(&results[0], &expected[0]), "{:?}\n{:?}", values(&results[0]), values(&expected[0]));
    }

    /// Neither a result nor intermediate memory is left behind when there is no memory for all.
    fn out_of_memory("FAKE_CUDA_MEMORY" = "1000000") {
        let graph = Graph::build("large", [f32s(("n",), GPU)], |_, inputs| {
            let x = ops::add(&inputs[0], 1.0)?;
            Ok([ops::mul(&x, &x)?, x])
        });
        let model = load(&graph.unwrap());
        let x = numbers(&[100_000]).to(&gpu()).unwrap();
        let in_use = gpu().stats().bytes_in_use;
        let error = model.execute(&x).unwrap_err();
        let EngineError::Memory { of: Some(of), source: DriverError::OutOfMemory { device, .. }, .. } = &error else {
            panic!("{error}")
        };
        let MemoryOf::Result(op) = &**of else { panic!("{error}") };
        // Of the two results there is room for the first.
        assert_eq!((&*op.op, *device, gpu().stats().bytes_in_use), ("add", GPU, in_use));
        let text = error.to_string();
        let named = format!("model `large`, the result of `add` at {}: out of memory on gpu:0: 400000 bytes", op.location);
        assert!(text.starts_with(&named), "{text}");
        let x = numbers(&[1000]).to(&gpu()).unwrap();
        assert_eq!(values(&model.execute(&x).unwrap()[1])[0], values(&x)[0] + 1.0);
    }

    /// Of intermediate memory the error names the op of the largest value.
    fn out_of_intermediate_memory("FAKE_CUDA_MEMORY" = "1000000") {
        let types = [f32s(("n", 10), GPU), f32s((10, 1000), GPU), f32s((1000, 5), GPU)];
        let graph = Graph::build("wide", types, |_, inputs| {
            let [x, w, v] = [0, 1, 2].map(|i| inputs[i].tensor().unwrap().clone());
            ops::sum(ops::matmul(ops::softmax(ops::matmul(&x, &w)?, -1)?, &v)?, 1)
        });
        let model = load(&graph.unwrap());
        let inputs = |n: usize| on(&gpu(), &[numbers(&[n, 10]), numbers(&[10, 1000]), numbers(&[1000, 5])]);
        let given = inputs(300);
        let in_use = gpu().stats().bytes_in_use;
        let error = model.execute(&given).unwrap_err();
        let EngineError::Memory { of: Some(of), source: DriverError::OutOfMemory { device: GPU, .. }, .. } = &error else {
            panic!("{error}")
        };
        let MemoryOf::Intermediates(op) = &**of else { panic!("{error}") };
        assert!(["matmul", "softmax"].contains(&&*op.op) && op.location.file() == file!(), "{error}");
        let text = error.to_string();
        assert!(text.contains("model `wide`, intermediate values, the largest that of `") && text.contains(" on gpu:0"), "{text}");
        assert_eq!(gpu().stats().bytes_in_use, in_use);
        assert_eq!(values(&model.execute(&inputs(3)).unwrap()[0]).len(), 3);
    }

    fn a_kernel_over_the_limit_of_shared_memory_names_the_op_and_the_device() {
        let graph = Graph::build("large", [f32s((70, 70), GPU)], |_, inputs| {
            let x = inputs[0].tensor()?;
            Ok(ops::custom("too_large_tiles", GPU, [x, x], x.ty(), ())?[0].clone())
        });
        let in_use = gpu().stats().bytes_in_use;
        let error = InferenceSession::with_devices([gpu()]).load(&graph.unwrap()).unwrap_err();
        let EngineError::Gpu { op, device: GPU, source } = &error else { panic!("{error}") };
        assert!(matches!(**source, GpuError::Ptx(PtxError::SharedMemory { .. })), "{source}");
        assert_eq!((&*op.op, gpu().stats().bytes_in_use), ("too_large_tiles", in_use));
        let text = error.to_string();
        assert!(text.starts_with(&format!("model `large`, `too_large_tiles` at {} on gpu:0: ", op.location)), "{text}");
    }

    /// What was loaded before it is given back.
    fn a_refused_kernel_leaves_no_memory_behind("FAKE_CUDA_FAIL" = "cuModuleLoadDataEx=218@2+") {
        let graph = Graph::build("two", [f32s((3,), GPU)], |graph, inputs| {
            let constant = ops::constant(graph, numbers(&[3]), max::dtype::DType::F32, GPU)?;
            ops::add(ops::relu(ops::add(&inputs[0], &constant)?)?.reshape([3, 1])?, 1.0)
        });
        let graph = graph.unwrap();
        let in_use = gpu().stats().bytes_in_use;
        let error = InferenceSession::with_devices([gpu()]).load(&graph).unwrap_err();
        assert!(matches!(&error, EngineError::Gpu { op, device: GPU, .. } if &*op.op == "add"), "{error}");
        assert_eq!(gpu().stats().bytes_in_use, in_use);
    }

    fn a_refused_kernel_names_the_op_and_the_device("FAKE_CUDA_FAIL" = "cuModuleLoadDataEx=218@1") {
        let graph = Graph::build("relu", [f32s((3,), GPU)], |_, inputs| ops::relu(&inputs[0])).unwrap();
        let error = InferenceSession::with_devices([gpu()]).load(&graph).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EngineError::Gpu { device: GPU, .. }), "{text}");
        assert!(text.starts_with("model `relu`, `relu` at ") && text.contains(" on gpu:0: load kernel on gpu:0: the PTX of kernel"), "{text}");
    }

    fn a_refused_launch_names_the_op_and_the_device("FAKE_CUDA_FAIL" = "cuLaunchKernel=701@2") {
        let graph = two_kernels();
        let model = load(&graph);
        let x = numbers(&[3]).to(&gpu()).unwrap();
        let in_use = gpu().stats().bytes_in_use;
        let error = model.execute(&x).unwrap_err();
        let EngineError::Gpu { op, device: GPU, source } = &error else { panic!("{error}") };
        assert_eq!((&*op.op, gpu().stats().bytes_in_use), ("add", in_use));
        assert!(matches!(**source, GpuError::Driver(DriverError::Cuda { op: "launch", .. })), "{source}");
        // The next one works.
        assert!(model.execute(&x).is_ok());
    }

    fn profilers_see_ranges_around_launches(
        "NVTX_INJECTION64_PATH" = "libcuda.so.1", "FAKE_NVTX_LOG" = NVTX_LOG, "MAX_ENABLE_PROFILING" = "detailed"
    ) {
        let ranges = |session: InferenceSession| {
            let model = session.load(&two_kernels()).unwrap();
            drop(std::fs::remove_file(NVTX_LOG));
            model.execute(&numbers(&[3]).to(&gpu()).unwrap()).unwrap();
            std::fs::read_to_string(NVTX_LOG).unwrap_or_default()
        };
        let session = || InferenceSession::with_devices([gpu()]);
        let file = file!();
        let lines = |text: &str| -> Vec<String> {
            // The lines of the ops are those of `two_kernels`.
            text.lines().map(|line| line.split(&format!(" ({file}:")).next().unwrap_or_default().to_owned()).collect()
        };
        let each = ["begin relu", "end", "begin add", "end"];
        let detailed = [&["begin two"][..], &each, &["end"]].concat();
        assert_eq!(lines(&ranges(session())), detailed, "by the environment");
        assert_eq!(lines(&ranges(session().gpu_profiling(GpuProfiling::On))), each);
        assert_eq!(lines(&ranges(session().gpu_profiling(GpuProfiling::Detailed))), detailed);
        assert_eq!(ranges(session().gpu_profiling(GpuProfiling::Off)), "");
        let on_host = InferenceSession::new().gpu_profiling(GpuProfiling::On);
        let graph = mlp(DeviceRef::CPU);
        assert!(on_host.load(&graph).unwrap().execute(&mlp_inputs(2)).is_ok());
        assert!(!std::path::Path::new(NVTX_LOG).exists(), "no range for what runs on the host");
    }

    /// What runs on the host has ranges where all is asked for.
    fn profilers_see_ranges_around_steps_of_the_host(
        "NVTX_INJECTION64_PATH" = "libcuda.so.1", "FAKE_NVTX_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/nvtx_host.log")
    ) {
        let log = concat!(env!("CARGO_TARGET_TMPDIR"), "/nvtx_host.log");
        let graph = Graph::build("mixed", [f32s((3,), GPU)], |_, inputs| {
            ops::add(ops::relu(&inputs[0])?.to(DeviceRef::CPU)?, 1.0)
        });
        let graph = graph.unwrap();
        let ranges = |mode| {
            let model = InferenceSession::with_devices([gpu()]).gpu_profiling(mode).load(&graph).unwrap();
            let x = numbers(&[3]).to(&gpu()).unwrap();
            drop(std::fs::remove_file(log));
            model.execute(&x).unwrap();
            std::fs::read_to_string(log).unwrap_or_default()
        };
        let lines = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(&format!(" ({}:", file!())).next().unwrap_or_default().to_owned()).collect()
        };
        let detailed = ["begin mixed", "begin relu", "end", "begin transfer_to", "end", "begin add", "end", "end"];
        assert_eq!(lines(&ranges(GpuProfiling::Detailed)), detailed);
        assert_eq!(lines(&ranges(GpuProfiling::On))[..2], detailed[1..3]);
        assert!(!ranges(GpuProfiling::On).contains("add"));
    }

    /// A profiler that cannot write attaches to nothing.
    fn a_profiler_without_a_file("NVTX_INJECTION64_PATH" = "libcuda.so.1", "FAKE_NVTX_LOG" = "/no/such/folder/log", "MAX_ENABLE_PROFILING" = "on") {
        let model = InferenceSession::with_devices([gpu()]).load(&two_kernels()).unwrap();
        assert!(model.execute(&numbers(&[3]).to(&gpu()).unwrap()).is_ok());
    }

    fn a_mode_of_profiling_that_is_none("MAX_ENABLE_PROFILING" = "yes") {
        let error = InferenceSession::new().load(&mlp(DeviceRef::CPU)).unwrap_err();
        assert!(error.to_string().contains("`yes`; give it `off`, `on` or `detailed`"), "{error}");
    }

    /// A kernel that faults does so after the call has returned: what it should have written can never be read.
    fn a_fault_in_a_kernel("FAKE_CUDA_FAIL" = "kernel=700@2") {
        let graph = two_kernels();
        let model = load(&graph);
        let x = numbers(&[3]).to(&gpu()).unwrap();
        let in_use = gpu().stats().bytes_in_use;
        let results = model.execute(&x).unwrap();
        // It is one of those that ran since the device was last waited for.
        let named = |source: &DriverError| {
            let DriverError::DeviceLost { launched, .. } = source else { panic!("{source}") };
            let [relu, add] = launched.ops[..] else { panic!("{launched}") };
            assert_eq!((relu.op, add.op, launched.earlier), ("relu", "add", 0));
            let text = source.to_string();
            let lines = [relu, add].map(|op| format!("`{}` at {}", op.op, op.location.unwrap()));
            assert!(text.contains(&format!(" in one of {}, {}; start", lines[0], lines[1])) && text.contains(file!()), "{text}");
        };
        named(&results[0].to(&Device::cpu()).unwrap_err());
        let error = model.execute(&x).unwrap_err();
        let EngineError::Driver { device: GPU, call: "execute", source, .. } = &error else { panic!("{error}") };
        named(source);
        let text = error.to_string();
        assert!(text.starts_with("model `two` on gpu:0, `execute`: allocate: gpu:0 is lost"), "{text}");
        drop(results);
        assert_eq!(gpu().stats().bytes_in_use, in_use);
    }

    /// What was waited for did not fail, so the one op that ran since is named.
    fn ops_before_the_last_wait_are_not_named("FAKE_CUDA_FAIL" = "kernel=700@3") {
        let (two, one) = (load(&two_kernels()), Graph::build("one", [f32s((3,), GPU)], |_, inputs| ops::mul(&inputs[0], 2.0)));
        let one = load(&one.unwrap());
        let x = numbers(&[3]).to(&gpu()).unwrap();
        assert_eq!(values(&two.execute(&x).unwrap()[0]).len(), 3);
        let error = one.execute(&x).unwrap()[0].to(&Device::cpu()).unwrap_err();
        let DriverError::DeviceLost { launched, device: GPU, .. } = &error else { panic!("{error}") };
        let only = launched.only().unwrap();
        assert_eq!((only.op, only.location.unwrap().file()), ("mul", file!()));
        assert!(error.to_string().contains(&format!(" in {only}; start the program again")), "{error}");
    }

    /// As the error of a lost device says, `MAX_GPU_SYNC=1` finds the op.
    fn the_op_that_loses_the_device_is_named("FAKE_CUDA_FAIL" = "kernel=700@2", "MAX_GPU_SYNC" = "1") {
        let model = load(&two_kernels());
        let x = numbers(&[3]).to(&gpu()).unwrap();
        let in_use = gpu().stats().bytes_in_use;
        let error = model.execute(&x).unwrap_err();
        let EngineError::Gpu { op, device: GPU, source } = &error else { panic!("{error}") };
        assert!(matches!(**source, GpuError::Driver(DriverError::DeviceLost { device: GPU, .. })), "{source}");
        assert_eq!((&*op.op, op.location.file(), gpu().stats().bytes_in_use), ("add", file!(), in_use));
        let text = error.to_string();
        assert!(text.starts_with("model `two`, `add` at ") && text.contains(" on gpu:0: synchronize: gpu:0 is lost"), "{text}");
    }
}
