use max::kernel::prelude::*;

#[kernel(op = "a", op = "b")]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
