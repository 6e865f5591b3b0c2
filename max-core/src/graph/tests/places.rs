//! Shape rules and mistakes of ops that write by index, sort, resize, fold and transform.

use super::*;
use crate::graph::ops::{FoldOptions, InterpolationMode, Normalization};

fn shown(value: Result<TensorValue, GraphError>) -> String {
    match value {
        Ok(value) => value.ty().to_string(),
        Err(error) => {
            assert!(error.location().to_string().contains("tests/places.rs"), "{error}");
            error.kind().to_string()
        }
    }
}

#[track_caller]
fn fails(value: Result<TensorValue, GraphError>, part: &str) {
    let text = shown(value);
    assert!(text.contains(part), "{text}");
}

#[test]
fn scatters_keep_the_inputs_type() {
    let i64_type = |shape: Shape| TensorType::new(DType::I64, shape, DeviceRef::CPU);
    let (_, [x, u, i, wide, half, short]) = inputs([
        f32_type(("n", 8)),
        f32_type(("n", 3)),
        i64_type(("n", 3).into()),
        i64_type(("n", 4).into()),
        TensorType::new(DType::F16, ("n", 3), DeviceRef::CPU),
        i64_type((3,).into()),
    ]);
    assert_eq!(shown(ops::scatter(&x, &u, &i, 1)), "float32[n, 8]");
    assert_eq!(shown(ops::scatter_add(&x, &u, &i, -1)), "float32[n, 8]");
    fails(ops::scatter_max(&x, &u, &i, 0), "the dims of input and updates, except that of the axis, must be equal");
    fails(ops::scatter_min(&x, &u, &wide, 1), "the dims of updates and indices must be equal, got 3 and 4");
    fails(ops::scatter_mul(&x, &u, &i, 2), "axis 2 is out of range");
    fails(ops::scatter(&x, &half, &i, 1), "no dtype of float32, float16 holds the values of the others");
    fails(ops::scatter(&x, &u, &u, 1), "the tensor of indices has dtype float32, but the op takes integers");
    fails(ops::scatter(&x, &u, &short, 1), "the tensor of indices has rank 1, but must have 2 axes, as the input");
}

#[test]
fn scatter_nd_replaces_parts() {
    let i64_type = |shape: Shape| TensorType::new(DType::I64, shape, DeviceRef::CPU);
    let (_, [x, rows, elements, by_row, by_element, open]) = inputs([
        f32_type((6, 4, "n")),
        f32_type(("k", 4, "n")),
        f32_type(("k", "n")),
        i64_type(("k", 1).into()),
        i64_type(("k", 2).into()),
        i64_type(("k", "d").into()),
    ]);
    assert_eq!(shown(ops::scatter_nd(&x, &rows, &by_row)), "float32[6, 4, n]");
    assert_eq!(shown(ops::scatter_nd(&x, &elements, &by_element)), "float32[6, 4, n]");
    fails(ops::scatter_nd(&x, &rows, &by_element), "the updates has type float32[k, 4, n], but must have type");
    fails(ops::scatter_nd(&x, &rows, &open), "the last dim of the indices is d, but must be static");
    let (_, [x, u, i]) = inputs([f32_type(("n", 4)), f32_type((2, 4)), i64_type((2, 1).into())]);
    assert_eq!(shown(ops::scatter_nd(&x, &u, &i)), "float32[n, 4]");
    let (_, [x, mask, tall, u]) = inputs([
        f32_type(("n", 4)),
        TensorType::new(DType::Bool, (4,), DeviceRef::CPU),
        TensorType::new(DType::Bool, (2, "n", 4), DeviceRef::CPU),
        f32_type(("k",)),
    ]);
    assert_eq!(shown(ops::masked_scatter(&x, &mask, &u)), "float32[n, 4]");
    fails(ops::masked_scatter(&x, &tall, &u), "[2, n, 4] does not broadcast to [n, 4]");
    fails(ops::masked_scatter(&x, &x, &u), "the mask has dtype float32, but the op takes bool");
}

#[test]
fn axes_of_any_size_are_sorted() {
    let (_, [x, open, scalar]) = inputs([f32_type((5, "n")), f32_type(("n", 5)), f32_type(())]);
    assert_eq!(shown(ops::argsort(&x, true)), "int64[5, n]");
    assert_eq!(shown(ops::argsort(&open, true)), "int64[n, 5]");
    fails(ops::argsort(&scalar, false), "axis 0 is out of range for rank 0");
}

