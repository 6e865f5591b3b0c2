//! Lanes that are read in segments, numbers among bytes, and items that are the same for several lanes: whole segments at a time,
//! where blocks of lanes and segments begin together.

use super::isa::Level;
#[cfg(target_arch = "x86_64")]
use super::isa::{BLOCK, TAIL};
use super::lanes::values;
use super::tensor::{QUAD, gather, transposed, widen, widen_one};
#[cfg(target_arch = "x86_64")]
use super::transpose::LINE;
use super::transpose::prefetch_far;
use super::{At, Cpu, CpuTensor};
use crate::kernel::lang::{Any, LaneItem, Lanes, Prim, Rounds, Val, item};

/// Whether the lanes `lo..hi` of segments are all inside the operand, whose elements lie side by side.
#[inline(always)]
pub(super) fn are_plain<L: Level, T: Any>(
    x: CpuTensor<T, 1>,
    from: i64,
    levels: &[Rounds<Cpu<L>>],
    size: usize,
    [lo, hi]: [i64; 2],
) -> bool {
    // How many lanes there are, and where the last one's segment ends, from the first's on.
    let (mut lanes, mut end) = (Some(size as i64), Some(size as i64));
    let mut d = 0;
    while d < levels.len() {
        let (count, distance) = (levels[d].0.0, levels[d].1.0);
        if count < 1 || distance < 0 {
            return false;
        }
        lanes = match lanes {
            Some(lanes) => lanes.checked_mul(count),
            None => None,
        };
        end = match (end, (count - 1).checked_mul(distance)) {
            (Some(end), Some(more)) => end.checked_add(more),
            _ => None,
        };
        d += 1;
    }
    match (lanes, end) {
        (Some(lanes), Some(end)) => lo >= 0 && hi <= lanes && x.strides[0] == 1 && x.holds(from, end),
        _ => false,
    }
}

/// `N` elements from `first` on, which are known to be inside if the lanes of a whole block are read.
#[inline(always)]
fn part<L: Level, T: Any, const N: usize>(x: CpuTensor<T, 1>, first: i64, known: bool) -> [T::Compute; N] {
    if known || (x.strides[0] == 1 && x.holds(first, N as i64)) {
        // SAFETY: the elements are inside the operand, one after the other.
        let mem = unsafe { x.ptr.wrapping_offset(first as isize).cast::<[T::Mem; N]>().read_unaligned() };
        widen::<L, T, N>(&mem)
    } else {
        gather(x, first, N).0
    }
}

/// The `N` lanes at `at` of segments of `S` elements. A whole block is read only where [`are_plain`] said that it can be.
#[inline(always)]
pub(super) fn load<L: Level, T: Any, const S: usize, const N: usize>(
    x: CpuTensor<T, 1>,
    start: impl Fn(Val<Cpu<L>, i64>) -> Val<Cpu<L>, i64>,
    at: At,
) -> [T::Compute; N] {
    const { assert!(S > 0, "a segment has at least one element") }
    let (size, known) = (S as i64, at.is_plain::<N>());
    if const { S.is_multiple_of(N) } && at.i % N as i64 == 0 {
        let first = start(Val(at.part::<S, N>())).0;
        return part::<L, T, N>(x, first.wrapping_add(at.i % size), known);
    }
    let mut block = [T::Compute::default(); N];
    if const { N.is_multiple_of(S) } && at.i % size == 0 {
        let first = at.part::<S, N>();
        let mut j = 0;
        while j < at.lanes::<N>() {
            let part = part::<L, T, S>(x, start(Val(first + (j / S) as i64)).0, known);
            let mut k = 0;
            // Both bounds, so that no check of the index remains.
            while k < S && j + k < N {
                block[j + k] = part[k];
                k += 1;
            }
            j += S;
        }
        return block;
    }
    let mut j = 0;
    while j < at.lanes::<N>() {
        let i = at.i.wrapping_add(j as i64);
        let [v] = part::<L, T, 1>(x, start(Val(i / size)).0.wrapping_add(i % size), known);
        block[j] = v;
        j += 1;
    }
    block
}

