//! Attention whose keys and values are operands, against its definition.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{Graph, TensorType};
use max::nn::kernels::{MhaMaskVariant, flash_attention_gpu, flash_attention_ragged_gpu};
use max::tensor::Tensor;

use crate::paged_attention::{near, numbers};

type Outcome = Result<(), max::Error>;

const HEADS: usize = 6;
const KEY_HEADS: usize = 2;
const SIZE: usize = 5;

fn sees(mask: MhaMaskVariant, position: usize, key: usize) -> bool {
    match mask {
        MhaMaskVariant::Null => true,
        MhaMaskVariant::Causal => key <= position,
        MhaMaskVariant::SlidingWindowCausal(window) => key <= position && key + window > position,
        MhaMaskVariant::ChunkedCausal(chunk) => key <= position && key >= position / chunk * chunk,
    }
}

/// Attention of one sequence of whole rows.
pub fn sequence(
    (q, k, v): (&[f32], &[f32], &[f32]),
    [heads, key_heads, size, value_size]: [usize; 4],
    scale: f64,
    sees: impl Fn(usize, usize) -> bool,
) -> Vec<f64> {
    let (tokens, keys) = (q.len() / heads / size, k.len() / key_heads / size);
    let mut results = Vec::new();
    for token in 0..tokens {
        for h in 0..heads {
            let shared = h / (heads / key_heads);
            let q = &q[(token * heads + h) * size..][..size];
            let score = |key: usize| {
                let k = &k[(key * key_heads + shared) * size..][..size];
                q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * scale
            };
            let seen: Vec<usize> = (0..keys).filter(|key| sees(token, *key)).collect();
            let weights: Vec<f64> = seen.iter().map(|key| score(*key).exp()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..value_size {
                let value = |key: usize| f64::from(v[(key * key_heads + shared) * value_size + i]);
                let sum: f64 = weights.iter().zip(&seen).map(|(w, key)| w * value(*key)).sum();
                results.push(if seen.is_empty() { 0.0 } else { sum / total });
            }
        }
    }
    results
}

const MASKS: [MhaMaskVariant; 4] = [
    MhaMaskVariant::Null,
    MhaMaskVariant::Causal,
    MhaMaskVariant::SlidingWindowCausal(3),
    MhaMaskVariant::ChunkedCausal(4),
];

#[test]
fn of_padded_sequences_what_is_valid_counts() -> Outcome {
    let (batch, tokens) = (3, 9);
    let (of_q, of_k) = (tokens * HEADS * SIZE, tokens * KEY_HEADS * SIZE);
    let [q, k, mut v] = [(1, of_q), (2, of_k), (3, of_k)].map(|(seed, count)| numbers(seed, batch * count));
    // What is padding may be anything, also no number.
    v[of_k + 4 * KEY_HEADS * SIZE..2 * of_k].fill(f32::NAN);
    let tensor = |x: &[f32], heads: usize| Tensor::from_slice(x, [batch, tokens, heads, SIZE]);
    for valid in [None, Some([9u32, 4, 0])] {
        for mask in MASKS {
            let lengths = valid.map(|valid| Tensor::from_slice(&valid, [batch])).transpose()?;
            let operands = [tensor(&q, HEADS)?, tensor(&k, KEY_HEADS)?, tensor(&v, KEY_HEADS)?];
            let [q_, k_, v_] = &operands;
            let found = flash_attention_gpu(q_, k_, v_, mask, Some(0.6), lengths.as_ref())?.to_vec::<f32>()?;
            for s in 0..batch {
                let count = valid.map_or(tokens, |valid| valid[s] as usize);
                let part = |x: &[f32], all: usize| x[s * all..][..count * all / tokens].to_vec();
                let (q, k, v) = (part(&q, of_q), part(&k, of_k), part(&v, of_k));
                let sizes = [HEADS, KEY_HEADS, SIZE, SIZE];
                let mut expected = sequence((&q, &k, &v), sizes, 0.6, |position, key| sees(mask, position, key));
                expected.resize(of_q, 0.0);
                let found = &found[s * of_q..][..of_q];
                if valid.is_none() && s == 1 {
                    // Of values that are no numbers, what sees them is none.
                    let is_right = |(found, want): (&f32, &f64)| found.is_nan() == want.is_nan();
                    assert!(found.iter().zip(&expected).all(is_right), "{mask:?}");
                } else {
                    assert!(found.iter().all(|x| x.is_finite()), "{mask:?}, {s}");
                    near(found, &expected);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn ragged_sequences_see_their_own_keys() -> Outcome {
    let lengths = [5usize, 1, 0, 40, 12];
    let total: usize = lengths.iter().sum();
    let mut offsets = vec![0u32];
    lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + *length as u32));
    let (q, k) = (numbers(4, total * HEADS * SIZE), numbers(5, total * KEY_HEADS * SIZE));
    let v = numbers(6, total * KEY_HEADS * 7);
    let scale = 1.0 / (SIZE as f64).sqrt();
    for mask in MASKS {
        let mut expected = Vec::new();
        for (length, begin) in lengths.iter().zip(&offsets) {
            let part = |x: &[f32], of_token: usize| x[*begin as usize * of_token..][..length * of_token].to_vec();
            let (q, k, v) = (part(&q, HEADS * SIZE), part(&k, KEY_HEADS * SIZE), part(&v, KEY_HEADS * 7));
            let sizes = [HEADS, KEY_HEADS, SIZE, 7];
            expected.extend(sequence((&q, &k, &v), sizes, scale, |position, key| sees(mask, position, key)));
        }
        let types = [(HEADS, SIZE), (KEY_HEADS, SIZE), (KEY_HEADS, 7)]
            .map(|(heads, size)| TensorType::new(DType::F32, ("tokens", heads, size), DeviceRef::CPU));
        let of_offsets = TensorType::new(DType::U32, ("offsets",), DeviceRef::CPU);
        let graph = Graph::build("ragged", types.into_iter().chain([of_offsets]).collect::<Vec<_>>(), |_, inputs| {
            let [q, k, v, offsets] = [0, 1, 2, 3].map(|i| inputs[i].tensor().map(Tensor::from));
            flash_attention_ragged_gpu(&q?, &k?, &v?, &offsets?, mask, None)
        })?;
        let model = InferenceSession::new().load(&graph)?;
        let inputs = [
            driver::Tensor::from_slice(&q, [total, HEADS, SIZE])?,
            driver::Tensor::from_slice(&k, [total, KEY_HEADS, SIZE])?,
            driver::Tensor::from_slice(&v, [total, KEY_HEADS, 7])?,
            driver::Tensor::from_slice(&offsets, [offsets.len()])?,
        ];
        near(&model.execute(inputs.iter().collect::<Vec<_>>())?[0].to_vec::<f32>()?, &expected);
        // The same of eager tensors.
        let eager = inputs.map(Tensor::from);
        let found = flash_attention_ragged_gpu(&eager[0], &eager[1], &eager[2], &eager[3], mask, None)?;
        near(&found.to_vec::<f32>()?, &expected);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Outcome {
    let q = Tensor::ones([2, 3, 4, 8])?;
    let null = MhaMaskVariant::Null;
    let lengths = Tensor::constant([1i64, 2])?;
    let flat = Tensor::ones([6, 4, 8])?;
    let offsets = Tensor::constant([0u32, 6])?;
    for (error, text) in [
        (flash_attention_gpu(&q, &Tensor::ones([2, 3, 3, 8])?, &q, null, None, None).err(), "heads"),
        (flash_attention_gpu(&q, &q, &Tensor::ones([2, 5, 4, 8])?, null, None, None).err(), "[2, 3, heads, head size]"),
        (flash_attention_gpu(&flat, &q, &q, null, None, None).err(), "float32[6, 4, 8]"),
        (flash_attention_gpu(&q, &q, &q, null, None, Some(&lengths)).err(), "uint32, [2]"),
        (flash_attention_gpu(&q, &q, &q, MhaMaskVariant::SlidingWindowCausal(0), None, None).err(), "1 or more"),
        (flash_attention_ragged_gpu(&flat, &flat, &flat, &lengths, null, None).err(), "uint32, [sequences + 1]"),
        (flash_attention_ragged_gpu(&flat, &flat, &flat.cast(DType::F16)?, &offsets, null, None).err(), "dtype"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(text) && error.contains("tests/nn/uncached_attention.rs:"), "{text}: {error}");
    }
    Ok(())
}
