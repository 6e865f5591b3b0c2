//! Products of blocks: the loops that keep accumulators in vector registers.
//!
//! A product's columns are taken in panels of two vectors, its rows in groups. For each step of the depth, a panel's two
//! vectors are loaded and multiplied by one element of each row of the group: up to 14 rows of 2 vectors of 16 lanes
//! leave room for both in AVX-512's 32 registers, 6 rows in AVX2's 16. The loops are written over `std::arch` vectors:
//! over plain arrays, LLVM's choice of the axis to vectorize depends on the block's shape.
//!
//! A panel is read once for each group, from the level-2 cache after the first time. So what is packed in memory is asked
//! for while the panel before it is multiplied, and what lies in place is taken there if it is read well ([`fits`]).
//!
//! The functions here are compiled once, for their level, and called by every kernel's `dot`: a call for thousands of
//! multiplications costs nothing, and kernels stay small.

use super::ahead::Coming;
use super::few::{self, Few};
use super::level::Level;
use super::wide;
use crate::dtype::DType;
use crate::kernel::lang::Prim;

/// The left operand's elements as the loops take them.
#[derive(Clone, Copy)]
pub(super) struct Left<P> {
    /// The first element.
    pub ptr: *const P,
    /// From a row to the next, if they are not packed: elements of a row lie together.
    pub row: isize,
    /// If they are packed, from a group of rows to the next. The elements of one step of a group lie together, and the
    /// steps one after the other.
    pub group: Option<isize>,
}

/// The right operand's elements as the loops take them.
#[derive(Clone, Copy)]
pub(super) struct Right<P> {
    /// The first element.
    pub ptr: *const P,
    /// From a step of the depth to the next.
    pub step: isize,
    /// The columns of a panel, and from a panel to the next.
    pub width: usize,
    pub panel: isize,
    /// Whether it is in place: all other panels are packed, whole, and not read past their last column.
    pub in_place: bool,
    /// The tile that will be packed next.
    pub coming: Option<Coming<P>>,
}

impl<P> Right<P> {
    /// From a panel's first column on.
    #[inline(always)]
    pub(super) fn at_column(&self, column: usize) -> *const P {
        let offset = if self.in_place { column as isize } else { (column / self.width) as isize * self.panel };
        self.ptr.wrapping_offset(offset)
    }
}

/// `left · right`
#[derive(Clone, Copy)]
pub(super) struct Product<P> {
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub left: Left<P>,
    pub right: Right<P>,
}

/// What a product is added to, and where the sums go: `to = from + left · right`.
#[derive(Clone, Copy)]
pub(super) struct Sums<P> {
    /// Null for zeros.
    pub from: *const P,
    pub to: *mut P,
    /// From a row to the next.
    pub from_row: usize,
    pub to_row: usize,
}

/// A packed panel that is asked for, some rows at a time, so that memory works while products are computed.
#[derive(Clone, Copy)]
struct Soon<P> {
    from: *const P,
    at: usize,
    end: usize,
}

/// The shape of the blocks of packed operands: rows of a group, and columns of a panel, for a product of so many columns that
/// is added in that dtype.
#[inline(always)]
pub(super) const fn register_block(avx512: bool, sums: DType, columns: usize) -> [usize; 2] {
    let lanes = if matches!(sums, DType::F64) { 8 } else { 16 };
    let is_wide = matches!(sums, DType::F32 | DType::F64) && columns.is_multiple_of(wide::VECTORS * lanes);
    match avx512 {
        true if is_wide => [wide::ROWS, wide::VECTORS * lanes],
        true => [12, 2 * lanes],
        false => [6, lanes],
    }
}

/// Steps of the depth after which a block asks for memory, at least; and how often it does that at most.
const STEPS: usize = 32;
const TURNS: usize = 12;
/// So many steps ahead of its use, a row of a panel is taken into the level-1 cache.
const NEAR: isize = 16;
/// The deepest products whose sums are asked for before they are written: of deeper ones, they are too few to matter.
const SHALLOW: usize = 256;

