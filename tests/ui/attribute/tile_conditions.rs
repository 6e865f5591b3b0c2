use max::kernel::prelude::*;

#[kernel(op = "ui", tile(BM = 8, v4(x.dim(0) <= 8, BM = 4)))]
fn of_a_cpu<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", tile(BM = 8, gpu(z.dim(0) <= 8, BM = 4)))]
fn of_no_operand<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", tile(BM = 8, gpu(x.dim(2) <= 8, BM = 4)))]
fn of_no_dimension<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

fn main() {}
