use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let mut y = x;
    for i in (0..3).rev() {
        y += i as f32;
    }
    y
}

fn main() {}
