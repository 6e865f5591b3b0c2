//! Sequences together and alone, prompts in chunks, and where texts end.

use max_pipelines::{
    GenerationStatus, LLM, PipelineConfig, PipelineRegistry, SamplingParams, SupportedArchitecture,
    TextGenerationPipeline, TextGenerationRequest, architectures::DecoderConfig,
};

use crate::architectures::greedy;
use crate::folders::Expected;

/// Prompts of several lengths.
fn prompts(model: &Expected) -> Vec<Vec<u32>> {
    let ids = model.ids();
    (1..=5).map(|i| ids[..2 * i + 1].iter().rev().copied().collect()).collect()
}

fn alone(model: &Expected, params: &SamplingParams) -> Vec<Vec<u32>> {
    let pipeline = model.pipeline();
    let one = |prompt: &Vec<u32>| {
        pipeline.generate(std::slice::from_ref(prompt), params, |_, _| {}).unwrap().0[0].tokens.clone()
    };
    prompts(model).iter().map(one).collect()
}

#[test]
fn sequences_together_are_those_alone() {
    for name in ["llama", "gemma3", "phi3_longrope", "mixtral"] {
        let model = Expected::new(name);
        let expected = alone(&model, &greedy(12));
        for (max_batch_size, prefill_chunk_size) in [(1, 3), (2, 8192), (3, 4), (8, 8192)] {
            let config = PipelineConfig { max_batch_size, prefill_chunk_size, ..model.config() };
            let pipeline = TextGenerationPipeline::new(&config).unwrap();
            let (outputs, timing) = pipeline.generate(&prompts(&model), &greedy(12), |_, _| {}).unwrap();
            let tokens: Vec<Vec<u32>> = outputs.into_iter().map(|output| output.tokens).collect();
            assert_eq!(tokens, expected, "{name}, {max_batch_size}, {prefill_chunk_size}");
            // Beyond the original length of LongRoPE, all tokens are computed once more.
            let computed = timing.prefill_tokens + timing.decode_tokens;
            assert_eq!(computed > 35 + 5 * 11, name == "phi3_longrope", "{computed}");
            assert!(computed >= 35 + 5 * 11, "{computed}");
        }
    }
}

/// Tokens of some requests are drawn in a graph, and those of others, which want more of the logits, on the host.
#[test]
fn sequences_are_drawn_together_as_alone() {
    let model = Expected::new("llama");
    let base = SamplingParams { temperature: 1.3, ..SamplingParams::default() }.max_new_tokens(10);
    let all = [
        base.clone(),
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.8, min_p: 0.01, ..base.clone() },
        SamplingParams { repetition_penalty: 1.2, ..base.clone() },
        SamplingParams { min_new_tokens: 4, ..base.clone() },
        greedy(10),
    ];
    let prompts = prompts(&model);
    let requests: Vec<TextGenerationRequest> = (0..2 * all.len())
        .map(|i| {
            let params = SamplingParams { seed: 40 + i as u64 / 3, ..all[i % all.len()].clone() };
            let logprobs = usize::from(i % 4 == 3);
            TextGenerationRequest { logprobs, ..TextGenerationRequest::new(&*prompts[i % prompts.len()], params) }
        })
        .collect();
    let tokens = |max_batch_size: usize, requests: &[TextGenerationRequest]| -> Vec<Vec<u32>> {
        let config = PipelineConfig { max_batch_size, prefill_chunk_size: 5, ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let (outputs, _) = pipeline.generate_requests(requests, |_, _| {}).unwrap();
        outputs.into_iter().map(|output| output.tokens).collect()
    };
    let alone: Vec<Vec<u32>> = requests.iter().flat_map(|request| tokens(1, std::slice::from_ref(request))).collect();
    assert!(alone.iter().all(|tokens| !tokens.is_empty()));
    for max_batch_size in [1, 3, 12] {
        assert_eq!(tokens(max_batch_size, &requests), alone, "{max_batch_size}");
    }
    // Another seed draws other tokens, and the likeliest are the same in the graph and on the host.
    let other = |i: usize| {
        let mut request = requests[i].clone();
        (request.sampling_params.seed, request.logprobs) = (99, 1 - request.logprobs);
        tokens(1, &[request]).remove(0)
    };
    assert_ne!(other(0), alone[0]);
    assert_eq!([other(5), other(11)], [alone[5].clone(), alone[11].clone()]);
}

