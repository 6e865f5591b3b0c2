//! What the compiler puts together across several ops: products of one operand, parts of concatenations, and what depends on
//! weights alone.

use std::collections::HashMap;

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{Dim, DimSlice, Graph, GraphError, TensorValue, Weight, ops};
use proptest::prelude::*;

/// The names of the steps of a model.
fn steps(graph: &Graph) -> Vec<String> {
    let text = InferenceSession::new().explain(graph, &()).unwrap();
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let name = |line: &str| line.split_once(": ").and_then(|(_, rest)| rest.split_once(" on ")).unwrap().0.to_owned();
    text.lines().filter(begins).map(name).collect()
}

fn constant(graph: &Graph, shape: &[usize]) -> Result<TensorValue, GraphError> {
    ops::constant(graph, count(shape), DType::F32, DeviceRef::CPU)
}

/// `a · b`, of matrices with so many rows and columns.
fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3], transposed: bool) -> Vec<f32> {
    let at = |row: usize, column: usize| if transposed { b[column * k + row] } else { b[row * n + column] };
    let element = |i: usize| (0..k).map(|j| a[i / n * k + j] * at(j, i % n)).sum();
    (0..m * n).map(element).collect()
}

#[test]
fn products_of_one_operand_are_one() {
    let columns = [3, 20, 1];
    for transposed in [true, false] {
        let graph = Graph::build("qkv", [f32s(("n", 8))], |graph, inputs| {
            let x = inputs[0].tensor()?;
            let parts = columns.map(|columns| {
                let w = if transposed { constant(graph, &[columns, 8])?.t()? } else { constant(graph, &[8, columns])? };
                // A row kernel begins no epilogue.
                ops::softmax(ops::matmul(x, w)?, 1)
            });
            parts.into_iter().collect::<Result<Vec<_>, _>>()
        })
        .unwrap();
        let names = steps(&graph);
        assert_eq!(names.iter().filter(|name| *name == "matmul").count(), 1, "{names:?}");
        let model = load(&graph);
        for rows in [0, 1, 5, 33] {
            let results = model.execute(&count(&[rows, 8])).unwrap();
            for (result, n) in results.iter().zip(columns) {
                let weight = values(&count(&[8, n]));
                let y = product(&values(&count(&[rows, 8])), &weight, [rows, 8, n], transposed);
                let largest = |row: &[f32]| row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let expected: Vec<f32> =
                    y.chunks(n).flat_map(|row| row.iter().map(move |v| v - largest(row))).collect();
                assert_eq!(values(result), expected, "{rows} rows, {n} columns");
            }
        }
    }
}

#[test]
fn products_stay_alone_that_have_an_epilogue_or_are_returned() {
    let graph = Graph::build("mlp", [f32s(("n", 8))], |graph, inputs| {
        let [gate, up] = [0, 1].map(|_| ops::matmul(&inputs[0], constant(graph, &[8, 16])?));
        let [gate, up] = [gate?, up?];
        let returned = ops::matmul(&inputs[0], constant(graph, &[8, 3])?)?;
        Ok(vec![ops::mul(ops::relu(gate)?, ops::add(up, 1.0)?)?, returned])
    })
    .unwrap();
    // Weights of equal type are two constants. What is done with the first product is its epilogue, although the program
    // computes the second one before.
    assert_eq!(steps(&graph), ["matmul", "matmul", "matmul"]);
}

/// The parts one after the other along an axis.
fn concatenated(parts: &[(Vec<f32>, Vec<usize>)], axis: usize) -> Vec<f32> {
    let outer: usize = parts[0].1[..axis].iter().product();
    let row = |(data, shape): &(Vec<f32>, Vec<usize>), i: usize| {
        let size: usize = shape[axis..].iter().product();
        data[i * size..(i + 1) * size].to_vec()
    };
    (0..outer).flat_map(|i| parts.iter().flat_map(move |part| row(part, i))).collect()
}

