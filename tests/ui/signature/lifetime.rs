use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui<'a>(x: &'a mut f32) {
    x
}

fn main() {}