/// `N` words from byte `first` on, which are known to be inside if the lanes of a whole block are read.
#[inline(always)]
fn words_at<L: Level, const N: usize>(x: CpuTensor<u8, 1>, first: i64, known: bool) -> [i32; N] {
    if known || (x.strides[0] == 1 && x.holds(first, 4 * N as i64)) {
        // SAFETY: the bytes are inside the operand, one after the other.
        return unsafe { x.ptr.wrapping_offset(first as isize).cast::<[i32; N]>().read_unaligned() };
    }
    let mut words = [0; N];
    let mut j = 0;
    while j < N {
        words[j] = number::<L, i32>(x, first.wrapping_add(4 * j as i64));
        j += 1;
    }
    words
}

/// So many bytes ahead words are prefetched: what is unpacked is computed with before more is read.
const PREFETCH_BYTES: i64 = 8192;

/// As many, of levels that have such vectors.
#[cfg(target_arch = "x86_64")]
const OCTET: usize = 8;

/// Copies eight words by a vector, as [`copy_quad`] does four.
///
/// # Safety
/// As for that; the caller must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_octet(from: *const u8, to: *mut i32) {
    // SAFETY: by the contract above.
    unsafe {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm256_storeu_si256};
        _mm256_storeu_si256(to.cast(), _mm256_loadu_si256(from.cast()));
    }
}

/// Copies eight words twice, by a load that fills a vector with them: two loads of the same are a load and a shuffle.
///
/// # Safety
/// As for [`copy_quad`]; the caller must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_octet_twice(from: *const u8, to: *mut i32) {
    // SAFETY: by the contract above.
    unsafe {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_broadcast_i64x4, _mm512_storeu_si512};
        _mm512_storeu_si512(to.cast(), _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast())));
    }
}

/// Copies four words twice, and then four others, likewise.
///
/// # Safety
/// As for that.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_quads_twice([first, second]: [*const u8; 2], to: *mut i32) {
    // SAFETY: by the contract above.
    unsafe {
        use std::arch::x86_64::{
            _mm_loadu_si128, _mm256_broadcastsi128_si256, _mm512_castsi256_si512, _mm512_inserti64x4,
            _mm512_storeu_si512,
        };
        let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(first.cast()));
        let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(second.cast()));
        _mm512_storeu_si512(to.cast(), _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high));
    }
}

/// Copies the four quads of a vector from each of these places, and of another one from 16 bytes behind them, if there the first ends.
///
/// # Safety
/// As for [`copy_quad`]; the caller must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_quads([first, second]: [[*const u8; QUAD]; 2], to: [*mut i32; 2]) {
    use std::arch::x86_64::*;
    let apart = |quad: *const u8, bytes: usize| quad.addr().wrapping_sub(first[0].addr()) == bytes;
    let mut is_line = apart(second[0], 16);
    let mut i = 1;
    while i < QUAD {
        is_line &= apart(first[i], 32 * i) && apart(second[i], 32 * i + 16);
        i += 1;
    }
    // SAFETY: by the contract above.
    unsafe {
        if is_line {
            let [low, high] = [_mm512_loadu_si512(first[0].cast()), _mm512_loadu_si512(first[2].cast())];
            _mm512_storeu_si512(to[0].cast(), _mm512_shuffle_i32x4::<0x88>(low, high));
            _mm512_storeu_si512(to[1].cast(), _mm512_shuffle_i32x4::<0xdd>(low, high));
            return;
        }
        let mut v = 0;
        while v < 2 {
            let quads = if v == 0 { first } else { second };
            let low = _mm256_castsi128_si256(_mm_loadu_si128(quads[0].cast()));
            let low = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(quads[1].cast()));
            let high = _mm256_castsi128_si256(_mm_loadu_si128(quads[2].cast()));
            let high = _mm256_inserti128_si256::<1>(high, _mm_loadu_si128(quads[3].cast()));
            _mm512_storeu_si512(to[v].cast(), _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high));
            v += 1;
        }
    }
}

/// Copies four words by a vector, of which LLVM makes no gather: it does of words that lie in several places, and a gather takes as
/// long as the words do one by one.
///
/// # Safety
/// The bytes must be readable, and the words writable.
#[inline(always)]
unsafe fn copy_quad(from: *const u8, to: *mut i32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; SSE2 is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128};
        _mm_storeu_si128(to.cast(), _mm_loadu_si128(from.cast()));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by the contract above.
    unsafe {
        to.cast::<[i32; QUAD]>().write(from.cast::<[i32; QUAD]>().read_unaligned());
    }
}

