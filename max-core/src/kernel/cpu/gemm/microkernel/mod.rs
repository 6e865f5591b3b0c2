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
//! ([`rhs_stays_in_cache`]); elsewhere the first group of few rows packs a panel as it multiplies (as LibShalom does; Yang
//! et al., SC 2021).
//!
//! Each function is compiled once for its level and called by every kernel's `dot`, so kernels stay small. The files beside
//! this one have panels of three vectors, GEMV, and the vectors that all of them compute in.

pub(in crate::kernel::cpu) mod avx512;
pub(in crate::kernel::cpu) mod gemv;
pub(in crate::kernel::cpu) mod gemv_t;
#[cfg(target_arch = "x86_64")]
pub(super) mod simd;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
#[cfg(target_arch = "x86_64")]
use std::mem::MaybeUninit;
#[cfg(target_arch = "x86_64")]
use std::ptr;

#[cfg(target_arch = "x86_64")]
use self::gemv::Gemv;
#[cfg(target_arch = "x86_64")]
use self::simd::{F32x8, F32x16, F64x4, F64x8, I16PairsX8, I16PairsX16, Simd};
use super::super::isa::Level;
#[cfg(target_arch = "x86_64")]
use super::super::isa::unrolled;
use super::super::pack::pipeline::NextTile;
#[cfg(target_arch = "x86_64")]
use super::super::scratch::{self, Side};
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
    /// Whether each panel, in place, is packed by the first group of rows as it multiplies: those below it read that.
    pub packs: bool,
    /// Where to. Null until the GEMM runs, and if there is no memory: all groups then read what is in place.
    pub room: *mut P,
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

