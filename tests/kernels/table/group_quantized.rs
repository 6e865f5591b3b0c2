//! Weights of folders with GPTQ and 8-bit floats, in groups with a scale each.

use max::graph::quantization::QuantizationEncoding;
use max::kernel::ParamArg;

use super::matrices::{multiplications, product};
use super::quantized::elements;
use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

fn dequantize(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    vec![elements(p, 1, encoding).into_iter().map(|value| Want::exact(Num::Float(value))).collect()]
}

fn qmatmul(p: &Problem, encoding: QuantizationEncoding) -> Vec<Vec<Want>> {
    let [n, m, k] = [p.dims(1)[0], p.dims(2)[0], p.dims(2)[1]].map(|d| d as usize);
    let (weights, x) = (elements(p, 1, encoding), p.floats(2));
    let columns: Vec<f64> = (0..k * m).map(|i| x[i % m * k + i / m]).collect();
    vec![product(&weights, &columns, [n, k, m])]
}

macro_rules! encodings {
    ($($encoding:ident $group:literal $dequantize:literal $qmatmul:literal $most:literal bytes to $largest:literal;)*) => {
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
            .values(&[Values::Within(0.0, $largest)])
            .params(|_| vec![("group", ParamArg::Int($group))]),
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
            .values(&[Values::Within(0.0, $largest), Values::Within(-2.0, 2.0)])
            .params(|_| vec![("group", ParamArg::Int($group))])
            // The last one has several programs along both axes of a GPU's grid, and little to multiply.
            .sizes([[33, 1, 3, 1, 0], [17, 8, 2, 1, 0], [5, 9, 1, 1, 0], [70, 130, 20, 1, 0]]),
        )*]
    };
}

/// All rows are whole blocks, whose scales have bits of numbers with finite products.
pub fn cases() -> Vec<Case> {
    encodings! {
        Gptq32 32 "dequantize_gptq" "qmatmul_gptq" 20 bytes to 123.0;
        Gptq128 128 "dequantize_gptq" "qmatmul_gptq" 7 bytes to 123.0;
        Float8E4M3FN32 32 "dequantize_float8_e4m3fn" "qmatmul_float8_e4m3fn" 20 bytes to 80.0;
        Float8E4M3FN128 128 "dequantize_float8_e4m3fn" "qmatmul_float8_e4m3fn" 7 bytes to 80.0;
    }
}
