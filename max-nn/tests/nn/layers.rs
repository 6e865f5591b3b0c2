//! Layers in both worlds, against formulas in `f64`.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::functional::functional;
use max::graph::TensorType;
use max::nn::rope::{Llama3RopeScalingParams, Llama3RotaryEmbedding};
use max::nn::transformer::{MoE, SharedExpertMoE};
use max::nn::{
    Activation, AvgPool2d, BatchNorm2d, Conv1d, Conv2d, Conv3d, ConvTranspose2d, Embedding, Forward, GroupNorm,
    LayerNorm, Linear, LoraLinear, MaxPool2d, Mlp, ModuleExt, MultiHeadAttention, PatchEmbedding, RmsNorm,
    RotaryEmbedding, Sequential,
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

#[test]
fn transposed_convolutions_paint_filters() -> Outcome {
    let (height, width, channels, out) = (3, 4, 2, 3);
    let x = random::normal([1, height, width, channels], 0.0, 1.0)?;
    let mut layer = ConvTranspose2d::new([3, 2], channels, out)?;
    layer.options.stride = [2, 1];
    let (values, w, b) = (wide(&x)?, wide(&layer.weight)?, wide(layer.bias.as_ref().expect("a bias"))?);
    let (rows, columns) = ((height - 1) * 2 + 3, width - 1 + 2);
    let mut want: Vec<f64> = (0..rows * columns).flat_map(|_| b.clone()).collect();
    for (at, x) in values.iter().enumerate() {
        let (i, column, row) = (at % channels, at / channels % width, at / channels / width);
        for (k, w) in w.iter().enumerate().filter(|(k, _)| k % channels == i) {
            let (o, kx, ky) = (k / channels % out, k / channels / out % 2, k / channels / out / 2);
            want[((row * 2 + ky) * columns + column + kx) * out + o] += x * w;
        }
    }
    near(&run(&layer, &x)?, &want);
    let torch = ConvTranspose2d { weight: layer.weight.permute([3, 2, 0, 1])?, permute: true, ..layer };
    let y = run(&torch, &x.permute([0, 3, 1, 2])?)?;
    let y = Tensor::from_slice(&y, [1, out, rows, columns])?.permute([0, 2, 3, 1])?;
    near(&y.to_vec::<f32>()?, &want);
    Ok(())
}

#[test]
fn layers_of_images_follow_their_formulas() -> Outcome {
    let x = random::normal([2, 4, 6, 3], 0.0, 1.0)?;
    let values = wide(&x)?;
    let windows = |of: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        let places =
            (0..2).flat_map(|n| (0..2).flat_map(move |y| (0..3).flat_map(move |x| (0..3).map(move |c| (n, y, x, c)))));
        let at = |n: usize, y: usize, x: usize, c: usize| values[((n * 4 + y) * 6 + x) * 3 + c];
        places
            .map(|(n, y, x, c)| {
                let window = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(dy, dx)| at(n, 2 * y + dy, 2 * x + dx, c));
                of(&window)
            })
            .collect()
    };
    near(&run(&MaxPool2d::new([2, 2]), &x)?, &windows(&|window| window.iter().copied().fold(f64::MIN, f64::max)));
    near(&run(&AvgPool2d::new([2, 2]), &x)?, &windows(&|window| window.iter().sum::<f64>() / 4.0));

    let mut norm = BatchNorm2d::new(4)?;
    norm.running_mean = random::normal([4], 0.0, 1.0)?;
    norm.running_var = random::uniform([4], 0.5..2.0)?;
    norm.weight = random::normal([4], 1.0, 0.1)?;
    let (mean, variance, weight) = (wide(&norm.running_mean)?, wide(&norm.running_var)?, wide(&norm.weight)?);
    let normalized = |(i, x): (usize, &f64)| {
        let c = i / 18 % 4;
        (x - mean[c]) / (variance[c] + 1e-5).sqrt() * weight[c]
    };
    near(&run(&norm, &x)?, &values.iter().enumerate().map(normalized).collect::<Vec<f64>>());

    // A patch is a row of numbers, and the filter a matrix.
    let layer = PatchEmbedding::new([2, 3], 4, 5)?;
    let (w, b) = (wide(&layer.projection.weight)?, wide(layer.projection.bias.as_ref().expect("a bias"))?);
    let image = random::normal([1, 4, 4, 6], 0.0, 1.0)?;
    let pixels = wide(&image)?;
    let mut want = Vec::new();
    for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let taps = (0..4).flat_map(|c| (0..2).flat_map(move |y| (0..3).map(move |x| (c, y, x))));
        let patch: Vec<f64> = taps.map(|(c, y, x)| pixels[(c * 4 + row * 2 + y) * 6 + column * 3 + x]).collect();
        want.extend(product(&patch, &w, 24).iter().zip(&b).map(|(y, b)| y + b));
    }
    near(&run(&layer, &image)?, &want);
    Ok(())
}

#[test]
fn corrections_of_low_rank_are_added_and_merged() -> Outcome {
    let x = random::normal([5, 8], 0.0, 1.0)?;
    let mut layer = LoraLinear::new(Linear::new(8, 4)?, 2, 3.0)?;
    layer.lora_b = random::normal([4, 2], 0.0, 1.0)?;
    let base = wide(&layer.base.forward(&x)?)?;
    let inner = product(&wide(&x)?, &wide(&layer.lora_a)?, 8);
    let correction = product(&inner, &wide(&layer.lora_b)?, 2);
    let want: Vec<f64> = base.iter().zip(&correction).map(|(y, more)| y + 1.5 * more).collect();
    near(&run(&layer, &x)?, &want);
    near(&run(&layer.merged()?, &x)?, &want);
    let none = Linear::of(Tensor::ones([3])?);
    assert!(LoraLinear::new(none, 2, 1.0).err().unwrap().to_string().contains("a matrix of static size"));
    Ok(())
}

#[test]
fn a_shared_expert_is_added_to_those_that_are_chosen() -> Outcome {
    let x = random::normal([6, 8], 0.0, 1.0)?;
    let experts = (0..3).map(|_| Mlp::new(8, 12, Activation::Silu)).collect::<Result<_, _>>()?;
    let experts = MoE::new(Linear::new(8, 3)?, experts, 2, "layer")?;
    let shared_expert = Mlp::new(8, 16, Activation::Silu)?;
    let gate = Linear::new(8, 1)?.without_bias();
    let (chosen, shared) = (wide(&experts.forward(&x)?)?, wide(&shared_expert.forward(&x)?)?);
    let weights: Vec<f64> = wide(&gate.forward(&x)?)?.iter().map(|g| 1.0 / (1.0 + (-g).exp())).collect();
    let mut layer = SharedExpertMoE { experts, shared_expert, shared_expert_gate: Some(gate) };
    let sum = |weight: &dyn Fn(usize) -> f64| -> Vec<f64> {
        chosen.iter().zip(&shared).enumerate().map(|(i, (y, more))| y + weight(i / 8) * more).collect()
    };
    near(&run(&layer, &x)?, &sum(&|token| weights[token]));
    let names: Vec<String> = layer.state_dict().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"gate.weight".to_owned()) && names.contains(&"shared_expert.up_proj.weight".to_owned()));
    layer.shared_expert_gate = None;
    near(&run(&layer, &x)?, &sum(&|_| 1.0));
    Ok(())
}
