//! [`KernelError`]: a kernel that cannot be found, loaded or run.

use std::path::PathBuf;

use super::abi::TABLE_VERSION;

/// A kernel that cannot be found, loaded or run.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel has this name.
    #[error(
        "no kernel is named `{name}`{}; if a crate defines it, link that crate: `use my_ops as _;`",
        nearest_text(nearest)
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest names in the library.
        nearest: Vec<&'static str>,
    },
    /// Two kernels have this name.
    #[error("two kernels are named `{name}`: one in crate `{}` ({}), one in crate `{}` ({}); rename one of them", crates[0], places[0], crates[1], places[1])]
    Duplicate {
        /// The name.
        name: &'static str,
        /// The crates they stand in.
        crates: [&'static str; 2],
        /// Their files and lines.
        places: [String; 2],
    },
    /// A dynamic library could not be opened.
    #[error("the extension {} cannot be loaded: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A dynamic library that is no extension.
    #[error(
        "{} is not an extension: it has no `max_extension`; put `max::extension!();` in the crate's root and build it as a `cdylib`",
        path.display()
    )]
    NotAnExtension {
        /// The file.
        path: PathBuf,
    },
    /// An extension of another table version.
    #[error(
        "the extension {} has kernel table version {found}, and this program reads version {TABLE_VERSION}; rebuild it with the `max` that this program uses",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// An extension whose table cannot be used.
    #[error("the extension {} cannot be used: {problem}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What does not fit, and what to do.
        problem: String,
    },
    /// A dtype that a kernel was not compiled for.
    #[error("kernel `{kernel}` was not compiled for {generic} = {dtype}\n  kernel: {signature}")]
    Instance {
        /// The kernel.
        kernel: &'static str,
        /// The generic.
        generic: &'static str,
        /// Its binding.
        dtype: crate::dtype::DType,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A generic with two dtypes, or with none.
    #[error("kernel `{kernel}`: {problem}\n  kernel: {signature}")]
    Binding {
        /// The kernel.
        kernel: &'static str,
        /// What does not fit.
        problem: String,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A launch on the CPU for which there is no memory: for materialized rows, or for slices of fused operands.
    #[error("kernel `{kernel}` needs {bytes} bytes of memory for a program, and the system does not give them")]
    Memory {
        /// The kernel.
        kernel: &'static str,
        /// The bytes asked for.
        bytes: usize,
    },
    /// A kernel whose programs hold larger tiles than a CPU has stacks for.
    #[error(
        "kernel `{kernel}` holds {bytes} bytes of tiles in a program, and the limit is {limit}: make its tiles smaller"
    )]
    Tiles {
        /// The kernel.
        kernel: &'static str,
        /// The bytes of its tiles.
        bytes: u64,
        /// The most bytes.
        limit: u64,
    },
    /// A grid whose expression comes to too many programs.
    #[error(
        "the grid of kernel `{kernel}` has {extent} programs along axis {axis}, and the limit is {}: see the parameters and dims that it is computed from",
        super::abi::MAX_EXTENT
    )]
    Grid {
        /// The kernel.
        kernel: &'static str,
        /// The axis.
        axis: usize,
        /// The programs.
        extent: i64,
    },
    /// An environment variable with a value that means nothing.
    #[error("{variable}={value} is not one of {allowed}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

fn nearest_text(nearest: &[&str]) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (nearest: `{}`)", nearest.join("`, `")) }
}
