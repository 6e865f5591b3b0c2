use max::kernel::prelude::*;

#[kernel]
fn first<T: Float>(x: In<T, 1>) -> T {
    x.at(0)
}

#[kernel(op = "ui_block")]
fn of_a_block(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let row = { y.row(i) };
    row.write(x.row(i));
}

#[kernel(op = "ui_choice")]
fn of_a_choice(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let row = if x.at(0, 0) > 0.0 { y.row(i) } else { y.row(i) };
    row.write(x.row(i));
}

#[kernel(op = "ui_tuple")]
fn in_a_tuple(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let both = (y.row(i), x.row(i));
    both.0.write(both.1);
}

#[kernel(op = "ui_argument")]
fn as_an_argument(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let own = y.row(i);
    own.write(x.row(i));
    y.row(i).set(0, first(own));
}

#[kernel(op = "ui_lanes")]
fn beside_lanes(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i).zip(y.row(i)).map(|(a, b)| a + b));
}

#[kernel(op = "ui_print")]
fn printed(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
    print("row", y);
}

fn main() {}
