//! Ops over a paged cache, against their definitions.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::{InferenceSession, Input};
use max::graph::quantization::QuantizationEncoding;
use max::graph::{Graph, TensorType, Type, Value};
use max::nn::kernels::{
    KeysOrValues, MhaMaskVariant, RaggedAttentionOptions, cross_attention_ragged, flash_attention_ragged,
    fused_qk_ragged_rope, fused_qkv_ragged_matmul, fused_qkv_ragged_matmul_scaled_float8, kv_cache_ragged_radd,
    kv_cache_ragged_read, kv_cache_ragged_store, matmul_k_cache_ragged, matmul_kv_cache_ragged, rms_norm_key_cache,
    sgmv_qkv_lora_kernel, swish_glu, unfused_qkv_ragged_matmul_gguf_quantized,
};
use max::nn::kv_cache::{
    KvCacheParams, PagedKvCacheInputs, PagedKvCacheManager, PagedKvCacheMemory, PagedKvCacheValues,
};
use max::nn::rope::RotaryFrequencies;
use max::nn::transformer::{AttentionImpl, AttentionStep, RaggedAttention};
use max::nn::{Forward, Linear};
use max::tensor::Tensor;

type Outcome = Result<(), max::Error>;

const SIZE: usize = 6;
const KEY_HEADS: usize = 2;
const HEADS: usize = 6;

/// Numbers between -1 and 1.
pub fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + 1) * (2 * seed + 7919)) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Tokens that sequences have in a cache, and new ones.
pub struct Batch {
    manager: PagedKvCacheManager,
    memory: PagedKvCacheMemory,
    layers: Vec<KvCacheParams>,
}

impl Batch {
    fn new(page_size: usize, dtype: DType) -> Result<Batch, max::Error> {
        Batch::of(KvCacheParams { page_size, ..KvCacheParams::new(dtype, KEY_HEADS, SIZE) })
    }

    /// Of two layers.
    pub fn of(layer: KvCacheParams) -> Result<Batch, max::Error> {
        let layers = vec![layer; 2];
        let manager = PagedKvCacheManager::new(256, layer.page_size, false);
        Ok(Batch { manager, memory: PagedKvCacheMemory::new(&layers)?, layers })
    }

    /// A graph over the cache, and its results for tensors of `[new tokens, ..]`.
    pub fn run(
        &mut self,
        sequences: &[(usize, usize)],
        operands: &[(&[usize], &[f32])],
        build: impl Fn(&[Tensor], &PagedKvCacheValues) -> Result<Vec<Tensor>, max::Error>,
    ) -> Result<Vec<Vec<f32>>, max::Error> {
        for (name, (cached, new)) in (0..).zip(sequences) {
            if !self.manager.contains(name) {
                self.manager.claim(name).unwrap();
            }
            self.manager.reserve(name, cached + new).unwrap();
        }
        self.memory.grow(self.manager.touched_blocks(), 256)?;
        let names: Vec<u64> = (0..sequences.len() as u64).collect();
        let (table, columns) = self.manager.lookup_table(&names).unwrap();
        let paging = PagedKvCacheInputs::new(sequences, table, columns)?;
        let tensors: Vec<driver::Tensor> =
            operands.iter().map(|(shape, data)| driver::Tensor::from_slice(data, shape)).collect::<Result<_, _>>()?;
        let mut types: Vec<Type> = operands
            .iter()
            .map(|(shape, _)| {
                let dims = std::iter::once(max::graph::Dim::from("tokens"))
                    .chain(shape[1..].iter().map(|dim| max::graph::Dim::from(*dim)));
                TensorType::new(DType::F32, dims.collect::<max::graph::Shape>(), DeviceRef::CPU).into()
            })
            .collect();
        types.extend(PagedKvCacheValues::input_types(&self.layers, DeviceRef::CPU));
        let graph = Graph::new("paged", types);
        let (own, cache) = graph.inputs().split_at(operands.len());
        let own: Vec<Tensor> = own.iter().map(|x| Ok(x.tensor()?.into())).collect::<Result<_, max::Error>>()?;
        let results = build(&own, &PagedKvCacheValues::new(cache)?)?;
        let results: Vec<Value> = results.iter().map(Value::from).collect();
        graph.output(results)?;
        let mut inputs: Vec<Input<'_>> = tensors.iter().chain(paging.tensors()).map(Input::from).collect();
        inputs.extend(self.memory.tensors_mut().iter_mut().map(Input::from));
        let outputs = InferenceSession::new().load(&graph)?.execute(inputs)?;
        Ok(outputs.iter().map(|output| output.to_vec::<f32>()).collect::<Result<_, _>>()?)
    }
}

