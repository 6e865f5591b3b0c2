//! Ops that are more than their kernel, against their definitions.

use max::graph::ops::{self, AttentionOptions};
use max::prelude::*;

use crate::random::Rng;

type GraphResult<T> = Result<T, max::graph::GraphError>;

/// The results of a graph of one op on inputs.
pub fn run(inputs: &[Tensor], op: impl FnOnce(&[Value]) -> GraphResult<Vec<TensorValue>>) -> Vec<Tensor> {
    let types: Vec<TensorType> = inputs.iter().map(|t| TensorType::new(t.dtype(), t.shape(), DeviceRef::CPU)).collect();
    let graph = Graph::build("op", types, |_, x| op(x)).expect("a graph");
    InferenceSession::new().load(&graph).expect("a model").execute(inputs).expect("results")
}

/// Numbers between -1 and 1.
pub fn numbers(shape: &[usize], rng: &mut Rng) -> Tensor {
    let values = (0..shape.iter().product()).map(|_| rng.uniform(-1.0, 1.0) as f32).collect::<Vec<f32>>();
    Tensor::from_vec(values, shape).expect("a tensor")
}

/// Attention by its definition, of `[batch, heads, queries, size]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Vec<f64> {
    let (sizes, keys) = (q.shape().to_vec(), k.shape()[2]);
    let [batch, heads, queries, d] = sizes[..] else { panic!("four axes") };
    let (shared, width) = (k.shape()[1], v.shape()[3]);
    let floats = |t: &Tensor| t.to_vec::<f32>().expect("floats").into_iter().map(f64::from).collect::<Vec<f64>>();
    let (q, k, v) = (floats(q), floats(k), floats(v));
    let mut all = Vec::new();
    for row in 0..batch * heads * queries {
        let (b, h, i) = (row / queries / heads, row / queries % heads, row % queries);
        let head = b * shared + h / (heads / shared);
        let seen = if causal { keys.min(i + 1) } else { keys };
        let score = |j: usize| (0..d).map(|c| q[row * d + c] * k[(head * keys + j) * d + c]).sum::<f64>();
        let weights: Vec<f64> = (0..seen).map(|j| (score(j) / (d as f64).sqrt()).exp()).collect();
        let total: f64 = weights.iter().sum();
        for c in 0..width {
            all.push((0..seen).map(|j| weights[j] * v[(head * keys + j) * width + c]).sum::<f64>() / total);
        }
    }
    all
}

#[test]
fn attention_is_as_defined_however_heads_share_keys() {
    let mut rng = Rng(11);
    // Batch, heads, key heads, queries, keys, head size, value size.
    for [b, heads, shared, queries, keys, d, width] in [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 8, 2, 1, 300, 128, 128],
        [1, 8, 1, 1, 40, 64, 64],
        [1, 3, 3, 2, 9, 257, 30],
        [2, 6, 2, 5, 70, 33, 300],
        [1, 4, 2, 30, 30, 64, 64],
    ] {
        let q = numbers(&[b, heads, queries, d], &mut rng);
        let k = numbers(&[b, shared, keys, d], &mut rng);
        let v = numbers(&[b, shared, keys, width], &mut rng);
        for causal in [false, true] {
            let want = attention(&q, &k, &v, causal);
            let options = AttentionOptions { causal, ..AttentionOptions::default() };
            let got =
                run(&[q.clone(), k.clone(), v.clone()], |x| Ok(vec![ops::attention(&x[0], &x[1], &x[2], options)?]));
            assert_eq!(got[0].shape(), [b, heads, queries, width]);
            for (got, want) in got[0].to_vec::<f32>().expect("floats").into_iter().zip(want) {
                assert!((f64::from(got) - want).abs() < 1e-5, "{got}, not {want}: {:?}", (heads, queries, d, causal));
            }
        }
    }
}
