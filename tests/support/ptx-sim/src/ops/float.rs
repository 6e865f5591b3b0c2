//! f32 and f64: arithmetic in every rounding mode, comparison, and the
//! approximate functions.
//!
//! f32 results that are NaN have the one pattern of the ISA, 0x7fffffff.
//! The approximate functions give the correctly rounded result of the exact
//! function (computed in f64), which is within every error bound of the ISA;
//! what the ISA fixes beside the bound (results for infinities, zeros and
//! subnormals, `div.approx` by huge divisors) is followed.

use super::{F1, F2, F3};
use crate::ops::softfloat::{F32, F64, Num, Round, binary as soft, fma as soft_fma};
use crate::types::{Mods, Ty};

/// The f32 in a register, flushed if `.ftz`.
#[inline]
fn load(m: &Mods, bits: u64) -> f32 {
    let v = f32::from_bits(bits as u32);
    if m.ftz && v.is_subnormal() { 0f32.copysign(v) } else { v }
}

/// An f32 result: canonical NaN, `.ftz`, `.sat`.
#[inline]
fn store(m: &Mods, v: f32) -> u64 {
    let v = if m.ftz && v.is_subnormal() { 0f32.copysign(v) } else { v };
    let v = if m.sat { saturate(v) } else { v };
    u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
}

/// Clamps to [0, 1]; NaN and -0 give +0.
fn saturate(v: f32) -> f32 {
    if v > 0.0 { v.min(1.0) } else { 0.0 }
}

fn bits(v: f32) -> u64 {
    u64::from(v.to_bits())
}

fn float(v: u64) -> f32 {
    f32::from_bits(v as u32)
}

fn wide(v: u64) -> f64 {
    f64::from_bits(v)
}

/// The f32 result of a function computed in f64.
fn approx(m: &Mods, a: u64, f: fn(f64) -> f64) -> u64 {
    store(m, f(f64::from(load(m, a))) as f32)
}

pub(crate) fn unary(op: &str, ty: Ty) -> Option<F1> {
    Some(match (op, ty) {
        ("neg", Ty::F32) => &|m, a| bits(-load(m, a)),
        ("abs", Ty::F32) => &|m, a| bits(load(m, a).abs()),
        ("neg", Ty::F64) => &|_, a| a ^ 1 << 63,
        ("abs", Ty::F64) => &|_, a| a & !(1 << 63),
        ("sqrt.round", Ty::F32) => &|m, a| match m.round {
            Round::Near => store(m, load(m, a).sqrt()),
            mode => store(m, float(soft(F32, mode, bits(load(m, a)), 0, |a, _, _| a.sqrt()))),
        },
        ("sqrt.round", Ty::F64) => &|m, a| match m.round {
            Round::Near => wide(a).sqrt().to_bits(),
            mode => soft(F64, mode, a, 0, |a, _, _| a.sqrt()),
        },
        ("rcp.round", Ty::F32) => &|m, a| match m.round {
            Round::Near => store(m, 1.0 / load(m, a)),
            mode => {
                let one = bits(1.0);
                store(m, float(soft(F32, mode, one, bits(load(m, a)), |a, b, _| a.div(b))))
            }
        },
        ("rcp.round", Ty::F64) => &|m, a| soft(F64, m.round, 1f64.to_bits(), a, |a, b, _| a.div(b)),
        ("sqrt.approx", Ty::F32) => &|m, a| approx(m, a, f64::sqrt),
        ("rcp.approx", Ty::F32) => &|m, a| approx(m, a, |a| 1.0 / a),
        ("rsqrt.approx", Ty::F32) => &|m, a| approx(m, a, |a| 1.0 / a.sqrt()),
        ("ex2.approx", Ty::F32) => &|m, a| approx(m, a, f64::exp2),
        ("lg2.approx", Ty::F32) => &|m, a| approx(m, a, f64::log2),
        ("sin.approx", Ty::F32) => &|m, a| approx(m, a, f64::sin),
        ("cos.approx", Ty::F32) => &|m, a| approx(m, a, f64::cos),
        ("tanh.approx", Ty::F32) => &|m, a| approx(m, a, f64::tanh),
        // The gross approximations: the upper 32 bits of the exact result.
        ("rcp.approx", Ty::F64) => &|_, a| gross(a, |a| 1.0 / a),
        ("rsqrt.approx", Ty::F64) => &|_, a| gross(a, |a| 1.0 / a.sqrt()),
        ("testp.finite", Ty::F32) => &|_, a| u64::from(float(a).is_finite()),
        ("testp.infinite", Ty::F32) => &|_, a| u64::from(float(a).is_infinite()),
        ("testp.number", Ty::F32) => &|_, a| u64::from(!float(a).is_nan()),
        ("testp.notanumber", Ty::F32) => &|_, a| u64::from(float(a).is_nan()),
        // Zero counts as normal here.
        ("testp.normal", Ty::F32) => &|_, a| u64::from(float(a).is_normal() || float(a) == 0.0),
        ("testp.subnormal", Ty::F32) => &|_, a| u64::from(float(a).is_subnormal()),
        ("testp.finite", Ty::F64) => &|_, a| u64::from(wide(a).is_finite()),
        ("testp.infinite", Ty::F64) => &|_, a| u64::from(wide(a).is_infinite()),
        ("testp.number", Ty::F64) => &|_, a| u64::from(!wide(a).is_nan()),
        ("testp.notanumber", Ty::F64) => &|_, a| u64::from(wide(a).is_nan()),
        ("testp.normal", Ty::F64) => &|_, a| u64::from(wide(a).is_normal() || wide(a) == 0.0),
        ("testp.subnormal", Ty::F64) => &|_, a| u64::from(wide(a).is_subnormal()),
        _ => return None,
    })
}

