//! The code of `docs/guide/17-language-models.md`.

use max::graph::weights::SafetensorWeights;
use max::prelude::*;

use super::{close, f32s, run_as};

/// Turns each head of `x`, `[tokens * heads, size]`, by its token's position.
#[kernel(op = "guide_rope")]
fn rope<T: Float>(y: Out<T, 2>, x: In<T, 2>, positions: In<i64, 1>, #[param(default = 10000.0)] base: f64) {
    let row = program_id(0);
    let heads = x.dim(0) / positions.dim(0);
    let (size, half) = (x.dim(1), x.dim(1) / 2);
    let position = positions.at(row / heads) as f32;
    let octaves = (base as f32).log2();
    let x = x.row(row);
    y.row(row).write(lanes(size).map(|j| {
        let pair = if j < half { j } else { j - half };
        let angle = position * (-octaves * (2 * pair) as f32 / (size as f32)).exp2();
        let (a, b) = (x.at(pair) as f32, x.at(pair + half) as f32);
        let turned = if j < half { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() };
        turned as T
    }));
}

/// Writes rows into the cache, from a position on.
#[kernel(op = "guide_extend", grid(rows.dim(0)))]
fn extend<T: Any>(cache: &mut Buffer<T, 2>, rows: In<T, 2>, from: In<i64, 1>) {
    let row = program_id(0);
    let at = from.at(0) + row;
    rows.row(row).enumerate().for_each(|(v, column)| cache.scatter([at, column], v));
}

