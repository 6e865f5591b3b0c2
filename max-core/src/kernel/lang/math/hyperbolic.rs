//! `tanh` and `sigmoid`, from the exponential of a negative argument, which cannot overflow.

use super::super::control::{float, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::exp::{Exp, exp, exp_m1_negative};
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
