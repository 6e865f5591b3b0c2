use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let mut y = x;
    for _ in 0..=3 {
        y += x;
    }
    y
}

fn main() {}
