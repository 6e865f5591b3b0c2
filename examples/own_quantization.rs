//! A weight format of one's own: ternary weights, of which five are in a byte, with its kernels. `Linear` takes it as it takes the
//! library's own formats.
use std::error::Error;

use max::graph::quantization::{BlockParameters, CustomEncoding, QuantizationEncoding};
use max::nn::{Forward, Linear};
use max::prelude::*;
use max::tensor::Tensor;

/// Digit `i` of five, in base 3: 0, 1 or 2 for -1, 0 or 1.
#[kernel]
fn ternary(byte: u8, i: i64) -> f32 {
    let power = if i == 0 {
        1
    } else if i == 1 {
        3
    } else if i == 2 {
        9
    } else if i == 3 {
        27
    } else {
        81
    };
    ((byte as i32) / power % 3 - 1) as f32
}

/// The elements of rows of bytes.
#[kernel(op = "dequantize_ternary")]
fn dequantize_ternary(y: Out<f32, 2>, blocks: In<u8, 2>) {
    let n = program_id(0);
    let row = blocks.row(n);
    y.row(n).write(row.repeat_each::<5>().enumerate().map(|(byte, i)| ternary(byte, i % 5)));
}

/// `y = blocks · xᵀ`: a program multiplies a row of weights with all rows of `x`.
#[kernel(op = "qmatmul_ternary")]
fn qmatmul_ternary(y: Out<f32, 2>, blocks: In<u8, 2>, x: In<f32, 2>) {
    let n = program_id(0);
    let weights = blocks.row(n).repeat_each::<5>().enumerate();
    for m in 0..x.dim(0) {
        y.row(n).set(m, weights.zip(x.row(m)).map(|((byte, i), x)| ternary(byte, i % 5) * x).sum());
    }
}

static TERNARY: CustomEncoding = CustomEncoding {
    name: "ternary",
    block_parameters: BlockParameters { elements_per_block: 5, block_size: 1 },
    dequantize_kernel: "dequantize_ternary",
    qmatmul_kernel: "qmatmul_ternary",
    quantize: |elements| {
        let digit = |x: &f32| if *x > 0.5 { 2 } else { u8::from(*x >= -0.5) };
        elements.chunks_exact(5).map(|five| five.iter().rev().fold(0, |byte, x| byte * 3 + digit(x))).collect()
    },
    dequantize: |blocks| {
        let digits = |byte: u8| [1, 3, 9, 27, 81].map(|power| f32::from(byte / power % 3) - 1.0);
        blocks.iter().flat_map(|byte| digits(*byte)).collect()
    },
};

fn main() -> Result<(), Box<dyn Error>> {
    let (rows, columns) = (64, 320);
    let weights: Vec<f32> = (0..rows * columns).map(|i| ((i * 7 + i / 11) % 3) as f32 - 1.0).collect();
    let encoding = QuantizationEncoding::Custom(&TERNARY);
    let blocks = Tensor::from_slice(&encoding.quantize(&weights), [rows, columns / 5])?;
    println!("{} weights in {} bytes", weights.len(), rows * columns / 5);

    let packed = Linear::quantized(blocks, encoding);
    let dense = Linear::of(Tensor::from_slice(&weights, [rows, columns])?);
    let x = max::random::normal([3, columns], 0.0, 1.0)?;
    let (found, expected) = (packed.forward(&x)?.to_vec::<f32>()?, dense.forward(&x)?.to_vec::<f32>()?);
    let largest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("products differ by at most {largest:e} from those of the elements");
    assert!(largest < 1e-4);

    // In a graph too, compiled once.
    let model = packed.compile(&TensorType::new(DType::F32, ("rows", columns), DeviceRef::CPU))?;
    assert_eq!(model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?, found);
    Ok(())
}