#[test]
fn images_are_resized_and_folded() {
    let (_, [x, wide, blocks, flat]) = inputs([
        f32_type(("b", 3, 5, 6)),
        TensorType::new(DType::F64, ("b", 3, 0, 6), DeviceRef::CPU),
        f32_type(("b", 12, 12)),
        f32_type((5, 6)),
    ]);
    let mode = InterpolationMode::Bicubic;
    assert_eq!(shown(ops::resize(&x, ("b", 3, 8, 9), mode)), "float32[b, 3, 8, 9]");
    fails(ops::resize(&x, ("b", 4, 8, 9), mode), "the image's batch and channels and the shape's must be equal");
    fails(ops::resize(&x, (8, 9), mode), "the shape has rank 2, but must have 4 axes");
    fails(ops::resize(&flat, (8, 9, 1, 1), mode), "the image has rank 2");
    fails(ops::resize(&wide, ("b", 3, 8, 9), mode), "the image's height or width is 0");
    fails(ops::resize(&wide, ("b", 3, 0, 9), mode), "the image has dtype float64");
    let fold = |x, size: [i64; 2], kernel, options| ops::fold(x, size, kernel, options);
    let one = FoldOptions::default();
    assert_eq!(shown(fold(&blocks, [4, 5], [2, 2], one)), "float32[b, 3, 4, 5]");
    assert_eq!(shown(fold(&blocks, [2, 3], [2, 2], FoldOptions { padding: [1, 1], ..one })), "float32[b, 3, 2, 3]");
    fails(fold(&blocks, [4, 6], [2, 2], one), "the last dim and the number of blocks must be equal, got 12 and 15");
    fails(fold(&blocks, [4, 7], [2, 4], FoldOptions { stride: [1, 1], ..one }), "is 12, but must be a multiple");
    fails(fold(&blocks, [1, 9], [2, 2], one), "the padded image is 1, but must be a block's size at least");
    fails(fold(&blocks, [4, 5], [2, 2], FoldOptions { stride: [0, 1], ..one }), "`stride` is [0, 1]");
    fails(fold(&flat, [4, 5], [2, 2], one), "the operand has rank 2, but must have 3 axes");
    let (height, width) = (Dim::from("h"), Dim::from("w"));
    let count = (&height - 1) * (&width - 1);
    let (_, [open, _]) =
        inputs([TensorType::new(DType::F32, [Dim::from("b"), 12.into(), count], DeviceRef::CPU), f32_type(("h", "w"))]);
    assert_eq!(shown(ops::fold(&open, [height, width], [2, 2], one)), "float32[b, 3, h, w]");
}

#[test]
fn norms_have_the_dtype_of_their_input() {
    for (input, weight) in [(DType::BF16, DType::F32), (DType::F32, DType::BF16), (DType::F16, DType::F64)] {
        let of = |dtype, shape: [i64; 2]| TensorType::new(dtype, &shape[..], DeviceRef::CPU);
        let (_, [x, w]) = inputs([of(input, [3, 8]), of(weight, [1, 8])]);
        let w = w.reshape([8]).unwrap();
        let expected = format!("{input}[3, 8]");
        assert_eq!(shown(ops::layer_norm(&x, &w, &w, 1e-5)), expected);
        assert_eq!(shown(ops::rms_norm(&x, &w, 1e-5)), expected);
        assert_eq!(shown(ops::group_norm(&x, &w, &w, 4, 1e-5)), expected);
    }
    let (_, [x, w]) = inputs([TensorType::new(DType::I32, (3, 8), DeviceRef::CPU), f32_type((8,))]);
    fails(ops::rms_norm(&x, &w, 1e-5), "the input has dtype int32, but the op takes floats");
}

#[test]
fn transforms_and_groups_say_what_they_need() {
    let (_, [x, pairs, open]) = inputs([f32_type(("b", 9)), f32_type(("b", 9, 2)), f32_type(("b", "k"))]);
    let back = Normalization::Backward;
    assert_eq!(shown(ops::irfft(&x, None, -1, back, false)), "float32[b, 16]");
    assert_eq!(shown(ops::irfft(&x, Some(7), 1, back, false)), "float32[b, 7]");
    assert_eq!(shown(ops::irfft(&pairs, Some(20), -1, back, true)), "float32[b, 20]");
    fails(ops::irfft(&x, None, -1, back, true), "the last dim of complex numbers is 9, but must be 2");
    fails(ops::irfft(&pairs, None, 2, back, true), "axis 2 is out of range for rank 2");
    assert_eq!(shown(ops::irfft(&open, None, 1, back, false)), "float32[b, k * 2 - 2]");
    fails(ops::irfft(&open, Some(0), 1, back, false), "`n` is 0");
    fails(ops::irfft(&x, Some(0), 1, back, false), "`n` is 0, but must be at least 1");
    // Of two factors, and of none.
    assert_eq!(shown(ops::irfft(&pairs, Some(6000), -1, back, true)), "float32[b, 6000]");
    assert_eq!(shown(ops::irfft(&x, Some(4099), -1, back, false)), "float32[b, 4099]");
    let (_, [x, weight, flat]) = inputs([f32_type(("b", 8, "h", 7)), f32_type((8,)), f32_type((8,))]);
    assert_eq!(shown(ops::group_norm(&x, &weight, &weight, 4, 1e-5)), "float32[b, 8, h, 7]");
    fails(ops::group_norm(&x, &weight, &weight, 3, 1e-5), "`num_groups` is 3, but must be a divisor of the 8 channels");
    fails(ops::group_norm(&x, &weight, &weight, 4, 0.0), "`epsilon` is 0");
    fails(ops::group_norm(&flat, &weight, &weight, 4, 1e-5), "the input has rank 1, but must have at least 2 axes");
}
