//! Buffers: inputs that a model changes in place, in the order of the graph.

use crate::kernels::*;
use max::driver::{DeviceRef, DriverError, Tensor};
use max::engine::{EngineError, InferenceSession, Input};
use max::graph::{Graph, Parameters, ops};

const NONE: [max::graph::TensorType; 0] = [];

fn accumulate(buffer: &max::graph::Value, x: &max::graph::TensorValue) -> Result<(), max::graph::GraphError> {
    ops::inplace_custom("accumulate", DeviceRef::CPU, (buffer, x), NONE, Parameters::new()).map(drop)
}

#[test]
fn loads_and_stores_happen_in_order() {
    let graph = Graph::build("g", (f32_buffer((2, 2)), f32s((2, 2))), |_, inputs| {
        let (buffer, x) = (inputs[0].buffer()?, inputs[1].tensor()?);
        let first = buffer.load()?;
        buffer.store(x)?;
        let second = buffer.load()?;
        // Overlapping: the buffer is overwritten with its own transpose.
        buffer.store(buffer.load()?.t()?)?;
        accumulate(&inputs[0], x)?;
        Ok([first.clone(), second, buffer.load()?, first + 100.0])
    });
    let model = load(&graph.unwrap());
    let mut buffer = Tensor::full(0.5f32, [2, 2]).unwrap();
    let outputs = model.execute((&mut buffer, &count(&[2, 2]))).unwrap();
    assert_eq!(values(&outputs[0]), [0.5; 4]);
    assert_eq!(values(&outputs[1]), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(values(&outputs[2]), [0.0, 3.0, 3.0, 6.0]);
    assert_eq!(values(&outputs[3]), [100.5; 4]);
    assert_eq!(values(&buffer), [0.0, 3.0, 3.0, 6.0]);
}

#[test]
fn kernels_change_buffers_in_place() {
    let graph = Graph::build("g", (f32_buffer(("n",)), f32s(("n",))), |_, inputs| {
        accumulate(&inputs[0], inputs[1].tensor()?)?;
        // The operand is the buffer itself, as it was.
        accumulate(&inputs[0], &inputs[0].buffer()?.load()?)
    });
    let model = load(&graph.unwrap());
    let mut total = Tensor::full(1.0f32, [3]).unwrap();
    let address = total.data_ptr();
    for _ in 0..2 {
        let outputs = model.execute((&mut total, &count(&[3]))).unwrap();
        assert!(outputs.is_empty());
    }
    assert_eq!(values(&total), [4.0, 10.0, 16.0]);
    assert_eq!(total.data_ptr(), address);
}

#[test]
fn one_buffer_for_two_operands_is_refused() {
    let build = |second: usize| {
        Graph::build("g", (f32_buffer([2]), f32_buffer([2])), |_, inputs| {
            let operands = (&inputs[0], &inputs[second]);
            ops::inplace_custom("accumulate_both", DeviceRef::CPU, operands, NONE, Parameters::new()).map(drop)
        })
        .unwrap()
    };
    let error = InferenceSession::new().load(&build(0)).unwrap_err().to_string();
    assert!(error.contains("`a` and `b` are the same buffer, and the kernel changes both"), "{error}");
    assert!(error.contains("`accumulate_both` at ") && error.contains("buffers.rs:"), "{error}");
    let (mut a, mut b) = (count(&[2]), count(&[2]));
    load(&build(1)).execute((&mut a, &mut b)).unwrap();
    assert_eq!((values(&a), values(&b)), (vec![1.0, 2.0], vec![2.0, 3.0]));
}

#[test]
fn a_view_with_gaps_is_no_buffer() {
    let graph =
        Graph::build("g", f32_buffer((2, 3)), |_, inputs| inputs[0].buffer()?.store(inputs[0].buffer()?.load()?));
    let mut view = count(&[3, 2]).transpose(0, 1).unwrap();
    let error = load(&graph.unwrap()).execute(&mut view).unwrap_err().to_string();
    assert!(
        error.contains("input 0 (`input0`: ") && error.contains("got float32[2, 3] with strides [1, 2]"),
        "{error}"
    );
    assert!(error.contains("which is not contiguous, and the model changes it in place, where a copy"), "{error}");
    assert!(
        error.ends_with("; pass the tensor that it is a view of, or a copy by `.copy()`, and copy the result back"),
        "{error}"
    );
}

#[test]
fn a_buffer_has_to_be_writable() {
    let graph =
        Graph::build("g", (f32_buffer([2]), f32s([2])), |_, inputs| inputs[0].buffer()?.store(inputs[1].tensor()?));
    let model = load(&graph.unwrap());
    let x = count(&[2]);
    let mut buffer = Tensor::full(7.0f32, [2]).unwrap();

    let error = model.execute([&buffer, &x]).unwrap_err();
    assert!(matches!(error, EngineError::InputNotMutable { .. }));
    assert!(error.to_string().ends_with("the model changes this buffer in place; pass it as `&mut tensor`"), "{error}");

    let view = buffer.clone();
    let error = model.execute((&mut buffer, &x)).unwrap_err();
    assert!(matches!(error, EngineError::InputBuffer { source: DriverError::StorageShared { .. }, .. }), "{error}");
    assert_eq!(values(&view), [7.0, 7.0]);
    drop(view);

    static FIXED: [f32; 2] = [1.0, 2.0];
    let mut fixed = Tensor::from_static(&FIXED, [2]).unwrap();
    assert!(matches!(model.execute((&mut fixed, &x)), Err(EngineError::InputBuffer { .. })));

    // A failed run changes nothing.
    let wrong = count(&[3]);
    assert!(model.execute((&mut buffer, &wrong)).is_err());
    assert_eq!(values(&buffer), [7.0, 7.0]);
    model.execute([Input::from(&mut buffer), Input::from(&x)]).unwrap();
    assert_eq!(values(&buffer), [0.0, 1.0]);
}

#[test]
fn a_model_that_only_reads_takes_either() {
    let graph = Graph::build("g", f32_buffer([2]), |_, inputs| Ok(inputs[0].buffer()?.load()? + 1.0)).unwrap();
    let mut buffer = count(&[2]);
    assert_eq!(values(&load(&graph).execute(&mut buffer).unwrap()[0]), [1.0, 2.0]);
    let graph = Graph::build("g", f32s([2]), |_, inputs| ops::relu(&inputs[0])).unwrap();
    assert_eq!(values(&load(&graph).execute(&mut buffer).unwrap()[0]), [0.0, 1.0]);
}
