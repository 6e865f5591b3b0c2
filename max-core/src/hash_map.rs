//! Hash maps for what a load looks up: the keys are short, and hashing them was a tenth of the time to load a graph.
//!
//! foldhash takes a seed of its own for each map, so that a file cannot be written whose keys all meet.

pub(crate) use foldhash::fast::RandomState;

/// A map by foldhash; `HashMap::default()` makes one.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// A set by foldhash.
pub(crate) type HashSet<K> = std::collections::HashSet<K, RandomState>;
