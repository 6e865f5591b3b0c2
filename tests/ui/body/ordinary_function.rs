use max::kernel::prelude::*;

fn double(x: f32) -> f32 {
    x * 2.0
}

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    double(x)
}

fn main() {}
