//! Kernels: the language they are written in, the forms they take, and the library that finds them.

pub(crate) mod cpu;
pub mod ir;
pub mod lang;
mod record;
mod reference;
pub mod table;

pub use inventory;

/// A kernel, named by the item that `#[kernel]` puts in its place.
pub trait Kernel {
    /// Its row of the kernel table.
    fn def() -> &'static table::KernelDef;
}

/// A kernel that registers itself when the program is linked.
#[doc(hidden)]
pub struct Registration(pub &'static table::KernelDef);

inventory::collect!(Registration);
