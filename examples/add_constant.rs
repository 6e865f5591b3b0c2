//! An op with a parameter: a value that is fixed when the graph is built.
use max::prelude::*;

/// Adds a constant to every element. The type parameter makes it an op of every number type.
#[kernel(op = "add_constant")]
fn add_constant<T: Number>(x: T, #[param] value: i64) -> T {
    x + T::from_i64(value)
}

/// Ten more than each element of `x`, computed by a graph.
fn add_ten(x: &Tensor) -> max::Result<Tensor> {
    // `n` is a symbol: it gets its value when the model executes.
    let ty = TensorType::new(x.dtype(), ("n",), DeviceRef::CPU);
    let graph = Graph::build("add_ten", [&ty], |_, inputs| {
        ops::custom("add_constant", DeviceRef::CPU, inputs, &ty, [("value", 10)])
    })?;
    Ok(InferenceSession::new().load(&graph)?.execute(x)?.remove(0))
}

fn main() -> max::Result<()> {
    let floats = add_ten(&Tensor::from_slice(&[1.0f32, 2.5, 127.0], [3])?)?;
    println!("{floats}");
    assert_eq!(floats.as_slice::<f32>()?, [11.0, 12.5, 137.0]);

    // Integers wrap around, in every kernel and on every machine.
    let integers = add_ten(&Tensor::from_slice(&[1i8, 2, 127], [3])?)?;
    println!("{integers}");
    assert_eq!(integers.as_slice::<i8>()?, [11, 12, -119]);
    Ok(())
}
