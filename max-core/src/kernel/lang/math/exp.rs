//! `exp`, `exp2` and `exp_m1`.
//!
//! Cody and Waite's reduction: x = n ln(2) + r with |r| <= ln(2)/2, ln(2) taken in two parts so that r is exact to
//! twice the precision; a polynomial in r; 2^n by its exponent bits.

use super::super::control::{float, gt, int, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::{Format, Rounded, horner, limit, power_of_2, round, scale, select};

/// What differs between the formats.
pub(super) trait Exp: Format {
    /// Below, e^x rounds to 0; above, to infinity.
    const RANGE: (f64, f64);
    /// Above, 2^x rounds to infinity.
    const MOST_2: f64;
    /// 2^x is 0 times 0 from here down: results that are too small to be there would else be found by multiplying, and processors
    /// take a hundred times as long to round these.
    const ZERO_2: f64 = -2.0 * Self::BIAS as f64;
    /// Below, e^x - 1 rounds to -1.
    const MINUS_ONE: f64;
    /// Below in magnitude, e^x - 1 rounds to x.
    const TINY: f64;

    /// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2.
    fn tail<M: Target>(r: Val<M, Self>) -> Val<M, Self>;
    /// The same, for e^r - 1 with a small relative error.
    fn tail_m1<M: Target>(r: Val<M, Self>) -> Val<M, Self>;
    /// (2^r - 1) / r for |r| <= 1/2.
    fn tail_2<M: Target>(r: Val<M, Self>) -> Val<M, Self>;
}

impl Exp for f32 {
    const RANGE: (f64, f64) = (-104.0, 89.0);
    const MOST_2: f64 = 129.0;
    const MINUS_ONE: f64 = -18.0;
    const TINY: f64 = 2.98e-8; // 2^-25

    // Error of e^r: 2^-28.0.
    #[inline(always)]
    #[track_caller]
    fn tail<M: Target>(r: Val<M, f32>) -> Val<M, f32> {
        horner!(r; 0.4999999403953552, 0.16666516661643982, 0.041668131947517395, 0.008369041606783867,
            0.00138274603523314)
    }
    // Error of e^r - 1: 2^-28.2.
    #[inline(always)]
    #[track_caller]
    fn tail_m1<M: Target>(r: Val<M, f32>) -> Val<M, f32> {
        horner!(r; 0.5, 0.16666635870933533, 0.041666511446237564, 0.008341613225638866, 0.0013930527493357658,
            0.00014923325215931982)
    }
    // Error of 2^r: 2^-26.0.
    #[inline(always)]
    #[track_caller]
    fn tail_2<M: Target>(r: Val<M, f32>) -> Val<M, f32> {
        horner!(r; 0.6931471824645996, 0.24022650718688965, 0.055503278970718384, 0.009618003852665424,
            0.001340029644779861, 0.00015476331464014947)
    }
}

impl Exp for f64 {
    const RANGE: (f64, f64) = (-746.0, 710.0);
    const MOST_2: f64 = 1025.0;
    const MINUS_ONE: f64 = -38.0;
    const TINY: f64 = 5.55e-17; // 2^-54

    // Error of e^r: 2^-56.7.
    #[inline(always)]
    #[track_caller]
    fn tail<M: Target>(r: Val<M, f64>) -> Val<M, f64> {
        horner!(r; 0.5000000000000011, 0.16666666666666438, 0.04166666666652831, 0.008333333333457853,
            0.0013888888943471062, 0.00019841269589029534, 2.4801493811864953e-05, 2.755752114722265e-06,
            2.76298424564219e-07, 2.501645554291369e-08)
    }
    // Error of e^r - 1: 2^-58.2.
    #[inline(always)]
    #[track_caller]
    fn tail_m1<M: Target>(r: Val<M, f64>) -> Val<M, f64> {
        horner!(r; 0.5, 0.16666666666666677, 0.04166666666666669, 0.008333333333321738, 0.0013888888888884622,
            0.00019841269885443447, 2.480158730101505e-05, 2.7557242908691684e-06, 2.7557299001124226e-07,
            2.5110653580005593e-08, 2.0909634124674017e-09)
    }
    // Error of 2^r: 2^-57.5.
    #[inline(always)]
    #[track_caller]
    fn tail_2<M: Target>(r: Val<M, f64>) -> Val<M, f64> {
        horner!(r; std::f64::consts::LN_2, 0.2402265069591015, 0.05550410866482406, 0.00961812910758633,
            0.0013333558145771224, 0.0001540353046708895, 1.5252734488878872e-05, 1.3215430289443363e-06,
            1.0177775664459267e-07, 7.07463865869559e-09, 4.4995759447417783e-10)
    }
}

/// n, the integer nearest x / ln(2), and r = x - n ln(2).
#[inline(always)]
#[track_caller]
fn reduce<M: Target, F: Exp>(x: Val<M, F>) -> (Rounded<M, F>, Val<M, F>) {
    let n = round(x, std::f64::consts::LOG2_E);
    let r = n.float.mul_add(float(-F::LN2_HI), x);
    let r = n.float.mul_add(float(-F::LN2_LO), r);
    (n, r)
}

/// 2^k e^x for a small k.
#[inline(always)]
#[track_caller]
fn exp_scaled<M: Target, F: Exp>(x: Val<M, F>, k: i128) -> Val<M, F> {
    // A negative k lets x grow further before the result overflows.
    let least = if k == 0 { F::ZERO_2 * std::f64::consts::LN_2 } else { F::RANGE.0 };
    let (n, r) = reduce(limit(x, least, F::RANGE.1 - k as f64));
    let y = (r * r).mul_add(F::tail(r), r) + float(1.0);
    scale(y, n.int + int(k))
}

#[inline(always)]
#[track_caller]
pub(super) fn exp<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    exp_scaled(x, 0)
}

