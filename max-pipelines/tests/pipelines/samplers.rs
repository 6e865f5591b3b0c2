//! Graphs of sampling: tokens, drafted tokens, log probabilities.

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Input, Model};
use max::graph::Graph;
use max_pipelines::{
    LogProbabilities, PipelineError, RaggedLogits, SamplingConfig, compute_log_probabilities_ragged,
    log_probabilities_ragged_graph, rejection_sampler, rejection_sampler_with_residuals, token_sampler,
};

fn load(graph: max_pipelines::Result<Graph>) -> Model {
    max_kernels::link();
    InferenceSession::new().load(&graph.unwrap()).unwrap()
}

fn tensor<T: max::dtype::Element>(data: &[T], shape: impl AsRef<[usize]>) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

/// What a sampler draws with, of `batch` sequences: all tokens, as they are likely.
fn options(batch: usize, temperature: f32) -> Vec<Tensor> {
    let all = |x: f32| tensor(&vec![x; batch], [batch]);
    let seeds: Vec<i64> = (0..batch as i64).collect();
    vec![tensor(&vec![-1i64; batch], [batch]), all(temperature), all(1.0), all(0.0), tensor(&seeds, [batch])]
}

#[test]
fn a_token_is_added_to_those_so_far() {
    let config = SamplingConfig { in_dtype: DType::BF16, ..SamplingConfig::default() };
    let model = load(token_sampler(&config, DeviceRef::CPU, true));
    let logits = [1.0f32, 3.0, 2.0, 5.0, 4.0, f32::NAN];
    let narrow: Vec<max::dtype::bf16> = logits.iter().map(|x| max::dtype::bf16::from_f32(*x)).collect();
    let inputs = [tensor(&narrow, [2, 3]), tensor(&[7i64, 8, 9, 10], [2, 2])];
    let options = options(2, 0.0);
    let results = model.execute(inputs.iter().chain(&options).collect::<Vec<_>>()).unwrap();
    assert_eq!(results[0].to_vec::<i64>().unwrap(), [1, -1]);
    assert_eq!(results[1].to_vec::<i64>().unwrap(), [7, 8, 1, 9, 10, -1]);
    assert_eq!(results[2].to_vec::<f32>().unwrap()[..5], logits[..5]);
}

#[test]
fn penalties_minimal_tokens_and_masks_rule_out_the_likeliest() {
    let config = SamplingConfig {
        do_penalties: true,
        enable_min_tokens: true,
        enable_structured_output: true,
        ..SamplingConfig::default()
    };
    let model = load(token_sampler(&config, DeviceRef::CPU, false));
    let mut logits = tensor(&[4.0f32, 3.0, 2.0, 1.0].repeat(3), [3, 4]);
    let mut rest = vec![tensor::<i64>(&[], [3, 0])];
    rest.extend(options(3, 0.0));
    // The first row has drawn token 0 twice.
    rest.extend([tensor(&[0i32, 2], [1, 2]), tensor(&[0u32, 1, 1, 1], [4])]);
    rest.extend([[1.0f32; 3], [0.0; 3], [1.0; 3]].map(|x| tensor(&x, [3])));
    // The second may not end with it, and of the third only token 3 is left.
    rest.push(tensor(&[1i64, 0], [1, 2]));
    let allowed = [true, true, true, true, true, true, true, true, false, false, false, true];
    rest.push(tensor(&allowed, [3, 4]));
    let inputs = std::iter::once(Input::from(&mut logits)).chain(rest.iter().map(Input::from));
    let results = model.execute(inputs.collect::<Vec<_>>()).unwrap();
    assert_eq!(results[0].to_vec::<i64>().unwrap(), [1, 1, 3]);
    assert_eq!(logits.to_vec::<f32>().unwrap()[..5], [2.0, 3.0, 2.0, 1.0, f32::NEG_INFINITY]);
}

