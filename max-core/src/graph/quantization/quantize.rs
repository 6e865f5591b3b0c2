//! Quantizing: the blocks of elements.
//!
//! Scales are least-squares fits. For some steps around the range of a group, its elements are rounded to the grid of that step, then
//! scale and minimum are what fits these integers best, and the step with the smallest error stays.

use super::{QuantizationEncoding, groups};
use crate::dtype::f16;

impl QuantizationEncoding {
    /// The blocks of these elements, a block of integers and scales for every
    /// [`elements_per_block`](QuantizationEncoding::elements_per_block). What follows the last whole block is left out.
    ///
    /// ```
    /// use max_core::graph::quantization::QuantizationEncoding;
    ///
    /// let elements: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
    /// let blocks = QuantizationEncoding::Q8_0.quantize(&elements);
    /// assert_eq!(blocks.len(), 2 * 34);
    /// let near = QuantizationEncoding::Q8_0.dequantize(&blocks);
    /// assert!(elements.iter().zip(near).all(|(x, y)| (x - y).abs() < 0.005));
    /// ```
    pub fn quantize(self, elements: &[f32]) -> Vec<u8> {
        match self {
            QuantizationEncoding::Q4_0 => blocks(elements, q4_0),
            QuantizationEncoding::Q8_0 => blocks(elements, q8_0),
            QuantizationEncoding::Q4_K => blocks(elements, q4_k),
            QuantizationEncoding::Q5_K => blocks(elements, q5_k),
            QuantizationEncoding::Q6_K => blocks(elements, q6_k),
            QuantizationEncoding::Gptq32 => blocks::<32, 20>(elements, |x, block| groups::to_gptq(x, block)),
            QuantizationEncoding::Gptq64 => blocks::<64, 36>(elements, |x, block| groups::to_gptq(x, block)),
            QuantizationEncoding::Gptq128 => blocks::<128, 68>(elements, |x, block| groups::to_gptq(x, block)),
            QuantizationEncoding::Float8E4M3FN32 => blocks::<32, 36>(elements, |x, block| groups::to_float8(x, block)),
            QuantizationEncoding::Float8E4M3FN128 => {
                blocks::<128, 132>(elements, |x, block| groups::to_float8(x, block))
            }
            QuantizationEncoding::Custom(custom) => (custom.quantize)(elements),
        }
    }
}

fn blocks<const N: usize, const B: usize>(elements: &[f32], encode: impl Fn(&[f32; N], &mut [u8; B])) -> Vec<u8> {
    let chunks = elements.as_chunks::<N>().0;
    let mut out = vec![0; chunks.len() * B];
    chunks.iter().zip(out.as_chunks_mut::<B>().0).for_each(|(chunk, block)| encode(chunk, block));
    out
}

