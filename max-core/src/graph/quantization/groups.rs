//! Groups of elements that share a scale, whose sizes are a model's own: integers of 4 bits as GPTQ makes them (Frantar et al.,
//! 2022), and floats of 8 bits.

use super::quantize::nearest;
use crate::dtype::{Element, F8E4M3, f16, float8};

/// The bytes of a group before its integers: a scale of half precision, the integer that is 0, and a byte that is not used.
const GPTQ_HEAD: usize = 4;

/// The bytes of a group before its floats: a scale.
const FLOAT8_HEAD: usize = 4;

/// The largest `float8_e4m3fn`.
const LARGEST: f32 = 448.0;

/// The block of a group of integers of 4 bits, which are multiplied by `scale` when `zero` is subtracted. Of each 32 elements, those
/// of the first half have the lower bits of 16 bytes.
pub(super) fn gptq_block(scale: f16, zero: u8, integers: impl Fn(usize) -> u8, block: &mut [u8]) {
    let Some((head, quants)) = block.split_first_chunk_mut::<GPTQ_HEAD>() else { return };
    let [low, high] = scale.to_le_bytes();
    *head = [low, high, zero, 0];
    for (run, quants) in quants.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        for (i, byte) in quants.iter_mut().enumerate() {
            *byte = integers(32 * run + i) & 15 | (integers(32 * run + 16 + i) & 15) << 4;
        }
    }
}

pub(super) fn gptq(block: &[u8], out: &mut [f32]) {
    let Some((&[low, high, zero, _], quants)) = block.split_first_chunk::<GPTQ_HEAD>() else { return };
    let scale = f16::from_le_bytes([low, high]).to_f32();
    for (quants, out) in quants.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (first, second) = out.split_at_mut(16);
        for ((quant, first), second) in quants.iter().zip(first).zip(second) {
            *first = f32::from(i16::from(quant & 15) - i16::from(zero)) * scale;
            *second = f32::from(i16::from(quant >> 4) - i16::from(zero)) * scale;
        }
    }
}

/// Rounds to the nearest of 16 steps over the range of a group, which 0 is in.
pub(super) fn to_gptq(x: &[f32], block: &mut [u8]) {
    let (low, high) = x.iter().fold((0.0f32, 0.0f32), |(low, high), x| (low.min(*x), high.max(*x)));
    let scale = f16::from_f32((high - low) / 15.0);
    let step = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let zero = nearest(-low * step, 0.0, 15.0);
    gptq_block(
        scale,
        zero as u8,
        |i| nearest(x.get(i).copied().unwrap_or_default() * step + zero, 0.0, 15.0) as u8,
        block,
    );
}

/// The block of a group of 8-bit floats, which are multiplied by `scale`.
pub(super) fn float8_block(scale: f32, floats: &[u8], block: &mut [u8]) {
    let Some((head, quants)) = block.split_first_chunk_mut::<FLOAT8_HEAD>() else { return };
    *head = scale.to_le_bytes();
    quants.iter_mut().zip(floats).for_each(|(quant, float)| *quant = *float);
}

pub(super) fn float8(block: &[u8], out: &mut [f32]) {
    let Some((head, quants)) = block.split_first_chunk::<FLOAT8_HEAD>() else { return };
    let scale = f32::from_le_bytes(*head);
    quants.iter().zip(out).for_each(|(quant, out)| *out = float8::e4m3fn_to_f32(F8E4M3::from_bits(*quant)) * scale);
}

/// Divides by what makes the largest element the largest float.
pub(super) fn to_float8(x: &[f32], block: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / LARGEST;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let floats: Vec<u8> = x.iter().map(|x| <F8E4M3 as Element>::from_f64(f64::from(x * inverse)).to_bits()).collect();
    float8_block(scale, &floats, block);
}
