//! [`LoraRequest`]: adapters that are loaded, unloaded and listed while a pipeline runs.

use std::path::PathBuf;

use crate::error::PipelineError;
use crate::text_generation::TextGenerationPipeline;

/// What is asked of a pipeline's adapters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoraOperation {
    /// To load one.
    Load,
    /// To give one up.
    Unload,
    /// Their names.
    List,
}

/// The matrices of an adapter, by what their names end with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoraType {
    /// From an input to the low rank.
    A,
    /// From the low rank to an output.
    B,
    /// What is added; adapters with one are refused.
    Bias,
}

impl LoraType {
    /// `lora_A`
    pub fn name(self) -> &'static str {
        match self {
            LoraType::A => "lora_A",
            LoraType::B => "lora_B",
            LoraType::Bias => "lora.bias",
        }
    }
}

/// An [operation](LoraOperation) on a pipeline's adapters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoraRequest {
    /// What is to be done.
    pub operation: LoraOperation,
    /// The name of the adapter; to load one, `None` is for that of its folder.
    pub lora_name: Option<String>,
    /// The folder of the adapter, to load it.
    pub lora_path: Option<PathBuf>,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoraStatus {
    /// It is done.
    Success,
    /// There is no place for another adapter.
    LoadError,
    /// There is an adapter of that name.
    LoadNameExists,
    /// There are no files of an adapter there.
    LoadInvalidPath,
    /// It is an adapter of another model, or of a kind that is not known.
    LoadInvalidAdapter,
    /// There is no adapter of that name.
    UnloadNameNonexistent,
    /// It was not said which one.
    UnloadError,
}

/// What came of a [`LoraRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoraResponse {
    /// How it ended.
    pub status: LoraStatus,
    /// The reason, or the names of all adapters of a list.
    pub message: Vec<String>,
}

impl TextGenerationPipeline {
    /// Loads, unloads or lists adapters of low rank: see [`load_lora`](Self::load_lora).
    ///
    /// ```no_run
    /// use max_pipelines::{LoraOperation, LoraRequest, LoraStatus, PipelineConfig, TextGenerationPipeline};
    ///
    /// let config = PipelineConfig { lora_paths: vec!["adapters/pirate".into()], ..PipelineConfig::new("models/llama") };
    /// let mut pipeline = TextGenerationPipeline::new(&config)?;
    /// let list = LoraRequest { operation: LoraOperation::List, lora_name: None, lora_path: None };
    /// let response = pipeline.lora(&list);
    /// assert_eq!((response.status, response.message), (LoraStatus::Success, vec!["pirate".to_owned()]));
    /// # Ok::<(), max_pipelines::PipelineError>(())
    /// ```
    pub fn lora(&mut self, request: &LoraRequest) -> LoraResponse {
        let respond = |status, message: String| LoraResponse { status, message: vec![message] };
        let folder = request.lora_path.as_ref().and_then(|path| path.file_name());
        let name = request.lora_name.clone().or_else(|| Some(folder?.to_string_lossy().into_owned()));
        match (request.operation, name) {
            (LoraOperation::List, _) => {
                let message = self.lora_names().into_iter().map(str::to_owned).collect();
                LoraResponse { status: LoraStatus::Success, message }
            }
            (LoraOperation::Unload, None) => respond(LoraStatus::UnloadError, "name the adapter".into()),
            (LoraOperation::Unload, Some(name)) => match self.unload_lora(&name) {
                Ok(()) => respond(LoraStatus::Success, format!("{name} is unloaded")),
                Err(error) => respond(LoraStatus::UnloadNameNonexistent, error.to_string()),
            },
            (LoraOperation::Load, Some(name)) if self.lora_names().contains(&name.as_str()) => {
                respond(LoraStatus::LoadNameExists, format!("there is an adapter {name} already"))
            }
            (LoraOperation::Load, name) => match (name, &request.lora_path) {
                (Some(name), Some(path)) => match self.load_lora(&name, path) {
                    Ok(()) => respond(LoraStatus::Success, format!("{name} is loaded")),
                    Err(error @ PipelineError::Io { .. }) => respond(LoraStatus::LoadInvalidPath, error.to_string()),
                    Err(error) if !self.has_free_lora() => respond(LoraStatus::LoadError, error.to_string()),
                    Err(error) => respond(LoraStatus::LoadInvalidAdapter, error.to_string()),
                },
                _ => respond(LoraStatus::LoadInvalidPath, "name the folder of the adapter".into()),
            },
        }
    }
}
