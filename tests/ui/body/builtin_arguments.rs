use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    select(x > 0.0, x)
}

fn main() {}
