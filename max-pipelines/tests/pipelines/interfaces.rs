//! Pipelines, queues and schedulers by their traits, and what sees a batch.

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};

use max_pipelines::{
    BaseContext, BatchInfo, BatchLogitsProcessor, BatchProcessorInputs, EmbeddingsGenerationRequest,
    EmbeddingsPipeline, GenerationStatus, Pipeline, PipelineConfig, PipelineError, PipelineRegistry, PipelineScheduler,
    PipelineTask, PipelineTokenizer, RequestId, Scheduler, SpeculativeDecodingTextGenerationPipeline, TaskPipeline,
    TextGenerationPipeline, TextGenerationRequest, get_pipeline_for_task,
};

use crate::architectures::greedy;
use crate::folders::{Expected, difference};

fn prompts(count: usize) -> Vec<Vec<u32>> {
    (0..count).map(|i| (0..3 + 2 * i).map(|j| (4 + i * 7 + j * j) as u32 % 60).collect()).collect()
}

fn named(id: &str, prompt: &[u32], tokens: usize) -> TextGenerationRequest {
    TextGenerationRequest { request_id: RequestId::from(id), ..TextGenerationRequest::new(prompt, greedy(tokens)) }
}

/// What a scheduler gives out, by request: tokens and the last status.
fn scheduled<P>(pipeline: &P, requests: Vec<TextGenerationRequest>) -> BTreeMap<String, (Vec<u32>, GenerationStatus)>
where
    P: Pipeline<Request = TextGenerationRequest, Output = max_pipelines::TextGenerationOutput> + Sync,
{
    // A queue of one: results wait for room.
    let ((ask, asked), (give, given), (cancel, cancelled)) = (channel(), sync_channel(1), channel());
    requests.into_iter().for_each(|request| ask.send(request).unwrap());
    drop((ask, cancel));
    std::thread::scope(|scope| {
        scope.spawn(move || PipelineScheduler::new(pipeline, asked, give, cancelled).run().unwrap());
        let mut texts = BTreeMap::new();
        for (id, result) in given {
            let output = result.result.unwrap();
            let (tokens, status) = texts.entry(id.to_string()).or_insert((Vec::new(), GenerationStatus::Active));
            assert!(!status.is_done() && output.request_id == id);
            tokens.extend(output.tokens);
            *status = output.final_status;
            assert_eq!(result.is_done, status.is_done());
        }
        texts
    })
}

#[test]
fn what_a_scheduler_gives_out_is_what_a_pipeline_generates() {
    let model = Expected::new("llama");
    let config = PipelineConfig { max_batch_size: 3, ..model.config() };
    let pipeline = TextGenerationPipeline::new(&config).unwrap();
    let prompts = prompts(7);
    let (expected, _) = pipeline.generate(&prompts, &greedy(6), |_, _| {}).unwrap();
    let requests = || prompts.iter().enumerate().map(|(i, prompt)| named(&i.to_string(), prompt, 6)).collect();
    let draft = PipelineConfig { draft_model_path: Some(model.path().into()), ..model.config() };
    let draft = SpeculativeDecodingTextGenerationPipeline::new(&draft).unwrap();
    for texts in [scheduled(&pipeline, requests()), scheduled(&draft, requests())] {
        assert_eq!(texts.len(), 7);
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(texts[&i.to_string()], (expected.tokens.clone(), GenerationStatus::MaximumLength), "{i}");
        }
    }
    let nothing = scheduled(&pipeline, vec![named("none", &[5], 0)]);
    assert_eq!(nothing["none"], (Vec::new(), GenerationStatus::MaximumLength));
    let mut two = [draft.new_context(&named("a", &[5], 1)).unwrap(), draft.new_context(&named("b", &[6], 1)).unwrap()];
    let error = draft.execute(&mut two.iter_mut().collect::<Vec<_>>()).err().unwrap().to_string();
    assert!(error.contains("one text with drafts at a time"), "{error}");
}

