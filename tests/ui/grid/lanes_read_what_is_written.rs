use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = y.row(program_id(0));
    let next = x.row(program_id(0)).enumerate().map(|(v, i)| v + row.at(i + 1));
    row.write(next);
}

#[kernel(op = "ui_reverse")]
fn reversed(x: &mut Buffer<f32, 2>) {
    let row = x.row(program_id(0));
    row.write(row.read().reverse());
}

#[kernel(op = "ui_next")]
fn next(x: &mut Buffer<f32, 2>) {
    let row = x.row(program_id(0));
    let old = row.read();
    row.write(old.enumerate().map(|(v, i)| v + old.at(i + 1)));
}

#[kernel(op = "ui_sum")]
fn of_a_sum(y: Out<f32, 2>, x: In<f32, 2>) {
    let row = y.row(program_id(0));
    row.write(x.row(program_id(0)));
    let total = x.row(program_id(0)).enumerate().map(|(v, i)| v + row.at(i)).sum();
    row.write(x.row(program_id(0)).map(|v| v / total));
}

#[kernel(op = "ui_scale")]
fn in_place(x: &mut Buffer<f32, 2>) {
    let row = x.row(program_id(0));
    let old = row.read();
    let largest = old.reverse().max();
    row.write(old.enumerate().map(|(v, i)| v / largest + i as f32));
}

fn main() {}