/// A double of which only the upper word is kept; subnormals are flushed.
fn gross(a: u64, f: fn(f64) -> f64) -> u64 {
    let flush = |v: f64| {
        if v.is_subnormal() { 0f64.copysign(v) } else { v }
    };
    flush(f(flush(wide(a)))).to_bits() & !0xffff_ffff
}

pub(crate) fn binary(op: &str, ty: Ty) -> Option<F2> {
    Some(match (op, ty) {
        ("add", Ty::F32) => &|m, a, b| match m.round {
            Round::Near => store(m, load(m, a) + load(m, b)),
            _ => directed(m, a, b, Num::add),
        },
        ("sub", Ty::F32) => &|m, a, b| match m.round {
            Round::Near => store(m, load(m, a) - load(m, b)),
            _ => directed(m, a, b, |a, b, mode| a.add(b.negate(), mode)),
        },
        ("mul", Ty::F32) => &|m, a, b| match m.round {
            Round::Near => store(m, load(m, a) * load(m, b)),
            _ => directed(m, a, b, |a, b, _| a.mul(b)),
        },
        ("div.round", Ty::F32) => &|m, a, b| match m.round {
            Round::Near => store(m, load(m, a) / load(m, b)),
            _ => directed(m, a, b, |a, b, _| a.div(b)),
        },
        ("div.full", Ty::F32) => &|m, a, b| store(m, load(m, a) / load(m, b)),
        // Divisors above 2^126 give zero, as the reciprocal is flushed.
        ("div.approx", Ty::F32) => &|m, a, b| {
            let (x, y) = (load(m, a), load(m, b));
            let huge = y.is_finite() && y.abs() > 2f32.powi(126);
            let recip = if huge { 0f32.copysign(y) } else { 1.0 };
            store(m, if huge { x * recip } else { x / y })
        },
        ("add", Ty::F64) => &|m, a, b| match m.round {
            Round::Near => (wide(a) + wide(b)).to_bits(),
            mode => soft(F64, mode, a, b, Num::add),
        },
        ("sub", Ty::F64) => &|m, a, b| match m.round {
            Round::Near => (wide(a) - wide(b)).to_bits(),
            mode => soft(F64, mode, a, b, |a, b, mode| a.add(b.negate(), mode)),
        },
        ("mul", Ty::F64) => &|m, a, b| match m.round {
            Round::Near => (wide(a) * wide(b)).to_bits(),
            mode => soft(F64, mode, a, b, |a, b, _| a.mul(b)),
        },
        ("div.round", Ty::F64) => &|m, a, b| match m.round {
            Round::Near => (wide(a) / wide(b)).to_bits(),
            mode => soft(F64, mode, a, b, |a, b, _| a.div(b)),
        },
        ("min", Ty::F32) => &|m, a, b| extremum(m, a, b, true),
        ("max", Ty::F32) => &|m, a, b| extremum(m, a, b, false),
        ("min", Ty::F64) => &|_, a, b| extremum64(a, b, true),
        ("max", Ty::F64) => &|_, a, b| extremum64(a, b, false),
        // The sign of a with the magnitude of b.
        ("copysign", Ty::F32) => &|_, a, b| bits(float(b).copysign(float(a))),
        ("copysign", Ty::F64) => &|_, a, b| wide(b).copysign(wide(a)).to_bits(),
        _ => return None,
    })
}