#[test]
fn a_sequence_that_is_cancelled_leaves_the_others_alone() {
    let model = Expected::new("llama");
    let expected = alone(&model, &greedy(12));
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { max_batch_size: 3, ..model.config() }).unwrap();
    let cancel = |i: usize, context: &mut max_pipelines::TextContext| {
        if i == 1 && context.generated().len() == 4 {
            context.cancel();
        }
    };
    let (outputs, _) = pipeline.generate(&prompts(&model), &greedy(12), cancel).unwrap();
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        match i {
            1 => assert_eq!((&output.tokens[..], output.final_status), (&expected[..4], GenerationStatus::Cancelled)),
            _ => assert_eq!((&output.tokens, output.final_status), (&expected, GenerationStatus::MaximumLength)),
        }
    }
}

#[test]
fn caches_grow() {
    let model = Expected::new("llama");
    model.write_config(|config| config["max_position_embeddings"] = 1024.into());
    let pipeline = model.pipeline();
    let params = greedy(400);
    let (outputs, _) = pipeline.generate(&[model.ids()], &params, |_, _| {}).unwrap();
    let tokens = &outputs[0].tokens;
    assert_eq!(tokens.len(), 400);
    // The tokens of a text that is computed at once.
    let all: Vec<u32> = model.ids().into_iter().chain(tokens[..399].iter().copied()).collect();
    let logits = pipeline.logits(&all).unwrap();
    let row = logits.to_vec::<f32>().unwrap()[410 * 64..].to_vec();
    let best = (0..64).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    assert_eq!(best as u32, tokens[399]);
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let model = Expected::new("llama");
    let pipeline = model.pipeline();
    let draw = |seed| {
        let params = SamplingParams { seed, temperature: 1.5, top_k: 40, top_p: 0.95, min_p: 0.01, ..greedy(24) };
        pipeline.generate(&[model.ids()], &params, |_, _| {}).unwrap().0[0].tokens.clone()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn texts_end_where_they_should() {
    let model = Expected::new("llama");
    model.write_config(|config| config["eos_token_id"] = serde_json::json!([2, model.tokens()[5]]));
    let pipeline = model.pipeline();
    let until = |params: &SamplingParams| {
        let output = pipeline.generate(&[model.ids()], params, |_, _| {}).unwrap().0.remove(0);
        (output.tokens, output.final_status)
    };
    let expected = model.tokens();
    let params = SamplingParams::greedy().max_new_tokens(16);
    // The token may have come before the place that it was chosen for.
    let end = expected.iter().position(|token| *token == expected[5]).unwrap() + 1;
    assert_eq!(until(&params), (expected[..end].to_vec(), GenerationStatus::EndOfSequence));
    let going = SamplingParams { ignore_eos: true, ..params.clone() };
    assert_eq!(until(&going), (expected.clone(), GenerationStatus::MaximumLength));
    let stop = expected.iter().position(|token| *token == expected[2]).unwrap() + 1;
    let stopped = SamplingParams { stop_token_ids: vec![expected[2]], ..going.clone() };
    assert_eq!(until(&stopped), (expected[..stop].to_vec(), GenerationStatus::EndOfSequence));
    let (longer, _) = until(&SamplingParams { min_new_tokens: 9, ..params });
    assert!(longer.len() >= 9 && !longer[..9].contains(&expected[5]), "{longer:?}");
    // A prompt that leaves room for four.
    let long = vec![4; pipeline.max_length() - 4];
    let (outputs, _) = pipeline.generate(&[long], &going, |_, _| {}).unwrap();
    assert_eq!((outputs[0].tokens.len(), outputs[0].final_status), (4, GenerationStatus::MaximumLength));
    let (outputs, _) =
        pipeline.generate(&[model.ids()], &SamplingParams::greedy().max_new_tokens(0), |_, _| {}).unwrap();
    assert_eq!((outputs[0].tokens.len(), outputs[0].final_status), (0, GenerationStatus::MaximumLength));
}

/// A Llama with a token for each byte.
pub fn bytes() -> Expected {
    let model = vocabulary_of(260);
    model.write_tokenizer(4);
    model
}

/// A Llama of so many tokens.
pub fn vocabulary_of(tokens: usize) -> Expected {
    let model = Expected::new("llama");
    model.write_config(|config| config["vocab_size"] = tokens.into());
    model.write_weights(|weights| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let table = weights[name].to_vec::<f32>().unwrap();
            let rows = table.iter().cycle().zip(0..tokens * 32).map(|(x, i)| x + (i / 2048) as f32 * 0.01).collect();
            weights.insert(name.into(), max_core::driver::Tensor::from_vec(rows, [tokens, 32]).unwrap());
        }
    });
    model
}

