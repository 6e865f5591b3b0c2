//! A product of a 4-bit matrix and a vector: weights are unpacked in lane code and never stand in memory.
use max::prelude::*;

/// `y = w · x`. In `w`, 32 weights are a scale of 16 bits and 16 bytes: the low halves of all, less 8, then the high ones.
#[kernel(op = "quantized_matvec")]
fn quantized_matvec(y: Out<f32, 1>, w: In<u8, 2>, x: In<f32, 1>) {
    let i = program_id(0);
    let w = w.row(i);
    let blocks = w.len() / 18;
    let scales = w.numbers::<f16>(0, [(blocks, 18)]).repeat_each::<16>();
    let bytes = w.segments::<16>(2, [(blocks, 18)]);
    let low = x.segments::<16>(0, [(blocks, 32)]);
    let high = x.segments::<16>(16, [(blocks, 32)]);
    let products = (bytes, scales, low, high).map(|(byte, scale, a, b)| {
        let (low, high) = ((byte & 15) as i32 - 8, (byte >> 4) as i32 - 8);
        scale as f32 * (low as f32 * a + high as f32 * b)
    });
    y.set(i, products.sum());
}

/// Multiplies on a device, and checks the result by the definition. Gives the seconds of an execution.
pub fn run(device: &Device, rows: usize, columns: usize) -> max::Result<f64> {
    let (place, blocks) = (DeviceRef::from(device), columns / 32);
    let ty = |dtype: DType, shape: &[i64]| TensorType::new(dtype, shape, place);
    let (w, x) = (ty(DType::U8, &[rows as i64, 18 * blocks as i64]), ty(DType::F32, &[columns as i64]));
    let graph = Graph::build("matvec", [w, x], |_, inputs| {
        ops::custom("quantized_matvec", place, inputs, ty(DType::F32, &[rows as i64]), ())
    })?;
    let mut w: Vec<u8> = (0..rows * blocks * 18).map(|i| ((i * 2_654_435_761) >> 9) as u8).collect();
    w.chunks_mut(18).for_each(|block| block[1] = 36); // Scales of about 1/64.
    let x: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.7).sin()).collect();
    let operands =
        [Tensor::from_slice(&w, [rows, 18 * blocks])?.to(device)?, Tensor::from_slice(&x, [columns])?.to(device)?];
    let model = InferenceSession::with_devices([*device]).load(&graph)?;
    let y = model.execute(&operands)?.remove(0).to(&Device::cpu())?.to_vec::<f32>()?;
    let mut seconds = f64::INFINITY;
    for _ in 0..9 {
        let begin = std::time::Instant::now();
        model.execute(&operands)?;
        seconds = seconds.min(begin.elapsed().as_secs_f64());
    }
    for (row, y) in w.chunks(18 * blocks).zip(y) {
        let weight = |j: usize| {
            let (block, byte) = (&row[j / 32 * 18..], row[j / 32 * 18 + 2 + j % 16]);
            let number = if j % 32 < 16 { byte & 15 } else { byte >> 4 };
            f16::from_le_bytes([block[0], block[1]]).to_f64() * (f64::from(number) - 8.0)
        };
        let exact: f64 = x.iter().enumerate().map(|(j, x)| weight(j) * f64::from(*x)).sum();
        assert!((f64::from(y) - exact).abs() < 1e-3, "{y} is not {exact}");
    }
    Ok(seconds)
}

fn main() -> max::Result<()> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4096);
    let (seconds, bytes) = (run(&Device::cpu(), n, n)?, n * n / 32 * 18);
    println!("{n} x {n} weights of 4 bits in {:.3} ms: {:.1} GB/s", 1e3 * seconds, bytes as f64 / seconds / 1e9);
    Ok(())
}
