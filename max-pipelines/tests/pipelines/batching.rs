//! Continuous batching over the paged cache: shared prefixes, chunked prompts, requests that wait, are cancelled or fail.

use max_pipelines::{
    GenerationStatus, KvCacheConfig, PipelineConfig, PipelineError, SamplingParams, TextContext, TextGenerationPipeline,
};

use crate::architectures::greedy;
use crate::folders::Expected;

/// So many prompts, of 1 to about 40 tokens; most of them begin as another one does.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let text = |seed: usize, length: usize| (0..length).map(move |i| (3 + (seed * 31 + i * i + i * seed) % 60) as u32);
    (0..count).map(|i| text(i % 3, 7 * (i % 5) + i % 2).chain(text(i, 1 + i % 9)).collect()).collect()
}

fn config(model: &Expected, page_size: usize, pages: Option<usize>) -> PipelineConfig {
    let bytes = TextGenerationPipeline::new(&model.config()).unwrap().cache_bytes_per_token() * page_size;
    let kv_cache = KvCacheConfig {
        kv_cache_page_size: page_size,
        cache_memory: pages.map(|pages| pages * bytes),
        ..KvCacheConfig::default()
    };
    PipelineConfig { kv_cache, ..model.config() }
}

/// The tokens of each prompt alone, in a cache of its own.
fn alone(model: &Expected, prompts: &[Vec<u32>], params: &SamplingParams) -> Vec<Vec<u32>> {
    let kv_cache = KvCacheConfig { enable_prefix_caching: false, ..KvCacheConfig::default() };
    let pipeline = TextGenerationPipeline::new(&PipelineConfig { kv_cache, ..model.config() }).unwrap();
    let one =
        |prompt: &Vec<u32>| pipeline.generate(std::slice::from_ref(prompt), params, |_, _| {}).unwrap().0.remove(0);
    prompts.iter().map(|prompt| one(prompt).tokens).collect()
}

fn all_pages_are_back(pipeline: &TextGenerationPipeline) {
    let (_, pages, free) = pipeline.cache_pages();
    assert_eq!(free, pages);
}

#[test]
fn up_to_32_requests_with_shared_prefixes_are_those_alone() {
    // Two that see everything, one of them by latents, and two with windows, which are shorter than the longest texts.
    for name in ["llama", "deepseek_v3", "mistral", "gemma3"] {
        let model = Expected::new(name);
        let (prompts, params) = (prompts(32), greedy(9));
        let expected = alone(&model, &prompts, &params);
        for (batch, chunk, pages) in [(1, 8192, None), (7, 16, None), (32, 64, None), (32, 24, Some(40))] {
            let config =
                PipelineConfig { max_batch_size: batch, prefill_chunk_size: chunk, ..config(&model, 4, pages) };
            let pipeline = TextGenerationPipeline::new(&config).unwrap();
            let (outputs, _) = pipeline.generate(&prompts, &params, |_, _| {}).unwrap();
            for (i, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
                assert_eq!(&output.tokens, expected, "{name}, batch {batch}, chunk {chunk}, request {i}");
            }
            let metrics = pipeline.cache_metrics();
            assert!(metrics.prefix_hit_tokens > 50 && metrics.prefix_hit_tokens < metrics.prefix_queried_tokens);
            assert!(metrics.evicted_blocks > 0 || pages.is_none(), "{metrics:?}");
            all_pages_are_back(&pipeline);
        }
    }
}

#[test]
fn requests_that_are_cancelled_or_dropped_give_their_pages_back() {
    let model = Expected::new("mistral");
    let (prompts, params) = (prompts(12), greedy(10));
    let expected = alone(&model, &prompts, &params);
    let config = PipelineConfig { max_batch_size: 6, prefill_chunk_size: 10, ..config(&model, 4, Some(60)) };
    let pipeline = TextGenerationPipeline::new(&config).unwrap();
    let cancel = |i: usize, context: &mut TextContext| {
        if i % 3 == 1 && context.generated().len() == 1 + i / 3 {
            context.cancel();
        }
    };
    let (outputs, _) = pipeline.generate(&prompts, &params, cancel).unwrap();
    for (i, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
        let length = if i % 3 == 1 { 1 + i / 3 } else { expected.len() };
        assert_eq!(output.tokens, expected[..length], "request {i}");
        assert_eq!(output.final_status == GenerationStatus::Cancelled, i % 3 == 1);
    }
    all_pages_are_back(&pipeline);
    // Requests that come and go between steps.
    let mut contexts: Vec<TextContext> =
        prompts[..4].iter().map(|prompt| pipeline.context(prompt, &params).unwrap()).collect();
    for step in 0.. {
        let mut batch: Vec<&mut TextContext> = contexts.iter_mut().collect();
        if pipeline.step(&mut batch).unwrap() == 0 && contexts.iter().all(|context| context.status().is_done()) {
            break;
        }
        if step == 3 {
            drop(contexts.remove(2));
            contexts.push(pipeline.context(&prompts[9], &params).unwrap());
        }
    }
    for (context, i) in contexts.iter().zip([0, 1, 3, 9]) {
        assert_eq!(context.generated(), expected[i], "request {i}");
    }
    all_pages_are_back(&pipeline);
}

