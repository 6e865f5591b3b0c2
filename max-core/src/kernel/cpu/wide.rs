//! Products of blocks with AVX-512 whose columns come in panels of three vectors.
//!
//! A block of 8 rows takes 11 loads for 24 vectors of multiplications, one of 14 rows of two vectors 16 for 28, and loads
//! are what these loops are short of: beside the peak, whose loop loads nothing, 8 by 3 reach 93 % and 14 by 2 reach 87 %
//! with operands in the level-1 cache (Xeon with AMX, 2026-11-22). Eight rows also lie in a set of that cache, which has
//! 12 ways, when they are a multiple of its size apart, together with the lines of the next rows that are asked for.
//!
//! All panels are multiplied with one group of rows, which comes from the level-3 cache or from memory and is then in
//! that of level 1 or 2, before the next group, which is asked for meanwhile.

#[cfg(target_arch = "x86_64")]
use super::ahead::Ahead;
#[cfg(target_arch = "x86_64")]
use super::gemm::*;

/// Rows of a block.
pub(super) const ROWS: usize = 8;
/// Vectors of a panel's row.
pub(super) const VECTORS: usize = 3;

/// Whether products of panels of so many columns, of so many bytes each, are computed here.
#[inline(always)]
pub(super) const fn multiplies(width: usize, size: usize) -> bool {
    width == VECTORS * 64 / size
}

/// So many steps ahead of its use, a row of a panel is taken into the level-1 cache.
const NEAR: usize = 16;

/// The rows that will be multiplied next: in each turn of some steps, so many lines are asked for. Two panels ask for a block.
#[derive(Clone, Copy)]
struct Next<P> {
    at: *const P,
    /// From a line of a turn to the next, and from a turn to the next.
    line: isize,
    turn: isize,
}
const LINES: usize = ROWS / 2;

