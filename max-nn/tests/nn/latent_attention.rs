//! Latent attention over a paged cache, against its definition.

use max::dtype::DType;
use max::functional as f;
use max::graph::DimSlice;
use max::nn::ModuleExt;
use max::nn::kernels::{
    KeysOrValues, MhaMaskVariant, MlaPrefillPlan, flare_mla_decode_ragged, flare_mla_decompress_k_cache,
    flare_mla_prefill_plan, flare_mla_prefill_ragged, kv_cache_ragged_store,
};
use max::nn::kv_cache::KvCacheParams;
use max::nn::rope::RotaryFrequencies;
use max::nn::transformer::{AttentionImpl, AttentionStep, LatentAttentionWithRope, LatentDims};
use max::tensor::Tensor;

use crate::paged_attention::{Batch, near, numbers};
use crate::uncached_attention::sequence;

type Outcome = Result<(), max::Error>;

const HEADS: usize = 3;
const LATENT: usize = 20;
const ROPE: usize = 4;
const SIZE: usize = LATENT + ROPE;

fn batch(page_size: usize) -> Result<Batch, max::Error> {
    Batch::of(KvCacheParams { page_size, is_mla: true, ..KvCacheParams::new(DType::F32, 1, SIZE) })
}

#[test]
fn heads_share_the_latents_of_tokens() -> Outcome {
    // Prefill, and a step of decode beside a chunk.
    let steps: [&[(usize, usize)]; 2] = [&[(0, 5), (0, 1), (0, 9)], &[(5, 1), (1, 6), (9, 1)]];
    for (page_size, mask_variant) in [(4, MhaMaskVariant::Causal), (128, MhaMaskVariant::SlidingWindowCausal(3))] {
        let (mut batch, mut kept) = (batch(page_size)?, vec![Vec::new(); 3]);
        for (seed, sequences) in steps.iter().enumerate() {
            let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
            let (q, latents) = (numbers(seed, tokens * HEADS * SIZE), numbers(seed + 11, tokens * SIZE));
            let operands: [(&[usize], &[f32]); 2] = [(&[tokens, HEADS, SIZE], &q), (&[tokens, 1, SIZE], &latents)];
            let found = batch.run(sequences, &operands, |x, cache| {
                kv_cache_ragged_store(cache, 1, KeysOrValues::Keys, &x[1])?;
                Ok(vec![flare_mla_decode_ragged(cache, 1, &x[0], mask_variant, 0.7, ROPE)?])
            })?;
            let (mut expected, mut token) = (Vec::new(), 0);
            for (kept, (cached, new)) in kept.iter_mut().zip(*sequences) {
                kept.extend_from_slice(&latents[token * SIZE..(token + new) * SIZE]);
                let row = |key: usize| kept[key * SIZE..][..SIZE].iter().map(|x| f64::from(*x));
                for t in 0..*new {
                    let last = cached + t;
                    let first = if mask_variant == MhaMaskVariant::Causal { 0 } else { last.saturating_sub(2) };
                    for h in 0..HEADS {
                        let q = &q[((token + t) * HEADS + h) * SIZE..][..SIZE];
                        let score = |key| row(key).zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * 0.7;
                        let weights: Vec<f64> = (first..=last).map(|key| score(key).exp()).collect();
                        let total: f64 = weights.iter().sum();
                        let value = |i: usize| -> f64 {
                            weights.iter().zip(first..).map(|(w, key)| w * f64::from(kept[key * SIZE + i])).sum()
                        };
                        expected.extend((0..LATENT).map(|i| value(i) / total));
                    }
                }
                token += new;
            }
            near(&found[0], &expected);
        }
    }
    Ok(())
}

