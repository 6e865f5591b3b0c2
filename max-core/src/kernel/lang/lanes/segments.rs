//! Segments: lanes that are read from many places, some neighbours from each, such as the blocks of a quantized weight; numbers that
//! lie among bytes; and items that are the same for several lanes.

use std::marker::PhantomData;

use super::remainder::Remainder;
use super::{LaneItem, Lanes};
use crate::dtype::DType;
use crate::kernel::lang::target::Target;
use crate::kernel::lang::tensors::In;
use crate::kernel::lang::tile_const;
use crate::kernel::lang::value::Val;
use crate::kernel::lang::value::scalar::{Any, Int, Scalar};
use crate::kernel::lang::value::sealed::Sealed;

/// A repetition: how often, and how far apart.
pub type Rounds<M> = (Val<M, i64>, Val<M, i64>);

/// Nested repetition, from the outermost to the innermost: how often, and how far apart. Place `i` is that of the `i`-th round of the
/// innermost.
///
/// Only the language's own types are: what is read without a look at bounds is decided by what they say.
pub trait Nest<M: Target>: Copy + Sealed {
    /// The number of places.
    #[doc(hidden)]
    fn count(self) -> Val<M, i64>;
    /// How far place `i` is from the first.
    #[doc(hidden)]
    fn place(self, i: Val<M, i64>) -> Val<M, i64>;
    /// The levels.
    #[doc(hidden)]
    fn levels(&self) -> &[Rounds<M>];
}

impl<M: Target, const D: usize> Nest<M> for [Rounds<M>; D] {
    #[inline(always)]
    #[track_caller]
    fn count(self) -> Val<M, i64> {
        let mut count = Val::one();
        let mut d = 0;
        while d < D {
            count = count * self[d].0;
            d += 1;
        }
        count
    }

    #[inline(always)]
    #[track_caller]
    fn place(self, i: Val<M, i64>) -> Val<M, i64> {
        let (mut rest, mut place) = (i, Val::zero());
        let mut d = D;
        while d > 1 {
            d -= 1;
            let (count, distance) = self[d];
            let outer = rest / count;
            place = place + (rest - outer * count) * distance;
            rest = outer;
        }
        if D > 0 { place + rest * self[0].1 } else { place }
    }

    #[inline(always)]
    fn levels(&self) -> &[Rounds<M>] {
        self
    }
}

/// Segments of `S` elements; made by [`In::segments`].
#[derive(Clone, Copy)]
pub struct Segments<X, F, L, const S: usize> {
    x: X,
    from: F,
    levels: L,
}

impl<M: Target, T: Any> In<M, T, 1> {
    /// Segments of `S` neighbouring elements, one behind the other. `levels` are nested repetitions: `segments::<16>(2, [(n, 18)])`
    /// are `n` segments, the first at element 2 and each 18 after the one before; `[(n, 144), (4, 32)]` are four of each 144 elements,
    /// 32 apart. Outside the operand they read as padding.
    #[inline(always)]
    pub fn segments<const S: usize>(self, from: Val<M, i64>, levels: impl Nest<M>) -> impl Lanes<M, Item = Val<M, T>> {
        Segments::<_, _, _, S> { x: self, from, levels }
    }
}

impl<M: Target, T: Any, N: Nest<M>, const S: usize> Lanes<M> for Segments<In<M, T, 1>, Val<M, i64>, N, S> {
    type Item = Val<M, T>;
    type Block<const B: usize> = M::Block<T, B>;
    const REMAINDER: Remainder = Remainder::Narrow;
    const BYTES: usize = size_of::<T::Mem>();

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.levels.count() * tile_const::<M>(S)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        M::plain_segments::<T>(self.x.0, self.from.0, self.levels.levels(), S, [lo, hi])
    }
    #[inline(always)]
    #[track_caller]
    fn block<const B: usize>(self, at: M::At) -> M::Block<T, B> {
        let (from, levels) = (self.from, self.levels);
        M::segments::<T, S, B>(
            self.x.0,
            #[inline(always)]
            |s| from + levels.place(s),
            at,
        )
    }
    #[inline(always)]
    fn lane<const B: usize>(&self, b: &M::Block<T, B>, j: usize) -> Val<M, T> {
        Val(M::block_lane(b, j))
    }
}

/// Whether segments of so many lanes are whole quads, of which a block of 64 lanes has several whole segments.
const fn are_quads_of_blocks(size: usize) -> bool {
    matches!(size, 4 | 8 | 16 | 32)
}

/// Segments of `S` words of four bytes; made by [`In::words`].
#[derive(Clone, Copy)]
pub struct Words<X, F, L, const S: usize> {
    x: X,
    from: F,
    levels: L,
}