/// Attention of new tokens, of the heads' `[tokens, heads * size]`, to all `seen` so far.
fn attend(heads: i64, size: i64, room: i64) -> max::Result<Model> {
    let width = heads * size;
    let rows = TensorType::new(DType::F32, ("new", width), DeviceRef::CPU);
    let cache = BufferType::new(DType::F32, (room, width), DeviceRef::CPU);
    let seen = TensorType::new(DType::I64, ("seen",), DeviceRef::CPU);
    let from = TensorType::new(DType::I64, (1,), DeviceRef::CPU);
    let inputs: [max::graph::Type; 7] = [
        rows.clone().into(),
        rows.clone().into(),
        rows.into(),
        cache.clone().into(),
        cache.into(),
        seen.into(),
        from.into(),
    ];
    let graph = Graph::build("attend", inputs, |_, x| {
        let (new, seen) = (Dim::from("new"), Dim::from("seen"));
        for (rows, cache) in [(&x[1], &x[3]), (&x[2], &x[4])] {
            ops::inplace_custom("guide_extend", DeviceRef::CPU, [cache, rows, &x[6]], (), ())?;
        }
        let of_heads = |x: TensorValue, tokens: &Dim| x.reshape((tokens.clone(), heads, size))?.transpose(0, 1);
        let filled = |cache: &Value| cache.buffer()?.load()?.slice_tensor([..seen.clone()]);
        let q = of_heads(x[0].tensor()?.clone(), &new)?;
        let (k, v) = (of_heads(filled(&x[3])?, &seen)?, of_heads(filled(&x[4])?, &seen)?);
        let options = ops::AttentionOptions { causal: true, queries_last: true, ..Default::default() };
        ops::attention(q, k, v, options)?.transpose(0, 1)?.reshape((new, width))
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

/// Attention in which each token sees itself and the `window - 1` before it, of heads `[heads, tokens, size]`.
fn windowed(heads: i64, size: i64, window: i64) -> max::Result<Model> {
    let of_heads = TensorType::new(DType::F32, (heads, "tokens", size), DeviceRef::CPU);
    let positions = TensorType::new(DType::I64, ("tokens",), DeviceRef::CPU);
    let graph = Graph::build("windowed", [of_heads.clone(), of_heads.clone(), of_heads, positions], |graph, x| {
        let positions = x[3].tensor()?;
        let distance = ops::sub(positions.unsqueeze(1)?, positions.unsqueeze(0)?)?;
        let seen = ops::constant(graph, 0.0, DType::F32, DeviceRef::CPU)?;
        let mask = ops::where_(ops::greater(window, distance)?, seen, f32::NEG_INFINITY)?;
        let options = ops::AttentionOptions { causal: true, ..Default::default() };
        ops::attention_masked(&x[0], &x[1], &x[2], mask, options)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

/// A linear layer whose weight, `[out, in]`, and bias have the names, dtypes and shapes that they have in the file.
fn linear(weights: &SafetensorWeights, prefix: &str) -> max::Result<Model> {
    let layer = weights.at(prefix);
    let inner = layer.ty("weight")?.shape[1];
    let x = TensorType::new(DType::F32, ("tokens", inner), DeviceRef::CPU);
    let graph = Graph::build(prefix, [x], |graph, x| {
        let [weight, bias] = ["weight", "bias"].map(|name| graph.add_weight(&layer.weight(name, DeviceRef::CPU)?));
        ops::add(ops::matmul(&x[0], weight?.t()?)?, bias?)
    })?;
    Ok(InferenceSession::new().load_with_weights(&graph, weights)?)
}

/// `x · weightᵀ`, with row `j` of the weight, `[out, in]`, multiplied by `scale[j]`.
#[kernel(
    op = "guide_linear_i8",
    dtypes(T = [f32, bf16]),
    tile(BM = 64, BN = 96, BK = 512, when(x.dim(0) <= 8, BM = 8), v2(BM = 4, BN = 16), gpu(BM = 64, BN = 64, BK = 32))
)]
fn linear_i8<T: Float>(y: Out<T, 2>, x: In<T, 2>, weight: In<i8, 2>, scale: In<f32, 1>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, x.dim(1), BK) {
        acc = dot(x.tile::<BM, BK>(m, k), weight.tile::<BN, BK>(n, k).t(), acc);
    }
    let first = n * BN;
    y.tile::<BM, BN>(m, n).write(acc.map_indexed(|_, column, v| v * scale.at(first + column)).cast());
}

fn sampler(vocabulary: i64, k: usize) -> max::Result<Model> {
    let logits = TensorType::new(DType::F32, (vocabulary,), DeviceRef::CPU);
    let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
    let number = TensorType::new(DType::F32, (1,), DeviceRef::CPU);
    let graph = Graph::build("sampler", [logits, seed], |_, x| {
        let (likeliest, tokens) = ops::top_k(&x[0], k, -1)?;
        let shares = ops::cumsum(ops::softmax(likeliest, -1)?, -1, false, false)?;
        let number = ops::random::uniform(&x[1], number, 0.0..1.0)?;
        // The first whose share is above the number: those before it are counted.
        let before = ops::sum(ops::cast(ops::greater_equal(number, shares)?, DType::I64)?, -1)?;
        ops::gather(tokens, ops::minimum(before, k as i64 - 1)?, 0)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 11) % 61) as f32 / 30.0 - 1.0;
    Tensor::from_vec((0..shape.iter().product()).map(value).collect(), shape).unwrap()
}

#[test]
fn heads_are_turned_by_their_positions() {
    let (tokens, heads, size) = (3, 2, 6);
    let x = numbers(&[tokens * heads, size], 1);
    let positions = Tensor::from_slice(&[0i64, 5, 90], [tokens]).unwrap();
    let values = x.as_slice::<f32>().unwrap();
    let expected: Vec<f32> = (0..tokens * heads * size)
        .map(|i| {
            let (row, j, half) = (i / size, i % size, size / 2);
            let position = [0.0f64, 5.0, 90.0][row / heads];
            let angle = position * 1e4f64.powf(-2.0 * (j % half) as f64 / size as f64);
            let [a, b] = [j % half, j % half + half].map(|j| f64::from(values[row * size + j]));
            (if j < half { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }) as f32
        })
        .collect();
    let shape = [(tokens * heads) as i64, size as i64];
    let turned = &run_as("guide_rope", &[x.clone(), positions], &[(DType::F32, &shape)], ())[0];
    let differ = |(a, b): (&f32, &f32)| (a - b).abs() > 2e-5;
    let turned = turned.as_slice::<f32>().unwrap();
    assert!(!turned.iter().zip(&expected).any(differ), "{turned:?} instead of {expected:?}");
}

#[test]
fn tokens_one_by_one_see_what_they_see_at_once() {
    let (heads, size, room) = (2, 4, 8);
    let model = attend(heads, size, room).unwrap();
    let width = (heads * size) as usize;
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[5, width], seed));
    let caches = || [0, 1].map(|_| Tensor::zeros(DType::F32, [room as usize, width], &Device::cpu()).unwrap());
    let step = |[keys, values]: &mut [Tensor; 2], from: usize, to: usize| {
        let part = |x: &Tensor| x.narrow(0, from, to - from).unwrap();
        let (seen, at) = (Tensor::arange(0, to as i64, 1).unwrap(), Tensor::full(from as i64, [1]).unwrap());
        model.execute((&part(&q), &part(&k), &part(&v), keys, values, &seen, &at)).unwrap().remove(0)
    };
    let all = step(&mut caches(), 0, 5);
    let mut own = caches();
    for (from, to) in [(0, 2), (2, 3), (3, 5)] {
        let rows = step(&mut own, from, to);
        close(&rows, all.narrow(0, from, to - from).unwrap().contiguous().unwrap().as_slice().unwrap());
    }
    // The first token sees itself alone.
    close(&all.narrow(0, 0, 1).unwrap(), &v.as_slice::<f32>().unwrap()[..width]);
}

#[test]
fn tokens_see_no_further_than_the_window() {
    let (heads, tokens, size, window) = (2, 9, 4, 3);
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[heads, tokens, size], seed));
    let positions = Tensor::arange(0i64, tokens as i64, 1).unwrap();
    let model = windowed(heads as i64, size as i64, window as i64).unwrap();
    let at = |x: &Tensor, head: usize, token: usize| -> Vec<f64> {
        let row = &x.as_slice::<f32>().unwrap()[(head * tokens + token) * size..][..size];
        row.iter().map(|v| f64::from(*v)).collect()
    };
    let mut expected = Vec::new();
    for (head, token) in (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token))) {
        let seen = (token + 1).saturating_sub(window)..=token;
        let score = |key: usize| at(&q, head, token).iter().zip(at(&k, head, key)).map(|(a, b)| a * b).sum::<f64>();
        let weights: Vec<f64> = seen.clone().map(|key| (score(key) / (size as f64).sqrt()).exp()).collect();
        let total: f64 = weights.iter().sum();
        expected.extend((0..size).map(|j| {
            let sum: f64 = weights.iter().zip(seen.clone()).map(|(w, key)| w * at(&v, head, key)[j]).sum();
            (sum / total) as f32
        }));
    }
    close(&model.execute((&q, &k, &v, &positions)).unwrap()[0], &expected);
}

