//! [`PipelineConfig`]: which model is run, and how.

use std::path::PathBuf;

use max_core::dtype::DType;

use crate::kv_cache_config::KvCacheConfig;

/// Which model is run, and how. What is `None` is decided by the model.
///
/// ```
/// use max_pipelines::PipelineConfig;
///
/// let config = PipelineConfig { max_length: Some(2048), ..PipelineConfig::new("models/llama") };
/// assert_eq!(config.max_batch_size, 1);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct PipelineConfig {
    /// A folder with `config.json` and safetensors, or a GGUF file.
    pub model_path: PathBuf,
    /// What weights are converted to and computed in: `float32`, `float16` or `bfloat16`. `None`: as the file has them, with
    /// quantized weights as `float32`.
    pub dtype: Option<DType>,
    /// The longest sequence, prompt included; `None` for what the model was made for.
    pub max_length: Option<usize>,
    /// How many sequences are computed together.
    pub max_batch_size: usize,
    /// How many tokens are computed at once: the next one of each text, and parts of prompts.
    pub prefill_chunk_size: usize,
    /// A chat template that takes the place of the model's own.
    pub chat_template: Option<PathBuf>,
    /// How many threads compute; `None` for one each core.
    pub num_threads: Option<usize>,
    /// The cache of keys and values.
    pub kv_cache: KvCacheConfig,
}

impl PipelineConfig {
    /// The defaults, for a model.
    pub fn new(model_path: impl Into<PathBuf>) -> PipelineConfig {
        PipelineConfig {
            model_path: model_path.into(),
            dtype: None,
            max_length: None,
            max_batch_size: 1,
            prefill_chunk_size: 8192,
            chat_template: None,
            num_threads: None,
            kv_cache: KvCacheConfig::default(),
        }
    }
}