impl<M: Target> In<M, u8, 1> {
    /// Segments of `S` words: integers of four neighbouring bytes each, the lowest first. Segments begin at the bytes that `from` and
    /// `levels` say, as for [`segments`](In::segments). With [`dot4`](WordLanes::dot4), four products are one operation.
    #[inline(always)]
    pub fn words<const S: usize>(self, from: Val<M, i64>, levels: impl Nest<M>) -> impl Lanes<M, Item = Val<M, i32>> {
        Words::<_, _, _, S> { x: self, from, levels }
    }
}

impl<M: Target, N: Nest<M>, const S: usize> Lanes<M> for Words<In<M, u8, 1>, Val<M, i64>, N, S> {
    type Item = Val<M, i32>;
    type Block<const B: usize> = M::Block<i32, B>;
    const REMAINDER: Remainder = Remainder::Narrow;
    const TRANSPOSES: bool = are_quads_of_blocks(S);

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.levels.count() * tile_const::<M>(S)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        M::plain_segments::<u8>(
            self.x.0,
            self.from.0,
            self.levels.levels(),
            4 * S,
            [lo.saturating_mul(4), hi.saturating_mul(4)],
        )
    }
    #[inline(always)]
    #[track_caller]
    fn block<const B: usize>(self, at: M::At) -> M::Block<i32, B> {
        let (from, levels) = (self.from, self.levels);
        M::words::<S, B>(
            self.x.0,
            #[inline(always)]
            |s| from + levels.place(s),
            levels.levels(),
            at,
        )
    }
    #[inline(always)]
    fn lane<const B: usize>(&self, b: &M::Block<i32, B>, j: usize) -> Val<M, i32> {
        Val(M::block_lane(b, j))
    }
    #[inline(always)]
    fn behind(self) -> usize {
        M::behind(self.x.0)
    }
}

/// Sums of products of bytes; made by [`WordLanes::dot4`].
#[derive(Clone, Copy)]
pub struct Dot4<A, B>(A, B);

/// Sequences of words of four bytes.
pub trait WordLanes<M: Target>: Lanes<M, Item = Val<M, i32>> {
    /// For each pair of words, the sum of the products of their four bytes: of these the low 7 bits of each byte, unsigned; of `other`
    /// whole bytes, signed. The length is this one's.
    #[inline(always)]
    fn dot4<L: Lanes<M, Item = Val<M, i32>>>(self, other: L) -> Dot4<Self, L> {
        Dot4(self, other)
    }
}

impl<M: Target, L: Lanes<M, Item = Val<M, i32>>> WordLanes<M> for L {}

