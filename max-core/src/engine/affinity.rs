//! Threads that are bound to processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// A pool with a thread on each of these processors.
///
/// # Errors
/// The reason for which a thread cannot be there.
pub(super) fn pool(processors: &[usize]) -> Result<ThreadPool, String> {
    // Tried here first, on a thread of its own: those of a pool cannot fail.
    let tried = processors.to_vec();
    let tried = std::thread::Builder::new().spawn(move || tried.into_iter().try_for_each(bind));
    tried.map_err(|error| error.to_string())?.join().unwrap_or_else(|_| Err("a thread ended".to_owned()))?;
    let (places, failures): (Arc<[usize]>, _) = (processors.into(), Arc::new(AtomicUsize::new(0)));
    let failed = failures.clone();
    let start = move |index: usize| {
        if places.get(index).is_none_or(|processor| bind(*processor).is_err()) {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    };
    let name = |index| format!("max-{index}");
    let builder = ThreadPoolBuilder::new().num_threads(processors.len()).thread_name(name).start_handler(start);
    let pool = builder.build().map_err(|error| error.to_string())?;
    // All have begun once all have answered.
    pool.broadcast(|_| ());
    match failures.load(Ordering::Relaxed) {
        0 => Ok(pool),
        count => Err(format!("{count} threads could not be bound to their processors")),
    }
}

/// Binds the calling thread to a processor.
#[cfg(target_os = "linux")]
fn bind(processor: usize) -> Result<(), String> {
    if processor >= libc::CPU_SETSIZE as usize {
        return Err(format!("there is no processor {processor}"));
    }
    // SAFETY: a set is bits, for which zeros are a value; the number is within it; the set outlives the call, and 0 is the calling thread.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    match status {
        0 => Ok(()),
        _ => Err(format!("processor {processor}: {}", std::io::Error::last_os_error())),
    }
}

/// Binds the calling thread to a processor.
#[cfg(not(target_os = "linux"))]
fn bind(_: usize) -> Result<(), String> {
    Err("threads are bound to processors on Linux alone".to_owned())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::pool;

    #[test]
    fn threads_stay_on_their_processors() {
        // Of those that the test may use, the first and, if there is one, the second.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let first: usize = list.split([',', '-']).next().unwrap().parse().unwrap();
        let all = pool(&[first, first]).unwrap();
        let places = all.broadcast(|_| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(|at| at.trim().to_owned()))
                .unwrap()
        });
        assert_eq!(places, [first.to_string(), first.to_string()]);
        assert!(pool(&[first, 1 << 20]).unwrap_err().contains("there is no processor 1048576"));
        assert!(pool(&[1000]).unwrap_err().starts_with("processor 1000: "));
    }
}