#[test]
fn of_variable_logits_the_last_count() {
    let config = SamplingConfig { enable_variable_logits: true, ..SamplingConfig::default() };
    let model = load(token_sampler(&config, DeviceRef::CPU, false));
    let mut inputs = vec![tensor(&[9.0f32, 0.0, 0.0, 1.0, 3.0, 2.0], [3, 2]), tensor::<i64>(&[], [2, 0])];
    inputs.extend(options(2, 0.0));
    inputs.push(tensor(&[0i64, 2, 3], [3]));
    let results = model.execute(inputs.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(results[0].to_vec::<i64>().unwrap(), [1, 0]);
    let both = SamplingConfig { do_penalties: true, ..config };
    let error = token_sampler(&both, DeviceRef::CPU, false).err().unwrap().to_string();
    assert!(error.contains("enable_variable_logits") && error.contains("do_penalties"), "{error}");
    let small = SamplingConfig { in_dtype: DType::F8E4M3FN, ..SamplingConfig::default() };
    let error = token_sampler(&small, DeviceRef::CPU, false).err().unwrap().to_string();
    assert!(error.contains("in_dtype") && error.contains("samplers.rs"), "{error}");
}

const DRAWS: usize = 20_000;

/// A token of a distribution for each draw, by another generator than the graph's.
fn drafted(shares: &[f64], salt: u64) -> Vec<i64> {
    let mut state = salt;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let token = |point: f64| {
        let mut sum = 0.0;
        shares.iter().position(|share| {
            sum += share;
            point < sum
        })
    };
    (0..DRAWS).map(|_| token(random()).unwrap_or(shares.len() - 1) as i64).collect()
}

#[track_caller]
fn distributed(tokens: &[i64], shares: &[f64]) {
    for (token, share) in shares.iter().enumerate() {
        let found = tokens.iter().filter(|drawn| **drawn == token as i64).count() as f64 / tokens.len() as f64;
        let deviation = (share * (1.0 - share) / tokens.len() as f64).sqrt();
        assert!((found - share).abs() <= 4.5 * deviation, "token {token}: {found} of {shares:?}");
    }
}

fn logits(shares: &[f64]) -> Vec<f32> {
    // Any number may be added.
    shares.iter().map(|share| share.ln() as f32 + 1.5).collect()
}

#[test]
fn verified_tokens_are_distributed_as_those_of_the_target() {
    let model = load(rejection_sampler_with_residuals(DeviceRef::CPU, 3, true));
    let distributions = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.25; 4]];
    for (salt, target) in (1..).zip(&distributions) {
        for draft in &distributions {
            // The second drafted token and the one behind are from other distributions than the first.
            let (second, behind) = (&distributions[1], &distributions[0]);
            let tokens: Vec<i64> =
                drafted(draft, salt).into_iter().zip(drafted(second, salt + 9)).flat_map(|(a, b)| [a, b]).collect();
            let of_draft = [logits(draft), logits(second)].concat().repeat(DRAWS);
            let of_target = [logits(target), logits(second), logits(behind)].concat().repeat(DRAWS);
            let offsets: Vec<i64> = (0..=DRAWS as i64).map(|i| 3 * i).collect();
            let inputs = [
                tensor(&tokens, [DRAWS, 2]),
                tensor(&of_draft, [DRAWS, 2, 4]),
                tensor(&of_target, [3 * DRAWS, 4]),
                tensor(&offsets, [DRAWS + 1]),
                Tensor::scalar(11i64).unwrap(),
            ];
            let results = model.execute(inputs.iter().collect::<Vec<_>>()).unwrap();
            let integers = |i: usize| results[i].to_vec::<i64>().unwrap();
            let (taken, recovered, bonus) = (integers(0), integers(1), integers(2));
            let first = |i: usize| if taken[i] > 0 { tokens[2 * i] } else { recovered[2 * i] };
            distributed(&(0..DRAWS).map(first).collect::<Vec<_>>(), target);
            // Where both were drawn from one distribution, a drafted token is always taken.
            assert!(taken.iter().all(|taken| *taken != 1));
            let full: Vec<i64> = (0..DRAWS).filter(|i| taken[*i] == 2).map(|i| bonus[i]).collect();
            distributed(&full, behind);
            // The random numbers decide by the probabilities.
            let [odds, random] = [3, 4].map(|i| results[i].to_vec::<f32>().unwrap());
            for i in 0..DRAWS {
                assert_eq!(taken[i] > 0, random[2 * i] < odds[2 * i], "{i}: {} {}", random[2 * i], odds[2 * i]);
            }
        }
    }
}

#[test]
fn drafted_tokens_are_verified_by_their_own_probability() {
    let model = load(rejection_sampler(DeviceRef::CPU, 0));
    let (target, behind, draft) = ([0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.5, 0.25, 0.25]);
    let tokens = drafted(&draft, 5);
    let own: Vec<f32> = tokens.iter().map(|token| draft[*token as usize].ln() as f32).collect();
    let of_target = [logits(&target), logits(&behind)].concat().repeat(DRAWS);
    let offsets: Vec<i64> = (0..=DRAWS as i64).map(|i| 2 * i).collect();
    let inputs = [
        tensor(&tokens, [DRAWS, 1]),
        tensor(&own, [DRAWS, 1]),
        tensor(&of_target, [2 * DRAWS, 3]),
        tensor(&offsets, [DRAWS + 1]),
        Tensor::scalar(4i64).unwrap(),
    ];
    let results = model.execute(inputs.iter().collect::<Vec<_>>()).unwrap();
    let (taken, next) = (results[0].to_vec::<i64>().unwrap(), results[1].to_vec::<i64>().unwrap());
    // Of the draft's tokens one in five of the first, four in five of the second, and all of the third.
    for (token, odds) in [0.2, 0.8, 1.0].into_iter().enumerate() {
        let of_token: Vec<i64> = (0..DRAWS).filter(|i| tokens[*i] == token as i64).map(|i| 1 - taken[i]).collect();
        distributed(&of_token, &[odds, 1.0 - odds]);
    }
    for (count, shares) in [(0, target), (1, behind)] {
        distributed(&(0..DRAWS).filter(|i| taken[*i] == count).map(|i| next[i]).collect::<Vec<_>>(), &shares);
    }
}

