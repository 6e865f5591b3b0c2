//! Each architecture computes what transformers does.

use max_core::dtype::DType;
use max_pipelines::{EmbeddingsPipeline, PipelineConfig, SamplingParams, TextGenerationPipeline};

use crate::folders::{Expected, difference};

/// Greedy generation, of as many tokens as were made.
pub fn greedy(tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens: Some(tokens), min_new_tokens: tokens, ..SamplingParams::greedy() }
}

fn continues(name: &str) {
    let model = Expected::new(name);
    let pipeline = model.pipeline();
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
    gemma3 mixtral
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
    let model = Expected::new("llama");
    for (dtype, bound) in [(DType::F16, 5e-3), (DType::BF16, 5e-2)] {
        let config = PipelineConfig { dtype: Some(dtype), ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let logits = pipeline.logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
        let difference = difference(&logits, &model.rows("logits"));
        assert!(difference > 0.0 && difference < bound, "{dtype}: {difference}");
    }
}