/// Attention of the tokens from `cached` on of one sequence: `q` of these, `k` and `v` of all.
fn attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    cached: usize,
    sees: impl Fn(usize, usize) -> bool,
    cap: f64,
    sinks: &[f32],
) -> Vec<f64> {
    let row = |x: &[f32], token: usize, head: usize, heads: usize| -> Vec<f64> {
        x[(token * heads + head) * SIZE..][..SIZE].iter().map(|v| f64::from(*v)).collect()
    };
    let (new, all) = (q.len() / HEADS / SIZE, k.len() / KEY_HEADS / SIZE);
    let mut results = Vec::new();
    for t in 0..new {
        for h in 0..HEADS {
            let shared = h / (HEADS / KEY_HEADS);
            let query = row(q, t, h, HEADS);
            let keys: Vec<usize> = (0..all).filter(|key| sees(cached + t, *key)).collect();
            let score = |key: &usize| {
                let score: f64 =
                    query.iter().zip(row(k, *key, shared, KEY_HEADS)).map(|(a, b)| a * b).sum::<f64>() * 0.7;
                if cap > 0.0 { (score / cap).tanh() * cap } else { score }
            };
            let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
            let sink = sinks.get(h).map_or(0.0, |sink| f64::from(*sink).exp());
            let total = (weights.iter().sum::<f64>() + sink).max(f64::MIN_POSITIVE);
            results.extend((0..SIZE).map(|i| {
                let terms = weights.iter().zip(&keys).map(|(w, key)| w * row(v, *key, shared, KEY_HEADS)[i]);
                terms.sum::<f64>() / total
            }));
        }
    }
    results
}

pub fn near(found: &[f32], expected: &[f64]) {
    within(2e-6, found, expected);
}

fn within(bound: f64, found: &[f32], expected: &[f64]) {
    let difference = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(found.len() == expected.len() && difference < bound, "{difference}, {} of {}", found.len(), expected.len());
}

#[test]
fn attention_of_ragged_batches_is_as_defined() -> Outcome {
    let sinks: Vec<f32> = numbers(5, HEADS);
    let variants: [(MhaMaskVariant, f64, bool); 6] = [
        (MhaMaskVariant::Causal, 0.0, false),
        (MhaMaskVariant::Null, 0.0, false),
        (MhaMaskVariant::SlidingWindowCausal(5), 0.0, false),
        (MhaMaskVariant::ChunkedCausal(4), 0.0, true),
        (MhaMaskVariant::Causal, 1.5, true),
        (MhaMaskVariant::SlidingWindowCausal(1), 2.0, false),
    ];
    // Prefill, a step of each kind at once with lengths at the borders of pages, and decode.
    let steps: [&[(usize, usize)]; 3] = [
        &[(0, 3), (0, 8), (0, 0), (0, 1), (0, 40)],
        &[(3, 1), (8, 1), (0, 9), (1, 7), (40, 24)],
        &[(4, 1), (9, 1), (9, 1), (8, 1), (64, 1)],
    ];
    for page_size in [1, 4, 8, 128] {
        for (mask_variant, cap, sunk) in variants {
            let mut batch = Batch::new(page_size, DType::F32)?;
            let mut kept: Vec<[Vec<f32>; 2]> = vec![Default::default(); 5];
            for (seed, sequences) in steps.iter().enumerate() {
                let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
                let q = numbers(seed, tokens * HEADS * SIZE);
                let [k, v] = [seed + 11, seed + 29].map(|seed| numbers(seed, tokens * KEY_HEADS * SIZE));
                let (wide, narrow) = ([tokens, HEADS, SIZE], [tokens, KEY_HEADS, SIZE]);
                let operands: [(&[usize], &[f32]); 3] = [(&wide, &q), (&narrow, &k), (&narrow, &v)];
                let sinks_tensor = Tensor::from_slice(&sinks, [HEADS])?;
                let found = batch.run(sequences, &operands, |x, cache| {
                    kv_cache_ragged_store(cache, 1, KeysOrValues::Keys, &x[1])?;
                    kv_cache_ragged_store(cache, 1, KeysOrValues::Values, &x[2])?;
                    let options = RaggedAttentionOptions {
                        mask_variant,
                        scale: Some(0.7),
                        soft_cap: (cap > 0.0).then_some(cap),
                        sink_weights: sunk.then_some(&sinks_tensor),
                    };
                    let again = kv_cache_ragged_read(cache, 1, KeysOrValues::Values)?;
                    Ok(vec![flash_attention_ragged(cache, 1, &x[0], options)?, again])
                })?;
                assert_eq!(found[1], v);
                let (mut expected, mut first) = (Vec::new(), 0);
                for (kept, (cached, new)) in kept.iter_mut().zip(*sequences) {
                    let part = |heads: usize| first * heads * SIZE..(first + new) * heads * SIZE;
                    kept[0].extend_from_slice(&k[part(KEY_HEADS)]);
                    kept[1].extend_from_slice(&v[part(KEY_HEADS)]);
                    let sees = |query: usize, key: usize| match mask_variant {
                        MhaMaskVariant::Null => true,
                        MhaMaskVariant::Causal => key <= query,
                        MhaMaskVariant::SlidingWindowCausal(n) => key <= query && key + n > query,
                        MhaMaskVariant::ChunkedCausal(n) => key <= query && key / n == query / n,
                    };
                    let sinks = if sunk { &sinks[..] } else { &[] };
                    expected.extend(attention(&q[part(HEADS)], &kept[0], &kept[1], *cached, sees, cap, sinks));
                    first += new;
                }
                near(&found[0], &expected);
            }
        }
    }
    Ok(())
}

