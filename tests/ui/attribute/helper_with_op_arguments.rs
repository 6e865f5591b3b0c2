use max::kernel::prelude::*;

#[kernel(tile(BM = 8), grid(4))]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
