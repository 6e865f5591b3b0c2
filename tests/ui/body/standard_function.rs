use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: i32, y: i32) -> i32 {
    std::cmp::max(x, y)
}

fn main() {}