#[test]
fn latents_go_through_a_buffer_in_parts() -> Outcome {
    const ROWS: usize = 7;
    let (mut batch, weight) = (batch(4)?, numbers(3, 2 * LATENT));
    let sequences = [(0usize, 5usize), (0, 0), (0, 12), (0, 2)];
    let latents = numbers(1, 19 * SIZE);
    let tensor = Tensor::from_slice(&weight, [2, LATENT])?;
    let found = batch.run(&sequences, &[(&[19, 1, SIZE], &latents)], |x, cache| {
        kv_cache_ragged_store(cache, 0, KeysOrValues::Keys, &x[0])?;
        let MlaPrefillPlan { buffer_row_offsets, cache_offsets, buffer_lengths } =
            flare_mla_prefill_plan(cache, ROWS, 4)?;
        let mut results = vec![f::cast(buffer_lengths, DType::F32)?];
        for chunk in 0..4i64 {
            let row = |x: &Tensor| f::slice_tensor(x, [DimSlice::from(chunk)]);
            let (offsets, firsts) = (row(&buffer_row_offsets)?, row(&cache_offsets)?);
            results.push(flare_mla_decompress_k_cache(cache, 0, &offsets, &firsts, &tensor, ROWS)?);
        }
        Ok(results)
    })?;
    assert_eq!(found[0], [7.0, 7.0, 5.0, 0.0]);
    // All tokens behind each other, as they were written, and nothing behind them.
    let product = |token: usize, n: usize| -> f64 {
        let latent = latents[token * SIZE..][..LATENT].iter();
        latent.zip(&weight[n * LATENT..]).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    let expected: Vec<f64> =
        (0..4 * ROWS).flat_map(|token| [0, 1].map(|n| if token < 19 { product(token, n) } else { 0.0 })).collect();
    near(&found[1..].concat(), &expected);
    Ok(())
}

/// Keys and values of all heads are made of latents in a buffer that holds some of them at a time.
#[test]
fn prefill_goes_on_from_part_to_part() -> Outcome {
    const NOPE: usize = 6;
    const VALUE: usize = 5;
    // Some tokens are in the cache before.
    let steps: [&[(usize, usize)]; 2] = [&[(0, 3), (0, 2), (0, 4)], &[(3, 8), (2, 1), (4, 5)]];
    let [of_keys, of_values] = [(5, HEADS * NOPE), (6, HEADS * VALUE)].map(|(seed, rows)| numbers(seed, rows * LATENT));
    let [keys, values] = [(&of_keys, HEADS * NOPE), (&of_values, HEADS * VALUE)]
        .map(|(weight, rows)| Tensor::from_slice(weight, [rows, LATENT]));
    let (keys, values) = (keys?, values?);
    for (rows, chunks) in [(23usize, 1i64), (7, 4), (2, 12)] {
        let (mut batch, mut kept) = (batch(4)?, vec![Vec::new(); 3]);
        for (seed, sequences) in steps.iter().enumerate() {
            let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
            let (q, latents) = (numbers(seed + 30, tokens * HEADS * (NOPE + ROPE)), numbers(seed + 40, tokens * SIZE));
            let operands: [(&[usize], &[f32]); 2] =
                [(&[tokens, HEADS, NOPE + ROPE], &q), (&[tokens, 1, SIZE], &latents)];
            let found = batch.run(sequences, &operands, |x, cache| {
                kv_cache_ragged_store(cache, 1, KeysOrValues::Keys, &x[1])?;
                let plan = flare_mla_prefill_plan(cache, rows, chunks as usize)?;
                let mut previous: Option<(Tensor, Tensor)> = None;
                for chunk in 0..chunks {
                    let row = |x: &Tensor| f::slice_tensor(x, [DimSlice::from(chunk)]);
                    let (offsets, firsts) = (row(&plan.buffer_row_offsets)?, row(&plan.cache_offsets)?);
                    let part = |weight| flare_mla_decompress_k_cache(cache, 1, &offsets, &firsts, weight, rows);
                    let (k, v) = (part(&keys)?, part(&values)?);
                    let before = previous.as_ref().map(|(y, logarithms)| (y, logarithms));
                    let causal = MhaMaskVariant::Causal;
                    previous = Some(flare_mla_prefill_ragged(
                        cache,
                        1,
                        &x[0],
                        [&k, &v],
                        &offsets,
                        &firsts,
                        causal,
                        0.4,
                        ROPE,
                        before,
                    )?);
                }
                Ok(previous.into_iter().flat_map(|(y, logarithms)| [y, logarithms]).collect())
            })?;
            let (mut expected, mut token) = (Vec::new(), 0);
            for (kept, (cached, new)) in kept.iter_mut().zip(*sequences) {
                kept.extend_from_slice(&latents[token * SIZE..(token + new) * SIZE]);
                let made = |latent: &[f32], weight: &[f32], row: usize| -> f32 {
                    latent.iter().zip(&weight[row * LATENT..]).map(|(x, w)| x * w).sum()
                };
                let (mut k, mut v) = (Vec::new(), Vec::new());
                for kept in kept.chunks(SIZE) {
                    let (latent, rope) = kept.split_at(LATENT);
                    for h in 0..HEADS {
                        k.extend((0..NOPE).map(|i| made(latent, &of_keys, h * NOPE + i)));
                        k.extend_from_slice(rope);
                        v.extend((0..VALUE).map(|i| made(latent, &of_values, h * VALUE + i)));
                    }
                }
                let of_token = HEADS * (NOPE + ROPE);
                let q = &q[token * of_token..(token + new) * of_token];
                let sizes = [HEADS, HEADS, NOPE + ROPE, VALUE];
                expected.extend(sequence((q, &k, &v), sizes, 0.4, |t, key| key <= cached + t));
                token += new;
            }
            near(&found[0], &expected);
            assert!(found[1].len() == tokens * HEADS && found[1].iter().all(|x| x.is_finite()));
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_a_cache_of_latents_is_an_error() -> Outcome {
    let x = numbers(1, 2 * HEADS * SIZE);
    batch(4)?.run(&[(0, 2)], &[(&[2, HEADS, SIZE], &x)], |x, cache| {
        let causal = MhaMaskVariant::Causal;
        let two = Tensor::ones([2])?;
        let wide = Tensor::ones([2, SIZE + 1])?;
        let offsets = Tensor::constant([0u32, 2])?;
        let heads = Tensor::ones([2, HEADS, 4])?;
        let prefill = |k: &Tensor, offsets: &Tensor, rope: usize| {
            flare_mla_prefill_ragged(cache, 0, &x[0], [k, k], offsets, offsets, causal, 1.0, rope, None).err()
        };
        for (error, text) in [
            (flare_mla_decode_ragged(cache, 0, &x[0], causal, 1.0, SIZE).err(), "less than 24"),
            (flare_mla_decode_ragged(cache, 0, &two, causal, 1.0, ROPE).err(), "an eager tensor"),
            (flare_mla_decode_ragged(cache, 7, &x[0], causal, 1.0, ROPE).err(), "less than 2"),
            (flare_mla_prefill_plan(cache, 0, 4).err(), "1 or more"),
            (flare_mla_decompress_k_cache(cache, 0, &two, &offsets, &wide, 4).err(), "uint32 of one axis"),
            (flare_mla_decompress_k_cache(cache, 0, &offsets, &offsets, &wide, 4).err(), "[n, latent]"),
            (prefill(&two, &offsets, ROPE), "[buffer rows, 3, size]"),
            (prefill(&heads, &two, ROPE), "uint32, [sequences + 1]"),
            (prefill(&heads, &offsets, SIZE), "less than the elements"),
        ] {
            let error = error.unwrap().to_string();
            assert!(error.contains(text) && error.contains("tests/nn/latent_attention.rs:"), "{error}");
        }
        Ok(vec![x[0].clone()])
    })?;
    Ok(())
}

/// Rows of `x` times the transpose of a matrix of so many columns.
fn times(x: &[f64], weight: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.chunks(columns).flat_map(|row| weight.chunks(columns).map(move |of| (row, of)));
    rows.map(|(row, of)| row.iter().zip(of).map(|(a, b)| a * b).sum()).collect()
}

/// Rows of unit mean square, times `weight`.
fn normed(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let scale = (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + 1e-6).sqrt();
        row.iter().zip(weight).map(|(x, w)| x / scale * w).collect::<Vec<f64>>()
    };
    x.chunks(weight.len()).flat_map(of_row).collect()
}

/// Pairs of neighbours, turned as far as `position` says.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let size = x.len() as f64;
    let pair = |(i, pair): (usize, &[f64])| {
        let (sin, cos) = (position as f64 * 10000f64.powf(-2.0 * i as f64 / size)).sin_cos();
        [pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin]
    };
    x.chunks(2).enumerate().flat_map(pair).collect()
}

/// A layer by its definition: keys and values of each head are made of latents.
fn defined(layer: &LatentAttentionWithRope, x: &[f32], window: usize) -> Result<Vec<f64>, max::Error> {
    let LatentDims { hidden_size: hidden, num_attention_heads: heads, .. } = layer.dims;
    let LatentDims { qk_nope_head_dim: nope, qk_rope_head_dim: rope, v_head_dim: size, kv_lora_rank, .. } = layer.dims;
    let state = layer.state_dict();
    let weight = |name: &str| -> Vec<f64> {
        let values = state.get(name).unwrap().to_vec::<f32>().unwrap();
        values.into_iter().map(f64::from).collect()
    };
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let q = match layer.dims.q_lora_rank {
        None => times(&x, &weight("q_proj.weight"), hidden),
        Some(rank) => {
            let low = times(&x, &weight("q_a_proj.weight"), hidden);
            times(&normed(&low, &weight("q_a_layernorm.weight")), &weight("q_b_proj.weight"), rank)
        }
    };
    let joined = times(&x, &weight("kv_a_proj_with_mqa.weight"), hidden);
    let (mut latents, mut k_rope) = (Vec::new(), Vec::new());
    for (position, row) in joined.chunks(kv_lora_rank + rope).enumerate() {
        latents.extend(normed(&row[..kv_lora_rank], &weight("kv_a_layernorm.weight")));
        k_rope.push(rotated(&row[kv_lora_rank..], position));
    }
    let kv = times(&latents, &weight("kv_b_proj.weight"), kv_lora_rank);
    let kv = |token: usize, head: usize| &kv[(token * heads + head) * (nope + size)..][..nope + size];
    let mut attended = Vec::new();
    for (t, row) in q.chunks(heads * (nope + rope)).enumerate() {
        for (h, q) in row.chunks(nope + rope).enumerate() {
            let q = [&q[..nope], &rotated(&q[nope..], t)].concat();
            let first = (t + 1).saturating_sub(window);
            let score = |key: usize| {
                let k = [&kv(key, h)[..nope], &k_rope[key]].concat();
                (q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * layer.scale).exp()
            };
            let weights: Vec<f64> = (first..=t).map(score).collect();
            let total: f64 = weights.iter().sum();
            attended
                .extend((0..size).map(|i| {
                    weights.iter().zip(first..).map(|(w, key)| w * kv(key, h)[nope + i]).sum::<f64>() / total
                }));
        }
    }
    Ok(times(&attended, &weight("o_proj.weight"), heads * size))
}

#[test]
fn a_layer_is_as_defined_with_and_without_a_cache() -> Outcome {
    for (q_lora_rank, window) in [(None, None), (Some(9), None), (Some(9), Some(3))] {
        let dims = LatentDims {
            hidden_size: 14,
            num_attention_heads: HEADS,
            q_lora_rank,
            kv_lora_rank: LATENT,
            qk_nope_head_dim: 6,
            qk_rope_head_dim: ROPE,
            v_head_dim: 5,
        };
        let layer = LatentAttentionWithRope::new(dims)?;
        let params = KvCacheParams { page_size: 4, ..layer.kv_params(DType::F32) };
        // Keys alone take memory.
        assert_eq!((params.bytes_per_token(), params.cache_shapes(2)[1]), (SIZE * 4, [2, 1, 4, 0]));
        let mut batch = Batch::of(params)?;
        let rope = RotaryFrequencies::new(ROPE, 10000.0)?.interleaved(true);
        let texts = [numbers(1, 12 * 14), numbers(2, 12 * 14)];
        let expected: Vec<Vec<f64>> =
            texts.iter().map(|text| defined(&layer, text, window.unwrap_or(99))).collect::<Result<_, _>>()?;
        for (text, expected) in texts.iter().zip(&expected).filter(|_| window.is_none()) {
            let angles = rope.angles(&Tensor::arange(0i64, 12i64, 1i64)?, 12)?;
            let step = AttentionStep { angles: &angles, cache: None, window, mask: None, layer: 0 };
            near(&layer.attend(&Tensor::from_slice(text, [12, 14])?, step)?.to_vec::<f32>()?, expected);
        }
        // A prompt and a part of one, the rest beside a token, and tokens alone.
        for sequences in [[(0, 10), (0, 3)], [(10, 1), (3, 8)], [(11, 1), (11, 1)]] {
            let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
            let (mut x, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
            for ((text, expected), (cached, new)) in texts.iter().zip(&expected).zip(sequences) {
                x.extend_from_slice(&text[cached * 14..(cached + new) * 14]);
                positions.extend((cached..cached + new).map(|position| position as f32));
                wanted.extend_from_slice(&expected[cached * 14..(cached + new) * 14]);
            }
            let operands: [(&[usize], &[f32]); 2] = [(&[tokens, 14], &x), (&[tokens], &positions)];
            let found = batch.run(&sequences, &operands, |x, cache| {
                let angles = rope.angles(&f::cast(&x[1], DType::I64)?, 0)?;
                let step = AttentionStep { angles: &angles, cache: Some(cache), window, mask: None, layer: 1 };
                Ok(vec![layer.attend(&x[0], step)?])
            })?;
            near(&found[0], &wanted);
        }
    }
    let dims = LatentDims {
        hidden_size: 8,
        num_attention_heads: 2,
        q_lora_rank: None,
        kv_lora_rank: 4,
        qk_nope_head_dim: 0,
        qk_rope_head_dim: 2,
        v_head_dim: 4,
    };
    let error = LatentAttentionWithRope::new(dims).err().unwrap().to_string();
    assert!(error.contains("qk_nope_head_dim: 0") && error.contains("sizes of 1 or more"), "{error}");
    Ok(())
}
