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

mod edit;
mod execute;
mod float8;
mod int8;
mod lanes;
mod mma;
mod mma_operands;
mod order;
mod ptx;
mod ptxas;
mod scans;
mod sliced_k;
mod text;
mod tf32;
mod tiles;
mod warp_specialization;
