//! `log`, `log2`, `log10` and `log1p`.
//!
//! x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), so that log(x) = k ln(2) + log(1 + f), and the sum of
//! the two is never much smaller than either.

use super::super::control::{eq, float, gt, int, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::{Format, horner, select};

/// What differs between the formats.
pub(super) trait Log: Format {
    /// Below in magnitude, log(1 + x) rounds to x.
    const TINY: f64;
    /// log10(2), in two parts as ln(2).
    const LOG10_2: (f64, f64);

    /// log(1 + f) - f.
    fn tail<M: Target>(f: Val<M, Self>) -> Val<M, Self>;
}

impl Log for f32 {
    const TINY: f64 = 2.98e-8; // 2^-25
    const LOG10_2: (f64, f64) = (154.0 / 512.0, std::f64::consts::LOG10_2 - 154.0 / 512.0);

    // f^3 times a polynomial in f, minus f^2/2. Error: 2^-27.3.
    #[inline(always)]
    #[track_caller]
    fn tail<M: Target>(f: Val<M, f32>) -> Val<M, f32> {
        let p = horner!(f; 0.3333333134651184, -0.250008225440979, 0.20001250505447388, -0.1662333607673645,
            0.14201276004314423, -0.13159853219985962, 0.12764713168144226, -0.07639402896165848);
        let z = f * f;
        (f * z).mul_add(p, z * float(-0.5))
    }
}

impl Log for f64 {
    const TINY: f64 = 5.55e-17; // 2^-54
    const LOG10_2: (f64, f64) = (f64::from_bits(0x3fd3_4413_5080_0000), 1.145_110_089_802_183_8e-10);

    // With s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2s + s R(s^2), and 2s = f - f^2/2 + s f^2/2. Error: 2^-59.5.
    #[inline(always)]
    #[track_caller]
    fn tail<M: Target>(f: Val<M, f64>) -> Val<M, f64> {
        let s = f / (f + float(2.0));
        let z = s * s;
        let r = z * horner!(z; 0.6666666666666734, 0.3999999999941662, 0.2857142874206885, 0.2222219859680095,
            0.18183563483867615, 0.15314063809808698, 0.14795888714528774);
        let square = f * f * float(0.5);
        s.mul_add(square + r, -square)
    }
}

/// k and f such that x = 2^k (1 + f), for a positive finite x.
pub(super) struct Split<M: Target, F: Format> {
    pub k: Val<M, F>,
    pub f: Val<M, F>,
}

#[inline(always)]
#[track_caller]
pub(super) fn split<M: Target, F: Format>(x: Val<M, F>) -> Split<M, F> {
    // Denormals are brought into the normal range.
    let tiny = lt(x, Val::<M, F>::min_positive());
    let up = (1u64 << F::FRACTION) as f64;
    let x = select(tiny, x * float(up), x);
    let one = F::BIAS << F::FRACTION;
    let bits = x.bitcast::<F::Bits>() + int(one - F::SQRT_HALF_BITS);
    let fraction = bits & int((1 << F::FRACTION) - 1);
    let mantissa = (fraction + int(F::SQRT_HALF_BITS)).bitcast::<F>();
    // The exponent, as the low bits of 2^FRACTION, is itself when that is taken off.
    let carrier = (F::BIAS + F::FRACTION) << F::FRACTION;
    let k = ((bits >> int(F::FRACTION)) | int(carrier)).bitcast::<F>();
    let bias = up + F::BIAS as f64;
    let k = k - select(tiny, float(bias + F::FRACTION as f64), float(bias));
    Split { k, f: mantissa - float(1.0) }
}

/// `y` for the logarithm of a positive finite number, the limit or NaN for another.
#[inline(always)]
#[track_caller]
fn at_bounds<M: Target, F: Format>(x: Val<M, F>, y: Val<M, F>) -> Val<M, F> {
    let zero = float::<M, F>(0.0);
    let finite = select(lt(x, Val::infinity()), y, x);
    select(gt(x, zero), finite, select(eq(x, zero), Val::neg_infinity(), Val::nan()))
}

#[inline(always)]
#[track_caller]
pub(super) fn log<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let Split { k, f } = split(x);
    let y = f + k.mul_add(float(F::LN2_LO), F::tail(f));
    at_bounds(x, k.mul_add(float(F::LN2_HI), y))
}

#[inline(always)]
#[track_caller]
pub(super) fn log2<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let Split { k, f } = split(x);
    let y = (f + F::tail(f)).mul_add(float(std::f64::consts::LOG2_E), k);
    at_bounds(x, y)
}

#[inline(always)]
#[track_caller]
pub(super) fn log10<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let Split { k, f } = split(x);
    let (hi, lo) = F::LOG10_2;
    let y = (f + F::tail(f)).mul_add(float(std::f64::consts::LOG10_E), k * float(lo));
    at_bounds(x, k.mul_add(float(hi), y))
}

#[inline(always)]
#[track_caller]
pub(super) fn log1p<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let sum = one + x;
    let Split { k, f } = split(sum);
    // 1 + f = 2^-k + 2^-k x exactly, before `sum` lost what x has below its last place; for a large x that is nothing.
    let inverse = inverse_power(k);
    let f = select(gt(k, float(F::FRACTION as f64 + 2.0)), f, inverse.mul_add(x, inverse - one));
    let y = f + k.mul_add(float(F::LN2_LO), F::tail(f));
    let y = at_bounds(sum, k.mul_add(float(F::LN2_HI), y));
    // Also keeps the sign of -0.
    select(lt(x.abs(), float(F::TINY)), x, y)
}

/// 2^-k for an integral k where that is a normal number.
#[inline(always)]
#[track_caller]
fn inverse_power<M: Target, F: Format>(k: Val<M, F>) -> Val<M, F> {
    let bits = (float::<M, F>(F::ROUNDER) - k).bitcast::<F::Bits>() - int(F::ROUNDER_BITS);
    super::power_of_2(bits)
}
