use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(
    x: f32,
    #[param(default = 300)] a: u8,
    #[param(default = -1e300)] f: f32,
    #[param(default = "yes")] b: bool,
    #[param(default = "gelu", choices("none", "tanh"))] c: &str,
    #[param(default = 1 + 1)] d: i64,
    #[param(defualt = 1)] e: i64,
) -> f32 {
    x
}

fn main() {}
