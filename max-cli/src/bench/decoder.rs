//! A Llama decoder in plain ops, as a program writes it that knows no layers: norms, rotations and attention in terms of their parts.

use std::collections::HashMap;

use max::driver::{DeviceRef, DriverError, Tensor};
use max::dtype::DType;
use max::graph::{Dim, DimSlice, Graph, GraphError, TensorType, TensorValue, Value, ops};

/// The sizes of a decoder.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// How many layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: i64,
    /// Numbers of a head.
    pub head_dim: i64,
    /// Numbers between the two products behind attention.
    pub feed_forward: i64,
}

impl Sizes {
    /// Numbers of a token.
    pub fn hidden(&self) -> i64 {
        self.heads * self.head_dim
    }
}

/// What building gives.
type Result<T> = std::result::Result<T, GraphError>;

/// The decoder of `[tokens, hidden]`, with the cosines and sines of positions, `[tokens, head_dim / 2]`, and a mask that is added,
/// `[tokens, tokens]`. Weights are named as in files of Llama's.
///
/// # Errors
/// When the sizes make no tensors.
pub fn decoder(sizes: Sizes) -> Result<Graph> {
    let f32s = |shape: (&str, Dim)| TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let half = Dim::from(sizes.head_dim / 2);
    let types = [
        f32s(("tokens", sizes.hidden().into())),
        f32s(("tokens", half.clone())),
        f32s(("tokens", half)),
        f32s(("tokens", "tokens".into())),
    ];
    Graph::build("llama", types, |graph, inputs| {
        let [x, cos, sin, mask] = inputs else { return Ok(Vec::new()) };
        let mut x = x.tensor()?.clone();
        for layer in 0..sizes.layers {
            x = block(graph, sizes, layer, &x, [cos, sin, mask])?;
        }
        let norm = weight(graph, "model.norm.weight".to_owned(), &[sizes.hidden()])?;
        Ok(vec![rms_norm(&x, &norm)?])
    })
}

fn weight(graph: &Graph, name: String, shape: &[i64]) -> Result<TensorValue> {
    graph.add_weight(&max::graph::Weight::new(name, DType::F32, shape, DeviceRef::CPU))
}

fn rms_norm(x: &TensorValue, weight: &TensorValue) -> Result<TensorValue> {
    let mean = ops::mean(ops::mul(x, x)?, -1)?;
    ops::mul(weight, ops::mul(x, ops::rsqrt(ops::add(mean, 1e-5)?)?)?)
}

/// `[heads, tokens, head_dim]`, rotated.
fn rotated(x: &TensorValue, half: i64, cos: &Value, sin: &Value) -> Result<TensorValue> {
    let part = |range: DimSlice| ops::slice_tensor(x, [DimSlice::from(..), DimSlice::from(..), range]);
    let (first, second) = (part((..half).into())?, part((half..).into())?);
    let turned = [
        ops::sub(ops::mul(&first, cos)?, ops::mul(&second, sin)?)?,
        ops::add(ops::mul(&second, cos)?, ops::mul(&first, sin)?)?,
    ];
    ops::concat(turned, -1)
}

fn block(graph: &Graph, sizes: Sizes, layer: usize, x: &TensorValue, inputs: [&Value; 3]) -> Result<TensorValue> {
    let (hidden, ffn) = (sizes.hidden(), sizes.feed_forward);
    let [cos, sin, mask] = inputs;
    let named = |name: &str, shape: &[i64]| weight(graph, format!("model.layers.{layer}.{name}.weight"), shape);
    let linear =
        |x: &TensorValue, name: &str, shape: [i64; 2]| ops::matmul(x, ops::transpose(named(name, &shape)?, 0, 1)?);
    let normed = rms_norm(x, &named("input_layernorm", &[hidden])?)?;
    let heads = |name: &str| {
        let y = linear(&normed, &format!("self_attn.{name}_proj"), [hidden, hidden])?;
        ops::transpose(ops::reshape(y, ("tokens", sizes.heads, sizes.head_dim))?, 0, 1)
    };
    let half = sizes.head_dim / 2;
    let (q, k, v) = (rotated(&heads("q")?, half, cos, sin)?, rotated(&heads("k")?, half, cos, sin)?, heads("v")?);
    let scores = ops::mul(ops::matmul(q, ops::transpose(k, 1, 2)?)?, 1.0 / (sizes.head_dim as f64).sqrt())?;
    let attended = ops::matmul(ops::softmax(ops::add(scores, mask)?, -1)?, v)?;
    let attended = ops::reshape(ops::transpose(attended, 0, 1)?, ("tokens", hidden))?;
    let x = ops::add(x, linear(&attended, "self_attn.o_proj", [hidden, hidden])?)?;
    let normed = rms_norm(&x, &named("post_attention_layernorm", &[hidden])?)?;
    let gate = ops::silu(linear(&normed, "mlp.gate_proj", [ffn, hidden])?)?;
    let fed = ops::mul(gate, linear(&normed, "mlp.up_proj", [ffn, hidden])?)?;
    ops::add(x, linear(&fed, "mlp.down_proj", [hidden, ffn])?)
}

/// Weights of a decoder, small and of both signs, in memory of their own.
///
/// # Errors
/// When there is no memory for them.
pub fn weights(sizes: Sizes) -> std::result::Result<HashMap<String, Tensor>, DriverError> {
    let (hidden, ffn) = (sizes.hidden() as usize, sizes.feed_forward as usize);
    let tensor = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let value = |i: usize| ((i * 37 + 11) % 64) as f32 / 512.0 - 0.06;
        Tensor::from_vec((0..count).map(value).collect(), shape)
    };
    let mut all = HashMap::from([("model.norm.weight".to_owned(), tensor(&[hidden])?)]);
    for layer in 0..sizes.layers {
        let mut add = |name: &str, shape: &[usize]| {
            all.insert(format!("model.layers.{layer}.{name}.weight"), tensor(shape)?);
            Ok(())
        };
        for name in ["q", "k", "v", "o"] {
            add(&format!("self_attn.{name}_proj"), &[hidden, hidden])?;
        }
        for name in ["input", "post_attention"] {
            add(&format!("{name}_layernorm"), &[hidden])?;
        }
        for name in ["gate", "up"] {
            add(&format!("mlp.{name}_proj"), &[ffn, hidden])?;
        }
        add("mlp.down_proj", &[hidden, ffn])?;
    }
    Ok(all)
}
