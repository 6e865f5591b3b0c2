use max::prelude::*;

#[kernel(op = "first_of_tile", tile(R = 4, C = 8))]
fn first_of_tile(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    let t = x.tile::<R, C>(i, j).load();
    y.tile::<R, C>(i, j).write(t.map(|v| v - t.element(0, 0)));
}

fn main() {}
