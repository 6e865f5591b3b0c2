//! [`Scheduler`]: requests of a queue, computed together, their results in another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, TrySendError};

use super::{BaseContext, MaxPullQueue, MaxPushQueue, Pipeline, Request, RequestId, drain_queue, get_blocking};
use crate::error::{PipelineError, Result};

/// What creates batches and executes them.
pub trait Scheduler {
    /// Takes requests that came, computes the next part of all, and gives out what is new.
    ///
    /// # Errors
    /// When the model fails, or nobody takes results.
    fn run_iteration(&mut self) -> Result<()>;
}

/// What a scheduler says of a request.
#[derive(Clone, Debug)]
pub struct SchedulerResult<T> {
    /// Whether nothing comes behind it.
    pub is_done: bool,
    /// What is new; none where there is nothing but the end.
    pub result: Option<T>,
    /// Why it failed, or was refused.
    pub error: Option<Arc<PipelineError>>,
}

impl<T> SchedulerResult<T> {
    /// Of a request that was cancelled.
    pub fn cancelled() -> SchedulerResult<T> {
        SchedulerResult { is_done: true, result: None, error: None }
    }

    /// Of a request that was refused.
    pub fn failed(error: PipelineError) -> SchedulerResult<T> {
        SchedulerResult { is_done: true, result: None, error: Some(Arc::new(error)) }
    }
}

impl<T: super::PipelineOutput> SchedulerResult<T> {
    /// With something new.
    pub fn create(result: T) -> SchedulerResult<T> {
        SchedulerResult { is_done: result.is_done(), error: result.error().cloned(), result: Some(result) }
    }
}

/// What goes into the queue of results.
type Named<P> = (RequestId, SchedulerResult<<P as Pipeline>::Output>);

/// Continuous batching of any [`Pipeline`]: as many requests are computed together as it takes, and one that is done makes room for the
/// next. Results are given out as they come, and wait where their queue is full: nothing is computed until there is room.
/// A request that is not possible is refused in its result. So is one with the name of one that is running, of which more results come.
///
/// ```no_run
/// use std::sync::mpsc::channel;
///
/// use max_pipelines::{
///     PipelineConfig, PipelineScheduler, RequestId, SamplingParams, TextGenerationPipeline, TextGenerationRequest,
/// };
///
/// let pipeline = TextGenerationPipeline::new(&PipelineConfig { max_batch_size: 8, ..PipelineConfig::new("models/llama") })?;
/// let ((ask, requests), (results, answers), (cancel, cancelled)) = (channel(), channel(), channel());
/// let prompt = pipeline.tokenizer()?.encode("Once upon a time", true)?;
/// let request = TextGenerationRequest::new(prompt, SamplingParams::greedy().max_new_tokens(64));
/// ask.send(TextGenerationRequest { request_id: RequestId::from("a"), ..request }).ok();
/// drop((ask, cancel));
/// PipelineScheduler::new(&pipeline, requests, results, cancelled).run()?;
/// for (id, answer) in answers {
///     println!("{id}: {:?}", answer.result);
/// }
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
pub struct PipelineScheduler<'a, P: Pipeline> {
    pipeline: &'a P,
    requests: Box<dyn MaxPullQueue<P::Request> + 'a>,
    results: Box<dyn MaxPushQueue<Named<P>> + 'a>,
    cancelled: Box<dyn MaxPullQueue<RequestId> + 'a>,
    /// Requests that came while there was no room in the batch.
    queued: VecDeque<P::Request>,
    running: Vec<P::Context>,
    /// Results for which there was no room.
    waiting: VecDeque<Named<P>>,
    /// Whether no more requests come.
    closed: bool,
}

impl<'a, P: Pipeline> PipelineScheduler<'a, P> {
    /// Between queues of requests, of results, and of the names of requests that nobody wants any more.
    pub fn new(
        pipeline: &'a P,
        requests: impl MaxPullQueue<P::Request> + 'a,
        results: impl MaxPushQueue<Named<P>> + 'a,
        cancelled: impl MaxPullQueue<RequestId> + 'a,
    ) -> PipelineScheduler<'a, P> {
        PipelineScheduler {
            pipeline,
            requests: Box::new(requests),
            results: Box::new(results),
            cancelled: Box::new(cancelled),
            queued: VecDeque::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            closed: false,
        }
    }

    /// How many requests are being computed.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether no more requests come, and all results were given out.
    pub fn is_finished(&self) -> bool {
        self.closed && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.running.is_empty() && self.waiting.is_empty()
    }

    /// Runs until it is [finished](Self::is_finished), and waits for requests where there are none.
    ///
    /// # Errors
    /// As [`run_iteration`](Scheduler::run_iteration).
    pub fn run(&mut self) -> Result<()> {
        while !self.is_finished() {
            if self.is_idle() {
                match get_blocking(&*self.requests) {
                    Ok(request) => self.queued.push_back(request),
                    Err(_) => self.closed = true,
                }
            }
            self.run_iteration()?;
            if !self.waiting.is_empty() {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn begin(&mut self, request: &P::Request) {
        let id = request.request_id();
        if self.running.iter().any(|context| context.request_id() == id) {
            let error = PipelineError::Argument {
                argument: "request_id",
                value: format!("`{id}`"),
                expected: "another than those of requests that are running",
            };
            // More comes under this name, of the one that is running.
            let refused = SchedulerResult { is_done: false, ..SchedulerResult::failed(error) };
            return self.waiting.push_back((id.clone(), refused));
        }
        match self.pipeline.new_context(request) {
            Ok(context) => self.running.push(context),
            Err(error) => self.waiting.push_back((id.clone(), SchedulerResult::failed(error))),
        }
    }

    /// Gives out what waits, as far as there is room.
    fn give(&mut self) -> Result<()> {
        while let Some(next) = self.waiting.pop_front() {
            match self.results.put_nowait(next) {
                Ok(()) => {}
                Err(TrySendError::Full(next)) => {
                    self.waiting.push_front(next);
                    break;
                }
                Err(TrySendError::Disconnected((id, _))) => {
                    self.running.iter_mut().for_each(|context| self.pipeline.release(context));
                    self.running.clear();
                    self.waiting.clear();
                    return Err(PipelineError::QueueClosed { request: id });
                }
            }
        }
        Ok(())
    }
}

impl<P: Pipeline> Scheduler for PipelineScheduler<'_, P> {
    fn run_iteration(&mut self) -> Result<()> {
        // Names before requests: whoever sends a request and then its name finds it here.
        let cancelled = drain_queue(&*self.cancelled);
        self.closed |= loop {
            match self.requests.get_nowait() {
                Ok(request) => self.queued.push_back(request),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        for id in cancelled {
            if let Some(at) = self.running.iter().position(|context| *context.request_id() == id) {
                self.pipeline.release(&mut self.running.remove(at));
            } else if let Some(at) = self.queued.iter().position(|request| *request.request_id() == id) {
                self.queued.remove(at);
            } else {
                continue;
            }
            self.waiting.push_back((id, SchedulerResult::cancelled()));
        }
        self.give()?;
        if !self.waiting.is_empty() {
            return Ok(());
        }
        while self.running.len() < self.pipeline.max_batch_size()
            && let Some(request) = self.queued.pop_front()
        {
            self.begin(&request);
        }
        if !self.running.is_empty() {
            let new = self.pipeline.execute(&mut self.running.iter_mut().collect::<Vec<_>>())?;
            self.waiting.extend(new.into_iter().map(|(id, output)| (id, SchedulerResult::create(output))));
            self.running.retain(|context| !context.is_done());
        }
        self.give()
    }
}
