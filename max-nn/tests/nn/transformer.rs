//! Decoders: eager and in graphs, and over a cache.

use max::driver::{self, Device, DeviceRef};
use max::dtype::DType;
use max::engine::{InferenceSession, Input};
use max::functional as f;
use max::graph::{Dim, Graph, TensorType, Type, Value};
use max::nn::rope::{LongRoPEScalingParams, RotaryFrequencies};
use max::nn::transformer::{AttentionWithRope, KvCacheValues, MoE, Step, Transformer, TransformerBlock};
use max::nn::{self, Activation, Embedding, Forward, Linear, Mlp, RmsNorm};
use max::tensor::Tensor;

type Outcome = Result<(), max::Error>;

fn near(a: &[f32], b: &[f32]) {
    let largest = b.iter().fold(1e-3f32, |largest, x| largest.max(x.abs()));
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && difference < 1e-5 * largest, "{difference} of {largest}");
}

#[test]
fn experts_are_the_same_in_both_worlds() -> Outcome {
    for (experts, per_token, normed) in [(4, 2, true), (3, 1, false), (2, 2, true)] {
        let all = (0..experts).map(|_| Mlp::new(8, 12, Activation::Silu)).collect::<Result<_, _>>()?;
        let mut layer = MoE::new(Linear::new(8, experts)?, all, per_token, "layer_0")?;
        layer.norm_topk_prob = normed;
        let model = layer.compile(&TensorType::new(DType::F32, ("n", 8), DeviceRef::CPU))?;
        for rows in [0usize, 1, 7] {
            let x = max::random::normal([rows, 8], 0.0, 1.0)?;
            let in_graph = model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?;
            near(&in_graph, &layer.forward(&x)?.to_vec::<f32>()?);
        }
    }
    let error = MoE::new(Linear::new(8, 1)?, vec![Mlp::new(8, 8, Activation::Silu)?], 2, "x").err().unwrap();
    assert!(error.to_string().contains("from 1 to the number of experts, 1"), "{error}");
    Ok(())
}

/// A decoder of two layers, one of which sees a window, with embeddings that switch at a length of 6.
fn decoder() -> max::Result<Transformer> {
    let scaling = LongRoPEScalingParams {
        short_factor: vec![1.0, 1.5],
        long_factor: vec![2.0, 3.0],
        original_max_position: 6,
        max_position_embeddings: 24,
    };
    let rope = vec![RotaryFrequencies::new(4, 100.0)?, RotaryFrequencies::long(4, 100.0, &scaling)?];
    let block = |i: usize| {
        let mut attention = AttentionWithRope::new(8, 4, 2, 4)?;
        attention.q_norm = Some(RmsNorm::new(4)?);
        let mlp = Box::new(Mlp::new(8, 16, Activation::Silu)?);
        let mut block = TransformerBlock::new(attention, mlp, RmsNorm::new(8)?, RmsNorm::new(8)?);
        block.rope = i;
        block.sliding_window = (i == 0).then_some(3);
        Ok(block)
    };
    let layers = (0..2).map(block).collect::<max::Result<_>>()?;
    Ok(Transformer::new(Embedding::new(16, 8)?, layers, RmsNorm::new(8)?, None, rope))
}

/// The logits of a whole sequence, eager.
fn eager(model: &Transformer, tokens: &[i64]) -> Result<Vec<f32>, max::Error> {
    let positions: Vec<i64> = (0..tokens.len() as i64).collect();
    let step = Step {
        tokens: Tensor::from_slice(tokens, [tokens.len()])?,
        positions: Tensor::from_slice(&positions, [tokens.len()])?,
        rows: None,
        sequences: Vec::new(),
    };
    Ok(model.logits(&step)?.to_vec::<f32>()?)
}

