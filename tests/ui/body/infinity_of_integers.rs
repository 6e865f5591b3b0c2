use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Number>(x: T) -> T {
    select(x > 0, x, T::INFINITY)
}

fn main() {}
