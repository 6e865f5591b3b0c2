//! The GEMM microkernel for AVX2 and AVX-512: accumulators stay in vector registers over all of K.
//!
//! It exists because LLVM vectorizes plain loops along an axis that depends on the block's shape; `std::arch` fixes it.
//!
//! The blocking is GotoBLAS's (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008), as in
//! BLIS. B is walked in micro-panels of two vectors, A in groups of rows. Each K step loads the two vectors of the
//! panel and multiplies them by one broadcast element of each row:
//!
//! * AVX-512: up to 14 rows by 2 vectors of 16 lanes in 32 registers.
//! * AVX2: 6 rows by 2 vectors in 16 registers.
//!
//! A micro-panel is read once for each group of rows, from the L2 cache after the first time. A packed panel is
//! prefetched while the panel before it is multiplied. B in place is used where it stays in a cache
//! ([`rhs_stays_in_cache`]).
//!
//! Each function is compiled once for its level and called by every kernel's `dot`, so kernels stay small.

use super::super::isa::Level;
use super::super::pack::pipeline::NextTile;
#[cfg(target_arch = "x86_64")]
use super::gemv;
#[cfg(target_arch = "x86_64")]
use super::gemv::Gemv;
use super::microkernel_avx512;
use crate::dtype::DType;
use crate::kernel::lang::Prim;

/// The left operand (A) as the microkernel reads it.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Lhs<P> {
    /// The first element.
    pub ptr: *const P,
    /// From a row to the next, if they are not packed: elements of a row lie together.
    pub row: isize,
    /// If they are packed, from a group of rows to the next. The elements of one step of a group lie together, and the
    /// steps one after the other.
    pub group: Option<isize>,
}

/// The right operand (B) as the microkernel reads it.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Rhs<P> {
    /// The first element.
    pub ptr: *const P,
    /// From a step of K to the next.
    pub step: isize,
    /// The columns of a panel, and from a panel to the next.
    pub width: usize,
    pub panel: isize,
    /// Whether it is in place: all other panels are packed, whole, and not read past their last column.
    pub in_place: bool,
    /// The tile that will be packed next.
    pub next_tile: Option<NextTile<P>>,
}

impl<P> Rhs<P> {
    /// From a panel's first column on.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn at_column(&self, column: usize) -> *const P {
        let offset = if self.in_place { column as isize } else { (column / self.width) as isize * self.panel };
        self.ptr.wrapping_offset(offset)
    }
}

/// `lhs · rhs`
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Gemm<P> {
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub lhs: Lhs<P>,
    pub rhs: Rhs<P>,
}

/// The accumulators of a GEMM in memory: `to = from + lhs · rhs`.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Accumulators<P> {
    /// Null for zeros.
    pub from: *const P,
    pub to: *mut P,
    /// From a row to the next.
    pub from_row: usize,
    pub to_row: usize,
}

/// A cursor that prefetches the next packed panel, some rows at a time, while the GEMM runs.
#[derive(Clone, Copy)]
struct PrefetchCursor<P> {
    from: *const P,
    at: usize,
    end: usize,
}

/// The shape of the blocks of packed operands: rows of a group, and columns of a panel, for a GEMM of so many columns
/// that is added in that dtype.
#[inline(always)]
pub(in crate::kernel::cpu) const fn register_block(avx512: bool, accumulator: DType, columns: usize) -> [usize; 2] {
    let lanes = if matches!(accumulator, DType::F64) { 8 } else { 16 };
    let is_wide =
        matches!(accumulator, DType::F32 | DType::F64) && columns.is_multiple_of(microkernel_avx512::VECTORS * lanes);
    match avx512 {
        true if is_wide => [microkernel_avx512::ROWS, microkernel_avx512::VECTORS * lanes],
        true => [12, 2 * lanes],
        false => [6, lanes],
    }
}

