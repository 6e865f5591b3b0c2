use max::prelude::*;

#[kernel(op = "dot_right", tile(R = 4, K = 8, C = 16))]
fn dot_right(y: Out<f32, 2>, a: In<f32, 2>, b: In<f32, 1>) {
    let [i, j] = program_id();
    let acc = Tile::<f32, R, C>::zeros();
    y.tile::<R, C>(i, j).write(dot(a.tile::<R, K>(i, 0), b, acc));
}

fn main() {}