#[test]
fn weights_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let (weight, bias) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0f32, 20.0, 30.0]);
    let shards = [("weight", vec![3, 2], &weight[..]), ("bias", vec![3], &bias[..])].map(|(name, shape, values)| {
        let path = folder.path().join(format!("{name}.safetensors"));
        let data = bytemuck::cast_slice(values);
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, data).unwrap();
        safetensors::serialize_to_file([(format!("net.fc.{name}"), view)], None, &path).unwrap();
        path
    });
    // SAFETY: nobody else knows the files.
    let mapped = unsafe { SafetensorWeights::mmap(&shards) };
    for weights in [SafetensorWeights::open(&shards), mapped] {
        let model = linear(&weights.unwrap(), "net.fc").unwrap();
        let x = Tensor::from_slice(&[1.0f32, 10.0, 0.0, 1.0], [2, 2]).unwrap();
        close(&model.execute(&x).unwrap()[0], &[31.0, 63.0, 95.0, 12.0, 24.0, 36.0]);
    }
    let error = linear(&SafetensorWeights::open(&shards).unwrap(), "fc").unwrap_err().to_string();
    assert!(error.contains("there is no weight `fc.weight` among 2; did you mean `net.fc.weight`?"), "{error}");
}

#[test]
fn rows_of_weights_have_their_scales() {
    for (rows, inner, out) in [(1, 40, 33), (9, 130, 100)] {
        let x = numbers(&[rows, inner], 4);
        let weight: Vec<i8> = (0..out * inner).map(|i| (i * 7 % 255) as i8).collect();
        let scale: Vec<f32> = (0..out).map(|j| 0.01 + j as f32 * 1e-4).collect();
        let at = x.as_slice::<f32>().unwrap();
        let sum = |i: usize, j: usize| -> f64 {
            (0..inner).map(|l| f64::from(at[i * inner + l]) * f64::from(weight[j * inner + l])).sum()
        };
        let expected: Vec<f64> = (0..rows * out).map(|i| sum(i / out, i % out) * f64::from(scale[i % out])).collect();
        let operands = [x.clone(), Tensor::from_slice(&weight, [out, inner]).unwrap(), f32s(&scale)];
        let shape = [rows as i64, out as i64];
        let got = &run_as("guide_linear_i8", &operands, &[(DType::F32, &shape)], ())[0];
        for (got, expected) in got.as_slice::<f32>().unwrap().iter().zip(expected) {
            assert!((f64::from(*got) - expected).abs() < 1e-4, "{got} instead of {expected}");
        }
    }
}

#[test]
fn draws_are_among_the_likeliest() {
    let model = sampler(5, 3).unwrap();
    // Of the likeliest three the shares are 0.5, 0.3, and 0.2.
    let logits = f32s(&[0.2f32.ln(), -9.0, 0.5f32.ln(), -9.0, 0.3f32.ln()]);
    let mut counts = [0; 5];
    for seed in 0..2000i64 {
        let drawn = model.execute((&logits, &Tensor::scalar(seed).unwrap())).unwrap();
        counts[drawn[0].to_vec::<i64>().unwrap()[0] as usize] += 1;
    }
    for (count, share) in counts.into_iter().zip([0.2f64, 0.0, 0.5, 0.0, 0.3]) {
        assert!((count as f64 / 2000.0 - share).abs() <= 0.08 * share, "{counts:?}");
    }
}
