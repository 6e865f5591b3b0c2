//! [`PipelineConfig`]: which model is run, and how.

mod setting;
mod sources;

use std::path::PathBuf;

use max_core::dtype::DType;
use serde_json::Value;

use crate::kv_cache_config::KvCacheConfig;
use crate::progress::{DownloadProgress, LoadProgress};
use setting::Setting;
pub use sources::PipelineConfigBuilder;

/// The settings, once: fields with their documentation, types and defaults, and the same by name.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $default:expr,)*) => {
        /// Which model is run, and how. What is `None` is decided by the model.
        ///
        /// ```
        /// use max_pipelines::PipelineConfig;
        ///
        /// let config = PipelineConfig { max_length: Some(2048), ..PipelineConfig::new("models/llama") };
        /// assert_eq!(config.max_batch_size, 1);
        /// ```
        ///
        /// [`builder`](Self::builder) takes settings from a file, the environment and flags.
        #[derive(Clone, PartialEq, Debug)]
        pub struct PipelineConfig {
            $($(#[$doc])* pub $name: $ty,)*
            /// The cache of keys and values.
            pub kv_cache: KvCacheConfig,
            /// Who hears how far the weights are read.
            pub load_progress: Option<LoadProgress>,
            /// Who hears how far files have been downloaded.
            pub download_progress: Option<DownloadProgress>,
        }

        impl PipelineConfig {
            /// The names of all settings, as files have them.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn defaults() -> PipelineConfig {
                PipelineConfig {
                    $($name: $default,)*
                    kv_cache: KvCacheConfig::default(),
                    load_progress: None,
                    download_progress: None,
                }
            }

            /// Sets the setting of a name; what is expected, where the value is something else.
            fn set(&mut self, name: &str, value: &Value) -> Result<(), &'static str> {
                match name {
                    $(stringify!($name) => {
                        self.$name = <$ty as Setting>::read(value).ok_or(<$ty as Setting>::EXPECTED)?;
                        Ok(())
                    })*
                    _ => Err("a setting"),
                }
            }
        }
    };
}

settings! {
    /// A folder with `config.json` and safetensors, a GGUF file, or the name of a model (`org/name`) in the cache of
    /// Hugging Face's tools.
    model_path: PathBuf = PathBuf::new(),
    /// Of a model in that cache: the branch, tag or commit; `None` for `main`.
    revision: Option<String> = None,
    /// Whether a model that is not in that cache is downloaded to it, which takes the feature `hf_hub`.
    download: bool = false,
    /// What weights are converted to and computed in: `float32`, `float16` or `bfloat16`. `None`: as the file has them, with
    /// quantized weights as `float32`.
    dtype: Option<DType> = None,
    /// What the cache holds keys and values as: `float32`, `float16` or `bfloat16`. `None`: as they are computed. Halves take half of the
    /// memory, and of the time to read it; queries and weights of keys are then halves, too.
    cache_dtype: Option<DType> = None,
    /// The longest sequence, prompt included; `None` for what the model was made for.
    max_length: Option<usize> = None,
    /// How many sequences are computed together.
    max_batch_size: usize = 1,
    /// How many tokens are computed at once: the next one of each text, and parts of prompts.
    prefill_chunk_size: usize = 8192,
    /// A chat template that takes the place of the model's own.
    chat_template: Option<PathBuf> = None,
    /// A smaller model of the same vocabulary, which drafts for
    /// [`SpeculativeDecodingTextGenerationPipeline`](crate::SpeculativeDecodingTextGenerationPipeline).
    draft_model_path: Option<PathBuf> = None,
    /// How many tokens it drafts for each step of the model.
    num_speculative_tokens: usize = 4,
    /// An adapter of low rank (LoRA) in a folder as PEFT writes it, which is merged into the weights.
    lora_path: Option<PathBuf> = None,
    /// Adapters of low rank in folders as PEFT writes them, which requests choose from by the names of the folders.
    lora_paths: Vec<PathBuf> = Vec::new(),
    /// How many adapters there may be at once; at least those of `lora_paths`.
    max_num_loras: usize = 0,
    /// The highest rank of these; `None` for that of `lora_paths`.
    max_lora_rank: Option<usize> = None,
    /// Whether every layer's output is checked for infinities and NaN: a sequence with some fails with the name of the first such layer.
    /// A debug mode, which computes more.
    check_numerics: bool = false,
    /// How many threads compute; `None` for one each core.
    num_threads: Option<usize> = None,
}

impl PipelineConfig {
    /// The defaults, for a model.
    pub fn new(model_path: impl Into<PathBuf>) -> PipelineConfig {
        PipelineConfig { model_path: model_path.into(), ..PipelineConfig::defaults() }
    }

    /// A configuration from a file, the environment and flags.
    pub fn builder() -> PipelineConfigBuilder {
        PipelineConfigBuilder::default()
    }
}
