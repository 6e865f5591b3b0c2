//! Scales of two levels: small integers, of which some neighbours share a factor, as k-quants have scales of six bits behind a factor of
//! each super-block ([ggml](https://github.com/ggml-org/ggml)).

use super::remainder::Remainder;
use super::segments::RepeatEach;
use super::{Item, LaneItem, Lanes};
use crate::kernel::lang::dot_scaled::Scale;
use crate::kernel::lang::target::Target;
use crate::kernel::lang::value::Val;
use crate::kernel::lang::value::scalar::Float;

/// An integer of 8 bits, or a pair of these, whose factor is a float, or a pair.
#[diagnostic::on_unimplemented(
    message = "`{Self}` times `{F}` is not a scale of two levels",
    note = "integers are `u8` or `i8`, their factors floats; or both are pairs: scales and minima, and a factor of each"
)]
pub trait IntegerScale<M: Target, F>: Item<M> {
    /// The product.
    type Scale: Scale<M>;
    /// The integers times their factors; a minimum with its sign turned.
    #[doc(hidden)]
    fn times(self, factor: F) -> Self::Scale;
    /// The bits of the scale and the minimum, 0 if there is none.
    #[doc(hidden)]
    fn bits(self) -> [Val<M, u8>; 2];
    /// Whether they have a sign.
    #[doc(hidden)]
    const IS_SIGNED: bool;
    /// The factors of both.
    #[doc(hidden)]
    fn factors(factor: F) -> [Val<M, f32>; 2];
}

macro_rules! integer_scales {
    ($($integer:ident)*) => { $(
        impl<M: Target, T: Float> IntegerScale<M, Val<M, T>> for Val<M, $integer> {
            type Scale = Val<M, f32>;
            #[inline(always)]
            #[track_caller]
            fn times(self, factor: Val<M, T>) -> Val<M, f32> {
                factor.cast::<f32>() * self.cast::<f32>()
            }
            #[inline(always)]
            #[track_caller]
            fn bits(self) -> [Val<M, u8>; 2] {
                [self.cast::<u8>(), Val(M::int::<u8>(0))]
            }
            const IS_SIGNED: bool = $integer::MIN != 0;
            #[inline(always)]
            #[track_caller]
            fn factors(factor: Val<M, T>) -> [Val<M, f32>; 2] {
                [factor.cast::<f32>(), Val(M::int::<f32>(0))]
            }
        }

        impl<M: Target, T: Float> IntegerScale<M, (Val<M, T>, Val<M, T>)> for (Val<M, $integer>, Val<M, $integer>) {
            type Scale = (Val<M, f32>, Val<M, f32>);
            #[inline(always)]
            #[track_caller]
            fn times(self, (scale, minimum): (Val<M, T>, Val<M, T>)) -> Self::Scale {
                (self.0.times(scale), -self.1.times(minimum))
            }
            #[inline(always)]
            #[track_caller]
            fn bits(self) -> [Val<M, u8>; 2] {
                [self.0.cast::<u8>(), self.1.cast::<u8>()]
            }
            const IS_SIGNED: bool = $integer::MIN != 0;
            #[inline(always)]
            #[track_caller]
            fn factors((scale, minimum): (Val<M, T>, Val<M, T>)) -> [Val<M, f32>; 2] {
                [scale.cast::<f32>(), minimum.cast::<f32>()]
            }
        }
    )* };
}
integer_scales!(u8 i8);

/// Both levels of some scales.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply by integer scales"))]
pub struct Levels<M: Target, const N: usize> {
    /// The bits of the scales, and of the minima, which are 0 where there are none.
    pub(crate) integers: [M::Block<u8, N>; 2],
    /// Whether these integers have a sign.
    pub(crate) is_signed: bool,
    /// The factors of both.
    pub(crate) factors: [Val<M, f32>; 2],
}

impl<M: Target, const N: usize> Levels<M, N> {
    /// None.
    #[inline(always)]
    pub(super) fn zeros() -> Self {
        Levels { integers: [M::blank::<u8, N>(); 2], is_signed: false, factors: [Val(M::int::<f32>(0)); 2] }
    }
}

/// Integers times factors; made by [`Lanes::two_level`].
#[derive(Clone, Copy)]
pub struct TwoLevel<L, F, const S: usize> {
    pub(super) integers: L,
    pub(super) factors: RepeatEach<F, S>,
}

impl<M, L, F, const S: usize> Lanes<M> for TwoLevel<L, F, S>
where
    M: Target,
    L: Lanes<M, Item: IntegerScale<M, F::Item>>,
    F: Lanes<M, Item: LaneItem<M>>,
{
    type Item = <L::Item as IntegerScale<M, F::Item>>::Scale;
    type Block<const N: usize> = (L::Block<N>, <F::Item as LaneItem<M>>::Array<N>);
    const REMAINDER: Remainder = Remainder::Narrow;
    const FACTOR_LANES: usize = S;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.integers.len()
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.integers.plain(lo, hi) && self.factors.plain(lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
        (self.integers.block(at), self.factors.block(at))
    }
    #[inline(always)]
    #[track_caller]
    fn lane<const N: usize>(&self, (integers, factors): &Self::Block<N>, j: usize) -> Self::Item {
        self.integers.lane(integers, j).times(F::Item::lane(factors, j))
    }
    #[inline(always)]
    #[track_caller]
    fn levels<const N: usize>(self, at: M::At, factor: M::At) -> Levels<M, N> {
        let block = self.integers.block::<N>(at);
        let mut integers = [M::blank::<u8, N>(); 2];
        let mut j = 0;
        while j < N {
            let [scale, minimum] = self.integers.lane(&block, j).bits();
            M::set_lane(&mut integers[0], j, scale.0);
            M::set_lane(&mut integers[1], j, minimum.0);
            j += 1;
        }
        let factors = self.factors.0;
        let block = factors.block::<1>(factor);
        let factors = L::Item::factors(factors.lane(&block, 0));
        Levels { integers, is_signed: L::Item::IS_SIGNED, factors }
    }
}
