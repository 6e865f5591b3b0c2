//! Packing: copies tiles of A and B to packed panels, in the order in which the
//! [`microkernel`](super::gemm::microkernel) walks them (GotoBLAS, BLIS).
//!
//! It exists so that the inner loop reads memory contiguously, whatever the operand's strides are.
//!
//! Both operands have one form: micro-panels of `width` rows of A or columns of B. For each K step a panel holds its
//! `width` elements side by side; for 8-bit integers, for each two K steps, `width` pairs of 16 bits. Beyond the
//! operand's end: 0.
//!
//! A launch allocates the packed tiles of operands that several programs read ([`Pack`](crate::kernel::abi::Pack));
//! threads pack them cooperatively ([`cooperative`]). Other tiles are packed into scratch memory of the thread, for one
//! GEMM.

pub(super) mod convert;
pub(super) mod cooperative;
#[cfg(target_arch = "x86_64")]
pub(super) mod float8;
pub(super) mod operand_types;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply what is packed"))]
pub(super) mod pipeline;

use std::ops::Range;
use std::sync::atomic::AtomicU16;

use self::cooperative::{Claims, MAX_CHUNKS};
use self::operand_types::OperandTypes;
use super::gemm::microkernel::register_block;
#[cfg(target_arch = "x86_64")]
use super::isa::store_part;
use super::isa::{Level, load_part};
#[cfg(target_arch = "x86_64")]
use super::transpose::{prefetch_far, transpose_16x16};
use crate::dtype::DType;
use crate::kernel::abi::{PackForm, PackRoom};
use crate::kernel::lang::{Any, Prim};

/// A part of an operand to be packed: `across` counts rows of a left operand, columns of a right one.
#[derive(Clone, Copy)]
pub(super) struct Source<E> {
    pub ptr: *const E,
    /// From a row (column) to the next, and from a step of K to the next.
    pub strides: [i64; 2],
    /// How many of each there are.
    pub extents: [usize; 2],
}

impl<E> Source<E> {
    /// The same of another type of the same size.
    #[inline(always)]
    pub(super) fn cast<F>(self) -> Source<F> {
        Source { ptr: self.ptr.cast(), strides: self.strides, extents: self.extents }
    }

    /// Whether it is MN-major: rows (columns) lie side by side, K steps do not.
    #[inline(always)]
    pub(super) fn is_mn_major(&self) -> bool {
        self.strides[0] == 1 && self.strides[1] != 1
    }

    /// What comes after so many rows (columns).
    #[inline(always)]
    pub(super) fn after(self, across: usize) -> Self {
        let ptr = self.ptr.wrapping_offset(across as isize * self.strides[0] as isize);
        Source { ptr, extents: [self.extents[0].saturating_sub(across), self.extents[1]], ..self }
    }
}

/// A tile in the room that a launch made for it, of so many granules' elements along some axis. It is packed in chunks,
/// each by whoever claims it.
#[derive(Clone, Copy)]
pub(super) struct SharedTile {
    state: *const AtomicU16,
    room: *mut u8,
    extent: usize,
    granularity: usize,
}

impl SharedTile {
    /// The tile in slot `slot` of a room.
    ///
    /// # Safety
    /// The room must be one that the launch made, with more than `slot` slots, and the tile be used during the launch.
    #[inline(always)]
    pub(super) unsafe fn new(tiles: &PackRoom, slot: usize, [extent, granularity]: [usize; 2]) -> Self {
        let room = tiles.room.wrapping_add(slot * tiles.slot_bytes);
        SharedTile { state: tiles.states.wrapping_add(slot), room, extent, granularity }
    }

    /// The packed tile. Chunks that nobody has packed are packed by whoever needs it, several threads at a time: `fill`
    /// does some of them, from a multiple of the granularity on, and says whether the form has all of their values, as
    /// is said of the tile.
    ///
    /// # Safety
    /// `fill` must write all that is read.
    #[inline(always)]
    pub(super) unsafe fn get(&self, fill: impl Fn(Range<usize>, *mut u8) -> bool) -> (*const u8, bool) {
        while let Some(chunk) = self.claim(true) {
            if !fill(chunk, self.room) {
                self.claims().mark();
            }
            self.done();
        }
        (self.room, !self.claims().is_marked())
    }

    /// Where the tile is packed.
    #[inline(always)]
    pub(super) fn room(&self) -> *mut u8 {
        self.room
    }

