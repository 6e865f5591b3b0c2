use max::prelude::*;

#[kernel(op = "item_of_several", tile(R = 4))]
fn item_of_several(y: Out<f32, 2>, x: In<f32, 2>) {
    let i = program_id(0);
    let sums = x.tile::<R, 8>(i, 0).load().row_sum();
    y.row(i).set(0, sums.item());
}

fn main() {}
