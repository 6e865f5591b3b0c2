//! `hypot` and `atan2`: the length of a vector and its angle.

use super::super::control::{eq, float, gt, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::inverse::{Inverse, atan};
use super::{Format, select};

pub(super) use super::copysign;

/// The larger of two magnitudes, and the smaller as a part of it: 0 of two zeros, 1 of two infinities.
#[inline(always)]
#[track_caller]
fn ratio<M: Target, F: Format>(a: Val<M, F>, b: Val<M, F>) -> (Val<M, F>, Val<M, F>) {
    let (large, small) = (a.max(b), a.min(b));
    let ratio = select(eq(large, float(0.0)), float(0.0), small / large);
    (large, select(eq(small, Val::infinity()), float(1.0), ratio))
}

/// Of the larger a and the part r: a sqrt(1 + r^2), which overflows no sooner than the result.
#[inline(always)]
#[track_caller]
pub(super) fn hypot<M: Target, F: Format>(x: Val<M, F>, y: Val<M, F>) -> Val<M, F> {
    let (a, b) = (x.abs(), y.abs());
    let (large, r) = ratio(a, b);
    let length = large * r.mul_add(r, float(1.0)).sqrt();
    select(eq(a, Val::infinity()) | eq(b, Val::infinity()), Val::infinity(), length)
}

/// The arc tangent of the smaller by the larger coordinate, turned into its octant.
#[inline(always)]
#[track_caller]
pub(super) fn atan2<M: Target, F: Inverse>(y: Val<M, F>, x: Val<M, F>) -> Val<M, F> {
    let (a, b) = (y.abs(), x.abs());
    let angle = atan(ratio(a, b).1);
    let (hi, lo) = F::PI_2;
    let steep = float::<M, F>(hi) - (angle - float(lo));
    let angle = select(gt(a, b), steep, angle);
    let back = float::<M, F>(2.0 * hi) - (angle - float(2.0 * lo));
    // The sign decides, so that -0 is behind.
    let behind = lt(copysign(float::<M, F>(1.0), x), float(0.0));
    copysign(select(behind, back, angle), y)
}
