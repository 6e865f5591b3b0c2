use max::prelude::*;

#[kernel]
fn whole(x: i32) -> i32 {
    x.pow(x)
}

fn main() {}
