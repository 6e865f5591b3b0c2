use max::kernel::prelude::*;

#[kernel("ui")]
fn ui(x: f32) -> f32 {
    x
}

fn main() {}
