//! Speculative decoding gives the target's own tokens, whatever the draft proposes.

use max_pipelines::{
    GenerationStatus, KvCacheConfig, PipelineConfig, SamplingParams, SpeculativeDecodingMetrics,
    SpeculativeDecodingTextGenerationPipeline, TextGenerationRequest,
};

use crate::architectures::greedy;
use crate::folders::Expected;

/// A model of the first layer alone.
fn first_layer() -> Expected {
    let model = Expected::new("llama");
    model.write_config(|config| config["num_hidden_layers"] = 1.into());
    model.write_weights(|weights| weights.retain(|name, _| !name.contains("layers.1.")));
    model
}

fn pipeline(target: &Expected, draft: &Expected, tokens: usize) -> SpeculativeDecodingTextGenerationPipeline {
    let config = PipelineConfig {
        draft_model_path: Some(draft.path().into()),
        num_speculative_tokens: tokens,
        prefill_chunk_size: 4,
        // Tokens that are not taken end within pages and at their ends.
        kv_cache: KvCacheConfig { kv_cache_page_size: 3, ..KvCacheConfig::default() },
        ..target.config()
    };
    SpeculativeDecodingTextGenerationPipeline::new(&config).unwrap()
}

fn rate(metrics: SpeculativeDecodingMetrics) -> f64 {
    metrics.acceptance_rate()
}

#[test]
fn greedy_tokens_are_those_of_the_target() {
    let (target, draft) = (Expected::new("llama"), first_layer());
    let prompts = [target.ids(), target.ids()[..3].to_vec()];
    let (expected, _) = target.pipeline().generate(&prompts, &greedy(40), |_, _| {}).unwrap();
    for tokens in [1, 3, 8] {
        let pipeline = pipeline(&target, &draft, tokens);
        let mut heard = vec![0; 2];
        let (outputs, timing, metrics) =
            pipeline.generate(&prompts, &greedy(40), |i, context| heard[i] = context.generated().len()).unwrap();
        for (output, expected) in outputs.iter().zip(&expected) {
            assert_eq!((&output.tokens, output.final_status), (&expected.tokens, expected.final_status));
        }
        assert_eq!(heard, [40, 40]);
        assert_eq!(timing.prefill_tokens, target.ids().len() + 3);
        assert!(metrics.draft_tokens_generated > metrics.draft_tokens_accepted, "{metrics:?}");
        // Fewer are drafted where few are taken.
        assert!(tokens < 8 || metrics.draft_tokens_generated < 4 * metrics.target_steps, "{metrics:?}");
        let (_, pages, free) = pipeline.target().cache_pages();
        assert_eq!(free, pages);
        // What the rolled back sequences left in the cache is what others continue.
        let (outputs, ..) = pipeline.generate(&prompts, &greedy(40), |_, _| {}).unwrap();
        assert!(outputs.iter().zip(&expected).all(|(output, expected)| output.tokens == expected.tokens));
        assert!(pipeline.target().cache_metrics().prefix_hit_tokens > 0);
    }
    // A draft that is the target itself is taken whole.
    let (outputs, _, metrics) = pipeline(&target, &target, 4).generate(&prompts, &greedy(40), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, expected[0].tokens);
    assert!(rate(metrics) > 0.95 && metrics.target_steps < 30, "{metrics:?}");
}

#[test]
fn texts_end_where_the_target_ends_them() {
    let (target, draft) = (Expected::new("llama"), first_layer());
    target.write_config(|config| config["eos_token_id"] = serde_json::json!([2, target.tokens()[5]]));
    let params = SamplingParams::greedy().max_new_tokens(16);
    let (expected, _) = target.pipeline().generate(&[target.ids()], &params, |_, _| {}).unwrap();
    assert_eq!(expected[0].final_status, GenerationStatus::EndOfSequence);
    let pipeline = pipeline(&target, &draft, 6);
    let (outputs, ..) = pipeline.generate(&[target.ids()], &params, |_, _| {}).unwrap();
    assert_eq!((&outputs[0].tokens, outputs[0].final_status), (&expected[0].tokens, expected[0].final_status));
    // Up to the end of the context, with log probabilities of every token.
    let long = vec![4; pipeline.target().max_length() - 5];
    let request = TextGenerationRequest { logprobs: 1, ..TextGenerationRequest::new(long, greedy(100)) };
    let (outputs, ..) = pipeline.generate_requests(&[request], |_, _| {}).unwrap();
    assert_eq!((outputs[0].tokens.len(), outputs[0].final_status), (5, GenerationStatus::MaximumLength));
    assert_eq!(outputs[0].log_probabilities.as_ref().unwrap().len(), 5);
}

