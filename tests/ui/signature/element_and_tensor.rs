use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 1>, scale: f32) {
    let i = program_id(0);
    y.set(i, scale);
}

fn main() {}
