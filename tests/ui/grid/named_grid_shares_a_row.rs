use max::kernel::prelude::*;

#[kernel(op = "ui", grid(y.dim(0), 64))]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    y.row(i).write(x.row(i).map(|v| v + (j as f32)));
}

fn main() {}
