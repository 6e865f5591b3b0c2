//! The code of `docs/guide/19-eager.md`.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::Model;
use max::functional::{self as F, functional};
use max::graph::{GraphError, TensorType};
use max::nn::{self, Forward, LayerNorm, Linear, Module};
use max::tensor::Tensor;

fn first_steps() -> max::Result<()> {
    let x = Tensor::constant([1.0f32, -2.0, 3.0])?;
    let y = F::relu(&x)? * 2.0 + 1.0;
    assert_eq!(y.to_string(), "[3. 1. 7.] float32[3] on cpu:0");
    let table = Tensor::arange(0, 6, 1)?.reshape([2, 3])?;
    assert_eq!(table.i((.., -1))?.to_vec::<f32>()?, [2.0, 5.0]);
    Ok(())
}

#[functional]
fn normalized(x: &Tensor) -> Result<Tensor, GraphError> {
    let mean = F::mean(x, -1)?;
    let centered = x - &mean;
    F::div(&centered, F::sqrt(F::mean(&centered * &centered, -1)? + 1e-5)?)
}

fn as_a_model() -> max::Result<Model> {
    let ty = TensorType::new(DType::F32, ("rows", 8), DeviceRef::CPU);
    Ok(nn::compile("normalized", ty, |x| normalized(&x[0]))?)
}

#[derive(Module)]
struct Classifier {
    hidden: Linear,
    norm: LayerNorm,
    out: Linear,
}

impl Forward for Classifier {
    fn forward(&self, x: &Tensor) -> Result<Tensor, GraphError> {
        let x = F::relu(self.norm.call(&self.hidden.call(x)?)?)?;
        F::softmax(self.out.call(&x)?, -1)
    }
}

/// On the CPU: other tests of this program have simulated GPUs, which tensors would be made on.
fn on_the_cpu(body: impl FnOnce() -> max::Result<()>) -> max::Result<()> {
    max::tensor::default_device(DeviceRef::CPU, body)
}

#[test]
fn tensors_compute_in_both_worlds() -> max::Result<()> {
    on_the_cpu(|| {
        first_steps()?;
        let x = max::random::normal([3, 8], 2.0, 3.0)?;
        let eager = normalized(&x)?.to_vec::<f32>()?;
        assert!((eager[..8].iter().sum::<f32>()).abs() < 1e-3);
        let of_model = as_a_model()?.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?;
        assert!(eager.iter().zip(&of_model).all(|(a, b)| (a - b).abs() < 1e-5));
        Ok(())
    })
}

#[test]
fn modules_compile() -> max::Result<()> {
    on_the_cpu(|| {
        let module = Classifier { hidden: Linear::new(4, 8)?, norm: LayerNorm::new(8)?, out: Linear::new(8, 2)? };
        let x = driver::Tensor::full(0.5f32, [1, 4])?;
        let model = module.compile(&TensorType::new(DType::F32, ("n", 4), DeviceRef::CPU))?;
        let probabilities = model.execute(&x)?[0].to_vec::<f32>()?;
        assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        Ok(())
    })
}
