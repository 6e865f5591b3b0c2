//! Instruction set levels as types, and the memory operations that differ between them.
//!
//! Kernels name no level and use no intrinsics. These primitives do, because plain code for them does not vectorize:
//! masked loads and stores, non-temporal (streaming) stores, and conversions of `f16`. Loops over registers are unrolled by
//! `unrolled!`.

use crate::kernel::abi;
use crate::kernel::lang::Prim;

/// Lanes handled at once: at the end of a row some of them are masked out.
pub(crate) const BLOCK: usize = 64;
/// Lanes handled at once at the end of columns, some of them masked out.
pub(crate) const TAIL: usize = 16;

/// A machine level.
pub trait Level: Copy + 'static {
    /// Its place in the kernel table.
    const LEVEL: abi::Level;
    /// Whether it has fused multiply-add.
    const FMA: bool;
    /// Whether it has AVX2 and F16C.
    const AVX2: bool;
    /// Whether it has AVX-512 F, BW, DQ and VL.
    const AVX512: bool;
}

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident: $level:ident fma $fma:expr, avx2 $avx2:literal, avx512 $avx512:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl Level for $name {
            const LEVEL: abi::Level = abi::Level::$level;
            const FMA: bool = $fma;
            const AVX2: bool = $avx2;
            const AVX512: bool = $avx512;
        }
    )* };
}
levels! {
    /// What the compiler assumes on this architecture; on AArch64 that includes NEON and fused multiply-add.
    Portable: Portable fma cfg!(target_arch = "aarch64"), avx2 false, avx512 false;
    /// x86-64-v2.
    V2: V2 fma false, avx2 false, avx512 false;
    /// x86-64-v3.
    V3: V3 fma true, avx2 true, avx512 false;
    /// x86-64-v4.
    V4: V4 fma true, avx2 true, avx512 true;
}

/// Calls `f` with the features of the level, those that max-macros gives the entries of kernels: on another thread, or from code that is not inlined into one.
#[inline(always)]
pub(super) fn with_features<L: Level>(f: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c,lzcnt,movbe,popcnt"
        )]
        fn v4(f: impl FnOnce()) {
            f();
        }
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,lzcnt,movbe,popcnt")]
        fn v3(f: impl FnOnce()) {
            f();
        }
        if const { L::AVX512 } {
            // SAFETY: code of a level runs on machines that have it.
            return unsafe { v4(f) };
        }
        if const { L::AVX2 } {
            // SAFETY: as above.
            return unsafe { v3(f) };
        }
    }
    f();
}

