//! Methods of numbers that are made of others.

use super::super::control::{ge, gt, lt};
use super::super::target::Target;
use super::Val;
use super::scalar::{Float, Int, Number, Signed};

/// `c ? a : b`
#[inline(always)]
#[track_caller]
fn select<M: Target, T: Number>(c: Val<M, bool>, a: Val<M, T>, b: Val<M, T>) -> Val<M, T> {
    Val(M::select::<T>(c.0, a.0, b.0))
}

/// `x` to the power `n`, by squaring.
#[inline(always)]
#[track_caller]
fn power<M: Target, T: Number>(x: Val<M, T>, mut n: u32) -> Val<M, T> {
    let (mut square, mut result) = (x, None);
    while n > 0 {
        if n & 1 == 1 {
            result = Some(result.map_or(square, |result: Val<M, T>| result * square));
        }
        n >>= 1;
        if n > 0 {
            square = square * square;
        }
    }
    result.unwrap_or(Val::one())
}

impl<M: Target, T: Number> Val<M, T> {
    /// The remainder that is not negative: that of the division that rounds so; `x.rem_euclid(0)` of integers is 0.
    #[inline(always)]
    #[track_caller]
    pub fn rem_euclid(self, b: Self) -> Self {
        let rest = self % b;
        select(lt(rest, Val::zero()), rest + b.abs(), rest)
    }

    /// The distance of two numbers; that of signed integers wraps.
    #[inline(always)]
    #[track_caller]
    pub fn abs_diff(self, b: Self) -> Self {
        self.max(b) - self.min(b)
    }
}

impl<M: Target, T: Int> Val<M, T> {
    /// `self` to the power `N`, a literal in a kernel: `x.pow(3)`; wraps.
    #[inline(always)]
    #[track_caller]
    pub fn pow<const N: u32>(self) -> Self {
        power(self, N)
    }

    /// The quotient whose remainder is not negative; `x.div_euclid(0)` is 0.
    #[inline(always)]
    #[track_caller]
    pub fn div_euclid(self, b: Self) -> Self {
        let (quotient, rest, zero) = (self / b, self % b, Val::zero());
        let step = select(gt(b, zero), quotient - Val::one(), quotient + Val::one());
        select(lt(rest, zero), step, quotient)
    }

    /// The sum, or the limit of the dtype that it is beyond.
    #[inline(always)]
    #[track_caller]
    pub fn saturating_add(self, b: Self) -> Self {
        let (sum, up) = (self + b, ge(b, Val::zero()));
        let over = select(up, Val::max_value(), Val::min_value());
        let wrapped = (up & lt(sum, self)) | (!up & gt(sum, self));
        select(wrapped, over, sum)
    }

    /// The difference, or the limit of the dtype that it is beyond.
    #[inline(always)]
    #[track_caller]
    pub fn saturating_sub(self, b: Self) -> Self {
        let (difference, down) = (self - b, ge(b, Val::zero()));
        let over = select(down, Val::min_value(), Val::max_value());
        let wrapped = (down & gt(difference, self)) | (!down & lt(difference, self));
        select(wrapped, over, difference)
    }
}

impl<M: Target, T: Float> Val<M, T> {
    /// `self` to the power `N`, a literal in a kernel: `x.powi(3)`, `x.powi(-1)`. By multiplications, each rounded;
    /// [`powf`](Self::powf) rounds about once, and takes any exponent.
    #[inline(always)]
    #[track_caller]
    pub fn powi<const N: i32>(self) -> Self {
        let power = power(self, N.unsigned_abs());
        if N < 0 { power.recip() } else { power }
    }

    /// The nearest integral value, ties away from 0. [`round_ties_even`](Self::round_ties_even) is faster.
    #[inline(always)]
    #[track_caller]
    pub fn round(self) -> Self {
        let whole = self.trunc();
        let half = Val(M::float::<T>(0.5));
        // Exact, as both have the same exponent or the part behind the point is all there is.
        let away = ge((self - whole).abs(), half);
        select(away, whole + Val::one().copysign(self), whole).copysign(self)
    }

    /// The part behind the point, with the sign of `self`.
    #[inline(always)]
    #[track_caller]
    pub fn fract(self) -> Self {
        self - self.trunc()
    }

    /// Whether this is neither infinite nor NaN.
    #[inline(always)]
    #[track_caller]
    pub fn is_finite(self) -> Val<M, bool> {
        lt(self.abs(), Self::infinity())
    }
}

impl<M: Target, T: Signed> Val<M, T> {
    /// -1, 0 or 1, as NumPy and PyTorch have it: a zero is itself, and NaN too.
    #[inline(always)]
    #[track_caller]
    pub fn sign(self) -> Self {
        let (zero, one) = (Self::zero(), Self::one());
        select(gt(self, zero), one, select(lt(self, zero), -one, self))
    }
}
