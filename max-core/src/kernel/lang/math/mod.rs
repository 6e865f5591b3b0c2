//! Math functions, written in the kernel language, so that every target computes the same polynomial.
//!
//! Each function is a method of [`Val`] for every [`Float`] dtype. `f32` and `f64` have their own constants; half
//! types compute in `f32`. There is no control flow and no table: all cases are evaluated and the right one selected,
//! which LLVM turns into vector code.
//!
//! **Errors** are the largest seen, in steps of the dtype at the exact result (ulp), with the argument. The first
//! figure of each pair holds with fused multiply-add: for levels V3 and V4, AArch64, the reference form and PTX, which
//! give the same bits. V2 multiplies and adds, and has its own. `f32` was compared with `f64` at every argument from
//! 2^-25 to where the result no longer changes, overflows or repeats (logarithms: from 2^-24 to 2^24; `rsqrt`: from 1
//! to 4), and at one in 1,009 of all bit patterns; `f64` with 120-bit arithmetic at 36,000 arguments. NaN gives NaN;
//! infinities, zeros and their signs are as IEEE 754-2019 and C have them.
//!
//! **Polynomials** were fitted for these functions: Remez exchange in 140-bit arithmetic for the smallest relative
//! error of the result over the reduced interval, each coefficient rounded in turn, lowest power first, and the rest
//! fitted again. Each names its interval and error.

mod erf;
mod exp;
mod hyperbolic;
mod inverse;
mod log;
mod plane;
mod pow;
mod trig;

use super::control::{float, int};
use super::target::Target;
use super::value::Val;
use super::value::scalar::{Bits, Float, Int, SameBits, Scalar, Signed};
use crate::dtype::DType;
pub(super) use exp::exp2_approx;

