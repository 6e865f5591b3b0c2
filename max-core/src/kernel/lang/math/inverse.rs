//! `asin`, `acos` and `atan`.

use std::f64::consts::SQRT_2;

use super::super::control::{float, gt, le};
use super::super::target::Target;
use super::super::value::Val;
use super::{Format, copysign, horner, select};

/// What differs between the formats.
pub(super) trait Inverse: Format {
    /// π/2 in two parts.
    const PI_2: (f64, f64);
    /// π/4 in two parts.
    const PI_4: (f64, f64) = (Self::PI_2.0 / 2.0, Self::PI_2.1 / 2.0);

    /// (asin(t) - t) / t^3 for z = t^2 <= 1/4.
    fn asin_tail<M: Target>(z: Val<M, Self>) -> Val<M, Self>;
    /// (atan(t) - t) / t^3 for z = t^2, |t| <= tan(π/8).
    fn atan_tail<M: Target>(z: Val<M, Self>) -> Val<M, Self>;
}

impl Inverse for f32 {
    const PI_2: (f64, f64) = (std::f32::consts::FRAC_PI_2 as f64, -4.3711390001862426e-08);

    // Error of the arc sine: 2^-27.6.
    #[inline(always)]
    #[track_caller]
    fn asin_tail<M: Target>(z: Val<M, f32>) -> Val<M, f32> {
        horner!(z; 0.16666752099990845, 0.07495306432247162, 0.04546976089477539, 0.024180838838219643,
            0.04216627776622772)
    }
    // Error of the arc tangent: 2^-30.4.
    #[inline(always)]
    #[track_caller]
    fn atan_tail<M: Target>(z: Val<M, f32>) -> Val<M, f32> {
        horner!(z; -0.33333316445350647, 0.19998528063297272, -0.14244389533996582, 0.10599144548177719,
            -0.06089961156249046)
    }
}

impl Inverse for f64 {
    const PI_2: (f64, f64) = (std::f64::consts::FRAC_PI_2, 6.123233995736766e-17);

    // Error of the arc sine: 2^-55.9.
    #[inline(always)]
    #[track_caller]
    fn asin_tail<M: Target>(z: Val<M, f64>) -> Val<M, f64> {
        horner!(z; 0.16666666666665403, 0.075000000003386, 0.044642856826835796, 0.030381959205508426,
            0.022371756260993615, 0.017359733661052427, 0.013884933441249196, 0.012171291670375887,
            0.006518600513295651, 0.019554868290520232, -0.0162673716296631, 0.03194270203926949)
    }
    // Error of the arc tangent: 2^-59.4.
    #[inline(always)]
    #[track_caller]
    fn atan_tail<M: Target>(z: Val<M, f64>) -> Val<M, f64> {
        horner!(z; -0.333333333333332, 0.19999999999953652, -0.14285714280193254, 0.11111110782977604,
            -0.0909089773769481, 0.07692059781043091, -0.06663098465141595, 0.05847845012241212,
            -0.05039092034678419, 0.03805888846640598, -0.01790075551384359)
    }
}

/// Whether |x| <= 1/2, and asin(|x|); beyond, asin(t) with t^2 = (1 - |x|) / 2, which is half of acos(|x|).
#[inline(always)]
#[track_caller]
fn arc<M: Target, F: Inverse>(x: Val<M, F>) -> (Val<M, bool>, Val<M, F>) {
    let a = x.abs();
    let near = le(a, float(0.5));
    let z = select(near, x * x, (float::<M, F>(1.0) - a) * float(0.5));
    let t = select(near, a, z.sqrt());
    (near, (t * z).mul_add(F::asin_tail(z), t))
}

#[inline(always)]
#[track_caller]
pub(super) fn asin<M: Target, F: Inverse>(x: Val<M, F>) -> Val<M, F> {
    let (near, y) = arc(x);
    let far = float::<M, F>(F::PI_2.0) - (y * float(2.0) - float(F::PI_2.1));
    copysign(select(near, y, far), x)
}

#[inline(always)]
#[track_caller]
pub(super) fn acos<M: Target, F: Inverse>(x: Val<M, F>) -> Val<M, F> {
    let (near, y) = arc(x);
    let (hi, lo) = (float::<M, F>(F::PI_2.0), float::<M, F>(F::PI_2.1));
    let middle = hi - (copysign(y, x) - lo);
    let far = select(gt(x, float(0.0)), y, hi - (y - lo)) * float(2.0);
    select(near, middle, far)
}

/// With |x| from tan(π/8) to tan(3π/8) turned by π/4, and beyond that by π/2.
#[inline(always)]
#[track_caller]
pub(super) fn atan<M: Target, F: Inverse>(x: Val<M, F>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let zero = float::<M, F>(0.0);
    let a = x.abs();
    let (turned, steep) = (gt(a, float(SQRT_2 - 1.0)), gt(a, float(SQRT_2 + 1.0)));
    let above = select(steep, -one, select(turned, a - one, a));
    let below = select(steep, a, select(turned, a + one, one));
    let t = above / below;
    let z = t * t;
    let hi = select(steep, float(F::PI_2.0), select(turned, float(F::PI_4.0), zero));
    let lo = select(steep, float(F::PI_2.1), select(turned, float(F::PI_4.1), zero));
    copysign(hi + ((t * z).mul_add(F::atan_tail(z), t) + lo), x)
}
