//! Layers in both worlds, against formulas in `f64`.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::functional::functional;
use max::graph::TensorType;
use max::nn::rope::{Llama3RopeScalingParams, Llama3RotaryEmbedding};
use max::nn::{
    Activation, Conv1d, Conv2d, Conv3d, Embedding, Forward, GroupNorm, LayerNorm, Linear, Mlp, MultiHeadAttention,
    RmsNorm, RotaryEmbedding, Sequential,
};
use max::random;
use max::tensor::Tensor;

type Outcome = Result<(), max::Error>;

/// What a layer computes eagerly, in a region and as a model, which has to be the same.
#[track_caller]
fn run(layer: &impl Forward, x: &Tensor) -> Result<Vec<f32>, max::Error> {
    let eager = layer.forward(x)?.to_vec::<f32>()?;
    let region = functional(|| layer.forward(x))?.to_vec::<f32>()?;
    let model = layer.compile(x.ty())?;
    let compiled = model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?;
    assert_eq!(eager, region);
    for (a, b) in eager.iter().zip(&compiled) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} eagerly, {b} as a model");
    }
    Ok(eager)
}

#[track_caller]
fn near(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= 1e-4 * (1.0 + want.abs()), "element {i} is {got}, not {want}");
    }
}

fn wide(x: &Tensor) -> Result<Vec<f64>, max::Error> {
    Ok(x.cast(DType::F64)?.to_vec::<f64>()?)
}

/// `x Wᵀ` of rows.
fn product(x: &[f64], w: &[f64], inner: usize) -> Vec<f64> {
    x.chunks(inner).flat_map(|x| w.chunks(inner).map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum())).collect()
}

#[test]
fn linear_and_mlp_follow_their_formulas() -> Outcome {
    let x = random::normal([5, 6], 0.0, 1.0)?;
    let layer = Linear::new(6, 4)?;
    let mut want = product(&wide(&x)?, &wide(&layer.weight)?, 6);
    let bias = wide(layer.bias.as_ref().expect("a bias"))?;
    want.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % 4]);
    near(&run(&layer, &x)?, &want);

    let mlp = Mlp::new(6, 8, Activation::Silu)?;
    let (gate, up) =
        (product(&wide(&x)?, &wide(&mlp.gate_proj.weight)?, 6), product(&wide(&x)?, &wide(&mlp.up_proj.weight)?, 6));
    let hidden: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    near(&run(&mlp, &x)?, &product(&hidden, &wide(&mlp.down_proj.weight)?, 8));
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh, Activation::Sigmoid]
    {
        run(&Mlp::new(6, 8, activation)?, &x)?;
    }
    Ok(())
}

#[test]
fn norms_follow_their_formulas() -> Outcome {
    let x = random::normal([3, 4, 8], 1.0, 2.0)?;
    let values = wide(&x)?;
    let normalized = |size: usize, eps: f64, centered: bool| -> Vec<f64> {
        let rows = values.chunks(size).flat_map(|row| {
            let mean = if centered { row.iter().sum::<f64>() / size as f64 } else { 0.0 };
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / size as f64;
            row.iter().map(move |x| (x - mean) / (variance + eps).sqrt()).collect::<Vec<_>>()
        });
        rows.collect()
    };
    near(&run(&LayerNorm::new(8)?, &x)?, &normalized(8, 1e-5, true));
    near(&run(&LayerNorm::new(8)?.without_bias(), &x)?, &normalized(8, 1e-5, true));
    near(&run(&RmsNorm::new(8)?, &x)?, &normalized(8, 1e-6, false));
    let mut gemma = RmsNorm::new(8)?;
    (gemma.weight_offset, gemma.multiply_before_cast) = (1.0, false);
    let doubled: Vec<f64> = normalized(8, 1e-6, false).iter().map(|y| 2.0 * y).collect();
    near(&run(&gemma, &x)?, &doubled);
    // Two groups of two channels of eight.
    near(&run(&GroupNorm::new(2, 4)?, &x)?, &normalized(16, 1e-5, true));
    Ok(())
}

#[test]
fn convolutions_agree_with_each_other_and_with_pytorchs_order() -> Outcome {
    let x = random::normal([2, 9, 3], 0.0, 1.0)?;
    let one = Conv1d::new(3, 3, 4)?;
    let (values, w, b) = (wide(&x)?, wide(&one.weight)?, wide(one.bias.as_ref().expect("a bias"))?);
    let mut want = Vec::new();
    for (n, at) in (0..2).flat_map(|n| (0..7).map(move |at| (n, at))) {
        for o in 0..4 {
            let taps = (0..3).flat_map(|k| (0..3).map(move |i| (k, i)));
            let sum: f64 = taps.map(|(k, i)| values[(n * 9 + at + k) * 3 + i] * w[(k * 3 + i) * 4 + o]).sum();
            want.push(sum + b[o]);
        }
    }
    near(&run(&one, &x)?, &want);
    // The same as an image and as a volume of one row.
    let two = Conv2d {
        weight: one.weight.unsqueeze(0)?,
        bias: one.bias.clone(),
        options: Default::default(),
        permute: false,
    };
    near(&run(&two, &x.unsqueeze(1)?)?, &want);
    let three = Conv3d {
        weight: one.weight.reshape([1, 1, 3, 3, 4])?,
        bias: one.bias.clone(),
        options: Default::default(),
        permute: false,
    };
    near(&run(&three, &x.reshape([2, 1, 1, 9, 3])?)?, &want);
    let torch = Conv1d { weight: one.weight.permute([2, 1, 0])?, permute: true, ..one };
    let y = torch.forward(&x.transpose(1, 2)?)?.transpose(1, 2)?;
    near(&y.to_vec::<f32>()?, &want);
    Ok(())
}

