use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 1>, x: In<f32, 1>) -> f32 {
    x.sum()
}

fn main() {}
