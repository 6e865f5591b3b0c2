//! The commands about registered kernels: `max ops`, `max ir`, `max ptx` and `max check`, and what they launch.

pub mod check;
pub mod ir;
pub mod launch;
pub mod ops;
pub mod ptx;
pub mod variant;
