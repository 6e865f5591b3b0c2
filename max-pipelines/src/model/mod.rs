//! A model's files: what `config.json` says, where the weights are, and how they get into an architecture's modules.

mod files;
mod gguf;
mod hub;
mod huggingface_config;
mod info;
mod lora;
mod quantization;
mod weights;

pub use files::ModelFiles;
pub(crate) use files::PACKED_LIMIT;
pub(crate) use gguf::hub_names as gguf_names;
pub use gguf::quantize::{GgufType, quantize};
pub use hub::huggingface_repo::{HuggingFaceRepo, generate_local_model_path, try_to_load_from_cache};
#[cfg(feature = "hf_hub")]
pub use hub::huggingface_repo::{download_weight_files, validate_hf_repo_access};
pub use huggingface_config::HuggingFaceConfig;
pub use info::{ModelInfo, info};
pub(crate) use lora::Lora;
pub use weights::WeightPart;
pub(crate) use weights::{compute_dtype, dtype, load};