/// `x Wᵀ + b`, the weights clipped.
fn product(x: &[f32], linear: &Linear, clip: f32) -> Result<Vec<f32>, max::Error> {
    let (weight, bias) = (linear.weight.to_vec::<f32>()?, linear.bias.as_ref().map(|bias| bias.to_vec::<f32>()));
    let (bias, hidden) = (bias.transpose()?, x.len() / NEW);
    let row = |x: &[f32], (i, row): (usize, &[f32])| {
        let sum: f64 = x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(w.clamp(-clip, clip))).sum();
        (sum + bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]))) as f32
    };
    let rows = |x| weight.chunks(hidden).enumerate().map(move |of| row(x, of));
    Ok(x.chunks(hidden).flat_map(|x| rows(x).collect::<Vec<_>>()).collect())
}

/// Tokens of the sequence of the next test.
const NEW: usize = 11;

#[test]
fn a_layer_without_rotary_embeddings_is_as_defined() -> Outcome {
    const HIDDEN: usize = 10;
    let x = numbers(3, NEW * HIDDEN);
    for (mask_variant, clip_qkv) in [
        (MhaMaskVariant::Null, None),
        (MhaMaskVariant::Causal, Some(0.125)),
        (MhaMaskVariant::SlidingWindowCausal(3), None),
        (MhaMaskVariant::ChunkedCausal(4), Some(0.25)),
    ] {
        let mut layer = RaggedAttention::new(mask_variant, HIDDEN, HEADS, KEY_HEADS, SIZE)?;
        (layer.scale, layer.clip_qkv) = (0.7, clip_qkv);
        layer.q_proj.bias = Some(Tensor::from_slice(&numbers(5, HEADS * SIZE), [HEADS * SIZE])?);
        layer.o_proj.bias = Some(Tensor::from_slice(&numbers(7, HIDDEN), [HIDDEN])?);
        let clip = clip_qkv.map_or(f32::INFINITY, |clip| clip as f32);
        let [q, k, v] = [&layer.q_proj, &layer.k_proj, &layer.v_proj].map(|linear| product(&x, linear, clip));
        let sees = |query: usize, key: usize| match mask_variant {
            MhaMaskVariant::Null => true,
            MhaMaskVariant::Causal => key <= query,
            MhaMaskVariant::SlidingWindowCausal(n) => key <= query && key + n > query,
            MhaMaskVariant::ChunkedCausal(n) => key <= query && key / n == query / n,
        };
        let attended: Vec<f32> = attention(&q?, &k?, &v?, 0, sees, 0.0, &[]).into_iter().map(|y| y as f32).collect();
        let expected: Vec<f64> = product(&attended, &layer.o_proj, f32::INFINITY)?.into_iter().map(f64::from).collect();
        near(&layer.forward(&Tensor::from_slice(&x, [NEW, HIDDEN])?)?.to_vec::<f32>()?, &expected);
        // In steps over a cache, beside another sequence; what sees the tokens behind it needs them all at once.
        let first = if mask_variant == MhaMaskVariant::Null { NEW } else { 6 };
        for (dtype, bound) in [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            let mut batch = Batch::new(4, dtype)?;
            for (from, to) in [(0, first), (first, NEW)] {
                let part = [&x[from * HIDDEN..to * HIDDEN], &x[..2 * HIDDEN]].concat();
                let shape = [to - from + 2, HIDDEN];
                let found = batch.run(&[(from, to - from), (0, 2)], &[(&shape, &part)], |x, cache| {
                    let angles = RotaryFrequencies::new(SIZE, 100.0)?.angles(&Tensor::constant([0i64])?, 1)?;
                    let step =
                        AttentionStep { angles: &angles, cache: Some(cache), window: None, mask: None, layer: 1 };
                    Ok(vec![layer.attend(&x[0], step)?])
                })?;
                within(bound, &found[0][..(to - from) * HIDDEN], &expected[from * HIDDEN..to * HIDDEN]);
            }
        }
        let wqkv = layer.wqkv()?;
        assert_eq!(wqkv.shape().to_string(), format!("[{}, {HIDDEN}]", (HEADS + 2 * KEY_HEADS) * SIZE));
        assert!(wqkv.to_vec::<f32>()?.iter().all(|w| w.abs() <= clip));
    }
    let mut layer = RaggedAttention::new(MhaMaskVariant::Causal, 32, 4, 2, 8)?;
    let error = layer.forward(&Tensor::ones([1, 2, 32])?).err().unwrap().to_string();
    assert!(error.contains("[tokens, hidden]"), "{error}");
    layer.k_proj = Linear::quantized(Tensor::zeros([16, 34])?, QuantizationEncoding::Q8_0);
    layer.clip_qkv = Some(1.0);
    let error = layer.wqkv().err().unwrap().to_string();
    assert!(error.contains("clip_qkv") && error.contains("no numbers to clip"), "{error}");
    let error = RaggedAttention::new(MhaMaskVariant::Causal, 32, 4, 3, 8).err().unwrap().to_string();
    assert!(error.contains("`ragged_attention`") && error.contains("a divisor of heads, 4"), "{error}");
    Ok(())
}

