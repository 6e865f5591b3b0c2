//! Reading and writing by index.

pub mod gather;
pub mod scatter;
