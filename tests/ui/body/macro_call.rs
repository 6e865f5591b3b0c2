use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    println!("{x}");
    assert!(x > 0.0);
    let v = vec![x];
    x
}

fn main() {}
