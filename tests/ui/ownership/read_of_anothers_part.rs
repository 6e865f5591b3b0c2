use max::kernel::prelude::*;

#[kernel(op = "ui_columns")]
fn columns(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
    y.row(i).set(0, y.column(i).at(1));
}

#[kernel(op = "ui_shared")]
fn shared(state: &mut Buffer<f32, 2>, x: In<f32, 2>) {
    let [i, j] = program_id();
    let old = state.row(i).read().sum();
    state.tile::<8, 8>(i, j).write(x.tile::<8, 8>(i, j).load().map(|v| v + old));
}

fn main() {}
