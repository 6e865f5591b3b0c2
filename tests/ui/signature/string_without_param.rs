use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32, mode: &str) -> f32 {
    if mode == "a" { x } else { 0.0 }
}

fn main() {}
