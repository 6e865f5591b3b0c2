//! The code of `docs/guide/16-gpu.md`. Without a GPU it runs on a simulated one, or on the CPU.

use max::prelude::*;

fn device() -> Result<Device, max::driver::DriverError> {
    match Device::accelerator(0) {
        Ok(gpu) => Ok(gpu),
        // It says why: no driver, one too old, no device.
        Err(reason) => {
            println!("{reason}");
            Ok(Device::cpu())
        }
    }
}

/// Lifts what is dark: the same kernel on every machine.
#[kernel(op = "guide_lift")]
fn lift<T: Float>(x: T, #[param(default = 4.0)] gain: f64) -> T {
    let gain = gain as T;
    gain * x / (1.0 + (gain - 1.0) * x)
}

fn graph(device: DeviceRef) -> Result<Graph, max::graph::GraphError> {
    let ty = TensorType::new(DType::F32, ("n", 256), device);
    Graph::build("lift", [ty], |_, inputs| {
        let x = inputs[0].tensor()?;
        let lifted = ops::custom("guide_lift", device, x, x.ty(), ())?;
        let rows = ops::softmax(lifted[0].tensor()?, -1)?;
        Ok([Value::from(ops::argmax(&rows, -1)?.to(DeviceRef::CPU)?), rows.into()])
    })
}

fn run(device: Device, x: &Tensor) -> max::Result<Vec<Tensor>> {
    let model = InferenceSession::with_devices([device]).load(&graph((&device).into())?)?;
    let outputs = model.execute(&x.to(&device)?)?;
    assert_eq!((outputs[0].device(), outputs[1].device()), (&Device::cpu(), &device));
    Ok(outputs)
}

fn replay(model: &Model, x: &Tensor) -> max::Result<Vec<Tensor>> {
    let key = x.shape()[0] as u64;
    model.capture(key, x)?;
    // Executes and compares what is launched: for tests.
    model.debug_verify_replay(key, x)?;
    Ok(model.replay(key, x)?)
}

fn gpus_agree(x: &Tensor) -> max::Result<()> {
    let expected = run(Device::cpu(), x)?;
    for gpu in max::simulator::gpus()? {
        let outputs = run(gpu, x)?;
        let rows = outputs[1].to(&Device::cpu())?.to_vec::<f32>()?;
        let differ = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6;
        assert!(!rows.iter().zip(expected[1].as_slice()?).any(differ), "on {}", gpu.architecture_name()?);
    }
    Ok(())
}

#[test]
fn the_page_runs_on_any_machine() {
    let x = Tensor::from_vec((0..512).map(|i| (i % 200) as f32 / 200.0).collect(), [2, 256]).unwrap();
    // What follows runs on a simulated GPU then.
    gpus_agree(&x).unwrap();
    let device = device().unwrap();
    let outputs = run(device, &x).unwrap();
    assert_eq!(outputs[0].reshape([2]).unwrap().to_vec::<i64>().unwrap(), [199, 143]);
    let ty = TensorType::new(DType::F32, ("n", 256), (&device).into());
    let graph = Graph::build("softmax", [ty], |_, inputs| ops::softmax(&inputs[0], -1)).unwrap();
    let model = InferenceSession::with_devices([device]).load(&graph).unwrap();
    let replayed = replay(&model, &x.to(&device).unwrap());
    assert_eq!(replayed.is_ok(), !device.is_host(), "{replayed:?}");
}
