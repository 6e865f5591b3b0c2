//! Each architecture computes what transformers does.

use max_core::dtype::DType;
use max_pipelines::{
    EmbeddingsPipeline, PipelineConfig, PipelineRegistry, PipelineTask, SamplingParams, TextGenerationPipeline, info,
};

use crate::folders::{Expected, difference};

/// Greedy generation, of as many tokens as were made.
pub fn greedy(tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens: Some(tokens), min_new_tokens: tokens, ..SamplingParams::greedy() }
}

fn continues(name: &str) {
    let model = Expected::new(name);
    continues_as_expected(name, &model, &model.pipeline());
}

/// Of a pipeline with the model, from its folder or from another file.
pub fn continues_as_expected(name: &str, model: &Expected, pipeline: &TextGenerationPipeline) {
    let logits = pipeline.logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
    let difference = difference(&logits, &model.rows("logits"));
    assert!(difference < 1e-5, "{name}: {difference}");
    let expected = model.tokens();
    let (outputs, _) = pipeline.generate(&[model.ids()], &greedy(expected.len()), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, expected, "{name}");
}

macro_rules! continue_as_transformers {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            continues(stringify!($name));
        }
    )*};
}
continue_as_transformers!(
    llama llama_biases llama3 llama_linear llama_dynamic llama_yarn mistral qwen2 qwen3 qwen3_moe phi3 phi3_longrope granite olmo2
    gemma3 mixtral deepseek_v2 deepseek_v2_groups deepseek_v3 deepseek_v3_halves
);

#[test]
fn encoders_make_the_same_vectors() {
    for name in ["bert", "mpnet"] {
        let model = Expected::new(name);
        let pipeline = EmbeddingsPipeline::new(&model.config()).unwrap();
        let hidden = pipeline.hidden(&model.ids()).unwrap().to_vec::<f32>().unwrap();
        let difference = difference(&hidden, &model.rows("hidden"));
        assert!(difference < 1e-5, "{name}: {difference}");
        let vector = pipeline.embed_tokens(&model.ids()).unwrap();
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{name}: {length}");
    }
}

#[test]
fn half_precision_is_near() {
    for (name, dtype, bound) in [
        ("llama", DType::F16, 5e-3),
        ("llama", DType::BF16, 5e-2),
        ("deepseek_v2", DType::F16, 5e-3),
        // Rounding may choose another expert.
        ("deepseek_v2", DType::BF16, 2e-1),
    ] {
        let model = Expected::new(name);
        let config = PipelineConfig { dtype: Some(dtype), ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let logits = pipeline.logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
        let difference = difference(&logits, &model.rows("logits"));
        assert!(difference > 0.0 && difference < bound, "{name}, {dtype}: {difference}");
    }
}

#[test]
fn caches_of_another_dtype_are_near() {
    for (name, activations, cache, bound) in [
        ("llama", None, DType::F16, 2e-3),
        ("llama", None, DType::BF16, 2e-2),
        ("gemma3", None, DType::F16, 2e-3),
        ("deepseek_v2", None, DType::F16, 2e-3),
        ("llama", Some(DType::BF16), DType::F32, 5e-2),
    ] {
        let model = Expected::new(name);
        let same = PipelineConfig { dtype: activations, ..model.config() };
        let same = TextGenerationPipeline::new(&same).unwrap();
        let config = PipelineConfig { dtype: activations, cache_dtype: Some(cache), ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let bytes =
            if cache == DType::F32 { same.cache_bytes_per_token() * 2 } else { same.cache_bytes_per_token() / 2 };
        assert_eq!(pipeline.cache_bytes_per_token(), bytes, "{name}, {cache}");
        let logits = pipeline.logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
        let difference = difference(&logits, &model.rows("logits"));
        assert!(difference > 0.0 && difference < bound, "{name}, {cache}: {difference}");
    }
}

#[test]
fn a_latent_and_a_rotated_key_are_all_that_a_token_keeps() {
    let model = Expected::new("deepseek_v3");
    let info = info(model.path(), &PipelineRegistry::new()).unwrap();
    assert_eq!((info.architecture.as_str(), info.task), ("DeepseekV3ForCausalLM", Some(PipelineTask::TextGeneration)));
    assert_eq!((info.max_length, info.cache_bytes_per_token), (Some(128), Some(2 * (10 + 6) * 4)));
    assert_eq!(model.pipeline().cache_bytes_per_token(), 2 * (10 + 6) * 4);
}

#[test]
fn layers_that_draft_tokens_are_left_out() {
    let model = Expected::new("deepseek_v3");
    model.write_weights(|tensors| {
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("model.layers.2.embed_tokens.weight".into(), embedding);
    });
    let (outputs, _) = model.pipeline().generate(&[model.ids()], &greedy(4), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, model.tokens()[..4]);
}
