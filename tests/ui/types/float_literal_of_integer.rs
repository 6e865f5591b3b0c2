use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: i32) -> i32 {
    x * 0.5
}

fn main() {}
