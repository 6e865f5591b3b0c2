use max::kernel::prelude::*;

#[kernel(op = "my op")]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
