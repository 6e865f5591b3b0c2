use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 1>, x: In<f32, 2>) {
    let i = program_id(0);
    y.set(i, x.at(i, 0, 1) + x.at([i]));
}

fn main() {}
