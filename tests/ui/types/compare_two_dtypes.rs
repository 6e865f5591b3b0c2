use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32, y: i32) -> bool {
    x < y
}

fn main() {}