#[test]
fn cross_attention_sees_the_tokens_of_others() -> Outcome {
    for page_size in [4, 128] {
        let mut batch = Batch::new(page_size, DType::F32)?;
        // The tokens of an encoder, then queries: more, fewer and none.
        let (encoded, queries) = ([5usize, 2, 9, 3], [2usize, 4, 1, 0]);
        let (all, new) = (19, 7);
        let [k, v] = [11, 29].map(|seed| numbers(seed, all * KEY_HEADS * SIZE));
        let q = numbers(1, new * HEADS * SIZE);
        let narrow = [all, KEY_HEADS, SIZE];
        batch.run(&encoded.map(|count| (0, count)), &[(&narrow, &k), (&narrow, &v)], |x, cache| {
            kv_cache_ragged_store(cache, 1, KeysOrValues::Keys, &x[0])?;
            kv_cache_ragged_store(cache, 1, KeysOrValues::Values, &x[1])?;
            Ok(vec![x[0].clone()])
        })?;
        let sequences: Vec<_> = encoded.into_iter().zip(queries).collect();
        let offsets = Tensor::constant([0u32, 5, 7, 16, 19])?;
        for mask_variant in [MhaMaskVariant::Null, MhaMaskVariant::Causal] {
            let found = batch.run(&sequences, &[(&[new, HEADS, SIZE], &q)], |x, cache| {
                let own = Tensor::from(&cache.input_row_offsets);
                let options = RaggedAttentionOptions { mask_variant, scale: Some(0.7), ..Default::default() };
                Ok(vec![cross_attention_ragged(cache, 1, &x[0], &own, &offsets, options)?])
            })?;
            let (mut expected, mut first, mut first_key) = (Vec::new(), 0, 0);
            for (keys, new) in sequences.iter().copied() {
                let q = &q[first * HEADS * SIZE..(first + new) * HEADS * SIZE];
                let of = |x: &[f32]| x[first_key * KEY_HEADS * SIZE..(first_key + keys) * KEY_HEADS * SIZE].to_vec();
                // The last query sees the last key.
                let sees = |query: usize, key: usize| mask_variant == MhaMaskVariant::Null || key + new <= query + keys;
                expected.extend(attention(q, &of(&k), &of(&v), 0, sees, 0.0, &[]));
                (first, first_key) = (first + new, first_key + keys);
            }
            near(&found[0], &expected);
        }
    }
    Ok(())
}

