//! The math functions as kernels: their errors at each level, their IR, their PTX in the simulator, and golden values.

extern crate max_core as max;

mod accuracy;
mod approximate;
mod golden;
mod kernels;
mod special;
mod targets;

use bytemuck::Pod;
use max::kernel::abi::KernelDef;
use max::kernel::{Form, TensorArg};

/// The result of an elementwise kernel of one dtype, for arguments of one length.
fn compute<T: Pod>(def: &'static KernelDef, dtype: max::dtype::DType, form: Form, args: &[&[T]]) -> Vec<T> {
    let n = [args[0].len() as i64];
    let mut out = vec![T::zeroed(); args[0].len()];
    let dtypes = vec![dtype; args.len() + 1];
    let kernel = def.bind(&dtypes, |_| None, form).unwrap_or_else(|e| panic!("{e}"));
    let tensor = |ptr: *mut u8| TensorArg { ptr, dims: &n, strides: &[1] };
    let mut tensors: Vec<_> = args.iter().map(|a| tensor(a.as_ptr().cast_mut().cast())).collect();
    tensors.push(tensor(out.as_mut_ptr().cast()));
    // SAFETY: the arguments are of the dtype and length said, and the result is written by this call alone.
    unsafe { kernel.launch(&tensors) }.unwrap_or_else(|e| panic!("{e}"));
    out
}
