//! The AVX-512 microkernel of 8 rows by 3 vectors, over packed panels.
//!
//! It replaces the general [`microkernel`](super) where panels are three vectors wide, because loads limit
//! these loops:
//!
//! | rows x vectors | loads | vector FMAs | of peak, operands in L1 (Xeon with AMX, 2026-11-22) |
//! | --- | --- | --- | --- |
//! | 8 x 3 | 11 | 24 | 93 % |
//! | 14 x 2 | 16 | 28 | 87 % |
//!
//! Eight rows that lie a power of two apart also fit the 12 ways of one L1 set, with the lines that are prefetched.
//!
//! The loop order keeps one group of rows of A in L1 or L2 while all panels of B pass. The next group is prefetched
//! meanwhile.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

#[cfg(target_arch = "x86_64")]
use super::simd::{F32x16, F64x8, Simd};
#[cfg(target_arch = "x86_64")]
use super::*;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::pack::pipeline::PackPipeline;

/// Rows of a block.
pub(in crate::kernel::cpu) const ROWS: usize = 8;
/// Vectors of a panel's row.
pub(in crate::kernel::cpu) const VECTORS: usize = 3;

/// Whether this microkernel supports panels of `width` columns of `size` bytes each.
#[inline(always)]
pub(in crate::kernel::cpu) const fn multiplies(width: usize, size: usize) -> bool {
    width == VECTORS * 64 / size
}

/// K steps by which a row of a panel is prefetched into L1 before its use.
const PREFETCH_STEPS: usize = 16;

/// The rows of A of the next group: each round of K steps prefetches [`LINES`] lines. Two panels prefetch a group.
#[derive(Clone, Copy)]
struct Next<P> {
    at: *const P,
    /// From a line to the next within a round of K steps, and from a round to the next.
    line: isize,
    group_step: isize,
}
const LINES: usize = ROWS / 2;
/// A round of K steps: a line of a row of A.
const ROUND_BYTES: usize = 64;

/// The GEMM's loops, inlined into an [entry](f32_v4) for each dtype.
///
/// # Safety
/// As for the entries.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn gemm<V: Simd, const WIDTH: usize>(x: &Gemm<V::Element>, accumulators: &Accumulators<V::Element>) {
    const { assert!(V::AVX512 && WIDTH == VECTORS * V::LANES) };
    let line_length = V::LANES as isize;
    let (group, line, group_step) = match x.lhs.group {
        Some(group) => (group, line_length, ROWS as isize * line_length),
        None => (ROWS as isize * x.lhs.row, x.lhs.row, line_length),
    };
    let mut pipeline = PackPipeline::new(x.rhs.next_tile.as_ref());
    let mut i = 0;
    while i < x.rows {
        let first = x.lhs.ptr.wrapping_offset((i / ROWS) as isize * group);
        let within = (i % ROWS) as isize;
        let a = first.wrapping_offset(if x.lhs.group.is_some() { within } else { within * x.lhs.row });
        let mut at = first.wrapping_offset(group);
        let mut j = 0;
        macro_rules! rows {
            ($m:literal, $packed:literal) => {{
                while j < x.columns {
                    let b = x.rhs.at_column(j);
                    pipeline.claim(WIDTH);
                    let next = Next { at: if j < 2 * WIDTH { at } else { a }, line, group_step };
                    let [below, right] = if j + WIDTH < x.columns { [i, j + WIDTH] } else { [i + $m, 0] };
                    let after = accumulators.to.wrapping_add(below * accumulators.to_row + right);
                    // SAFETY: by the contract above; the block is inside the GEMM.
                    unsafe {
                        match x.columns - j {
                            n if n >= WIDTH => block::<V, WIDTH, $m, VECTORS, $packed, false>(
                                x,
                                a,
                                b,
                                accumulators,
                                [i, j],
                                (next, after),
                                &mut pipeline,
                            ),
                            n if n > V::LANES => block::<V, WIDTH, $m, VECTORS, $packed, true>(
                                x,
                                a,
                                b,
                                accumulators,
                                [i, j],
                                (next, after),
                                &mut pipeline,
                            ),
                            _ => block::<V, WIDTH, $m, 1, $packed, true>(
                                x,
                                a,
                                b,
                                accumulators,
                                [i, j],
                                (next, after),
                                &mut pipeline,
                            ),
                        }
                    }
                    at = at.wrapping_offset(LINES as isize * line);
                    j += WIDTH;
                }
                i += $m;
            }};
        }
        match (x.rows - i, x.lhs.group.is_some()) {
            (ROWS.., true) => rows!(8, true),
            (ROWS.., false) => rows!(8, false),
            (4.., true) => rows!(4, true),
            (4.., false) => rows!(4, false),
            (2.., true) => rows!(2, true),
            (2.., false) => rows!(2, false),
            (_, true) => rows!(1, true),
            (_, false) => rows!(1, false),
        }
    }
    // SAFETY: panels have that width, by the contract above.
    unsafe { pipeline.drain::<WIDTH>() };
}

