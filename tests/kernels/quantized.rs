//! Ops on packed weights and on 8-bit floats with scales, against their definitions.

use max::dtype::F8E4M3;
use max::graph::GraphError;
use max::graph::ops;
use max::graph::quantization::{QuantizationConfig, QuantizationEncoding};
use max::prelude::*;

use crate::ops::{numbers, run};
use crate::random::Rng;

/// Blocks of any bits, but with scales that are finite and not so large that sums lose what the tests compare.
fn blocks(encoding: QuantizationEncoding, [rows, count]: [usize; 2], rng: &mut Rng) -> Tensor {
    let size = encoding.block_size();
    let mut bytes: Vec<u8> = (0..rows * count * size).map(|_| rng.bits() as u8).collect();
    let scales: &[usize] = match encoding {
        QuantizationEncoding::Q4_0 | QuantizationEncoding::Q8_0 => &[0],
        QuantizationEncoding::Q6_K => &[208],
        QuantizationEncoding::Gptq32 | QuantizationEncoding::Gptq64 | QuantizationEncoding::Gptq128 => &[0],
        QuantizationEncoding::Float8E4M3FN32 | QuantizationEncoding::Float8E4M3FN128 => {
            for block in bytes.chunks_exact_mut(size) {
                block[..4].copy_from_slice(&0.0625f32.to_le_bytes());
                // None is NaN.
                block[4..].iter_mut().for_each(|byte| *byte &= 0xfb);
            }
            &[]
        }
        _ => &[0, 2],
    };
    for block in bytes.chunks_exact_mut(size) {
        scales.iter().for_each(|at| block[at + 1] = block[at + 1] & 0x83 | 0x30);
    }
    Tensor::from_vec(bytes, [rows, count * size]).expect("a tensor")
}

fn decoded(encoding: QuantizationEncoding, blocks: &Tensor) -> Vec<f32> {
    encoding.dequantize(&blocks.to_vec::<u8>().expect("bytes"))
}

#[test]
fn elements_are_those_that_the_host_decodes() {
    let mut rng = Rng(21);
    for &encoding in QuantizationEncoding::ALL {
        for shape in [[1, 1], [3, 2], [2, 9]] {
            let x = blocks(encoding, shape, &mut rng);
            let got = run(std::slice::from_ref(&x), |x| Ok(vec![ops::dequantize(encoding, &x[0])?]));
            assert_eq!(got[0].shape(), [shape[0], shape[1] * encoding.elements_per_block()]);
            assert_eq!(got[0].to_vec::<f32>().expect("floats"), decoded(encoding, &x), "{encoding} {shape:?}");
        }
        // Axes before the last, and a single one.
        let x = blocks(encoding, [6, 2], &mut rng);
        let bytes = 2 * encoding.block_size();
        let deep = x.view(DType::U8, Some(&[2, 3, bytes])).expect("a view");
        let got = run(&[deep], |x| Ok(vec![ops::dequantize(encoding, &x[0])?]));
        assert_eq!(got[0].to_vec::<f32>().expect("floats"), decoded(encoding, &x), "{encoding}");
        let flat = x.view(DType::U8, Some(&[6 * bytes])).expect("a view");
        let got = run(&[flat], |x| Ok(vec![ops::dequantize(encoding, &x[0])?]));
        assert_eq!(got[0].to_vec::<f32>().expect("floats"), decoded(encoding, &x), "{encoding}");
    }
}

/// What products round activations to: blocks of integers from -127 to 127 with a scale; of other encodings than GGUF's nothing.
fn rounded(encoding: QuantizationEncoding, x: &Tensor) -> Vec<f32> {
    let x = x.to_vec::<f32>().expect("floats");
    if !encoding.is_gguf() {
        return x;
    }
    let block = |block: &[f32]| {
        let largest = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let (scale, inverse) = (largest * (1.0 / 127.0), if largest > 0.0 { 127.0 / largest } else { 0.0 });
        block.iter().map(|v| (v * inverse).round_ties_even() * scale).collect::<Vec<_>>()
    };
    x.chunks(encoding.elements_per_block()).flat_map(block).collect()
}

