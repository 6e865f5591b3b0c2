//! Control flow: branches, loops and fences, and calls of subgraphs.

pub(super) mod call;
pub(super) mod control;
