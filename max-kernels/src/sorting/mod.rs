//! Sorting of rows, and their largest elements.

pub mod sort;
pub mod top_k;
