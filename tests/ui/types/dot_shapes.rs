use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    let acc = Tile::<f32, 8, 8>::zeros();
    y.tile::<8, 8>(i, j).write(dot(x.tile::<8, 16>(i, 0), x.tile::<8, 8>(0, j), acc));
}

fn main() {}
