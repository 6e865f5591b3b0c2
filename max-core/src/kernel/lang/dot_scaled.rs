//! Scaled integers: tiles of 8-bit integers with a scale for some neighbours in each row, as quantized weights are, and products of
//! these ("microscaling"; Triton's `dot_scaled`).

use std::marker::PhantomData;

use super::control::Var;
use super::lanes::segments::item;
use super::lanes::two_level_scales::Levels;
use super::lanes::{Item, Lanes};
use super::target::Target;
use super::tile::{Tile, View};
use super::value::Val;
use super::value::prim::op;

/// `R` rows of `K` integers of 8 bits, of which each `K / G` neighbours in a row have a scale, and maybe an offset: the left operand
/// of [`dot_scaled`]. What it stands for are the integers times their scales, plus their offsets. Rows are computed when they are
/// multiplied.
#[derive(Clone, Copy)]
pub struct ScaledTile<M, F, const R: usize, const K: usize, const G: usize> {
    row: F,
    target: PhantomData<M>,
}

/// A scale, or a scale and an offset.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a scale",
    note = "a scale of a `ScaledTile` is an `f32`, or a pair `(scale, offset)` of these"
)]
pub trait Scale<M: Target>: Item<M> {
    /// Whether there is an offset.
    #[doc(hidden)]
    const HAS_OFFSET: bool;
    /// Both; 0 for an offset that is not there.
    #[doc(hidden)]
    fn parts(self) -> (Val<M, f32>, Val<M, f32>);
}

impl<M: Target> Scale<M> for Val<M, f32> {
    const HAS_OFFSET: bool = false;
    #[inline(always)]
    fn parts(self) -> (Val<M, f32>, Val<M, f32>) {
        (self, Val(M::int::<f32>(0)))
    }
}

impl<M: Target> Scale<M> for (Val<M, f32>, Val<M, f32>) {
    const HAS_OFFSET: bool = true;
    #[inline(always)]
    fn parts(self) -> (Val<M, f32>, Val<M, f32>) {
        self
    }
}

/// A word of four bytes: signed ones in an `i32`, in a `u32` ones from 0 to 127, of which 7 bits are taken.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a word of four bytes",
    note = "words of a `ScaledTile` are `i32` (of signed bytes) or `u32` (of bytes from 0 to 127)"
)]
pub trait Word<M: Target>: Item<M> {
    /// Whether bytes may be negative.
    #[doc(hidden)]
    const IS_SIGNED: bool;
    /// The word of signed bytes.
    #[doc(hidden)]
    fn bytes(self) -> Val<M, i32>;
}

impl<M: Target> Word<M> for Val<M, i32> {
    const IS_SIGNED: bool = true;
    #[inline(always)]
    fn bytes(self) -> Val<M, i32> {
        self
    }
}

impl<M: Target> Word<M> for Val<M, u32> {
    const IS_SIGNED: bool = false;
    #[inline(always)]
    #[track_caller]
    fn bytes(self) -> Val<M, i32> {
        // The compiler sees where other bits were masked before.
        self.cast::<i32>() & Val(M::int::<i32>(0x7f7f_7f7f))
    }
}

/// What a row of a [`ScaledTile`] is made of: lanes of words, and of scales.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a row of a `ScaledTile`",
    note = "a row is `(words, scales)`: lanes of words, from `x.row(i).words::<S>(..)`, and lanes of `f32`, or of pairs `(scale, offset)`",
    note = "or `(words, scales, zero)`: words of bytes from 0 to 127, lanes of `f32`, and the `i32` that stands for 0"
)]
pub trait ScaledRow<M: Target>: Copy {
    /// A group's scale, maybe with an offset.
    #[doc(hidden)]
    type Scale: Scale<M>;
    /// Whether bytes may be negative.
    #[doc(hidden)]
    const IS_SIGNED: bool;
    /// Whether offsets are those of a zero point.
    #[doc(hidden)]
    const HAS_ZERO: bool;
    /// The byte that stands for 0.
    #[doc(hidden)]
    fn zero(self) -> Val<M, i32>;
    /// Words of four signed bytes, the lowest first.
    #[doc(hidden)]
    fn words(self) -> impl Lanes<M, Item = Val<M, i32>>;
    /// The scale of each group.
    #[doc(hidden)]
    fn scales(self) -> impl Lanes<M, Item = Self::Scale>;
    /// How many groups share a factor, where scales are integers times factors; else 0.
    #[doc(hidden)]
    const FACTOR_GROUPS: usize;
    /// Both levels of such scales, of the groups at `at`, whose factors are at `factor`.
    #[doc(hidden)]
    fn levels<const N: usize>(self, at: M::At, factor: M::At) -> Levels<M, N>;
}

