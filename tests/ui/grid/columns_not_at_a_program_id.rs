use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.columns::<64>(i + 1).write(x.columns::<64>(i));
}

fn main() {}
