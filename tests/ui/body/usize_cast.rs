use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    x + (x as usize) as f32
}

fn main() {}