#[test]
fn parts_of_a_concatenation_are_written_in_place() {
    // Halves of rows turned against each other, as rotary embeddings have them, side by side and alternating.
    let graph = Graph::build("turned", [f32s(("n", 2, 6))], |_, inputs| {
        let x = inputs[0].tensor()?;
        let part = |start: i64| x.slice_tensor([DimSlice::Ellipsis, DimSlice::range(start, start + 3)]);
        let (a, b) = (part(0)?, part(3)?);
        let (real, imaginary) = (ops::add(&a, ops::mul(&b, 2.0)?)?, ops::mul(ops::add(&a, &b)?, 3.0)?);
        Ok(vec![ops::concat([&real, &imaginary], 2)?, ops::stack([real, imaginary], -1)?])
    })
    .unwrap();
    // Two concatenations of the same values: one is written in place, the other is copied.
    let model = load(&graph);
    for n in [0, 1, 3, 400] {
        let x = values(&count(&[n, 2, 6]));
        let results = model.execute(&count(&[n, 2, 6])).unwrap();
        let (mut flat, mut pairs) = (Vec::new(), Vec::new());
        for row in x.chunks(6) {
            let real: Vec<f32> = (0..3).map(|i| row[i] + 2.0 * row[i + 3]).collect();
            let imaginary: Vec<f32> = (0..3).map(|i| 3.0 * (row[i] + row[i + 3])).collect();
            flat.extend(real.iter().chain(&imaginary));
            pairs.extend(real.iter().zip(&imaginary).flat_map(|(a, b)| [*a, *b]));
        }
        assert_eq!((values(&results[0]), values(&results[1])), (flat, pairs), "{n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn concatenations_of_results(
        shape in prop::collection::vec(1usize..6, 1..4),
        sizes in prop::collection::vec((1usize..300, 0usize..4), 1..4),
        axis in 0usize..3,
    ) {
        let axis = axis % shape.len();
        let shapes: Vec<Vec<usize>> = sizes.iter().map(|(size, _)| {
            let mut shape = shape.clone();
            shape[axis] = *size;
            shape
        }).collect();
        let dims = |shape: &Vec<usize>| shape.iter().map(|dim| Dim::from(*dim)).collect::<Vec<_>>();
        let types: Vec<_> = shapes.iter().map(|shape| f32s(dims(shape))).collect();
        let graph = Graph::build("parts", types, |_, inputs| {
            let part = |(i, (_, kind)): (usize, &(usize, usize))| {
                let x = inputs[i].tensor()?;
                match kind {
                    0 => Ok(x.clone()),
                    1 => ops::mul(x, 2.0),
                    // The same elements under another shape, and back.
                    2 => ops::reshape(ops::mul(ops::reshape(x, [x.shape().num_elements()])?, 2.0)?, x.shape()),
                    _ => ops::concat([ops::mul(x, 2.0)?, ops::relu(x)?], axis as i64),
                }
            };
            let parts = sizes.iter().enumerate().map(part).collect::<Result<Vec<_>, GraphError>>()?;
            ops::concat(parts, axis as i64)
        }).unwrap();
        let inputs: Vec<Tensor> = shapes.iter().map(|shape| count(shape)).collect();
        let result = load(&graph).execute(&inputs[..]).unwrap();
        let twice = |x: &Tensor| values(x).iter().map(|v| 2.0 * v).collect::<Vec<_>>();
        let parts: Vec<_> = inputs.iter().zip(&shapes).zip(&sizes).map(|((x, shape), (_, kind))| {
            let mut shape = shape.clone();
            let data = match kind {
                0 => values(x),
                1 | 2 => twice(x),
                _ => {
                    let both = concatenated(&[(twice(x), shape.clone()), (values(x), shape.clone())], axis);
                    shape[axis] *= 2;
                    both
                }
            };
            (data, shape)
        }).collect();
        prop_assert_eq!(values(&result[0]), concatenated(&parts, axis));
    }
}

#[test]
fn what_depends_on_weights_alone_is_computed_at_load() {
    let shape = [300, 200];
    let weight = Weight::new("w", DType::F32, [300, 200], DeviceRef::CPU);
    let graph = Graph::build("scaled", [f32s((300, 200))], |graph, inputs| {
        let scaled = ops::mul(ops::mul(graph.add_weight(&weight)?, 2.0)?, constant(graph, &[300, 1])?)?;
        ops::add(&inputs[0], scaled)
    })
    .unwrap();
    let weights = HashMap::from([("w".to_owned(), count(&shape))]);
    let session = InferenceSession::new();
    assert!(!session.explain(&graph, &weights).unwrap().contains("mul"));
    let result = session.load_with_weights(&graph, &weights).unwrap().execute(&count(&shape)).unwrap();
    let x = values(&count(&shape));
    let expected: Vec<f32> = x.iter().enumerate().map(|(i, v)| v + v * 2.0 * (i / 200) as f32).collect();
    assert_eq!(values(&result[0]), expected);
    // What is much larger than the constants is not.
    let wide = Graph::build("wide", [f32s((300, 200))], |graph, inputs| {
        let wide = ops::broadcast_to(constant(graph, &[200])?, (300, 200))?;
        ops::add(&inputs[0], ops::mul(wide.t()?, 2.0)?.t()?)
    });
    assert!(session.explain(&wide.unwrap(), &()).unwrap().contains("mul"));
}

#[test]
fn a_warm_model_computes_the_same() {
    let graph = Graph::build("layer", [f32s(("n", 64))], |graph, inputs| {
        ops::relu(ops::matmul(&inputs[0], constant(graph, &[64, 100])?)?)
    })
    .unwrap();
    let session = InferenceSession::new().num_threads(2).unwrap();
    let (cold, warm) = (session.load(&graph).unwrap(), session.load(&graph).unwrap());
    warm.warm_up().unwrap();
    for n in [1, 7, 70] {
        let x = count(&[n, 64]);
        assert_eq!(values(&cold.execute(&x).unwrap()[0]), values(&warm.execute(&x).unwrap()[0]));
    }
}

/// Large weights of mapped files are not copied for that: only what they become is kept.
#[test]
fn large_weights_of_files_are_not_put_together() {
    let folder = tempfile::tempdir().unwrap();
    for (rows, products) in [(64, 1), (2048, 2)] {
        let path = folder.path().join(format!("{rows}.safetensors"));
        let weight = Tensor::full(0.5f32, [rows, 512]).unwrap();
        let named = [("a", &weight), ("b", &weight)];
        max::graph::weights::save_safetensors(&path, named, &Default::default()).unwrap();
        // SAFETY: nobody changes the file.
        let weights = unsafe { max::graph::weights::SafetensorWeights::mmap([&path]) }.unwrap();
        let graph = Graph::build("two", [f32s(("n", 512))], |graph, inputs| {
            let of = |name: &str| {
                let w = graph.add_weight(&Weight::new(name, DType::F32, [rows as i64, 512], DeviceRef::CPU))?;
                ops::softmax(ops::matmul(&inputs[0], ops::transpose(w, 0, 1)?)?, 1)
            };
            Ok(vec![of("a")?, of("b")?])
        });
        let graph = graph.unwrap();
        let text = InferenceSession::new().explain(&graph, &weights).unwrap();
        assert_eq!(text.matches(": matmul on ").count(), products, "{text}");
    }
}
