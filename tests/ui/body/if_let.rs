use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    if let y = x { y } else { x }
}

fn main() {}
