//! A product of a 4-bit matrix and a vector of 8 bits: weights are unpacked in lane code, four at a time, and never stand in memory.
use max::prelude::*;

/// `y = w · x`. In `w`, 32 weights are a scale of 16 bits and 16 bytes: the low halves of all, less 8, then the high ones.
/// Row 0 of `x` has what low halves are multiplied with, row 1 the others: integers, of which 32 have one of `scales`.
#[kernel(op = "quantized_matvec")]
fn quantized_matvec(y: Out<f32, 1>, w: In<u8, 2>, x: In<u8, 2>, scales: In<f32, 1>) {
    let i = program_id(0);
    let w = w.row(i);
    let blocks = w.len() / 18;
    let scales = w.numbers::<f16>(0, [(blocks, 18)]).zip(scales).map(|(w, x)| w as f32 * x).repeat_each::<4>();
    let words = w.words::<4>(2, [(blocks, 18)]);
    let (low, high) = (x.row(0).words::<4>(0, [(blocks, 16)]), x.row(1).words::<4>(0, [(blocks, 16)]));
    let (nibbles, eights) = (words.map(|w| w & 0x0f0f_0f0f), words.map(|w| w & 0 | 0x0808_0808));
    let dots = nibbles.dot4(low).zip(words.map(|w| w >> 4 & 0x0f0f_0f0f).dot4(high)).map(|(a, b)| a + b);
    let less = eights.dot4(low).zip(eights.dot4(high)).map(|(a, b)| a + b);
    y.set(i, (dots, less, scales).map(|(dot, less, scale)| (dot - less) as f32 * scale).sum());
}

/// Multiplies on a device, and checks the result by the definition. Gives the seconds of an execution.
pub fn run(device: &Device, rows: usize, columns: usize) -> max::Result<f64> {
    let (place, blocks) = (DeviceRef::from(device), columns / 32);
    let byte = |i: usize| if i % 18 == 1 { 36 } else { ((i * 2_654_435_761) >> 9) as u8 }; // Scales of about 1/64.
    let w: Vec<u8> = (0..rows * blocks * 18).map(byte).collect();
    let (x, scale) = (|i: usize| (i * 389 % 255) as u8, |block: usize| (block % 9) as f32 / 1000.0);
    let half = |first: usize| (0..columns / 2).map(move |i| x(i / 16 * 32 + first + i % 16));
    let operands = [
        Tensor::from_slice(&w, [rows, 18 * blocks])?.to(device)?,
        Tensor::from_slice(&half(0).chain(half(16)).collect::<Vec<_>>(), [2, columns / 2])?.to(device)?,
        Tensor::from_slice(&(0..blocks).map(scale).collect::<Vec<_>>(), [blocks])?.to(device)?,
    ];
    let (types, y) = (operands.each_ref().map(TensorType::from), TensorType::new(DType::F32, [rows], place));
    let graph = Graph::build("matvec", types, |_, x| ops::custom("quantized_matvec", place, x, y, ()))?;
    let model = InferenceSession::with_devices([*device]).load(&graph)?;
    let (mut y, mut seconds) = (Vec::new(), f64::INFINITY);
    for _ in 0..9 {
        let begin = std::time::Instant::now();
        y = model.execute(&operands)?;
        seconds = seconds.min(begin.elapsed().as_secs_f64());
    }
    for (row, y) in w.chunks(18 * blocks).zip(y[0].to(&Device::cpu())?.to_vec::<f32>()?) {
        let term = |j: usize| {
            let (block, byte) = (&row[j / 32 * 18..], row[j / 32 * 18 + 2 + j % 16]);
            let number = if j % 32 < 16 { byte & 15 } else { byte >> 4 };
            let weight = f16::from_le_bytes([block[0], block[1]]).to_f64() * (f64::from(number) - 8.0);
            weight * f64::from(x(j) as i8) * f64::from(scale(j / 32))
        };
        let exact: f64 = (0..columns).map(term).sum();
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
