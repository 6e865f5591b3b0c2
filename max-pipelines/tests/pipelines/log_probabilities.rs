//! Log probabilities of new tokens and of prompts, and functions that change logits.

use max_pipelines::{
    GenerationStatus, KvCacheConfig, LogitsProcessor, PipelineConfig, ProcessorInputs, SamplingParams,
    TextGenerationPipeline, TextGenerationRequest,
};

use crate::architectures::greedy;
use crate::folders::Expected;

/// The logarithms of the softmax of each row of 64.
fn log_softmax(logits: &[f32]) -> Vec<Vec<f64>> {
    let row = |row: &[f32]| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x) - sum.ln()).collect()
    };
    logits.chunks(64).map(row).collect()
}

#[test]
fn they_are_those_of_the_logits() {
    let model = Expected::new("llama");
    let ids = model.ids();
    let tokens = model.tokens()[..4].to_vec();
    let all: Vec<u32> = ids.iter().chain(&tokens).copied().collect();
    let rows = log_softmax(&model.pipeline().logits(&all).unwrap().to_vec::<f32>().unwrap());
    for prefill_chunk_size in [3, 8192] {
        let config = PipelineConfig { max_batch_size: 2, prefill_chunk_size, ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let echo =
            TextGenerationRequest { logprobs: 2, echo: true, ..TextGenerationRequest::new(ids.clone(), greedy(4)) };
        let requests = [TextGenerationRequest { echo: false, ..echo.clone() }, echo];
        let (outputs, _) = pipeline.generate_requests(&requests, |_, _| {}).unwrap();
        for (output, echoed) in outputs.iter().zip([0, ids.len() - 1]) {
            assert_eq!(output.tokens, tokens);
            let found = output.log_probabilities.as_ref().unwrap();
            let lengths: Vec<usize> = found.iter().map(|one| one.token_log_probabilities.len()).collect();
            assert_eq!(lengths, [echoed + 1, 1, 1, 1]);
            let own: Vec<f32> = found.iter().flat_map(|one| one.token_log_probabilities.clone()).collect();
            let top: Vec<Vec<(u32, f32)>> = found.iter().flat_map(|one| one.top_log_probabilities.clone()).collect();
            let first = ids.len() - 1 - echoed;
            for (i, (own, top)) in own.iter().zip(&top).enumerate() {
                let row = &rows[first + i];
                let token = all[first + i + 1] as usize;
                assert!((f64::from(*own) - row[token]).abs() < 1e-4, "{i}: {own}, {}", row[token]);
                let mut best: Vec<usize> = (0..64).collect();
                best.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                assert_eq!(top.iter().map(|(token, _)| *token as usize).collect::<Vec<_>>(), best[..2]);
                assert!((f64::from(top[0].1) - row[best[0]]).abs() < 1e-4, "{i}: {top:?}");
            }
        }
    }
}

#[test]
fn an_echo_has_all_of_a_prompt_that_is_in_the_cache() {
    let model = Expected::new("llama");
    let kv_cache = KvCacheConfig { kv_cache_page_size: 2, ..KvCacheConfig::default() };
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { kv_cache, ..model.config() }).unwrap();
    let request = TextGenerationRequest { logprobs: 1, ..TextGenerationRequest::new(model.ids(), greedy(3)) };
    let echo = TextGenerationRequest { echo: true, ..request.clone() };
    let found = |request: &TextGenerationRequest| {
        let (mut outputs, _) = pipeline.generate_requests(std::slice::from_ref(request), |_, _| {}).unwrap();
        (outputs[0].log_probabilities.take().unwrap(), pipeline.cache_metrics().prefix_hit_tokens)
    };
    let (first, hits) = found(&echo);
    assert_eq!((first[0].token_log_probabilities.len(), hits), (model.ids().len(), 0));
    assert!(found(&request).1 > 0);
    let (again, _) = found(&echo);
    assert_eq!(again.len(), first.len());
    for (a, b) in again.iter().zip(&first) {
        let lists = [a, b].map(|one| &one.token_log_probabilities);
        assert_eq!(lists[0].len(), lists[1].len());
        assert!(lists[0].iter().zip(lists[1]).all(|(a, b)| (a - b).abs() < 1e-5), "{lists:?}");
    }
    let (_, pages, free) = pipeline.cache_pages();
    assert_eq!(free, pages);
}

#[test]
fn they_are_given_only_to_who_asks() {
    let model = Expected::new("llama");
    let pipeline = model.pipeline();
    let (outputs, _) = pipeline.generate(&[model.ids()], &greedy(2), |_, _| {}).unwrap();
    assert_eq!(outputs[0].log_probabilities, None);
    let request = TextGenerationRequest::new(model.ids(), greedy(2));
    for (request, message) in [
        (TextGenerationRequest { logprobs: 21, ..request.clone() }, "logprobs: 21"),
        (TextGenerationRequest { echo: true, ..request }, "ask for 1 or more"),
    ] {
        let error = pipeline.new_context(&request).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn processors_change_logits() {
    let model = Expected::new("llama");
    let pipeline = model.pipeline();
    let generate = |processor: LogitsProcessor| {
        let params = SamplingParams { logits_processors: vec![processor], ..greedy(4) };
        pipeline.generate(&[model.ids()], &params, |_, _| {}).unwrap().0.remove(0)
    };
    // The token that is one more than the last.
    let count = LogitsProcessor::new(|inputs: ProcessorInputs<'_>| {
        let next = inputs.context.tokens().last().map_or(0, |last| (last + 1) % 64);
        inputs.logits.fill(0.0);
        inputs.logits[next as usize] = 1.0;
    });
    let last = *model.ids().last().unwrap();
    let expected: Vec<u32> = (1..=4).map(|i| (last + i) % 64).collect();
    assert_eq!(generate(count).tokens, expected);
    for (value, message) in
        [(f32::NAN, "made the logit of token 0 NaN or infinite"), (f32::NEG_INFINITY, "no token is left")]
    {
        let output = generate(LogitsProcessor::new(move |inputs: ProcessorInputs<'_>| inputs.logits.fill(value)));
        assert_eq!((output.final_status, output.tokens), (GenerationStatus::Failed, vec![]));
        assert!(output.error.unwrap().to_string().contains(message));
    }
}