/// Calls the `f32` or the `f64` instance of a function for a dtype that computes in one of them.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $module:ident;)*) => {
        impl<M: Target, T: Float> Val<M, T> { $(
            $(#[$doc])*
            #[inline(always)]
            #[track_caller]
            pub fn $name(self $(, $arg: Self)*) -> Self {
                if M::wide::<T>() {
                    let y = $module::$name::<M, f64>(Val(M::rename::<T, f64>(self.0)) $(, Val(M::rename::<T, f64>($arg.0)))*);
                    Val(M::rename::<f64, T>(y.0))
                } else {
                    let y = $module::$name::<M, f32>(Val(M::rename::<T, f32>(self.0)) $(, Val(M::rename::<T, f32>($arg.0)))*);
                    Val(M::rename::<f32, T>(y.0))
                }
            }
        )* }
    };
}
methods! {
    /// The exponential.
    ///
    /// Error: `f32` 1.02 ulp at -5.8584495 (V2: 1.00 at 70.40124), `f64` 0.99.
    exp() = exp;
    /// 2 to the power `self`.
    ///
    /// Error: `f32` 0.97 ulp at 0.50210303 (V2: 1.25 at -0.49835828), `f64` 0.75.
    exp2() = exp;
    /// `e^self - 1`, accurate near 0.
    ///
    /// Error: `f32` 1.45 ulp at 16.988066 (V2: 1.48 at 0.3877632), `f64` 1.76.
    exp_m1() = exp;
    /// The natural logarithm: -infinity at 0, NaN below.
    ///
    /// Error: `f32` 0.87 ulp at 0.70652 (V2: 0.91 at 0.70665926), `f64` 0.76.
    log() = log;
    /// The logarithm to base 2; exact at powers of 2.
    ///
    /// Error: `f32` 1.81 ulp at 1.4122794 (V2: 1.83 at 1.409118), `f64` 1.38.
    log2() = log;
    /// The logarithm to base 10.
    ///
    /// Error: `f32` 1.95 ulp at 0.86891794 (V2: 1.95 at 0.86891794), `f64` 1.56.
    log10() = log;
    /// `log(1 + self)`, accurate near 0: -infinity at -1, NaN below.
    ///
    /// Error: `f32` 1.48 ulp at 0.4531217 (V2: 1.45 at 0.44617227), `f64` 0.78.
    log1p() = log;
    /// The sine, in radians; NaN at infinities.
    ///
    /// Error: `f32` 1.58 ulp at 2.794678e+26 (V2: 1.58 at 2.6469912e+31), `f64` 1.50.
    sin() = trig;
    /// The cosine, in radians; NaN at infinities.
    ///
    /// Error: `f32` 1.58 ulp at 1.9468792e+09 (V2: 1.59 at 1.4874547e+14), `f64` 1.38.
    cos() = trig;
    /// The tangent, in radians; NaN at infinities.
    ///
    /// Error: `f32` 3.72 ulp at 2.3006966e+09 (V2: 3.73 at 2.5606715e+34), `f64` 2.90.
    tan() = trig;
    /// The arc sine, from -π/2 to π/2; NaN beyond 1 in magnitude.
    ///
    /// Error: `f32` 2.35 ulp at 0.5002491 (V2: 2.37 at 0.5006458), `f64` 2.12.
    asin() = inverse;
    /// The arc cosine, from 0 to π; NaN beyond 1 in magnitude.
    ///
    /// Error: `f32` 1.12 ulp at 0.5418373 (V2: 1.14 at 0.5447005), `f64` 1.13.
    acos() = inverse;
    /// The arc tangent, from -π/2 to π/2.
    ///
    /// Error: `f32` 2.11 ulp at 0.4225898 (V2: 2.15 at 0.42671373), `f64` 1.73.
    atan() = inverse;
    /// The hyperbolic sine.
    ///
    /// Error: `f32` 2.18 ulp at 0.0155571755 (V2: 2.18 at 0.0155571755), `f64` 2.13.
    sinh() = hyperbolic;
    /// The hyperbolic cosine.
    ///
    /// Error: `f32` 1.47 ulp at 4.5296855 (V2: 1.44 at 4.5318217), `f64` 1.31.
    cosh() = hyperbolic;
    /// The hyperbolic tangent.
    ///
    /// Error: `f32` 2.50 ulp at 4.5050907 (V2: 2.50 at 4.5050907), `f64` 2.44.
    tanh() = hyperbolic;
    /// The inverse hyperbolic tangent: infinite at 1 and -1, NaN beyond.
    ///
    /// Error: `f32` 2.14 ulp at 0.18233171 (V2: 2.14 at 0.18233171), `f64` 1.34.
    atanh() = hyperbolic;
    /// The inverse hyperbolic sine.
    ///
    /// Error, at one argument in 211: `f32` 1.76 ulp at 0.24525391 (V2: 1.76 at 0.24525391).
    asinh() = hyperbolic;
    /// The inverse hyperbolic cosine: NaN below 1.
    ///
    /// Error, at one argument in 211: `f32` 1.91 ulp at 1.0259990 (V2: 1.91 at 1.0259990).
    acosh() = hyperbolic;
    /// The angle of the vector `(x, self)`, from -π to π: the arc tangent of `self / x`, in the right quadrant, as C has
    /// it for zeros and infinities.
    ///
    /// Error, at the coordinates tried: `f32` 2.40 ulp.
    atan2(x) = plane;
    /// The length of the vector `(self, y)`, which overflows no sooner than the result; infinite if either is.
    ///
    /// Error, at the coordinates tried: `f32` 1.95 ulp.
    hypot(y) = plane;
    /// The magnitude of `self` with the sign of `y`.
    copysign(y) = plane;
    /// `self` to the power `y`. 1 where `self` is 1 or `y` is 0, even if the other is NaN; a negative `self` has powers
    /// for integral `y` alone, and NaN for others.
    ///
    /// Error, at the bases and exponents tried: `f32` 0.51 ulp, `f64` 0.84.
    powf(y) = pow;
    /// `1 / (1 + e^-self)`, accurate where it is small.
    ///
    /// Error: `f32` 2.41 ulp at -4.157294 (V2: 2.41 at -4.157294), `f64` 2.08.
    sigmoid() = hyperbolic;
    /// The error function.
    ///
    /// Error: `f32` 1.31 ulp at 1.013103 (V2: 1.57 at 1.0160725), `f64` 1.21.
    erf() = erf;
}

