use max::kernel::prelude::*;

#[kernel(op = "ui_rows")]
fn rows(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui_tiles")]
fn tiles(y: Out<f32, 2>, z: Out<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    rows(y, x);
    z.tile::<8, 8>(i, j).write(x.tile::<8, 8>(i, j).load());
}

fn main() {}
