use max::kernel::prelude::*;

#[kernel(op = "ui", grid(x.dim(0)))]
fn ui(y: Out<f32, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    y.atomic_add([0], x.at(i));
}

fn main() {}