#[test]
fn adapters_add_to_queries_keys_and_values() -> Outcome {
    const HIDDEN: usize = 5;
    const RANK: usize = 2;
    let (wide, narrow) = (HEADS * SIZE, KEY_HEADS * SIZE);
    // Sequences with the second adapter, without one, and with the first.
    let (sequences, ids) = ([(0, 3), (0, 2), (0, 4)], [1i32, -1, 0]);
    let (x, base) = (numbers(1, 9 * HIDDEN), numbers(2, 9 * narrow));
    let (a, b) = (numbers(3, 2 * 3 * RANK * HIDDEN), numbers(4, 2 * (wide + 2 * narrow) * RANK));
    let lora_a = Tensor::from_slice(&a, [2, 3 * RANK, HIDDEN])?;
    let lora_b = Tensor::from_slice(&b, [2, wide + 2 * narrow, RANK])?;
    let shape = [9, KEY_HEADS, SIZE];
    let found = Batch::new(4, DType::F32)?.run(&sequences, &[(&[9, HIDDEN], &x), (&shape, &base)], |x, cache| {
        for which in [KeysOrValues::Keys, KeysOrValues::Values] {
            kv_cache_ragged_store(cache, 0, which, &x[1])?;
        }
        let q = sgmv_qkv_lora_kernel(cache, 0, &x[0], &lora_a, &lora_b, &Tensor::constant(ids)?)?;
        // The tokens of the last sequence alone, once more.
        let last = max::functional::slice_tensor(&x[1], [max::graph::DimSlice::from(0i64..4)])?;
        kv_cache_ragged_radd(cache, 0, KeysOrValues::Values, &last, 2)?;
        let read = kv_cache_ragged_read;
        Ok(vec![q, read(cache, 0, KeysOrValues::Keys)?, read(cache, 0, KeysOrValues::Values)?])
    })?;
    let adapter = |token: usize| [1, 1, 1, -1, -1, 0, 0, 0, 0][token];
    let added = |token: usize, row: usize, part: usize| -> f64 {
        let Ok(adapter) = usize::try_from(adapter(token)) else { return 0.0 };
        let inner = |r: usize| -> f64 {
            let row = &a[(adapter * 3 * RANK + part * RANK + r) * HIDDEN..][..HIDDEN];
            row.iter().zip(&x[token * HIDDEN..]).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum()
        };
        (0..RANK).map(|r| inner(r) * f64::from(b[(adapter * (wide + 2 * narrow) + row) * RANK + r])).sum()
    };
    let mut expected = [Vec::new(), Vec::new(), Vec::new()];
    for token in 0..9 {
        expected[0].extend((0..wide).map(|row| added(token, row, 0)));
        for i in 0..narrow {
            let old = f64::from(base[token * narrow + i]);
            let again = if token >= 5 { f64::from(base[(token - 5) * narrow + i]) } else { 0.0 };
            expected[1].push(old + added(token, wide + i, 1));
            expected[2].push(old + again + added(token, wide + narrow + i, 2));
        }
    }
    found.iter().zip(&expected).for_each(|(found, expected)| near(found, expected));
    Ok(())
}

