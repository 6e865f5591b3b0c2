//! The main job: an op of your own, written once as a Rust function, run on a picture. An evening landscape has black
//! trees; the op brightens what is dark. Any PNG will do: `cargo run --release --example custom_op -- photo.png`
use std::{error::Error, fs::File, io::BufReader, time::Instant};

use max::prelude::*;

/// Lifts the shadows of a picture with elements from 0 to 1: dark ones become `gain` times as bright, white stays.
#[kernel(op = "lift_shadows")]
fn lift_shadows<T: Float>(x: T, #[param] gain: f64) -> T {
    let gain = gain as T;
    gain * x / (1.0 + (gain - 1.0) * x)
}

fn main() -> Result<(), Box<dyn Error>> {
    let input =
        std::env::args().nth(1).unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/assets/valley.png").into());
    let mut decoder = png::Decoder::new(BufReader::new(File::open(&input)?));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().ok_or("the picture is too large")?];
    let info = reader.next_frame(&mut pixels)?;
    let image = Tensor::from_vec(pixels, [info.height as usize, info.width as usize, info.color_type.samples()])?;

    // A graph says what to compute. Sizes may be symbols: this one serves pictures of any size.
    let ty = TensorType::new(DType::U8, ("height", "width", "channels"), DeviceRef::CPU);
    let graph = Graph::build("brighten", [ty], |_, inputs| {
        let x = ops::cast(&inputs[0], DType::F32)? / 255.0;
        let lifted = ops::custom("lift_shadows", DeviceRef::CPU, &x, x.ty(), [("gain", 4.0)])?;
        ops::cast(ops::round(ops::mul(&lifted[0], 255.0)?)?, DType::U8)
    })?;
    print!("{graph}");

    // The kernels were compiled with this program, so loading a graph takes microseconds.
    let start = Instant::now();
    let model = InferenceSession::new().load(&graph)?;
    println!("loaded in {:.0?}", start.elapsed());
    model.execute(&image)?; // the first run starts the threads
    let start = Instant::now();
    let outputs = model.execute(&image)?;
    println!("{} elements in {:.0?}", image.num_elements(), start.elapsed());

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/target");
    std::fs::create_dir_all(folder)?;
    let output = format!("{folder}/custom_op.png");
    let mut encoder = png::Encoder::new(File::create(&output)?, info.width, info.height);
    encoder.set_color(info.color_type);
    encoder.write_header()?.write_image_data(outputs[0].as_slice()?)?;
    println!("{input}\nbrightened to {output}");

    // The same in plain Rust, to be sure.
    for (x, y) in image.as_slice::<u8>()?.iter().zip(outputs[0].as_slice::<u8>()?) {
        let x = f64::from(*x) / 255.0;
        assert!((f64::from(*y) - 255.0 * 4.0 * x / (1.0 + 3.0 * x)).abs() < 0.51);
    }
    Ok(())
}