impl<M: Target, W: Lanes<M, Item: Word<M>>, S: Lanes<M, Item: Scale<M>>> ScaledRow<M> for (W, S) {
    type Scale = S::Item;
    const IS_SIGNED: bool = W::Item::IS_SIGNED;
    const HAS_ZERO: bool = false;
    #[inline(always)]
    fn zero(self) -> Val<M, i32> {
        Val(M::int::<i32>(0))
    }
    #[inline(always)]
    fn words(self) -> impl Lanes<M, Item = Val<M, i32>> {
        self.0.map(
            #[inline(always)]
            |word| word.bytes(),
        )
    }
    #[inline(always)]
    fn scales(self) -> impl Lanes<M, Item = S::Item> {
        self.1
    }
    const FACTOR_GROUPS: usize = S::FACTOR_LANES;
    #[inline(always)]
    fn levels<const N: usize>(self, at: M::At, factor: M::At) -> Levels<M, N> {
        self.1.levels::<N>(at, factor)
    }
}

/// Bytes less a zero point: their offsets are scales times it.
impl<M, W, S> ScaledRow<M> for (W, S, Val<M, i32>)
where
    M: Target,
    W: Lanes<M, Item = Val<M, u32>>,
    S: Lanes<M, Item = Val<M, f32>>,
{
    type Scale = (Val<M, f32>, Val<M, f32>);
    const IS_SIGNED: bool = false;
    const HAS_ZERO: bool = true;
    #[inline(always)]
    fn zero(self) -> Val<M, i32> {
        self.2
    }
    #[inline(always)]
    fn words(self) -> impl Lanes<M, Item = Val<M, i32>> {
        (self.0, self.1).words()
    }
    #[inline(always)]
    fn scales(self) -> impl Lanes<M, Item = Self::Scale> {
        let zero = Val::<M, f32>(M::cast::<i32, f32>((-self.2).0));
        self.1.map(
            #[inline(always)]
            move |scale| (scale, scale * zero),
        )
    }
    const FACTOR_GROUPS: usize = S::FACTOR_LANES;
    #[inline(always)]
    fn levels<const N: usize>(self, at: M::At, factor: M::At) -> Levels<M, N> {
        self.1.levels::<N>(at, factor)
    }
}

impl<M: Target, F, const R: usize, const K: usize, const G: usize> ScaledTile<M, F, R, K, G> {
    /// A tile whose row `i` has the first `K / 4` of the words, each four bytes, the lowest first, and the first `G` of the scales that
    /// `row(i)` gives, `(words, scales)`; 0 where there are fewer. Bytes have a sign in words of `i32`; in words of `u32` they are from
    /// 0 to 127, which takes fewer instructions. All rows are as long as row 0. A scale may be one of
    /// pairs `(scale, offset)`: the offset is added to each element of the group, a minimum. `row(i)` may also give `(words, scales, zero)`:
    /// words of bytes from 0 to 127, of which `zero`, an `i32` in that range that is the same for all rows, stands for 0. Scales that are
    /// [integers times factors](Lanes::two_level) are multiplied as integers where that is faster.
    #[inline(always)]
    pub fn from_rows<W: ScaledRow<M>>(row: F) -> Self
    where
        F: Fn(Val<M, i64>) -> W,
    {
        ScaledTile { row, target: PhantomData }
    }
}

/// `dot_scaled(a, b, scale, acc)`: the matrix product of `a` (`R x K`) and `b` (`K x C`), added to `acc` (`R x C`, `f32`). `a` is a
/// [`ScaledTile`]. `b` are bytes in memory, read as signed integers, and `scale` (`H x C`) the scales of each `K / H` neighbours in a
/// column. `K` is a multiple of `4 G`, and `G` one of `H`.
///
/// Products of integers that share both scales are added as integers, exactly; these sums, times both scales, in `f32`.
#[inline(always)]
#[track_caller]
pub fn dot_scaled<M: Target, F, W, const R: usize, const K: usize, const G: usize, const H: usize, const C: usize>(
    _: M,
    a: ScaledTile<M, F, R, K, G>,
    b: View<M, u8, K, C>,
    scale: View<M, f32, H, C>,
    acc: Tile<M, f32, R, C>,
) -> Tile<M, f32, R, C>
where
    W: ScaledRow<M>,
    F: Fn(Val<M, i64>) -> W,
{
    let variable = M::tile_var::<f32, R, C>(acc.0);
    M::dot_scaled::<W, R, K, G, H, C>(a.row, b.raw(), scale.raw(), &variable);
    Tile(M::tile_get(&variable))
}

