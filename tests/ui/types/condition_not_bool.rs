use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    if x { x } else { 0.0 }
}

fn main() {}
