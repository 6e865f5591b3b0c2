//! [`MaxPullQueue`] and [`MaxPushQueue`]: queues that nobody waits at. Those of [`std::sync::mpsc`] are some.

use std::sync::mpsc::{Receiver, RecvError, Sender, SyncSender, TryRecvError, TrySendError};
use std::thread;
use std::time::Duration;

/// How often a thread that waits looks again at once, and how long it sleeps then.
const SPINS: usize = 64;
const SLEEP: Duration = Duration::from_micros(200);

/// The end of a queue that items come out of.
pub trait MaxPullQueue<T> {
    /// Takes the next item out.
    ///
    /// # Errors
    /// When there is none yet; when there will be none, since nobody puts any in.
    fn get_nowait(&self) -> Result<T, TryRecvError>;
}

/// The end of a queue that items go into.
pub trait MaxPushQueue<T> {
    /// Puts an item in.
    ///
    /// # Errors
    /// When the queue is full, or nobody takes any out; the error has the item.
    fn put_nowait(&self, item: T) -> Result<(), TrySendError<T>>;
}

impl<T> MaxPullQueue<T> for Receiver<T> {
    fn get_nowait(&self) -> Result<T, TryRecvError> {
        self.try_recv()
    }
}

impl<T> MaxPushQueue<T> for SyncSender<T> {
    fn put_nowait(&self, item: T) -> Result<(), TrySendError<T>> {
        self.try_send(item)
    }
}

impl<T> MaxPushQueue<T> for Sender<T> {
    fn put_nowait(&self, item: T) -> Result<(), TrySendError<T>> {
        self.send(item).map_err(|error| TrySendError::Disconnected(error.0))
    }
}

/// The next item of a queue; waits for it.
///
/// ```
/// use std::sync::mpsc::channel;
///
/// use max_pipelines::{MaxPushQueue, drain_queue, get_blocking};
///
/// let (push, pull) = channel();
/// for item in 0..3 {
///     push.put_nowait(item)?;
/// }
/// assert_eq!(get_blocking(&pull)?, 0);
/// assert_eq!(drain_queue(&pull), [1, 2]);
/// drop(push);
/// assert!(get_blocking(&pull).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the queue is empty, and nobody puts anything in.
pub fn get_blocking<T>(pull_queue: &(impl MaxPullQueue<T> + ?Sized)) -> Result<T, RecvError> {
    for looked in 0.. {
        match pull_queue.get_nowait() {
            Ok(item) => return Ok(item),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) if looked < SPINS => thread::yield_now(),
            Err(TryRecvError::Empty) => thread::sleep(SLEEP),
        }
    }
    Err(RecvError)
}

/// All items that are in a queue now.
pub fn drain_queue<T>(pull_queue: &(impl MaxPullQueue<T> + ?Sized)) -> Vec<T> {
    std::iter::from_fn(|| pull_queue.get_nowait().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    #[test]
    fn nobody_waits_at_a_full_queue_and_one_does_at_an_empty_one() {
        let (push, pull) = sync_channel(2);
        assert_eq!(pull.get_nowait(), Err(TryRecvError::Empty));
        push.put_nowait(1).unwrap();
        push.put_nowait(2).unwrap();
        assert_eq!(push.put_nowait(3), Err(TrySendError::Full(3)));
        assert_eq!(drain_queue(&pull), [1, 2]);
        assert!(drain_queue(&pull).is_empty());
        let later = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            push.put_nowait(4)
        });
        assert_eq!(get_blocking(&pull), Ok(4));
        later.join().unwrap().unwrap();
        assert_eq!(get_blocking(&pull), Err(RecvError));
        let (push, pull) = channel();
        drop(pull);
        assert_eq!(push.put_nowait(5), Err(TrySendError::Disconnected(5)));
    }
}
