//! GEMV and skinny GEMM: up to 32 rows times a row-major B, which is read in place and widened on the way.
//!
//! It exists because with so few rows GEMM is bound by the bandwidth of B: packing would read B twice and write it
//! once.
//!
//! Each row of B, times an element of each row of A, is added to the accumulators, in wide column blocks that hardware
//! prefetchers follow. [`gemv_t`](super::gemv_t) is the same with B transposed.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

#[cfg(target_arch = "x86_64")]
use super::simd::{F32x8, F32x16, F64x4, F64x8, Simd};
use super::{Accumulators, Gemm, Lhs};
use crate::dtype::DType;
use crate::kernel::cpu::isa::Level;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::isa::load_part;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::isa::unrolled;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::widen;
use crate::kernel::lang::Any;

/// Whether so many rows are multiplied here, over so many steps of K. Of more than 16 rows the steps are few: lines of B are then
/// read as they lie, and stay in L2 for the rows after the first ones.
#[inline(always)]
pub(crate) const fn multiplies(rows: usize, depth: usize) -> bool {
    rows <= 16 || rows <= 32 && depth <= SHORT_K
}

/// `lhs · rhs`
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Gemv<P, E> {
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    /// Not packed.
    pub lhs: Lhs<P>,
    /// The right operand, and from a row to the next: elements of a row lie together.
    pub rhs: *const E,
    pub rhs_row: isize,
}

impl<P: Copy> Gemv<P, P> {
    /// A GEMM whose right operand is in place, of the dtype that it is added in.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn of(x: &Gemm<P>) -> Self {
        let Gemm { depth, rows, columns, lhs, rhs } = *x;
        Gemv { depth, rows, columns, lhs, rhs: rhs.ptr, rhs_row: rhs.step }
    }
}

/// The most rows of a block.
#[cfg(target_arch = "x86_64")]
const MAX_ROWS: usize = 12;

/// The longest block of K after which another one follows, whose rows of B are then prefetched.
const SHORT_K: usize = 64;

/// How many rows of B ahead of the one that is read are prefetched, where rows are short: 4 KiB of heads of 64 elements in `f32`.
#[cfg(target_arch = "x86_64")]
const ROWS_AHEAD: isize = 16;

/// Whether a B of that dtype is widened as it is read, for accumulators of dtype `accumulator`.
#[inline(always)]
pub(crate) const fn widens(dtype: DType, accumulator: DType) -> bool {
    matches!((dtype, accumulator), (DType::F16 | DType::BF16, DType::F32))
}

/// Whether accumulators of `accumulator` have a B of that dtype added from where it lies.
#[cfg(target_arch = "x86_64")]
const fn is_read_as(dtype: Option<DType>, accumulator: DType) -> bool {
    match dtype {
        Some(dtype) => dtype as u8 == accumulator as u8 || widens(dtype, accumulator),
        None => false,
    }
}

/// Computes the GEMM, of rows and steps that it [`multiplies`], if the level has vectors for it.
///
/// # Safety
/// The operands must have the elements that are described, the accumulators be readable and writable by this call
/// alone, the machine have the level, and `U` be the dtype that it computes with, or one that [`widens`] to it.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply<L: Level, U: Any>(
    x: &Gemv<U::Compute, U::Mem>,
    accumulators: &Accumulators<U::Compute>,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `U` computes with the dtype that is asked for.
    unsafe {
        let (x, accumulators) = (std::ptr::from_ref(x), std::ptr::from_ref(accumulators));
        // Constants, so that what no dtype calls is not compiled: of other dtypes, which the contract excludes, there is nothing.
        if const { is_read_as(U::STATIC_DTYPE, DType::F32) } {
            let (x, accumulators) = (&*x.cast(), &*accumulators.cast());
            if const { L::AVX512 } {
                gemv_f32_v4::<L, U>(x, accumulators)
            } else {
                gemv_f32_v3::<L, U>(x, accumulators)
            }
        } else if const { is_read_as(U::STATIC_DTYPE, DType::F64) } {
            let (x, accumulators) = (&*x.cast(), &*accumulators.cast());
            if const { L::AVX512 } {
                gemv_f64_v4::<L, U>(x, accumulators)
            } else {
                gemv_f64_v3::<L, U>(x, accumulators)
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, accumulators);
}

/// The registers and caches that the blocks of an instruction set are made for.
#[cfg(target_arch = "x86_64")]
struct Blocking<V>(std::marker::PhantomData<V>);

#[cfg(target_arch = "x86_64")]
impl<V: Simd> Blocking<V> {
    /// Steps of a row of B that a block has.
    const WIDE: usize = if V::AVX512 { 8 } else { 2 };
    /// Those of a block that may have fewer columns.
    const NARROW: usize = if V::AVX512 { 4 } else { 2 };
    /// The most rows of B at a time for one or two rows of A: hardware prefetchers follow only so many.
    const ROWS_OF_B: usize = if V::AVX512 { 4096 } else { 8 };
    /// Whether rows of B are prefetched for the block of K after this one.
    const PREFETCH: bool = V::AVX512;
}

/// The GEMV's loop over K, inlined into an entry for each dtype and instruction set. `STEP` columns are widened at a time:
/// those of `VECTORS` vectors.
///
/// # Safety
/// As for [`multiply`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn gemv<V: Simd, L: Level, U: Any, const STEP: usize, const VECTORS: usize>(
    x: &Gemv<V::Element, U::Mem>,
    accumulators: &Accumulators<V::Element>,
) {
    const { assert!(STEP == VECTORS * V::LANES) };
    let most = match x.rows {
        ..=2 => Blocking::<V>::ROWS_OF_B,
        // Blocks of few columns, which are done side by side, so that lines of B are read as they lie.
        5.. if V::AVX512 => SHORT_K,
        _ => x.depth,
    };
    let (mut part, mut accumulators) = (*x, *accumulators);
    let mut k = 0;
    while k < x.depth {
        part.depth = Ord::min(most, x.depth - k);
        // SAFETY: the part is inside the GEMM, and what comes after the first one is added to it.
        unsafe { all_columns::<V, L, U, STEP, VECTORS>(&part, &accumulators) };
        k += part.depth;
        part.lhs.ptr = x.lhs.ptr.wrapping_add(k);
        part.rhs = x.rhs.wrapping_offset(k as isize * x.rhs_row);
        (accumulators.from, accumulators.from_row) = (accumulators.to.cast_const(), accumulators.to_row);
    }
}

