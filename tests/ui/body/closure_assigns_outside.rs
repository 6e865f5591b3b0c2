use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let mut total = 0.0;
    x.row(i).for_each(|v| total += v);
    y.row(i).write(x.row(i).map(|v| v / total));
}

fn main() {}
