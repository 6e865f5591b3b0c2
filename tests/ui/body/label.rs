use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let mut i = 0;
    'outer: while i < 3 {
        i += 1;
    }
    x
}

fn main() {}
