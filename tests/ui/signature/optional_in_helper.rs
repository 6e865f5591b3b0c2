use max::kernel::prelude::*;

#[kernel]
fn helper(x: Option<In<f32, 1>>) -> f32 {
    0.0
}

fn main() {}
