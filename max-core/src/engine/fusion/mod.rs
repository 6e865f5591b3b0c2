//! How fused steps run: regions of elementwise kernels by themselves, and beside the programs of another kernel.

mod fused_elementwise;
mod fused_kernel;
