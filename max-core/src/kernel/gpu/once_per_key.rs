//! [`OncePerKey`]: values that are made once for each key, where making one takes long.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// A value, once it was made. Locked while somebody makes it.
type Entry<V> = Arc<Mutex<Option<V>>>;

/// Values by key. Threads that ask for the same value wait for the one that makes it; others go on meanwhile.
pub(super) struct OncePerKey<K, V>(Mutex<Option<HashMap<K, Entry<V>>>>);

impl<K: Eq + Hash, V: Clone> OncePerKey<K, V> {
    pub const fn new() -> Self {
        OncePerKey(Mutex::new(None))
    }

    /// The value of a key, made by `make` if nobody has. After an error, the next to ask tries again.
    pub fn get_or_try_init<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let entry = {
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            entries.get_or_insert_default().entry(key).or_default().clone()
        };
        // What a panic leaves is an empty entry.
        let mut value = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*value {
            return Ok(value.clone());
        }
        let made = make()?;
        *value = Some(made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn other_keys_do_not_wait() {
        let cache: OncePerKey<&str, u32> = OncePerKey::new();
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel();
        let cache = &cache;
        std::thread::scope(|scope| {
            let slow = scope.spawn(move || {
                cache.get_or_try_init("slow", || {
                    begun.send(()).map_err(|e| e.to_string())?;
                    may_go_on.recv().map_err(|e| e.to_string())?;
                    Ok::<_, String>(1)
                })
            });
            has_begun.recv().expect("it begins");
            // Made, and looked up, while the other is being made.
            assert_eq!(cache.get_or_try_init("quick", || Ok::<_, String>(2)), Ok(2));
            assert_eq!(cache.get_or_try_init("quick", || Err("it is there".to_owned())), Ok(2));
            assert!(!slow.is_finished());
            go_on.send(()).expect("it waits");
            assert_eq!(slow.join().expect("no panic"), Ok(1));
        });
    }

    #[test]
    fn a_value_is_made_once() {
        let (cache, made) = (OncePerKey::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let value = cache.get_or_try_init("key", || {
                        std::thread::yield_now();
                        Ok::<_, String>(made.fetch_add(1, Ordering::Relaxed))
                    });
                    assert_eq!(value, Ok(0));
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn an_error_is_not_kept() {
        let cache: OncePerKey<u8, u8> = OncePerKey::new();
        assert_eq!(cache.get_or_try_init(1, || Err("refused")), Err("refused"));
        assert_eq!(cache.get_or_try_init(1, || Ok::<_, &str>(7)), Ok(7));
    }
}
