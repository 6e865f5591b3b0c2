//! Kernels: the language they are written in, the forms they take, and the library that finds them.

#[doc(hidden)]
pub mod __private;
pub mod abi;
mod arg;
pub(crate) mod copy;
pub(crate) mod cpu;
mod cpu_caches;
mod cpu_features;
mod error;
pub mod gpu;
pub mod ir;
pub mod lang;
mod launch;
mod library;
pub mod ptx;
mod record;
mod reference;
mod threads;
pub mod tuning;

/// What a crate of kernels imports.
pub mod prelude {
    pub use super::lang::{
        Bits, BoolLanes, Buffer, ColumnLanes, Float, FloatColumns, FloatLanes, In, Int, Lanes, Number, NumberColumns,
        NumberLanes, Out, Scalar, ScalarLanes, ScaledTile, Signed, Tile, WordLanes,
    };
    pub use crate::dtype::{F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};
    pub use max_macros::kernel;
}

pub use arg::TensorArg;
pub(crate) use arg::collapse;
#[doc(hidden)]
pub use cpu_caches::last_level as last_level_cache;
pub use cpu_features::{Form, form};
pub use error::KernelError;
pub(crate) use gpu::CodeOptions;
pub use gpu::{GpuDebug, GpuError, GpuKernel};
pub use inventory;
pub use launch::bound::{BoundKernel, ParamArg};
pub(crate) use launch::fusion::{FusedSide, Part};
pub(crate) use launch::packing::{Constants, SharedTiles};
pub(crate) use launch::{distinct_bytes, is_measured, rows_begin_at_lines};
pub use library::KernelLibrary;
pub use library::extension::extension_table;
pub use max_macros::kernel;
pub(crate) use threads::cost::Cost;
pub use threads::num_threads;
pub(crate) use threads::{parallel, with_pool};

/// A kernel, named by the item that `#[kernel]` puts in its place. What it runs is safe, since a
/// [`KernelDef`](abi::KernelDef) cannot be made without `unsafe`.
pub trait Kernel {
    /// Its row of the kernel table.
    fn def() -> &'static abi::KernelDef;
}

/// A kernel that registers itself when the program is linked.
#[doc(hidden)]
pub struct Registration(pub &'static abi::KernelDef);

inventory::collect!(Registration);
