use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let n = x.dim(5);
    let row = x.row(i);
    y.row(i).write(row.map(|v| v * (n + row.dim(1)) as f32));
}

fn main() {}
