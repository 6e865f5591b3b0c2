//! What requests, pipelines and schedulers have in common, by MAX's names: queues of requests in, results out.

mod pipeline;
mod pipelines;
mod queue;
mod request;
mod scheduler;

pub use pipeline::{Pipeline, PipelineOutput};
pub use pipelines::{EmbeddingsContext, EmbeddingsGenerationOutput, EmbeddingsGenerationRequest};
pub use queue::{MaxPullQueue, MaxPushQueue, drain_queue, get_blocking};
pub use request::{BaseContext, Request, RequestId};
pub use scheduler::{PipelineScheduler, Scheduler, SchedulerResult};
