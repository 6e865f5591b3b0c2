//! Collectives and sharded weights on several GPUs, against one device.

use std::collections::HashMap;

use crate::ops::*;
use max::driver::{Device, DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::ops::Signals;
use max::graph::weights::ShardingStrategy;
use max::graph::{Graph, GraphError, TensorValue, Weight, ops};

fn devices(count: usize) -> Vec<DeviceRef> {
    (0..count as u32).map(DeviceRef::gpu).collect()
}

fn session(count: usize) -> InferenceSession {
    InferenceSession::with_devices((0..count as u32).map(|id| Device::accelerator(id).unwrap()))
}

fn weights() -> HashMap<String, Tensor> {
    HashMap::from([("up".to_owned(), numbers(&[16, 8])), ("down".to_owned(), numbers(&[6, 16]))])
}

/// Two layers, the first divided by rows and the second by columns, and whatever is done with the parts of their results.
fn layers(
    count: usize,
    then: impl FnOnce(&[TensorValue], &[TensorValue]) -> Result<Vec<TensorValue>, GraphError>,
) -> Graph {
    let ty = f32s(("n", 8), DeviceRef::CPU);
    Graph::build("layers", [ty], |graph, inputs| {
        let shards = |name: &str, shape: [i64; 2], strategy: ShardingStrategy| {
            let weight = Weight::new(name, DType::F32, shape, DeviceRef::CPU).with_sharding_strategy(strategy);
            weight.shard(devices(count))
        };
        let up = shards("up", [16, 8], ShardingStrategy::rowwise(count))?;
        let down = shards("down", [6, 16], ShardingStrategy::columnwise(count))?;
        let x = ops::distribute_value(&inputs[0], &devices(count))?;
        let (mut hidden, mut sums) = (Vec::new(), Vec::new());
        for i in 0..count {
            let part = ops::relu(ops::matmul(&x[i], graph.add_weight(&up[i])?.t()?)?)?;
            sums.push(ops::matmul(&part, graph.add_weight(&down[i])?.t()?)?);
            hidden.push(part);
        }
        let results = then(&hidden, &sums)?;
        results.iter().map(|value| ops::transfer_to(value, DeviceRef::CPU)).collect::<Result<Vec<_>, _>>()
    })
    .unwrap()
}

/// What one device computes: the hidden values and the results.
fn expected(n: usize) -> Vec<Tensor> {
    let ty = f32s((n, 8), DeviceRef::CPU);
    let graph = Graph::build("whole", [ty], |graph, inputs| {
        let [up, down] = [("up", [16, 8]), ("down", [6, 16])]
            .map(|(name, shape)| graph.add_weight(&Weight::new(name, DType::F32, shape, DeviceRef::CPU)));
        let hidden = ops::relu(ops::matmul(&inputs[0], up?.t()?)?)?;
        Ok(vec![hidden.clone(), ops::matmul(hidden, down?.t()?)?])
    });
    let model = InferenceSession::new().load_with_weights(&graph.unwrap(), &weights()).unwrap();
    model.execute(&numbers(&[n, 8])).unwrap()
}

/// Several GPUs compute what one device computes, all of them the same.
fn compare(count: usize) {
    let n = 3;
    let gathered = layers(count, |hidden, _| ops::allgather(hidden, [], 1));
    let reduced = layers(count, |_, sums| ops::allreduce(sums, []));
    let expected = expected(n);
    for (graph, expected) in [(gathered, &expected[0]), (reduced, &expected[1])] {
        let model = session(count).load_with_weights(&graph, &weights()).unwrap();
        let results = model.execute(&numbers(&[n, 8])).unwrap();
        assert_eq!(results.len(), count);
        for result in &results {
            assert!(close(result, expected), "{:?}\n{:?}", values(result), values(expected));
            assert_eq!(values(result), values(&results[0]));
        }
    }
}

gpu_test! {
    fn two_gpus_compute_what_one_device_does("FAKE_CUDA_DEVICES" = "2") {
        compare(2);
        // Each device gets its part of the sum.
        let graph = layers(2, |_, sums| ops::reduce_scatter(sums, [], 1));
        let model = session(2).load_with_weights(&graph, &weights()).unwrap();
        let results = model.execute(&numbers(&[3, 8])).unwrap();
        let whole = values(&expected(3)[1]);
        for (i, result) in results.iter().enumerate() {
            let part: Vec<f32> = whole.chunks(6).flat_map(|row| row[3 * i..3 * i + 3].to_vec()).collect();
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
            assert!(values(result).iter().zip(&part).all(near), "{:?}\n{part:?}", values(result));
        }
    }

    fn four_gpus_compute_what_one_device_does("FAKE_CUDA_DEVICES" = "4") {
        compare(4);
    }

    fn eight_gpus_compute_what_one_device_does("FAKE_CUDA_DEVICES" = "8") {
        compare(8);
    }
}

#[test]
fn mistakes_are_said_at_the_callers_line() {
    let types = [(0, 4), (1, 4), (1, 4), (2, 3)].map(|(id, n)| f32s((n,), DeviceRef::gpu(id)));
    let graph = Graph::new("g", types);
    let [a, b, again, short] = [0, 1, 2, 3].map(|i| graph.inputs()[i].tensor().unwrap().clone());
    let fails = |result: Result<Vec<TensorValue>, GraphError>, part: &str| {
        let message = result.err().unwrap().to_string();
        assert!(message.contains(part) && message.contains("collectives.rs"), "{message}");
    };
    fails(ops::allreduce([&b, &again], []), "one on each device");
    fails(ops::allreduce([&a, &short], []), "[3]");
    fails(ops::reduce_scatter([&a, &b, &short], [], 0), "[3]");
    fails(ops::allgather::<TensorValue>([], [], 0), "at least one tensor");
    let signals = Signals::new(devices(1)).input_types().remove(0);
    let with_buffers = Graph::new("s", (f32s((4,), DeviceRef::gpu(1)), signals));
    let x = with_buffers.inputs()[0].tensor().unwrap().clone();
    let buffer = with_buffers.inputs()[1].buffer().unwrap().clone();
    fails(ops::allgather([&x], [&buffer], 0), "buffers on the devices of the inputs");

    let weight = |shape: [i64; 2]| Weight::new("w", DType::F32, shape, DeviceRef::CPU);
    let fails = |result: Result<Vec<Weight>, GraphError>, part: &str| {
        let message = result.err().unwrap().to_string();
        assert!(message.contains(part) && message.contains("collectives.rs"), "{message}");
    };
    fails(weight([6, 4]).shard(devices(2)), "with_sharding_strategy");
    let rows = weight([6, 4]).with_sharding_strategy(ShardingStrategy::rowwise(4));
    fails(rows.shard(devices(4)), "divisible by the number of devices, 4");
    fails(rows.shard(devices(2)), "4 of them");
    let stacked = weight([6, 4]).with_sharding_strategy(ShardingStrategy::stacked_qkv(2, 2, 1, 2));
    fails(stacked.shard(devices(2)), "blocks of [4, 2, 2] rows");
    let parts =
        weight([8, 4]).with_sharding_strategy(ShardingStrategy::stacked_qkv(2, 2, 1, 2)).shard(devices(2)).unwrap();
    assert_eq!((parts[1].ty.shape.to_string(), parts[1].shard_idx()), ("[4, 4]".to_owned(), Some(1)));
    fails(parts[0].shard(devices(2)), "no part of one");
}
