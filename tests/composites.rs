//! What a program writes in terms of several ops is one kernel, and computes what the ops compute.

use max::graph::GraphError;
use max::prelude::*;

/// The names of the steps of a graph.
fn steps(graph: &Graph) -> Vec<String> {
    let text = InferenceSession::new().explain(graph, &()).unwrap();
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let name = |line: &str| line.split_once(": ").and_then(|(_, rest)| rest.split_once(" on ")).unwrap().0.to_owned();
    text.lines().filter(begins).map(name).collect()
}

fn f32s(shape: impl Into<max::graph::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape, DeviceRef::CPU)
}

/// Numbers of both signs.
fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0;
    Tensor::from_vec((0..count).map(value).collect(), shape).unwrap()
}

/// The graph is these steps, and computes what `parts` computes, whose values are all returned, so that nothing is one kernel.
fn compare(
    types: &[TensorType],
    expected: &[&str],
    body: impl Fn(&[Value], &mut Vec<TensorValue>) -> Result<TensorValue, GraphError>,
) {
    let build = |all: bool| {
        Graph::build("composite", types.to_vec(), |_, inputs| {
            let mut parts = Vec::new();
            let result = body(inputs, &mut parts)?;
            parts.truncate(if all { parts.len() } else { 0 });
            parts.insert(0, result);
            Ok(parts)
        })
        .unwrap()
    };
    let (whole, parts) = (build(false), build(true));
    assert_eq!(steps(&whole), expected);
    let session = InferenceSession::new();
    let size =
        |ty: &TensorType| -> Vec<usize> { ty.shape.iter().map(|dim| dim.as_static().unwrap_or(5) as usize).collect() };
    let inputs: Vec<Tensor> = types.iter().map(|ty| numbers(&size(ty))).collect();
    let [whole, parts] = [whole, parts].map(|graph| session.load(&graph).unwrap().execute(&inputs[..]).unwrap());
    let [whole, parts] = [&whole[0], &parts[0]].map(|tensor| tensor.to_vec::<f32>().unwrap());
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{whole:?}\n{parts:?}");
    }
}

#[test]
fn norms_and_softmax() {
    compare(&[f32s(("n", 24))], &["softmax"], |x, parts| {
        let e = ops::exp(ops::sub(&x[0], ops::max(&x[0], -1)?)?)?;
        parts.push(e.clone());
        ops::div(&e, ops::sum(&e, -1)?)
    });
    let (x, w) = (f32s(("n", 3, 24)), f32s((24,)));
    compare(&[x.clone(), w.clone()], &["rms_norm"], |x, parts| {
        let mean = ops::mean(ops::mul(&x[0], &x[0])?, -1)?;
        parts.push(mean.clone());
        ops::mul(&x[1], ops::mul(&x[0], ops::rsqrt(ops::add(mean, 1e-3)?)?)?)
    });
    compare(&[x, w.clone(), w], &["layer_norm"], |x, parts| {
        let d = ops::sub(&x[0], ops::mean(&x[0], -1)?)?;
        parts.push(d.clone());
        let y = ops::mul(&d, ops::rsqrt(ops::add(ops::mean(ops::mul(&d, &d)?, -1)?, 1e-3)?)?)?;
        ops::add(ops::mul(y, &x[1])?, &x[2])
    });
}

#[test]
fn attention() {
    let heads = f32s((2, 4, "n", 8));
    let types = [heads.clone(), heads.clone(), heads, f32s(("n", "n"))];
    for masked in [false, true] {
        let name = if masked { "attention_masked" } else { "attention" };
        compare(&types, &[name], |x, parts| {
            let keys = ops::transpose(&x[1], -2, -1)?;
            let mut scores = ops::mul(ops::matmul(&x[0], keys)?, 0.25)?;
            if masked {
                scores = ops::add(scores, &x[3])?;
            }
            let weights = ops::softmax(scores, -1)?;
            parts.push(weights.clone());
            ops::matmul(weights, &x[2])
        });
    }
}
