//! Sizes that may be unknown until a graph runs: dims, shapes, and the polynomials that they are.

pub(super) mod bind;
pub(super) mod dim;
pub(super) mod polynomial;
pub(super) mod shape;