    #[inline(always)]
    fn claims(&self) -> Claims<'_> {
        // SAFETY: the launch's states outlast the tile, by the contract of `new`.
        Claims::new(unsafe { &*self.state }, self.chunks())
    }

    #[inline(always)]
    fn chunks(&self) -> usize {
        self.extent.div_ceil(self.granularity).clamp(1, MAX_CHUNKS)
    }

    /// A chunk that the caller is to pack, and then to say that it is [`done`](Self::done). `None` where all are
    /// claimed: if the caller waits, only once all are packed.
    #[inline(always)]
    pub(super) fn claim(&self, waits: bool) -> Option<Range<usize>> {
        let chunk = self.claims().claim(waits)?;
        let (chunks, granules) = (self.chunks(), Ord::max(self.extent.div_ceil(self.granularity), 1));
        let from = |chunk: usize| Ord::min(chunk * granules / chunks * self.granularity, self.extent);
        Some(from(chunk)..from(chunk + 1))
    }

    /// A chunk is packed.
    #[inline(always)]
    pub(super) fn done(&self) {
        self.claims().done();
    }
}

/// Whether panels of operands of that dtype are of pairs: two steps of K, widened to 16 bits each.
#[inline(always)]
pub(crate) const fn is_packed_in_pairs(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// The elements of a panel's row or column that so many steps of an operand of that dtype are.
#[inline(always)]
pub(super) const fn elements(dtype: DType, steps: usize) -> usize {
    if is_packed_in_pairs(dtype) { steps.div_ceil(2) } else { steps }
}

/// The bytes of a packed tile of an operand of that dtype, of so many rows or columns; `columns` are those of the GEMM.
#[inline(always)]
pub(crate) const fn tile_bytes(
    form: PackForm,
    avx512: bool,
    lhs: bool,
    [across, columns]: [usize; 2],
    depth: usize,
    dtype: DType,
) -> usize {
    let bytes = match form {
        PackForm::Panels => {
            // Panels are in the dtype that is computed with.
            let width = register_block(avx512, accumulator_dtype(dtype), columns)[!lhs as usize];
            across.div_ceil(width) * width * elements(dtype, depth) * accumulator_dtype(dtype).size_in_bytes()
        }
        PackForm::Blocks => OperandTypes::of_operand(dtype).tile_bytes(across, depth),
    };
    bytes.next_multiple_of(64)
}

/// Packs panels of so many rows or columns, as the register block has; their `depth` is the tile's, of which some steps
/// are written, from an even one on, and not more than the source has.
///
/// # Safety
/// The source must be readable as described, `out` writable for a whole tile, and the machine must have the level.
#[inline(always)]
pub(super) unsafe fn panels<L: Level, T: Any, const LHS: bool>(
    from: Source<T::Mem>,
    tile: [usize; 2],
    steps: Range<usize>,
    width: usize,
    out: *mut T::Compute,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above.
    unsafe {
        if L::AVX512 {
            return panels_v4::<L, T, LHS>(from, tile, steps, width, out);
        } else if L::AVX2 {
            return panels_v3::<L, T, LHS>(from, tile, steps, width, out);
        }
    }
    let _ = (from, tile, steps, width, out);
}

/// The accumulator dtype of GEMMs of packed panels of that dtype.
const fn accumulator_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ if is_packed_in_pairs(dtype) => DType::I32,
        _ => DType::F32,
    }
}

/// The width of panels of an operand of a GEMM of so many columns.
const fn width_for<L: Level, T: Any>(lhs: bool, columns: usize) -> usize {
    register_block(L::AVX512, accumulator_dtype(<T::Compute as Prim>::DTYPE), columns)[!lhs as usize]
}