#[inline(never)]
fn directed(m: &Mods, a: u64, b: u64, op: fn(Num, Num, Round) -> Num) -> u64 {
    store(m, float(soft(F32, m.round, bits(load(m, a)), bits(load(m, b)), op)))
}

/// Minimum or maximum with -0 below +0; one NaN yields the other operand
/// unless `.NaN`.
#[inline(always)]
fn extremum(m: &Mods, a: u64, b: u64, min: bool) -> u64 {
    let (mut x, mut y) = (load(m, a), load(m, b));
    let sign = (x.to_bits() ^ y.to_bits()) & 1 << 31;
    if m.abs {
        (x, y) = (x.abs(), y.abs());
    }
    let one = if x.is_nan() { y } else { x };
    let number = if x.is_nan() || y.is_nan() { one } else { lesser(x, y, min) };
    let v = if m.nan && (x.is_nan() || y.is_nan()) { f32::NAN } else { number };
    if m.xorsign && !v.is_nan() {
        return u64::from((v.to_bits() & !(1 << 31)) | sign);
    }
    store(m, v)
}

/// The lesser of two numbers, or the greater one, of which -0 is below +0.
#[inline]
fn lesser(x: f32, y: f32, min: bool) -> f32 {
    // Integers in the order of the floats.
    let key = |v: f32| (v.to_bits() as i32) ^ ((v.to_bits() as i32 >> 31) & i32::MAX);
    let first = if min { key(x) < key(y) } else { key(x) > key(y) };
    if first { x } else { y }
}

fn extremum64(a: u64, b: u64, min: bool) -> u64 {
    let (x, y) = (wide(a), wide(b));
    let v = match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ => {
            let first = if min { x.total_cmp(&y).is_le() } else { x.total_cmp(&y).is_ge() };
            if first { x } else { y }
        }
    };
    v.to_bits()
}

pub(crate) fn ternary(op: &str, ty: Ty) -> Option<F3> {
    Some(match (op, ty) {
        ("fma", Ty::F32) => &fma_f32,
        ("fma", Ty::F64) => &|m, a, b, c| match m.round {
            Round::Near => wide(a).mul_add(wide(b), wide(c)).to_bits(),
            mode => soft_fma(F64, mode, a, b, c),
        },
        // A NaN selects b; -0 is not less than zero.
        ("slct.f32", _) => &|m, a, b, c| if load(m, c) >= 0.0 { a } else { b },
        _ => return None,
    })
}

// Always, as it is more than is inlined into two loops otherwise.
#[inline(always)]
fn fma_f32(m: &Mods, a: u64, b: u64, c: u64) -> u64 {
    let (a, b, c) = (load(m, a), load(m, b), load(m, c));
    store(
        m,
        match m.round {
            Round::Near => fma(a, b, c),
            mode => float(soft_fma(F32, mode, bits(a), bits(b), bits(c))),
        },
    )
}

