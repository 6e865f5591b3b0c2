use max::kernel::prelude::*;

#[kernel(op = "ui", tile(BM = 8), grid(4))]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
