//! [`EmbeddingsPipeline`]: a vector for each text.

use std::path::PathBuf;

use max_core::driver::{Device, DeviceRef, Tensor};
use max_core::dtype::DType;
use max_core::engine::{InferenceSession, Model};
use max_core::graph::weights::WeightsFormat;
use max_core::graph::{Graph, TensorType, Value};

use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::model::{HuggingFaceConfig, ModelFiles, PACKED_LIMIT};
use crate::registry::{PipelineModel, PipelineRegistry, PipelineTask};
use crate::tokenizer::TextTokenizer;

/// How the vectors of tokens become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    First,
}

/// A model that makes a vector of each text: texts with alike meanings have vectors in alike directions.
///
/// ```no_run
/// use max_pipelines::{EmbeddingsPipeline, PipelineConfig};
///
/// let pipeline = EmbeddingsPipeline::new(&PipelineConfig::new("models/bge-small"))?;
/// let [a, b] = ["a cat", "a dog"].map(|text| pipeline.embed(text));
/// let cosine: f32 = a?.iter().zip(b?).map(|(a, b)| a * b).sum();
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
pub struct EmbeddingsPipeline {
    path: PathBuf,
    model: Model,
    vocab_size: usize,
    max_length: usize,
    pooling: Pooling,
    tokenizer: Option<TextTokenizer>,
}

impl EmbeddingsPipeline {
    /// Loads a model of one of this crate's architectures.
    ///
    /// # Errors
    /// As [`TextGenerationPipeline::new`](crate::TextGenerationPipeline::new).
    pub fn new(config: &PipelineConfig) -> Result<EmbeddingsPipeline> {
        EmbeddingsPipeline::with_registry(config, &PipelineRegistry::new())
    }

    /// As [`new`](Self::new), with the architectures of a registry.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_registry(config: &PipelineConfig, registry: &PipelineRegistry) -> Result<EmbeddingsPipeline> {
        let files = ModelFiles::configured(config)?;
        let architecture = registry.retrieve_architecture(&files.config)?;
        let (model, _) = architecture.load(&files, config.dtype)?;
        let PipelineModel::Embedding(model) = model else {
            return Err(PipelineError::Task {
                path: files.path,
                name: architecture.name.clone(),
                has: architecture.task,
                wanted: PipelineTask::EmbeddingsGeneration,
            });
        };
        let tokenizer = TextTokenizer::find(&files, None, model.vocab_size())?;
        let graph = Graph::new("embeddings", TensorType::new(DType::I64, ("tokens",), DeviceRef::CPU));
        let hidden: Value = match graph.inputs() {
            [tokens] => (&model.hidden(&tokens.tensor()?.into())?).into(),
            _ => return Err(files.config.error("architectures", "has a graph without inputs")),
        };
        graph.output(hidden)?;
        let (vocab_size, max_length) = (model.vocab_size(), model.max_length());
        drop(model);
        let mut session = InferenceSession::new().packed_constants_limit(PACKED_LIMIT);
        if let Some(threads) = config.num_threads {
            session = session.num_threads(threads)?;
        }
        let model = session.load(&graph)?;
        drop(graph);
        // What the compiler put together in other memory is not needed again.
        Device::cpu().release_cached_memory();
        model.warm_up()?;
        Ok(EmbeddingsPipeline {
            model,
            vocab_size,
            max_length: max_length.min(config.max_length.unwrap_or(usize::MAX)),
            pooling: pooling(&files)?,
            tokenizer,
            path: files.path,
        })
    }

    /// The vector of a text, of length 1.
    ///
    /// # Errors
    /// When the model has no tokenizer; as [`embed_tokens`](Self::embed_tokens).
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        self.embed_tokens(&self.tokenizer()?.encode(text, true)?)
    }

    /// The vector of tokens, of length 1.
    ///
    /// # Errors
    /// When there are none, more than the model takes, or one that the vocabulary does not have; when the model fails.
    pub fn embed_tokens(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let hidden = self.hidden(tokens)?;
        let width = hidden.shape().last().copied().unwrap_or_default().max(1);
        let rows = hidden.as_slice::<f32>()?;
        let mut vector = vec![0.0; width];
        match self.pooling {
            Pooling::First => vector.copy_from_slice(&rows[..width]),
            Pooling::Mean => {
                for row in rows.chunks(width) {
                    vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += x / tokens.len() as f32);
                }
            }
        }
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if !length.is_finite() {
            return Err(PipelineError::NotNumbers { position: tokens.len() - 1 });
        }
        vector.iter_mut().for_each(|x| *x /= length.max(f32::MIN_POSITIVE));
        Ok(vector)
    }

    /// The vectors of the tokens: `[tokens, hidden]`, in `float32`.
    ///
    /// # Errors
    /// As [`embed_tokens`](Self::embed_tokens).
    pub fn hidden(&self, tokens: &[u32]) -> Result<Tensor> {
        self.check(tokens)?;
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let tokens = Tensor::from_slice(&tokens, [tokens.len()])?;
        let outputs = self.model.execute(&tokens)?;
        outputs.into_iter().next().ok_or(PipelineError::NotNumbers { position: 0 })
    }

    /// Whether the model takes these tokens.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            let expected = "a text: give at least one token";
            return Err(PipelineError::Argument { argument: "text", value: "no token".into(), expected });
        }
        if tokens.len() > self.max_length {
            return Err(PipelineError::PromptTooLong { prompt: tokens.len(), max_length: self.max_length });
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.vocab_size) {
            return Err(PipelineError::Token { token: *token, vocab_size: self.vocab_size });
        }
        Ok(())
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// When it has none.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| PipelineError::NoTokenizer { path: self.path.clone() })
    }
}

/// As the folder's `1_Pooling/config.json` or a GGUF file says; the mean, if neither does.
fn pooling(files: &ModelFiles) -> Result<Pooling> {
    let config = match files.beside("1_Pooling/config.json") {
        _ if files.format == WeightsFormat::Gguf => files.config.clone(),
        Some(path) => HuggingFaceConfig::load(path)?,
        None => return Ok(Pooling::Mean),
    };
    if config.bool_or("pooling_mode_cls_token", false)? {
        return Ok(Pooling::First);
    }
    match config.bool_or("pooling_mode_mean_tokens", true)? {
        true => Ok(Pooling::Mean),
        false => Err(config.error("pooling_mode_mean_tokens", "is false: only means and first tokens are known")),
    }
}