/// A copy of the code for each `$i` from 0 to below `$n`, a constant parameter, which is at most the number behind it.
///
/// LLVM would unroll loops as well, one after the other, and each time go through the whole of a function with hundreds of
/// them: GEMM and GEMV took 30 s to compile, and take 19.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_macros, reason = "registers are x86-64's"))]
macro_rules! unrolled {
    ($i:ident in $n:expr, 2, $body:expr) => {
        unrolled!(@ $i in $n, $body, 2: 0 1)
    };
    ($i:ident in $n:expr, 4, $body:expr) => {
        unrolled!(@ $i in $n, $body, 4: 0 1 2 3)
    };
    ($i:ident in $n:expr, 8, $body:expr) => {
        unrolled!(@ $i in $n, $body, 8: 0 1 2 3 4 5 6 7)
    };
    ($i:ident in $n:expr, 12, $body:expr) => {
        unrolled!(@ $i in $n, $body, 12: 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    ($i:ident in $n:expr, 16, $body:expr) => {
        unrolled!(@ $i in $n, $body, 16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident in $n:expr, $body:expr, $most:literal: $($at:literal)*) => {{
        $(if $crate::kernel::cpu::isa::Index::<$at, { $n }, $most>::EXISTS {
            let $i: usize = $at;
            $body;
        })*
    }};
}
#[cfg(target_arch = "x86_64")]
pub(super) use unrolled;

/// The copy `AT` of up to `MOST` that [`unrolled!`] makes for `N`.
///
/// A constant of a type: rustc knows one that it has evaluated again by its arguments. A `const` block is one more for each place
/// and each instance of the function around it, and those of GEMV alone were four million.
#[cfg(target_arch = "x86_64")]
pub(super) struct Index<const AT: usize, const N: usize, const MOST: usize>;

#[cfg(target_arch = "x86_64")]
impl<const AT: usize, const N: usize, const MOST: usize> Index<AT, N, MOST> {
    /// Whether there is one.
    pub const EXISTS: bool = {
        assert!(N <= MOST, "more than are unrolled");
        AT < N
    };
}

/// Memory of vectors that begins at a cache line: across the end of one, a store is not forwarded to a load.
#[repr(align(64))]
pub(super) struct Aligned<X>(pub X);

/// The first `w` of up to `N` elements at `ptr`; the rest is zero bits. `N` is a multiple of [`TAIL`].
///
/// # Safety
/// `w` elements must be readable, and the machine must have the level.
#[inline(always)]
pub(crate) unsafe fn load_part<L: Level, E: Copy, const N: usize>(ptr: *const E, w: usize) -> [E; N] {
    // SAFETY: every `E` here is plain old data for which zero bits are a value.
    let mut block: [E; N] = unsafe { std::mem::zeroed() };
    let out = block.as_mut_ptr();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        if N.is_multiple_of(TAIL) && L::AVX512 {
            let mut k = 0;
            while k < N {
                let (mask, from, to) = (lane_mask(w, k), ptr.wrapping_add(k), out.wrapping_add(k));
                // SAFETY: masked-out lanes are not read; the level has these instructions; `out` holds `N` elements.
                unsafe {
                    match size_of::<E>() {
                        1 => _mm_storeu_si128(to.cast(), _mm_maskz_loadu_epi8(mask, from.cast())),
                        2 => _mm256_storeu_si256(to.cast(), _mm256_maskz_loadu_epi16(mask, from.cast())),
                        // As floats, whatever they are: vectors of integers are of 64 bits each, and LLVM would take them apart.
                        4 => _mm512_storeu_ps(to.cast(), _mm512_maskz_loadu_ps(mask, from.cast())),
                        _ => {
                            _mm512_storeu_pd(to.cast(), _mm512_maskz_loadu_pd(mask as u8, from.cast()));
                            let high = _mm512_maskz_loadu_pd((mask >> 8) as u8, from.wrapping_add(8).cast());
                            _mm512_storeu_pd(to.wrapping_add(8).cast(), high);
                        }
                    }
                }
                k += TAIL;
            }
            return block;
        }
        if N.is_multiple_of(TAIL) && L::AVX2 && size_of::<E>() >= 4 {
            let mut k = 0;
            while k < N && k < w {
                let (from, to) = (ptr.wrapping_add(k), out.wrapping_add(k));
                // SAFETY: as above.
                unsafe {
                    if size_of::<E>() == 4 {
                        _mm256_storeu_ps(to.cast(), _mm256_maskload_ps(from.cast(), mask32(w, k)));
                    } else {
                        _mm256_storeu_pd(to.cast(), _mm256_maskload_pd(from.cast(), mask64(w, k)));
                    }
                }
                k += 32 / size_of::<E>();
            }
            return block;
        }
    }
    // SAFETY: of both `w` elements are there; they are apart.
    unsafe { copy_part::<E, N>(ptr, out, w) };
    block
}

/// Writes the first `w` of up to `N` elements, a multiple of [`TAIL`].
///
/// # Safety
/// `w` elements must be writable, and the machine must have the level.
#[inline(always)]
pub(crate) unsafe fn store_part<L: Level, E: Copy, const N: usize>(ptr: *mut E, w: usize, block: &[E; N]) {
    let from = block.as_ptr();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        if N.is_multiple_of(TAIL) && L::AVX512 {
            let mut k = 0;
            while k < N {
                let (mask, from, to) = (lane_mask(w, k), from.wrapping_add(k), ptr.wrapping_add(k));
                // SAFETY: masked-out lanes are not written; the level has these instructions.
                unsafe {
                    match size_of::<E>() {
                        1 => _mm_mask_storeu_epi8(to.cast(), mask, _mm_loadu_si128(from.cast())),
                        2 => _mm256_mask_storeu_epi16(to.cast(), mask, _mm256_loadu_si256(from.cast())),
                        4 => _mm512_mask_storeu_ps(to.cast(), mask, _mm512_loadu_ps(from.cast())),
                        _ => {
                            _mm512_mask_storeu_pd(to.cast(), mask as u8, _mm512_loadu_pd(from.cast()));
                            let high = _mm512_loadu_pd(from.wrapping_add(8).cast());
                            _mm512_mask_storeu_pd(to.wrapping_add(8).cast(), (mask >> 8) as u8, high);
                        }
                    }
                }
                k += TAIL;
            }
            return;
        }
        if N.is_multiple_of(TAIL) && L::AVX2 && size_of::<E>() >= 4 {
            let mut k = 0;
            let step = 32 / size_of::<E>();
            while k < N && k < w {
                let (from, to) = (from.wrapping_add(k), ptr.wrapping_add(k));
                // SAFETY: as above. A masked store of AVX2 is tens of operations on AMD's processors, so that few lanes are written by
                // smaller vectors.
                unsafe {
                    match w - k {
                        rest if rest >= step => _mm256_storeu_ps(to.cast(), _mm256_loadu_ps(from.cast())),
                        rest if size_of::<E>() == 4 => copy_part::<E, 4>(from, to, rest),
                        rest => copy_part::<E, 2>(from, to, rest),
                    }
                }
                k += step;
            }
            return;
        }
    }
    // SAFETY: of both `w` elements are there; they are apart.
    unsafe { copy_part::<E, N>(from, ptr, w) };
}

/// Copies the first `w` of up to `N` elements, in pieces of powers of two: a loop would be a call.
///
/// # Safety
/// `w` elements must be readable and writable.
#[inline(always)]
unsafe fn copy_part<E: Copy, const N: usize>(from: *const E, to: *mut E, w: usize) {
    let mut j = 0;
    macro_rules! pieces {
        ($($size:literal)*) => { $(
            if N >= $size && w & $size != 0 {
                // SAFETY: of `w` elements, those of the larger pieces are behind.
                unsafe { to.add(j).cast::<[E; $size]>().write_unaligned(from.add(j).cast::<[E; $size]>().read_unaligned()) };
                j += $size;
            }
        )* };
    }
    pieces!(64 32 16 8 4 2 1);
    let _ = j;
}

/// The AVX-512 mask of the lanes from `k` on: which of 16 are among the first `w`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lane_mask(w: usize, k: usize) -> u16 {
    let all = if w < 64 { (1_u64 << w) - 1 } else { u64::MAX };
    (all >> k) as u16
}