#[test]
fn two_sequences_over_their_caches_are_each_alone() -> Outcome {
    let model = decoder()?;
    // Each sequence: tokens, how many there were before, and buffers.
    let mut types: Vec<Type> = Vec::new();
    for i in 0..2 {
        let [new, past, room] = ["new", "past", "room"].map(|name| Dim::from(format!("{name}_{i}").as_str()));
        types.push(TensorType::new(DType::I64, [new], DeviceRef::CPU).into());
        types.push(TensorType::new(DType::U8, [past, Dim::from(0)], DeviceRef::CPU).into());
        for params in model.kv_params() {
            types.extend([(); 2].map(|()| Type::from(params.buffer_type(room.clone(), DeviceRef::CPU))));
        }
    }
    let graph = Graph::new("step", types);
    let (mut tokens, mut positions, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
    for inputs in graph.inputs().chunks(6) {
        let (new, past) = (inputs[0].tensor()?.shape()[0].clone(), inputs[1].tensor()?.shape()[0].clone());
        tokens.push(Tensor::from(inputs[0].tensor()?));
        let stop = past.clone() + &new;
        let range = max::graph::ops::range(&graph, past.clone(), stop, 1, DType::I64, DeviceRef::CPU)?;
        positions.push(f::reshape(range, [new.clone()])?);
        sequences.push(KvCacheValues::new(&inputs[2..], past, new)?);
    }
    let step = Step { tokens: f::concat(tokens, 0)?, positions: f::concat(positions, 0)?, rows: None, sequences };
    let logits: Value = (&model.logits(&step)?).into();
    graph.output(logits)?;
    let compiled = InferenceSession::new().load(&graph)?;

    let texts: [Vec<i64>; 2] = [vec![3, 1, 4, 1, 5, 9, 2, 6, 5], vec![2, 7, 1, 8]];
    let buffers = || -> Result<Vec<driver::Tensor>, max::Error> {
        (0..4).map(|_| Ok(driver::Tensor::zeros(DType::F32, [2, 16, 4], &Device::cpu())?)).collect()
    };
    let mut caches = [buffers()?, buffers()?];
    // The first sequence is long from its first step on; the second grows by two steps, and then has nothing new.
    let steps = [[0..7, 0..3], [7..8, 3..4], [8..9, 4..4]];
    for parts in steps {
        let new: Vec<driver::Tensor> = texts
            .iter()
            .zip(&parts)
            .map(|(text, part)| driver::Tensor::from_slice(&text[part.clone()], [part.len()]))
            .collect::<Result<_, _>>()?;
        let past: Vec<driver::Tensor> = parts
            .iter()
            .map(|part| driver::Tensor::zeros(DType::U8, [part.start, 0], &Device::cpu()))
            .collect::<Result<_, _>>()?;
        let mut inputs: Vec<Input<'_>> = Vec::new();
        for ((new, past), caches) in new.iter().zip(&past).zip(&mut caches) {
            inputs.extend([Input::from(new), Input::from(past)]);
            inputs.extend(caches.iter_mut().map(Input::from));
        }
        let found = compiled.execute(inputs)?[0].to_vec::<f32>()?;
        let mut expected = Vec::new();
        for (text, part) in texts.iter().zip(&parts) {
            expected.extend_from_slice(&eager(&model, &text[..part.end])?[part.start * 16..]);
        }
        near(&found, &expected);
    }
    Ok(())
}

#[test]
fn angles_depend_on_the_length_where_they_should() -> Outcome {
    let positions = Tensor::from_slice(&[0i64, 3, 5], [3])?;
    let x = max::random::normal([3, 2, 6], 0.0, 1.0)?;
    let dynamic = RotaryFrequencies::dynamic(4, 10000.0, 2.0, 8)?;
    let turned = |rope: &RotaryFrequencies, length: i64| -> Result<Vec<f32>, max::Error> {
        Ok(rope.angles(&positions, length)?.apply(&x)?.to_vec::<f32>()?)
    };
    let plain = turned(&RotaryFrequencies::new(4, 10000.0)?, 99)?;
    near(&turned(&dynamic, 8)?, &plain);
    // The base grows by (2 · 16 / 8 - 1)² for heads of 4.
    near(&turned(&dynamic, 16)?, &turned(&RotaryFrequencies::new(4, 90000.0)?, 0)?);
    // What is behind the rotated part stays.
    let before = x.to_vec::<f32>()?;
    assert!(before.chunks(6).zip(plain.chunks(6)).all(|(a, b)| a[4..] == b[4..]));
    // In a graph, where the length is a dim.
    let ty = TensorType::new(DType::I64, ("n",), DeviceRef::CPU);
    let all: Vec<i64> = (0..16).collect();
    let model = nn::compile("angles", &ty, |inputs| {
        let length = inputs[0].shape().num_elements();
        let ones = Tensor::ones([1, 1, 4])?;
        let wide = f::mul(f::cast(f::unsqueeze(f::unsqueeze(&inputs[0], 1)?, 1)?, DType::F32)? * 0.0 + 1.0, ones)?;
        dynamic.angles(&inputs[0], length)?.apply(&wide)
    })?;
    let found = model.execute(&driver::Tensor::from_slice(&all, [16])?)?[0].to_vec::<f32>()?;
    let whole = dynamic.angles(&Tensor::from_slice(&all, [16])?, 16)?.apply(&Tensor::ones([16, 1, 4])?)?;
    near(&found, &whole.to_vec::<f32>()?);
    Ok(())
}