impl<M: Target, A: Lanes<M, Item = Val<M, i32>>, B: Lanes<M, Item = Val<M, i32>>> Lanes<M> for Dot4<A, B> {
    type Item = Val<M, i32>;
    type Block<const N: usize> = M::Block<i32, N>;
    const REMAINDER: Remainder = Remainder::Narrow;

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.0.len()
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.0.plain(lo, hi) && self.1.plain(lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> M::Block<i32, N> {
        M::dot4::<N>(&words::<M, A, N>(self.0, at), &words::<M, B, N>(self.1, at))
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &M::Block<i32, N>, j: usize) -> Val<M, i32> {
        Val(M::block_lane(b, j))
    }
}

/// The items of a block.
#[inline(always)]
#[track_caller]
fn words<M: Target, L: Lanes<M, Item = Val<M, i32>>, const N: usize>(lanes: L, at: M::At) -> M::Block<i32, N> {
    let block = lanes.block::<N>(at);
    let mut words = M::blank::<i32, N>();
    let mut j = 0;
    while j < N {
        M::set_lane(&mut words, j, lanes.lane(&block, j).0);
        j += 1;
    }
    words
}

/// Numbers among bytes; made by [`In::numbers`].
pub struct Numbers<M: Target, U, N> {
    x: In<M, u8, 1>,
    from: Val<M, i64>,
    levels: N,
    dtype: PhantomData<U>,
}

impl<M: Target, U, N: Copy> Clone for Numbers<M, U, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, U, N: Copy> Copy for Numbers<M, U, N> {}

impl<M: Target> In<M, u8, 1> {
    /// The numbers of dtype `U` whose bytes, the lowest first, begin at the places that `from` and `levels` say, as for
    /// [`segments`](In::segments). What of a number is outside the operand reads as padding.
    #[inline(always)]
    pub fn numbers<U: Scalar>(self, from: Val<M, i64>, levels: impl Nest<M>) -> impl Lanes<M, Item = Val<M, U>> {
        Numbers { x: self, from, levels, dtype: PhantomData::<U> }
    }
}

impl<M: Target, U: Scalar, N: Nest<M>> Lanes<M> for Numbers<M, U, N> {
    type Item = Val<M, U>;
    type Block<const B: usize> = M::Block<U, B>;
    const REMAINDER: Remainder = Remainder::Narrow;

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.levels.count()
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        let bytes = size_of::<U::Mem>() as i64;
        let lanes = [lo.saturating_mul(bytes), hi.saturating_mul(bytes)];
        M::plain_segments::<u8>(self.x.0, self.from.0, self.levels.levels(), bytes as usize, lanes)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const B: usize>(self, at: M::At) -> M::Block<U, B> {
        M::numbers::<U, B>(
            self.x.0,
            #[inline(always)]
            |i| self.from + self.levels.place(i),
            at,
            #[inline(always)]
            |[lo, hi]| self.plain(lo, hi),
        )
    }
    #[inline(always)]
    #[track_caller]
    fn known(self, i: Val<M, i64>) -> Val<M, U> {
        Val(M::known_number::<U>(self.x.0, (self.from + self.levels.place(i)).0))
    }
    #[inline(always)]
    fn lane<const B: usize>(&self, b: &M::Block<U, B>, j: usize) -> Val<M, U> {
        Val(M::block_lane(b, j))
    }
}

/// Each item for `S` lanes; made by [`Lanes::repeat_each`].
#[derive(Clone, Copy)]
pub struct RepeatEach<L, const S: usize>(pub(super) L);

impl<M: Target, L: Lanes<M, Item: LaneItem<M>>, const S: usize> Lanes<M> for RepeatEach<L, S> {
    type Item = L::Item;
    type Block<const N: usize> = <L::Item as LaneItem<M>>::Array<N>;
    const REMAINDER: Remainder = Remainder::Narrow;
    const TRANSPOSES: bool = are_quads_of_blocks(S);

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.0.len() * tile_const::<M>(S)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        let size = Ord::max(S as i64, 1);
        self.0.plain(lo / size, hi / size + i64::from(hi % size != 0))
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
        M::repeat_each::<L, S, N>(self.0, at)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> L::Item {
        L::Item::lane(b, j)
    }
}

/// Bytes of integers; made by [`Lanes::bytes`].
#[derive(Clone, Copy)]
pub struct Bytes<L, U> {
    pub(super) lanes: L,
    pub(super) dtype: PhantomData<U>,
}

impl<M: Target, U: Int, L: Lanes<M, Item = Val<M, U>>> Lanes<M> for Bytes<L, U> {
    type Item = Val<M, u8>;
    type Block<const N: usize> = M::Block<u8, N>;
    const REMAINDER: Remainder = Remainder::Narrow;

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.lanes.len() * tile_const::<M>(size_of::<U::Mem>())
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        let size = size_of::<U::Mem>() as i64;
        self.lanes.plain(lo / size, hi / size + i64::from(hi % size != 0))
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> M::Block<u8, N> {
        M::bytes::<L, U, N>(self.lanes, at)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &M::Block<u8, N>, j: usize) -> Val<M, u8> {
        Val(M::block_lane(b, j))
    }
}

/// The item at an index, alone.
#[inline(always)]
#[track_caller]
pub(crate) fn item<M: Target, L: Lanes<M>>(lanes: L, i: Val<M, i64>) -> L::Item {
    let block = lanes.block::<1>(M::at_index(i.0));
    lanes.lane(&block, 0)
}

/// A number, byte by byte.
#[inline(always)]
#[track_caller]
pub(in crate::kernel::lang) fn number_of_bytes<M: Target, U: Any>(x: M::In<u8, 1>, i: Val<M, i64>) -> M::Val<U> {
    macro_rules! join {
        ($bits:ident) => {{
            let mut all: Val<M, $bits> = Val(M::int::<$bits>(0));
            let mut k = 0;
            while k < size_of::<$bits>() {
                let place = i + Val(M::int::<i64>(k as i128));
                let byte = Val::<M, $bits>(M::cast::<u8, $bits>(M::load(x, [place.0])));
                all = all | byte << Val(M::int::<$bits>(8 * k as i128));
                k += 1;
            }
            M::bitcast::<$bits, U>(all.0)
        }};
    }
    match (U::dtype(), U::dtype().size_in_bytes()) {
        (DType::Bool, _) => M::cast::<u8, U>(M::load(x, [i.0])),
        (_, 1) => M::bitcast::<u8, U>(M::load(x, [i.0])),
        (_, 2) => join!(u16),
        (_, 4) => join!(u32),
        _ => join!(u64),
    }
}
