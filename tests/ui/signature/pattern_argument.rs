use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui((a, b): (f32, f32)) -> f32 {
    a + b
}

fn main() {}
