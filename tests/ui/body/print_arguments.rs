use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    print(x.row(i).sum());
    print(i, x.row(i).sum());
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui2")]
fn ui2(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    print("row", x.row(i));
    y.row(i).write(x.row(i));
}

fn main() {}
