use max::kernel::prelude::*;

#[kernel(op = "ui", tile(BM))]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    y.tile::<BM, 8>(i, j).write(x.tile::<BM, 8>(i, j).load());
}

fn main() {}