#[test]
fn a_request_that_never_fits_is_refused_and_one_that_may_waits() {
    let model = Expected::new("llama");
    let config = PipelineConfig { max_batch_size: 3, ..config(&model, 4, Some(5)) };
    let pipeline = TextGenerationPipeline::new(&config).unwrap();
    let error = pipeline.context(&[5; 12], &greedy(9)).err().unwrap();
    assert!(matches!(error, PipelineError::CacheTooSmall { length: 21, capacity: 20 }), "{error}");
    assert!(error.to_string().contains("raise `cache_memory`"), "{error}");
    // Without a number of tokens, a text ends where the cache does.
    let ends = SamplingParams { max_new_tokens: None, ..greedy(1) };
    let (outputs, _) = pipeline.generate(&[vec![5; 12]], &ends, |_, _| {}).unwrap();
    assert_eq!((outputs[0].tokens.len(), outputs[0].final_status), (8, GenerationStatus::MaximumLength));
    // Two whose pages do not fit together: one has to wait, and both get what they would alone.
    let prompts = [vec![7; 9], vec![8; 9], vec![9; 3]];
    let expected = alone(&model, &prompts, &greedy(8));
    let (outputs, _) = pipeline.generate(&prompts, &greedy(8), |_, _| {}).unwrap();
    assert!(outputs.iter().zip(&expected).all(|(output, expected)| output.tokens == *expected));
    all_pages_are_back(&pipeline);
    // One outside of the batch has the pages.
    let mut holds = pipeline.context(&prompts[0], &ends).unwrap();
    while holds.generated().len() < 10 {
        pipeline.step(&mut [&mut holds]).unwrap();
    }
    let mut other = pipeline.context(&prompts[1], &greedy(8)).unwrap();
    let error = pipeline.step(&mut [&mut other]).unwrap_err();
    assert!(error.to_string().contains("of its 5 pages, sequences outside of this batch have all but 0"), "{error}");
    holds.cancel();
    while !other.status().is_done() {
        pipeline.step(&mut [&mut other]).unwrap();
    }
    assert_eq!(other.generated(), expected[1]);
    let tokens: Vec<u32> = vec![5; 25];
    assert!(matches!(pipeline.logits(&tokens), Err(PipelineError::CacheTooSmall { .. })));
    all_pages_are_back(&pipeline);
}

#[test]
fn a_request_without_numbers_leaves_others_and_the_cache_alone() {
    let model = Expected::new("llama");
    // The embedding of one token is no number.
    model.write_weights(|weights| {
        let mut table = weights["model.embed_tokens.weight"].to_vec::<f32>().unwrap();
        table[63 * 32..][..32].fill(f32::NAN);
        let table = max_core::driver::Tensor::from_vec(table, [64, 32]).unwrap();
        weights.insert("model.embed_tokens.weight".into(), table);
    });
    let config = PipelineConfig { max_batch_size: 2, ..config(&model, 4, Some(8)) };
    let pipeline = TextGenerationPipeline::new(&config).unwrap();
    let fine = vec![5, 6, 7, 8, 9];
    let expected = alone(&model, std::slice::from_ref(&fine), &greedy(6)).remove(0);
    let mut good = pipeline.context(&fine, &greedy(6)).unwrap();
    let mut bad = pipeline.context(&[5, 6, 7, 63, 9, 4, 4, 4, 4, 4], &greedy(6)).unwrap();
    pipeline.step(&mut [&mut bad, &mut good]).unwrap();
    assert_eq!((bad.status(), good.generated().len()), (GenerationStatus::Failed, 1));
    assert!(matches!(bad.error(), Some(PipelineError::NotNumbers { position: 9 })), "{:?}", bad.error());
    while !good.status().is_done() {
        pipeline.step(&mut [&mut good]).unwrap();
    }
    assert_eq!(good.generated(), expected);
    // What it left in its pages reaches nobody.
    let long = vec![6; 24];
    let (outputs, _) = pipeline.generate(std::slice::from_ref(&long), &greedy(6), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, alone(&model, &[long], &greedy(6))[0]);
    all_pages_are_back(&pipeline);
}

