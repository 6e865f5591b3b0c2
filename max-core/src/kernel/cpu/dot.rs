//! Tiles in memory and matrix products on the CPU.
//!
//! The inner loop keeps a block of accumulators in vector registers and, for each `k`, multiplies one row of `b` by
//! one element of each row of `a`. It is written over `std::arch` vectors: over plain arrays LLVM's choice of the axis
//! to vectorize depends on the block's shape, and falls off a cliff at some.

use std::mem::MaybeUninit;

use super::level::Level;
use super::{Cpu, CpuTensor};
use crate::dtype::DType;
use crate::kernel::ir::ReduceOp;
use crate::kernel::lang::{Any, Prim, Target};

/// Reduces the columns of a row by halves, in a fixed order.
#[inline(always)]
pub(super) fn reduce_row<P: Prim, const C: usize>(op: ReduceOp, row: [P; C]) -> P {
    let mut row = row;
    let mut n = C;
    while n > 1 {
        let half = n / 2;
        let mut j = 0;
        while j < half {
            let (a, b) = (row[j], row[n - half + j]);
            row[j] = match op {
                ReduceOp::Sum => a.add(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
            };
            j += 1;
        }
        n -= half;
    }
    row[0]
}

/// Reads a tile of `R x C`; of `C x R` there, if it is transposed. Outside the operand: 0.
#[inline(always)]
pub(super) fn load_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    transpose: bool,
) -> [[T::Compute; C]; R] {
    let mut tile = [[T::Compute::default(); C]; R];
    let mut i = 0;
    while i < R {
        load_row::<L, T, C>(x, [row, column], i, transpose, &mut tile[i]);
        i += 1;
    }
    tile
}

/// Reads row `i` of a tile.
#[inline(always)]
fn load_row<L: Level, T: Any, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    i: usize,
    transpose: bool,
    to: &mut [T::Compute; C],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    if !transpose && whole && row + (i as i64) < x.dims[0] && row + i as i64 >= 0 {
        let p = x.ptr.wrapping_offset(((row + i as i64) * x.strides[0] + column) as isize);
        // SAFETY: the row and all its columns are inside the operand.
        *to = super::widen::<L, T, C>(&unsafe { p.cast::<[T::Mem; C]>().read_unaligned() });
    } else {
        let mut j = 0;
        while j < C {
            let (di, dj) = if transpose { (j, i) } else { (i, j) };
            to[j] = Cpu::<L>::load(*x, [row + di as i64, column + dj as i64]);
            j += 1;
        }
    }
}

/// Writes a tile; what is outside the operand is dropped.
#[inline(always)]
pub(super) fn store_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    tile: &[[T::Compute; C]; R],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    let mut i = 0;
    while i < R {
        let r = row + i as i64;
        if whole && r >= 0 && r < x.dims[0] {
            let p = x.ptr.wrapping_offset((r * x.strides[0] + column) as isize);
            // SAFETY: the row and all its columns are inside the operand, in a part that this instance owns.
            unsafe { p.cast::<[T::Mem; C]>().write_unaligned(super::narrow::<L, T, C>(&tile[i])) };
        } else {
            let mut j = 0;
            while j < C {
                Cpu::<L>::store(*x, [r, column + j as i64], tile[i][j]);
                j += 1;
            }
        }
        i += 1;
    }
}

/// Whether the products of these dtypes are added in `f32`, by a level whose vectors the blocked loops are written for.
#[inline(always)]
fn blocked<L: Level, A: Any, const C: usize>() -> bool {
    let lanes = if L::AVX512 { 16 } else { 8 };
    cfg!(target_arch = "x86_64") && L::AVX2 && matches!(A::Compute::DTYPE, DType::F32) && C.is_multiple_of(lanes)
}

