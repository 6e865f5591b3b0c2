//! Elementwise kernels: functions of scalars, which the compiler may fuse.

pub mod activation;
pub mod arithmetic;
pub mod cast;
pub mod compare;
pub mod copy;
pub mod math;
