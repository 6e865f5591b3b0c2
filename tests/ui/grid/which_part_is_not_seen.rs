use max::kernel::prelude::*;

#[kernel(op = "ui", grid(x.dim(0), x.dim(0)))]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    let row = if x.at(0, 0) > 0.0 { y.row(i) } else { y.row(j) };
    row.set(0, 1.0);
}

fn main() {}
