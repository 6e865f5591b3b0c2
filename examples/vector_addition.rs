//! The smallest op of two inputs, on vectors long enough that it runs as fast as memory gives.
use std::time::Instant;

use max::prelude::*;

/// The sum of two vectors. The function says what happens to one pair of elements; the op does it to all of them.
#[kernel(op = "vector_addition")]
fn vector_addition<T: Number>(x: T, y: T) -> T {
    x + y
}

fn main() -> max::Result<()> {
    let ty = TensorType::new(DType::F32, ("length",), DeviceRef::CPU);
    let graph = Graph::build("vector_addition", [&ty, &ty], |_, inputs| {
        ops::custom("vector_addition", DeviceRef::CPU, inputs, &ty, ())
    })?;
    let model = InferenceSession::new().load(&graph)?;

    let length = 1 << 24;
    let x = Tensor::arange(0.0f32, length as f32, 1.0)?;
    let y = Tensor::full(0.5f32, [length])?;
    model.execute([&x, &y])?; // the first run starts threads and asks the system for memory
    let start = Instant::now();
    let sum = model.execute([&x, &y])?.remove(0);
    let seconds = start.elapsed().as_secs_f64();
    println!("{length} sums in {:.1} ms: {:.1} GB/s", seconds * 1e3, 12.0 * length as f64 / seconds / 1e9);

    assert!(sum.as_slice::<f32>()?.iter().enumerate().all(|(i, v)| *v == i as f32 + 0.5));

    // Both vectors have one `length`: two different ones are an error that says so.
    let error = model.execute([&x, &Tensor::full(0.5f32, [3])?]).unwrap_err();
    println!("{error}");
    Ok(())
}
