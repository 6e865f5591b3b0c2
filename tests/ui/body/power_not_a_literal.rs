use max::prelude::*;

#[kernel]
fn power(x: f32, n: i64) -> f32 {
    x.powi(n)
}

#[kernel]
fn whole(x: i32) -> i32 {
    x.pow(x)
}

fn main() {}
