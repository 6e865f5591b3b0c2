use max::kernel::lang::{In, OnlyForKernelFunctions, Target, Val};

fn read<M: Target>(m: OnlyForKernelFunctions<M>) -> Val<M, f64> {
    In::<M, f64, 1>::operand(m.0, 7).at(Val::zero())
}

fn keep<M: Target>(x: In<M, f32, 1>) -> Box<dyn std::any::Any> {
    Box::new(x)
}

fn main() {}