/// Whether panels of so many rows, which lie `step` bytes apart, are read well where they are. With AVX-512, whose loads are
/// lines, they must stay in the level-2 cache, and with AVX2 in that of level 1 (4 to 6 % of products of 256 and 512, on
/// Zen 3): half of 2 MiB in 16 ways, and of 32 KiB in 8. Rows at a multiple of a power of two share few of a cache's sets. Where
/// rows do not begin at lines, vectors cross these: with AVX-512 and while the rows are near, that costs less than to pack
/// for the few rows that ask (127x1000x513 takes 15 % longer packed; 60x4096x4001, from memory, 30 % less).
#[inline(always)]
pub(crate) fn fits(avx512: bool, depth: usize, step: usize) -> bool {
    const LINE: usize = 64;
    const NEAR_BYTES: usize = 3 << 20;
    let (way, room) = if avx512 { (128 << 10, 1 << 20) } else { (4 << 10, 16 << 10) };
    let apart = Ord::min(way, 1 << Ord::min(step.trailing_zeros(), 63));
    let crosses = !step.is_multiple_of(LINE);
    (!crosses || avx512 && depth.saturating_mul(step) <= NEAR_BYTES) && depth.saturating_mul(apart) <= room
}

/// Runs code for each vector of `rows` by `vectors` of sums, with where it lies from `at` on.
#[cfg(target_arch = "x86_64")]
macro_rules! each_sum {
    ($r:ident in $rows:expr, $q:ident in $vectors:expr, $place:ident from $at:expr, $row:expr, $lanes:expr, $body:expr) => {
        let mut $r = 0;
        while $r < $rows {
            let mut $q = 0;
            while $q < $vectors {
                let $place = $at.wrapping_add($r * $row + $lanes * $q);
                $body;
                $q += 1;
            }
            $r += 1;
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use each_sum;

/// Says that a line of memory will be written.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn will_write<P>(to: *mut P) {
    // SAFETY: asking for memory changes nothing; processors without the instruction do nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) to, options(nostack, preserves_flags, readonly)) };
}

#[cfg(target_arch = "x86_64")]
macro_rules! block {
    (
        $(#[$doc:meta])* $name:ident $micro:ident $ask:ident $features:literal $p:ident $lanes:literal
        $group:literal [$($packed:literal)*] [$first:literal $($rows:literal)*] [$($narrow:literal)*]
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident $some:ident $load_some:ident $store_some:ident
    ) => {
        const _: () =
            assert!(matches!(register_block($group == 12, <$p as Prim>::DTYPE, 1), [$group, width] if width == 2 * $lanes));

        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the product describes, the sums be readable and writable by this call
        /// alone, and the machine must have the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(x: &Product<$p>, sums: &Sums<$p>) {
            const WIDTH: usize = 2 * $lanes;
            // SAFETY: by the contract above; every block of rows and columns is inside the product.
            unsafe {
                let most = if x.left.group.is_some() { $group } else { $first };
                let mut room = [<$p>::default(); $first * WIDTH];
                let mut j = 0;
                while j < x.columns {
                    let b = x.right.at_column(j);
                    let is_more = !x.right.in_place && j + WIDTH < x.columns;
                    let end = if is_more { x.depth } else { 0 };
                    let mut soon = Soon { from: b.wrapping_offset(x.right.panel), at: 0, end };
                    let part = soon.end.div_ceil(x.rows.div_ceil(most));
                    // A packed panel is whole, but maybe not its sums: those of the group at hand are then kept aside.
                    let columns = Ord::min(x.columns - j, WIDTH);
                    let is_aside = columns < WIDTH && !x.right.in_place;
                    // One pointer for both: another borrow of the room would end the first one.
                    let to = room.as_mut_ptr();
                    let from = if sums.from.is_null() { sums.from } else { to.cast_const() };
                    let aside = Sums { from, to, from_row: WIDTH, to_row: WIDTH };
                    let mut i = 0;
                    while i < x.rows {
                        // Packed rows of one group at a time.
                        let left = if x.left.group.is_some() { Ord::min(x.rows - i, $group - i % $group) } else { x.rows - i };
                        let a = match x.left.group {
                            Some(group) => x.left.ptr.offset((i / $group) as isize * group).add(i % $group),
                            None => x.left.ptr.offset(i as isize * x.left.row),
                        };
                        let first = i;
                        let (to, at) = if is_aside { (&aside, [0, 0]) } else { (sums, [i, j]) };
                        if is_aside && !from.is_null() {
                            let from = sums.from.add(i * sums.from_row + j);
                            copy(from, sums.from_row, aside.to, WIDTH, [Ord::min(left, $first), columns]);
                        }
                        macro_rules! rows {
                            ($m:literal, $q:literal, $is_packed:literal, $is_part:literal) => {{
                                $micro::<$m, $q, $is_packed, $is_part>(x, a, b, to, at, &mut soon, part);
                                i += $m;
                            }};
                        }
                        match (if is_aside { WIDTH } else { columns }, x.left.group.is_some()) {
                            (WIDTH.., true) => match left {
                                $(n if n >= $packed => rows!($packed, 2, true, false),)*
                                _ => rows!(1, 2, true, false),
                            },
                            // Groups of about the same size.
                            (WIDTH.., false) => match left / left.div_ceil($first) {
                                $first => rows!($first, 2, false, false),
                                $(n if n >= $rows => rows!($rows, 2, false, false),)*
                                _ => rows!(1, 2, false, false),
                            },
                            (n, true) if n > $lanes => match left {
                                $(n if n >= $narrow => rows!($narrow, 2, true, true),)*
                                _ => rows!(1, 2, true, true),
                            },
                            (n, false) if n > $lanes => match left {
                                $(n if n >= $narrow => rows!($narrow, 2, false, true),)*
                                _ => rows!(1, 2, false, true),
                            },
                            (_, true) => match left {
                                $(n if n >= $narrow => rows!($narrow, 1, true, true),)*
                                _ => rows!(1, 1, true, true),
                            },
                            (_, false) => match left {
                                $(n if n >= $narrow => rows!($narrow, 1, false, true),)*
                                _ => rows!(1, 1, false, true),
                            },
                        }
                        if is_aside {
                            let to = sums.to.add(first * sums.to_row + j);
                            copy(aside.to, WIDTH, to, sums.to_row, [i - first, columns]);
                        }
                    }
                    j += WIDTH;
                }
            }
        }

        /// Asks for the next rows of a panel.
        #[inline(always)]
        unsafe fn $ask(soon: &mut Soon<$p>, rows: usize) {
            use std::arch::x86_64::*;
            let end = Ord::min(soon.at + rows, soon.end);
            while soon.at < end {
                let from = soon.from.wrapping_add(soon.at * 2 * $lanes);
                // SAFETY: a prefetch reads nothing.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(from.cast());
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add($lanes).cast());
                }
                soon.at += 1;
            }
        }

        /// `M` rows by `Q` vectors of columns, over the whole depth, asking for a `part` of the rows of the next panel
        /// meanwhile. `PART` says that the last vector has fewer columns.
        #[inline(always)]
        unsafe fn $micro<const M: usize, const Q: usize, const PACKED: bool, const PART: bool>(
            x: &Product<$p>,
            mut a: *const $p,
            mut b: *const $p,
            sums: &Sums<$p>,
            [i, j]: [usize; 2],
            soon: &mut Soon<$p>,
            part: usize,
        ) {
            use std::arch::x86_64::*;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[$zero(); Q]; M];
                let to = sums.to.add(i * sums.to_row + j);
                // Of the last vector, which lanes there are.
                let some = $some(x.columns - j - (Q - 1) * $lanes);
                if !sums.from.is_null() {
                    let from = sums.from.add(i * sums.from_row + j);
                    each_sum!(r in M, q in Q, at from from, sums.from_row, $lanes, {
                        acc[r][q] = if PART && q + 1 == Q { $load_some(at, some) } else { $load(at) };
                    });
                }
                // Four rows from each of these.
                let row = if PACKED { 1 } else { x.left.row };
                let mut fifth = a.wrapping_offset(4 * row);
                let mut ninth = a.wrapping_offset(8 * row);
                let mut last = a.wrapping_offset(12 * row);
                let turns = Ord::clamp(x.depth / STEPS, 1, TURNS);
                let (rows, sums_rows, steps) = (part.div_ceil(turns), M.div_ceil(turns), x.depth / turns);
                let mut turn = 0;
                let mut rest = x.depth;
                while rest > 0 {
                    let mut k = rest;
                    if turn < turns {
                        $ask(soon, rows);
                        let mut r = turn * sums_rows;
                        while x.depth <= SHALLOW && r < Ord::min(M, (turn + 1) * sums_rows) {
                            let row = to.wrapping_add(r * sums.to_row);
                            will_write(row);
                            will_write(row.wrapping_add(2 * $lanes - 1));
                            r += 1;
                        }
                        k = steps;
                        turn += 1;
                    }
                    rest -= k;
                    macro_rules! step {
                        ($ahead:literal) => {
                            let mut v = [$zero(); Q];
                            let mut q = 0;
                            while q < Q {
                                let b = b.offset($ahead * x.right.step).add($lanes * q);
                                if (q * $lanes * size_of::<$p>()).is_multiple_of(64) {
                                    _mm_prefetch::<_MM_HINT_T0>(b.wrapping_offset(NEAR * x.right.step).cast());
                                }
                                v[q] = if PART && q + 1 == Q { $load_some(b, some) } else { $load(b) };
                                q += 1;
                            }
                            let mut r = 0;
                            while r < M {
                                let s = if PACKED {
                                    *a.add($ahead * $group + r)
                                } else {
                                    let four = match r / 4 {
                                        0 => a,
                                        1 => fifth,
                                        2 => ninth,
                                        _ => last,
                                    };
                                    *four.offset((r % 4) as isize * row + $ahead)
                                };
                                let s = $splat(s);
                                let mut q = 0;
                                while q < Q {
                                    acc[r][q] = $fma(s, v[q], acc[r][q]);
                                    q += 1;
                                }
                                r += 1;
                            }
                        };
                    }
                    macro_rules! advance {
                        ($by:literal) => {
                            if PACKED {
                                a = a.add($by * $group);
                            } else {
                                a = own(a.wrapping_add($by));
                                fifth = if M > 4 { own(fifth.wrapping_add($by)) } else { fifth };
                                ninth = if M > 8 { own(ninth.wrapping_add($by)) } else { ninth };
                                last = if M > 12 { own(last.wrapping_add($by)) } else { last };
                            }
                            b = b.offset($by * x.right.step);
                        };
                    }
                    while k >= 2 {
                        step!(0);
                        step!(1);
                        advance!(2);
                        k -= 2;
                    }
                    if k > 0 {
                        step!(0);
                        advance!(1);
                    }
                }
                each_sum!(r in M, q in Q, at from to, sums.to_row, $lanes, {
                    if PART && q + 1 == Q {
                        $store_some(at, some, acc[r][q]);
                    } else {
                        $store(at, acc[r][q]);
                    }
                });
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
block! {
    /// In `f32`, with AVX-512.
    f32_v4 micro_f32_v4 ask_f32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" f32 16
    12 [12 8 4 2] [14 13 12 11 10 9 8 7 4 2] [8 4 2]
    _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps
    some_f32_v4 load_f32_v4 store_f32_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX-512.
    f64_v4 micro_f64_v4 ask_f64_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" f64 8
    12 [12 8 4 2] [14 13 12 11 10 9 8 7 4 2] [8 4 2]
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
    some_f64_v4 load_f64_v4 store_f64_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f32`, with AVX2.
    f32_v3 micro_f32_v3 ask_f32_v3 "avx2,fma" f32 8
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps
    some_f32_v3 load_f32_v3 store_f32_v3
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX2.
    f64_v3 micro_f64_v3 ask_f64_v3 "avx2,fma" f64 4
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd
    some_f64_v3 load_f64_v3 store_f64_v3
}

#[cfg(target_arch = "x86_64")]
block! {
    /// In `i32`, with AVX-512, of pairs of 16-bit factors: an element of an operand is two steps of the depth.
    i32_v4 micro_i32_v4 ask_i32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" i32 16
    12 [12 8 4 2] [14 13 12 11 10 9 8 7 4 2] [8 4 2]
    _mm512_setzero_si512 whole_i32_v4 put_i32_v4 _mm512_set1_epi32 add_pairs_v4
    some_i32_v4 load_i32_v4 store_i32_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `i32`, with AVX2, of pairs of 16-bit factors.
    i32_v3 micro_i32_v3 ask_i32_v3 "avx2,fma" i32 8
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_si256 whole_i32_v3 put_i32_v3 _mm256_set1_epi32 add_pairs_v3
    some_i32_v3 load_i32_v3 store_i32_v3
}

/// Copies so many rows and columns.
///
/// # Safety
/// They must be readable in one place and writable in the other.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy<P: Copy>(from: *const P, from_row: usize, to: *mut P, to_row: usize, [rows, columns]: [usize; 2]) {
    for i in 0..rows {
        // SAFETY: by the contract above.
        unsafe { std::ptr::copy_nonoverlapping(from.add(i * from_row), to.add(i * to_row), columns) };
    }
}

/// A pointer of whose value the compiler knows nothing. It would else keep one for each row, more than there are registers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read there")]
pub(super) fn own<P>(mut ptr: *const P) -> *const P {
    // SAFETY: nothing is done.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) ptr, options(pure, nomem, nostack, preserves_flags)) };
    ptr
}

/// Vectors of `i32`: reading, writing, and adding the products of pairs of 16-bit factors, which wraps around.
#[cfg(target_arch = "x86_64")]
macro_rules! pairs {
    ($($whole:ident $put:ident $add:ident $vector:ident $load:ident $store:ident $sum:ident $product:ident;)*) => { $(
        #[inline(always)]
        pub(super) unsafe fn $whole(from: *const i32) -> std::arch::x86_64::$vector {
            // SAFETY: the callers' machine has the instruction, and the lanes are readable.
            unsafe { std::arch::x86_64::$load(from.cast()) }
        }
        #[inline(always)]
        pub(super) unsafe fn $put(to: *mut i32, v: std::arch::x86_64::$vector) {
            // SAFETY: as above, and the lanes are writable.
            unsafe { std::arch::x86_64::$store(to.cast(), v) }
        }
        #[inline(always)]
        pub(super) unsafe fn $add(
            a: std::arch::x86_64::$vector,
            b: std::arch::x86_64::$vector,
            sum: std::arch::x86_64::$vector,
        ) -> std::arch::x86_64::$vector {
            // SAFETY: the callers' machine has the instructions.
            unsafe { std::arch::x86_64::$sum(sum, std::arch::x86_64::$product(a, b)) }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
pairs! {
    whole_i32_v4 put_i32_v4 add_pairs_v4 __m512i _mm512_loadu_si512 _mm512_storeu_si512 _mm512_add_epi32 _mm512_madd_epi16;
    whole_i32_v3 put_i32_v3 add_pairs_v3 __m256i _mm256_loadu_si256 _mm256_storeu_si256 _mm256_add_epi32 _mm256_madd_epi16;
}

/// The first lanes of a vector: which those are, and reading and writing them.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    ($($some:ident $load_some:ident $store_some:ident $p:ident $vector:ident $mask:ident $lanes:literal
        |$n:ident| $which:expr, |$from:ident, $m:ident| $load:expr, |$to:ident, $m2:ident, $v:ident| $store:expr;)*) => { $(
        #[inline(always)]
        pub(super) unsafe fn $some($n: usize) -> std::arch::x86_64::$mask {
            $which
        }
        #[inline(always)]
        pub(super) unsafe fn $load_some($from: *const $p, $m: std::arch::x86_64::$mask) -> std::arch::x86_64::$vector {
            use std::arch::x86_64::*;
            // SAFETY: the callers' machine has the instructions, and the lanes are readable.
            unsafe { $load }
        }
        #[inline(always)]
        pub(super) unsafe fn $store_some($to: *mut $p, $m2: std::arch::x86_64::$mask, $v: std::arch::x86_64::$vector) {
            use std::arch::x86_64::*;
            // SAFETY: as above, and the lanes are writable.
            unsafe { $store }
        }
    )* };
}
/// The first `n` of eight lanes.
///
/// # Safety
/// The machine must have AVX2, as for the other.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask_f32_v3(n: i32) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    // SAFETY: by the contract above.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// The first `n` of four lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask_f64_v3(n: i64) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    // SAFETY: by the contract above.
    unsafe { _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)) }
}

#[cfg(target_arch = "x86_64")]
lanes! {
    some_f32_v4 load_f32_v4 store_f32_v4 f32 __m512 __mmask16 16
        |n| ((1_u32 << Ord::min(n, 16)) - 1) as u16,
        |from, m| _mm512_maskz_loadu_ps(m, from), |to, m, v| _mm512_mask_storeu_ps(to, m, v);
    some_i32_v4 load_i32_v4 store_i32_v4 i32 __m512i __mmask16 16
        |n| ((1_u32 << Ord::min(n, 16)) - 1) as u16,
        |from, m| _mm512_maskz_loadu_epi32(m, from), |to, m, v| _mm512_mask_storeu_epi32(to, m, v);
    some_f64_v4 load_f64_v4 store_f64_v4 f64 __m512d __mmask8 8
        |n| ((1_u32 << Ord::min(n, 8)) - 1) as u8,
        |from, m| _mm512_maskz_loadu_pd(m, from), |to, m, v| _mm512_mask_storeu_pd(to, m, v);
    some_f32_v3 load_f32_v3 store_f32_v3 f32 __m256 __m256i 8
        // SAFETY: the callers' machine has the instructions.
        |n| unsafe { mask_f32_v3(Ord::min(n, 8) as i32) },
        |from, m| _mm256_maskload_ps(from, m), |to, m, v| _mm256_maskstore_ps(to, m, v);
    some_i32_v3 load_i32_v3 store_i32_v3 i32 __m256i __m256i 8
        // SAFETY: as above.
        |n| unsafe { mask_f32_v3(Ord::min(n, 8) as i32) },
        |from, m| _mm256_maskload_epi32(from, m), |to, m, v| _mm256_maskstore_epi32(to, m, v);
    some_f64_v3 load_f64_v3 store_f64_v3 f64 __m256d __m256i 4
        // SAFETY: as above.
        |n| unsafe { mask_f64_v3(Ord::min(n, 4) as i64) },
        |from, m| _mm256_maskload_pd(from, m), |to, m, v| _mm256_maskstore_pd(to, m, v);
}

/// Computes the product at the level, if that has vectors for it.
///
/// # Safety
/// As for the blocks above, whose dtype `P` must be.
#[inline(always)]
pub(super) unsafe fn multiply<L: Level, P: Prim>(x: &Product<P>, sums: &Sums<P>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `P` is the dtype that it is matched to be.
    unsafe {
        let wide = !x.right.in_place && wide::multiplies(x.right.width, size_of::<P>());
        let is_few = x.rows <= few::ROWS && x.left.group.is_none() && x.right.in_place;
        let few = Few::of(x);
        let (x, sums) = (std::ptr::from_ref(x), std::ptr::from_ref(sums));
        match (P::DTYPE, L::AVX512) {
            (DType::F32, _) if is_few => few::multiply::<L, f32>(&*std::ptr::from_ref(&few).cast(), &*sums.cast()),
            (DType::F64, _) if is_few => few::multiply::<L, f64>(&*std::ptr::from_ref(&few).cast(), &*sums.cast()),
            (DType::F32, true) if wide => wide::f32_v4(&*x.cast(), &*sums.cast()),
            (DType::F64, true) if wide => wide::f64_v4(&*x.cast(), &*sums.cast()),
            (DType::F32, true) => f32_v4(&*x.cast(), &*sums.cast()),
            (DType::F32, false) => f32_v3(&*x.cast(), &*sums.cast()),
            (DType::I32, true) => i32_v4(&*x.cast(), &*sums.cast()),
            (DType::I32, false) => i32_v3(&*x.cast(), &*sums.cast()),
            (_, true) => f64_v4(&*x.cast(), &*sums.cast()),
            (_, false) => f64_v3(&*x.cast(), &*sums.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, sums);
}