#[test]
fn requests_are_cancelled_refused_and_given_up() {
    let model = Expected::new("llama");
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { max_batch_size: 4, ..model.config() }).unwrap();
    let ((ask, asked), (give, given), (cancel, cancelled)) = (channel(), channel(), channel());
    let mut scheduler = PipelineScheduler::new(&pipeline, asked, give, cancelled);
    scheduler.run_iteration().unwrap();
    assert!(given.try_recv().is_err() && scheduler.running() == 0);
    for (id, prompt) in [("a", vec![5, 6]), ("empty", vec![]), ("b", vec![7]), ("a", vec![9])] {
        ask.send(named(id, &prompt, 20)).unwrap();
    }
    scheduler.run_iteration().unwrap();
    let mut results: Vec<_> = given.try_iter().collect();
    results.sort_by(|a, b| (&a.0, a.1.error.is_some()).cmp(&(&b.0, b.1.error.is_some())));
    let said: Vec<_> = results.iter().map(|(id, result)| (id.as_str(), result.is_done)).collect();
    assert_eq!(said, [("a", false), ("a", false), ("b", false), ("empty", true)]);
    let refused = |at: usize| results[at].1.error.as_ref().unwrap().to_string();
    assert!(refused(1).contains("another than those of requests that are running"), "{}", refused(1));
    assert!(refused(3).contains("give at least one token"), "{}", refused(3));
    assert_eq!(scheduler.running(), 2);
    ["b", "unknown"].iter().for_each(|id| cancel.send(RequestId::from(*id)).unwrap());
    scheduler.run_iteration().unwrap();
    let results: Vec<_> = given.try_iter().collect();
    let (id, cancelled) = &results[0];
    assert!(id.as_str() == "b" && cancelled.is_done && cancelled.result.is_none() && cancelled.error.is_none());
    assert_eq!((results.len(), scheduler.running()), (2, 1));
    // Nobody listens any more.
    drop(given);
    let error = scheduler.run_iteration().unwrap_err();
    assert!(matches!(&error, PipelineError::QueueClosed { request } if request.as_str() == "a"), "{error}");
    let (_, pages, free) = pipeline.cache_pages();
    assert_eq!((scheduler.running(), free), (0, pages));
    drop(ask);
    scheduler.run().unwrap();
    assert!(scheduler.is_finished());
}

#[test]
fn requests_that_wait_for_room_are_cancelled_too() {
    let model = Expected::new("llama");
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { max_batch_size: 1, ..model.config() }).unwrap();
    let ((ask, asked), (give, given), (cancel, cancelled)) = (channel(), channel(), channel());
    let mut scheduler = PipelineScheduler::new(&pipeline, asked, give, cancelled);
    ["a", "waits"].iter().for_each(|id| ask.send(named(id, &[5], 3)).unwrap());
    scheduler.run_iteration().unwrap();
    cancel.send(RequestId::from("waits")).unwrap();
    // One whose name comes with it.
    ask.send(named("late", &[5], 3)).unwrap();
    cancel.send(RequestId::from("late")).unwrap();
    drop((ask, cancel));
    scheduler.run().unwrap();
    let mut tokens = BTreeMap::new();
    for (id, result) in given.try_iter() {
        *tokens.entry(id.to_string()).or_insert(0) += result.result.map_or(0, |output| output.tokens.len());
    }
    assert_eq!(tokens, BTreeMap::from([("a".into(), 3), ("late".into(), 0), ("waits".into(), 0)]));
}

