//! Wrong inputs and wrong graphs: errors that name what was expected, what was given, and the line.

use crate::kernels::*;
use max::driver::{DeviceRef, SliceIndex, Tensor};
use max::dtype::DType;
use max::engine::{EngineError, InferenceSession, Model};
use max::graph::{Dim, Graph, TensorType, ops};

fn two_inputs() -> Model {
    let graph =
        Graph::build("both", [f32s(("batch", 4)), f32s(("batch", 1))], |_, inputs| ops::add(&inputs[0], &inputs[1]));
    load(&graph.unwrap())
}

fn message(result: Result<Vec<Tensor>, EngineError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn wrong_inputs() {
    let model = two_inputs();
    let (x, y) = (count(&[3, 4]), count(&[3, 1]));
    assert!(model.execute([&x, &y]).is_ok());
    let signature = "both(input0: float32[batch, 4], input1: float32[batch, 1]) -> (output0: float32[batch, 4])";
    assert_eq!(model.signature(), signature);
    let cases = [
        (message(model.execute(&x)), format!("model `both` takes 2 inputs, got 1\n  {signature}")),
        (message(model.execute(())), format!("model `both` takes 2 inputs, got 0\n  {signature}")),
        (
            message(model.execute([&x, &Tensor::arange(0, 3, 1).unwrap()])),
            "model `both`, input 1 (`input1`: float32[batch, 1]): got int32[3]; cast it, or declare the input as int32"
                .into(),
        ),
        (
            message(model.execute([&x, &count(&[3])])),
            "model `both`, input 1 (`input1`: float32[batch, 1]): got float32[3]: input 1: declared [batch, 1] (rank 2), \
             got [3] (rank 1)"
                .into(),
        ),
        (
            message(model.execute([&count(&[3, 5]), &y])),
            "model `both`, input 0 (`input0`: float32[batch, 4]): got float32[3, 5]: input 0, axis 1: declared 4 in \
             [batch, 4], got 5"
                .into(),
        ),
        (
            message(model.execute([&x, &count(&[2, 1])])),
            "model `both`, input 1 (`input1`: float32[batch, 1]): got float32[2, 1]: input 1, axis 0: `batch` is 2 here, \
             but 3 on axis 0 of input 0"
                .into(),
        ),
    ];
    for (actual, expected) in cases {
        assert_eq!(actual, expected);
    }
}

#[test]
fn inputs_by_name() {
    let model = two_inputs();
    let (x, y) = (count(&[2, 4]), count(&[2, 1]));
    let outputs = model.execute_named([("input1", &y), ("input0", &x)]).unwrap();
    assert_eq!(values(&outputs[0]), [0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0]);
    let unknown = message(model.execute_named([("x", &x)]));
    assert!(unknown.starts_with("model `both` has no input `x`\n  both(input0: "), "{unknown}");
    let twice = message(model.execute_named([("input0", &x), ("input0", &x)]));
    assert_eq!(twice, "model `both`, input 0 (`input0`: float32[batch, 4]): it was given twice");
    let missing = message(model.execute_named([("input0", &x)]));
    assert_eq!(missing, "model `both`, input 1 (`input1`: float32[batch, 1]): it was not given");
}

#[test]
fn sizes_that_no_tensor_can_have() {
    let graph = Graph::build("g", [f32s(("n",))], |_, inputs| {
        let x = inputs[0].tensor()?;
        let parts = ops::split(x, [Dim::from("n") - 5, Dim::from(5)], 0)?;
        ops::relu(&parts[1])
    });
    let model = load(&graph.unwrap());
    assert_eq!(values(&model.execute(&count(&[7])).unwrap()[0]), [2.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(model.execute(&count(&[5])).is_ok());
    let error = message(model.execute(&count(&[3])));
    assert!(error.contains("`slice` at "), "{error}");
    assert!(error.contains("it takes 5 elements from -2 by steps of 1 of axis 0, which has 3"), "{error}");

    let graph = Graph::build("g", [f32s(("n",))], |_, inputs| ops::slice_tensor(&inputs[0], [SliceIndex::Index(-4)]));
    let model = load(&graph.unwrap());
    assert_eq!(model.execute(&count(&[6])).unwrap()[0].item::<f32>().unwrap(), 2.0);
    assert!(matches!(model.execute(&count(&[3])), Err(EngineError::Slice { size: 3, start: -1, .. })));

    let graph = Graph::build("g", [f32s(("n",))], |_, inputs| {
        let x = inputs[0].tensor()?.broadcast_to((1i64 << 40, "n"))?;
        ops::relu(x)
    });
    let model = load(&graph.unwrap());
    assert!(matches!(model.execute(&count(&[1])), Err(EngineError::Memory { .. })));
    let error = message(model.execute(&count(&[1 << 21])));
    assert!(error.contains("no tensor can have shape [1099511627776, 2097152] of float32"), "{error}");
}

#[test]
fn graphs_that_do_not_load() {
    let session = InferenceSession::new();
    let unfinished = Graph::new("g", [f32s([2])]);
    assert!(matches!(session.load(&unfinished), Err(EngineError::Graph(_))));

    let graph = Graph::build("g", [f32s([2])], |_, inputs| ops::log1p(&inputs[0])).unwrap();
    let error = session.load(&graph).unwrap_err().to_string();
    assert!(error.starts_with("model `g`, `log1p` at "), "{error}");
    assert!(error.contains("errors.rs:") && error.contains("no kernel is named `log1p`"), "{error}");

    let graph =
        Graph::build("g", [TensorType::new(DType::F32, [2], DeviceRef::gpu(0))], |_, inputs| ops::relu(&inputs[0]));
    let error = session.load(&graph.unwrap()).unwrap_err().to_string();
    assert!(error.contains("it runs on gpu:0, but the session has cpu:0"), "{error}");

    // SAFETY: there is no such file.
    let missing = unsafe { session.custom_extensions(["/nowhere/libops.so"]) }.unwrap_err().to_string();
    assert!(missing.starts_with("custom extension /nowhere/libops.so: "), "{missing}");
}