/// The `N` words at `at` of segments of `S` words, `twice` each if so. A whole block is read only where [`are_plain`] said that it can be.
#[inline(always)]
pub(super) fn words<L: Level, const S: usize, const N: usize>(
    x: CpuTensor<u8, 1>,
    start: impl Fn(Val<Cpu<L>, i64>) -> Val<Cpu<L>, i64>,
    twice: bool,
    at: At,
) -> [i32; N] {
    const { assert!(S > 0, "a segment has at least one word") }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = twice;
    let (size, known) = (S as i64, at.is_plain::<N>());
    if const { S.is_multiple_of(N) } && at.i % N as i64 == 0 {
        let first = start(Val(at.part::<S, N>())).0;
        return words_at::<L, N>(x, first.wrapping_add(at.i % size * 4), known);
    }
    let mut block = [0; N];
    if const { N.is_multiple_of(S) } && at.i % size == 0 {
        let first = at.part::<S, N>();
        if const { L::AVX2 && S.is_multiple_of(QUAD) } && known {
            let place = |j: usize| start(Val(first + (j / S) as i64)).0.wrapping_add((j % S * 4) as i64);
            let mut j = 0;
            // SAFETY: all bytes are inside the operand, those of a segment one after the other, and the words inside of the block.
            unsafe {
                let from = |j: usize| x.ptr.wrapping_offset(place(j) as isize);
                let block = block.as_mut_ptr();
                let to = |j: usize| block.wrapping_add(j);
                #[cfg(target_arch = "x86_64")]
                if const { L::AVX512 && N == BLOCK } {
                    while at.transposes && j < QUAD {
                        let quad = |i: usize, v: usize| from(TAIL * i + QUAD * v).cast_const();
                        let quads = |v: usize| [quad(0, v), quad(1, v), quad(2, v), quad(3, v)];
                        copy_quads([quads(j), quads(j + 1)], [to(TAIL * j), to(TAIL * (j + 1))]);
                        j += 2;
                    }
                    if at.transposes {
                        j = N;
                    }
                }
                #[cfg(target_arch = "x86_64")]
                if const { L::AVX512 && S == OCTET && N.is_multiple_of(2 * OCTET) } {
                    while twice && at.is_whole::<N>() && j < N {
                        copy_octet_twice(from(j), to(j));
                        j += 2 * OCTET;
                    }
                }
                #[cfg(target_arch = "x86_64")]
                if const { L::AVX512 && S == QUAD && N.is_multiple_of(4 * QUAD) } {
                    while twice && at.is_whole::<N>() && j < N {
                        copy_quads_twice([from(j), from(j + 2 * QUAD)], to(j));
                        j += 4 * QUAD;
                    }
                }
                while j < at.lanes::<N>() {
                    #[cfg(target_arch = "x86_64")]
                    if const { S.is_multiple_of(OCTET) } {
                        copy_octet(from(j), to(j));
                        j += OCTET;
                        continue;
                    }
                    copy_quad(from(j), to(j));
                    j += QUAD;
                }
            }
            let here = start(Val(first)).0;
            let bytes = start(Val(first + (N / S) as i64)).0.wrapping_sub(here);
            // Where words lie close together: the hardware begins anew at each page.
            if at.prefetches && bytes > 0 && bytes < 8 * N as i64 {
                prefetch_far(x.ptr.wrapping_offset(here.wrapping_add(PREFETCH_BYTES) as isize), bytes as usize);
            }
            return block;
        }
        let mut j = 0;
        while j < at.lanes::<N>() {
            let part = words_at::<L, S>(x, start(Val(first + (j / S) as i64)).0, known);
            let mut k = 0;
            // Both bounds, so that no check of the index remains.
            while k < S && j + k < N {
                block[j + k] = part[k];
                k += 1;
            }
            j += S;
        }
        return block;
    }
    let mut j = 0;
    while j < at.lanes::<N>() {
        let i = at.i.wrapping_add(j as i64);
        let [word] = words_at::<L, 1>(x, start(Val(i / size)).0.wrapping_add(i % size * 4), known);
        block[j] = word;
        j += 1;
    }
    block
}

/// The number whose bytes begin at element `i`, as it is in memory.
///
/// # Safety
/// The bytes are inside the operand, one after the other.
#[inline(always)]
unsafe fn memory<U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Mem {
    // SAFETY: the caller vouches for the bytes, and all bits are values of a number.
    unsafe { x.ptr.wrapping_offset(i as isize).cast::<U::Mem>().read_unaligned() }
}