#[test]
fn vectors_are_scheduled_as_texts_are() {
    let model = Expected::new("bert");
    let pipeline = EmbeddingsPipeline::new(&model.config()).unwrap();
    let ((ask, asked), (give, given), (cancel, cancelled)) = (channel(), channel(), channel());
    for (id, tokens) in [("a", model.ids()), ("b", vec![99_999]), ("c", vec![5])] {
        ask.send(EmbeddingsGenerationRequest { request_id: RequestId::from(id), tokens }).unwrap();
    }
    drop((ask, cancel));
    PipelineScheduler::new(&pipeline, asked, give, cancelled).run().unwrap();
    let mut results: BTreeMap<String, _> = given.iter().map(|(id, result)| (id.to_string(), result)).collect();
    assert!(results.len() == 3 && results.values().all(|result| result.is_done));
    let error = results.remove("b").unwrap().error.unwrap().to_string();
    assert!(error.contains("99999"), "{error}");
    for (id, tokens) in [("a", model.ids()), ("c", vec![5])] {
        let vector = results.remove(id).unwrap().result.unwrap().embeddings;
        assert_eq!(vector, pipeline.embed_tokens(&tokens).unwrap());
    }
    let request = EmbeddingsGenerationRequest { request_id: "a".into(), tokens: vec![5] };
    let mut two = [pipeline.new_context(&request).unwrap(), pipeline.new_context(&request).unwrap()];
    let error = pipeline.execute(&mut two.iter_mut().collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(error.contains("one text at a time"), "{error}");
    let error = pipeline.new_context(&EmbeddingsGenerationRequest::default()).unwrap_err().to_string();
    assert!(error.contains("give at least one token"), "{error}");
    let request = EmbeddingsGenerationRequest { tokens: vec![5], ..Default::default() };
    let mut context = pipeline.new_context(&request).unwrap();
    pipeline.release(&mut context);
    assert_eq!(context.status(), GenerationStatus::Cancelled);
    assert!(pipeline.execute(&mut [&mut context]).unwrap().is_empty());
}

#[test]
fn the_pipeline_of_a_task_is_loaded() {
    let (text, encoder) = (Expected::new("llama"), Expected::new("mpnet"));
    let draft = PipelineConfig { draft_model_path: Some(text.path().into()), ..text.config() };
    let registry = PipelineRegistry::new();
    for (config, task) in [
        (text.config(), PipelineTask::TextGeneration),
        (draft.clone(), PipelineTask::TextGeneration),
        (encoder.config(), PipelineTask::EmbeddingsGeneration),
    ] {
        assert_eq!(task.name().parse::<PipelineTask>().unwrap(), task);
        assert_eq!(get_pipeline_for_task(task, &config).unwrap().task(), task);
        assert_eq!(registry.retrieve(&config).unwrap().task(), task);
    }
    let drafts = get_pipeline_for_task(PipelineTask::TextGeneration, &draft).unwrap();
    assert!(matches!(drafts, TaskPipeline::SpeculativeDecoding(_)));
    let error = get_pipeline_for_task(PipelineTask::TextGeneration, &encoder.config()).err().unwrap();
    assert!(matches!(error, PipelineError::Task { .. }), "{error}");
    assert!("audio_generation".parse::<PipelineTask>().unwrap_err().to_string().contains("text_generation or"));
}

#[test]
fn processors_of_batches_see_all_sequences_of_a_step() {
    let model = Expected::new("llama");
    let config = PipelineConfig { max_batch_size: 3, prefill_chunk_size: 8, ..model.config() };
    let mut pipeline = TextGenerationPipeline::new(&config).unwrap();
    let prompts = [vec![5, 6, 7], vec![8, 9], (4..24).collect()];
    let (before, _) = pipeline.generate(&prompts, &greedy(4), |_, _| {}).unwrap();
    // The first token that each would have is ruled out for all of them.
    let ruled: Vec<u32> = before.iter().map(|output| output.tokens[0]).collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (ruled_out, vocabulary, sees) = (ruled.clone(), pipeline.vocab_size(), seen.clone());
    pipeline.set_batch_processors(vec![BatchLogitsProcessor::new(move |inputs: BatchProcessorInputs<'_>| {
        let rows = inputs.logits.len() / vocabulary;
        sees.lock().unwrap().push((inputs.context_batch.len(), inputs.logit_offsets.map(<[usize]>::to_vec), rows));
        for row in inputs.logits.chunks_mut(vocabulary) {
            ruled_out.iter().for_each(|token| row[*token as usize] = f32::NEG_INFINITY);
        }
    })]);
    let requests: Vec<TextGenerationRequest> = prompts
        .iter()
        .map(|prompt| TextGenerationRequest { logprobs: 1, ..TextGenerationRequest::new(prompt.as_slice(), greedy(4)) })
        .collect();
    let (outputs, _) = pipeline.generate_requests(&requests, |_, _| {}).unwrap();
    for (output, before) in outputs.iter().zip(&before) {
        assert!(output.tokens.iter().all(|token| !ruled.contains(token)));
        // What the model itself thinks is the likeliest is still said.
        let first = &output.log_probabilities.as_ref().unwrap()[0];
        assert!(first.top_log_probabilities[0].iter().any(|(token, _)| *token == before.tokens[0]), "{first:?}");
    }
    let seen = seen.lock().unwrap();
    // Two prompts, and a part of the third; then three texts with a row each.
    assert_eq!(seen[0], (3, Some(vec![0, 1, 2, 2]), 2));
    assert!(seen.contains(&(3, None, 3)), "{seen:?}");
    // Ruling out everything leaves no token, of numbers.
    pipeline.set_batch_processors(vec![BatchLogitsProcessor::new(|inputs: BatchProcessorInputs<'_>| {
        inputs.logits.fill(f32::NEG_INFINITY);
    })]);
    let (outputs, _) = pipeline.generate(&prompts[..1], &greedy(4), |_, _| {}).unwrap();
    assert!(matches!(outputs[0].error.as_deref(), Some(PipelineError::NoToken { .. })));
}

