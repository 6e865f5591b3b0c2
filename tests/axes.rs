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
    let shapes: [&[usize]; 17] = [
        // Of axes of one element, lines are columns of one.
        &[1],
        &[1, 5003],
        &[70_001, 1],
        &[3, 1, 500],
        &[7],
        &[200_000],
        &[3, 1030],
        &[70_000, 3],
        &[2003, 36],
        &[6, 1024, 5],
        &[66_000, 20],
        &[5, 9, 600],
        &[2, 40_000, 16],
        // Columns that are divided among threads, and of several matrices.
        &[1500, 48],
        &[700, 128],
        &[70, 1340],
        &[3, 60, 500],
    ];
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

/// The results of `op` along an axis of floats, against its results along the last axis of the transpose.
fn check_against_rows(
    shape: &[usize],
    axis: usize,
    name: &str,
    op: impl Fn(&TensorValue, i64) -> Result<TensorValue, max::graph::GraphError>,
) {
    let elements: usize = shape.iter().product();
    let values: Vec<f64> = (0..elements as i64).map(|i| (i * 7919 % 1013 - 500) as f64 / 100.0).collect();
    let ty = TensorType::new(DType::F64, shape, DeviceRef::CPU);
    let last = shape.len() as i64 - 1;
    let graph = Graph::build("axes", ty, |_, x| {
        let x = x[0].tensor()?;
        // Along the last axis of a view, whose elements are first copied together.
        let rows = ops::transpose(op(&ops::transpose(x, axis as i64, last)?, last)?, axis as i64, last)?;
        Ok::<_, max::graph::GraphError>([op(x, axis as i64)?, rows])
    });
    let x = Tensor::from_slice(&values, shape).unwrap();
    let outputs = InferenceSession::new().load(&graph.unwrap()).unwrap().execute([&x]).unwrap();
    let [columns, rows] = [0, 1].map(|i| outputs[i].to_vec::<f64>().unwrap());
    assert_eq!(columns.len(), rows.len());
    for (i, (a, b)) in columns.iter().zip(&rows).enumerate() {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{name} of {shape:?} along {axis}: {a} and not {b} at {i}");
    }
}

#[test]
fn maps_along_every_axis_are_those_of_rows() {
    let shapes: [&[usize]; 14] = [
        &[5],
        &[0, 9],
        &[9, 0],
        &[1, 70],
        &[70, 1],
        &[700, 64],
        &[33, 65],
        &[3, 40, 7],
        &[2, 19, 130],
        &[3, 5, 2, 17],
        &[2, 3, 4, 5, 16],
        &[20_000, 96],
        &[3, 60, 500],
        &[50, 1340],
    ];
    for shape in shapes {
        for axis in 0..shape.len() {
            check_against_rows(shape, axis, "softmax", |x, axis| ops::softmax(x, axis));
            check_against_rows(shape, axis, "logsoftmax", |x, axis| ops::logsoftmax(x, axis));
            for (exclusive, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
                let name = format!("cumsum, exclusive {exclusive}, reverse {reverse}");
                check_against_rows(shape, axis, &name, |x, axis| ops::cumsum(x, axis, exclusive, reverse));
            }
            if shape[axis] > 0 {
                check_against_rows(shape, axis, "var", |x, axis| x.var(axis));
                check_against_rows(shape, axis, "stdev", |x, axis| x.stdev(axis));
            }
        }
    }
}

#[test]
fn columns_with_nan_and_infinity_are_those_of_rows() {
    // A column each, again and again: plain numbers, with NaN, with both infinities, and nothing but -infinity.
    let columns = [[1.0, 2.0, 3.0], [1.0, f32::NAN, 2.0], [f32::INFINITY, 1.0, 0.0], [f32::NEG_INFINITY; 3]];
    let inner = 150;
    for rows in [3, 30, 600] {
        let values: Vec<f32> = (0..rows).flat_map(|k| (0..inner).map(move |j| columns[j % 4][k % 3])).collect();
        let ty = TensorType::new(DType::F32, [rows, inner], DeviceRef::CPU);
        let graph = Graph::build("axes", ty, |_, x| ops::softmax(x[0].tensor()?, 0)).unwrap();
        let x = Tensor::from_slice(&values, [rows, inner]).unwrap();
        let outputs = InferenceSession::new().load(&graph).unwrap().execute([&x]).unwrap();
        let y = outputs[0].to_vec::<f32>().unwrap();
        for (i, y) in y.iter().enumerate() {
            let (k, j) = (i / inner, i % inner);
            if j % 4 > 0 {
                // The sum is NaN, and with it every element of the column.
                assert!(y.is_nan(), "{y} in row {k} of column {j}");
            } else {
                let e = [1.0f32, 2.0, 3.0].map(f32::exp);
                let share = e[k % 3] / e.iter().sum::<f32>() / (rows / 3) as f32;
                assert!((y - share).abs() < 1e-6 * share, "{y} and not {share} in row {k} of column {j}");
            }
        }
    }
}

