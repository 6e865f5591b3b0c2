use max::kernel::prelude::*;

struct Point {
    x: f32,
    y: f32,
}

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let p = Point { x, y: x };
    p.y
}

fn main() {}
