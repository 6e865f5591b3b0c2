use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>, mask: Option<In<f32, 2>>) {
    let i = program_id(0);
    if let None = mask {
        y.row(i).write(x.row(i));
    }
}

fn main() {}
