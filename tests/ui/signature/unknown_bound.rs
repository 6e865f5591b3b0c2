use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Floats>(x: T) -> T {
    x
}

fn main() {}
