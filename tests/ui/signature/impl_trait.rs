use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: impl Float) -> f32 {
    x
}

fn main() {}
