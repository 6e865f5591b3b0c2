use max::kernel::prelude::*;

#[kernel(op = "ui_scatter")]
fn scatter(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
    for j in 0..y.dim(0) {
        y.scatter((j, 0), 7.0);
    }
}

#[kernel(op = "ui_alias")]
fn by_another_name(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let (rows, all) = (y, y);
    x.row(i).for_each(|v| all.scatter((v as i64, 0), v));
    rows.row(i).set(0, 1.0);
}

#[kernel(op = "ui_atomic")]
fn atomic(counts: Out<i32, 2>, x: In<i32, 2>) {
    let i = program_id(0);
    counts.select(i).set(i, 1);
    counts.atomic_add((x.at(i, 0) as i64, 0), 1);
}

#[kernel(op = "ui_read", grid(x.dim(0)))]
fn read(state: &mut Buffer<f32, 1>, x: In<i64, 1>) {
    let i = program_id(0);
    state.scatter(x.at(i), state.at(i));
}

fn main() {}