/// All columns, over a block of K.
///
/// # Safety
/// As for [`multiply`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn all_columns<V: Simd, L: Level, U: Any, const STEP: usize, const VECTORS: usize>(
    x: &Gemv<V::Element, U::Mem>,
    accumulators: &Accumulators<V::Element>,
) {
    let (wide, narrow) = (Blocking::<V>::WIDE * STEP, Blocking::<V>::NARROW * STEP);
    let mut j = 0;
    while j < x.columns {
        let remaining = x.columns - j;
        // The steps of a row of B that a block has, and the columns of which may be missing.
        let steps = if remaining >= wide { Blocking::<V>::WIDE } else { remaining.min(narrow).div_ceil(STEP) };
        let mut i = 0;
        while i < x.rows {
            // `$m` rows of them, `$n` vectors at a time.
            macro_rules! rows {
                ($m:literal, $n:literal, $masked:literal) => {{
                    let mut q = 0;
                    while q < steps {
                        let at = [i, j + q * STEP];
                        // SAFETY: the block is inside the GEMM.
                        unsafe {
                            if const { $masked && Blocking::<V>::PREFETCH } {
                                block::<V, L, U, STEP, VECTORS, $m, $n, true, true>(x, accumulators, at);
                            } else if const { !$masked && Blocking::<V>::PREFETCH } && i == 0 && x.depth <= SHORT_K {
                                block::<V, L, U, STEP, VECTORS, $m, $n, false, true>(x, accumulators, at);
                            } else {
                                block::<V, L, U, STEP, VECTORS, $m, $n, $masked, false>(x, accumulators, at);
                            }
                        }
                        q += $n / VECTORS;
                    }
                    $m
                }};
            }
            let n = x.rows - i;
            // Each element of the right operand for as many rows, in as many columns, as leave registers for B; of fewer rows, as
            // many sums at a time as hide the latency of a multiply-add.
            i += if const { V::AVX512 } {
                // More rows than fit are groups of about the same size. Up to 12 are taken at a time, so that B is read once.
                match (if n > 16 { n / n.div_ceil(MAX_ROWS) } else { n }, remaining >= wide) {
                    (9, true) => rows!(9, 2, false),
                    (10, true) => rows!(10, 2, false),
                    (11, true) => rows!(11, 2, false),
                    (12, true) => rows!(12, 2, false),
                    (8.., true) => rows!(8, 2, false),
                    (7, true) => rows!(7, 4, false),
                    (6, true) => rows!(6, 4, false),
                    (5, true) => rows!(5, 4, false),
                    (4, true) => rows!(4, 4, false),
                    (2.., true) => rows!(2, 8, false),
                    (_, true) => rows!(1, 8, false),
                    (9, false) => rows!(9, 2, true),
                    (10, false) => rows!(10, 2, true),
                    (11, false) => rows!(11, 2, true),
                    (12, false) => rows!(12, 2, true),
                    (8.., false) => rows!(8, 2, true),
                    // One pass over rows of B that are as short, which are most often one after the other: heads of values.
                    (4.., false) if steps > 2 => rows!(4, 4, true),
                    (4.., false) => rows!(4, 2, true),
                    (2.., false) => rows!(2, 4, true),
                    (_, false) => rows!(1, 4, true),
                }
            } else {
                match (n, remaining >= wide) {
                    (4.., true) => rows!(4, 2, false),
                    (2.., true) => rows!(2, 4, false),
                    (_, true) => rows!(1, 4, false),
                    (4.., false) => rows!(4, 2, true),
                    (2.., false) => rows!(2, 4, true),
                    (_, false) => rows!(1, 4, true),
                }
            };
        }
        j += if remaining >= wide { wide } else { narrow };
    }
}

