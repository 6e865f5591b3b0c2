//! `powf`: 2^(y log2(|x|)), with the logarithm to more digits than the result has, since the product's integral part
//! takes some of them.

use super::super::control::{eq, float, ge, gt, int, lt, ne};
use super::super::target::Target;
use super::super::value::Val;
use super::super::value::scalar::{Float, Signed};
use super::exp::Exp;
use super::log::{Split, split};
use super::{Format, horner, limit, power_of_2, round, scale, select};

/// What differs between the formats.
pub(super) trait Pow: Format {
    /// a^y for a >= 0, where neither is NaN; NaN for 0^0, infinity^0 and 1^infinity.
    fn magnitude<M: Target>(a: Val<M, Self>, y: impl FnOnce() -> Val<M, f64>) -> Val<M, Self>;
}

#[inline(always)]
#[track_caller]
pub(super) fn powf<M: Target, F: Pow>(x: Val<M, F>, y: Val<M, F>) -> Val<M, F> {
    let (zero, one) = (float::<M, F>(0.0), float::<M, F>(1.0));
    let a = x.abs();
    let magnitude = F::magnitude(
        a,
        #[inline(always)]
        || y.cast::<f64>(),
    );
    let power = select(eq(a, one), one, magnitude);
    // Numbers too large to have a fraction are even.
    let half = y * float(0.5);
    let integral = eq(y.trunc(), y);
    let odd = integral & ne(half.trunc(), half);
    let signed = (power.bitcast::<F::Bits>() | (x.bitcast::<F::Bits>() & int(F::SIGN))).bitcast::<F>();
    let power = select(odd, signed, power);
    let undefined = lt(x, zero) & !integral & gt(x, Val::neg_infinity());
    let undefined = undefined | ne(x, x) | ne(y, y);
    let power = select(undefined, Val::nan(), power);
    select(eq(x, one) | eq(y, zero), one, power)
}

/// `x` to the power `n`, an integral number whose parity is known.
#[inline(always)]
#[track_caller]
pub(super) fn powi<M: Target, F: Pow>(x: Val<M, F>, n: Val<M, f64>, odd: Val<M, bool>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let a = x.abs();
    let magnitude = F::magnitude(
        a,
        #[inline(always)]
        || n,
    );
    let power = select(eq(a, one), one, magnitude);
    let signed = (power.bitcast::<F::Bits>() | (x.bitcast::<F::Bits>() & int(F::SIGN))).bitcast::<F>();
    let power = select(odd, signed, power);
    let power = select(ne(x, x), Val::nan(), power);
    select(eq(n, float(0.0)), one, power)
}

impl Pow for f32 {
    /// In `f64`, where all digits that are needed fit.
    #[inline(always)]
    #[track_caller]
    fn magnitude<M: Target>(a: Val<M, f32>, y: impl FnOnce() -> Val<M, f64>) -> Val<M, f32> {
        // log2(1 + f) = 2 atanh(s) / ln(2) with s = f / (2 + f). Error: 2^-37.8.
        let Split { k, f } = split(a.cast::<f64>());
        let s = f / (f + float(2.0));
        let z = s * s;
        let log = s.mul_add(
            horner!(z; 2.885390081790082, 0.9617966733481477, 0.577083583627701, 0.4116728051472212,
            0.34072841997031333),
            k,
        );
        let product = times_log(a, log, y());
        let product = limit(product, -160.0, 160.0);
        let n = round(product, 1.0);
        let r = product - n.float;
        // (2^r - 1) / r. Error of 2^r: 2^-34.3.
        let tail = horner!(r; 0.6931471805416092, 0.24022651076294893, 0.05550410962770847, 0.009618036839364996,
            0.001333343060460067, 0.0001546713504293344, 1.5314991577444797e-05);
        (r.mul_add(tail, float(1.0)) * power_of_2(n.int)).cast::<f32>()
    }
}

/// `y * log`, where `log` stands for the logarithm of `a`, but is not right where that is infinite.
#[inline(always)]
#[track_caller]
fn times_log<M: Target, F: Float + Signed, G: Float>(a: Val<M, F>, log: Val<M, G>, y: Val<M, G>) -> Val<M, G> {
    let log = select(eq(a, float(0.0)), Val::neg_infinity(), log);
    y * select(ge(a, Val::infinity()), Val::infinity(), log)
}

/// The upper 26 bits: a product of two such numbers is exact.
#[inline(always)]
#[track_caller]
fn head<M: Target>(x: Val<M, f64>) -> Val<M, f64> {
    (x.bitcast::<u64>() & int(-1 << 27)).bitcast::<f64>()
}

impl Pow for f64 {
    /// With numbers in two parts, of which the first has 26 bits.
    #[inline(always)]
    #[track_caller]
    fn magnitude<M: Target>(a: Val<M, f64>, y: impl FnOnce() -> Val<M, f64>) -> Val<M, f64> {
        let y = y();
        let Split { k, f } = split(a);
        // s = f / d with d = 2 + f, in parts.
        let sum = f + float(2.0);
        let (d0, d1) = (head(sum), (sum - head(sum)) + (f - (sum - float(2.0))));
        let inverse = float::<M, f64>(1.0) / sum;
        let s = f * inverse;
        let s0 = head(s);
        let s1 = ((f - s0 * d0) - s0 * d1) * inverse;
        // log2(1 + f) = c s (3 + z + rest) with c = 2 / (3 ln(2)) and z = s^2. Error: 2^-73.4.
        let z = s * s;
        let z0 = s0 * s0;
        let rest = (z * z).mul_add(
            horner!(z; 0.5999999999999998, 0.4285714285716293, 0.33333333327254033,
            0.27272728206573726, 0.2307684116334844, 0.2000427719393811, 0.17515840783192158, 0.17956306970210617),
            s1 * (s0 + s),
        );
        let three = float::<M, f64>(3.0);
        let t0 = head(three + z0 + rest);
        let t1 = rest - ((t0 - three) - z0);
        let u = s0 * t0;
        let v = s1 * t0 + s * t1;
        let w0 = head(u + v);
        let w1 = v - (w0 - u);
        let p = w0 * float(C_HI);
        let q = w0 * float(C_LO) + w1 * float(C_HI + C_LO);
        let l0 = head((p + q) + k);
        let l1 = q - ((l0 - k) - p);
        // y (l0 + l1) in two parts, where that is neither huge nor infinite.
        let estimate = times_log(a, l0, y);
        let y0 = head(y);
        let p = y0 * l0;
        let q = (y - y0) * l0 + y * l1;
        let inside = lt(estimate.abs(), float(1100.0));
        let p = select(inside, p, limit(estimate, -1100.0, 1100.0));
        let q = select(inside, q, float(0.0));
        let n = round(p + q, 1.0);
        let r = (p - n.float) + q;
        scale(r.mul_add(f64::tail_2(r), float(1.0)), n.int)
    }
}

/// 2 / (3 ln(2)): its upper 26 bits, and the rest.
const C_HI: f64 = 0.9617966860532761;
const C_LO: f64 = 7.872699542894897e-09;