/// A panel of the right operand, as the rows at hand read it.
#[derive(Clone, Copy)]
struct Panel<P> {
    /// Its first element.
    from: *const P,
    /// From a step of K to the next.
    step: isize,
    /// Where it is packed to, or null.
    room: *mut P,
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
    let is_wide = matches!(accumulator, DType::F32 | DType::F64) && columns.is_multiple_of(avx512::VECTORS * lanes);
    match avx512 {
        true if is_wide => [avx512::ROWS, avx512::VECTORS * lanes],
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
/// 30 % less). Rows of a few lines lie as near to each other in place as in a panel.
#[inline(always)]
pub(crate) fn rhs_stays_in_cache(avx512: bool, depth: usize, step: usize) -> bool {
    const LINE: usize = 64;
    const NEAR_BYTES: usize = 3 << 20;
    let (way, room) = if avx512 { (128 << 10, 1 << 20) } else { (4 << 10, 16 << 10) };
    let apart = Ord::min(way, 1 << Ord::min(step.trailing_zeros(), 63));
    let crosses = !step.is_multiple_of(LINE);
    let is_near = !crosses || avx512 && depth.saturating_mul(step) <= NEAR_BYTES;
    step <= 4 * LINE || is_near && depth.saturating_mul(apart) <= room
}

/// Prefetches a line for write (`prefetchw`).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::kernel::cpu) fn prefetch_for_write<P>(to: *mut P) {
    // SAFETY: a prefetch changes nothing; processors without the instruction do nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) to, options(nostack, preserves_flags, readonly)) };
}

/// The GEMM's loops, inlined into an [entry](f32_v4) for each dtype and instruction set.
///
/// # Safety
/// As for the entries.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn gemm<V: Simd>(x: &Gemm<V::Element>, accumulators: &Accumulators<V::Element>) {
    let width = 2 * V::LANES;
    let group = group::<V>();
    let is_shallow = x.rhs.in_place && x.rhs.room.is_null() && x.depth <= 4 * PREFETCH_STEPS as usize;
    // SAFETY: by the contract above; every block of rows and columns is inside the GEMM.
    unsafe {
        let most = if x.lhs.group.is_some() { group } else { most_rows::<V>() };
        // Of the largest block: a vector has at most 16 lanes.
        let mut room = MaybeUninit::<[V::Element; MAX_ROWS * 2 * 16]>::uninit();
        let mut j = 0;
        while j < x.columns {
            let mut panel = Panel { from: x.rhs.at_column(j), step: x.rhs.step, room: x.rhs.room };
            let is_more = !x.rhs.in_place && j + width < x.columns;
            let end = if is_more { x.depth } else { 0 };
            let mut cursor = PrefetchCursor { from: panel.from.wrapping_offset(x.rhs.panel), at: 0, end };
            let part = cursor.end.div_ceil(x.rows.div_ceil(most));
            // A packed panel is whole, but maybe not its accumulators: those of the group at hand are then kept aside. Of one vector
            // only that is multiplied.
            let columns = Ord::min(x.columns - j, width);
            let is_aside = columns < width && !x.rhs.in_place && !(V::AVX512 && columns <= V::LANES);
            // One pointer for both: another borrow of the room would end the first one.
            let to = room.as_mut_ptr().cast::<V::Element>();
            if is_aside {
                // Lanes of no column are read as well. No other panel of the GEMM comes here.
                room.as_mut_ptr().write_bytes(0, 1);
            }
            let from = if accumulators.from.is_null() { accumulators.from } else { to.cast_const() };
            let aside = Accumulators { from, to, from_row: width, to_row: width };
            let mut i = 0;
            while i < x.rows {
                // Packed rows of one group at a time.
                let remaining =
                    if x.lhs.group.is_some() { Ord::min(x.rows - i, group - i % group) } else { x.rows - i };
                let a = match x.lhs.group {
                    Some(stride) => x.lhs.ptr.offset((i / group) as isize * stride).add(i % group),
                    None => x.lhs.ptr.offset(i as isize * x.lhs.row),
                };
                let first = i;
                let (to, at) = if is_aside { (&aside, [0, 0]) } else { (accumulators, [i, j]) };
                if is_aside && !from.is_null() {
                    let from = accumulators.from.add(i * accumulators.from_row + j);
                    copy(
                        from,
                        accumulators.from_row,
                        aside.to,
                        width,
                        [Ord::min(remaining, most_rows::<V>()), columns],
                    );
                }
                // The largest block of the lists that has no more rows than remain: with AVX-512, with AVX2, and with either.
                macro_rules! rows {
                    (
                        $n:expr, [$($avx512:literal)*], [$($avx2:literal)*], [$($either:literal)*],
                        $q:literal, $is_packed:literal, $is_masked:literal
                    ) => {
                        match $n {
                            $(n if V::AVX512 && n >= $avx512 => rows!($avx512, $q, $is_packed, $is_masked),)*
                            $(n if !V::AVX512 && n >= $avx2 => rows!($avx2, $q, $is_packed, $is_masked),)*
                            $(n if n >= $either => rows!($either, $q, $is_packed, $is_masked),)*
                            _ => rows!(1, $q, $is_packed, $is_masked),
                        }
                    };
                    ($m:literal, $q:literal, $is_packed:literal, $is_masked:literal) => {{
                        macro_rules! block {
                            ($form:expr) => {
                                block::<V, $m, $q, $is_packed, $is_masked, { $form }>(
                                    x,
                                    a,
                                    panel,
                                    to,
                                    at,
                                    &mut cursor,
                                    part,
                                )
                            };
                        }
                        if const { !$is_packed && $m >= 4 && <V::Element as Prim>::FLOAT }
                            && !panel.room.is_null()
                            && i + $m < x.rows
                        {
                            block!(PACKS);
                            panel = Panel { from: panel.room, step: width as isize, room: ptr::null_mut() };
                        } else if const { !$is_packed && !$is_masked && $m > 4 && <V::Element as Prim>::FLOAT } && is_shallow {
                            block!(SHALLOW);
                        } else {
                            block!(PLAIN);
                        }
                        i += $m;
                    }};
                }
                match (if is_aside { width } else { columns }, x.lhs.group.is_some()) {
                    (n, true) if n == width => rows!(remaining, [12 8], [6], [4 2], 2, true, false),
                    // Groups of about the same size.
                    (n, false) if n == width => {
                        let n = remaining / remaining.div_ceil(most_rows::<V>());
                        rows!(n, [14 13 12 11 10 9 8 7], [6 5], [4 2], 2, false, false)
                    }
                    (n, true) if n > V::LANES => rows!(remaining, [8], [], [4 2], 2, true, true),
                    (n, false) if n > V::LANES => rows!(remaining, [8], [], [4 2], 2, false, true),
                    (_, true) => rows!(remaining, [8], [], [4 2], 1, true, true),
                    (_, false) => rows!(remaining, [8], [], [4 2], 1, false, true),
                }
                if is_aside {
                    let to = accumulators.to.add(first * accumulators.to_row + j);
                    copy(aside.to, width, to, accumulators.to_row, [i - first, columns]);
                }
            }
            j += width;
        }
    }
}

/// Rows of a packed group.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
const fn group<V: Simd>() -> usize {
    let [group, _] = register_block(V::AVX512, <V::Element as Prim>::DTYPE, 1);
    group
}