#[test]
fn columns_are_the_same_on_any_number_of_threads() {
    for shape in [vec![70, 1340], vec![600, 200], vec![3, 90, 600]] {
        let axis = shape.len() as i64 - 2;
        let elements: usize = shape.iter().product();
        let values: Vec<f32> = (0..elements).map(|i| (i * 7919 % 1013) as f32 / 100.0 - 5.0).collect();
        let x = Tensor::from_slice(&values, shape.clone()).unwrap();
        let graph = Graph::build("axes", TensorType::new(DType::F32, shape.clone(), DeviceRef::CPU), |_, x| {
            let x = x[0].tensor()?;
            let both = [ops::softmax(x, axis)?, ops::logsoftmax(x, axis)?, ops::cumsum(x, axis, false, false)?];
            Ok::<_, max::graph::GraphError>(
                both.into_iter().chain([x.var(axis)?, ops::mean(x, axis)?]).collect::<Vec<_>>(),
            )
        });
        let graph = graph.unwrap();
        let on = |threads| {
            let model = InferenceSession::new().num_threads(threads).unwrap().load(&graph).unwrap();
            let bits = |y: &Tensor| y.to_vec::<f32>().unwrap().iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            model.execute([&x]).unwrap().iter().map(bits).collect::<Vec<_>>()
        };
        let alone = on(1);
        for threads in [2, 3, 8] {
            assert_eq!(on(threads), alone, "{shape:?} on {threads} threads");
        }
    }
}

/// Rows of a symbolic length, which threads take in parts where there are less rows than threads.
#[test]
fn long_rows_are_the_same_on_any_number_of_threads() {
    for (dtype, rounding) in [(DType::F32, 2e-5), (DType::BF16, 8e-3)] {
        let graph = Graph::build("axes", TensorType::new(DType::F32, ("rows", "n"), DeviceRef::CPU), |_, x| {
            let x = &ops::cast(x[0].tensor()?, dtype)?;
            let all = [ops::sum(x, -1)?, ops::mean(x, -1)?, x.var(-1)?, ops::softmax(x, -1)?, ops::logsoftmax(x, -1)?];
            all.into_iter()
                .chain([ops::argmax(x, -1)?])
                .map(|y| ops::cast(y, DType::F32))
                .collect::<Result<Vec<_>, _>>()
        });
        let graph = graph.unwrap();
        let models =
            [1, 2, 3, 8].map(|threads| InferenceSession::new().num_threads(threads).unwrap().load(&graph).unwrap());
        for [rows, n] in [[1, 65_535], [1, 65_536], [1, 65_537], [3, 100_003], [1, 2_200_001]] {
            // Numbers that both dtypes have.
            let values: Vec<f32> = (0..rows * n).map(|i| (i * 7919 % 1013 % 64) as f32 / 64.0).collect();
            let x = Tensor::from_slice(&values, [rows, n]).unwrap();
            let results = models.each_ref().map(|model| {
                let outputs = model.execute([&x]).unwrap();
                outputs.iter().map(|y| y.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
            });
            let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|y| y.to_bits()).collect::<Vec<_>>();
            for other in &results[1..] {
                assert!(bits(other) == bits(&results[0]), "{rows} rows of {n}, {dtype}");
            }
            let [sums, means, variances, shares, logs, firsts] = &results[0][..] else { panic!("six results") };
            for (row, values) in values.chunks(n).enumerate() {
                let x = || values.iter().map(|x| f64::from(*x));
                let (sum, largest) = (x().sum::<f64>(), x().fold(0.0, f64::max));
                let mean = sum / n as f64;
                let total = x().map(|x| (x - largest).exp()).sum::<f64>();
                let near = |y: f32, e: f64| {
                    assert!((f64::from(y) - e).abs() <= rounding * e.abs(), "{y}, not {e}: row {row} of {n}, {dtype}");
                };
                near(sums[row], sum);
                near(means[row], mean);
                near(variances[row], x().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64);
                assert_eq!(firsts[row] as usize, x().position(|x| x == largest).unwrap());
                for ((x, share), log) in x().zip(&shares[row * n..]).zip(&logs[row * n..]) {
                    near(*share, (x - largest).exp() / total);
                    near(*log, x - largest - total.ln());
                }
            }
        }
    }
}

