use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, z: Option<Out<f32, 2>>, x: In<f32, 2>) {
    y.row(program_id(0)).write(x.row(program_id(0)));
}

fn main() {}