#[test]
fn log_probabilities_of_a_ragged_batch() {
    let model = load(log_probabilities_ragged_graph(DeviceRef::CPU, 2));
    let logit = |i: usize| ((i * 37 + 11) % 29) as f32 / 5.0;
    // Sequences of 3, 1 and 2 tokens, of a vocabulary of 5.
    let all: Vec<f32> = (0..30).map(logit).collect();
    let next: Vec<f32> = [2, 3, 5].into_iter().flat_map(|row| all[5 * row..5 * row + 5].to_vec()).collect();
    let (tokens, sampled) = ([4, 1, 0, 2, 3, 3], [2, 0, 4]);
    let (all, next) = (tensor(&all, [6, 5]), tensor(&next, [3, 5]));
    let batch = RaggedLogits {
        input_row_offsets: &[0, 3, 4, 6],
        logits: Some(&all),
        next_token_logits: &next,
        tokens: &tokens,
        sampled_tokens: &sampled,
        batch_top_n: &[2, 0, 3],
        batch_echo: &[true, true, false],
    };
    let found = compute_log_probabilities_ragged(&model, &batch).unwrap();
    let expected = |rows: &[(usize, u32)], top: usize| {
        let mut expected = LogProbabilities::default();
        for (row, token) in rows {
            let logits: Vec<f64> = (0..5).map(|i| f64::from(logit(5 * row + i))).collect();
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            let log = |token: usize| (logits[token] - sum.ln()) as f32;
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            expected.token_log_probabilities.push(log(*token as usize));
            let top = order[..top].iter().map(|token| (*token as u32, log(*token)));
            expected.top_log_probabilities.push(top.collect());
        }
        Some(expected)
    };
    let wanted = [expected(&[(0, 1), (1, 0), (2, 2)], 2), None, expected(&[(5, 4)], 3)];
    assert_eq!(found.len(), 3);
    for (found, wanted) in found.iter().zip(&wanted) {
        let flat = |one: &LogProbabilities| {
            let top: Vec<(u32, f32)> = one.top_log_probabilities.concat();
            let tokens: Vec<u32> = top.iter().map(|(token, _)| *token).collect();
            let values = one.token_log_probabilities.iter().copied().chain(top.iter().map(|(_, value)| *value));
            (tokens, values.collect::<Vec<f32>>())
        };
        let (Some(found), Some(wanted)) = (found, wanted) else {
            assert_eq!(found, wanted);
            continue;
        };
        let ((tokens, values), (wanted_tokens, wanted_values)) = (flat(found), flat(wanted));
        assert_eq!(tokens, wanted_tokens);
        assert!(values.len() == wanted_values.len());
        assert!(values.iter().zip(&wanted_values).all(|(a, b)| (a - b).abs() < 1e-5), "{values:?}, {wanted_values:?}");
    }
    for (batch, text) in [
        (RaggedLogits { logits: None, ..batch }, "logits"),
        (RaggedLogits { batch_top_n: &[4, 0, 0], ..batch }, "batch_top_n"),
        (RaggedLogits { sampled_tokens: &[1], ..batch }, "sampled_tokens"),
        (RaggedLogits { input_row_offsets: &[0, 3, 4, 9], ..batch }, "input_row_offsets"),
    ] {
        let error = compute_log_probabilities_ragged(&model, &batch).unwrap_err();
        assert!(matches!(&error, PipelineError::Argument { argument, .. } if *argument == text), "{error}");
    }
    let batch = RaggedLogits { sampled_tokens: &[5, 0, 0], ..batch };
    let error = compute_log_probabilities_ragged(&model, &batch).unwrap_err();
    assert!(matches!(error, PipelineError::Token { token: 5, vocab_size: 5 }), "{error}");
    let error = log_probabilities_ragged_graph(DeviceRef::CPU, 0).err().unwrap().to_string();
    assert!(error.contains("levels") && error.contains("from 1 to 16"), "{error}");
}
