//! The architectures, a file each: what `config.json` and the weights' names mean for layers that all of them share.

mod decoder;
mod deepseek;
pub mod encoders;
mod gemma3;
mod granite;
mod llama;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;

pub use decoder::DecoderConfig;
pub(crate) use decoder::llama_name;
pub(crate) use rope::longest_sequence;
pub use rope::rotary_frequencies;

use crate::registry::SupportedArchitecture;

/// All architectures of this crate.
pub fn all() -> Vec<SupportedArchitecture> {
    vec![
        llama::llama(),
        llama::mistral(),
        qwen2::architecture(),
        qwen3::dense(),
        qwen3::moe(),
        phi3::architecture(),
        granite::architecture(),
        olmo2::architecture(),
        gemma3::architecture(),
        mixtral::architecture(),
        deepseek::v2(),
        deepseek::v3(),
        encoders::bert("BertModel"),
        encoders::bert("BertForMaskedLM"),
        encoders::mpnet("MPNetModel"),
        encoders::mpnet("MPNetForMaskedLM"),
    ]
}
