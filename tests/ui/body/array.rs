use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let a = [x, x];
    let b = [0.0; 4];
    x
}

fn main() {}
