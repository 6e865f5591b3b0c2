//! The built-in kernels.
