use max::kernel::prelude::*;

#[kernel]
fn double(x: f32) -> f32 {
    x * 2.0
}

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i).map(double));
}

fn main() {}
