use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Float>(x: T) -> T
where
    T: Number,
 {
    x
}

fn main() {}
