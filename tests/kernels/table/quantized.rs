//! Weights in blocks of small integers, and 8-bit floats with a scale a row.

use max::graph::quantization::QuantizationEncoding;

use super::matrices::{multiplications, product};
use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// The elements of the rows of packed weights, an operand; those of an encoding are all that the host decodes.
pub fn elements(p: &Problem, operand: usize, encoding: QuantizationEncoding) -> Vec<f64> {
    let (bytes, row) = (p.floats(operand), p.dims(operand)[1] as usize);
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
    let rows = bytes.chunks_exact(row.max(1));
    rows.flat_map(|row| encoding.dequantize(row)).map(f64::from).collect()
}

fn dequantize(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    // An offset makes -0 to 0.
    let has_offsets = minima(p, encoding).iter().any(|least| *least != 0.0);
    let value = |value: f64| Want::exact(Num::Float(if has_offsets { value + 0.0 } else { value }));
    vec![elements(p, 1, encoding).into_iter().map(value).collect()]
}

/// The product with the activations that integers and scales stand for.
fn qmatmul(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    let [n, m, k] = [p.dims(1)[0], p.dims(2)[0], p.dims(2)[1]].map(|d| d as usize);
    let (weights, q, scales, size) =
        (elements(p, 1, encoding), p.floats(2), p.floats(3), encoding.elements_per_block());
    let x: Vec<f64> = (0..m * k).map(|i| f64::from(q[i] as u8 as i8) * scales[i / size]).collect();
    let columns: Vec<f64> = (0..k * m).map(|i| x[i % m * k + i / m]).collect();
    let minima = minima(p, encoding);
    // What is added and taken away again has its rounding too.
    let more = |(i, Want { value, scale }): (usize, Want)| {
        let least = (0..k).map(|l| minima[(i / m * k + l) / 16] * x[i % m * k + l].abs()).sum::<f64>();
        Want { value, scale: scale + 2.0 * least }
    };
    vec![product(&weights, &columns, [n, k, m]).into_iter().enumerate().map(more).collect()]
}

/// What is subtracted from the elements of each 16: what blocks hold whose integers are 0.
fn minima(p: &Problem, encoding: QuantizationEncoding) -> Vec<f64> {
    let bytes: Vec<u8> = p.floats(1).into_iter().map(|byte| byte as u8).collect();
    let heads = bytes.chunks_exact(encoding.block_size()).flat_map(|block| {
        let mut block = block.to_vec();
        match encoding {
            QuantizationEncoding::Q4_0 => block[2..].fill(0),
            QuantizationEncoding::Q4_K | QuantizationEncoding::Q5_K => block[16..].fill(0),
            QuantizationEncoding::Q6_K => block[..192].fill(0),
            _ => block.fill(0),
        }
        encoding.dequantize(&block)
    });
    heads.step_by(16).map(|x| f64::from(x).abs()).collect()
}

/// Blocks of 8 bits: integers and scales, as `f32` computes them.
fn quantize(p: &Problem, size: usize) -> Vec<Vec<Want>> {
    let x: Vec<f32> = p.floats(2).into_iter().map(|x| x as f32).collect();
    let (mut integers, mut scales) = (Vec::new(), Vec::new());
    for block in x.chunks(size) {
        let largest = block.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        scales.push(Want::exact(Num::Float((largest * (1.0 / 127.0)).into())));
        integers.extend(block.iter().map(|x| (x * inverse).round_ties_even() as i8 as u8));
    }
    vec![integers.into_iter().map(|q| Want::exact(Num::Int(q.into()))).collect(), scales]
}

/// The product with a transpose, times the scales of rows.
fn scaled(p: &Problem) -> Vec<Vec<Want>> {
    let [m, k, n] = [p.dims(1)[0], p.dims(1)[1], p.dims(2)[0]].map(|d| d as usize);
    let (a, rows, of_a, of_b) = (p.floats(1), p.floats(2), p.floats(3), p.floats(4));
    let b: Vec<f64> = (0..k * n).map(|i| rows[i % n * k + i / n]).collect();
    let scaled = |(i, Want { value, scale }): (usize, Want)| {
        let factor = of_a[i / n] * of_b[i % n];
        Want { value: Num::Float(value.float() * factor), scale: scale * factor.abs() }
    };
    vec![product(&a, &b, [m, k, n]).into_iter().enumerate().map(scaled).collect()]
}

/// The shapes of blocks of 8 bits, and of what was quantized.
fn quantized_rows(s: &[i64], size: i64) -> Vec<Vec<i64>> {
    let (blocks, k) = (s[1] % 9, s[1] % 9 * size);
    vec![vec![s[0], k], vec![s[0], blocks], vec![s[0], k]]
}

/// All rows of weights are whole blocks; scales have bits of halves that are finite.
const BYTES: Values = Values::Within(0.0, 123.0);

macro_rules! encodings {
    ($($encoding:ident $dequantize:literal $qmatmul:literal $most:literal;)*) => {
        vec![$(
            Case::program(
                $dequantize,
                |s| {
                    let (encoding, blocks) = (QuantizationEncoding::$encoding, s[1] % $most);
                    let [elements, bytes] = [encoding.elements_per_block(), encoding.block_size()].map(|n| blocks * n as i64);
                    vec![vec![s[0], elements], vec![s[0], bytes]]
                },
                |p| dequantize(p, QuantizationEncoding::$encoding),
            )
            .values(&[BYTES]),
            Case::program(
                $qmatmul,
                |s| {
                    let (encoding, blocks) = (QuantizationEncoding::$encoding, s[2] % $most);
                    let [elements, bytes] = [encoding.elements_per_block(), encoding.block_size()].map(|n| blocks * n as i64);
                    vec![vec![s[0], s[1]], vec![s[0], bytes], vec![s[1], elements], vec![s[1], blocks]]
                },
                |p| qmatmul(p, QuantizationEncoding::$encoding),
            )
            .reduces()
            .ulps(2.0)
            .work(|shapes| multiplications(&[shapes[0].clone(), shapes[2].clone(), shapes[1].clone()]))
            .values(&[BYTES, BYTES, Values::Within(-2.0, 2.0)])
            // The last one has several programs along both axes of a GPU's grid, and little to multiply.
            .sizes([[33, 1, 3, 1, 0], [17, 8, 2, 1, 0], [5, 9, 1, 1, 0], [70, 130, 20, 1, 0]]),
        )*]
    };
}

pub fn cases() -> Vec<Case> {
    let mut cases = encodings! {
        Q4_0 "dequantize_q4_0" "qmatmul_q4_0" 20;
        Q8_0 "dequantize_q8_0" "qmatmul_q8_0" 20;
        Q4_K "dequantize_q4_k" "qmatmul_q4_k" 4;
        Q5_K "dequantize_q5_k" "qmatmul_q5_k" 4;
        Q6_K "dequantize_q6_k" "qmatmul_q6_k" 4;
    };
    let values = [Values::Within(-2.0, 2.0)];
    cases.push(Case::program("quantize_q8_32", |s| quantized_rows(s, 32), |p| quantize(p, 32)).values(&values));
    cases.push(Case::program("quantize_q8_256", |s| quantized_rows(s, 256), |p| quantize(p, 256)).values(&values));
    cases.push(
        Case::program(
            "matmul_dynamic_scaled_float8",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![s[1], s[2]], vec![s[0]], vec![s[1]]],
            scaled,
        )
        .reduces()
        .ulps(1.0)
        .work(multiplications)
        .values(&[Values::Within(-2.0, 2.0)]),
    );
    cases
}