#[cfg(target_arch = "x86_64")]
macro_rules! wide {
    (
        $(#[$doc:meta])* $name:ident $micro:ident $p:ident $lanes:literal
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident $some:ident $load_some:ident $store_some:ident
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the product describes: a packed left one in groups of as many rows as a
        /// block has, the right one in panels as wide as a block. The sums must be readable and writable by this call
        /// alone, and the machine must have the features.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        pub(super) unsafe fn $name(x: &Product<$p>, sums: &Sums<$p>) {
            const WIDTH: usize = VECTORS * $lanes;
            const LINE: isize = 64 / size_of::<$p>() as isize;
            let (group, line, turn) = match x.left.group {
                Some(group) => (group, LINE, ROWS as isize * LINE),
                None => (ROWS as isize * x.left.row, x.left.row, LINE),
            };
            let mut ahead = Ahead::new(x.right.coming.as_ref());
            let mut i = 0;
            while i < x.rows {
                let first = x.left.ptr.wrapping_offset((i / ROWS) as isize * group);
                let within = (i % ROWS) as isize;
                let a = first.wrapping_offset(if x.left.group.is_some() { within } else { within * x.left.row });
                let mut at = first.wrapping_offset(group);
                let mut j = 0;
                macro_rules! rows {
                    ($m:literal, $packed:literal) => {{
                        while j < x.columns {
                            let b = x.right.at_column(j);
                            ahead.begin(WIDTH);
                            let next = Next { at: if j < 2 * WIDTH { at } else { a }, line, turn };
                            // SAFETY: by the contract above; the block is inside the product.
                            unsafe {
                                match x.columns - j {
                                    WIDTH.. => $micro::<$m, VECTORS, $packed, false>(x, a, b, sums, [i, j], next, &mut ahead),
                                    n if n > $lanes => $micro::<$m, VECTORS, $packed, true>(x, a, b, sums, [i, j], next, &mut ahead),
                                    _ => $micro::<$m, 1, $packed, true>(x, a, b, sums, [i, j], next, &mut ahead),
                                }
                            }
                            at = at.wrapping_offset(LINES as isize * line);
                            j += WIDTH;
                        }
                        i += $m;
                    }};
                }
                match (x.rows - i, x.left.group.is_some()) {
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
            unsafe { ahead.end::<WIDTH>() };
        }

        /// `M` rows by `Q` vectors of columns, over the whole depth. `PART` says that there are fewer columns.
        ///
        /// # Safety
        /// As for the product.
        #[inline(always)]
        unsafe fn $micro<const M: usize, const Q: usize, const PACKED: bool, const PART: bool>(
            x: &Product<$p>,
            mut a: *const $p,
            mut b: *const $p,
            sums: &Sums<$p>,
            [i, j]: [usize; 2],
            mut next: Next<$p>,
            ahead: &mut Ahead<'_, $p>,
        ) {
            use std::arch::x86_64::*;
            const STEP: usize = VECTORS * $lanes;
            // SAFETY: as for the caller; prefetches read nothing.
            unsafe {
                let mut acc = [[$zero(); Q]; M];
                // Of each vector, which lanes there are.
                let mut some = [$some(0); Q];
                let mut q = 0;
                while q < Q {
                    some[q] = $some((x.columns - j).saturating_sub(q * $lanes));
                    q += 1;
                }
                if !sums.from.is_null() {
                    let from = sums.from.add(i * sums.from_row + j);
                    each_sum!(r in M, q in Q, at from from, sums.from_row, $lanes, {
                        acc[r][q] = if PART { $load_some(at, some[q]) } else { $load(at) };
                    });
                }
                let to = sums.to.add(i * sums.to_row + j);
                let row = if PACKED { 1 } else { x.left.row };
                let mut fifth = a.wrapping_offset(4 * row);
                let mut asked = 0;
                let mut rest = x.depth;
                while rest > 0 {
                    let mut l = 0;
                    while l < LINES {
                        _mm_prefetch::<_MM_HINT_T0>(next.at.wrapping_offset(l as isize * next.line).cast());
                        l += 1;
                    }
                    next.at = next.at.wrapping_offset(next.turn);
                    ahead.copy::<STEP>();
                    if asked < M {
                        let mut q = 0;
                        while q < Q {
                            will_write(to.wrapping_add(asked * sums.to_row + $lanes * q));
                            q += 1;
                        }
                        asked += 1;
                    }
                    let mut k = Ord::min(rest, 64 / size_of::<$p>());
                    rest -= k;
                    macro_rules! step {
                        ($ahead:literal) => {
                            let mut v = [$zero(); Q];
                            let mut q = 0;
                            while q < Q {
                                let b = b.wrapping_add($ahead * STEP).wrapping_add($lanes * q);
                                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(NEAR * STEP).cast());
                                v[q] = $load(b);
                                q += 1;
                            }
                            let mut r = 0;
                            while r < M {
                                let s = if PACKED {
                                    *a.add($ahead * ROWS + r)
                                } else {
                                    *(if r < 4 { a } else { fifth }).offset((r % 4) as isize * row + $ahead)
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
                                a = a.wrapping_add($by * ROWS);
                            } else {
                                a = own(a.wrapping_add($by));
                                fifth = if M > 4 { own(fifth.wrapping_add($by)) } else { fifth };
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
                each_sum!(r in M, q in Q, at from to, sums.to_row, $lanes, {
                    if PART {
                        $store_some(at, some[q], acc[r][q]);
                    } else {
                        $store(at, acc[r][q]);
                    }
                });
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
wide! {
    /// In `f32`.
    f32_v4 micro_f32 f32 16
    _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps
    some_f32_v4 load_f32_v4 store_f32_v4
}
#[cfg(target_arch = "x86_64")]
wide! {
    /// In `f64`.
    f64_v4 micro_f64 f64 8
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
    some_f64_v4 load_f64_v4 store_f64_v4
}
