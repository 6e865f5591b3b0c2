use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: In<f32, 1>) {
    let _ = x.dim(0);
}

fn main() {}