#[test]
fn rotated_keys_are_in_the_cache_with_their_values() -> Outcome {
    for interleaved in [false, true] {
        let mut batch = Batch::new(4, DType::F32)?;
        let sequences = [(0, 5), (0, 2)];
        let [q, k, v] =
            [(1, HEADS), (2, KEY_HEADS), (3, KEY_HEADS)].map(|(seed, heads)| numbers(seed, 7 * heads * SIZE));
        let (wide, narrow) = ([7, HEADS, SIZE], [7, KEY_HEADS, SIZE]);
        let operands: [(&[usize], &[f32]); 3] = [(&wide, &q), (&narrow, &k), (&narrow, &v)];
        // Four of six elements are rotated.
        let rope = RotaryFrequencies::new(4, 100.0)?.interleaved(interleaved);
        let angles = rope.angles(&Tensor::from_slice(&[0i64, 1, 2, 3, 4, 0, 1], [7])?, 7)?;
        let found = batch.run(&sequences, &operands, |x, cache| {
            let q = fused_qk_ragged_rope(cache, 0, [&x[0], &x[1], &x[2]], &angles)?;
            let [keys, values] = [KeysOrValues::Keys, KeysOrValues::Values];
            Ok(vec![q, kv_cache_ragged_read(cache, 0, keys)?, kv_cache_ragged_read(cache, 0, values)?])
        })?;
        let turned = |x: &[f32], heads: usize| -> Result<Vec<f32>, max::Error> {
            Ok(angles.apply(&Tensor::from_slice(x, [7, heads, SIZE])?)?.to_vec::<f32>()?)
        };
        let same = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(same(&found[1], &turned(&k, KEY_HEADS)?) && found[2] == v);
        // Queries come by the key head that they use.
        let group = HEADS / KEY_HEADS;
        let by_token: Vec<f32> = (0..7 * HEADS)
            .flat_map(|i| {
                let (t, h) = (i / HEADS, i % HEADS);
                found[0][((h / group * 7 + t) * group + h % group) * SIZE..][..SIZE].to_vec()
            })
            .collect();
        assert!(same(&by_token, &turned(&q, HEADS)?));
    }
    Ok(())
}

