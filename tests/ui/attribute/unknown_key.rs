use max::kernel::prelude::*;

#[kernel(op = "ui", tiel(BM = 8))]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