#[test]
fn a_check_of_numerics_names_the_layer() {
    let model = Expected::new("llama");
    let check = PipelineConfig { max_batch_size: 2, check_numerics: true, ..config(&model, 4, Some(8)) };
    let damage = |name: &str, rows: std::ops::Range<usize>| {
        model.write_weights(|weights| {
            let shape = weights[name].shape().to_vec();
            let mut table = weights[name].to_vec::<f32>().unwrap();
            table[rows.start * shape[1]..rows.end * shape[1]].fill(f32::INFINITY);
            weights.insert(name.into(), max_core::driver::Tensor::from_vec(table, &shape).unwrap());
        });
    };
    // Numbers are the same with the check.
    let fine = vec![5, 6, 7, 8, 9];
    let expected = alone(&model, std::slice::from_ref(&fine), &greedy(6)).remove(0);
    // A token whose embedding is infinite: the other sequence goes on.
    damage("model.embed_tokens.weight", 63..64);
    let pipeline = TextGenerationPipeline::new(&check).unwrap();
    let mut good = pipeline.context(&fine, &greedy(6)).unwrap();
    let mut bad = pipeline.context(&[5, 6, 7, 63, 9], &greedy(6)).unwrap();
    pipeline.step(&mut [&mut good, &mut bad]).unwrap();
    assert_eq!(bad.status(), GenerationStatus::Failed);
    let error = bad.error().unwrap().to_string();
    assert!(error.contains("layer `embed_tokens` has infinities or NaN for token 3"), "{error}");
    while !good.status().is_done() {
        pipeline.step(&mut [&mut good]).unwrap();
    }
    assert_eq!(good.generated(), expected);
    // Layers in the middle, and the last one.
    for (weight, layer) in
        [("model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj"), ("lm_head.weight", "lm_head")]
    {
        damage(weight, 2..3);
        let pipeline = TextGenerationPipeline::new(&check).unwrap();
        let error = pipeline.logits(&fine).unwrap_err().to_string();
        assert!(error.contains(&format!("layer `{layer}`")), "{error}");
        all_pages_are_back(&pipeline);
    }
}

#[test]
fn prefixes_whose_pages_are_wanted_come_back_from_the_host() {
    for name in ["llama", "deepseek_v3"] {
        let model = Expected::new(name);
        let prompt = |first: u32| (0..17).map(|i| (first + i * i) % 60 + 3).collect::<Vec<u32>>();
        // Each takes six of the seven pages.
        let prompts: Vec<Vec<u32>> = [1, 2, 1, 3, 2, 1].map(prompt).to_vec();
        let expected = alone(&model, &prompts, &greedy(5));
        let run = |swapping: bool, places: usize| {
            let mut config = config(&model, 4, Some(7));
            let page = config.kv_cache.cache_memory.unwrap() / 7;
            config.kv_cache.enable_kvcache_swapping_to_host = swapping;
            config.kv_cache.host_kvcache_swap_space_gb = Some((places * page) as f64 / f64::from(1 << 30));
            let pipeline = TextGenerationPipeline::new(&config).unwrap();
            let (outputs, _) = pipeline.generate(&prompts, &greedy(5), |_, _| {}).unwrap();
            let tokens: Vec<Vec<u32>> = outputs.into_iter().map(|output| output.tokens).collect();
            assert_eq!(tokens, expected, "{name}, {places} places, swapping {swapping}");
            all_pages_are_back(&pipeline);
            pipeline.cache_metrics()
        };
        let without = run(false, 20);
        assert!(without.swapped_out_blocks == 0 && without.prefix_hit_tokens < 16, "{without:?}");
        assert!(without.evicted_blocks > 10, "{without:?}");
        // The first prompt twice more and the second once more: four pages each, without the last token.
        let with = run(true, 20);
        assert_eq!((with.prefix_hit_tokens, with.host_evicted_blocks), (3 * 16, 0), "{with:?}");
        assert!(with.swapped_in_blocks > 6 && with.swapped_out_blocks >= with.swapped_in_blocks, "{with:?}");
        // Places for one prompt: what came first is lost.
        let few = run(true, 5);
        assert!(few.host_evicted_blocks > 0 && few.prefix_hit_tokens < with.prefix_hit_tokens, "{few:?}");
    }
}

#[test]
fn swapping_that_is_not_possible_is_an_error() {
    let model = Expected::new("llama");
    let base = KvCacheConfig { enable_kvcache_swapping_to_host: true, ..KvCacheConfig::default() };
    for (kv_cache, text) in [
        (base.clone(), "host_kvcache_swap_space_gb"),
        (KvCacheConfig { host_kvcache_swap_space_gb: Some(f64::NAN), ..base.clone() }, "a number above 0"),
        (KvCacheConfig { host_kvcache_swap_space_gb: Some(1e-9), ..base.clone() }, "enough for one page"),
        (KvCacheConfig { enable_prefix_caching: false, ..base }, "false without `enable_prefix_caching`"),
    ] {
        let error = TextGenerationPipeline::new(&PipelineConfig { kv_cache, ..model.config() }).err().unwrap();
        assert!(error.to_string().contains(text), "{error}");
    }
}
