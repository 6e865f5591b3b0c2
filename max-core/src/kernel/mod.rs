//! Kernels: the language they are written in, the forms they take, and the library that finds them.

mod beside;
mod bound;
pub(crate) mod cpu;
pub mod gpu;
pub mod ir;
pub mod lang;
mod launch;
mod library;
mod machine;
mod panels;
pub mod ptx;
mod record;
mod reference;
pub mod table;
mod threads;
pub mod tuning;
mod twin;

/// What a crate of kernels imports.
pub mod prelude {
    pub use super::lang::{
        Bits, BoolLanes, Buffer, ColumnLanes, Float, In, Int, Lanes, Number, NumberColumns, NumberLanes, Out, Scalar,
        ScalarLanes, Signed, Tile,
    };
    pub use crate::dtype::{F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};
    pub use max_macros::kernel;
}

pub(crate) use beside::{Beside, Part};
pub use bound::{BoundKernel, ParamArg, TensorArg};
pub(crate) use gpu::CodeOptions;
pub use gpu::{GpuDebug, GpuError, GpuKernel};
pub use inventory;
pub(crate) use launch::collapse;
pub use library::{KernelError, KernelLibrary, extension_table};
pub use machine::{Form, form};
pub use max_macros::kernel;
pub(crate) use panels::Constants;
pub use threads::num_threads;
pub(crate) use threads::{parallel, with_pool};
#[doc(hidden)]
pub use twin::Twin;

/// A kernel, named by the item that `#[kernel]` puts in its place.
pub trait Kernel {
    /// Its row of the kernel table.
    fn def() -> &'static table::KernelDef;
}

/// A kernel that registers itself when the program is linked.
#[doc(hidden)]
pub struct Registration(pub &'static table::KernelDef);

inventory::collect!(Registration);
