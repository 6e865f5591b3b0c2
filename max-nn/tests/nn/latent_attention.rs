//! Latent attention over a paged cache, against its definition.

use max::dtype::DType;
use max::functional as f;
use max::graph::DimSlice;
use max::nn::kernels::{
    KeysOrValues, MhaMaskVariant, MlaPrefillPlan, flare_mla_decode_ragged, flare_mla_decompress_k_cache,
    flare_mla_prefill_plan, flare_mla_prefill_ragged, kv_cache_ragged_store,
};
use max::nn::kv_cache::KvCacheParams;
use max::tensor::Tensor;

use crate::paged_attention::{Batch, near, numbers};
use crate::uncached_attention::sequence;

type Outcome = Result<(), max::Error>;

const HEADS: usize = 3;
const LATENT: usize = 20;
const ROPE: usize = 4;
const SIZE: usize = LATENT + ROPE;

fn batch(page_size: usize) -> Result<Batch, max::Error> {
    Batch::of(KvCacheParams { page_size, ..KvCacheParams::new(DType::F32, 1, SIZE) })
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
