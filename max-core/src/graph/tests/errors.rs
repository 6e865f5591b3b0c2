//! The texts of errors, and that none is lost.

use super::*;
use crate::driver::Tensor;

/// The error's text, with the path and columns of this file taken out.
fn text(error: GraphError) -> String {
    let location = error.location().to_string();
    assert!(location.contains("tests/errors.rs"), "the caller's line, not {location}");
    error.to_string().replace(&format!(" at {location}"), "")
}

#[test]
fn shapes_dtypes_and_devices_are_named() {
    let (_, [x, y, gpu, half, e4m3, e5m2, f32_one]) = inputs([
        f32_type((2, 3)),
        f32_type(("n", 4)),
        TensorType::new(DType::F32, (2, 3), DeviceRef::gpu(0)),
        TensorType::new(DType::F16, (2, 3), DeviceRef::CPU),
        TensorType::new(DType::F8E4M3FN, (2, 3), DeviceRef::CPU),
        TensorType::new(DType::F8E5M2, (2, 3), DeviceRef::CPU),
        f32_type([1]),
    ]);
    let cases = [
        (
            ops::add(&x, &y),
            "`add` in graph `test`: shapes [2, 3] and [n, 4] do not broadcast: aligned at the last axis, two dims must \
             be equal or one of them 1; insert axes with `unsqueeze`, or assert equal dims with `rebind`\n  operands: \
             float32[2, 3], float32[n, 4]",
        ),
        (
            ops::matmul(&x, &y),
            "`matmul` in graph `test`: the left side's last dim and the right side's second last dim must be equal, got \
             3 and n; assert equal dims with `rebind`\n  operands: float32[2, 3], float32[n, 4]",
        ),
        (
            ops::matmul_static_scaled_float8(&e4m3, &e5m2, &x, &x),
            "`matmul_static_scaled_float8` in graph `test`: `weight` has dtype float8_e5m2, but the op takes float8_e4m3fn, as \
             `input` has; cast it with `cast`\n  operands: float8_e4m3fn[2, 3], float8_e5m2[2, 3]",
        ),
        (
            ops::matmul_static_scaled_float8(&e4m3, &e4m3, &half, &x),
            "`matmul_static_scaled_float8` in graph `test`: `input_scale` has dtype float16, but the op takes float32; cast \
             it with `cast`\n  operands: float16[2, 3]",
        ),
        (
            ops::matmul_static_scaled_float8(&e5m2, &e5m2, f32_one, &x),
            "`matmul_static_scaled_float8` in graph `test`: `weight_scale` is [2, 3], but must be [] or [1]\n  operands: \
             float32[2, 3]",
        ),
        (
            ops::mul(&x, &gpu),
            "`mul` in graph `test`: the operands are on cpu:0, gpu:0; move them to one device with `transfer_to`\n  \
             operands: float32[2, 3], float32[2, 3] on gpu:0",
        ),
        (
            ops::add(x.cast(DType::I32).unwrap(), &half),
            "`add` in graph `test`: no dtype of int32, float16 holds the values of the others; cast explicitly with \
             `cast`\n  operands: int32[2, 3], float16[2, 3]",
        ),
        (
            ops::logical_not(&x),
            "`logical_not` in graph `test`: the operand has dtype float32, but the op takes bool; cast it with \
             `cast`\n  operands: float32[2, 3]",
        ),
        (
            ops::add(x.cast(DType::U8).unwrap(), 300),
            "`add` in graph `test`: 300 is not representable as uint8; cast the tensor, or write a value that \
             fits\n  operands: uint8[2, 3]",
        ),
        (
            x.sum(2),
            "`sum` in graph `test`: axis 2 is out of range for rank 2; axes are -2 to 1\n  operands: float32[2, 3]",
        ),
        (
            x.reshape((7, -1)),
            "`reshape` in graph `test`: the dim for -1 is 6 / 7, which is not whole for every size; write the dim \
             instead of -1\n  operands: float32[2, 3]",
        ),
        (
            y.reshape(("n", 5)),
            "`reshape` in graph `test`: [n, 4] has n * 4 elements, [n, 5] has n * 5; both must be equal for every size \
             of the symbols\n  operands: float32[n, 4]",
        ),
        (
            x.reshape(("m", 6)),
            "`reshape` in graph `test`: dim `m` needs the size of `m`, which no input binds; declare an input with an \
             axis `m`\n  operands: float32[2, 3]",
        ),
        (
            ops::matmul(x.cast(DType::Bool).unwrap(), y.cast(DType::Bool).unwrap()),
            "`matmul` in graph `test`: the left side has dtype bool, but the op takes numbers; cast it with `cast`\n  \
             operands: bool[2, 3]",
        ),
        (ops::add(1.0, 2.0), "`add`: no operand is a tensor; make one with `constant`"),
        (
            ops::top_k(&x, 4, 1).map(|(values, _)| values),
            "`top_k` in graph `test`: `k` is 4, but must be 1 to the axis's size, 3\n  operands: float32[2, 3]",
        ),
    ];
    for (result, expected) in cases {
        assert_eq!(text(result.unwrap_err()), expected);
    }
}

#[test]
fn a_tensor_that_cannot_be_made_is_an_error_of_the_graph_at_its_line() {
    let mut line = 0;
    let error = Graph::build("g", [f32_type((2,))], |graph, x| {
        line = line!() + 1;
        let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [2])?;
        ops::add(&x[0], ops::constant(graph, &table, DType::F32, DeviceRef::CPU)?)
    });
    let error = error.unwrap_err();
    assert_eq!(error.location().line(), line);
    assert!(error.location().file().ends_with("tests/errors.rs"));
    let text = error.to_string();
    assert!(text.contains("3 elements do not fill shape [2], which has 2"), "{text}");
}

