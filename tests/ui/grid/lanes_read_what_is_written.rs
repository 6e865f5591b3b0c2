use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = y.row(program_id(0));
    let next = x.row(program_id(0)).enumerate().map(|(v, i)| v + row.at(i + 1));
    row.write(next);
}

#[kernel(op = "ui_sum")]
fn of_a_sum(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = y.row(program_id(0));
    row.write(x.row(program_id(0)));
    let total = x.row(program_id(0)).enumerate().map(|(v, i)| v + row.at(i)).sum();
    row.write(x.row(program_id(0)).map(|v| v / total));
}

fn main() {}