/// `a · b + acc` with both operands in memory.
#[inline(always)]
pub(super) fn views<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: Operand<T>,
    b: Operand<U>,
    mut acc: [[A::Compute; C]; R],
) -> [[A::Compute; C]; R] {
    if !(blocked::<L, A, C>() && matches!(T::Compute::DTYPE, DType::F32) && matches!(U::Compute::DTYPE, DType::F32)) {
        return tile_view::<L, T, U, A, R, K, C>(&load_tile::<L, T, R, K>(&a.0, a.1, a.2), b, acc);
    }
    let mut panel = Panel::<K, C>::uninit();
    let depth = panel.fill::<L, U>(&b, extent(&a, 1));
    let rows = extent(&a, 0).clamp(0, R as i64) as usize;
    let direct = T::dtype() == DType::F32 && !a.2 && a.0.strides[1] == 1 && a.1[0] >= 0 && a.1[1] >= a.0.lo;
    let mut packed = [[0f32; K]; ROWS];
    let mut i = 0;
    while i < rows {
        let n = if rows - i < ROWS { rows - i } else { ROWS };
        let mut from = [std::ptr::null::<f32>(); ROWS];
        let mut r = 0;
        while r < ROWS {
            // Rows past the end repeat the last one; their results are not kept.
            let row = i + if r < n { r } else { n - 1 };
            from[r] = if direct {
                let offset = (a.1[0] + row as i64) * a.0.strides[0] + a.1[1];
                a.0.ptr.wrapping_offset(offset as isize).cast_const().cast()
            } else {
                let mut wide = [T::Compute::default(); K];
                load_row::<L, T, K>(&a.0, a.1, row, a.2, &mut wide);
                let mut k = 0;
                while k < K {
                    packed[r][k] = f32::cast_from(wide[k]);
                    k += 1;
                }
                packed[r].as_ptr()
            };
            r += 1;
        }
        // SAFETY: each pointer has `depth` elements: those of the operand inside its bounds, or a packed row.
        unsafe { multiply_rows::<L, A, R, C>(depth, &from, n, panel.as_ptr(), i, &mut acc) };
        i += ROWS;
    }
    acc
}

/// `a · b + acc` with the left operand computed.
#[inline(always)]
pub(super) fn tile_view<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    b: Operand<U>,
    mut acc: [[A::Compute; C]; R],
) -> [[A::Compute; C]; R] {
    if blocked::<L, A, C>() && matches!(T::Compute::DTYPE, DType::F32) && matches!(U::Compute::DTYPE, DType::F32) {
        let mut panel = Panel::<K, C>::uninit();
        let depth = panel.fill::<L, U>(&b, K as i64);
        let mut i = 0;
        while i < R {
            let n = if R - i < ROWS { R - i } else { ROWS };
            let mut from = [std::ptr::null::<f32>(); ROWS];
            let mut r = 0;
            while r < ROWS {
                from[r] = a[i + if r < n { r } else { n - 1 }].as_ptr().cast();
                r += 1;
            }
            // SAFETY: each pointer is a row of `a`, whose compute type is `f32`; `depth` is at most `K`.
            unsafe { multiply_rows::<L, A, R, C>(depth, &from, n, panel.as_ptr(), i, &mut acc) };
            i += ROWS;
        }
        return acc;
    }
    let mut k = 0;
    while k < K {
        let mut row = [U::Compute::default(); C];
        load_row::<L, U, C>(&b.0, b.1, k, b.2, &mut row);
        let mut wide = [A::Compute::default(); C];
        let mut j = 0;
        while j < C {
            wide[j] = A::Compute::cast_from(row[j]);
            j += 1;
        }
        let mut i = 0;
        while i < R {
            multiply_add::<L, A::Compute, C>(A::Compute::cast_from(a[i][k]), &wide, &mut acc[i]);
            i += 1;
        }
        k += 1;
    }
    acc
}

#[inline(always)]
fn multiply_add<L: Level, P: Prim, const C: usize>(a: P, b: &[P; C], acc: &mut [P; C]) {
    let mut j = 0;
    while j < C {
        acc[j] = if L::FMA || !P::FLOAT { a.fma(b[j], acc[j]) } else { a.mul(b[j]).add(acc[j]) };
        j += 1;
    }
}

/// An operand of a product: the tensor, the tile's first row and column there, and whether the tile is transposed.
type Operand<T> = (CpuTensor<T, 2>, [i64; 2], bool);

/// The rows (`axis` 0) or columns of a tile that are inside its operand.
#[inline(always)]
fn extent<T: Any>(x: &Operand<T>, axis: usize) -> i64 {
    let there = if x.2 { 1 - axis } else { axis };
    (if there == 0 { x.0.dims[0] } else { x.0.hi }) - x.1[there]
}

/// Rows of the left operand that are multiplied at once: 6 times 4 vectors of 16 lanes, or 6 times 2 of 8, leave room
/// in the register file for a row of `b`.
const ROWS: usize = 6;

/// The right operand's rows as `f32`, one after the other. Only those that were filled are initialized: clearing all
/// would cost a good part of a product's time.
#[repr(C, align(64))]
struct Panel<const K: usize, const C: usize>([[MaybeUninit<f32>; C]; K]);

impl<const K: usize, const C: usize> Panel<K, C> {
    #[inline(always)]
    fn uninit() -> Self {
        Panel([[MaybeUninit::uninit(); C]; K])
    }

