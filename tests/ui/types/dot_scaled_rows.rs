use max::prelude::*;

#[kernel(op = "scaled_rows")]
fn scaled_rows(y: Out<f32, 2>, w: In<u8, 2>, s: In<f32, 2>, x: In<u8, 2>, t: In<f32, 2>) {
    let [i, j] = program_id();
    let rows = ScaledTile::<4, 64, 2>::from_rows(|r| w.row(r).words::<8>(0, [(2, 32)]));
    let acc = Tile::<f32, 4, 8>::zeros();
    y.tile::<4, 8>(i, j).write(dot_scaled(rows, x.tile::<8, 64>(j, 0).t(), t.tile::<8, 2>(j, 0).t(), acc));
}

fn main() {}
