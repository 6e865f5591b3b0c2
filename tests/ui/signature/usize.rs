use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32, #[param] n: usize) -> f32 {
    x
}

fn main() {}