#[test]
fn the_first_extreme_of_a_long_row_is_found_wherever_it_is() {
    const PART: usize = 1 << 20;
    let n = 2 * PART + 7;
    let ty = TensorType::new(DType::F32, [n], DeviceRef::CPU);
    let graph = Graph::build("axes", ty, |_, x| {
        let x = x[0].tensor()?;
        Ok::<_, max::graph::GraphError>([ops::argmax(x, 0)?, ops::argmin(-x, 0)?])
    });
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let check = |peaks: &[(usize, f32)], first: usize| {
        let mut values: Vec<f32> = (0..n).map(|i| (i * 7919 % 1013) as f32).collect();
        peaks.iter().for_each(|(at, value)| values[*at] = *value);
        let outputs = model.execute([&Tensor::from_slice(&values, [n]).unwrap()]).unwrap();
        for output in &outputs {
            assert_eq!(output.to_vec::<i64>().unwrap(), [first as i64], "{peaks:?}");
        }
    };
    for at in [0, 1, PART - 1, PART, 2 * PART - 1, 2 * PART, n - 1] {
        check(&[(at, 2000.0)], at);
        check(&[(at, 2000.0), (n - 1, 2000.0)], at);
        check(&[(0, 2000.0), (at, f32::NAN), (n - 1, f32::NAN)], at);
        check(&[(at, f32::INFINITY), (n - 1, f32::INFINITY)], at);
    }
    let lowest = Tensor::full(f32::NEG_INFINITY, [n]).unwrap();
    assert_eq!(model.execute([&lowest]).unwrap()[0].to_vec::<i64>().unwrap(), [0]);
}

/// Long axes of half precision are reduced in parts too, and rounded once.
#[test]
fn parts_of_halves_are_not_rounded() {
    for shape in [vec![200_000usize], vec![140_000, 3], vec![2, 131_072]] {
        let count: usize = shape.iter().product();
        // Beside sums of a few hundred thousand, parts that were rounded would be wrong by hundreds.
        let values: Vec<f64> = (0..count as i64).map(|i| (i * 7919 % 101 - 48) as f64).collect();
        for axis in 0..shape.len() {
            let ty = TensorType::new(DType::BF16, &shape[..], DeviceRef::CPU);
            let graph = Graph::build("halves", ty, |_, x| {
                let x = x[0].tensor()?;
                Ok([ops::sum(x, axis as i64)?, ops::max(x, axis as i64)?])
            });
            let x = Tensor::from_vec(values.iter().map(|v| bf16::from_f64(*v)).collect(), &shape[..]).unwrap();
            let outputs = InferenceSession::new().load(&graph.unwrap()).unwrap().execute([&x]).unwrap();
            let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
            let line =
                |i: usize| (0..size).map(move |k| (i / inner * size + k) * inner + i % inner).map(|at| values[at]);
            let found = |result: &Tensor| result.to_vec::<bf16>().unwrap();
            let sums: Vec<bf16> = (0..count / size).map(|i| bf16::from_f64(line(i).sum())).collect();
            assert_eq!(found(&outputs[0]), sums, "sum of {shape:?} along {axis}");
            let most = |i: usize| bf16::from_f64(line(i).fold(f64::NEG_INFINITY, f64::max));
            assert_eq!(
                found(&outputs[1]),
                (0..count / size).map(most).collect::<Vec<_>>(),
                "max of {shape:?} along {axis}"
            );
        }
    }
}

/// Masked scores: a softmax along any axis is that of the elements that are left, also where the first ones are masked.
#[test]
fn softmax_of_masked_elements() {
    let (rows, columns) = (70, 80);
    let masked = |k: usize, j: usize| k < j || (k + j).is_multiple_of(7);
    let at = |k: usize, j: usize| if masked(k, j) { f32::NEG_INFINITY } else { (k * 31 + j * 17) as f32 % 5.0 };
    let values: Vec<f32> = (0..rows).flat_map(|k| (0..columns).map(move |j| at(k, j))).collect();
    let ty = TensorType::new(DType::F32, (rows as i64, columns as i64), DeviceRef::CPU);
    let graph = Graph::build("masked", ty, |_, x| ops::softmax(x[0].tensor()?, 0)).unwrap();
    let x = Tensor::from_slice(&values, [rows, columns]).unwrap();
    let outputs = InferenceSession::new().load(&graph).unwrap().execute([&x]).unwrap();
    let got = outputs[0].to_vec::<f32>().unwrap();
    for j in 0..columns {
        let sum: f64 = (0..rows).map(|k| f64::from(at(k, j)).exp()).sum();
        for k in 0..rows {
            let (got, expected) = (f64::from(got[k * columns + j]), f64::from(at(k, j)).exp() / sum);
            // Of a column without elements, nothing is known.
            let agrees = if sum == 0.0 { got.is_nan() } else { (got - expected).abs() <= 1e-6 };
            assert!(agrees, "[{k}, {j}]: {got}, not {expected}");
        }
    }
}
