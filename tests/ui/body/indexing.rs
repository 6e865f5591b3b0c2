use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    y.set(i, x[i]);
}

fn main() {}
