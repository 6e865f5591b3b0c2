//! An op that another crate defines (`examples/ops-crate`).
use max::prelude::*;
// A crate that is linked has its kernels registered; this line links it, although nothing of it is named here.
use ops_crate as _;

fn main() -> max::Result<()> {
    let ty = TensorType::new(DType::F16, ("n",), DeviceRef::CPU);
    let graph =
        Graph::build("relu_squared", [&ty], |_, inputs| ops::custom("relu_squared", DeviceRef::CPU, inputs, &ty, ()))?;
    let x: Vec<f16> = [-3.0, 0.5, 3.0].map(f16::from_f32).to_vec();
    let y = InferenceSession::new().load(&graph)?.execute(&Tensor::from_vec(x, [3])?)?.remove(0);
    println!("{y}");
    assert_eq!(y.as_slice::<f16>()?, [0.0, 0.25, 9.0].map(f16::from_f32));

    // The library knows where each op comes from.
    let kernel = KernelLibrary::linked().get("relu_squared")?;
    println!("{} is from {}", kernel.signature.as_str(), kernel.krate.as_str());
    assert_eq!(kernel.krate.as_str(), "ops-crate");

    // An op that no linked crate defines is an error that names the nearest ones, and what to do.
    let mistake =
        Graph::build("mistake", [&ty], |_, inputs| ops::custom("relu_sqared", DeviceRef::CPU, inputs, &ty, ()));
    println!("{}", mistake.map(|_| ()).unwrap_err());
    Ok(())
}
