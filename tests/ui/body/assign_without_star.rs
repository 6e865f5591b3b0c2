use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: &mut f32) {
    x = 1.0;
}

fn main() {}
