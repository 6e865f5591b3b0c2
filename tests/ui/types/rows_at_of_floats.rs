use max::prelude::*;

#[kernel(op = "rows_at_of_floats", tile(R = 4, C = 8))]
fn rows_at_of_floats(y: Out<f32, 2>, x: In<f32, 2>, rows: In<f32, 1>) {
    let i = program_id(0);
    y.rows::<R, C>(i).write(x.rows_at::<R, C>(rows.block::<R>(i), 0));
}

fn main() {}
