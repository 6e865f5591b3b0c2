//! Tensors that compute as you write, and the same function as an explicit graph.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::functional::{self as F, functional};
use max::graph::TensorType;
use max::nn;
use max::tensor::{Operand, Tensor};

/// For tensors and for values of a graph alike.
fn activation(x: impl Into<Operand>) -> max::Result<Tensor, max::graph::GraphError> {
    Ok(F::relu(x)? * 2.0 + 1.0)
}

fn main() -> max::Result<()> {
    let x = Tensor::constant([1.0f32, -2.0, 3.0, -4.0, 5.0])?;
    let y = activation(&x)?;
    println!("{y:?}");
    println!("{y}"); // computed here, as one kernel
    assert_eq!(y.to_vec::<f32>()?, [3.0, 1.0, 7.0, 1.0, 11.0]);

    // Indexing, broadcasting, reductions.
    let table = Tensor::arange(0, 12, 1)?.reshape([3, 4])?;
    println!("{}", table.i((.., 1..3))? - F::mean(&table, 0)?.i((.., 1..3))?);
    assert_eq!(F::sum(table.i((-1,))?, 0)?.item::<f32>()?, 38.0);

    // A region is one graph, whatever numbers are in it: the second turn compiles nothing.
    for factor in [2.0, 3.0] {
        let (scaled, total) = functional(|| {
            let scaled = &x * factor;
            let total = F::sum(&scaled, 0)?;
            Ok((scaled, total))
        })?;
        println!("{scaled} sum {}", total.item::<f32>()?);
        assert_eq!(total.item::<f32>()?, 3.0 * factor as f32);
    }

    // The same function as a model, for any number of elements.
    let model = nn::compile("activation", TensorType::new(DType::F32, ("n",), DeviceRef::CPU), |x| activation(&x[0]))?;
    let outputs = model.execute(&driver::Tensor::full(4.0f32, [2])?)?;
    assert_eq!(outputs[0].to_vec::<f32>()?, [9.0, 9.0]);

    // A mistake is an error where it is made.
    println!("{}", F::add(&x, Tensor::ones([4])?).unwrap_err());
    Ok(())
}
