//! [`PipelineRegistry`]: architectures by name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use max::nn::Module;
use max::nn::kv_cache::KvCacheParams;
use max::nn::rope::RotaryFrequencies;
use max::nn::transformer::{AttentionImpl, Step, Transformer};
use max::tensor::{Tensor, default_dtype};
use max_core::dtype::DType;
use max_core::graph::GraphError;
use max_core::graph::weights::WeightsFormat;

use crate::architectures;
use crate::error::{PipelineError, Result};
use crate::model::{self, HuggingFaceConfig, ModelFiles, WeightPart};

/// What a model is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PipelineTask {
    /// Text that continues a prompt.
    TextGeneration,
    /// A vector for each text.
    EmbeddingsGeneration,
}

impl PipelineTask {
    /// `text_generation`
    pub fn name(self) -> &'static str {
        match self {
            PipelineTask::TextGeneration => "text_generation",
            PipelineTask::EmbeddingsGeneration => "embeddings_generation",
        }
    }
}

impl FromStr for PipelineTask {
    type Err = PipelineError;

    fn from_str(name: &str) -> Result<PipelineTask> {
        let all = [PipelineTask::TextGeneration, PipelineTask::EmbeddingsGeneration];
        all.into_iter().find(|task| task.name() == name).ok_or_else(|| PipelineError::Argument {
            argument: "task",
            value: format!("`{name}`"),
            expected: "text_generation or embeddings_generation",
        })
    }
}

impl fmt::Display for PipelineTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PipelineTask::TextGeneration => "text generation",
            PipelineTask::EmbeddingsGeneration => "embeddings",
        })
    }
}

/// A model that continues texts, as a pipeline uses it.
pub trait TextModel: Module {
    /// What each layer keeps of a token.
    fn kv_params(&self) -> Vec<KvCacheParams>;

    /// The tokens of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// A length beyond which keys and values of all tokens are others: the cache of a sequence that grows longer is computed
    /// again.
    fn recompute_beyond(&self) -> Option<usize> {
        None
    }

    /// Whether keys and values of a token depend on those before it alone, so that sequences with the same beginning share them.
    fn prefix_caching_supported(&self) -> bool {
        true
    }

    /// Puts parameters in the form in which they are computed with: called once, when they are read.
    ///
    /// # Errors
    /// When there is no memory for it.
    fn prepare(&mut self) -> Result<(), GraphError> {
        Ok(())
    }

    /// The logits of the tokens that follow, `[rows, vocabulary]`, in `float32`.
    ///
    /// # Errors
    /// When the types of the inputs do not fit.
    fn logits(&self, step: &Step) -> Result<Tensor, GraphError>;
}

impl<A: AttentionImpl> TextModel for Transformer<A> {
    fn kv_params(&self) -> Vec<KvCacheParams> {
        Transformer::kv_params(self)
    }

    fn vocab_size(&self) -> usize {
        let rows = self.embed_tokens.weight.shape().first().and_then(max_core::graph::Dim::as_static);
        rows.and_then(|rows| usize::try_from(rows).ok()).unwrap_or_default()
    }

    fn recompute_beyond(&self) -> Option<usize> {
        self.rope.iter().find_map(RotaryFrequencies::switches_beyond)
    }

    fn prefix_caching_supported(&self) -> bool {
        !self.rope.iter().any(RotaryFrequencies::depends_on_length)
    }

    fn prepare(&mut self) -> Result<(), GraphError> {
        Transformer::prepare(self)
    }

    fn logits(&self, step: &Step) -> Result<Tensor, GraphError> {
        Transformer::logits(self, step)
    }
}

/// A model that makes vectors of texts.
pub trait EmbeddingModel: Module {
    /// The tokens of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// The most tokens of a text.
    fn max_length(&self) -> usize;

    /// The vectors of `tokens`, integers `[n]`: `[n, hidden]`.
    ///
    /// # Errors
    /// When the types of the inputs do not fit.
    fn hidden(&self, tokens: &Tensor) -> Result<Tensor, GraphError>;
}

