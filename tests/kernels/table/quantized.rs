//! Weights in blocks of small integers, and 8-bit floats with a scale a row.

use max::graph::quantization::QuantizationEncoding;

use super::matrices::{multiplications, product};
use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// The elements of the rows of packed weights, an operand; those of an encoding are all that the host decodes.
fn elements(p: &Problem, operand: usize, encoding: QuantizationEncoding) -> Vec<f64> {
    let (bytes, row) = (p.floats(operand), p.dims(operand)[1] as usize);
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
    let rows = bytes.chunks_exact(row.max(1));
    rows.flat_map(|row| encoding.dequantize(row)).map(f64::from).collect()
}

fn dequantize(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    vec![elements(p, 1, encoding).into_iter().map(|value| Want::exact(Num::Float(value))).collect()]
}

fn qmatmul(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    let [n, m, k] = [p.dims(1)[0], p.dims(2)[0], p.dims(2)[1]].map(|d| d as usize);
    let (weights, x) = (elements(p, 1, encoding), p.floats(2));
    let columns: Vec<f64> = (0..k * m).map(|i| x[i % m * k + i / m]).collect();
    vec![product(&weights, &columns, [n, k, m])]
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
                    vec![vec![s[0], s[1]], vec![s[0], bytes], vec![s[1], elements]]
                },
                |p| qmatmul(p, QuantizationEncoding::$encoding),
            )
            .reduces()
            .ulps(1.0)
            .work(|shapes| multiplications(&[shapes[0].clone(), shapes[2].clone(), shapes[1].clone()]))
            .values(&[BYTES, Values::Within(-2.0, 2.0)])
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
