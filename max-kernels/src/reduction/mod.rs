//! Rows reduced to values, and kernels that are made of reductions: norms, softmax and prefix sums.

pub mod norm;
pub mod reduce;
pub mod scan;
pub mod softmax;