#[test]
fn text_comes_in_whole_characters() {
    let model = bytes();
    std::fs::write(
        model.file("chat_template.jinja"),
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
    )
    .unwrap();
    let llm = LLM::new(&model.config()).unwrap();
    let pipeline = llm.pipeline();
    let tokenizer = pipeline.tokenizer().unwrap();
    let tokens = tokenizer.encode("naïve 你好", true).unwrap();
    assert_eq!(tokens.len(), 13);
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "naïve 你好");
    // High temperatures draw bytes that are no characters.
    let params = SamplingParams { temperature: 50.0, ignore_eos: true, ..SamplingParams::default().max_new_tokens(80) };
    let mut streamed = String::new();
    let (outputs, _) =
        pipeline.generate(&[tokens], &params, |_, context| streamed.push_str(context.take_text())).unwrap();
    assert_eq!(streamed, outputs[0].text);
    assert_eq!(outputs[0].text, tokenizer.decode(&outputs[0].tokens).unwrap());
    let answer =
        llm.chat(&[max_pipelines::ChatMessage::user("Hi")], &SamplingParams::greedy().max_new_tokens(3)).unwrap();
    assert_eq!(answer.prompt_tokens, "[user] Hi\n".len());
}

#[test]
fn a_stop_sequence_ends_the_text_before_it() {
    let model = bytes();
    let llm = LLM::new(&model.config()).unwrap();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy().max_new_tokens(40) };
    let whole = llm.generate(&["Once"], &params).unwrap().remove(0).text;
    let stop: String = whole.chars().skip(6).take(2).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let stopped = SamplingParams { stop: vec!["never".into(), stop], ..params };
    let output = llm.generate(&["Once"], &stopped).unwrap().remove(0);
    assert_eq!((output.text.as_str(), output.final_status), (expected, GenerationStatus::EndOfSequence));
}

#[test]
fn an_architecture_of_ones_own_is_registered() {
    let model = Expected::new("llama");
    model.write_config(|config| config["architectures"] = serde_json::json!(["MyForCausalLM"]));
    let error = TextGenerationPipeline::new(&model.config()).err().unwrap().to_string();
    assert!(error.contains("`MyForCausalLM` is not known") && error.contains("PipelineRegistry::register"), "{error}");
    model.write_weights(|weights| weights.retain(|name, _| !name.contains("gate_proj")));
    let registry = crate::own_architecture::registry().unwrap();
    let pipeline = TextGenerationPipeline::with_registry(&model.config(), &registry).unwrap();
    let (outputs, _) = pipeline.generate(&[model.ids()], &greedy(16), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens.len(), 16);
    // Under another name, a Llama is the one that transformers has.
    let model = Expected::new("llama");
    model.write_config(|config| config["architectures"] = serde_json::json!(["TheirForCausalLM"]));
    let mut registry = PipelineRegistry::new();
    let theirs = SupportedArchitecture::text_generation("TheirForCausalLM", |config| {
        Ok(Box::new(DecoderConfig::new(config)?.llama()?))
    });
    registry.register(theirs.clone()).unwrap();
    let pipeline = TextGenerationPipeline::with_registry(&model.config(), &registry).unwrap();
    let (outputs, _) = pipeline.generate(&[model.ids()], &greedy(16), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, model.tokens());
    let error = registry.register(theirs).unwrap_err().to_string();
    assert!(error.contains("`TheirForCausalLM` is registered already"), "{error}");
}