/// A model of one of the tasks.
pub enum PipelineModel {
    /// For [`PipelineTask::TextGeneration`].
    Text(Box<dyn TextModel>),
    /// For [`PipelineTask::EmbeddingsGeneration`].
    Embedding(Box<dyn EmbeddingModel>),
}

/// Makes the module of an architecture, whose weights are set afterwards.
pub(crate) type ModelBuilder = dyn Fn(&HuggingFaceConfig) -> Result<PipelineModel> + Send + Sync;

/// The tensors of the module that a file's tensor becomes; none, if it is left out.
pub(crate) type WeightAdapter = dyn Fn(&HuggingFaceConfig, &str) -> Result<Vec<(String, WeightPart)>> + Send + Sync;

/// A model architecture: how its module is made of `config.json`, and how weights are called.
///
/// ```
/// use max_pipelines::{PipelineRegistry, SupportedArchitecture, architectures::DecoderConfig};
///
/// // A Llama under another name.
/// let architecture = SupportedArchitecture::text_generation("MyForCausalLM", |config| {
///     Ok(Box::new(DecoderConfig::new(config)?.llama()?))
/// });
/// let mut registry = PipelineRegistry::new();
/// registry.register(architecture)?;
/// assert!(registry.names().any(|name| name == "MyForCausalLM"));
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
#[derive(Clone)]
pub struct SupportedArchitecture {
    /// The name in `architectures` of `config.json`.
    pub name: String,
    /// What it is for.
    pub task: PipelineTask,
    /// Models on a hub that have it.
    pub example_repo_ids: Vec<String>,
    pipeline_model: Arc<ModelBuilder>,
    weight_adapter: Arc<WeightAdapter>,
}

impl SupportedArchitecture {
    /// An architecture for text, of the function that makes its module. Parameters have the default dtype, and are set to the
    /// weights of the same names, without `model.` before them.
    pub fn text_generation(
        name: &str,
        model: impl Fn(&HuggingFaceConfig) -> Result<Box<dyn TextModel>> + Send + Sync + 'static,
    ) -> SupportedArchitecture {
        SupportedArchitecture {
            name: name.into(),
            task: PipelineTask::TextGeneration,
            example_repo_ids: Vec::new(),
            pipeline_model: Arc::new(move |config| Ok(PipelineModel::Text(model(config)?))),
            weight_adapter: Arc::new(|config, name| {
                Ok(architectures::llama_name(config, name)?
                    .into_iter()
                    .map(|name| (name, WeightPart::whole()))
                    .collect())
            }),
        }
    }

    /// As [`text_generation`](Self::text_generation), for vectors.
    pub fn embeddings(
        name: &str,
        model: impl Fn(&HuggingFaceConfig) -> Result<Box<dyn EmbeddingModel>> + Send + Sync + 'static,
    ) -> SupportedArchitecture {
        SupportedArchitecture {
            task: PipelineTask::EmbeddingsGeneration,
            pipeline_model: Arc::new(move |config| Ok(PipelineModel::Embedding(model(config)?))),
            ..SupportedArchitecture::text_generation(name, |config| Err(config.error("architectures", "has no text")))
        }
    }

    /// With another function from the name of a file's tensor to those of the module that it becomes, which may be parts of it:
    /// none, if it is left out.
    #[must_use]
    pub fn weight_adapter(
        self,
        adapter: impl Fn(&HuggingFaceConfig, &str) -> Result<Vec<(String, WeightPart)>> + Send + Sync + 'static,
    ) -> SupportedArchitecture {
        SupportedArchitecture { weight_adapter: Arc::new(adapter), ..self }
    }

    /// With models on a hub that have it.
    #[must_use]
    pub fn example_repo_ids(self, ids: &[&str]) -> SupportedArchitecture {
        SupportedArchitecture { example_repo_ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..self }
    }

    /// The adapter of a format.
    pub(crate) fn adapter(&self, format: WeightsFormat) -> Arc<WeightAdapter> {
        let adapter = self.weight_adapter.clone();
        match format {
            WeightsFormat::Gguf => Arc::new(move |config, name| {
                let mut all = Vec::new();
                for (name, outer) in model::gguf_names(config, name)? {
                    let parts = adapter(config, &name)?.into_iter();
                    all.extend(parts.map(|(name, part)| (name, part.of_part(&outer))));
                }
                Ok(all)
            }),
            _ => adapter,
        }
    }

