use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: bf61) -> f32 {
    x
}

fn main() {}
