use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let f = async { x };
    f.await
}

fn main() {}