#[test]
fn drawn_tokens_are_distributed_as_those_of_the_target() {
    let (target, draft) = (Expected::new("llama"), first_layer());
    let (alone, drafted) = (target.pipeline(), pipeline(&target, &draft, 2));
    let prompt = target.ids()[..4].to_vec();
    // The second token of each of many texts, which is the first that is drafted for.
    let seeds = 600;
    let counts = |next: &dyn Fn(&SamplingParams) -> u32| {
        let mut counts = [0.0f64; 64];
        for seed in 0..seeds {
            let params = SamplingParams { temperature: 0.7, top_k: 4, seed, ..greedy(3) };
            counts[next(&params) as usize] += 1.0 / seeds as f64;
        }
        counts
    };
    let of_target =
        counts(&|params| alone.generate(std::slice::from_ref(&prompt), params, |_, _| {}).unwrap().0[0].tokens[1]);
    let of_both =
        counts(&|params| drafted.generate(std::slice::from_ref(&prompt), params, |_, _| {}).unwrap().0[0].tokens[1]);
    let distance: f64 = of_target.iter().zip(of_both).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0;
    assert!(distance < 0.16, "{distance}");
}

#[test]
fn logits_that_are_no_numbers_end_their_sequence_alone() {
    let (target, draft) = (Expected::new("llama"), first_layer());
    let (good, bad) = (vec![4, 5, 6], vec![4, 7, 6]);
    let expected = target.pipeline().generate(std::slice::from_ref(&good), &greedy(6), |_, _| {}).unwrap().0.remove(0);
    target.write_weights(|weights| {
        let mut table = weights["model.embed_tokens.weight"].to_vec::<f32>().unwrap();
        table[7 * 32..8 * 32].fill(f32::NAN);
        let table = max_core::driver::Tensor::from_vec(table, [64, 32]).unwrap();
        weights.insert("model.embed_tokens.weight".into(), table);
    });
    let pipeline = pipeline(&target, &draft, 3);
    let (outputs, ..) = pipeline.generate(&[bad, good], &greedy(6), |_, _| {}).unwrap();
    assert_eq!((outputs[0].final_status, outputs[1].final_status), (GenerationStatus::Failed, expected.final_status));
    assert!(outputs[0].error.as_ref().unwrap().to_string().contains("are not numbers"));
    assert_eq!(outputs[1].tokens, expected.tokens);
}

/// With a check of numerics, infinities are errors of the model: those of a draft leave the target alone, and those of the target end its
/// sequence.
#[test]
fn a_model_that_fails_its_check_fails_alone() {
    let (target, broken) = (Expected::new("llama"), Expected::new("llama"));
    broken.write_weights(|weights| {
        let head = &weights["lm_head.weight"];
        let infinite = vec![f32::INFINITY; head.shape().iter().product()];
        let head = max_core::driver::Tensor::from_vec(infinite, head.shape()).unwrap();
        weights.insert("lm_head.weight".into(), head);
    });
    let pipeline = |target: &Expected, draft: &Expected| {
        let draft_model_path = Some(draft.path().into());
        let config = PipelineConfig { draft_model_path, check_numerics: true, ..target.config() };
        SpeculativeDecodingTextGenerationPipeline::new(&config).unwrap()
    };
    let prompts = [vec![5, 6, 7]];
    let expected = target.pipeline().generate(&prompts, &greedy(8), |_, _| {}).unwrap().0.remove(0).tokens;
    let (texts, _, metrics) = pipeline(&target, &broken).generate(&prompts, &greedy(8), |_, _| {}).unwrap();
    assert_eq!((&texts[0].tokens, metrics.draft_tokens_generated), (&expected, 0));
    // A target that fails as it verifies what follows its first token.
    let draft = first_layer();
    target.write_weights(|weights| {
        let mut table = weights["model.embed_tokens.weight"].to_vec::<f32>().unwrap();
        table[expected[0] as usize * 32..][..32].fill(f32::INFINITY);
        let table = max_core::driver::Tensor::from_vec(table, [64, 32]).unwrap();
        weights.insert("model.embed_tokens.weight".into(), table);
    });
    let (texts, ..) = pipeline(&target, &draft).generate(&prompts, &greedy(8), |_, _| {}).unwrap();
    assert_eq!((texts[0].final_status, &*texts[0].tokens), (GenerationStatus::Failed, &expected[..1]));
}

#[test]
fn drafts_that_do_not_fit() {
    let target = Expected::new("llama");
    let other = crate::generation::vocabulary_of(260);
    let fails = |config: PipelineConfig, message: &str| {
        let error = SpeculativeDecodingTextGenerationPipeline::new(&config).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    };
    fails(target.config(), "draft_model_path: none");
    let with = |path: &Expected| PipelineConfig { draft_model_path: Some(path.path().into()), ..target.config() };
    fails(with(&other), "a model of 260 tokens is not of the same vocabulary");
    fails(PipelineConfig { num_speculative_tokens: 0, ..with(&target) }, "num_speculative_tokens: 0");
    let mut missing = with(&target);
    missing.draft_model_path = Some(target.file("none"));
    fails(missing, "there is no such file or folder");
}