/// e^x / 2, which overflows later than e^x.
#[inline(always)]
#[track_caller]
pub(super) fn exp_half<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    exp_scaled(x, -1)
}

#[inline(always)]
#[track_caller]
pub(super) fn exp2<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    let x = limit(x, F::ZERO_2, F::MOST_2);
    let n = round(x, 1.0);
    let r = x - n.float;
    scale(r.mul_add(F::tail_2(r), float(1.0)), n.int)
}

/// 2^x to a relative error of 2^-22.3: the one factor 2^n is 0 or infinite where it is no normal number.
#[inline(always)]
#[track_caller]
pub(in super::super) fn exp2_approx<M: Target>(x: Val<M, f32>) -> Val<M, f32> {
    let x = limit(x, -127.0, 128.0);
    let n = round(x, 1.0);
    let r = x - n.float;
    let y = horner!(r; 1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957,
        0.001326472731307149);
    y * power_of_2(n.int)
}

/// 2^k (e^x - 1) for a small k.
#[inline(always)]
#[track_caller]
fn exp_m1_scaled<M: Target, F: Exp>(x: Val<M, F>, k: i128) -> Val<M, F> {
    let (n, r) = reduce(limit(x, F::MINUS_ONE, F::RANGE.1 - k as f64));
    let y = (r * r).mul_add(F::tail_m1(r), r);
    // 2^n (y + 1 - 2^-n), where 2^-n no longer matters for a large n.
    let inverse = power_of_2::<M, F>(int::<M, F::Bits>(0) - n.int);
    let shift = select(gt(n.float, float(2.0 * F::FRACTION as f64)), float(1.0), float::<M, F>(1.0) - inverse);
    scale(y + shift, n.int + int(k))
}

#[inline(always)]
#[track_caller]
pub(super) fn exp_m1<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    // Also keeps the sign of -0.
    select(lt(x.abs(), float(F::TINY)), x, exp_m1_scaled(x, 0))
}

/// (e^x - 1) / 2, which overflows later than e^x.
#[inline(always)]
#[track_caller]
pub(super) fn exp_m1_half<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    exp_m1_scaled(x, -1)
}

/// e^x - 1 for x <= 0 down to where that rounds to -1.
#[inline(always)]
#[track_caller]
pub(super) fn exp_m1_negative<M: Target, F: Exp>(x: Val<M, F>) -> Val<M, F> {
    let (n, r) = reduce(x);
    let y = (r * r).mul_add(F::tail_m1(r), r);
    let power = power_of_2::<M, F>(n.int);
    y.mul_add(power, power - float(1.0))
}