/// The AVX2 mask of the lanes from `k` on: which of 8 are among the first `w`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask32(w: usize, k: usize) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    // SAFETY: called for levels with AVX2 only.
    unsafe {
        let lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(k as i32));
        _mm256_cmpgt_epi32(_mm256_set1_epi32(w as i32), lane)
    }
}

/// The same of 4 lanes of eight bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask64(w: usize, k: usize) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    // SAFETY: called for levels with AVX2 only.
    unsafe {
        let lane = _mm256_add_epi64(_mm256_setr_epi64x(0, 1, 2, 3), _mm256_set1_epi64x(k as i64));
        _mm256_cmpgt_epi64(_mm256_set1_epi64x(w as i64), lane)
    }
}

/// Writes a whole block by non-temporal stores, if `ptr` is aligned for it; says whether it did.
///
/// # Safety
/// `N` elements must be writable, and the machine must have the level.
#[inline(always)]
pub(crate) unsafe fn store_streaming<L: Level, E: Copy, const N: usize>(ptr: *mut E, block: &[E; N]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        let bytes = size_of::<[E; N]>();
        let from = block.as_ptr().cast::<u8>();
        let to = ptr.cast::<u8>();
        if L::AVX512 && bytes.is_multiple_of(64) && (ptr as usize).is_multiple_of(64) {
            let mut i = 0;
            while i < bytes {
                // SAFETY: within the block and the destination; the destination is aligned.
                unsafe { _mm512_stream_si512(to.add(i).cast(), _mm512_loadu_si512(from.add(i).cast())) };
                i += 64;
            }
            return true;
        }
        if L::AVX2 && bytes.is_multiple_of(32) && (ptr as usize).is_multiple_of(32) {
            let mut i = 0;
            while i < bytes {
                // SAFETY: as above.
                unsafe { _mm256_stream_si256(to.add(i).cast(), _mm256_loadu_si256(from.add(i).cast())) };
                i += 32;
            }
            return true;
        }
    }
    let _ = (ptr, block);
    false
}

