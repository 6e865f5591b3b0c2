//! [`TaskPipeline`]: the pipeline of a task.

use crate::config::PipelineConfig;
use crate::embeddings::EmbeddingsPipeline;
use crate::error::Result;
use crate::model::ModelFiles;
use crate::registry::{PipelineRegistry, PipelineTask};
use crate::text_generation::{SpeculativeDecodingTextGenerationPipeline, TextGenerationPipeline};

/// A loaded pipeline, of the type that its task has.
#[non_exhaustive]
pub enum TaskPipeline {
    /// For [`PipelineTask::TextGeneration`].
    TextGeneration(Box<TextGenerationPipeline>),
    /// The same with a [`draft_model_path`](PipelineConfig::draft_model_path).
    SpeculativeDecoding(Box<SpeculativeDecodingTextGenerationPipeline>),
    /// For [`PipelineTask::EmbeddingsGeneration`].
    EmbeddingsGeneration(Box<EmbeddingsPipeline>),
}

impl TaskPipeline {
    /// What it is for.
    pub fn task(&self) -> PipelineTask {
        match self {
            TaskPipeline::TextGeneration(_) | TaskPipeline::SpeculativeDecoding(_) => PipelineTask::TextGeneration,
            TaskPipeline::EmbeddingsGeneration(_) => PipelineTask::EmbeddingsGeneration,
        }
    }
}

/// Loads the pipeline of a task.
///
/// # Errors
/// Those of the pipeline; when the model is for another task.
pub fn get_pipeline_for_task(task: PipelineTask, pipeline_config: &PipelineConfig) -> Result<TaskPipeline> {
    of_task(task, pipeline_config, &PipelineRegistry::new())
}

fn of_task(task: PipelineTask, config: &PipelineConfig, registry: &PipelineRegistry) -> Result<TaskPipeline> {
    Ok(match (task, &config.draft_model_path) {
        (PipelineTask::TextGeneration, None) => {
            TaskPipeline::TextGeneration(Box::new(TextGenerationPipeline::with_registry(config, registry)?))
        }
        (PipelineTask::TextGeneration, Some(_)) => TaskPipeline::SpeculativeDecoding(Box::new(
            SpeculativeDecodingTextGenerationPipeline::with_registry(config, registry)?,
        )),
        (PipelineTask::EmbeddingsGeneration, _) => {
            TaskPipeline::EmbeddingsGeneration(Box::new(EmbeddingsPipeline::with_registry(config, registry)?))
        }
    })
}

impl PipelineRegistry {
    /// Loads the pipeline of what a model is for.
    ///
    /// # Errors
    /// Those of the pipeline.
    pub fn retrieve(&self, config: &PipelineConfig) -> Result<TaskPipeline> {
        let task = self.retrieve_pipeline_task(&ModelFiles::configured(config)?.config)?;
        of_task(task, config, self)
    }
}