#[test]
fn keys_of_new_tokens_are_normalized_and_others_are_not() -> Outcome {
    for gamma in [vec![0.5f32; SIZE], numbers(3, KEY_HEADS * SIZE)] {
        let mut batch = Batch::new(4, DType::F32)?;
        let shape = [3, KEY_HEADS, SIZE];
        let (old, new) = (numbers(1, 3 * KEY_HEADS * SIZE), numbers(2, 3 * KEY_HEADS * SIZE));
        batch.run(&[(0, 3)], &[(&shape, &old)], |x, cache| {
            kv_cache_ragged_store(cache, 0, KeysOrValues::Keys, &x[0])?;
            Ok(vec![x[0].clone()])
        })?;
        let weight = Tensor::from_slice(&gamma, [gamma.len()])?;
        let found = batch.run(&[(3, 3)], &[(&shape, &new)], |x, cache| {
            kv_cache_ragged_store(cache, 0, KeysOrValues::Keys, &x[0])?;
            rms_norm_key_cache(cache, 0, &weight, 1e-6, 1.0)?;
            Ok(vec![kv_cache_ragged_read(cache, 0, KeysOrValues::Keys)?])
        })?;
        let expected: Vec<f64> = new
            .chunks(gamma.len())
            .flat_map(|row| {
                let mean = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / row.len() as f64;
                row.iter().zip(&gamma).map(move |(x, g)| f64::from(*x) / (mean + 1e-6).sqrt() * (f64::from(*g) + 1.0))
            })
            .collect();
        near(&found[0], &expected);
        let again = batch.run(&[(0, 3)], &[(&shape, &old)], |_, cache| {
            Ok(vec![kv_cache_ragged_read(cache, 0, KeysOrValues::Keys)?])
        })?;
        assert_eq!(again[0], old);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_the_cache_is_an_error_that_names_it() -> Outcome {
    let layers = [KvCacheParams::new(DType::F32, KEY_HEADS, SIZE)];
    let mut types: Vec<Type> = vec![
        TensorType::new(DType::F32, ("tokens", HEADS, SIZE), DeviceRef::CPU).into(),
        TensorType::new(DType::F32, ("tokens", 5, SIZE), DeviceRef::CPU).into(),
        TensorType::new(DType::BF16, ("tokens", KEY_HEADS, SIZE), DeviceRef::CPU).into(),
    ];
    types.extend(PagedKvCacheValues::input_types(&layers, DeviceRef::CPU));
    let graph = Graph::new("paged", types);
    let cache = PagedKvCacheValues::new(&graph.inputs()[3..])?;
    let [q, five, half] = [0, 1, 2].map(|i| Tensor::from(graph.inputs()[i].tensor().unwrap()));
    let plain = RaggedAttentionOptions::default();
    let windowed = RaggedAttentionOptions { mask_variant: MhaMaskVariant::SlidingWindowCausal(0), ..plain };
    let eager = Tensor::ones([2, HEADS, SIZE])?;
    let two = Tensor::ones([2])?;
    let sunk = RaggedAttentionOptions { sink_weights: Some(&two), ..plain };
    for (error, text) in [
        (flash_attention_ragged(&cache, 0, &five, plain).err(), "`flash_attention_ragged`"),
        (flash_attention_ragged(&cache, 3, &q, plain).err(), "less than 1"),
        (flash_attention_ragged(&cache, 0, &q, windowed).err(), "a window of 1 or more"),
        (flash_attention_ragged(&cache, 0, &q, sunk).err(), "one for each head"),
        (flash_attention_ragged(&cache, 0, &eager, plain).err(), "an eager tensor"),
        (kv_cache_ragged_store(&cache, 0, KeysOrValues::Keys, &half).err(), "`kv_cache_ragged_store`"),
        (rms_norm_key_cache(&cache, 0, &two, 1e-6, 0.0).err(), "the size of a head"),
        (PagedKvCacheValues::new(&graph.inputs()[3..5]).err(), "two buffers for each layer"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(text) && error.contains("paged_attention.rs:"), "{error}");
    }
    Ok(())
}

#[test]
fn projections_write_keys_and_values() -> Outcome {
    // As many inputs as a block of q8_0 has.
    const HIDDEN: usize = 32;
    let (wide, narrow) = (HEADS * SIZE, KEY_HEADS * SIZE);
    let (x, weight) = (numbers(1, 7 * HIDDEN), numbers(2, (wide + 2 * narrow) * HIDDEN));
    let bias = numbers(3, wide + 2 * narrow);
    let product_of = |x: &[f32], weight: &[f32], bias: &[f32]| -> Vec<f64> {
        let rows = weight.chunks(HIDDEN);
        x.chunks(HIDDEN)
            .flat_map(|x| {
                rows.clone().enumerate().map(move |(i, row)| {
                    let terms = row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    terms.sum::<f64>() + f64::from(bias.get(i).copied().unwrap_or_default())
                })
            })
            .collect()
    };
    let product = |weight: &[f32], bias: &[f32]| product_of(&x, weight, bias);
    let close = |found: &[f32], expected: Vec<f64>| {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-5));
    };
    let [q, k, v] = [0..wide, wide..wide + narrow, wide + narrow..wide + 2 * narrow];
    let rows = |range: &std::ops::Range<usize>| &weight[range.start * HIDDEN..range.end * HIDDEN];
    let tensor = |rows: &[f32]| Tensor::from_slice(rows, [rows.len() / HIDDEN, HIDDEN]);
    let operands: [(&[usize], &[f32]); 1] = [(&[7, HIDDEN], &x)];
    let (all, biases) = (tensor(&weight)?, Tensor::from_slice(&bias, [bias.len()])?);
    let read = kv_cache_ragged_read;
    let found = Batch::new(4, DType::F32)?.run(&[(0, 5), (0, 2)], &operands, |x, cache| {
        let q = fused_qkv_ragged_matmul(cache, 1, &x[0], &all, HEADS, Some(&biases))?;
        Ok(vec![q, read(cache, 1, KeysOrValues::Keys)?, read(cache, 1, KeysOrValues::Values)?])
    })?;
    for (found, range) in found.iter().zip([&q, &k, &v]) {
        close(found, product(rows(range), &bias[range.clone()]));
    }
    let (keys_and_values, values) = (tensor(&weight[wide * HIDDEN..])?, tensor(rows(&v))?);
    let found = Batch::new(4, DType::F32)?.run(&[(0, 5), (0, 2)], &operands, |x, cache| {
        matmul_kv_cache_ragged(cache, 0, &x[0], &keys_and_values)?;
        let both = [read(cache, 0, KeysOrValues::Keys)?, read(cache, 0, KeysOrValues::Values)?];
        // Other keys, and values stay.
        matmul_k_cache_ragged(cache, 0, &x[0], &values)?;
        let after = [read(cache, 0, KeysOrValues::Keys)?, read(cache, 0, KeysOrValues::Values)?];
        Ok(both.into_iter().chain(after).collect())
    })?;
    for (found, range) in found.iter().zip([&k, &v, &v, &v]) {
        close(found, product(rows(range), &[]));
    }
    let encoding = QuantizationEncoding::Q8_0;
    let blocks = [&q, &k, &v].map(|range| encoding.quantize(rows(range)));
    let numbers = blocks.each_ref().map(|bytes| encoding.dequantize(bytes));
    let [q, k, v] =
        blocks.map(|bytes| Tensor::from_slice(&bytes, [bytes.len() / encoding.block_size(), encoding.block_size()]));
    let (q, k, v) = (q?, k?, v?);
    let found = Batch::new(4, DType::F32)?.run(&[(0, 5), (0, 2)], &operands, |x, cache| {
        let weights = [&q, &k, &v].map(|weight| (weight, encoding));
        let q = unfused_qkv_ragged_matmul_gguf_quantized(cache, 1, &x[0], weights)?;
        Ok(vec![q, read(cache, 1, KeysOrValues::Keys)?, read(cache, 1, KeysOrValues::Values)?])
    })?;
    // Activations are rounded to integers of 8 bits, with a scale for each block.
    let round = |block: &[f32]| {
        let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        block.iter().map(|x| (x * (127.0 / largest)).round_ties_even() * (largest / 127.0)).collect::<Vec<f32>>()
    };
    let rounded: Vec<f32> = x.chunks(HIDDEN).flat_map(round).collect();
    for (found, weight) in found.iter().zip(&numbers) {
        close(found, product_of(&rounded, weight, &[]));
    }
    Ok(())
}

