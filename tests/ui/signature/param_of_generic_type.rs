use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Float>(x: T, #[param] v: T) -> T {
    x * v
}

fn main() {}
