use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: Buffer<f32, 1>) {
    let i = program_id(0);
    x.set(i, 1.0);
}

fn main() {}
