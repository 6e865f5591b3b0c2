use max::kernel::prelude::*;

#[kernel(op = "ui", grid(1))]
fn ui(y: Out<f32, 1>, x: In<f32, 1>) {
    for v in x {
        y.scatter(0, v);
    }
}

fn main() {}
