//! Captured executions and their replays.

use crate::ops::*;
use max::driver::{Device, DeviceRef, DeviceStream, DriverError, Tensor};
use max::dtype::DType;
use max::engine::{EngineError, InferenceSession, MemoryOf, Model};
use max::graph::{BufferType, Graph, ops};

/// Intermediate memory, a reduction, and a copy of a view.
fn model() -> Model {
    let graph = Graph::build("steps", [f32s(("n", 4), GPU), f32s((4,), GPU)], |_, inputs| {
        let sum = ops::add(ops::relu(&inputs[0])?, &inputs[1])?;
        Ok([ops::softmax(ops::mul(&sum, 2.0)?, -1)?, sum.t()?])
    });
    load(&graph.unwrap())
}

fn relu() -> Graph {
    Graph::build("relu", [f32s(("n",), GPU)], |_, inputs| ops::relu(&inputs[0])).unwrap()
}

fn inputs(n: usize, by: f32) -> [Tensor; 2] {
    let scaled = values(&numbers(&[n, 4])).iter().map(|v| v * by).collect();
    [Tensor::from_vec(scaled, [n, 4]).unwrap().to(&gpu()).unwrap(), numbers(&[4]).to(&gpu()).unwrap()]
}

fn launches(log: &str) -> usize {
    std::fs::read_to_string(log).unwrap().lines().filter(|line| line.starts_with("cuLaunchKernel")).count()
}

