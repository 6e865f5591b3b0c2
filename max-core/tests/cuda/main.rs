//! The CUDA driver and the engine on a GPU, over a driver that runs PTX in the simulator.

#![cfg(all(target_os = "linux", feature = "cuda"))]

extern crate max_core as max;

#[macro_use]
#[path = "../../../tests/support/fake_gpu.rs"]
mod fake_gpu;

/// Products with tile sizes for GPUs.
macro_rules! products {
    ($($name:ident $op:literal $($gpus:ident($($sizes:tt)*)),+;)+) => {$(
        #[kernel(op = $op, tile(BM = 4, BN = 16, BK = 16, $($gpus($($sizes)*)),+), dtypes(T = [f32]))]
        fn $name<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
            let [m, n] = program_id();
            let mut acc = Tile::<f32, BM, BN>::zeros();
            for k in range(0, a.dim(1), BK) {
                acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
            }
            c.tile::<BM, BN>(m, n).write(acc.cast());
        }
    )+};
}

mod captures;
mod collectives;
mod control;
mod devices;
mod engine;
mod forms;
mod kernels;
mod loading;
mod missing;
mod ops;
mod tensors;
