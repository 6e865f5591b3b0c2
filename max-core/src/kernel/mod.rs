//! Kernels: the language they are written in, the forms they take, and the library that finds them.

pub mod ir;
pub mod table;
