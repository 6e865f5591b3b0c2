//! Reductions along every axis of tensors of many shapes, against their definitions: along rows, along columns, and of
//! long axes in parts.

use max::graph::ops;
use max::prelude::*;

type Reduction = fn(&TensorValue, i64) -> Result<TensorValue, max::graph::GraphError>;

/// The results of `op` along an axis of integers, and what `of` says of each line along it.
fn check(shape: &[usize], axis: usize, name: &str, op: Reduction, of: impl Fn(&[i64]) -> i64) {
    let elements: usize = shape.iter().product();
    let values: Vec<i64> = (0..elements as i64).map(|i| i * 7919 % 1013 - 500).collect();
    let ty = TensorType::new(DType::I64, shape, DeviceRef::CPU);
    let graph = Graph::build("axes", ty, |_, x| op(x[0].tensor()?, axis as i64)).unwrap();
    let x = Tensor::from_slice(&values, shape).unwrap();
    let outputs = InferenceSession::new().load(&graph).unwrap().execute([&x]).unwrap();

    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let line = |o: usize, j: usize| (0..size).map(|k| values[(o * size + k) * inner + j]).collect::<Vec<_>>();
    let outer = elements / size / inner;
    let expected: Vec<i64> =
        (0..outer).flat_map(|o| (0..inner).map(move |j| (o, j))).map(|(o, j)| of(&line(o, j))).collect();
    assert_eq!(outputs[0].to_vec::<i64>().unwrap(), expected, "{name} of {shape:?} along {axis}");
}

#[test]
fn every_axis_is_reduced_as_defined() {
    let shapes: [&[usize]; 7] =
        [&[7], &[200_000], &[3, 1030], &[70_000, 3], &[66_000, 20], &[5, 9, 600], &[2, 40_000, 16]];
    for shape in shapes {
        for axis in 0..shape.len() {
            check(shape, axis, "sum", |x, axis| ops::sum(x, axis), |line| line.iter().sum());
            check(
                shape,
                axis,
                "prod",
                |x, axis| ops::prod(x, axis),
                |line| line.iter().fold(1, |a, v| a.wrapping_mul(*v)),
            );
            check(shape, axis, "max", |x, axis| ops::max(x, axis), |line| *line.iter().max().unwrap());
            check(shape, axis, "min", |x, axis| ops::min(x, axis), |line| *line.iter().min().unwrap());
            let first = |line: &[i64], best: &i64| line.iter().position(|v| v == best).unwrap() as i64;
            check(
                shape,
                axis,
                "argmax",
                |x, axis| ops::argmax(x, axis),
                |line| first(line, line.iter().max().unwrap()),
            );
            check(
                shape,
                axis,
                "argmin",
                |x, axis| ops::argmin(x, axis),
                |line| first(line, line.iter().min().unwrap()),
            );
        }
    }
}
