//! Graphs on the GPU, against the CPU: an op of one's own among built-in ones, transfers, captures, and the price of a launch.

use std::time::Instant;

use gpu_tests::gpu;
use max::driver::{Device, DeviceRef, DeviceStream, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, TensorType, ops};
use max::kernel;

/// Lifts what is dark: the kernel of the first example, not changed for the GPU.
#[kernel(op = "lift_shadows")]
fn lift_shadows<T: Float>(x: T, #[param] gain: f64) -> T {
    let gain = gain as T;
    gain * x / (1.0 + (gain - 1.0) * x)
}

fn graph(device: DeviceRef) -> Graph {
    let x = TensorType::new(DType::F32, ("batch", 64), device);
    let w = TensorType::new(DType::F32, (64, 96), device);
    Graph::build("graph", [x, w], |_, inputs| {
        let hidden = ops::matmul(&inputs[0], &inputs[1])?;
        let lifted = ops::custom("lift_shadows", device, ops::sigmoid(&hidden)?, hidden.ty(), [("gain", 4.0)])?;
        ops::softmax(ops::mul(lifted[0].tensor()?, 3.0)?, -1)
    })
    .expect("a graph")
}

fn numbers(shape: [usize; 2]) -> Tensor {
    let value = |i: usize| ((i * 37 + 11) % 64) as f32 / 64.0 - 0.5;
    Tensor::from_vec((0..shape[0] * shape[1]).map(value).collect(), shape).expect("a tensor")
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to(&Device::cpu()).expect("work that was done").to_vec().expect("floats")
}

fn load(device: Device) -> Model {
    InferenceSession::with_devices([device]).load(&graph((&device).into())).expect("a model")
}

#[track_caller]
fn close(a: &Tensor, b: &Tensor) {
    for (a, b) in values(a).iter().zip(values(b)) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1e-3), "{a} {b}");
    }
}

#[test]
fn a_graph_with_an_op_of_ones_own() {
    let Some(device) = gpu() else { return };
    let (host, model) = (load(Device::cpu()), load(device));
    let weights = numbers([64, 96]);
    let on_device = weights.to(&device).expect("device memory");
    for batch in [1, 7, 300] {
        let x = numbers([batch, 64]);
        let expected = host.execute([&x, &weights]).expect("a run");
        let x = x.to(&device).expect("device memory");
        let results = model.execute([&x, &on_device]).expect("a run");
        assert_eq!(results[0].device(), &device);
        close(&results[0], &expected[0]);
        let key = batch as u64;
        close(&model.capture(key, [&x, &on_device]).expect("a capture")[0], &expected[0]);
        model.debug_verify_replay(key, [&x, &on_device]).expect("the same launches");
        close(&model.replay(key, [&x, &on_device]).expect("a replay")[0], &expected[0]);
    }
}

#[test]
fn views_transfers_and_streams() {
    let Some(device) = gpu() else { return };
    let stream = DeviceStream::new(&device).expect("a stream");
    for shape in [[1, 1], [37, 53], [1000, 3]] {
        let x = numbers(shape);
        let y = x.to_stream(&stream).expect("device memory");
        let (x, y) = (x.transpose(0, 1).expect("a view"), y.transpose(0, 1).expect("a view"));
        assert_eq!(values(&y), x.to_vec::<f32>().expect("floats"));
        drop(y);
        let mut pinned = Tensor::zeros_pinned(DType::F32, x.shape(), &device).expect("pinned memory");
        pinned.inplace_copy_from(&x).expect("a copy");
        assert_eq!(values(&pinned.to(&device).expect("device memory")), x.to_vec::<f32>().expect("floats"));
    }
    device.synchronize().expect("no fault");
    device.release_cached_memory();
    assert_eq!(device.stats().bytes_cached, 0);
}

/// What a graph costs beside what its kernels do: `MAX_GPU_BENCH=1` measures.
#[test]
fn overhead() {
    if std::env::var("MAX_GPU_BENCH").is_err() {
        println!("SKIPPED: set MAX_GPU_BENCH=1 to measure");
        return;
    }
    let Some(device) = gpu() else { return };
    let model = load(device);
    let inputs = [numbers([1, 64]), numbers([64, 96])].map(|x| x.to(&device).expect("device memory"));
    model.capture(1, &inputs).expect("a capture");
    let time = |name: &str, run: &dyn Fn()| {
        let batch = |count: u32| {
            let start = Instant::now();
            (0..count).for_each(|_| run());
            device.synchronize().expect("no fault");
            start.elapsed().as_secs_f64() / f64::from(count)
        };
        batch(10);
        let mut times: Vec<f64> = (0..9).map(|_| batch(200)).collect();
        times.sort_unstable_by(f64::total_cmp);
        println!("{{\"work\":\"{name}\",\"median_us\":{:.1}}}", times[4] * 1e6);
    };
    time("graph_execute", &|| drop(model.execute(&inputs).expect("a run")));
    time("graph_replay", &|| drop(model.replay(1, &inputs).expect("a replay")));
}