/// `a * b + c`, rounded once to the nearest. `mul_add` gives the same, but by a call, since a host need not have an
/// instruction for it; this is a few vector instructions.
#[inline]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact in f64, and nothing overflows.
    odd_sum(f64::from(a) * f64::from(b), f64::from(c)) as f32
}

/// `a + b` for rounding once more, to a format that is shorter by two bits or more: an inexact sum is that of its two
/// neighbours which is odd. Being odd it is no tie of the shorter format, and it lies on the side of ties that the exact
/// sum lies on, so that the result is the exact sum rounded once.
#[inline]
pub(super) fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // What the sum lacks, exactly: with infinities a NaN, which is neither above nor below zero.
    let part = sum - a;
    let lacks = (a - (sum - part)) + (b - part);
    let set = |condition: bool| u64::from(condition).wrapping_neg();
    let inexact = set(lacks > 0.0) | set(lacks < 0.0);
    let inwards = set(lacks > 0.0) ^ set(sum > 0.0);
    let step = inexact & !sum.to_bits() & 1;
    f64::from_bits(sum.to_bits().wrapping_add((step ^ inwards).wrapping_sub(inwards)))
}

/// A floating comparison, as 0 or 1: ordered, or `u` for true on NaN.
pub(crate) fn compare(op: &str, ty: Ty) -> Option<F2> {
    macro_rules! both {
        (|$x:ident, $y:ident| $body:expr) => {
            match ty {
                Ty::F32 => &|m, a, b| {
                    let ($x, $y) = (load(m, a), load(m, b));
                    u64::from($body)
                },
                Ty::F64 => &|_, a, b| {
                    let ($x, $y) = (wide(a), wide(b));
                    u64::from($body)
                },
                _ => return None,
            }
        };
    }
    Some(match op {
        "eq" => both!(|x, y| x == y),
        "ne" => both!(|x, y| x.partial_cmp(&y).is_some_and(|o| o.is_ne())),
        "lt" => both!(|x, y| x < y),
        "le" => both!(|x, y| x <= y),
        "gt" => both!(|x, y| x > y),
        "ge" => both!(|x, y| x >= y),
        "equ" => both!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_eq())),
        "neu" => both!(|x, y| x != y),
        "ltu" => both!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_lt())),
        "leu" => both!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_le())),
        "gtu" => both!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_gt())),
        "geu" => both!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_ge())),
        "num" => both!(|x, y| !x.is_nan() && !y.is_nan()),
        "nan" => both!(|x, y| x.is_nan() || y.is_nan()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(a: f32, b: f32, c: f32) {
        let (ours, host) = (fma(a, b, c), a.mul_add(b, c));
        let same = ours.to_bits() == host.to_bits() || ours.is_nan() && host.is_nan();
        assert!(same, "{a:e} {b:e} {c:e}: {ours:e} {host:e}");
    }

    #[test]
    fn fma_is_that_of_the_host() {
        let special = [0.0, 1.0, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::INFINITY, f32::NAN];
        let special: Vec<f32> = special.iter().flat_map(|v| [*v, -v]).collect();
        for a in &special {
            for b in &special {
                special.iter().for_each(|c| same(*a, *b, *c));
            }
        }
        let mut seed = 5u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 32) as u32
        };
        // Of so many bits after the first, and a few powers of two.
        let short = |v: u32, bits: u32, powers: u32| {
            let exponent = 127 - powers / 2 + v % powers;
            f32::from_bits(v & 1 << 31 | exponent << 23 | (v >> 8 << (23 - bits) & 0x7f_ffff))
        };
        for _ in 0..200_000 {
            let [a, b, c] = [next(), next(), next()];
            same(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            // Exact sums, ties, and what lies just beside them.
            let (a, b) = (short(a, 11, 8), short(b, 12, 8));
            same(a, b, short(c, 3, 60));
            same(a, b, short(c, 23, 60));
            same(a, b, -a * b);
            // Subnormal results.
            let least = |power: i32| 2f32.powi(power);
            same(a * least(-70), b * least(-70), short(c, 23, 20) * least(-136));
        }
    }
}
