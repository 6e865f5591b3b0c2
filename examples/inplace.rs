//! A counter that lives across executions: a buffer, changed in place by an op.
use max::prelude::*;

/// Adds `step` to each counter. `&mut` says that the op changes its operand; nothing else has to be declared.
#[kernel(op = "count")]
fn count(counter: &mut i32, #[param(default = 1)] step: i32) {
    *counter += step;
}

fn main() -> max::Result<()> {
    let ty = BufferType::new(DType::I32, (3,), DeviceRef::CPU);
    let graph = Graph::build("count", [ty], |_, inputs| {
        let counter = inputs[0].buffer()?;
        // Side effects happen in this order: the load between the two counts sees the first of them.
        ops::inplace_custom("count", DeviceRef::CPU, counter, (), ())?;
        let between = counter.load()?;
        ops::inplace_custom("count", DeviceRef::CPU, counter, (), [("step", 10)])?;
        Ok(between)
    })?;
    print!("{graph}");
    let model = InferenceSession::new().load(&graph)?;

    let mut counter = Tensor::from_slice(&[0i32, 100, -5], [3])?;
    for run in 1..=3 {
        let between = &model.execute(&mut counter)?[0];
        println!("run {run}: {between}, then {counter}");
    }
    assert_eq!(counter.as_slice::<i32>()?, [33, 133, 28]);

    // A tensor that shares its memory with a view cannot be changed: the view would change with it.
    let view = counter.select(0, 0)?;
    println!("{}", model.execute(&mut counter).unwrap_err());
    assert_eq!(view.item::<i32>()?, 33);
    Ok(())
}