/// The same, by a load that LLVM makes no gather of: several numbers of four bytes take longer so than one by one.
///
/// # Safety
/// As for [`memory`].
#[inline(always)]
unsafe fn memory_one<L: Level, U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Mem {
    #[cfg(target_arch = "x86_64")]
    if L::AVX2 && size_of::<U::Mem>() == 4 {
        let bits: u32;
        let from = x.ptr.wrapping_offset(i as isize);
        // SAFETY: the caller vouches for the bytes, and all bits are values of a number.
        unsafe {
            std::arch::asm!(
                "mov {bits:e}, dword ptr [{from}]",
                bits = out(reg) bits,
                from = in(reg) from,
                options(pure, readonly, nostack, preserves_flags),
            );
            return std::mem::transmute_copy(&bits);
        }
    }
    // SAFETY: by the contract above.
    unsafe { memory::<U>(x, i) }
}

/// Of numbers of two or four bytes, multiples of so many are read together.
#[cfg(target_arch = "x86_64")]
const FOUR: usize = 4;
/// How many bytes these are apart at least: a vector that is loaded for one of them then begins behind the first, also two bytes early.
#[cfg(target_arch = "x86_64")]
const FEWEST_BYTES: i64 = 6;

/// The same vector, of which LLVM does not see where it comes from.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn opaque(mut v: std::arch::x86_64::__m128i) -> std::arch::x86_64::__m128i {
    // SAFETY: nothing is done.
    unsafe { std::arch::asm!("/* {v} */", v = inout(xmm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

/// `N` numbers of four bytes, the first and others that are `step` bytes apart: by a load of a vector for each, of which a blend takes one
/// number. To insert each by itself takes a port of its own, which shuffles and products need, and so do gathers, which LLVM would make.
///
/// # Safety
/// They must be readable, with the bytes between them, and at least [`FEWEST_BYTES`] apart; `N` is a multiple of [`FOUR`]; the caller must
/// have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn singles<const N: usize>(first: *const u8, step: isize) -> [u32; N] {
    use std::arch::x86_64::*;
    let mut all = [0; N];
    let mut j = 0;
    while j < N {
        // SAFETY: by the contract above; no vector begins before the first of four, nor ends behind the last.
        unsafe {
            let first = first.wrapping_offset(j as isize * step);
            let vector = |i: isize| _mm_loadu_si128(first.wrapping_offset(i * (step - 4)).cast());
            let v = _mm_blend_epi32::<0b0010>(vector(0), vector(1));
            let v = _mm_blend_epi32::<0b1000>(_mm_blend_epi32::<0b0100>(v, vector(2)), vector(3));
            _mm_storeu_si128(all.as_mut_ptr().wrapping_add(j).cast(), v);
        }
        j += FOUR;
    }
    all
}

/// `N` numbers of two bytes, as [`singles`] reads them, each in the upper half of four bytes.
///
/// # Safety
/// As for that.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn halves<const N: usize>(first: *const u8, step: isize) -> [u16; N] {
    use std::arch::x86_64::*;
    let mut all = [0; N];
    let mut j = 0;
    while j < N {
        // SAFETY: by the contract above; no vector begins before the first of four or eight, nor ends behind the last.
        unsafe {
            let (first, to) = (first.wrapping_offset(j as isize * step), all.as_mut_ptr().wrapping_add(j));
            let at = |i: isize| first.wrapping_offset(i * (step - 4) - 2);
            // Nothing before the first need be readable: it is in the lower half.
            if const { !N.is_multiple_of(2 * FOUR) } {
                let vector = |i: isize| _mm_loadu_si128(at(i).cast());
                let v = _mm_blend_epi32::<0b0010>(_mm_loadu_si128(first.cast()), vector(1));
                let v = _mm_blend_epi32::<0b1000>(_mm_blend_epi32::<0b0100>(v, vector(2)), vector(3));
                let v = _mm_srli_epi32::<16>(_mm_sllv_epi32(v, _mm_setr_epi32(16, 0, 0, 0)));
                _mm_storel_epi64(to.cast(), _mm_packus_epi32(v, v));
                j += FOUR;
                continue;
            }
            let vector = |i: isize| _mm256_loadu_si256(at(i).cast());
            let v = _mm256_loadu_si256(first.cast());
            let v = _mm256_blend_epi32::<0x02>(v, vector(1));
            let v = _mm256_blend_epi32::<0x04>(v, vector(2));
            let v = _mm256_blend_epi32::<0x08>(v, vector(3));
            let v = _mm256_blend_epi32::<0x10>(v, vector(4));
            let v = _mm256_blend_epi32::<0x20>(v, vector(5));
            let v = _mm256_blend_epi32::<0x40>(v, vector(6));
            let v = _mm256_blend_epi32::<0x80>(v, vector(7));
            let v = _mm256_srli_epi32::<16>(_mm256_sllv_epi32(v, _mm256_setr_epi32(16, 0, 0, 0, 0, 0, 0, 0)));
            let v = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(v, v));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(v));
        }
        j += 2 * FOUR;
    }
    all
}

