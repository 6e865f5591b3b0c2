//! Graphs of captured work.

use crate::stream::Work;

/// Work that was captured on one stream, in order.
#[derive(Clone)]
pub struct Graph {
    pub device: usize,
    pub work: Vec<Work>,
}
