//! Rows that a program reads more than once, or that take several threads.

mod row_cache;
pub(super) mod split_reduction;

pub(super) use row_cache::CachedRow;