/// Whether [`dense_halves`] takes fewer instructions for numbers so far apart than [`halves`]: if a vector of memory has two of them.
#[cfg(target_arch = "x86_64")]
const fn are_dense(step: i64) -> bool {
    step % 2 == 0 && step <= LINE as i64 / 2
}

/// `N` numbers of two bytes: of each vector of memory, those that begin in it by one permutation. None lies in two of them.
///
/// # Safety
/// As for [`singles`], and [`are_dense`]; there are at most 32 of them, and the caller must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dense_halves<const N: usize>(first: *const u8, step: usize) -> [u16; N] {
    use std::arch::x86_64::*;
    let (mut places, mut lines) = ([0_u16; LINE / 2], [0_u16; LINE / 2]);
    let mut i = 0;
    while i < N {
        (places[i], lines[i]) = ((i * step % LINE / 2) as u16, (i * step / LINE) as u16);
        i += 1;
    }
    // SAFETY: by the contract above; behind the last nothing is read.
    unsafe {
        let places = _mm512_loadu_si512(places.as_ptr().cast());
        let lines = _mm512_loadu_si512(lines.as_ptr().cast());
        let mut all = _mm512_setzero_si512();
        let (end, mut at) = ((N - 1) * step + 2, 0);
        while at < end {
            let from = first.wrapping_add(at);
            let line = if end - at >= LINE {
                _mm512_loadu_si512(from.cast())
            } else {
                _mm512_maskz_loadu_epi16((1 << ((end - at) / 2)) - 1, from.cast())
            };
            let mask = _mm512_cmpeq_epi16_mask(lines, _mm512_set1_epi16((at / LINE) as i16));
            all = _mm512_mask_permutexvar_epi16(all, mask, places, line);
            at += LINE;
        }
        std::mem::transmute_copy(&all)
    }
}

/// The number whose bytes begin at element `i`, where it is known to be inside.
#[inline(always)]
pub(super) fn known_number<L: Level, U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Compute {
    // SAFETY: the bytes are inside the operand, one after the other.
    widen_one::<L, U>(unsafe { memory::<U>(x, i) })
}

/// The number whose bytes begin at element `i`.
#[inline(always)]
pub(super) fn number<L: Level, U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Compute {
    let bytes = size_of::<U::Mem>();
    if x.strides[0] == 1 && x.holds(i, bytes as i64) {
        return known_number::<L, U>(x, i);
    }
    let mut mem = std::mem::MaybeUninit::<U::Mem>::zeroed();
    let mut k = 0;
    while k < bytes {
        let byte = match x.element([i.wrapping_add(k as i64)]) {
            // SAFETY: the element is inside the operand.
            Some(p) => unsafe { *p },
            None => x.pad,
        };
        // SAFETY: a byte of the number.
        unsafe { mem.as_mut_ptr().cast::<u8>().add(k).write(byte) };
        k += 1;
    }
    // SAFETY: every byte was written, and all bits are values.
    widen_one::<L, U>(unsafe { mem.assume_init() })
}

