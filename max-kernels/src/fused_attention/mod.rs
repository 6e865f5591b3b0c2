//! Attention as one kernel, in which no matrix of scores is stored: of dense operands, and over a paged cache.

pub mod attention;
pub mod paged_attention;
