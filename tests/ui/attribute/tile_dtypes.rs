use max::kernel::prelude::*;

#[kernel(op = "ui", tile(BM = 8, v4(T = [f32], BM = 64)))]
fn of_a_cpu<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", tile(BM = 8, sm_90a(U = [f32], BM = 64)))]
fn unknown<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", tile(BM = 8, sm_90a(T = [f33], BM = 64)))]
fn no_dtype<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", tile(BM = 8, sm_90a(T = [], BM = 64)))]
fn of_none<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

#[kernel(op = "ui", dtypes(T = [f32, bf16]), tile(BM = 8, sm_90a(T = [bf16, f16, i8], BM = 64)))]
fn of_others<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.row(i).write(x.row(i));
}

fn main() {}
