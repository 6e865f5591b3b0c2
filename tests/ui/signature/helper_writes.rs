use max::kernel::prelude::*;

#[kernel]
fn ui(y: Out<f32, 1>) {
    y.scatter(0, 1.0);
}

fn main() {}
