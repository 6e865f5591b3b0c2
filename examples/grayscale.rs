//! A color picture becomes gray: each program computes one row of the result.
use std::{error::Error, fs::File, io::BufReader};

use max::prelude::*;

/// The brightness of a picture of red, green and blue, by the weights of Rec. 601.
#[kernel(op = "grayscale")]
fn grayscale(gray: Out<u8, 2>, image: In<u8, 3>) {
    let row = program_id(0);
    gray.row(row).write(lanes(gray.dim(1)).map(|column| {
        let r = image.at([row as i64, column, 0]) as f32;
        let g = image.at([row as i64, column, 1]) as f32;
        let b = image.at([row as i64, column, 2]) as f32;
        (0.299 * r + 0.587 * g + 0.114 * b).round_ties_even() as u8
    }));
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut reader =
        png::Decoder::new(BufReader::new(File::open(format!("{root}/examples/assets/valley.png"))?)).read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().ok_or("the picture is too large")?];
    let info = reader.next_frame(&mut pixels)?;
    let image = Tensor::from_vec(pixels, [info.height as usize, info.width as usize, 3])?;

    let color = TensorType::new(DType::U8, ("height", "width", 3), DeviceRef::CPU);
    let gray = TensorType::new(DType::U8, ("height", "width"), DeviceRef::CPU);
    let graph =
        Graph::build("grayscale", [color], |_, inputs| ops::custom("grayscale", DeviceRef::CPU, inputs, gray, ()))?;
    let gray = InferenceSession::new().load(&graph)?.execute(&image)?.remove(0);

    std::fs::create_dir_all(format!("{root}/target"))?;
    let path = format!("{root}/target/grayscale.png");
    png::Encoder::new(File::create(&path)?, info.width, info.height)
        .write_header()?
        .write_image_data(gray.as_slice()?)?;
    println!("written to {path}");

    for (rgb, y) in image.as_slice::<u8>()?.chunks(3).zip(gray.as_slice::<u8>()?) {
        let exact = 0.299 * f64::from(rgb[0]) + 0.587 * f64::from(rgb[1]) + 0.114 * f64::from(rgb[2]);
        assert!((f64::from(*y) - exact).abs() < 0.501, "{rgb:?} became {y}");
    }
    Ok(())
}