    /// The module, whose weights are not set.
    pub(crate) fn module(&self, config: &HuggingFaceConfig, dtype: DType) -> Result<PipelineModel> {
        default_dtype(dtype, || (self.pipeline_model)(config))
    }

    /// The module with a model's weights, in a dtype.
    pub(crate) fn load(&self, files: &ModelFiles, dtype: Option<DType>) -> Result<(PipelineModel, DType)> {
        let before = files.versions()?;
        let weights = files.open()?;
        let dtype = model::dtype(&weights, dtype)?;
        let mut model = self.module(&files.config, dtype)?;
        match &mut model {
            PipelineModel::Text(model) => {
                model::load(model, files, weights, dtype, self)?;
                model.prepare()?;
            }
            PipelineModel::Embedding(model) => model::load(model, files, weights, dtype, self)?,
        }
        files.unchanged_since(&before)?;
        Ok((model, dtype))
    }
}

/// The architectures that models are looked up in.
#[derive(Clone)]
pub struct PipelineRegistry {
    architectures: BTreeMap<String, SupportedArchitecture>,
}

impl PipelineRegistry {
    /// With all architectures of this crate.
    pub fn new() -> PipelineRegistry {
        let all = architectures::all().into_iter().map(|architecture| (architecture.name.clone(), architecture));
        PipelineRegistry { architectures: all.collect() }
    }

    /// Adds an architecture.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn register(&mut self, architecture: SupportedArchitecture) -> Result<()> {
        if self.architectures.contains_key(&architecture.name) {
            return Err(PipelineError::Registered(architecture.name));
        }
        self.register_override(architecture);
        Ok(())
    }

    /// Adds an architecture, in place of one of that name.
    pub fn register_override(&mut self, architecture: SupportedArchitecture) {
        self.architectures.insert(architecture.name.clone(), architecture);
    }

    /// Removes all architectures.
    pub fn reset(&mut self) {
        self.architectures.clear();
    }

    /// The names of all architectures.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.architectures.keys().map(String::as_str)
    }

    /// The architecture that a configuration names.
    ///
    /// # Errors
    /// When it names none, or one that is not registered.
    pub fn retrieve_architecture(&self, config: &HuggingFaceConfig) -> Result<&SupportedArchitecture> {
        let name = config.architecture()?;
        self.architectures.get(name).ok_or_else(|| PipelineError::UnknownArchitecture {
            path: config.path().into(),
            name: name.into(),
            known: self.names().map(str::to_owned).collect(),
        })
    }

    /// What a model is for.
    ///
    /// # Errors
    /// As [`retrieve_architecture`](Self::retrieve_architecture).
    pub fn retrieve_pipeline_task(&self, config: &HuggingFaceConfig) -> Result<PipelineTask> {
        Ok(self.retrieve_architecture(config)?.task)
    }
}

impl Default for PipelineRegistry {
    fn default() -> Self {
        PipelineRegistry::new()
    }
}

#[cfg(test)]
mod tests {
    use max::nn::ModuleExt;

    use super::*;

    #[test]
    fn rounding_does_not_choose_experts() {
        max_kernels::link();
        for name in ["mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"] {
            let file = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let golden: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            let config = HuggingFaceConfig::parse(&file, &golden["config"].to_string()).unwrap();
            let registry = PipelineRegistry::new();
            let architecture = registry.retrieve_architecture(&config).unwrap();
            let PipelineModel::Text(model) = architecture.module(&config, DType::BF16).unwrap() else {
                panic!("{name} is for text");
            };
            let mut gates = 0;
            for (parameter, tensor) in model.state_dict() {
                let chooses = parameter.ends_with(".gate.weight") || parameter.ends_with(".e_score_correction_bias");
                assert_eq!(tensor.dtype(), if chooses { DType::F32 } else { DType::BF16 }, "{name}: {parameter}");
                gates += usize::from(chooses);
            }
            assert!(gates > 0, "{name}");
        }
    }
}