/// The most rows of a block of two vectors: the other registers hold those of B and an element of A.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
const fn most_rows<V: Simd>() -> usize {
    if V::AVX512 { MAX_ROWS } else { 6 }
}
/// That with AVX-512.
#[cfg(target_arch = "x86_64")]
const MAX_ROWS: usize = 14;

/// Prefetches the next rows of a panel.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn prefetch_rows<V: Simd>(cursor: &mut PrefetchCursor<V::Element>, rows: usize) {
    let end = Ord::min(cursor.at + rows, cursor.end);
    while cursor.at < end {
        let from = cursor.from.wrapping_add(cursor.at * 2 * V::LANES);
        // SAFETY: a prefetch reads nothing.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(from.cast());
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(V::LANES).cast());
        }
        cursor.at += 1;
    }
}

/// Forms of a block: a panel is read, and its rows prefetched; it is packed for the rows below as well; or it has so few rows, in place, that
/// most of those ahead would be past its end, on pages of their own: those of the next panel are prefetched. They are forms and not a
/// distance, which would take a register of deep products.
const PLAIN: u8 = 0;
const PACKS: u8 = 1;
const SHALLOW: u8 = 2;

/// `M` rows by `Q` vectors of columns, over all of K, prefetching a `part` of the rows of the next panel meanwhile.
/// `MASKED` says that the last vector has fewer columns, `FORM` what else is done with the panel.
///
/// # Safety
/// As for the GEMM.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn block<V: Simd, const M: usize, const Q: usize, const PACKED: bool, const MASKED: bool, const FORM: u8>(
    x: &Gemm<V::Element>,
    mut a: *const V::Element,
    Panel { from: mut b, step, mut room }: Panel<V::Element>,
    accumulators: &Accumulators<V::Element>,
    [i, j]: [usize; 2],
    cursor: &mut PrefetchCursor<V::Element>,
    part: usize,
) {
    let group = group::<V>();
    // SAFETY: as for the caller.
    unsafe {
        let mut acc = [[V::zero(); Q]; M];
        let to = accumulators.to.add(i * accumulators.to_row + j);
        // Of the last vector, which lanes there are.
        let some = V::first(if MASKED { x.columns - j - (Q - 1) * V::LANES } else { V::LANES });
        if !accumulators.from.is_null() {
            let from = accumulators.from.add(i * accumulators.from_row + j);
            unrolled!(r in M, 16, unrolled!(q in Q, 2, {
                let at = from.wrapping_add(r * accumulators.from_row + q * V::LANES);
                acc[r][q] = if MASKED && q + 1 == Q { V::load_masked(at, some) } else { V::load(at) };
            }));
        }
        // Four rows from each of these.
        let row = if PACKED { 1 } else { x.lhs.row };
        let mut fifth = a.wrapping_offset(4 * row);
        let mut ninth = a.wrapping_offset(8 * row);
        let mut last = a.wrapping_offset(12 * row);
        let rounds = Ord::clamp(x.depth / PREFETCH_INTERVAL, 1, MAX_PREFETCHES);
        let (rows, rows_a_round, steps) = (part.div_ceil(rounds), M.div_ceil(rounds), x.depth / rounds);
        let ahead = if FORM == SHALLOW { 2 * V::LANES as isize } else { PREFETCH_STEPS * step };
        let mut round = 0;
        let mut rest = x.depth;
        while rest > 0 {
            let mut k = rest;
            if round < rounds {
                prefetch_rows::<V>(cursor, rows);
                let mut r = round * rows_a_round;
                while x.depth <= SHALLOW_K && r < Ord::min(M, (round + 1) * rows_a_round) {
                    let row = to.wrapping_add(r * accumulators.to_row);
                    prefetch_for_write(row);
                    prefetch_for_write(row.wrapping_add(2 * V::LANES - 1));
                    r += 1;
                }
                k = steps;
                round += 1;
            }
            rest -= k;
            macro_rules! step {
                ($offset:literal) => {
                    let mut v = [V::zero(); Q];
                    unrolled!(q in Q, 2, {
                        let b = b.offset($offset * step).add(V::LANES * q);
                        if (q * V::LANES * size_of::<V::Element>()).is_multiple_of(64) {
                            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_offset(ahead).cast());
                        }
                        v[q] = if MASKED && q + 1 == Q { V::load_masked(b, some) } else { V::load(b) };
                        if FORM == PACKS {
                            V::store(room.add(($offset * 2 + q) * V::LANES), v[q]);
                        }
                    });
                    unrolled!(r in M, 16, {
                        let s = if PACKED {
                            *a.add($offset * group + r)
                        } else {
                            let four = match r / 4 {
                                0 => a,
                                1 => fifth,
                                2 => ninth,
                                _ => last,
                            };
                            *four.offset((r % 4) as isize * row + $offset)
                        };
                        let s = V::splat(s);
                        unrolled!(q in Q, 2, acc[r][q] = V::fma(s, v[q], acc[r][q]));
                    });
                };
            }
            macro_rules! advance {
                ($by:literal) => {
                    if PACKED {
                        a = a.add($by * group);
                    } else {
                        a = opaque(a.wrapping_add($by));
                        fifth = if M > 4 { opaque(fifth.wrapping_add($by)) } else { fifth };
                        ninth = if M > 8 { opaque(ninth.wrapping_add($by)) } else { ninth };
                        last = if M > 12 { opaque(last.wrapping_add($by)) } else { last };
                    }
                    b = b.offset($by * step);
                    room = if FORM == PACKS { room.add($by * 2 * V::LANES) } else { room };
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
        unrolled!(r in M, 16, unrolled!(q in Q, 2, {
            let at = to.wrapping_add(r * accumulators.to_row + q * V::LANES);
            if MASKED && q + 1 == Q {
                V::store_masked(at, some, acc[r][q]);
            } else {
                V::store(at, acc[r][q]);
            }
        }));
    }
}

/// The GEMM for each dtype and instruction set, compiled once.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident: $simd:ty, $features:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the GEMM describes, the accumulators be readable and writable by
        /// this call alone, and the machine must have the features.
        #[target_feature(enable = $features)]
        pub(in crate::kernel::cpu) unsafe fn $name(
            x: &Gemm<<$simd as Simd>::Element>,
            accumulators: &Accumulators<<$simd as Simd>::Element>,
        ) {
            // SAFETY: by the contract above.
            unsafe { gemm::<$simd>(x, accumulators) }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
entries! {
    /// In `f32`, with AVX-512.
    f32_v4: F32x16, "avx512f,avx512bw,avx512dq,avx512vl,fma";
    /// In `f64`, with AVX-512.
    f64_v4: F64x8, "avx512f,avx512bw,avx512dq,avx512vl,fma";
    /// In `i32`, with AVX-512, of pairs of 16-bit operands: an element of an operand is two steps of K.
    i32_v4: I16PairsX16, "avx512f,avx512bw,avx512dq,avx512vl,fma";
    /// In `f32`, with AVX2.
    f32_v3: F32x8, "avx2,fma";
    /// In `f64`, with AVX2.
    f64_v3: F64x4, "avx2,fma";
    /// In `i32`, with AVX2, of pairs of 16-bit operands.
    i32_v3: I16PairsX8, "avx2,fma";
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
        unsafe { ptr::copy_nonoverlapping(from.add(i * from_row), to.add(i * to_row), columns) };
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

/// Computes the GEMM at the level, if that has vectors for it.
///
/// # Safety
/// As for the blocks above, whose dtype `P` must be.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply<L: Level, P: Prim>(x: &Gemm<P>, accumulators: &Accumulators<P>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `P` is the dtype that it is matched to be.
    unsafe {
        let wide = !x.rhs.in_place && avx512::multiplies(x.rhs.width, size_of::<P>());
        let is_gemv = gemv::multiplies(x.rows, x.depth) && x.lhs.group.is_none() && x.rhs.in_place;
        let gemv = Gemv::of(x);
        // A panel is two vectors wide.
        let room = match x.rhs.packs && !is_gemv {
            true => scratch::tile(Side::Panel, x.depth * if L::AVX512 { 128 } else { 64 }).unwrap_or(ptr::null_mut()),
            false => ptr::null_mut(),
        };
        let x = &Gemm { rhs: Rhs { room: room.cast(), ..x.rhs }, ..*x };
        let (x, accumulators) = (ptr::from_ref(x), ptr::from_ref(accumulators));
        match (P::DTYPE, L::AVX512) {
            (DType::F32, _) if is_gemv => {
                gemv::multiply::<L, f32>(&*ptr::from_ref(&gemv).cast(), &*accumulators.cast())
            }
            (DType::F64, _) if is_gemv => {
                gemv::multiply::<L, f64>(&*ptr::from_ref(&gemv).cast(), &*accumulators.cast())
            }
            (DType::F32, true) if wide => avx512::f32_v4(&*x.cast(), &*accumulators.cast()),
            (DType::F64, true) if wide => avx512::f64_v4(&*x.cast(), &*accumulators.cast()),
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
