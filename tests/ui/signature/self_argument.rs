use max::kernel::prelude::*;

struct Model;

impl Model {
    #[kernel(op = "ui")]
    fn ui(&self, x: f32) -> f32 {
        x
    }
}

fn main() {}
