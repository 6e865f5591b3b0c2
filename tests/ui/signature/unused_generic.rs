use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<T: Float>(x: f32) -> f32 {
    x
}

fn main() {}
