use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32, y: f64) -> f32 {
    x + y
}

fn main() {}