/// Lanes moved `D` places (1, 2, 4 or 8) to the right; the first `D` lanes are `fill`.
///
/// # Safety
/// The machine must have the level.
#[inline(always)]
pub(crate) unsafe fn shift_right<L: Level, E: Copy, const D: usize>(v: &[E; TAIL], fill: E) -> [E; TAIL] {
    let mut out = [fill; TAIL];
    #[cfg(target_arch = "x86_64")]
    if L::AVX512 && size_of::<E>() >= 4 {
        use std::arch::x86_64::*;
        // SAFETY: the level has these instructions; both arrays hold 16 elements of that size.
        unsafe {
            let (a, to) = (_mm512_loadu_si512(v.as_ptr().cast()), out.as_mut_ptr());
            // Lanes that are known to be 0 would become part of a shuffle of several instructions.
            let filled = opaque_avx512(_mm512_loadu_si512(to.cast()));
            if size_of::<E>() == 4 {
                let shifted = match D {
                    1 => _mm512_mask_alignr_epi32::<15>(filled, 0xfffe, a, a),
                    2 => _mm512_mask_alignr_epi32::<14>(filled, 0xfffc, a, a),
                    4 => _mm512_mask_alignr_epi32::<12>(filled, 0xfff0, a, a),
                    _ => _mm512_mask_alignr_epi32::<8>(filled, 0xff00, a, a),
                };
                _mm512_storeu_si512(to.cast(), opaque_avx512(shifted));
            } else {
                let b = _mm512_loadu_si512(v.as_ptr().add(8).cast());
                let (low, high) = match D {
                    1 => (_mm512_mask_alignr_epi64::<7>(filled, 0xfe, a, a), _mm512_alignr_epi64::<7>(b, a)),
                    2 => (_mm512_mask_alignr_epi64::<6>(filled, 0xfc, a, a), _mm512_alignr_epi64::<6>(b, a)),
                    4 => (_mm512_mask_alignr_epi64::<4>(filled, 0xf0, a, a), _mm512_alignr_epi64::<4>(b, a)),
                    _ => (filled, a),
                };
                _mm512_storeu_si512(to.cast(), opaque_avx512(low));
                _mm512_storeu_si512(to.add(8).cast(), opaque_avx512(high));
            }
        }
        return out;
    }
    #[cfg(target_arch = "x86_64")]
    if L::AVX2 && size_of::<E>() >= 4 {
        use std::arch::x86_64::*;
        let (vectors, places) = (TAIL * size_of::<E>() / 32, D * size_of::<E>());
        // SAFETY: the level has these instructions; both arrays are of so many vectors.
        unsafe {
            let (from, to) = (v.as_ptr().cast::<__m256i>(), out.as_mut_ptr().cast::<__m256i>());
            let filled = opaque_avx2(_mm256_loadu_si256(to));
            let at = |i: usize| if i < vectors { _mm256_loadu_si256(from.add(i)) } else { filled };
            let mut i = 0;
            while i < vectors {
                // The vector that is so many whole ones to the left, and the one before that.
                let a = at(i.wrapping_sub(places / 32));
                let before = at(i.wrapping_sub(places / 32 + 1));
                let middle = _mm256_permute2x128_si256::<0x21>(before, a);
                let shifted = match places % 32 {
                    4 => _mm256_alignr_epi8::<12>(a, middle),
                    8 => _mm256_alignr_epi8::<8>(a, middle),
                    16 => middle,
                    _ => a,
                };
                _mm256_storeu_si256(to.add(i), opaque_avx2(shifted));
                i += 1;
            }
        }
        return out;
    }
    // Not `copy_from_slice`, which may be compiled apart and called.
    let mut j = D;
    while j < TAIL {
        out[j] = v[j - D];
        j += 1;
    }
    out
}

/// The same lanes, of which LLVM does not know where each comes from: whole vectors are then made of what is computed of them, and
/// not parts of some lanes.
///
/// # Safety
/// The machine must have the level.
#[inline(always)]
pub(crate) unsafe fn in_vector<L: Level, E: Copy>(v: &[E; TAIL]) -> [E; TAIL] {
    #[cfg(target_arch = "x86_64")]
    if L::AVX512 && size_of::<E>() == 4 {
        use std::arch::x86_64::*;
        let mut out = *v;
        // SAFETY: the level has these instructions; both arrays hold 16 elements of that size.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), opaque_avx512(_mm512_loadu_si512(v.as_ptr().cast()))) };
        return out;
    }
    #[cfg(target_arch = "x86_64")]
    if L::AVX2 && size_of::<E>() == 4 {
        use std::arch::x86_64::*;
        let mut out = *v;
        let (from, to) = (v.as_ptr().cast::<__m256i>(), out.as_mut_ptr().cast::<__m256i>());
        // SAFETY: the level has these instructions; both arrays hold two vectors.
        unsafe {
            _mm256_storeu_si256(to, opaque_avx2(_mm256_loadu_si256(from)));
            _mm256_storeu_si256(to.add(1), opaque_avx2(_mm256_loadu_si256(from.add(1))));
        }
        return out;
    }
    *v
}

/// Makes a function that gives the same vector. LLVM does not look through it: knowing where each lane of a shifted vector comes from, it
/// would take a scan apart into its scalar accumulators.
#[cfg(target_arch = "x86_64")]
macro_rules! opaque {
    ($name:ident, $feature:literal, $vector:ident in $register:ident) => {
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name(mut v: std::arch::x86_64::$vector) -> std::arch::x86_64::$vector {
            // SAFETY: no instruction at all.
            unsafe { std::arch::asm!("/* {0} */", inout($register) v, options(pure, nomem, nostack, preserves_flags)) };
            v
        }
    };
}
#[cfg(target_arch = "x86_64")]
opaque!(opaque_avx512, "avx512f", __m512i in zmm_reg);
#[cfg(target_arch = "x86_64")]
opaque!(opaque_avx2, "avx2", __m256i in ymm_reg);

