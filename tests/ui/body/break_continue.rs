use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: f32) -> f32 {
    let mut i = 0;
    while i < 10 {
        if x > 1.0 {
            break;
        }
        i += 1;
        continue;
    }
    x
}

fn main() {}
