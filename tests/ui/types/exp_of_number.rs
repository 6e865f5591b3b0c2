use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Number>(x: T) -> T {
    x.exp()
}

fn main() {}
