//! The code of `docs/guide/21-notebooks.md`: its cells, one after the other.

#[rustfmt::skip]
fn cells() -> max::Result<()> {
use max::functional as F;
use max::tensor::Tensor;

let x = Tensor::arange(0, 6, 1)?.reshape([2, 3])?;
let y = F::softmax(&x, -1)?;
println!("{y}");

#[max::functional::functional]
fn rms(x: &Tensor) -> Result<Tensor, max::graph::GraphError> {
    F::sqrt(F::mean(x * x, -1)?)
}

println!("{}", rms(&y)?);

let error = F::matmul(&y, &y).unwrap_err();
println!("{error}");

assert_eq!(y.shape().to_string(), "[2, 3]");
assert!(error.to_string().contains("`matmul`"), "{error}");
Ok(())
}

#[test]
fn cells_run_one_after_the_other() -> max::Result<()> {
    // Other tests of this program have simulated GPUs, which tensors would be made on.
    max::tensor::default_device(max::driver::DeviceRef::CPU, cells)
}
