//! Work on several items at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `f` on every item, on a few threads, and fails with what all of them say.
#[track_caller]
pub fn all<T: Sync>(items: &[T], f: impl Fn(&T) -> Result<(), String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(e) = f(item)
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(e);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics while it holds the lock");
    assert!(failures.is_empty(), "{} failures:\n\n{}", failures.len(), failures.join("\n\n"));
}
