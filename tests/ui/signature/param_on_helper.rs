use max::kernel::prelude::*;

#[kernel]
fn ui(x: f32, #[param] n: i64) -> f32 {
    x + n as f32
}

fn main() {}