macro_rules! panels {
    ($name:ident $features:literal) => {
        /// # Safety
        /// As for [`panels`].
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, T: Any, const LHS: bool>(
            from: Source<T::Mem>,
            tile: [usize; 2],
            steps: Range<usize>,
            width: usize,
            out: *mut T::Compute,
        ) {
            // SAFETY: by the contract.
            unsafe {
                // The widths of all register blocks: for GEMMs of any columns, and of so many that their panels are
                // wide (0 is a multiple of everything).
                if width == const { width_for::<L, T>(LHS, 1) } {
                    return match const { width_for::<L, T>(LHS, 1) } {
                        6 => pack_panels::<L, T, 6>(from, tile, steps, out),
                        8 => pack_panels::<L, T, 8>(from, tile, steps, out),
                        12 => pack_panels::<L, T, 12>(from, tile, steps, out),
                        16 => pack_panels::<L, T, 16>(from, tile, steps, out),
                        _ => pack_panels::<L, T, 32>(from, tile, steps, out),
                    };
                }
                match const { width_for::<L, T>(LHS, 0) } {
                    8 => pack_panels::<L, T, 8>(from, tile, steps, out),
                    24 => pack_panels::<L, T, 24>(from, tile, steps, out),
                    48 => pack_panels::<L, T, 48>(from, tile, steps, out),
                    // There are none: all panels have that other width.
                    _ => {}
                }
            }
        }
    };
}
panels!(panels_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,bmi1,bmi2");
panels!(panels_v3 "avx2,fma,f16c,bmi1,bmi2");

/// Packs panels of pairs: for each two steps of K, `W` words of two operands.
///
/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn pack_pairs<T: Any, const W: usize>(
    from: Source<T::Mem>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut u32,
) {
    /// Pairs that are read along a row at a time.
    const RUN: usize = 16;
    let from = from.cast::<u8>();
    let widen = |byte: u8| if T::dtype() == DType::I8 { i16::from(byte as i8) as u16 } else { u16::from(byte) };
    let pair = |low: u8, high: u8| u32::from(widen(low)) | u32::from(widen(high)) << 16;
    let [stride, step] = from.strides.map(|s| s as isize);
    let [there, deep] = [from.extents[0].min(across), from.extents[1].min(steps.end)];
    let pairs = depth.div_ceil(2);
    let mut first = 0;
    while first < across {
        let n = Ord::min(there.saturating_sub(first), W);
        // SAFETY: panels are inside of `out`, and only elements inside the extents are read, by the contract above.
        unsafe {
            let (source, out) = (from.ptr.offset(first as isize * stride), out.add(first * pairs));
            let mut p = steps.start / 2;
            while n == W && stride == 1 && 2 * p + 2 <= deep {
                let row = source.offset(2 * p as isize * step);
                let low = row.cast::<[u8; W]>().read_unaligned();
                let high = row.offset(step).cast::<[u8; W]>().read_unaligned();
                out.add(p * W).cast::<[u32; W]>().write_unaligned(std::array::from_fn(|i| pair(low[i], high[i])));
                p += 1;
            }
            while n == W && step == 1 && 2 * (p + RUN) <= deep {
                let mut i = 0;
                while i < W {
                    let row = source.offset(i as isize * stride + 2 * p as isize);
                    let bytes = row.cast::<[[u8; 2]; RUN]>().read_unaligned();
                    let words: [u32; RUN] = std::array::from_fn(|q| pair(bytes[q][0], bytes[q][1]));
                    let mut q = 0;
                    while q < RUN {
                        *out.add((p + q) * W + i) = words[q];
                        q += 1;
                    }
                    i += 1;
                }
                p += RUN;
            }
            // What is left over, and what is outside: 0.
            while 2 * p < deep {
                let mut i = 0;
                while i < W {
                    let at = |k: usize| match i < n && k < deep {
                        true => *source.offset(i as isize * stride + k as isize * step),
                        false => 0,
                    };
                    *out.add(p * W + i) = pair(at(2 * p), at(2 * p + 1));
                    i += 1;
                }
                p += 1;
            }
        }
        first += W;
    }
}

/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn pack_panels<L: Level, T: Any, const W: usize>(
    from: Source<T::Mem>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut T::Compute,
) {
    if is_packed_in_pairs(T::dtype()) {
        // SAFETY: by the contract above.
        return unsafe { pack_pairs::<T, W>(from, [across, depth], steps, out.cast()) };
    }
    let [stride, step] = from.strides.map(
        #[inline(always)]
        |s| s as isize,
    );
    let [there, deep] = [from.extents[0].min(across), from.extents[1].min(steps.end)];
    // Whole panels whose rows lie together are read along those, all panels of a row at once.
    let whole = if stride == 1 { there / W } else { 0 };
    let mut k = steps.start;
    while whole > 0 && k < deep {
        let mut p = 0;
        while p < whole {
            // SAFETY: panels are inside of `out`, and only elements inside the extents are read, by the contract above.
            unsafe {
                let row = from.ptr.offset(k as isize * step).add(p * W);
                prefetch(row.wrapping_offset(8 * step), size_of::<[T::Mem; W]>());
                let mem = row.cast::<[T::Mem; W]>().read_unaligned();
                let to = out.add(p * W * depth + k * W);
                to.cast::<[T::Compute; W]>().write_unaligned(super::widen::<L, T, W>(&mem));
            }
            p += 1;
        }
        k += 1;
    }
    let mut first = whole * W;
    while first < across {
        // SAFETY: as above.
        unsafe {
            let out = out.add(first * depth);
            let source = from.ptr.offset(first as isize * stride);
            let n = if there < first { 0 } else { Ord::min(there - first, W) };
            let mut k = steps.start;
            // With AVX-512, words are transposed by 16 rows of 16 steps, of which some may be absent.
            let by_16 = cfg!(target_arch = "x86_64") && L::AVX512 && size_of::<T::Compute>() == 4;
            // Of whole panels, those of whole blocks, and `f32` as it is, have loops of their own.
            let is_here = if by_16 { n == W && (W >= 16 || size_of::<T::Mem>() == 4) } else { n > 0 };
            // Steps that lie together: read along the rows, written across them.
            while is_here && step == 1 && k + 16 <= deep {
                #[cfg(target_arch = "x86_64")]
                if by_16 && W.is_multiple_of(16) {
                    let mut i = 0;
                    while i < W {
                        let mut lines = [[0; 16]; 16];
                        let mut r = 0;
                        while r < 16 {
                            let row = source.offset((i + r) as isize * stride + k as isize);
                            // Not to the L1 cache: rows that are a power of two apart share a set there.
                            prefetch_far(row.wrapping_add(128).cast(), 1);
                            let mem = row.cast::<[T::Mem; 16]>().read_unaligned();
                            lines[r] = std::mem::transmute_copy(&super::widen::<L, T, 16>(&mem));
                            r += 1;
                        }
                        let transposed = transpose_16x16(lines.as_ptr().cast(), size_of_val(&lines[0]) as isize);
                        let mut s = 0;
                        while s < 16 {
                            out.add((k + s) * W + i).cast::<[u32; 16]>().write_unaligned(transposed[s]);
                            s += 1;
                        }
                        i += 16;
                    }
                    k += 16;
                    continue;
                }
                #[cfg(target_arch = "x86_64")]
                if n == W && size_of::<T::Mem>() == 4 && W.is_multiple_of(4) {
                    let mut i = 0;
                    while i < W {
                        let mut r = 0;
                        while r < 4 {
                            prefetch(source.wrapping_offset((i + r) as isize * stride + k as isize + 64), 64);
                            r += 1;
                        }
                        let mut s = k;
                        while s < k + 16 {
                            let part = source.offset(i as isize * stride + s as isize);
                            transpose_4x4(part.cast(), stride, out.add(s * W + i).cast(), W);
                            s += 4;
                        }
                        i += 4;
                    }
                    k += 16;
                    continue;
                }
                let mut lines = [[T::Compute::default(); 16]; W];
                let mut i = 0;
                while i < W && i < n {
                    let mem = source.offset(i as isize * stride + k as isize).cast::<[T::Mem; 16]>().read_unaligned();
                    lines[i] = super::widen::<L, T, 16>(&mem);
                    i += 1;
                }
                let mut s = 0;
                while s < 16 {
                    let mut transposed = [T::Compute::default(); W];
                    let mut i = 0;
                    while i < W {
                        transposed[i] = lines[i][s];
                        i += 1;
                    }
                    out.add((k + s) * W).cast::<[T::Compute; W]>().write_unaligned(transposed);
                    s += 1;
                }
                k += 16;
            }
            // The rest of them, and panels that have fewer rows.
            #[cfg(target_arch = "x86_64")]
            if by_16 && step == 1 && k < deep {
                transpose_rest::<L, T, W>(source.wrapping_add(k), stride, [n, deep - k], out.add(k * W));
                k = deep;
            }
            // The last columns of rows that lie together.
            if stride == 1 && W.is_multiple_of(8) && k < deep {
                let (source, out) = (source.offset(k as isize * step), out.add(k * W));
                match W.is_multiple_of(16) {
                    true => last_columns::<L, T, W, 16>(source, step, [n, deep - k], out),
                    false => last_columns::<L, T, W, 8>(source, step, [n, deep - k], out),
                }
                k = deep;
            }
            while k < deep {
                let mut i = 0;
                while i < W {
                    let v = if i < n {
                        T::widen(*source.offset(i as isize * stride + k as isize * step))
                    } else {
                        T::Compute::default()
                    };
                    *out.add(k * W + i) = v;
                    i += 1;
                }
                k += 1;
            }
        }
        first += W;
    }
}

/// Packs a panel of up to `W` columns that lie together, of which `n` are there: `N` of them over all steps, then the next ones, so
/// that which are there stays the same in a loop.
///
/// # Safety
/// As for [`panels`], of the columns and steps that are there.
#[inline(always)]
unsafe fn last_columns<L: Level, T: Any, const W: usize, const N: usize>(
    source: *const T::Mem,
    step: isize,
    [n, steps]: [usize; 2],
    out: *mut T::Compute,
) {
    let mut i = 0;
    while i < W {
        let there = Ord::min(n.saturating_sub(i), N);
        let mut k = 0;
        while k < steps {
            let row = source.wrapping_offset(k as isize * step).wrapping_add(i);
            // SAFETY: by the contract above.
            unsafe {
                let mem = load_part::<L, T::Mem, N>(row, there);
                let to = out.add(k * W + i).cast::<[T::Compute; N]>();
                to.write_unaligned(super::widen::<L, T, N>(&mem));
            }
            k += 1;
        }
        i += N;
    }
}

/// Packs steps that lie together of a panel of up to `W` rows, of which `n` are there.
///
/// # Safety
/// As for [`panels`], of the rows and steps that are there; the machine must have AVX-512, and what is computed with 4 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,bmi1,bmi2")]
unsafe fn transpose_rest<L: Level, T: Any, const W: usize>(
    source: *const T::Mem,
    stride: isize,
    [n, steps]: [usize; 2],
    out: *mut T::Compute,
) {
    let mut k = 0;
    while k < steps {
        let part = Ord::min(steps - k, 16);
        let mut i = 0;
        while i < W {
            let mut lines = [[0u32; 16]; 16];
            let mut r = 0;
            while i + r < n && r < 16 {
                let row = source.wrapping_offset((i + r) as isize * stride + k as isize);
                // SAFETY: by the contract above; what is computed with are 16 numbers of 4 bytes.
                lines[r] = unsafe {
                    std::mem::transmute_copy(&super::widen::<L, T, 16>(&load_part::<L, T::Mem, 16>(row, part)))
                };
                r += 1;
            }
            // SAFETY: a line is as long as a row, and all steps that are there are inside of `out`.
            unsafe {
                let transposed = transpose_16x16(lines.as_ptr().cast(), size_of_val(&lines[0]) as isize);
                let mut s = 0;
                while s < part {
                    let to = out.add((k + s) * W + i).cast::<u32>();
                    match W - i {
                        width @ ..16 => store_part::<L, u32, 16>(to, width, &transposed[s]),
                        _ => to.cast::<[u32; 16]>().write_unaligned(transposed[s]),
                    }
                    s += 1;
                }
            }
            i += 16;
        }
        k += 16;
    }
}

/// Prefetches memory that will be read soon, row after row: too far apart for the machine to see where it goes.
#[inline(always)]
pub(super) fn prefetch<E>(from: *const E, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let mut at = 0;
        while at < bytes {
            let line = from.cast::<i8>().wrapping_add(at);
            // SAFETY: a prefetch reads nothing.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) };
            at += 64;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Transposes four rows of four elements of four bytes.
///
/// # Safety
/// The rows must be readable, `stride` elements apart, and the columns writable, `distance` apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_4x4(from: *const u32, stride: isize, to: *mut u32, distance: usize) {
    use std::arch::x86_64::*;
    // SAFETY: by the contract; SSE2 is part of x86-64.
    unsafe {
        let row = |i: isize| _mm_loadu_si128(from.offset(i * stride).cast());
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let (p, q) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (r, s) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        _mm_storeu_si128(to.cast(), _mm_unpacklo_epi64(p, q));
        _mm_storeu_si128(to.add(distance).cast(), _mm_unpackhi_epi64(p, q));
        _mm_storeu_si128(to.add(2 * distance).cast(), _mm_unpacklo_epi64(r, s));
        _mm_storeu_si128(to.add(3 * distance).cast(), _mm_unpackhi_epi64(r, s));
    }
}