#[test]
fn attention_follows_its_formula() -> Outcome {
    let (heads, key_heads, size, n) = (4, 2, 4, 5);
    let x = random::normal([1, n, heads * size], 0.0, 1.0)?;
    let mut layer = MultiHeadAttention::new(heads * size, heads, key_heads)?;
    layer.causal = true;
    let values = wide(&x)?;
    let projected = |linear: &Linear| -> Result<Vec<f64>, max::Error> {
        Ok(product(&values, &wide(&linear.weight)?, heads * size))
    };
    let (q, k, v) = (projected(&layer.q_proj)?, projected(&layer.k_proj)?, projected(&layer.v_proj)?);
    let mut mixed = vec![0.0; n * heads * size];
    for (i, h) in (0..n).flat_map(|i| (0..heads).map(move |h| (i, h))) {
        let shared = h / (heads / key_heads);
        let at = |j: usize, e: usize| (j * key_heads + shared) * size + e;
        let score = |j: usize| (0..size).map(|e| q[(i * heads + h) * size + e] * k[at(j, e)]).sum::<f64>() / 2.0;
        let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
        let total: f64 = weights.iter().sum();
        for e in 0..size {
            mixed[(i * heads + h) * size + e] =
                weights.iter().enumerate().map(|(j, w)| w * v[at(j, e)]).sum::<f64>() / total;
        }
    }
    near(&run(&layer, &x)?, &product(&mixed, &wide(&layer.o_proj.weight)?, heads * size));
    assert!(MultiHeadAttention::new(10, 3, 1).is_err() && MultiHeadAttention::new(12, 4, 3).is_err());
    Ok(())
}

#[test]
fn rotations_follow_their_formula() -> Outcome {
    let (n, heads, size, start) = (6, 2, 8, 3);
    let x = random::normal([1, n, heads, size], 0.0, 1.0)?;
    let values = wide(&x)?;
    for interleaved in [true, false] {
        let rope = RotaryEmbedding::new(size, 10000.0, 32)?.interleaved(interleaved);
        let mut want = values.clone();
        for (p, h, i) in (0..n).flat_map(|p| (0..heads).flat_map(move |h| (0..size / 2).map(move |i| (p, h, i)))) {
            let angle = (p + start) as f64 * 10000f64.powf(-2.0 * i as f64 / size as f64);
            let at = (p * heads + h) * size;
            let (a, b) = if interleaved { (at + 2 * i, at + 2 * i + 1) } else { (at + i, at + i + size / 2) };
            want[a] = values[a] * angle.cos() - values[b] * angle.sin();
            want[b] = values[a] * angle.sin() + values[b] * angle.cos();
        }
        near(&rope.apply(&x, start as i64)?.to_vec::<f32>()?, &want);
        // With named dims, in a graph.
        let ty = TensorType::new(DType::F32, ("batch", "n", heads, size), DeviceRef::CPU);
        let model = max::nn::compile("rope", [ty], |x| rope.apply(&x[0], start as i64))?;
        near(&model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?, &want);
    }
    let rope = RotaryEmbedding::new(size, 10000.0, 2)?;
    assert!(rope.apply(&x, 0).unwrap_err().to_string().contains("within the table's 4 positions"));
    assert!(rope.apply(&Tensor::ones([1, 2, 2, 4])?, 0).is_err() && RotaryEmbedding::new(3, 1e4, 8).is_err());
    // Slow waves are divided by the factor, fast ones are not.
    let scaling =
        Llama3RopeScalingParams { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, orig_max_position: 8 };
    let llama = Llama3RotaryEmbedding::new(size, 10000.0, 4, Some(scaling))?;
    let cos = |i: isize| llama.freqs_cis().i((1, i, 0))?.item::<f32>();
    assert!((cos(3)? - (0.001f32 / 8.0).cos()).abs() < 1e-6);
    // And those between are mixed.
    let smooth = (8.0 / (2.0 * std::f32::consts::PI) - 1.0) / 3.0;
    assert!((cos(0)? - ((1.0 - smooth) / 8.0 + smooth).cos()).abs() < 1e-6);
    Ok(())
}

#[test]
fn embeddings_and_sequences_compose() -> Outcome {
    let table = Embedding::new(10, 4)?;
    let tokens = Tensor::constant([3i64, 9, 3])?;
    let rows = table.forward(&tokens)?;
    let all = table.weight.to_vec::<f32>()?;
    assert_eq!(rows.to_vec::<f32>()?, [&all[12..16], &all[36..40], &all[12..16]].concat());
    let model = table.compile(&TensorType::new(DType::I64, ("n",), DeviceRef::CPU))?;
    assert_eq!(model.execute(&driver::Tensor::from_slice(&[9i64], [1])?)?[0].to_vec::<f32>()?, &all[36..40]);
    let x = random::normal([2, 4], 0.0, 1.0)?;
    run(&Sequential::new().then(Linear::new(4, 8)?).then(LayerNorm::new(8)?).then(Linear::new(8, 2)?), &x)?;
    assert_eq!(Sequential::new().forward(&x)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    Ok(())
}
