use max::kernel::prelude::*;

#[kernel(op = "ui", tile(B = 8))]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    y.tile(i, j).write(x.tile::<B, B>(i, j).load());
}

fn main() {}