/// The bytes of a number in half precision, and what it is there.
fn half(x: f32) -> ([u8; 2], f32) {
    let x = f16::from_f32(x);
    (x.to_le_bytes(), x.to_f32())
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The element with the largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

/// 1.5 * 2^23: what is added to it has no digits after the point, and is rounded to the nearest integer.
const INTEGERS: f32 = 12_582_912.0;

/// The nearest integer within bounds, which are far below 2^22; of two that are as near the even one, and `least` for NaN. Not by
/// `round`, which is a call of a function where instructions of 1999 have to do.
pub(super) fn nearest(x: f32, least: f32, most: f32) -> f32 {
    (x.max(least).min(most) + INTEGERS) - INTEGERS
}

/// The sums of what `terms` makes of each element. In 8 parts each, so that they are computed as vectors.
fn sums<const N: usize, const K: usize>(x: &[f32; N], terms: impl Fn(f32) -> [f32; K]) -> [f32; K] {
    let mut parts = [[0.0; 8]; K];
    for x in x.as_chunks::<8>().0 {
        let terms = x.map(&terms);
        for (k, parts) in parts.iter_mut().enumerate() {
            parts.iter_mut().zip(&terms).for_each(|(part, terms)| *part += terms[k]);
        }
    }
    parts.map(|parts| parts.iter().sum())
}

fn q8_0(x: &[f32; 32], block: &mut [u8; 34]) {
    let scale = extreme(x).abs() / 127.0;
    let inverse = inverse(scale);
    let [low, high, quants @ ..] = block;
    [*low, *high] = half(scale).0;
    quants.iter_mut().zip(x).for_each(|(q, x)| *q = nearest(x * inverse, -127.0, 127.0) as i8 as u8);
}

fn q4_0(x: &[f32; 32], block: &mut [u8; 18]) {
    // The extreme one becomes -8, the only integer of its magnitude.
    let scale = extreme(x) / -8.0;
    let inverse = inverse(scale);
    let [low, high, quants @ ..] = block;
    [*low, *high] = half(scale).0;
    let quant = |x: f32| (nearest(x * inverse, -8.0, 7.0) + 8.0) as u8;
    let (first, second) = x.split_at(16);
    quants.iter_mut().zip(first).zip(second).for_each(|((q, first), second)| *q = quant(*first) | quant(*second) << 4);
}

/// Scale and minimum of a group: `x` is nearly `scale * q - minimum` with integers `q` of 0 to `most`, and neither is negative.
/// Large elements weigh more.
fn fit_with_minimum(x: &[f32; 32], most: f32) -> (f32, f32) {
    let (low, high) = x.iter().fold((0.0f32, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    let range = high - low;
    if range.is_nan() || range <= 0.0 {
        return (0.0, -low);
    }
    let mean = (x.iter().map(|x| x * x).sum::<f32>() / 32.0).sqrt();
    let error = |scale: f32, least: f32| {
        let inverse = inverse(scale);
        let [error] = sums(x, |x| {
            let off = scale * nearest((x - least) * inverse, 0.0, most) + least - x;
            [(mean + x.abs()) * off * off]
        });
        error
    };
    let mut best = (error(range / most, low), range / most, low);
    let [w, wx] = sums(x, |x| [mean + x.abs(), (mean + x.abs()) * x]);
    for step in 0..=20 {
        let inverse = (most - 1.0 + 0.1 * step as f32) / range;
        let [wq, wqq, wxq] = sums(x, |x| {
            let q = nearest((x - low) * inverse, 0.0, most);
            let weighted = (mean + x.abs()) * q;
            [weighted, weighted * q, weighted * x]
        });
        let determinant = w * wqq - wq * wq;
        if determinant.is_nan() || determinant <= 0.0 {
            continue;
        }
        let (mut scale, mut least) = ((w * wxq - wx * wq) / determinant, (wqq * wx - wq * wxq) / determinant);
        if least > 0.0 {
            (scale, least) = (wxq / wqq, 0.0);
        }
        let now = error(scale, least);
        if scale > 0.0 && now < best.0 {
            best = (now, scale, least);
        }
    }
    (best.1, -best.2)
}

/// The scales of a block of Q4_K or Q5_K, in 16 bytes, and its integers.
fn with_minima(x: &[f32; 256], most: f32) -> ([u8; 16], [u8; 256]) {
    let groups = x.as_chunks::<32>().0;
    let fits: Vec<(f32, f32)> = groups.iter().map(|group| fit_with_minimum(group, most)).collect();
    let largest = fits.iter().fold((0.0f32, 0.0f32), |(s, m), (scale, minimum)| (s.max(*scale), m.max(*minimum)));
    let ((scale_bytes, scale), (minimum_bytes, minimum)) = (half(largest.0 / 63.0), half(largest.1 / 63.0));
    let (mut head, mut quants) = ([0; 16], [0; 256]);
    head[..2].copy_from_slice(&scale_bytes);
    head[2..4].copy_from_slice(&minimum_bytes);
    let all = groups.iter().zip(fits).zip(quants.as_chunks_mut::<32>().0).enumerate();
    for (j, ((group, fit), quants)) in all {
        let of_group = nearest(fit.0 * inverse(scale), 0.0, 63.0);
        let least = nearest(fit.1 * inverse(minimum), 0.0, 63.0);
        let (step, shift) = (inverse(scale * of_group), minimum * least);
        quants.iter_mut().zip(group).for_each(|(q, x)| *q = nearest((x + shift) * step, 0.0, most) as u8);
        let (of_group, least) = (of_group as u8, least as u8);
        if j < 4 {
            head[4 + j] |= of_group;
            head[8 + j] |= least;
        } else {
            head[8 + j] = of_group & 15 | (least & 15) << 4;
            head[j] |= of_group >> 4 << 6;
            head[4 + j] |= least >> 4 << 6;
        }
    }
    (head, quants)
}

/// Two groups of 32 share bytes.
fn nibbles(quants: &[u8; 256], out: &mut [u8]) {
    for (pair, out) in quants.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (first, second) = pair.split_at(32);
        out.iter_mut().zip(first).zip(second).for_each(|((out, a), b)| *out = a & 15 | b << 4);
    }
}

fn q4_k(x: &[f32; 256], block: &mut [u8; 144]) {
    let (head, quants) = with_minima(x, 15.0);
    let (scales, rest) = block.split_at_mut(16);
    scales.copy_from_slice(&head);
    nibbles(&quants, rest);
}

fn q5_k(x: &[f32; 256], block: &mut [u8; 176]) {
    let (head, quants) = with_minima(x, 31.0);
    let (scales, rest) = block.split_at_mut(16);
    scales.copy_from_slice(&head);
    let (high, low) = rest.split_at_mut(32);
    nibbles(&quants, low);
    for (j, group) in quants.as_chunks::<32>().0.iter().enumerate() {
        high.iter_mut().zip(group).for_each(|(high, q)| *high |= q >> 4 << j);
    }
}

/// The scale of a group: `x` is nearly `scale * q` with integers `q` of -32 to 31. Elements weigh by their squares.
fn fit(x: &[f32; 16]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let mut best = (0.0f32, 0.0);
    for step in -9..=9 {
        let inverse = -(32.0 + 0.1 * step as f32) / extreme;
        let [xq, qq] = sums(x, |x| {
            let q = nearest(x * inverse, -32.0, 31.0);
            [x * x * x * q, x * x * q * q]
        });
        // What the fit takes off the squared error.
        let gain = xq * xq / qq;
        if gain > best.0 {
            best = (gain, xq / qq);
        }
    }
    best.1
}

fn q6_k(x: &[f32; 256], block: &mut [u8; 210]) {
    let groups = x.as_chunks::<16>().0;
    let fits: Vec<f32> = groups.iter().map(fit).collect();
    let (bytes, scale) = half(extreme(&fits) / -128.0);
    let (low, rest) = block.split_at_mut(128);
    let (high, rest) = rest.split_at_mut(64);
    let (scales, last) = rest.split_at_mut(16);
    last.copy_from_slice(&bytes);
    for (((j, group), fit), of_group) in groups.iter().enumerate().zip(fits).zip(scales) {
        let integer = nearest(fit * inverse(scale), -128.0, 127.0);
        *of_group = integer as i8 as u8;
        let step = inverse(scale * integer);
        for (l, x) in group.iter().enumerate() {
            let q = (nearest(x * step, -32.0, 31.0) + 32.0) as u8;
            // As they are read: halves of 128 elements, each of four runs of 32.
            let i = 16 * j + l;
            let (part, run, l) = (i / 128, i % 128 / 32, i % 32);
            low[part * 64 + run % 2 * 32 + l] |= (q & 15) << (run / 2 * 4);
            high[part * 32 + l] |= q >> 4 << (run * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look normally distributed.
    fn noise(n: usize, mut seed: u64) -> Vec<f32> {
        let mut uniform = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 40) as f32 / (1u32 << 24) as f32
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    /// The error's root mean square, of elements of standard deviation 1.
    fn error(encoding: QuantizationEncoding, x: &[f32]) -> f64 {
        let near = encoding.dequantize(&encoding.quantize(x));
        let squares: f64 = x.iter().zip(&near).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        assert_eq!(near.len(), x.len());
        (squares / x.len() as f64).sqrt()
    }

    #[test]
    fn errors_are_those_of_so_many_bits() {
        let x = noise(64 * 256, 1);
        // A uniform grid of 2^b steps over ±2.5 standard deviations has 5 / 2^b / sqrt(12).
        for (encoding, bound) in [
            (QuantizationEncoding::Q4_0, 0.10),
            (QuantizationEncoding::Q8_0, 0.006),
            (QuantizationEncoding::Q4_K, 0.085),
            (QuantizationEncoding::Q5_K, 0.042),
            (QuantizationEncoding::Q6_K, 0.022),
            (QuantizationEncoding::Gptq32, 0.10),
            (QuantizationEncoding::Gptq128, 0.12),
            (QuantizationEncoding::Float8E4M3FN32, 0.06),
            (QuantizationEncoding::Float8E4M3FN128, 0.06),
        ] {
            let error = error(encoding, &x);
            assert!(error > bound / 4.0 && error < bound, "{encoding}: {error}");
        }
    }

    #[test]
    fn what_is_on_the_grid_stays() {
        for encoding in QuantizationEncoding::ALL {
            let x = noise(4 * 256, 7);
            let once = encoding.dequantize(&encoding.quantize(&x));
            let again = encoding.dequantize(&encoding.quantize(&once));
            let off = once.iter().zip(&again).map(|(x, y)| (x - y).abs()).fold(0.0f32, f32::max);
            assert!(off < 0.05, "{encoding}: {off}");
        }
    }

    #[test]
    fn extremes_make_blocks_too() {
        for encoding in QuantizationEncoding::ALL {
            for x in [0.0, -0.0, 1.0, -3.5, 1e-30, -1e30, f32::INFINITY, f32::NAN] {
                let blocks = encoding.quantize(&[x; 300]);
                assert_eq!(blocks.len(), 300 / encoding.elements_per_block() * encoding.block_size(), "{encoding} {x}");
            }
            assert!(encoding.dequantize(&encoding.quantize(&[0.0; 256])).iter().all(|x| *x == 0.0), "{encoding}");
            let constant = encoding.dequantize(&encoding.quantize(&[-3.5; 256]));
            assert!(constant.iter().all(|x| (x + 3.5).abs() < 0.05), "{encoding}: {}", constant[0]);
        }
    }
}