/// The `N` numbers at `at`, whose bytes begin where `start` says.
#[inline(always)]
pub(super) fn numbers<L: Level, U: Any, const N: usize>(
    x: CpuTensor<u8, 1>,
    start: impl Fn(Val<Cpu<L>, i64>) -> Val<Cpu<L>, i64>,
    at: At,
    plain: impl FnOnce([i64; 2]) -> bool,
) -> [U::Compute; N] {
    let mut j = 1;
    if at.is_whole::<N>() && (at.is_plain::<N>() || plain([at.i, at.i.saturating_add(N as i64)])) {
        // Together, so that they are widened as vectors.
        #[cfg(target_arch = "x86_64")]
        if const { L::AVX2 && matches!(size_of::<U::Mem>(), 2 | 4) && N.is_multiple_of(FOUR) } {
            let place = |j: usize| start(Val(at.i.wrapping_add(j as i64))).0;
            let step = place(1).wrapping_sub(place(0));
            let (mut is_even, mut j) = (step >= FEWEST_BYTES, 2);
            while j < N {
                is_even &= place(j).wrapping_sub(place(j - 1)) == step;
                j += 1;
            }
            if is_even {
                let first = x.ptr.wrapping_offset(place(0) as isize);
                // SAFETY: all numbers are inside the operand, so far apart; all bits are values of one, which has two bytes or four.
                let mem: [U::Mem; N] = unsafe {
                    if const { size_of::<U::Mem>() == 2 && L::AVX512 && (N == TAIL || N == 2 * TAIL) }
                        && are_dense(step)
                    {
                        std::mem::transmute_copy(&dense_halves::<N>(first, step as usize))
                    } else if const { size_of::<U::Mem>() == 2 } {
                        std::mem::transmute_copy(&halves::<N>(first, step as isize))
                    } else {
                        std::mem::transmute_copy(&singles::<N>(first, step as isize))
                    }
                };
                return widen::<L, U, N>(&mem);
            }
        }
        if const { N == 1 } {
            return [known_number::<L, U>(x, start(Val(at.i)).0); N];
        }
        // SAFETY: the bytes of all numbers are inside the operand, one after the other.
        let mut mem = [unsafe { memory_one::<L, U>(x, start(Val(at.i)).0) }; N];
        while j < N {
            // SAFETY: as above.
            mem[j] = unsafe { memory_one::<L, U>(x, start(Val(at.i + j as i64)).0) };
            j += 1;
        }
        return widen::<L, U, N>(&mem);
    }
    let mut block = [number::<L, U>(x, start(Val(at.i)).0); N];
    while j < at.lanes::<N>() {
        block[j] = number::<L, U>(x, start(Val(at.i.wrapping_add(j as i64))).0);
        j += 1;
    }
    block
}

/// The item at an index, for a block of `N` lanes, which may be known to be inside.
#[inline(always)]
fn one<L: Level, A: Lanes<Cpu<L>>, const N: usize>(lanes: A, i: i64, at: At) -> A::Item {
    if at.is_plain::<N>() { lanes.known(Val(i)) } else { item(lanes, Val(i)) }
}

/// `N` lanes of the `K` items from `first` on, of which as many as are there are known to be inside, and are computed together.
#[inline(always)]
fn spread<L: Level, A: Lanes<Cpu<L>, Item: LaneItem<Cpu<L>>>, const N: usize, const K: usize>(
    lanes: A,
    first: i64,
    (there, whole): (usize, bool),
    transposes: bool,
) -> <A::Item as LaneItem<Cpu<L>>>::Array<N> {
    let block = lanes.block::<K>(At { whole, ..At::whole(first, there) });
    let mut items = lanes.lane(&block, 0).splat::<K>();
    let mut j = 1;
    while j < K {
        A::Item::set_lane(&mut items, j, lanes.lane(&block, j));
        j += 1;
    }
    let mut all = A::Item::lane(&items, 0).splat::<N>();
    let mut j = if transposes { 0 } else { N / K };
    while j < N {
        let k = if transposes { transposed(j) } else { j };
        A::Item::set_lane(&mut all, j, A::Item::lane(&items, k / (N / K)));
        j += 1;
    }
    all
}