#[test]
fn an_operators_error_is_kept_for_output() {
    let (graph, [x, y]) = inputs([f32_type((2,)), f32_type((3,))]);
    let line = line!() + 1;
    let bad = &x + &y;
    // The mistake is known although nothing uses its value, and everything that does returns it.
    let error = graph.output(&x).unwrap_err();
    assert_eq!((error.op(), error.location().line()), ("add", line));
    assert_eq!(ops::relu(&bad).unwrap_err().location().line(), line);
    let further = (bad * 2.0 - 1.0) / &y;
    assert_eq!(further.relu().unwrap_err().location().line(), line);
    assert!(graph.finished().is_err());
}

#[test]
fn an_operator_on_two_graphs_is_an_error_of_both() {
    let (one, [x]) = inputs([f32_type((2,))]);
    let (two, [y]) = inputs([f32_type((2,))]);
    let sum = &x + &y;
    for graph in [&one, &two] {
        let error = graph.output(()).unwrap_err();
        assert!(matches!(error.kind(), GraphErrorKind::OtherGraph { .. }), "{error}");
    }
    assert!(sum.relu().is_err());
}

#[test]
fn every_way_out_of_a_graph_returns_the_first_mistake() {
    let ty = f32_type((2,));
    let built = Graph::build("mistake", [&ty, &ty], |_, x| {
        let _unused = x[0].tensor()?.cast(DType::U8)? + 0.5;
        Ok(x[1].clone())
    });
    assert_eq!(built.unwrap_err().op(), "add");
    let late = Graph::build("late", [&ty], |g, x| {
        g.output(&x[0])?;
        let _after = x[0].tensor()? & true;
        Ok(())
    });
    assert_eq!(late.unwrap_err().op(), "logical_and");
}

#[test]
fn outputs_are_set_once_with_tensors_of_the_graph() {
    let (graph, [x]) = inputs([f32_type((2,))]);
    let (_, [stranger]) = inputs([f32_type((2,))]);
    assert_eq!(
        text(graph.output(&stranger).unwrap_err()),
        "`output` in graph `test`: an operand belongs to another graph, `test`; a graph's ops take only its own values, pass it \
         in as an input\n  operands: float32[2]"
    );
    assert!(matches!(graph.finished().unwrap_err().kind(), GraphErrorKind::NoOutput));
    graph.output(&x).unwrap();
    assert!(graph.finished().is_ok());
    assert!(matches!(graph.output(&x).unwrap_err().kind(), GraphErrorKind::OutputTwice));
}

#[test]
fn input_types_that_cannot_be_are_errors() {
    let n = Dim::from("n");
    let cases = [
        (
            Shape::from((2, -3)),
            "`input` in graph `bad`: dim 1 of [2, -3] is negative; give its size, or a name whose size inputs give\n  operands: float32[2, -3]",
        ),
        (
            Shape::from(("a b",)),
            "`input` in graph `bad`: `a b` is not the name of a dim: write letters, digits and `_`, not a digit \
             first\n  operands: float32[a b]",
        ),
        (
            Shape::from([&n * 2]),
            "`input` in graph `bad`: dim `n * 2` needs the size of `n`, which no input binds; declare an input with an \
             axis `n`\n  operands: float32[n * 2]",
        ),
        (
            Shape::from([i64::MAX, 2]),
            "`input` in graph `bad`: a tensor of type float32[9223372036854775807, 2] exceeds 2^63 - 1 bytes\n  \
             operands: float32[9223372036854775807, 2]",
        ),
    ];
    for (shape, expected) in cases {
        let graph = Graph::new("bad", [f32_type(shape)]);
        assert_eq!(text(graph.output(()).unwrap_err()), expected);
    }
}

#[test]
fn buffers_and_tensors_are_not_exchanged() {
    let ty = f32_type((2,));
    let graph = Graph::new("buffers", (ty.as_buffer(), &ty));
    let [buffer, tensor] = graph.inputs() else { panic!("two inputs") };
    assert_eq!(
        text(ops::relu(buffer).unwrap_err()),
        "`relu` in graph `buffers`: the operand is a buffer, but the op takes a tensor; read the buffer with \
         `buffer_load`\n  operands: buffer float32[2]"
    );
    assert!(matches!(tensor.buffer().unwrap_err().kind(), GraphErrorKind::NotABuffer { .. }));
    assert!(matches!(buffer.tensor().unwrap_err().kind(), GraphErrorKind::NotATensor { .. }));
    assert!(graph.output(buffer).is_err());
    let wide = ops::cast(tensor, DType::F64).unwrap();
    assert_eq!(
        text(buffer.buffer().unwrap().store(wide).unwrap_err()),
        "`buffer_store` in graph `buffers`: the source has type float64[2], but must have type float32[2]\n  operands: \
         buffer float32[2], float64[2]"
    );
    let part = buffer.buffer().unwrap().store_slice(tensor, [..1]).unwrap_err();
    assert_eq!(
        text(part),
        "`buffer_store_slice` in graph `buffers`: the source has type float32[2], but must have type float32[1]\n  operands: \
         buffer float32[2], float32[2]"
    );
    let outside = buffer.buffer().unwrap().store_slice(tensor, [2]).unwrap_err();
    assert_eq!(
        text(outside),
        "`buffer_store_slice` in graph `buffers`: `indices` is 2, but must be an element of an axis of size 2\n  operands: \
         buffer float32[2]"
    );
}

#[test]
fn debug_reads_like_display() {
    let error = ops::add(1, 2).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}
