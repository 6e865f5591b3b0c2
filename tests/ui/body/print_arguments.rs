use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    print(x);
    print(x, x);
    x
}

fn main() {}