impl<M: Target, T: Float> Val<M, T> {
    /// [`powi`](Self::powi) of an exponent that is known when the kernel runs: `x.powi(n)` in a kernel, where `n` is any integer.
    /// Rounded about once, as [`powf`](Self::powf); exact in the exponent and its sign below 2^53.
    #[inline(always)]
    #[track_caller]
    pub fn powi_by<I: Int>(self, n: Val<M, I>) -> Self {
        let odd = Val(M::cmp::<I, super::value::prim::op::Ne>((n & Val::one()).0, Val::<M, I>::zero().0));
        let n = n.cast::<f64>();
        if M::wide::<T>() {
            let y = pow::powi::<M, f64>(Val(M::rename::<T, f64>(self.0)), n, odd);
            Val(M::rename::<f64, T>(y.0))
        } else {
            let y = pow::powi::<M, f32>(Val(M::rename::<T, f32>(self.0)), n, odd);
            Val(M::rename::<f32, T>(y.0))
        }
    }

    /// The natural logarithm, by Rust's name: [`log`](Self::log).
    #[inline(always)]
    #[track_caller]
    pub fn ln(self) -> Self {
        self.log()
    }

    /// `log(1 + self)`, by Rust's name: [`log1p`](Self::log1p).
    #[inline(always)]
    #[track_caller]
    pub fn ln_1p(self) -> Self {
        self.log1p()
    }

    /// [`exp2`](Self::exp2), as exact as values of `P` need: where `P` is a half type or smaller, and this is computed in
    /// `f32`, with a relative error of 2^-22 (half a step of `f16` is 2^-12, of `bf16` 2^-9), at little more than half of the
    /// cost. On a GPU it is one instruction then, `ex2.approx`: the one function whose bits differ there. It is exact at 0;
    /// results below 2^-126 may be 0, and those above 2^127.5 infinite.
    ///
    /// For weights that are rounded anyway, such as those of attention: `exp(x)` is `exp2(x * LOG2_E)`.
    #[inline(always)]
    #[track_caller]
    pub fn exp2_as<P: Float>(self) -> Self {
        if M::wide::<T>() || matches!(P::dtype(), DType::F32 | DType::F64) {
            return self.exp2();
        }
        Val(M::rename::<f32, T>(M::exp2_approx(M::rename::<T, f32>(self.0))))
    }

    /// `1 / self`, correctly rounded.
    #[inline(always)]
    #[track_caller]
    pub fn recip(self) -> Self {
        Val::one() / self
    }

    /// `1 / sqrt(self)`: two correctly rounded operations, 1.50 ulp together. Infinity at 0 (-infinity at -0), NaN below.
    #[inline(always)]
    #[track_caller]
    pub fn rsqrt(self) -> Self {
        Val::one() / self.sqrt()
    }
}

/// The two formats that math functions compute in.
trait Format: Float + Signed + SameBits<Self::Bits> {
    /// The unsigned integer of the same size.
    type Bits: Int + Bits + SameBits<Self>;
    /// Bits of the fraction.
    const FRACTION: i128;
    /// The exponent's bias.
    const BIAS: i128;
    /// The sign bit.
    const SIGN: i128;
    /// 1.5 * 2^FRACTION: adding it to a number of magnitude below 2^(FRACTION - 1) rounds that to the nearest integer,
    /// which then stands in the low bits of the sum.
    const ROUNDER: f64;
    /// The bits of `ROUNDER`.
    const ROUNDER_BITS: i128;
    /// The bits of the square root of 1/2.
    const SQRT_HALF_BITS: i128;
    /// The upper part of ln(2), of so few bits that its product with any exponent is exact.
    const LN2_HI: f64;
    /// ln(2) - LN2_HI.
    const LN2_LO: f64;
}

impl Format for f32 {
    type Bits = u32;
    const FRACTION: i128 = 23;
    const BIAS: i128 = 127;
    const SIGN: i128 = 1 << 31;
    const ROUNDER: f64 = 1.5 * (1u64 << 23) as f64;
    const ROUNDER_BITS: i128 = (Self::ROUNDER as f32).to_bits() as i128;
    const SQRT_HALF_BITS: i128 = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i128;
    const LN2_HI: f64 = 355.0 / 512.0;
    const LN2_LO: f64 = std::f64::consts::LN_2 - Self::LN2_HI;
}

