use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    match x {
        _ => x,
    }
}

fn main() {}