/// K steps between prefetches of a block, at least; and the most prefetches of one.
const PREFETCH_INTERVAL: usize = 32;
const MAX_PREFETCHES: usize = 12;
/// K steps by which a row of a panel is prefetched into L1 before its use.
const PREFETCH_STEPS: isize = 16;
/// The largest K for which accumulators are prefetched for write; beyond it their cost does not matter.
const SHALLOW_K: usize = 256;

/// Whether a B of `depth` rows, `step` bytes apart, stays in cache when it is read in place, without packing. With
/// AVX-512, whose loads are lines, they must stay in the L2 cache, and with AVX2 in L1 (4 to 6 % of GEMMs of 256 and
/// 512, on Zen 3): half of 2 MiB in 16 ways, and of 32 KiB in 8. Rows at a multiple of a power of two share few of a
/// cache's sets. Where rows do not begin at lines, vectors cross these: with AVX-512 and while the rows are near, that
/// costs less than to pack for the few rows that ask (127x1000x513 takes 15 % longer packed; 60x4096x4001, from memory,
/// 30 % less).
#[inline(always)]
pub(crate) fn rhs_stays_in_cache(avx512: bool, depth: usize, step: usize) -> bool {
    const LINE: usize = 64;
    const NEAR_BYTES: usize = 3 << 20;
    let (way, room) = if avx512 { (128 << 10, 1 << 20) } else { (4 << 10, 16 << 10) };
    let apart = Ord::min(way, 1 << Ord::min(step.trailing_zeros(), 63));
    let crosses = !step.is_multiple_of(LINE);
    (!crosses || avx512 && depth.saturating_mul(step) <= NEAR_BYTES) && depth.saturating_mul(apart) <= room
}

/// Runs code for each accumulator vector of `rows` by `vectors`, with its address from `at` on.
#[cfg(target_arch = "x86_64")]
macro_rules! each_accumulator {
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
pub(in crate::kernel::cpu) use each_accumulator;

/// Prefetches a line for write (`prefetchw`).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::kernel::cpu) fn prefetch_for_write<P>(to: *mut P) {
    // SAFETY: a prefetch changes nothing; processors without the instruction do nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) to, options(nostack, preserves_flags, readonly)) };
}

