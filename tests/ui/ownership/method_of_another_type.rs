use max::kernel::lang::{self, Target};
use max::kernel::prelude::*;

trait Other<M: Target>: Copy {
    fn columns<const N: usize>(self, _: lang::ProgramId<M>) -> Self {
        self
    }
    fn write_other_scan(self, _: lang::Val<M, f32>) {}
}
impl<M: Target> Other<M> for lang::Owned<M, f32, 1> {}
impl<M: Target> Other<M> for lang::Buffer<M, f32, 2> {}

#[kernel(op = "ui_row")]
fn of_a_row(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.row(i).write_other_scan(x.at(i, 0));
}

#[kernel(op = "ui_buffer")]
fn of_a_buffer(y: &mut Buffer<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    y.columns::<64>(i).write(x.row(i));
}

#[kernel(op = "ui_vector")]
fn of_a_vector(y: Out<f32, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    y.row(i).write(x);
}

fn main() {}
