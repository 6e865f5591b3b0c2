use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    x.checked()?
}

fn main() {}
