use max::prelude::*;

#[kernel(op = "grid_of_a_float", grid(x.dim(0) * part))]
fn grid_of_a_float(y: Out<f32, 1>, x: In<f32, 1>, #[param] part: f64) {
    let i = program_id(0);
    y.set(i, x.at(i) * part as f32);
}

fn main() {}