gpu_test! {
    fn a_replay_computes_what_an_execution_does("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/replay.log")) {
        let model = model();
        let check = |results: &[Tensor], inputs: &[Tensor; 2]| {
            for (result, expected) in results.iter().zip(&model.execute(inputs).unwrap()) {
                assert_eq!((result.shape(), values(result)), (expected.shape(), values(expected)));
            }
        };
        let first = inputs(3, 1.0);
        let at_capture = model.capture(1, &first).unwrap();
        check(&at_capture, &first);
        let before = launches(concat!(env!("CARGO_TARGET_TMPDIR"), "/replay.log"));
        let others = [2.0, -1.0, 0.5].map(|by| inputs(3, by));
        let replays = others.each_ref().map(|inputs| model.replay(1, inputs).unwrap());
        let after = launches(concat!(env!("CARGO_TARGET_TMPDIR"), "/replay.log"));
        assert_eq!(before, after, "a replay launches no kernel by itself");
        // Each has results of its own.
        replays.iter().zip(&others).for_each(|(results, inputs)| check(results, inputs));
        check(&at_capture, &first);
        model.debug_verify_replay(1, &first).unwrap();
    }

    fn keys_and_shapes() {
        let model = model();
        let error = model.replay(7, &inputs(3, 1.0)).unwrap_err();
        let text = "model `steps` on gpu:0, `replay`: nothing was captured under key 7; there are []: call `capture` first";
        assert_eq!(error.to_string(), text);
        let error = model.debug_verify_replay(7, &inputs(3, 1.0)).unwrap_err();
        let EngineError::NotCaptured { device: GPU, call: "debug_verify_replay", key: 7, .. } = &error else { panic!("{error}") };
        assert_eq!(error.to_string(), text.replace("replay", "debug_verify_replay"));
        model.capture(3, &inputs(3, 1.0)).unwrap();
        model.capture(5, &inputs(5, 1.0)).unwrap();
        assert_eq!(values(&model.replay(5, &inputs(5, 2.0)).unwrap()[1]).len(), 20);
        assert_eq!(values(&model.replay(3, &inputs(3, 2.0)).unwrap()[1]).len(), 12);
        let error = model.replay(3, &inputs(5, 1.0)).unwrap_err();
        assert!(matches!(&error, EngineError::ReplayShape { key: 3, captured, .. } if captured[..] == [3, 4]), "{error}");
        assert!(matches!(model.debug_verify_replay(3, &inputs(5, 1.0)), Err(EngineError::ReplayShape { .. })));
        let on_host = inputs(3, 1.0).map(|x| x.to(&Device::cpu()).unwrap());
        assert!(matches!(model.replay(3, &on_host), Err(EngineError::InputDevice { .. })));
        assert!(matches!(model.replay(4, &on_host), Err(EngineError::NotCaptured { known, .. }) if known == [3, 5]));
        // The same key again.
        model.capture(3, &inputs(2, 1.0)).unwrap();
        assert_eq!(values(&model.replay(3, &inputs(2, 2.0)).unwrap()[1]).len(), 8);
    }

    fn buffers_are_changed() {
        let types = (BufferType::new(DType::F32, (3,), GPU), f32s((3,), GPU));
        let graph = Graph::build("accumulate", types, |_, inputs| {
            ops::inplace_custom("accumulate", GPU, [inputs[0].clone(), inputs[1].clone()], (), ())?;
            inputs[0].buffer()?.load()
        });
        let model = load(&graph.unwrap());
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap().to(&gpu()).unwrap();
        let mut total = Tensor::full(10.0f32, [3]).unwrap().to(&gpu()).unwrap();
        let results = model.capture(0, (&mut total, &x)).unwrap();
        assert_eq!((values(&results[0]), values(&total)), (vec![11.0, 12.0, 13.0], vec![11.0, 12.0, 13.0]));
        model.replay(0, (&mut total, &x)).unwrap();
        assert_eq!(values(&total), [12.0, 14.0, 16.0]);
    }

    /// Buffers, such as caches, are changed where they are; with one that is elsewhere the model is captured anew.
    fn buffers_are_not_copied("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/buffers.log")) {
        let types = (BufferType::new(DType::F32, (3,), GPU), f32s((3,), GPU));
        let graph = Graph::build("accumulate", types, |_, inputs| {
            ops::inplace_custom("accumulate", GPU, [inputs[0].clone(), inputs[1].clone()], (), ())?;
            inputs[0].buffer()?.load()
        });
        let model = load(&graph.unwrap());
        let count = |what: &str| {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/buffers.log")).unwrap();
            log.lines().filter(|line| line.starts_with(what)).count()
        };
        let of = |value: f32| Tensor::full(value, [3]).unwrap().to(&gpu()).unwrap();
        let (x, mut first, mut second) = (of(1.0), of(10.0), of(20.0));
        model.capture(0, (&mut first, &x)).unwrap();
        let (copies, captures) = (count("cuMemcpyDtoDAsync_v2"), count("cuStreamBeginCapture_v2"));
        for round in 0..3 {
            let results = model.replay(0, (&mut first, &x)).unwrap();
            assert_eq!((values(&results[0]), values(&first)), (vec![12.0 + round as f32; 3], vec![12.0 + round as f32; 3]));
        }
        // Of the input and of the result alone.
        assert_eq!((count("cuMemcpyDtoDAsync_v2") - copies, count("cuStreamBeginCapture_v2")), (6, captures));
        for (expected, buffer) in [(21.0, &mut second), (15.0, &mut first)] {
            model.replay(0, (&mut *buffer, &x)).unwrap();
            assert_eq!(values(buffer), [expected; 3]);
        }
        assert_eq!(count("cuStreamBeginCapture_v2"), captures + 2);
        // One that is bound to a stream of its own: both wait for each other.
        let stream = DeviceStream::new(&gpu()).unwrap();
        let mut third = Tensor::full(30.0f32, [3]).unwrap().to_stream(&stream).unwrap();
        model.replay(0, (&mut third, &x)).unwrap();
        assert_eq!(values(&third), [31.0; 3]);
    }

    /// What is captured runs on the default stream: it waits for inputs that come on others, and those wait for it.
    fn inputs_of_another_stream() {
        let model = model();
        let stream = DeviceStream::new(&gpu()).unwrap();
        let there = |by: f32| inputs(3, by).map(|x| x.to(&Device::cpu()).unwrap().to_stream(&stream).unwrap());
        let expected = |by: f32| model.execute(&inputs(3, by)).unwrap().iter().map(values).collect::<Vec<_>>();
        let check = |results: &[Tensor], by: f32| assert_eq!(results.iter().map(values).collect::<Vec<_>>(), expected(by));
        // Both run before anything has waited for them.
        let (first, second) = (there(1.0), there(-2.0));
        let results = [model.capture(1, &first).unwrap(), model.replay(1, &second).unwrap()];
        drop((first, second));
        check(&results[0], 1.0);
        check(&results[1], -2.0);
    }

    /// What is read may be a view, at the capture, at a replay and where both are compared; what is changed may not.
    fn views() {
        let model = model();
        let [_, y] = inputs(3, 1.0);
        let view = numbers(&[4, 3]).to(&gpu()).unwrap().transpose(0, 1).unwrap();
        let expected = model.execute([&view.copy().unwrap(), &y]).unwrap();
        for _ in 0..2 {
            let found = [model.execute([&view, &y]), model.capture(1, [&view, &y]), model.replay(1, [&view, &y])];
            for (results, by) in found.map(Result::unwrap).iter().zip(["execute", "capture", "replay"]) {
                for (result, expected) in results.iter().zip(&expected) {
                    assert_eq!((result.shape(), values(result)), (expected.shape(), values(expected)), "{by}");
                }
            }
            model.debug_verify_replay(1, [&view, &y]).unwrap();
        }

        let types = (BufferType::new(DType::F32, (3, 4), GPU), f32s((3, 4), GPU));
        let graph = Graph::build("store", types, |_, inputs| inputs[0].buffer()?.store(inputs[1].tensor()?));
        let model = load(&graph.unwrap());
        let mut buffer = numbers(&[4, 3]).to(&gpu()).unwrap().transpose(0, 1).unwrap();
        let refused = |error| assert!(matches!(error, Err(EngineError::InputNotContiguous { .. })), "{error:?}");
        refused(model.capture(0, (&mut buffer, &view)));
        // Refused before it is captured.
        assert!(matches!(model.replay(0, (&mut buffer, &view)), Err(EngineError::NotCaptured { .. })));
        let mut whole = buffer.copy().unwrap();
        drop(model.capture(0, (&mut whole, &view)).unwrap());
        assert_eq!(values(&whole), values(&view));
        refused(model.replay(0, (&mut buffer, &view)));
        let other = whole.clone();
        let shared = model.replay(0, (&mut whole, &view)).unwrap_err();
        assert!(matches!(shared, EngineError::InputBuffer { .. }), "{shared}");
        drop(other);
    }

    fn what_cannot_be_captured() {
        let unsafe_at = |graph: Graph| {
            let model = InferenceSession::with_devices([gpu()]).load(&graph).unwrap();
            let inputs: Vec<Tensor> =
                model.input_devices().iter().map(|device| numbers(&[3]).to(device).unwrap()).collect();
            model.capture(0, &inputs).unwrap_err()
        };
        let error = unsafe_at(Graph::build("host", [f32s((3,), DeviceRef::CPU)], |_, inputs| ops::relu(&inputs[0])).unwrap());
        let EngineError::CaptureUnsafe { op, device: DeviceRef::CPU, .. } = &error else { panic!("{error}") };
        assert_eq!(&*op.op, "relu");
        assert!(error.to_string().contains("on cpu:0: it cannot be captured, because it runs on the host"), "{error}");
        let error = unsafe_at(Graph::build("mixed", [f32s((3,), GPU)], |_, inputs| {
            ops::relu(ops::relu(inputs[0].tensor()?)?.to(DeviceRef::CPU)?)
        }).unwrap());
        let EngineError::CaptureUnsafe { op, device: DeviceRef::CPU, .. } = &error else { panic!("{error}") };
        assert_eq!(&*op.op, "transfer_to");
        let text = error.to_string();
        let named = format!("model `mixed`, `transfer_to` at {} on cpu:0: it cannot be captured, because ", op.location);
        assert!(text.starts_with(&named) && text.ends_with("a transfer between devices waits for them"), "{text}");
        let error = unsafe_at(Graph::build("view", [f32s((3,), GPU), f32s((3,), DeviceRef::CPU)], |_, inputs| {
            ops::relu(&inputs[0])
        }).unwrap());
        assert_eq!(
            error.to_string(),
            "model `view`: `input1` is on cpu:0, but all inputs and results of a capture have to be on one GPU"
        );
        let graph = Graph::build("none", (), |graph, _| {
            ops::constant(graph, 1.0f32, DType::F32, GPU)
        });
        let model = load(&graph.unwrap());
        let text = "model `none` has no inputs, and only what depends on inputs is captured; execute it";
        for error in [model.capture(0, ()).map(drop), model.replay(0, ()).map(drop), model.debug_verify_replay(0, ())] {
            assert_eq!(error.unwrap_err().to_string(), text);
        }
    }

    /// After a capture that fails, the model executes as before.
    fn a_capture_that_fails("FAKE_CUDA_FAIL" = "cuStreamEndCapture=901@1,cuGraphInstantiateWithFlags=2@1") {
        let model = model();
        for _ in 0..2 {
            let in_use = gpu().stats().bytes_in_use;
            let error = model.capture(1, &inputs(3, 1.0)).unwrap_err();
            assert!(matches!(error, EngineError::Driver { device: GPU, call: "capture", .. }), "{error}");
            assert!(error.to_string().starts_with("model `steps` on gpu:0, `capture`: capture on gpu:0: cu"), "{error}");
            assert_eq!(gpu().stats().bytes_in_use, in_use);
            assert!(matches!(model.replay(1, &inputs(3, 1.0)), Err(EngineError::NotCaptured { .. })));
            assert_eq!(values(&model.execute(&inputs(3, 1.0)).unwrap()[1]).len(), 12);
        }
        model.capture(1, &inputs(3, 1.0)).unwrap();
    }

    /// What a replay that faults should have written can never be read, and nothing hangs or is left behind.
    fn a_fault_in_a_replay("FAKE_CUDA_FAIL" = "kernel=700@4") {
        let model = model();
        let given = inputs(3, 1.0);
        let captured = model.capture(1, &given).unwrap();
        assert_eq!(values(&captured[1]).len(), 12);
        let in_use = gpu().stats().bytes_in_use;
        let results = model.replay(1, &given).unwrap();
        // It is one of the ops that were captured, which run again.
        let named = |source: &DriverError| {
            let DriverError::DeviceLost { launched, .. } = source else { panic!("{source}") };
            assert_eq!(launched.ops.iter().map(|launch| launch.op).collect::<Vec<_>>(), ["relu", "softmax", "copy"]);
            assert!(launched.ops.iter().all(|launch| launch.location.unwrap().file() == file!()));
        };
        named(&results[0].to(&Device::cpu()).unwrap_err());
        let errors = [
            ("replay", model.replay(1, &given).unwrap_err()),
            ("debug_verify_replay", model.debug_verify_replay(1, &given).unwrap_err()),
            ("capture", model.capture(2, &given).unwrap_err()),
            ("execute", model.execute(&given).unwrap_err()),
            ("load", InferenceSession::with_devices([gpu()]).load(&relu()).unwrap_err()),
        ];
        for (by, error) in errors {
            let EngineError::Driver { device: GPU, call, source, .. } = &error else { panic!("{by}: {error}") };
            assert_eq!(*call, by);
            named(source);
            let text = error.to_string();
            assert!(text.contains(&format!("` on gpu:0, `{by}`: ")) && text.contains("gpu:0 is lost"), "{text}");
            assert!(text.contains(" in one of `relu` at "), "{text}");
        }
        drop(results);
        assert_eq!(gpu().stats().bytes_in_use, in_use);
    }

    fn a_fault_in_a_replay_that_is_waited_for("FAKE_CUDA_FAIL" = "kernel=700@4", "MAX_GPU_SYNC" = "1") {
        let model = model();
        let given = inputs(3, 1.0);
        let captured = model.capture(1, &given).unwrap();
        assert_eq!(values(&captured[1]).len(), 12);
        let error = model.replay(1, &given).unwrap_err().to_string();
        assert!(error.starts_with("model `steps` on gpu:0, `replay`: synchronize: gpu:0 is lost"), "{error}");
        assert!(error.contains(" in one of `relu` at "), "{error}");
    }

    /// What there is no memory for in a capture, and in a replay, is named.
    fn out_of_memory("FAKE_CUDA_MEMORY" = "1000000") {
        let model = load(&relu());
        let of = |count: usize| {
            let x = numbers(&[count]).to(&gpu()).unwrap();
            let error = model.capture(1, &x).unwrap_err();
            let EngineError::Memory { of: Some(of), source: DriverError::OutOfMemory { .. }, .. } = error else {
                panic!("{error}")
            };
            gpu().release_cached_memory();
            *of
        };
        // Of copies of the input and the result, there is room for none, one, and both, but not for the result of a replay.
        assert!(matches!(of(150_000), MemoryOf::InputCopy(input) if input.index == 0));
        assert!(matches!(of(100_000), MemoryOf::Result(op) if &*op.op == "relu"));
        assert!(matches!(of(75_000), MemoryOf::Result(op) if &*op.op == "relu"));
        assert!(matches!(model.replay(1, &numbers(&[75_000]).to(&gpu()).unwrap()), Err(EngineError::Memory { .. })));
    }

    /// A capture keeps its memory, and gives it back.
    fn memory_of_a_capture() {
        let model = model();
        let given = inputs(3, 1.0);
        let before = gpu().stats().bytes_in_use;
        drop(model.capture(1, &given).unwrap());
        let captured = gpu().stats().bytes_in_use;
        assert!(captured > before);
        // What had the same key goes.
        drop(model.capture(1, &given).unwrap());
        assert_eq!(gpu().stats().bytes_in_use, captured);
        drop(model);
        // The model's constant is a parameter of its kernel, in no memory.
        assert_eq!(gpu().stats().bytes_in_use, before);
    }
}