impl Format for f64 {
    type Bits = u64;
    const FRACTION: i128 = 52;
    const BIAS: i128 = 1023;
    const SIGN: i128 = 1 << 63;
    const ROUNDER: f64 = 1.5 * (1u64 << 52) as f64;
    const ROUNDER_BITS: i128 = Self::ROUNDER.to_bits() as i128;
    const SQRT_HALF_BITS: i128 = std::f64::consts::FRAC_1_SQRT_2.to_bits() as i128;
    // The upper 32 bits of ln(2), and the rest.
    const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
}

/// A polynomial by Horner's rule, coefficients from the constant term up.
macro_rules! horner {
    ($x:expr; $c:expr) => { $crate::kernel::lang::float($c) };
    ($x:expr; $c:expr, $($rest:expr),+ $(,)?) => {
        horner!($x; $($rest),+).mul_add($x, $crate::kernel::lang::float($c))
    };
}
use horner;

/// `c ? a : b`
#[inline(always)]
#[track_caller]
fn select<M: Target, T: Scalar>(c: Val<M, bool>, a: Val<M, T>, b: Val<M, T>) -> Val<M, T> {
    Val(M::select::<T>(c.0, a.0, b.0))
}

/// At least `lo` and at most `hi`; NaN stays NaN. (Cheaper than [`Val::clamp`], which orders zeros too.)
#[inline(always)]
#[track_caller]
fn limit<M: Target, F: Float>(x: Val<M, F>, lo: f64, hi: f64) -> Val<M, F> {
    let (lo, hi) = (float::<M, F>(lo), float::<M, F>(hi));
    let x = select(super::gt(x, hi), hi, x);
    select(super::lt(x, lo), lo, x)
}

/// The magnitude of `x` with the sign of `y`.
#[inline(always)]
#[track_caller]
fn copysign<M: Target, F: Format>(x: Val<M, F>, y: Val<M, F>) -> Val<M, F> {
    let sign = int::<M, F::Bits>(F::SIGN);
    ((x.bitcast::<F::Bits>() & !sign) | (y.bitcast::<F::Bits>() & sign)).bitcast::<F>()
}

/// An integer of magnitude below 2^(FRACTION - 1), nearest to a float.
struct Rounded<M: Target, F: Format> {
    /// As a float.
    float: Val<M, F>,
    /// In two's complement.
    int: Val<M, F::Bits>,
}

/// Rounds `x * scale` to an integer.
#[inline(always)]
#[track_caller]
fn round<M: Target, F: Format>(x: Val<M, F>, scale: f64) -> Rounded<M, F> {
    let rounder = float::<M, F>(F::ROUNDER);
    let t = if scale == 1.0 { x + rounder } else { x.mul_add(float(scale), rounder) };
    Rounded { float: t - rounder, int: t.bitcast::<F::Bits>() - int(F::ROUNDER_BITS) }
}

/// `x * 2^n` for `|n|` up to twice the largest exponent: rounded once, also where the result is denormal, since the
/// first of two factors does not bring a number around 1 there.
#[inline(always)]
#[track_caller]
fn scale<M: Target, F: Format>(x: Val<M, F>, n: Val<M, F::Bits>) -> Val<M, F> {
    // Twice the bias makes it positive, and each half a biased exponent.
    let n = n + int(2 * F::BIAS);
    let half = n >> int(1);
    let rest = n - half;
    let exponent = |e: Val<M, F::Bits>| (e << int(F::FRACTION)).bitcast::<F>();
    x * exponent(half) * exponent(rest)
}

/// `2^n` where that is a normal number.
#[inline(always)]
#[track_caller]
fn power_of_2<M: Target, F: Format>(n: Val<M, F::Bits>) -> Val<M, F> {
    ((n + int(F::BIAS)) << int(F::FRACTION)).bitcast::<F>()
}
