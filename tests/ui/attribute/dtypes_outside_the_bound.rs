use max::kernel::prelude::*;

#[kernel(op = "ui", dtypes(T = [f32, i8, f128], U = [f32]))]
fn ui<T: Float>(x: T) -> T {
    x
}

fn main() {}