#[test]
fn products_with_packed_weights_are_those_of_their_elements() {
    let mut rng = Rng(22);
    for &encoding in QuantizationEncoding::ALL {
        // The last ones have whole vectors of blocks, with some left over.
        for (n, count, rows) in [(1, 1, 1), (17, 3, 1), (16, 2, 8), (33, 2, 9), (70, 3, 40), (3, 70, 2), (5, 70, 12)] {
            let k = count * encoding.elements_per_block();
            let (x, w) = (numbers(&[rows, k], &mut rng), blocks(encoding, [n, count], &mut rng));
            let inputs = [x.clone(), w.clone()];
            let got = run(&inputs, |v| Ok(vec![ops::qmatmul(encoding, None, &v[0], [&v[1]])?]));
            assert_eq!(got[0].shape(), [rows, n]);
            let (got, x, w) = (got[0].to_vec::<f32>().expect("floats"), rounded(encoding, &x), decoded(encoding, &w));
            for (i, got) in got.into_iter().enumerate() {
                let terms =
                    || (0..k).map(|l| f64::from(x[i / n * k + l]) * f64::from(w[i % n * k + l])).collect::<Vec<f64>>();
                let (want, scale) = (terms().iter().sum::<f64>(), terms().iter().map(|v| v.abs()).sum::<f64>());
                assert!(
                    (f64::from(got) - want).abs() <= scale * 2e-6,
                    "{encoding} {n} {count} {rows}: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn a_row_is_the_same_whichever_others_it_is_multiplied_with() {
    let mut rng = Rng(25);
    let counts = |elements: usize| [4000 / elements, 1, 3, 6, 11];
    for (&encoding, at) in QuantizationEncoding::ALL.iter().flat_map(|encoding| (0..5).map(move |at| (encoding, at))) {
        // More elements than a tile has, and blocks of words that are not whole.
        let (n, count) = (19, counts(encoding.elements_per_block())[at]);
        let k = count * encoding.elements_per_block();
        let w = blocks(encoding, [n, count], &mut rng);
        let all = numbers(&[20, k], &mut rng).to_vec::<f32>().expect("floats");
        let product_of = |first: usize, rows: usize| {
            let x = Tensor::from_slice(&all[first * k..][..rows * k], [rows, k]).expect("a tensor");
            let y = run(&[x, w.clone()], |v| Ok(vec![ops::qmatmul(encoding, None, &v[0], [&v[1]])?]));
            y[0].to_vec::<f32>().expect("floats")
        };
        let product = |rows: usize| product_of(0, rows);
        let alone = product(1);
        let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for rows in [2, 3, 5, 8] {
            let together = product(rows);
            for (i, together) in together.chunks_exact(n).enumerate() {
                assert_eq!(bits(together), bits(&product_of(i, 1)), "{encoding} {rows} {i}");
            }
        }
        // Among many, by another order of sums: far nearer than the rounding to 8 bits is.
        let largest = alone.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        for (one, of_many) in alone.iter().zip(&product(20)) {
            assert!((one - of_many).abs() <= largest * 1e-5, "{encoding}: {one} and {of_many}");
        }
    }
}

#[test]
fn activations_that_are_not_finite_give_nan_to_their_row_alone() {
    let mut rng = Rng(26);
    for &encoding in QuantizationEncoding::ALL.iter().filter(|encoding| encoding.is_gguf()) {
        let k = encoding.elements_per_block();
        let w = blocks(encoding, [4, 1], &mut rng);
        for (rows, bad) in [(3, f32::INFINITY), (3, f32::NAN), (12, f32::NEG_INFINITY), (12, f32::NAN)] {
            let mut x = numbers(&[rows, k], &mut rng).to_vec::<f32>().expect("floats");
            x[k + 5] = bad;
            let x = Tensor::from_vec(x, [rows, k]).expect("a tensor");
            let y = run(&[x, w.clone()], |v| Ok(vec![ops::qmatmul(encoding, None, &v[0], [&v[1]])?]));
            for (i, v) in y[0].to_vec::<f32>().expect("floats").into_iter().enumerate() {
                assert_eq!(v.is_nan(), i / 4 == 1, "{encoding} {rows} {bad} {i}: {v}");
            }
        }
    }
}

#[test]
fn extreme_integers_do_not_overflow() {
    for &encoding in QuantizationEncoding::ALL.iter().filter(|encoding| encoding.is_gguf()) {
        let k = 2 * encoding.elements_per_block();
        for byte in [0x00_u8, 0x7f, 0x80, 0x88, 0xff] {
            let mut bytes = vec![byte; 2 * encoding.block_size()];
            let scales: &[usize] = match encoding {
                QuantizationEncoding::Q4_0 | QuantizationEncoding::Q8_0 => &[0],
                QuantizationEncoding::Q6_K => &[208],
                _ => &[0, 2],
            };
            for block in bytes.chunks_exact_mut(encoding.block_size()) {
                scales.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&0x3c00_u16.to_le_bytes()));
            }
            let w = Tensor::from_vec(bytes, [1, 2 * encoding.block_size()]).expect("a tensor");
            for value in [127.0_f32, -127.0] {
                let x = Tensor::from_vec(vec![value; k], [1, k]).expect("a tensor");
                let y = run(&[x, w.clone()], |v| Ok(vec![ops::qmatmul(encoding, None, &v[0], [&v[1]])?]));
                let want: f64 = decoded(encoding, &w).into_iter().map(|w| f64::from(w) * f64::from(value)).sum();
                let scale: f64 = decoded(encoding, &w).into_iter().map(|w| f64::from(w * value).abs()).sum();
                let got = f64::from(y[0].to_vec::<f32>().expect("floats")[0]);
                assert!(
                    (got - want).abs() <= 1e-6 * (scale + 127.0 * 512.0),
                    "{encoding} {byte:#x} {value}: {got}, not {want}"
                );
            }
        }
    }
}

/// A graph of one op on inputs of those types.
fn graph(
    types: &[TensorType],
    op: impl FnOnce(&[Value]) -> Result<TensorValue, GraphError>,
) -> Result<Graph, GraphError> {
    Graph::build("g", types, |_, x| op(x))
}

fn ty(dtype: DType, shape: impl Into<max::graph::Shape>) -> TensorType {
    TensorType::new(dtype, shape, DeviceRef::CPU)
}

const Q8: QuantizationEncoding = QuantizationEncoding::Q8_0;

#[test]
fn symbolic_rows_of_blocks_are_checked_when_they_are_read() {
    let mut rng = Rng(23);
    // Whole blocks by their form, and as many bytes as the tensor has.
    let whole = [ty(DType::F32, ["blocks"]), ty(DType::U8, [Dim::from("rows"), Dim::from("blocks") * 34])];
    let model = graph(&whole, |x| ops::dequantize(Q8, &x[1])).expect("a graph");
    assert!(model.to_string().contains("float32[rows, blocks * 32]"), "{model}");
    let any = ty(DType::U8, ("rows", "bytes"));
    let model = graph(&[any], |x| ops::dequantize(Q8, &x[0])).expect("a graph");
    let model = InferenceSession::new().load(&model).expect("a model");
    let x = blocks(Q8, [3, 4], &mut rng);
    let got = model.execute(std::slice::from_ref(&x)).expect("elements");
    assert_eq!(got[0].to_vec::<f32>().expect("floats"), decoded(Q8, &x));
    let error = model.execute(&[Tensor::zeros(DType::U8, [3, 35], &Device::cpu()).expect("a tensor")]);
    let error = error.expect_err("half a block").to_string();
    assert!(error.contains("must be a multiple of 34, the bytes of a block of q8_0"), "{error}");
    // Rows of the left side may be as many as they like.
    let types = [ty(DType::F32, ("tokens", 128)), ty(DType::U8, (5, 136))];
    let model = graph(&types, |x| ops::qmatmul(Q8, None, &x[0], [&x[1]])).expect("a graph");
    let model = InferenceSession::new().load(&model).expect("a model");
    let w = blocks(Q8, [5, 4], &mut rng);
    for rows in [0, 1, 3, 30] {
        let x = numbers(&[rows, 128], &mut rng);
        let got = model.execute(&[x, w.clone()]).expect("a product");
        assert_eq!(got[0].shape(), [rows, 5]);
    }
}

#[test]
fn what_is_no_product_of_packed_weights_is_an_error() {
    #[track_caller]
    fn fails(
        types: &[TensorType],
        op: impl FnOnce(&[Value]) -> Result<TensorValue, GraphError>,
        name: &str,
        text: &str,
    ) {
        let error = graph(types, op).expect_err("an error").to_string();
        assert!(
            error.starts_with(&format!("`{name}` at tests/kernels/quantized.rs:")) && error.contains(text),
            "{error}"
        );
    }
    let one = |shape: &[i64]| vec![ty(DType::U8, shape)];
    fails(
        &one(&[2, 33]),
        |x| ops::dequantize(Q8, &x[0]),
        "dequantize",
        "a multiple of 34, the bytes of a block of q8_0",
    );
    fails(&one(&[]), |x| ops::dequantize(Q8, &x[0]), "dequantize", "at least 1 axis");
    fails(&[ty(DType::F32, (2, 34))], |x| ops::dequantize(Q8, &x[0]), "dequantize", "uint8, the bytes of blocks");
    let product = |x: &[Value]| ops::qmatmul(Q8, None, &x[0], [&x[1]]);
    let two = |lhs: TensorType, rhs: TensorType| [lhs, rhs];
    let packed = ty(DType::U8, (4, 68));
    fails(&two(ty(DType::F32, (3, 96)), packed.clone()), product, "qmatmul", "96 and 64");
    fails(&two(ty(DType::BF16, (3, 64)), packed.clone()), product, "qmatmul", "float32");
    fails(&two(ty(DType::F32, ()), packed.clone()), product, "qmatmul", "at least 1 axis");
    fails(&two(ty(DType::F32, (3, 64)), ty(DType::U8, (4, 4, 68))), product, "qmatmul", "2 axes");
    fails(&two(ty(DType::F32, (3, 64)), ty(DType::U8, (4, 67))), product, "qmatmul", "a multiple of 34");
    fails(&two(ty(DType::F32, ("m", "k")), packed.clone()), product, "qmatmul", "rebind");
    let both = |x: &[Value]| ops::qmatmul(Q8, None, &x[0], [&x[1], &x[1]]);
    fails(&two(ty(DType::F32, (3, 64)), packed.clone()), both, "qmatmul", "2 tensors");
    let config =
        QuantizationConfig { quant_method: "gptq".into(), bits: 4, group_size: 128, desc_act: false, sym: true };
    let given = |x: &[Value]| ops::qmatmul(Q8, Some(&config), &x[0], [&x[1]]);
    fails(&two(ty(DType::F32, (3, 64)), packed), given, "qmatmul", "gptq of 4 bits in groups of 128");
}

#[test]
fn small_floats_are_quantized_with_scales() {
    let of = |values: &[f32]| Tensor::from_slice(values, [values.len()]).expect("a tensor");
    let floats =
        |t: &Tensor| t.to_vec::<F8E4M3>().expect("small floats").iter().map(|v| v.to_f32()).collect::<Vec<f32>>();
    let x = of(&[1.0, -500.0, f32::INFINITY, 449.0, 0.3, -448.0]);
    let got = run(&[x], |x| Ok(vec![ops::cast_saturating(&x[0], DType::F8E4M3FN)?]));
    assert_eq!(floats(&got[0]), [1.0, -448.0, 448.0, 448.0, 0.3125, -448.0]);
    for (inverted, want) in [(true, [2.0, -448.0]), (false, [0.5, -250.0])] {
        let inputs = [of(&[1.0, -500.0]), of(&[0.5])];
        let quantize = |x: &[Value]| ops::quantize_static_scaled_float8(&x[0], &x[1], inverted, DType::F8E4M3FN);
        let got = run(&inputs, |x| Ok(vec![quantize(x)?]));
        let want = want.map(|v| F8E4M3::from_f32(v).to_f32());
        assert_eq!(floats(&got[0]), want, "{inverted}");
    }
}

#[test]
fn products_of_rows_with_scales_are_near_those_of_what_was_quantized() {
    let mut rng = Rng(24);
    for [m, n, k] in [[1, 5, 32], [9, 20, 64], [40, 33, 100]] {
        let (a, b) = (numbers(&[m, k], &mut rng), numbers(&[n, k], &mut rng));
        let got = run(&[a.clone(), b.clone()], |x| {
            let quantize = |x: &Value| ops::quantize_dynamic_scaled_float8(x, 1200.0, -1, DType::F8E4M3FN, DType::F32);
            let ((a, a_scales), (b, b_scales)) = (quantize(&x[0])?, quantize(&x[1])?);
            let b_scales = ops::transpose(b_scales, 0, 1)?;
            Ok(vec![ops::dynamic_scaled_matmul(&a, &b, &a_scales, &b_scales, DType::F32)?, a_scales])
        });
        assert_eq!((got[0].shape(), got[1].shape()), (&[m, n][..], &[1, m][..]));
        let (a, b) = (a.to_vec::<f32>().expect("floats"), b.to_vec::<f32>().expect("floats"));
        for (i, scale) in got[1].to_vec::<f32>().expect("floats").into_iter().enumerate() {
            let largest = a[i * k..][..k].iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            assert!((scale - largest / 448.0).abs() < 1e-8, "{scale}");
        }
        for (i, got) in got[0].to_vec::<f32>().expect("floats").into_iter().enumerate() {
            let terms = |l: usize| f64::from(a[i / n * k + l]) * f64::from(b[i % n * k + l]);
            let (want, scale) = ((0..k).map(terms).sum::<f64>(), (0..k).map(|l| terms(l).abs()).sum::<f64>());
            // Both factors have three bits behind the point.
            assert!((f64::from(got) - want).abs() <= scale / 8.0 + 1e-3, "{got}, not {want}");
        }
    }
    // Groups of a row, a row of zeros, and an upper bound.
    let x = Tensor::from_slice(&[2.0_f32, -4.0, 1.0, 8.0, 0.0, 0.0, 0.0, 0.0], [2, 4]).expect("a tensor");
    let got = run(&[x], |x| {
        let (y, scales) = ops::quantize_dynamic_scaled_float8(&x[0], 4.0, 2, DType::F8E4M3FN, DType::F32)?;
        Ok(vec![y, scales])
    });
    let small = got[0].to_vec::<F8E4M3>().expect("small floats");
    let values: Vec<f32> = small.iter().map(|v| v.to_f32()).collect();
    assert_eq!(values, [224.0, -448.0, 112.0, 448.0, 0.0, 0.0, 0.0, 0.0]);
    let scales = got[1].to_vec::<f32>().expect("floats");
    assert_eq!(got[1].shape(), [2, 2]);
    assert_eq!([scales[0], scales[2]], [4.0 / 448.0; 2]);
    assert!(scales[1] > 0.0 && scales[3] > 0.0);
}
