//! [`info`]: what a model is, from its files' headers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ModelFiles, dtype};
use crate::architectures::longest_sequence;
use crate::error::Result;
use crate::registry::{PipelineModel, PipelineRegistry, PipelineTask};

/// What a model is.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInfo {
    /// Where it is.
    pub path: PathBuf,
    /// Its architecture.
    pub architecture: String,
    /// What it is for; `None` if the architecture is not known.
    pub task: Option<PipelineTask>,
    /// The numbers that its weights are.
    pub parameters: usize,
    /// Their bytes by dtype, or by how they are quantized.
    pub bytes_by_dtype: BTreeMap<String, usize>,
    /// The longest sequence.
    pub max_length: Option<usize>,
    /// The bytes that the cache takes for each token.
    pub cache_bytes_per_token: Option<usize>,
}

/// Reads the headers of a model's files.
///
/// # Errors
/// When there is no model, or a file is damaged.
pub fn info(path: impl AsRef<Path>, registry: &PipelineRegistry) -> Result<ModelInfo> {
    let files = ModelFiles::find(path)?;
    let weights = files.open()?;
    let (mut parameters, mut bytes_by_dtype) = (0, BTreeMap::new());
    for name in weights.names() {
        let (ty, encoding) = (weights.ty(name)?, weights.quantization_encoding(name)?);
        let stored: usize = ty.shape.iter().product();
        let (kind, elements) = match encoding {
            Some(encoding) => (encoding.to_string(), stored / encoding.block_size() * encoding.elements_per_block()),
            None => (ty.dtype.to_string(), stored),
        };
        parameters += elements;
        *bytes_by_dtype.entry(kind).or_insert(0) += stored * ty.dtype.size_in_bytes();
    }
    let architecture = registry.retrieve_architecture(&files.config).ok();
    let cache_bytes_per_token = match architecture {
        Some(known) => match known.module(&files.config, dtype(&weights, None)?)? {
            PipelineModel::Text(model) => Some(model.kv_params().iter().map(|layer| layer.bytes_per_token()).sum()),
            PipelineModel::Embedding(_) => None,
        },
        None => None,
    };
    Ok(ModelInfo {
        architecture: files.config.architecture()?.to_owned(),
        task: architecture.map(|architecture| architecture.task),
        parameters,
        bytes_by_dtype,
        max_length: longest_sequence(&files.config)?,
        cache_bytes_per_token,
        path: files.path,
    })
}
