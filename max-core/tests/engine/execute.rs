//! Kernels over values of all kinds: views, broadcasts, symbolic sizes, nothing at all.

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{Dim, Graph, TensorType, ops};

#[test]
fn elementwise_kernels_of_edge_sizes() {
    let graph = Graph::build("relu", [f32s(("n",))], |_, inputs| ops::relu(&inputs[0])).unwrap();
    let model = load(&graph);
    for n in [0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 70_001] {
        let x: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { -1.0 } else { i as f32 }).collect();
        let outputs = model.execute(&Tensor::from_slice(&x, [n]).unwrap()).unwrap();
        assert_eq!(outputs[0].shape(), [n]);
        assert_eq!(values(&outputs[0]), x.iter().map(|v| v.max(0.0)).collect::<Vec<_>>());
    }
}

#[test]
fn scalars_and_constants() {
    let graph = Graph::build("g", [f32s(())], |_, inputs| {
        let x = inputs[0].tensor()?;
        Ok([x * 2.0 + 1.0, ops::relu(-3.0f32 + x)?])
    });
    let outputs = load(&graph.unwrap()).execute(&Tensor::scalar(2.0f32).unwrap()).unwrap();
    assert_eq!(outputs[0].shape(), [0usize; 0]);
    assert_eq!(outputs.iter().map(|t| t.item::<f32>().unwrap()).collect::<Vec<_>>(), [5.0, 0.0]);
}

#[test]
fn operands_are_read_through_views() {
    let graph = Graph::build("g", [f32s((3, 4)), f32s((4, 1)), f32s((2, 4, 3))], |_, inputs| {
        let [x, y, z] = [&inputs[0], &inputs[1], &inputs[2]].map(|v| v.tensor().unwrap().clone());
        ops::add(ops::add(x.t()?, y)?, z)
    });
    let (x, y, z) = (count(&[3, 4]), count(&[4, 1]), count(&[2, 4, 3]));
    let outputs = load(&graph.unwrap()).execute([&x, &y, &z]).unwrap();
    assert_eq!(outputs[0].shape(), [2, 4, 3]);
    let expected = (0..24).map(|i| {
        let (row, column) = (i / 3 % 4, i % 3);
        (column * 4 + row + row + i) as f32
    });
    assert_eq!(values(&outputs[0]), expected.collect::<Vec<_>>());
}

#[test]
fn rows_along_any_axis() {
    for (shape, axes) in [(vec![5], 1), (vec![3, 4], 2), (vec![2, 3, 4], 3), (vec![2, 3, 1, 5], 4), (vec![2, 0, 3], 3)]
    {
        for axis in 0..axes {
            let ty = f32s(shape.as_slice());
            let graph = Graph::build("g", [ty], |_, inputs| {
                let below = ops::softmax(&inputs[0], axis as i64)?;
                Ok([ops::sum(&inputs[0], axis as i64)?, below.clone(), ops::add(&below, &below)?])
            });
            let x = count(&shape);
            let outputs = load(&graph.unwrap()).execute(&x).unwrap();
            let strided = |i: usize| {
                let inner: usize = shape[axis + 1..].iter().product();
                let row = (i / (inner * shape[axis])) * inner * shape[axis] + i % inner;
                (0..shape[axis]).map(move |k| (row + k * inner) as f32)
            };
            let total = x.num_elements();
            let below: Vec<f32> = (0..total).map(|i| i as f32 - strided(i).fold(f32::NEG_INFINITY, f32::max)).collect();
            assert_eq!(values(&outputs[1]), below, "{shape:?} along {axis}");
            assert_eq!(values(&outputs[2]), below.iter().map(|v| v + v).collect::<Vec<_>>());
            let mut reduced = shape.clone();
            reduced[axis] = 1;
            assert_eq!(outputs[0].shape(), reduced);
            let inner: usize = shape[axis + 1..].iter().product();
            let sums = (0..reduced.iter().product::<usize>()).map(|i| {
                let first = i / inner * inner * shape[axis] + i % inner;
                (0..shape[axis]).map(|k| (first + k * inner) as f32).sum::<f32>()
            });
            assert_eq!(values(&outputs[0]), sums.collect::<Vec<_>>(), "{shape:?} along {axis}");
        }
    }
}

#[test]
fn matrices_of_any_order() {
    let graph = Graph::build("g", [f32s(("m", "k")), f32s(("n", "k"))], |_, inputs| {
        ops::matmul(&inputs[0], inputs[1].tensor()?.t()?)
    });
    let model = load(&graph.unwrap());
    for (m, k, n) in [(1, 1, 1), (5, 7, 3), (4, 16, 16), (9, 33, 17), (3, 0, 2), (0, 4, 2)] {
        let (a, b) = (count(&[m, k]), count(&[n, k]));
        let outputs = model.execute([&a, &b]).unwrap();
        let expected = (0..m * n).map(|i| (0..k).map(|j| ((i / n * k + j) * (i % n * k + j)) as f32).sum::<f32>());
        assert_eq!(values(&outputs[0]), expected.collect::<Vec<_>>(), "{m} {k} {n}");
    }
}

