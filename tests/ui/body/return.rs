use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    if x > 0.0 {
        return x;
    }
    -x
}

fn main() {}
