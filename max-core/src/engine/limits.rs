//! When an execution ends before it is done: [`ExecuteOptions`] and [`CancellationToken`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a model is executed: see [`Model::execute_with`](super::Model::execute_with).
///
/// ```
/// # use max_core as max;
/// use std::time::Duration;
/// use max::engine::{CancellationToken, ExecuteOptions};
///
/// let token = CancellationToken::new();
/// let options = ExecuteOptions::new().timeout(Duration::from_secs(2)).cancellation(&token);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ExecuteOptions {
    timeout: Option<Duration>,
    token: Option<CancellationToken>,
}

impl ExecuteOptions {
    /// An execution that takes as long as it needs.
    pub fn new() -> ExecuteOptions {
        ExecuteOptions::default()
    }

    /// Ends the execution when it has taken this long. That is noticed between ops, and in each round of a loop; on a GPU,
    /// what was enqueued until then still runs.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> ExecuteOptions {
        self.timeout = Some(timeout);
        self
    }

    /// Ends the execution when the token is cancelled, as a time-out does.
    #[must_use]
    pub fn cancellation(mut self, token: &CancellationToken) -> ExecuteOptions {
        self.token = Some(token.clone());
        self
    }

    /// The limits of an execution that begins now.
    pub(super) fn limits(&self) -> Option<Limits> {
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        (deadline.is_some() || self.token.is_some()).then(|| Limits { deadline, token: self.token.clone() })
    }
}

/// A switch by which any thread ends executions that were given it. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

impl CancellationToken {
    /// A token that is not cancelled.
    pub fn new() -> CancellationToken {
        CancellationToken::default()
    }

    /// Ends all executions with this token, now and later.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// When an execution ends before it is done.
#[derive(Debug)]
pub(super) struct Limits {
    deadline: Option<Instant>,
    token: Option<CancellationToken>,
}

impl Limits {
    /// Why the execution ends now, if it does.
    pub fn reached(&self) -> Option<&'static str> {
        if self.token.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Some("it was cancelled");
        }
        let is_over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_over.then_some("its time is over; give it more with `ExecuteOptions::timeout`, or check that its loops end")
    }
}
