use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    fn inner(x: f32) -> f32 {
        x
    }
    inner(x)
}

fn main() {}
