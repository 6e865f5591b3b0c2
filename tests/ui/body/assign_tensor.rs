use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    y = x;
}

fn main() {}
