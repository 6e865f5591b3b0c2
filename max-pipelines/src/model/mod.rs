//! A model's files: what `config.json` says, where the weights are, and how they get into an architecture's modules.

#[cfg(feature = "hf_hub")]
mod download;
mod files;
mod gguf;
mod group_quantized;
mod hub;
mod huggingface_config;
mod huggingface_repo;
mod info;
mod lora;
mod quantization_config;
mod quantize;
mod weights;

pub use files::ModelFiles;
pub(crate) use files::PACKED_LIMIT;
pub(crate) use gguf::hub_names as gguf_names;
pub use huggingface_config::HuggingFaceConfig;
pub use huggingface_repo::{HuggingFaceRepo, generate_local_model_path, try_to_load_from_cache};
#[cfg(feature = "hf_hub")]
pub use huggingface_repo::{download_weight_files, validate_hf_repo_access};
pub use info::{ModelInfo, info};
pub(crate) use lora::Lora;
pub use quantize::{GgufType, quantize};
pub use weights::WeightPart;
pub(crate) use weights::{dtype, load};
