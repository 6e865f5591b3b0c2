//! A layer of a neural network as a graph of built-in ops: `relu(x · w + b)`.
use max::prelude::*;

fn main() -> max::Result<()> {
    // Types of the inputs. `batch` is a symbol: any number of rows will do, as long as it is the same everywhere.
    let x = TensorType::new(DType::F32, ("batch", 3), DeviceRef::CPU);
    let weight = Tensor::from_slice(&[0.5f32, -1.0, 1.5, 2.0, -0.5, 1.0], [3, 2])?;
    let graph = Graph::build("linear_relu", [x], |graph, inputs| {
        // Weights are constants: what depends only on them is computed when the graph is loaded.
        let w = ops::constant(graph, weight, DType::F32, DeviceRef::CPU)?;
        let b = ops::constant(graph, [0.25, -0.25], DType::F32, DeviceRef::CPU)?;
        ops::relu(ops::matmul(&inputs[0], w)? + b)
    })?;
    print!("{graph}");

    let model = InferenceSession::new().load(&graph)?;
    println!("{}", model.signature());
    let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 2.0, 3.0], [2, 3])?;
    let y = model.execute(&x)?.remove(0);
    println!("{y}");
    assert_eq!(y.shape(), [2, 2]);
    assert_eq!(y.as_slice::<f32>()?, [0.75, 0.0, 2.25, 5.75]);
    Ok(())
}
