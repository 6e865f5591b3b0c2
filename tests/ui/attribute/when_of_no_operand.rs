use max::kernel::prelude::*;

#[kernel(op = "ui", tile(BM = 8, when(z.dim(0) <= 4, BM = 4)))]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let m = program_id(0);
    y.rows::<BM, 64>(m).write(x.tile::<BM, 64>(m, 0).load());
}

fn main() {}
