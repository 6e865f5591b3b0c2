//! A row kernel: each program reads one row twice and writes it once.
use max::prelude::*;

/// `exp(x) / sum(exp(x))` of each row, shifted by the row's largest element so that nothing overflows.
#[kernel(op = "my_softmax")]
fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let largest = x.max();
    let sum = x.map(|v| (v - largest).exp()).sum();
    y.row(row).write(x.map(|v| (v - largest).exp() / sum));
}

fn main() -> max::Result<()> {
    let ty = TensorType::new(DType::F32, ("rows", "columns"), DeviceRef::CPU);
    let graph = Graph::build("softmax", [&ty], |_, inputs| {
        // The library has this op as well; run both.
        let mine = ops::custom("my_softmax", DeviceRef::CPU, inputs, &ty, ())?.remove(0);
        Ok((mine, ops::softmax(&inputs[0], -1)?))
    })?;
    let model = InferenceSession::new().load(&graph)?;

    // The second row would overflow without the shift.
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 1000.0, 1000.0, -1000.0], [2, 3])?;
    let outputs = model.execute(&x)?;
    println!("{}", outputs[0]);

    let y = outputs[0].as_slice::<f32>()?;
    assert_eq!(y[3..], [0.5, 0.5, 0.0]);
    assert!((y[..3].iter().sum::<f32>() - 1.0).abs() < 1e-6);
    assert!((y[2] / y[1] - std::f32::consts::E).abs() < 1e-5);
    // The built-in op rounds elsewhere.
    assert!(y.iter().zip(outputs[1].as_slice::<f32>()?).all(|(a, b)| (a - b).abs() < 1e-6));
    Ok(())
}
