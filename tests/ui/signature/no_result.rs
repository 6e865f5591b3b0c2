use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) {
    let _ = x;
}

fn main() {}
