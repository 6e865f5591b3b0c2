use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Float + Copy>(x: T) -> T {
    x
}

fn main() {}