/// `acc = dot_scaled(a, b, scale, acc)`, without a copy of the tile.
#[inline(always)]
#[track_caller]
pub fn dot_scaled_assign<
    M: Target,
    F,
    W,
    const R: usize,
    const K: usize,
    const G: usize,
    const H: usize,
    const C: usize,
>(
    _: M,
    a: ScaledTile<M, F, R, K, G>,
    b: View<M, u8, K, C>,
    scale: View<M, f32, H, C>,
    acc: &Var<M, Tile<M, f32, R, C>>,
) where
    W: ScaledRow<M>,
    F: Fn(Val<M, i64>) -> W,
{
    M::dot_scaled::<W, R, K, G, H, C>(a.row, b.raw(), scale.raw(), &acc.0);
}

/// [`Target::dot_scaled`] of targets that multiply what scaled integers stand for, in `f32`.
#[inline(always)]
#[track_caller]
pub(super) fn multiply_in_full<
    M: Target,
    W: ScaledRow<M>,
    const R: usize,
    const K: usize,
    const G: usize,
    const H: usize,
    const C: usize,
>(
    row: impl Fn(Val<M, i64>) -> W,
    b: Raw<M, u8>,
    scale: Raw<M, f32>,
    acc: &M::TileVar<f32, R, C>,
) {
    // A CPU has integers, not these tiles.
    let before = M::tile_bytes(None);
    let left = in_full::<M, W, R, K, G>(row);
    let right = right_in_full::<M, K, H, C>(b, scale);
    M::dot_tiles_assign::<f32, f32, f32, R, K, C>(&left, &right, acc);
    M::tile_bytes(Some(before));
}

/// What scaled rows stand for.
#[inline(always)]
#[track_caller]
fn in_full<M: Target, F: ScaledRow<M>, const R: usize, const K: usize, const G: usize>(
    row: impl Fn(Val<M, i64>) -> F,
) -> M::Tile<f32, R, K> {
    let group = super::tile_const::<M>(K) / super::tile_const::<M>(G);
    let number = |v: i128| Val::<M, i32>(M::int::<i32>(v));
    let first = row(Val(M::int::<i64>(0)));
    let [words_len, scales_len] = [first.words().len(), first.scales().len()];
    M::tile_map::<f32, f32, R, K>(
        M::tile_full(M::int::<f32>(0)),
        #[inline(always)]
        |i, k, _| {
            let row = row(i);
            let four = super::tile_const::<M>(4);
            let place = k / four;
            let byte = Val::<M, i32>(M::cast::<i64, i32>((k - place * four).0));
            // To the upper end of the word, and back with its sign.
            let integer = item(row.words(), place) << (number(24) - byte * number(8)) >> number(24);
            let (scale, offset) = item(row.scales(), k / group).parts();
            let value = Val::<M, f32>(M::cast::<i32, f32>(integer.0)) * scale;
            let value = if F::Scale::HAS_OFFSET { value + offset } else { value };
            let is_below = |a: Val<M, i64>, b: Val<M, i64>| M::cmp::<i64, op::Lt>(a.0, b.0);
            let zero = M::int::<f32>(0);
            let value = M::select::<f32>(is_below(place, words_len), value.0, zero);
            Val(M::select::<f32>(is_below(k / group, scales_len), value, zero))
        },
    )
}

/// The operand of a product in memory: the tensor, the tile's first row and column there, and whether it is transposed.
type Raw<M, T> = (<M as Target>::In<T, 2>, [<M as Target>::Val<i64>; 2], bool);

/// What a right operand of scaled integers stands for.
#[inline(always)]
#[track_caller]
fn right_in_full<M: Target, const K: usize, const H: usize, const C: usize>(
    b: Raw<M, u8>,
    (scale, [first, left], transpose): Raw<M, f32>,
) -> M::Tile<f32, K, C> {
    let group = super::tile_const::<M>(K) / super::tile_const::<M>(H);
    M::tile_map::<u8, f32, K, C>(
        M::tile_load::<u8, K, C>(b.0, b.1, b.2),
        #[inline(always)]
        |k, c, v| {
            let (row, column) = if transpose { (c, k / group) } else { (k / group, c) };
            let at = [M::binary::<i64, op::Add>(first, row.0), M::binary::<i64, op::Add>(left, column.0)];
            let integer = M::cast::<i8, f32>(M::cast::<u8, i8>(v.0));
            Val(integer) * Val::<M, f32>(M::load(scale, at))
        },
    )
}