/// `M` rows by `N` vectors of columns, fewer if `MASKED`, over all of K; `PREFETCH` prefetches the right operand's next rows.
///
/// # Safety
/// As for [`multiply`]; the rows and columns must be inside.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn block<
    V: Simd,
    L: Level,
    U: Any,
    const STEP: usize,
    const VECTORS: usize,
    const M: usize,
    const N: usize,
    const MASKED: bool,
    const PREFETCH: bool,
>(
    x: &Gemv<V::Element, U::Mem>,
    accumulators: &Accumulators<V::Element>,
    [i, j]: [usize; 2],
) {
    // The right operand's rows of the next GEMM; of short ones, those that are read next.
    let next = x.rhs_row.wrapping_mul(if MASKED { ROWS_AHEAD } else { x.depth as isize });
    let columns = x.columns - j;
    // SAFETY: as for the caller.
    unsafe {
        let mut acc = [[V::zero(); N]; M];
        let to = accumulators.to.add(i * accumulators.to_row + j);
        let some = |n: usize| V::first(columns.saturating_sub(n * V::LANES));
        if !accumulators.from.is_null() {
            let from = accumulators.from.add(i * accumulators.from_row + j);
            unrolled!(r in M, 12, unrolled!(n in N, 8, {
                let at = from.wrapping_add(r * accumulators.from_row + n * V::LANES);
                acc[r][n] = if MASKED { V::load_masked(at, some(n)) } else { V::load(at) };
            }));
        }
        let mut a = x.lhs.ptr.offset(i as isize * x.lhs.row);
        let mut b = x.rhs.add(j);
        let mut k = x.depth;
        while k > 0 {
            let mut v = [V::zero(); N];
            unrolled!(n in N, 8, {
                if n.is_multiple_of(VECTORS) {
                    let (at, columns) = (b.add(V::LANES * n), columns.saturating_sub(V::LANES * n));
                    let row = match MASKED {
                        true if columns == 0 => std::mem::zeroed(),
                        true if columns < STEP => load_part::<L, _, STEP>(at, columns),
                        _ => at.cast::<[U::Mem; STEP]>().read_unaligned(),
                    };
                    // A line of them is prefetched once.
                    let bytes = size_of::<[U::Mem; STEP]>();
                    if PREFETCH && (n / VECTORS * bytes).is_multiple_of(64) {
                        let next = at.wrapping_offset(next).cast::<i8>();
                        let mut byte = 0;
                        while byte < bytes {
                            // Rows of B that more rows of A meet are needed later than L1 would hold them.
                            if M > 4 {
                                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(byte));
                            } else {
                                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(byte));
                            }
                            byte += 64;
                        }
                    }
                    let row = widen::<L, U, STEP>(&row);
                    let row = row.as_ptr().cast::<V::Element>();
                    unrolled!(p in VECTORS, 2, v[n + p] = V::load(row.add(p * V::LANES)));
                }
            });
            unrolled!(r in M, 12, {
                let s = V::splat(*a.offset(r as isize * x.lhs.row));
                unrolled!(n in N, 8, acc[r][n] = V::fma(s, v[n], acc[r][n]));
            });
            a = a.add(1);
            b = b.wrapping_offset(x.rhs_row);
            k -= 1;
        }
        unrolled!(r in M, 12, unrolled!(n in N, 8, {
            let at = to.wrapping_add(r * accumulators.to_row + n * V::LANES);
            if MASKED {
                V::store_masked(at, some(n), acc[r][n]);
            } else {
                V::store(at, acc[r][n]);
            }
        }));
    }
}

/// The GEMV for each dtype and instruction set, compiled once for each dtype of B.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident: $simd:ty, [$step:literal, $vectors:literal], $features:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for [`multiply`].
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, U: Any>(
            x: &Gemv<<$simd as Simd>::Element, U::Mem>,
            accumulators: &Accumulators<<$simd as Simd>::Element>,
        ) {
            // SAFETY: by the contract above.
            unsafe { gemv::<$simd, L, U, $step, $vectors>(x, accumulators) }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
entries! {
    /// In `f32`, with AVX-512.
    gemv_f32_v4: F32x16, [16, 1], "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c";
    /// In `f64`, with AVX-512.
    gemv_f64_v4: F64x8, [8, 1], "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c";
    /// In `f32`, with AVX2.
    gemv_f32_v3: F32x8, [16, 2], "avx2,fma,f16c";
    /// In `f64`, with AVX2.
    gemv_f64_v3: F64x4, [8, 2], "avx2,fma,f16c";
}