#[test]
fn products_of_8_bit_floats_are_stored_as_the_cache_has_them() -> Outcome {
    const HIDDEN: usize = 8;
    let rows = (HEADS + 2 * KEY_HEADS) * SIZE;
    let (x, weight) = (numbers(1, 7 * HIDDEN), numbers(2, rows * HIDDEN));
    let of_x: Vec<f32> = x.chunks(HIDDEN).map(|x| x.iter().sum()).collect();
    let of_weight = numbers(4, rows);
    let (bias, narrow) = (numbers(5, rows), DType::F8E4M3FN);
    let small = |x: &[f32], columns: usize| Tensor::from_slice(x, [x.len() / columns, columns])?.cast(narrow);
    let [wide_x, wide_weight] = [&x, &weight].map(|x| small(x, HIDDEN)?.cast(DType::F32)?.to_vec::<f32>());
    let (wide_x, wide_weight) = (wide_x?, wide_weight?);
    let weights = (small(&weight, HIDDEN)?, Tensor::from_slice(&of_weight, [rows, 1])?);
    let bias_tensor = Tensor::from_slice(&bias, [rows])?;
    let found = Batch::new(4, DType::F32)?.run(&[(0, 5), (0, 2)], &[(&[7, HIDDEN], &x)], |x, cache| {
        let operands = [&x[0].cast(narrow)?, &weights.0];
        // A scale for each of the tokens.
        let scales = max::functional::transpose(max::functional::sum(&x[0], -1)?, 0, 1)?;
        let scales = [&scales, &weights.1];
        let q = fused_qkv_ragged_matmul_scaled_float8(cache, 1, operands, HEADS, scales, Some(&bias_tensor))?;
        let read = |which| kv_cache_ragged_read(cache, 1, which);
        Ok(vec![q, read(KeysOrValues::Keys)?, read(KeysOrValues::Values)?])
    })?;
    let product = |token: usize, row: usize| -> f64 {
        let (x, w) = (&wide_x[token * HIDDEN..][..HIDDEN], &wide_weight[row * HIDDEN..][..HIDDEN]);
        let sum: f64 = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        sum * f64::from(of_x[token]) * f64::from(of_weight[row]) + f64::from(bias[row])
    };
    let mut first = 0;
    for (found, count) in found.iter().zip([HEADS, KEY_HEADS, KEY_HEADS].map(|heads| heads * SIZE)) {
        let expected: Vec<f64> = (0..7)
            .flat_map(|token| (first..first + count).map(move |row| (token, row)))
            .map(|(t, r)| product(t, r))
            .collect();
        near(found, &expected);
        first += count;
    }
    Ok(())
}

#[test]
fn swish_glu_gates() -> Outcome {
    let [a, b0, b1] = [(1, [3, 4]), (2, [5, 4]), (3, [5, 4])]
        .map(|(seed, shape)| Tensor::from_slice(&numbers(seed, shape[0] * shape[1]), shape));
    let found = swish_glu(&a?, &b0?, &b1?)?.to_vec::<f32>()?;
    let (a, b0, b1) = (numbers(1, 12), numbers(2, 20), numbers(3, 20));
    for (at, found) in found.iter().enumerate() {
        let dot =
            |b: &[f32]| -> f64 { (0..4).map(|i| f64::from(a[at / 5 * 4 + i]) * f64::from(b[at % 5 * 4 + i])).sum() };
        let gate = dot(&b0);
        assert!((f64::from(*found) - gate / (1.0 + (-gate).exp()) * dot(&b1)).abs() < 1e-6);
    }
    Ok(())
}
