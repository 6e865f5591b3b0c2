use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f64) -> f64 {
    x as f32
}

fn main() {}