#[test]
fn outputs_and_steps_say_what_they_are_of() {
    let model = Expected::new("qwen2");
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { max_batch_size: 2, ..model.config() }).unwrap();
    let (a, b) = (model.ids(), vec![5, 6, 7]);
    let outputs = pipeline.outputs(&[&a, &b]).unwrap();
    let rows = |tokens: &[u32]| pipeline.logits(tokens).unwrap().to_vec::<f32>().unwrap();
    let expected = [rows(&a), rows(&b)].concat();
    assert!(difference(&outputs.logits.to_vec::<f32>().unwrap(), &expected) < 1e-6);
    let last = outputs.next_token_logits.unwrap();
    assert_eq!(last.shape(), [2, pipeline.vocab_size()]);
    let ends = [a.len() - 1, a.len() + 2].map(|row| &expected[row * 64..(row + 1) * 64]).concat();
    assert!(difference(&last.to_vec::<f32>().unwrap(), &ends) < 1e-6);
    let offsets = outputs.logit_offsets.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(offsets, [0, a.len() as i64, a.len() as i64 + 3]);
    let none = pipeline.outputs(&[]).unwrap();
    assert_eq!((none.logits.shape(), none.logit_offsets.unwrap().shape()), (&[0, 64][..], &[1][..]));

    let mut text = pipeline.context(&b, &greedy(3)).unwrap();
    let (chosen, info) = pipeline.step_batch(&mut [&mut text]).unwrap();
    assert_eq!((chosen, info), (1, BatchInfo { past_seq_lens: vec![0], seq_lens: vec![3], num_steps: 1 }));
    let mut prompt = pipeline.context(&[9, 9], &greedy(3)).unwrap();
    let (chosen, info) = pipeline.step_batch(&mut [&mut prompt, &mut text]).unwrap();
    assert_eq!((chosen, info), (2, BatchInfo { past_seq_lens: vec![0, 3], seq_lens: vec![2, 1], num_steps: 1 }));
    // Each token is given out once.
    let given = text.to_generation_output().unwrap();
    assert_eq!((given.tokens.as_slice(), given.final_status), (text.generated(), GenerationStatus::Active));
    assert!(text.to_generation_output().is_none());
    text.cancel();
    let given = text.to_generation_output().unwrap();
    assert!(given.tokens.is_empty() && given.final_status == GenerationStatus::Cancelled);
}

#[test]
fn tokenizers_are_used_by_their_trait() {
    let model = Expected::new("llama");
    model.write_config(|config| {
        config["vocab_size"] = serde_json::json!(300);
        config["eos_token_id"] = serde_json::json!([3, 2]);
    });
    model.write_weights(|tensors| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let rows = vec![0.25f32; 300 * 32];
            tensors.insert(name.into(), max_core::driver::Tensor::from_vec(rows, [300, 32]).unwrap());
        }
    });
    model.write_tokenizer(4);
    let pipeline = model.pipeline();
    let tokenizer: &dyn PipelineTokenizer<Encoded = Vec<u32>> = pipeline.tokenizer().unwrap();
    let tokens = tokenizer.encode("ab", false).unwrap();
    assert_eq!(tokens, [4 + u32::from(b'a'), 4 + u32::from(b'b')]);
    assert_eq!((tokenizer.decode(&tokens).unwrap(), tokenizer.eos()), ("ab".into(), Some(2)));
    assert!(!tokenizer.expects_content_wrapping());
}
