use max::kernel::prelude::*;

#[kernel(op = "ui")]
#[inline]
async unsafe fn ui(x: f32) -> f32 {
    x
}

fn main() {}
