//! A picture computed from nothing but parameters: the op has no inputs and writes its result row by row.
use std::{error::Error, fs::File};

use max::prelude::*;

/// How often `z = z² + c` can be repeated, starting from 0, before `z` leaves the circle of radius 2.
#[kernel]
fn iterations(re: f32, im: f32, limit: i32) -> i32 {
    let mut x = 0.0;
    let mut y = 0.0;
    let mut n = 0;
    while n < limit && x * x + y * y <= 4.0 {
        let next = x * x - y * y + re;
        y = 2.0 * x * y + im;
        x = next;
        n += 1;
    }
    n
}

/// The Mandelbrot set: the part of the plane whose upper left corner is `(left, top)`, in steps of `step`.
#[kernel(op = "mandelbrot")]
fn mandelbrot(out: Out<i32, 2>, #[param] left: f32, #[param] top: f32, #[param] step: f32, #[param] limit: i32) {
    let row = program_id(0); // each program computes one row
    let im = top + row as f32 * step;
    out.row(row).write(lanes(out.dim(1)).map(|column| iterations(left + column as f32 * step, im, limit)));
}

fn main() -> Result<(), Box<dyn Error>> {
    const LIMIT: i32 = 200;
    let ty = TensorType::new(DType::I32, (480, 640), DeviceRef::CPU);
    let view = Parameters::new().with("left", -2.1).with("top", -1.2).with("step", 0.005).with("limit", LIMIT);
    let graph = Graph::build("mandelbrot", (), |graph, _| graph.custom("mandelbrot", DeviceRef::CPU, (), ty, view))?;
    let start = std::time::Instant::now();
    let counts = InferenceSession::new().load(&graph)?.execute(())?.remove(0);
    println!("computed in {:.1?}", start.elapsed());

    let gray: Vec<u8> = counts.iter::<i32>()?.map(|n| if n == LIMIT { 0 } else { (n * 12).min(255) as u8 }).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/target");
    std::fs::create_dir_all(folder)?;
    let path = format!("{folder}/mandelbrot.png");
    png::Encoder::new(File::create(&path)?, 640, 480).write_header()?.write_image_data(&gray)?;
    println!("written to {path}");

    // -0.1 belongs to the set, and 0.999 leaves it after its second step.
    assert_eq!(counts.select(0, 240)?.select(0, 400)?.item::<i32>()?, LIMIT);
    assert_eq!(counts.select(0, 0)?.select(0, 0)?.item::<i32>()?, 1);
    Ok(())
}