/// Orders streaming stores before what follows.
#[inline(always)]
pub(crate) fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Widens `f16` by the machine's own conversion where there is one.
#[inline(always)]
pub(crate) fn widen_f16<L: Level, const N: usize>(m: &[u16; N], otherwise: impl Fn(u16) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        if L::AVX2 && N.is_multiple_of(8) {
            let step = if L::AVX512 && N.is_multiple_of(16) { 16 } else { 8 };
            let mut j = 0;
            while j < N {
                // SAFETY: within both arrays; levels with AVX2 have F16C.
                unsafe {
                    if step == 16 {
                        let v = _mm512_cvtph_ps(_mm256_loadu_si256(m.as_ptr().add(j).cast()));
                        _mm512_storeu_ps(out.as_mut_ptr().add(j), v);
                    } else {
                        let v = _mm256_cvtph_ps(_mm_loadu_si128(m.as_ptr().add(j).cast()));
                        _mm256_storeu_ps(out.as_mut_ptr().add(j), v);
                    }
                }
                j += step;
            }
            return out;
        }
    }
    let mut j = 0;
    while j < N {
        out[j] = otherwise(m[j]);
        j += 1;
    }
    out
}

/// Narrows to `f16` by the machine's own conversion where there is one.
#[inline(always)]
pub(crate) fn narrow_f16<L: Level, const N: usize>(c: &[f32; N], otherwise: impl Fn(f32) -> u16) -> [u16; N] {
    let mut out = [0; N];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        if L::AVX2 && N.is_multiple_of(16) {
            let mut j = 0;
            while j < N {
                // SAFETY: within both arrays; levels with AVX2 have F16C.
                unsafe {
                    if L::AVX512 {
                        let v = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(c.as_ptr().add(j)));
                        _mm256_storeu_si256(out.as_mut_ptr().add(j).cast(), v);
                    } else {
                        let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(c.as_ptr().add(j)));
                        _mm_storeu_si128(out.as_mut_ptr().add(j).cast(), v);
                        let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(c.as_ptr().add(j + 8)));
                        _mm_storeu_si128(out.as_mut_ptr().add(j + 8).cast(), v);
                    }
                }
                j += 16;
            }
            return out;
        }
    }
    let mut j = 0;
    while j < N {
        out[j] = otherwise(c[j]);
        j += 1;
    }
    out
}

/// For each pair of words the sum of the products of four bytes, as [`Dot4`](crate::kernel::ir::BinaryOp::Dot4) is defined: by
/// `vpmaddubsw`, whose sums of two products fit 16 bits because one operand has 7, and `vpmaddwd`.
#[inline(always)]
pub(crate) fn dot4<L: Level, const N: usize>(a: &[i32; N], b: &[i32; N]) -> [i32; N] {
    let mut out = [0; N];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        if L::AVX512 && N.is_multiple_of(16) {
            let mut j = 0;
            while j < N {
                // SAFETY: within the arrays; the level has these instructions.
                unsafe {
                    let low = _mm512_set1_epi8(127);
                    let x = _mm512_and_si512(_mm512_loadu_si512(a.as_ptr().add(j).cast()), low);
                    let y = _mm512_loadu_si512(b.as_ptr().add(j).cast());
                    let pairs = _mm512_maddubs_epi16(x, y);
                    let sums = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
                    _mm512_storeu_si512(out.as_mut_ptr().add(j).cast(), sums);
                }
                j += 16;
            }
            return out;
        }
        if L::AVX2 && N.is_multiple_of(8) {
            let mut j = 0;
            while j < N {
                // SAFETY: within the arrays; the level has these instructions.
                unsafe {
                    let low = _mm256_set1_epi8(127);
                    let x = _mm256_and_si256(_mm256_loadu_si256(a.as_ptr().add(j).cast()), low);
                    let y = _mm256_loadu_si256(b.as_ptr().add(j).cast());
                    let pairs = _mm256_maddubs_epi16(x, y);
                    let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    _mm256_storeu_si256(out.as_mut_ptr().add(j).cast(), sums);
                }
                j += 8;
            }
            return out;
        }
    }
    let mut j = 0;
    while j < N {
        out[j] = Prim::dot4(a[j], b[j]);
        j += 1;
    }
    out
}
