//! [`Error`]: any error of this crate, for programs that do not tell them apart.

use std::fmt;

use crate::driver::DriverError;
use crate::engine::EngineError;
use crate::graph::GraphError;
use crate::kernel::KernelError;

/// A result with any error of this crate: what `main` returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of this crate. It prints, also with `Debug`, as the error that it holds.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of devices, memory and tensors.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Of the kernel library.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Of building a graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Of loading and executing models.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl fmt::Debug for Error {
    /// What `fn main() -> max::Result<()>` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
