//! `sinh`, `cosh`, `tanh`, their inverses and `sigmoid`, from exponentials and logarithms.

use std::f64::consts::LN_2;

use super::super::control::{float, gt, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::exp::{Exp, exp, exp_half, exp_m1_half, exp_m1_negative};
use super::log::{Log, log1p};
use super::{copysign, limit, select};

/// -t / (t + 2) with t = e^(-2|x|) - 1.
#[inline(always)]
#[track_caller]
pub(super) fn tanh<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    // Beyond, 1 is nearest; the upper bound holds always.
    let t = exp_m1_negative(limit(x.abs() * float(-2.0), 2.0 * F::MINUS_ONE, 1.0));
    copysign(t / (t + float(2.0)), x)
}

/// With e = e^(-|x|): 1 / (1 + e), and e / (1 + e) where x is negative.
#[inline(always)]
#[track_caller]
pub(super) fn sigmoid<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let e = exp(-x.abs());
    select(lt(x, float(0.0)), e, one) / (one + e)
}

/// With t = e^|x| - 1: (t + t / (t + 1)) / 2, of which t / 2 overflows no sooner than the result.
#[inline(always)]
#[track_caller]
pub(super) fn sinh<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    let half = exp_m1_half(x.abs());
    let rest = half / (half * float(2.0) + float(1.0));
    copysign(select(lt(half, Val::infinity()), half + rest, half), x)
}

/// h + 1 / (4h) with h = e^|x| / 2.
#[inline(always)]
#[track_caller]
pub(super) fn cosh<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    let half = exp_half(x.abs());
    half + float::<M, F>(0.25) / half
}

/// log(1 + 2|x| / (1 - |x|)) / 2
#[inline(always)]
#[track_caller]
pub(super) fn atanh<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let a = x.abs();
    let ratio = (a * float(2.0)) / (float::<M, F>(1.0) - a);
    copysign(log1p(ratio) * float(0.5), x)
}

/// log(1 + t) with t = |x| + x^2 / (1 + sqrt(1 + x^2)); log(2|x|) where that is as good and x^2 could overflow.
#[inline(always)]
#[track_caller]
pub(super) fn asinh<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let (a, one) = (x.abs(), float::<M, F>(1.0));
    let square = a * a;
    copysign(log_of_sum(a, a + square / (one + (one + square).sqrt())), x)
}

/// log(1 + t) with t = x - 1 + sqrt((x - 1) (x + 1)); as above where x is large.
#[inline(always)]
#[track_caller]
pub(super) fn acosh<M: Target, F: Log>(x: Val<M, F>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let above = x - one;
    let y = log_of_sum(x, above + (above * (x + one)).sqrt());
    select(lt(x, one), Val::nan(), y)
}

/// log(1 + t), or, of an x so large that 1 does not change it, log(2x).
#[inline(always)]
#[track_caller]
fn log_of_sum<M: Target, F: Log>(x: Val<M, F>, t: Val<M, F>) -> Val<M, F> {
    let large = gt(x, float((1u64 << (F::FRACTION + 1)) as f64));
    log1p(select(large, x, t)) + select(large, float(LN_2), float(0.0))
}
