use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let double = |v| v * 2.0;
    double(x)
}

fn main() {}