/// `M` rows by `Q` vectors of columns, over all of K. `MASKED` says that there are fewer columns.
///
/// # Safety
/// As for the GEMM.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn block<V: Simd, const STEP: usize, const M: usize, const Q: usize, const PACKED: bool, const MASKED: bool>(
    x: &Gemm<V::Element>,
    mut a: *const V::Element,
    mut b: *const V::Element,
    accumulators: &Accumulators<V::Element>,
    [i, j]: [usize; 2],
    (mut next, after): (Next<V::Element>, *mut V::Element),
    pipeline: &mut PackPipeline<'_, V::Element>,
) {
    // SAFETY: as for the caller; prefetches read nothing.
    unsafe {
        let mut acc = [[V::zero(); Q]; M];
        // Of each vector, which lanes there are.
        let mut some = [V::first(0); Q];
        unrolled!(q in Q, 4, some[q] = V::first((x.columns - j).saturating_sub(q * V::LANES)));
        if !accumulators.from.is_null() {
            let from = accumulators.from.add(i * accumulators.from_row + j);
            unrolled!(r in M, 8, unrolled!(q in Q, 4, {
                let at = from.wrapping_add(r * accumulators.from_row + q * V::LANES);
                acc[r][q] = if MASKED { V::load_masked(at, some[q]) } else { V::load(at) };
            }));
        }
        let to = accumulators.to.add(i * accumulators.to_row + j);
        let row = if PACKED { 1 } else { x.lhs.row };
        let mut fifth = a.wrapping_offset(4 * row);
        // One round is over before lines that are only written have come: those of the block after this one are fetched.
        let steps = ROUND_BYTES / size_of::<V::Element>();
        let (written, rows) = if x.depth <= steps { (after, M) } else { (to, 1) };
        let mut asked = 0;
        let mut rest = x.depth;
        while rest > 0 {
            unrolled!(l in LINES, 4, {
                _mm_prefetch::<_MM_HINT_T0>(next.at.wrapping_offset(l as isize * next.line).cast())
            });
            next.at = next.at.wrapping_offset(next.group_step);
            pipeline.copy_row::<STEP>();
            if asked < M {
                for r in asked..asked + rows {
                    let row = written.wrapping_add(r * accumulators.to_row);
                    unrolled!(q in Q, 4, prefetch_for_write(row.wrapping_add(V::LANES * q)));
                }
                asked += rows;
            }
            let mut k = Ord::min(rest, steps);
            rest -= k;
            macro_rules! step {
                ($offset:literal) => {
                    let mut v = [V::zero(); Q];
                    unrolled!(q in Q, 4, {
                        let b = b.wrapping_add($offset * STEP).wrapping_add(V::LANES * q);
                        _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(PREFETCH_STEPS * STEP).cast());
                        v[q] = V::load(b);
                    });
                    unrolled!(r in M, 8, {
                        let s = if PACKED {
                            *a.add($offset * ROWS + r)
                        } else {
                            *(if r < 4 { a } else { fifth }).offset((r % 4) as isize * row + $offset)
                        };
                        let s = V::splat(s);
                        unrolled!(q in Q, 4, acc[r][q] = V::fma(s, v[q], acc[r][q]));
                    });
                };
            }
            macro_rules! advance {
                ($by:literal) => {
                    if PACKED {
                        a = a.wrapping_add($by * ROWS);
                    } else {
                        a = opaque(a.wrapping_add($by));
                        fifth = if M > 4 { opaque(fifth.wrapping_add($by)) } else { fifth };
                    }
                    b = b.wrapping_add($by * STEP);
                };
            }
            while k >= 4 {
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                advance!(4);
                k -= 4;
            }
            while k > 0 {
                step!(0);
                advance!(1);
                k -= 1;
            }
        }
        unrolled!(r in M, 8, unrolled!(q in Q, 4, {
            let at = to.wrapping_add(r * accumulators.to_row + q * V::LANES);
            if MASKED {
                V::store_masked(at, some[q], acc[r][q]);
            } else {
                V::store(at, acc[r][q]);
            }
        }));
    }
}

/// The GEMM for each dtype, compiled once.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident: $simd:ty;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the GEMM describes: a packed left one in groups of as many rows as
        /// a block has, the right one in panels as wide as a block. The accumulators must be readable and writable by
        /// this call alone, and the machine must have the features.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        pub(in crate::kernel::cpu) unsafe fn $name(
            x: &Gemm<<$simd as Simd>::Element>,
            accumulators: &Accumulators<<$simd as Simd>::Element>,
        ) {
            // SAFETY: by the contract above.
            unsafe { gemm::<$simd, { VECTORS * <$simd as Simd>::LANES }>(x, accumulators) }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
entries! {
    /// In `f32`.
    f32_v4: F32x16;
    /// In `f64`.
    f64_v4: F64x8;
}
