//! Creation of tensors: constants, sequences and random numbers.

pub(super) mod constant;
pub mod random;
pub(super) mod sequence;
