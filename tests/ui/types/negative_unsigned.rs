use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(x: u8) -> u8 {
    -x
}

fn main() {}
