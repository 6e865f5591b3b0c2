use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let y;
    y = x;
    y
}

fn main() {}