/// The `N` lanes at `at` of items that are the same for `S` lanes.
#[inline(always)]
pub(super) fn repeat<L: Level, A: Lanes<Cpu<L>, Item: LaneItem<Cpu<L>>>, const S: usize, const N: usize>(
    lanes: A,
    at: At,
) -> <A::Item as LaneItem<Cpu<L>>>::Array<N> {
    const { assert!(S > 0, "an item is repeated at least once") }
    let (size, first) = (S as i64, at.part::<S, N>());
    if const { S.is_multiple_of(N) } && at.i % N as i64 == 0 {
        return one::<L, A, N>(lanes, first, at).splat::<N>();
    }
    if const { N.is_multiple_of(S) } && at.i % size == 0 {
        let many = if at.is_whole::<N>() { N / S } else { at.w.div_ceil(S) };
        if at.is_plain::<N>() || (at.is_whole::<N>() && lanes.plain(first, first.saturating_add(many as i64))) {
            // Only the arm of this size is instantiated.
            macro_rules! spread {
                ($($count:literal)*) => { $(
                    if const { N / S == $count } {
                        return spread::<L, A, N, $count>(lanes, first, (many, at.is_whole::<N>()), at.transposes);
                    }
                )* };
            }
            spread!(2 4 8 16);
        }
    }
    let mut items = one::<L, A, N>(lanes, first, at).splat::<N>();
    if const { N.is_multiple_of(S) } && at.i % size == 0 {
        let mut j = S;
        while j < at.lanes::<N>() {
            let one = one::<L, A, N>(lanes, first + (j / S) as i64, at);
            let mut k = 0;
            // Both bounds, so that no check of the index remains.
            while k < S && j + k < N {
                A::Item::set_lane(&mut items, j + k, one);
                k += 1;
            }
            j += S;
        }
        return items;
    }
    let mut j = 1;
    while j < at.lanes::<N>() {
        A::Item::set_lane(&mut items, j, one::<L, A, N>(lanes, at.i.wrapping_add(j as i64) / size, at));
        j += 1;
    }
    items
}

/// The bytes of `K` integers from `first` on, of which as many as are there are known to be inside.
#[inline(always)]
fn bytes_of<L: Level, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, U>>, U: Any, const K: usize, const N: usize>(
    lanes: A,
    first: i64,
    (there, whole): (usize, bool),
) -> [u8; N] {
    let integers = values::<L, U, A, K>(lanes, At { whole, ..At::whole(first, there) });
    // No constant: of arms that are never taken these are evaluated, too.
    assert!(size_of_val(&integers) == N);
    #[cfg(target_arch = "x86_64")]
    if const { L::AVX2 && K <= 2 && size_of::<U::Compute>() == 8 } {
        use std::arch::x86_64::{_mm_cvtsi64_si128, _mm_storel_epi64};
        // As vectors: LLVM would take each byte out of a register, and insert it.
        let (mut bytes, mut k) = ([0; N], 0);
        while k < K {
            // SAFETY: an integer has eight bytes, as many as are written; AVX2 has SSE2.
            unsafe {
                let bits = std::mem::transmute_copy::<U::Compute, i64>(&integers[k]);
                _mm_storel_epi64(bytes.as_mut_ptr().wrapping_add(8 * k).cast(), opaque(_mm_cvtsi64_si128(bits)));
            }
            k += 1;
        }
        return bytes;
    }
    // SAFETY: all bytes of integers are values, and there are as many.
    unsafe { std::mem::transmute_copy::<[U::Compute; K], [u8; N]>(&integers) }
}

/// The `N` bytes at `at` of integers.
#[inline(always)]
pub(super) fn bytes<L: Level, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, U>>, U: Any, const N: usize>(
    lanes: A,
    at: At,
) -> [u8; N] {
    let size = size_of::<U::Compute>();
    let first = at.i / size as i64;
    let many = if at.is_whole::<N>() { N / size } else { at.w.div_ceil(size) };
    let is_aligned = at.i % size as i64 == 0;
    if const { cfg!(target_endian = "little") && N.is_multiple_of(size_of::<U::Compute>()) }
        && is_aligned
        && (at.is_plain::<N>() || (at.is_whole::<N>() && lanes.plain(first, first.saturating_add(many as i64))))
    {
        // Only the arm of this size is instantiated.
        macro_rules! bytes_of {
            ($($count:literal)*) => { $(
                if const { N / size_of::<U::Compute>() == $count } {
                    return bytes_of::<L, A, U, $count, N>(lanes, first, (many, at.is_whole::<N>()));
                }
            )* };
        }
        bytes_of!(1 2 4 8 16 32 64);
    }
    let mut block = [0; N];
    let mut j = 0;
    while j < at.lanes::<N>() {
        let i = at.i.wrapping_add(j as i64);
        let bits = one::<L, A, N>(lanes, i / size as i64, at).0.bits();
        block[j] = (bits >> (i as usize % size * 8)) as u8;
        j += 1;
    }
    block
}