    /// Reads rows as deep as the operand and `depth` go; says how many.
    #[inline(always)]
    fn fill<L: Level, U: Any>(&mut self, b: &Operand<U>, depth: i64) -> usize {
        let depth = Ord::min(depth, extent(b, 0)).clamp(0, K as i64) as usize;
        let mut k = 0;
        while k < depth {
            let mut row = [U::Compute::default(); C];
            load_row::<L, U, C>(&b.0, b.1, k, b.2, &mut row);
            let mut j = 0;
            while j < C {
                self.0[k][j] = MaybeUninit::new(f32::cast_from(row[j]));
                j += 1;
            }
            k += 1;
        }
        depth
    }

    #[inline(always)]
    fn as_ptr(&self) -> *const f32 {
        self.0.as_ptr().cast()
    }
}

/// Multiplies `n` of [`ROWS`] rows by the panel and adds to rows `i..` of `acc`.
///
/// # Safety
/// Each of `from` must have `depth` elements and `panel` `depth` rows of `C`, `acc` must be of `f32`, and the machine must have the level.
#[inline(always)]
unsafe fn multiply_rows<L: Level, A: Any, const R: usize, const C: usize>(
    depth: usize,
    from: &[*const f32; ROWS],
    n: usize,
    panel: *const f32,
    i: usize,
    acc: &mut [[A::Compute; C]; R],
) {
    #[cfg(target_arch = "x86_64")]
    {
        let mut rows = [std::ptr::null_mut::<f32>(); ROWS];
        let mut spare = [[0f32; C]; ROWS];
        let mut r = 0;
        while r < ROWS {
            // Repeated rows add to a row of their own.
            rows[r] = if r < n { acc[i + r].as_mut_ptr().cast() } else { spare[r].as_mut_ptr() };
            r += 1;
        }
        let mut j = 0;
        // SAFETY: by the contract above; strips of lanes are inside the rows of the panel and of `acc`.
        unsafe {
            if L::AVX512 {
                while j + 64 <= C {
                    avx512::<4>(depth, from, panel.add(j), C, &rows, j);
                    j += 64;
                }
                while j + 48 <= C {
                    avx512::<3>(depth, from, panel.add(j), C, &rows, j);
                    j += 48;
                }
                while j < C {
                    avx512::<1>(depth, from, panel.add(j), C, &rows, j);
                    j += 16;
                }
            } else {
                while j + 16 <= C {
                    avx2::<2>(depth, from, panel.add(j), C, &rows, j);
                    j += 16;
                }
                while j < C {
                    avx2::<1>(depth, from, panel.add(j), C, &rows, j);
                    j += 8;
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (depth, from, n, panel, i, acc);
}

macro_rules! strip {
    ($name:ident $vector:ident $lanes:literal $zero:ident $load:ident $store:ident $splat:ident $fma:ident) => {
        /// `Q` vectors of columns from `j`: [`ROWS`] rows of accumulators stay in registers over the whole depth.
        ///
        /// # Safety
        /// As for [`multiply_rows`].
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn $name<const Q: usize>(
            depth: usize,
            from: &[*const f32; ROWS],
            panel: *const f32,
            stride: usize,
            rows: &[*mut f32; ROWS],
            j: usize,
        ) {
            use std::arch::x86_64::*;
            // SAFETY: by the contract above.
            unsafe {
                let mut acc = [[$zero(); Q]; ROWS];
                let mut r = 0;
                while r < ROWS {
                    let mut q = 0;
                    while q < Q {
                        acc[r][q] = $load(rows[r].add(j + $lanes * q));
                        q += 1;
                    }
                    r += 1;
                }
                let mut k = 0;
                while k < depth {
                    let mut b = [$zero(); Q];
                    let mut q = 0;
                    while q < Q {
                        b[q] = $load(panel.add(k * stride + $lanes * q));
                        q += 1;
                    }
                    let mut r = 0;
                    while r < ROWS {
                        let a = $splat(*from[r].add(k));
                        let mut q = 0;
                        while q < Q {
                            acc[r][q] = $fma(a, b[q], acc[r][q]);
                            q += 1;
                        }
                        r += 1;
                    }
                    k += 1;
                }
                let mut r = 0;
                while r < ROWS {
                    let mut q = 0;
                    while q < Q {
                        $store(rows[r].add(j + $lanes * q), acc[r][q]);
                        q += 1;
                    }
                    r += 1;
                }
            }
        }
    };
}
strip!(avx512 __m512 16 _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps);
strip!(avx2 __m256 8 _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps);
