//! Kernels as text: the IR's text form, its verifier, and the PTX written from it.

/// A test for each dtype, which calls the module's `check`.
macro_rules! checks {
    ($($name:ident $ty:ty)*) => {$(
        #[test]
        fn $name() {
            check::<$ty>();
        }
    )*};
}

mod bytes;
mod edit;
mod execute;
mod factors;
mod float8;
mod lanes;
mod order;
mod products;
mod ptx;
mod ptxas;
mod roles;
mod scans;
mod text;
mod tf32;
mod tiles;