#[test]
fn symbols_are_bound_by_the_inputs() {
    let n = Dim::from("n");
    let graph = Graph::build("g", [f32s(("n", 2)), f32s([&n * 2])], |_, inputs| {
        let [x, y] = [&inputs[0], &inputs[1]].map(|v| v.tensor().unwrap().clone());
        let both = ops::concat([&x.reshape([&n * 2])?, &y], 0)?;
        let scaled = ops::custom("scale", DeviceRef::CPU, [&both], [both.ty().clone()], [("by", 10)])?;
        Ok((scaled[0].tensor()?.reshape(("n", 4))?, both.shape().num_elements().to_string().len()).0)
    });
    let model = load(&graph.unwrap());
    assert_eq!(model.output_metadata()[0].to_string(), "output0: float32[n, 4]");
    for n in [0, 1, 3] {
        let outputs = model.execute([&count(&[n, 2]), &count(&[2 * n])]).unwrap();
        assert_eq!(outputs[0].shape(), [n, 4]);
        let half = (0..2 * n).map(|i| i as f32 * 10.0);
        assert_eq!(values(&outputs[0]), half.clone().chain(half).collect::<Vec<_>>());
    }
}

#[test]
fn outputs_have_memory_of_their_own() {
    let graph = Graph::build("g", [f32s([3])], |_, inputs| {
        let x = inputs[0].tensor()?;
        let y = ops::relu(x)?;
        Ok([x.clone(), y.clone(), y.clone(), y.reshape([3, 1])?, x.broadcast_to([2, 3])?])
    });
    let x = count(&[3]);
    let mut outputs = load(&graph.unwrap()).execute(&x).unwrap();
    for tensor in &outputs[..4] {
        assert_eq!(values(tensor), [0.0, 1.0, 2.0]);
    }
    assert_eq!(values(&outputs[4]), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    for tensor in &mut outputs {
        assert!(tensor.is_contiguous() && !tensor.is_shared());
        tensor.as_mut_slice::<f32>().unwrap()[0] = 9.0;
    }
    assert_eq!(values(&x), [0.0, 1.0, 2.0]);
}

#[test]
fn constants_are_folded_and_large_ones_reordered() {
    let weights = count(&[40, 30]);
    let graph = Graph::new("g", [f32s(("n", 30))]);
    let w = ops::constant(&graph, weights.clone(), DType::F32, DeviceRef::CPU).unwrap();
    let folded = ops::add(&w, &w).unwrap();
    let y = ops::matmul(&graph.inputs()[0], folded.t().unwrap()).unwrap();
    let shape = ops::shape_to_tensor(&graph, [Dim::from(7), Dim::from("n")]).unwrap();
    graph.output((y, shape)).unwrap();
    let x = count(&[2, 30]);
    let outputs = load(&graph).execute(&x).unwrap();
    let expected = (0..80).map(|i| (0..30).map(|j| ((i / 40 * 30 + j) * (i % 40 * 30 + j) * 2) as f32).sum::<f32>());
    assert_eq!(values(&outputs[0]), expected.collect::<Vec<_>>());
    assert_eq!(outputs[1].to_vec::<i64>().unwrap(), [7, 2]);
}

#[test]
fn rebind_binds_and_checks() {
    let graph = Graph::build("g", [f32s(("n", "m"))], |_, inputs| {
        let x = inputs[0].tensor()?;
        let square = x.rebind(("side", "side"), "the matrix must be square")?;
        ops::add(&square, square.t()?)
    });
    let model = load(&graph.unwrap());
    assert_eq!(values(&model.execute(&count(&[2, 2])).unwrap()[0]), [0.0, 3.0, 3.0, 6.0]);
    let error = model.execute(&count(&[2, 3])).unwrap_err().to_string();
    assert!(error.contains("the operand has shape [2, 3], not [side, side]: the matrix must be square"), "{error}");
    assert!(error.contains("execute.rs:"), "{error}");
}

#[test]
fn the_reference_form_computes_the_same() {
    let graph = Graph::build("g", [f32s(("n", 33))], |_, inputs| {
        let x = inputs[0].tensor()?;
        ops::relu(ops::softmax(x, 0)? * x + 500.0)
    });
    let graph = graph.unwrap();
    let x = count(&[5, 33]);
    let compiled = load(&graph).execute(&x).unwrap();
    let reference = InferenceSession::new().reference(true).load(&graph).unwrap().execute(&x).unwrap();
    assert_eq!(values(&compiled[0]), values(&reference[0]));
}

#[test]
fn dtypes_of_one_size_share_memory_in_place() {
    let graph = Graph::build("g", [TensorType::new(DType::I32, ("n",), DeviceRef::CPU)], |_, inputs| {
        let x = ops::relu(&inputs[0])?;
        let y = ops::add(&x, &x)?;
        Ok([ops::add(ops::mul(&y, &x)?, 1)?, y])
    });
    let x = Tensor::from_slice(&[-5, 1, 2, 3], [4]).unwrap();
    let outputs = load(&graph.unwrap()).execute(&x).unwrap();
    assert_eq!(outputs[0].to_vec::<i32>().unwrap(), [1, 3, 9, 19]);
    assert_eq!(outputs[1].to_vec::<i32>().unwrap(), [0, 2, 4, 6]);
}
