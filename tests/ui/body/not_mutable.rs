use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let y = x;
    y += 1.0;
    y
}

fn main() {}
