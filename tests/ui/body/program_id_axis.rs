use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(3);
    let j = program_id();
    y.row(i).write(x.row(i));
}

fn main() {}
