use max::kernel::prelude::*;

#[kernel(op = "ui")]
fn ui(y: Out<f32, 2>, x: In<f32, 2>, bias: Option<In<f64, 1>>) {
    let i = program_id(0);
    if let Some(bias) = bias {
        y.row(i).write(x.row(i).zip(bias).map(|(x, b)| x + b));
    }
}

fn main() {}