#[cfg(target_arch = "x86_64")]
macro_rules! block {
    (
        $(#[$doc:meta])* $name:ident $micro:ident $prefetch_rows:ident $features:literal $p:ident $lanes:literal
        $group:literal [$($packed:literal)*] [$first:literal $($rows:literal)*] [$($narrow:literal)*]
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident $lane_mask:ident $masked_load:ident $masked_store:ident
    ) => {
        const _: () =
            assert!(matches!(register_block($group == 12, <$p as Prim>::DTYPE, 1), [$group, width] if width == 2 * $lanes));

        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the GEMM describes, the accumulators be readable and writable by
        /// this call alone, and the machine must have the features.
        #[target_feature(enable = $features)]
        pub(in crate::kernel::cpu) unsafe fn $name(x: &Gemm<$p>, accumulators: &Accumulators<$p>) {
            const WIDTH: usize = 2 * $lanes;
            // SAFETY: by the contract above; every block of rows and columns is inside the GEMM.
            unsafe {
                let most = if x.lhs.group.is_some() { $group } else { $first };
                let mut room = [<$p>::default(); $first * WIDTH];
                let mut j = 0;
                while j < x.columns {
                    let b = x.rhs.at_column(j);
                    let is_more = !x.rhs.in_place && j + WIDTH < x.columns;
                    let end = if is_more { x.depth } else { 0 };
                    let mut cursor = PrefetchCursor { from: b.wrapping_offset(x.rhs.panel), at: 0, end };
                    let part = cursor.end.div_ceil(x.rows.div_ceil(most));
                    // A packed panel is whole, but maybe not its accumulators: those of the group at hand are then kept
                    // aside.
                    let columns = Ord::min(x.columns - j, WIDTH);
                    let is_aside = columns < WIDTH && !x.rhs.in_place;
                    // One pointer for both: another borrow of the room would end the first one.
                    let to = room.as_mut_ptr();
                    let from = if accumulators.from.is_null() { accumulators.from } else { to.cast_const() };
                    let aside = Accumulators { from, to, from_row: WIDTH, to_row: WIDTH };
                    let mut i = 0;
                    while i < x.rows {
                        // Packed rows of one group at a time.
                        let remaining = if x.lhs.group.is_some() { Ord::min(x.rows - i, $group - i % $group) } else { x.rows - i };
                        let a = match x.lhs.group {
                            Some(group) => x.lhs.ptr.offset((i / $group) as isize * group).add(i % $group),
                            None => x.lhs.ptr.offset(i as isize * x.lhs.row),
                        };
                        let first = i;
                        let (to, at) = if is_aside { (&aside, [0, 0]) } else { (accumulators, [i, j]) };
                        if is_aside && !from.is_null() {
                            let from = accumulators.from.add(i * accumulators.from_row + j);
                            copy(from, accumulators.from_row, aside.to, WIDTH, [Ord::min(remaining, $first), columns]);
                        }
                        macro_rules! rows {
                            ($m:literal, $q:literal, $is_packed:literal, $is_part:literal) => {{
                                $micro::<$m, $q, $is_packed, $is_part>(x, a, b, to, at, &mut cursor, part);
                                i += $m;
                            }};
                        }
                        match (if is_aside { WIDTH } else { columns }, x.lhs.group.is_some()) {
                            (WIDTH.., true) => match remaining {
                                $(n if n >= $packed => rows!($packed, 2, true, false),)*
                                _ => rows!(1, 2, true, false),
                            },
                            // Groups of about the same size.
                            (WIDTH.., false) => match remaining / remaining.div_ceil($first) {
                                $first => rows!($first, 2, false, false),
                                $(n if n >= $rows => rows!($rows, 2, false, false),)*
                                _ => rows!(1, 2, false, false),
                            },
                            (n, true) if n > $lanes => match remaining {
                                $(n if n >= $narrow => rows!($narrow, 2, true, true),)*
                                _ => rows!(1, 2, true, true),
                            },
                            (n, false) if n > $lanes => match remaining {
                                $(n if n >= $narrow => rows!($narrow, 2, false, true),)*
                                _ => rows!(1, 2, false, true),
                            },
                            (_, true) => match remaining {
                                $(n if n >= $narrow => rows!($narrow, 1, true, true),)*
                                _ => rows!(1, 1, true, true),
                            },
                            (_, false) => match remaining {
                                $(n if n >= $narrow => rows!($narrow, 1, false, true),)*
                                _ => rows!(1, 1, false, true),
                            },
                        }
                        if is_aside {
                            let to = accumulators.to.add(first * accumulators.to_row + j);
                            copy(aside.to, WIDTH, to, accumulators.to_row, [i - first, columns]);
                        }
                    }
                    j += WIDTH;
                }
            }
        }

        /// Prefetches the next rows of a panel.
        #[inline(always)]
        unsafe fn $prefetch_rows(cursor: &mut PrefetchCursor<$p>, rows: usize) {
            use std::arch::x86_64::*;
            let end = Ord::min(cursor.at + rows, cursor.end);
            while cursor.at < end {
                let from = cursor.from.wrapping_add(cursor.at * 2 * $lanes);
                // SAFETY: a prefetch reads nothing.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(from.cast());
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add($lanes).cast());
                }
                cursor.at += 1;
            }
        }

        /// `M` rows by `Q` vectors of columns, over all of K, prefetching a `part` of the rows of the next panel
        /// meanwhile. `MASKED` says that the last vector has fewer columns.
        #[inline(always)]
        unsafe fn $micro<const M: usize, const Q: usize, const PACKED: bool, const MASKED: bool>(
            x: &Gemm<$p>,
            mut a: *const $p,
            mut b: *const $p,
            accumulators: &Accumulators<$p>,
            [i, j]: [usize; 2],
            cursor: &mut PrefetchCursor<$p>,
            part: usize,
        ) {
            use std::arch::x86_64::*;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[$zero(); Q]; M];
                let to = accumulators.to.add(i * accumulators.to_row + j);
                // Of the last vector, which lanes there are.
                let some = $lane_mask(if MASKED { x.columns - j - (Q - 1) * $lanes } else { $lanes });
                if !accumulators.from.is_null() {
                    let from = accumulators.from.add(i * accumulators.from_row + j);
                    each_accumulator!(r in M, q in Q, at from from, accumulators.from_row, $lanes, {
                        acc[r][q] = if MASKED && q + 1 == Q { $masked_load(at, some) } else { $load(at) };
                    });
                }
                // Four rows from each of these.
                let row = if PACKED { 1 } else { x.lhs.row };
                let mut fifth = a.wrapping_offset(4 * row);
                let mut ninth = a.wrapping_offset(8 * row);
                let mut last = a.wrapping_offset(12 * row);
                let rounds = Ord::clamp(x.depth / PREFETCH_INTERVAL, 1, MAX_PREFETCHES);
                let (rows, rows_a_round, steps) = (part.div_ceil(rounds), M.div_ceil(rounds), x.depth / rounds);
                let mut round = 0;
                let mut rest = x.depth;
                while rest > 0 {
                    let mut k = rest;
                    if round < rounds {
                        $prefetch_rows(cursor, rows);
                        let mut r = round * rows_a_round;
                        while x.depth <= SHALLOW_K && r < Ord::min(M, (round + 1) * rows_a_round) {
                            let row = to.wrapping_add(r * accumulators.to_row);
                            prefetch_for_write(row);
                            prefetch_for_write(row.wrapping_add(2 * $lanes - 1));
                            r += 1;
                        }
                        k = steps;
                        round += 1;
                    }
                    rest -= k;
                    macro_rules! step {
                        ($offset:literal) => {
                            let mut v = [$zero(); Q];
                            let mut q = 0;
                            while q < Q {
                                let b = b.offset($offset * x.rhs.step).add($lanes * q);
                                if (q * $lanes * size_of::<$p>()).is_multiple_of(64) {
                                    _mm_prefetch::<_MM_HINT_T0>(b.wrapping_offset(PREFETCH_STEPS * x.rhs.step).cast());
                                }
                                v[q] = if MASKED && q + 1 == Q { $masked_load(b, some) } else { $load(b) };
                                q += 1;
                            }
                            let mut r = 0;
                            while r < M {
                                let s = if PACKED {
                                    *a.add($offset * $group + r)
                                } else {
                                    let four = match r / 4 {
                                        0 => a,
                                        1 => fifth,
                                        2 => ninth,
                                        _ => last,
                                    };
                                    *four.offset((r % 4) as isize * row + $offset)
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
                                a = opaque(a.wrapping_add($by));
                                fifth = if M > 4 { opaque(fifth.wrapping_add($by)) } else { fifth };
                                ninth = if M > 8 { opaque(ninth.wrapping_add($by)) } else { ninth };
                                last = if M > 12 { opaque(last.wrapping_add($by)) } else { last };
                            }
                            b = b.offset($by * x.rhs.step);
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
                each_accumulator!(r in M, q in Q, at from to, accumulators.to_row, $lanes, {
                    if MASKED && q + 1 == Q {
                        $masked_store(at, some, acc[r][q]);
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
    lane_mask_f32_v4 masked_load_f32_v4 masked_store_f32_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX-512.
    f64_v4 micro_f64_v4 ask_f64_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" f64 8
    12 [12 8 4 2] [14 13 12 11 10 9 8 7 4 2] [8 4 2]
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
    lane_mask_f64_v4 masked_load_f64_v4 masked_store_f64_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f32`, with AVX2.
    f32_v3 micro_f32_v3 ask_f32_v3 "avx2,fma" f32 8
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps
    lane_mask_f32_v3 masked_load_f32_v3 masked_store_f32_v3
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX2.
    f64_v3 micro_f64_v3 ask_f64_v3 "avx2,fma" f64 4
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd
    lane_mask_f64_v3 masked_load_f64_v3 masked_store_f64_v3
}

#[cfg(target_arch = "x86_64")]
block! {
    /// In `i32`, with AVX-512, of pairs of 16-bit operands: an element of an operand is two steps of K.
    i32_v4 micro_i32_v4 ask_i32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" i32 16
    12 [12 8 4 2] [14 13 12 11 10 9 8 7 4 2] [8 4 2]
    _mm512_setzero_si512 whole_i32_v4 put_i32_v4 _mm512_set1_epi32 add_pairs_v4
    lane_mask_i32_v4 masked_load_i32_v4 masked_store_i32_v4
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `i32`, with AVX2, of pairs of 16-bit operands.
    i32_v3 micro_i32_v3 ask_i32_v3 "avx2,fma" i32 8
    6 [6 4 2] [6 5 4 2] [4 2]
    _mm256_setzero_si256 whole_i32_v3 put_i32_v3 _mm256_set1_epi32 add_pairs_v3
    lane_mask_i32_v3 masked_load_i32_v3 masked_store_i32_v3
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

/// A pointer whose value is opaque to LLVM, which would otherwise keep one for each row: more than there are registers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read there")]
pub(in crate::kernel::cpu) fn opaque<P>(mut ptr: *const P) -> *const P {
    // SAFETY: nothing is done.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) ptr, options(pure, nomem, nostack, preserves_flags)) };
    ptr
}

/// Vectors of `i32`: load, store, and `vpmaddwd` of 16-bit pairs, which wraps around.
#[cfg(target_arch = "x86_64")]
macro_rules! pairs {
    ($($whole:ident $put:ident $add:ident $vector:ident $load:ident $store:ident $sum:ident $gemm:ident;)*) => { $(
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $whole(from: *const i32) -> std::arch::x86_64::$vector {
            // SAFETY: the callers' machine has the instruction, and the lanes are readable.
            unsafe { std::arch::x86_64::$load(from.cast()) }
        }
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $put(to: *mut i32, v: std::arch::x86_64::$vector) {
            // SAFETY: as above, and the lanes are writable.
            unsafe { std::arch::x86_64::$store(to.cast(), v) }
        }
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $add(
            a: std::arch::x86_64::$vector,
            b: std::arch::x86_64::$vector,
            sum: std::arch::x86_64::$vector,
        ) -> std::arch::x86_64::$vector {
            // SAFETY: the callers' machine has the instructions.
            unsafe { std::arch::x86_64::$sum(sum, std::arch::x86_64::$gemm(a, b)) }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
pairs! {
    whole_i32_v4 put_i32_v4 add_pairs_v4 __m512i _mm512_loadu_si512 _mm512_storeu_si512 _mm512_add_epi32 _mm512_madd_epi16;
    whole_i32_v3 put_i32_v3 add_pairs_v3 __m256i _mm256_loadu_si256 _mm256_storeu_si256 _mm256_add_epi32 _mm256_madd_epi16;
}

/// Lane masks of partial vectors, and masked loads and stores.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    ($($lane_mask:ident $masked_load:ident $masked_store:ident $p:ident $vector:ident $mask:ident $lanes:literal
        |$n:ident| $which:expr, |$from:ident, $m:ident| $load:expr, |$to:ident, $m2:ident, $v:ident| $store:expr;)*) => { $(
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $lane_mask($n: usize) -> std::arch::x86_64::$mask {
            $which
        }
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $masked_load($from: *const $p, $m: std::arch::x86_64::$mask) -> std::arch::x86_64::$vector {
            use std::arch::x86_64::*;
            // SAFETY: the callers' machine has the instructions, and the lanes are readable.
            unsafe { $load }
        }
        #[inline(always)]
        pub(in crate::kernel::cpu) unsafe fn $masked_store($to: *mut $p, $m2: std::arch::x86_64::$mask, $v: std::arch::x86_64::$vector) {
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
    lane_mask_f32_v4 masked_load_f32_v4 masked_store_f32_v4 f32 __m512 __mmask16 16
        |n| ((1_u32 << Ord::min(n, 16)) - 1) as u16,
        |from, m| _mm512_maskz_loadu_ps(m, from), |to, m, v| _mm512_mask_storeu_ps(to, m, v);
    lane_mask_i32_v4 masked_load_i32_v4 masked_store_i32_v4 i32 __m512i __mmask16 16
        |n| ((1_u32 << Ord::min(n, 16)) - 1) as u16,
        |from, m| _mm512_maskz_loadu_epi32(m, from), |to, m, v| _mm512_mask_storeu_epi32(to, m, v);
    lane_mask_f64_v4 masked_load_f64_v4 masked_store_f64_v4 f64 __m512d __mmask8 8
        |n| ((1_u32 << Ord::min(n, 8)) - 1) as u8,
        |from, m| _mm512_maskz_loadu_pd(m, from), |to, m, v| _mm512_mask_storeu_pd(to, m, v);
    lane_mask_f32_v3 masked_load_f32_v3 masked_store_f32_v3 f32 __m256 __m256i 8
        // SAFETY: the callers' machine has the instructions.
        |n| unsafe { mask_f32_v3(Ord::min(n, 8) as i32) },
        |from, m| _mm256_maskload_ps(from, m), |to, m, v| _mm256_maskstore_ps(to, m, v);
    lane_mask_i32_v3 masked_load_i32_v3 masked_store_i32_v3 i32 __m256i __m256i 8
        // SAFETY: as above.
        |n| unsafe { mask_f32_v3(Ord::min(n, 8) as i32) },
        |from, m| _mm256_maskload_epi32(from, m), |to, m, v| _mm256_maskstore_epi32(to, m, v);
    lane_mask_f64_v3 masked_load_f64_v3 masked_store_f64_v3 f64 __m256d __m256i 4
        // SAFETY: as above.
        |n| unsafe { mask_f64_v3(Ord::min(n, 4) as i64) },
        |from, m| _mm256_maskload_pd(from, m), |to, m, v| _mm256_maskstore_pd(to, m, v);
}

/// Computes the GEMM at the level, if that has vectors for it.
///
/// # Safety
/// As for the blocks above, whose dtype `P` must be.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply<L: Level, P: Prim>(x: &Gemm<P>, accumulators: &Accumulators<P>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `P` is the dtype that it is matched to be.
    unsafe {
        let wide = !x.rhs.in_place && microkernel_avx512::multiplies(x.rhs.width, size_of::<P>());
        let is_gemv = x.rows <= gemv::ROWS && x.lhs.group.is_none() && x.rhs.in_place;
        let gemv = Gemv::of(x);
        let (x, accumulators) = (std::ptr::from_ref(x), std::ptr::from_ref(accumulators));
        match (P::DTYPE, L::AVX512) {
            (DType::F32, _) if is_gemv => {
                gemv::multiply::<L, f32>(&*std::ptr::from_ref(&gemv).cast(), &*accumulators.cast())
            }
            (DType::F64, _) if is_gemv => {
                gemv::multiply::<L, f64>(&*std::ptr::from_ref(&gemv).cast(), &*accumulators.cast())
            }
            (DType::F32, true) if wide => microkernel_avx512::f32_v4(&*x.cast(), &*accumulators.cast()),
            (DType::F64, true) if wide => microkernel_avx512::f64_v4(&*x.cast(), &*accumulators.cast()),
            (DType::F32, true) => f32_v4(&*x.cast(), &*accumulators.cast()),
            (DType::F32, false) => f32_v3(&*x.cast(), &*accumulators.cast()),
            (DType::I32, true) => i32_v4(&*x.cast(), &*accumulators.cast()),
            (DType::I32, false) => i32_v3(&*x.cast(), &*accumulators.cast()),
            (_, true) => f64_v4(&*x.cast(), &*accumulators.cast()),
            (_, false) => f64_v3(&*x.cast(), &*accumulators.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, accumulators);
}
