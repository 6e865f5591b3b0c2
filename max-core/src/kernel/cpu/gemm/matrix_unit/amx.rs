//! AMX and VNNI GEMM of `bf16` and of 8-bit integers over tiles; `f32` runs as [`split_bf16`], on AMX alone.
//!
//! It exists because the matrix unit multiplies blocks several times as fast as vector FMAs. [`vnni`] is the form for
//! machines without AMX.
//!
//! A tile register holds 16 rows of 64 bytes. `tdpbf16ps` multiplies 16 rows of 32 `bf16` by 32 rows of 16 columns, two
//! of which are interleaved in one row of the register (VNNI packing). `tdpbssd` and its kin do the same with four rows
//! of integers. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "TDPBF16PS" and
//! "TDPBSSD"; volume 1, chapter 18.
//!
//! Two tiles of rows meet two tiles of columns: four accumulator tiles, and each tile that is loaded is used twice.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::{split_bf16, vnni};
use crate::dtype::DType;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::CpuTile;
use crate::kernel::cpu::gemm::microkernel::{Accumulators, rhs_stays_in_cache};
use crate::kernel::cpu::pack::operand_types::{LINE, OperandTypes};
use crate::kernel::cpu::pack::{Source, prefetch};
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::transpose::{prefetch_far, transpose_16x16};
use crate::kernel::cpu_features::MatrixUnit;

/// K steps by which packing prefetches rows of B.
const PREFETCH_STEPS: usize = 16;
/// The same of its columns, in lines, where B is K-major.
const PREFETCH_LINES: usize = 8;

/// Whether left tiles of so many rows of an operand, which has these strides, are multiplied where they lie as well as
/// packed: its rows begin at lines of the cache and stay in that of level 2 until the last columns are multiplied by
/// them. Only whole blocks can be: 32 rows of whole lines.
#[inline(always)]
pub(crate) fn reads_in_place(dtype: DType, ptr: *const u8, strides: &[i64], rows: usize) -> bool {
    let is_stored = matches!(dtype, DType::BF16 | DType::I8 | DType::U8);
    let bytes = |stride: i64| (stride.unsigned_abs() as usize).saturating_mul(dtype.size_in_bytes());
    match strides {
        [outer @ .., row, 1] if is_stored && *row > 0 => {
            let mut begin = outer.iter().map(|stride| bytes(*stride)).chain([ptr as usize, bytes(*row)]);
            begin.all(|at| at.is_multiple_of(LINE)) && rhs_stays_in_cache(true, rows, bytes(*row))
        }
        _ => false,
    }
}

/// An element, as the low bits of a word.
pub(in crate::kernel::cpu) trait VnniElement: Copy + Default {
    fn word(self) -> u32;
}
impl VnniElement for u8 {
    #[inline(always)]
    fn word(self) -> u32 {
        self as u32
    }
}
impl VnniElement for u16 {
    #[inline(always)]
    fn word(self) -> u32 {
        self as u32
    }
}

/// Where packing reads.
pub(in crate::kernel::cpu) trait PackSource<E, const N: usize> {
    /// What an element is in memory.
    type Stored;

    fn source(&self) -> &Source<Self::Stored>;

    /// `N` elements from `[across, depth]` on, along one axis; 0 outside.
    ///
    /// # Safety
    /// The source must be readable as it says, and the machine must have AVX-512, as whoever packs for AMX does.
    unsafe fn strip(&self, at: [usize; 2], axis: usize) -> [E; N];

    /// The source, if its elements are taken as they are.
    #[inline(always)]
    fn plain(&self) -> Option<&Source<E>> {
        None
    }

    /// Prefetches what is read along the first axis soon.
    #[inline(always)]
    fn prefetch(&self, at: [usize; 2]) {
        let Source { ptr, strides, .. } = self.source();
        let there = at[1] as i64 * strides[1] + at[0] as i64 * strides[0];
        prefetch(ptr.wrapping_offset(there as isize), size_of::<[Self::Stored; N]>());
    }

    /// The lines of K of which there are elements among some steps.
    #[inline(always)]
    fn lines(&self, steps: &Range<usize>) -> Range<usize> {
        steps.start / N..Ord::min(steps.end, self.source().extents[1]).div_ceil(N)
    }

    /// Whether it is K-major: K steps lie side by side.
    #[inline(always)]
    fn is_k_major(&self) -> bool {
        self.source().strides[1] == 1
    }
}

impl<E: VnniElement, const N: usize> PackSource<E, N> for Source<E> {
    type Stored = E;

    #[inline(always)]
    fn source(&self) -> &Source<E> {
        self
    }

    #[inline(always)]
    unsafe fn strip(&self, at: [usize; 2], axis: usize) -> [E; N] {
        // SAFETY: by the contract.
        unsafe { strip::<E, N>(self, at, axis) }
    }

    #[inline(always)]
    fn plain(&self) -> Option<&Source<E>> {
        Some(self)
    }
}

/// The rows (columns) of a packed tile that are read: those that there are, in whole [blocks](Block).
#[inline(always)]
fn read_of<E>(from: &Source<E>) -> usize {
    from.extents[0].next_multiple_of(32)
}

/// Packs rows: for 16 rows after the other, for one line of K after the other, the rows of a tile register of `N`
/// elements; of some steps, from a line's first one on, and not of more lines than the source has.
///
/// # Safety
/// The source must be readable as described, and `out` writable for a whole tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_rows<E: VnniElement, const N: usize>(
    from: &impl PackSource<E, N>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut E,
) {
    let lines = depth.div_ceil(N);
    let some = from.lines(&steps);
    for row in 0..Ord::min(across, read_of(from.source())) {
        // SAFETY: the row's part of each block is inside of `out`.
        let to =
            |line: usize| unsafe { out.add(((row - row % 16) * lines + line * 16 + row % 16) * N).cast::<[E; N]>() };
        let mut line = some.start;
        if let Some(source) = from.plain().filter(|source| source.strides[1] == 1 && row < source.extents[0]) {
            let first = source.ptr.wrapping_offset(row as isize * source.strides[0] as isize);
            while line < Ord::min(some.end, source.extents[1] / N) {
                // SAFETY: the whole line is inside the extents.
                unsafe { to(line).write_unaligned(first.add(line * N).cast::<[E; N]>().read_unaligned()) };
                line += 1;
            }
        }
        while line < some.end {
            // SAFETY: elements inside the extents are read, by the contract above.
            unsafe { to(line).write_unaligned(from.strip([row, line * N], 1)) };
            line += 1;
        }
    }
}

/// Packs rows of `f32` that are values of `bf16`, `depth` elements each, as many lines of them as `lines` says.
///
/// # Safety
/// The rows must be readable to the end of their last line, `out` writable for a whole tile, and the machine must have
/// AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_computed(
    rows: *const f32,
    [across, depth]: [usize; 2],
    lines: usize,
    out: *mut u8,
) {
    use std::arch::x86_64::*;
    const N: usize = LINE / 2;
    // Of two vectors of words, the upper halves.
    let upper: [u16; N] = std::array::from_fn(|i| 2 * i as u16 + 1);
    // SAFETY: by the contract above.
    unsafe {
        let upper = _mm512_loadu_si512(upper.as_ptr().cast());
        for row in 0..across {
            let to = out.add(((row - row % 16) * (depth / N) + row % 16) * LINE);
            for line in 0..lines {
                let from = rows.add(row * depth + line * N);
                let (low, high) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
                _mm512_storeu_si512(to.add(line * 1024).cast(), _mm512_permutex2var_epi16(low, upper, high));
            }
        }
    }
}

/// Packs columns: for 16 columns after the other, for one line of K after the other, rows of 16 words, each of the
/// elements of one column that follow one another.
///
/// # Safety
/// As for [`pack_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_columns<E: VnniElement, const N: usize>(
    from: &impl PackSource<E, N>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut E,
) {
    let (lines, group) = (depth.div_ceil(N), N / 16);
    let across = Ord::min(across, read_of(from.source()));
    let out = out.cast::<[u32; 16]>();
    if !from.is_k_major() {
        // The elements of a word lie in different rows: along those, as many columns as elements in a line.
        let some = from.lines(&steps);
        for step in some.start * 16..some.end * 16 {
            let mut whole = 0;
            if let Some(source) = from.plain().filter(|s| s.strides[0] == 1 && (step + 1) * group <= s.extents[1]) {
                let stride = source.strides[1] as isize;
                let row = source.ptr.wrapping_offset((step * group) as isize * stride);
                while whole + 16 <= Ord::min(across, source.extents[0]) {
                    // SAFETY: all of these elements are inside the extents, and the words inside of `out`.
                    unsafe { out.add(whole * lines + step).write_unaligned(words(row.add(whole), stride, group)) };
                    whole += 16;
                }
            }
            for first in (whole..across).step_by(N) {
                let mut rows = [[E::default(); N]; 4];
                let mut g = 0;
                while g < group {
                    let k = step * group + g;
                    from.prefetch([first, k + PREFETCH_STEPS]);
                    // SAFETY: elements inside the extents are read, by the contract above.
                    rows[g] = unsafe { from.strip([first, k], 0) };
                    g += 1;
                }
                let mut q = 0;
                while q < group && first + q * 16 < across {
                    let mut words = [0; 16];
                    let mut g = 0;
                    while g < group {
                        let mut i = 0;
                        while i < 16 {
                            words[i] |= rows[g][q * 16 + i].word() << (8 * size_of::<E>() * g);
                            i += 1;
                        }
                        g += 1;
                    }
                    // SAFETY: the row is inside of `out`.
                    unsafe { out.add((first + q * 16) * lines + step).write_unaligned(words) };
                    q += 1;
                }
            }
        }
        return;
    }
    for first in (0..across).step_by(16) {
        for line in from.lines(&steps) {
            // The words lie together: a transpose of 16 by 16 words.
            let Source { ptr, strides, extents } = from.source();
            let column = |i: usize, line: usize| {
                ptr.wrapping_offset(((first + i) as i64 * strides[0] + (line * N) as i64) as isize)
            };
            let is_whole = from.plain().is_some() && first + 16 <= extents[0] && (line + 1) * N <= extents[1];
            let mut part = [[0u32; 16]; 16];
            let mut i = 0;
            while i < 16 {
                // Not to the L1 cache: where rows are a power of two apart, 16 lines share a set there.
                prefetch_far(column(i, line + PREFETCH_LINES).cast(), LINE);
                if !is_whole {
                    // SAFETY: elements inside the extents are read; a line is 16 words.
                    part[i] = unsafe { std::mem::transmute_copy(&from.strip([first + i, line * N], 1)) };
                }
                i += 1;
            }
            let (rows, stride) = match is_whole {
                true => (column(0, line).cast(), strides[0] as isize * size_of::<E>() as isize),
                false => (part.as_ptr().cast(), LINE as isize),
            };
            // SAFETY: the rows are those inside the extents, or the copy; the block is inside of `out`.
            unsafe {
                out.add(first * lines + line * 16)
                    .cast::<[[u32; 16]; 16]>()
                    .write_unaligned(transpose_16x16(rows, stride))
            };
        }
    }
}

/// The words of 16 columns, whose elements lie in as many rows, `stride` apart.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn words<E: VnniElement>(row: *const E, stride: isize, rows: usize) -> [u32; 16] {
    let mut words = [0; 16];
    let mut g = 0;
    while g < rows {
        let row = row.wrapping_offset(g as isize * stride);
        let next = row.wrapping_offset(PREFETCH_STEPS as isize * stride);
        prefetch(next, size_of::<E>());
        let mut i = 0;
        while i < 16 {
            // SAFETY: by the contract above.
            words[i] |= unsafe { *row.add(i) }.word() << (8 * size_of::<E>() * g);
            i += 1;
        }
        g += 1;
    }
    words
}

/// `N` elements from `[across, depth]` on, along one axis; 0 outside.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn strip<E: VnniElement, const N: usize>(
    from: &Source<E>,
    at: [usize; 2],
    axis: usize,
) -> [E; N] {
    if at[0] >= from.extents[0] || at[1] >= from.extents[1] {
        return [E::default(); N];
    }
    let (n, step) = (from.extents[axis] - at[axis], from.strides[axis] as isize);
    // SAFETY: by the contract of the callers.
    unsafe {
        let p = from.ptr.offset(at[0] as isize * from.strides[0] as isize + at[1] as isize * from.strides[1] as isize);
        if step == 1 && n >= N {
            return p.cast::<[E; N]>().read_unaligned();
        }
        let mut some = [E::default(); N];
        #[cfg(target_arch = "x86_64")]
        if step == 1 && size_of::<[E; N]>() == LINE {
            part_of_line(p.cast(), n * size_of::<E>(), some.as_mut_ptr().cast());
            return some;
        }
        let mut j = 0;
        while j < Ord::min(n, N) {
            some[j] = *p.offset(j as isize * step);
            j += 1;
        }
        some
    }
}

/// Copies the first `bytes` of a line, less than one, and zeros behind them.
///
/// # Safety
/// They must be readable, `to` be writable for a line, and the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn part_of_line(from: *const u8, bytes: usize, to: *mut u8) {
    use std::arch::x86_64::*;
    // SAFETY: by the contract above.
    unsafe { _mm512_storeu_si512(to.cast(), _mm512_maskz_loadu_epi8((1 << (bytes % LINE)) - 1, from.cast())) };
}

/// The layout of the tile registers: eight of 16 rows of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

#[cfg(target_arch = "x86_64")]
static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The rows of a left operand: packed, or where they lie.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct LhsTiles {
    pub ptr: *const u8,
    /// Bytes from a row to the next of the same 16, from these to the next 16, and from a line of K to the next.
    pub row: usize,
    pub group: usize,
    pub line: usize,
}

impl LhsTiles {
    /// Of a packed tile of so many steps of K.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn packed(types: OperandTypes, ptr: *const u8, steps: usize) -> LhsTiles {
        LhsTiles { ptr, row: LINE, group: types.group_bytes(steps), line: types.line_bytes() }
    }

    /// Of an operand in memory whose rows are so many bytes apart.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn in_place(ptr: *const u8, row: usize) -> LhsTiles {
        LhsTiles { ptr, row, group: 16 * row, line: LINE }
    }

    /// From a row on.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn at(&self, row: usize) -> *const u8 {
        self.ptr.wrapping_add(row / 16 * self.group + row % 16 * self.row)
    }
}

/// `lhs · rhs`: of rows, and of columns that are packed.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Gemm {
    pub types: OperandTypes,
    pub unit: MatrixUnit,
    /// Rows, of which multiples of [`MatrixUnit::row_group`] are computed.
    pub rows: usize,
    /// A multiple of 32.
    pub columns: usize,
    /// How many of the columns have values that are not zero.
    pub there: usize,
    /// Words of K, of four bytes; none of the three is 0.
    pub words: usize,
    pub lhs: LhsTiles,
    pub rhs: *const u8,
    /// Bytes from 16 columns of the packed tile to the next.
    pub stride: usize,
}

/// Accumulators of 32 rows and columns: of `f32` or `i32`.
pub(in crate::kernel::cpu) type Block = [[u32; 32]; 32];

/// The K block, in lines: tiles of 32 columns of B stay in L1 while rows of A stream by.
const LINES: usize = 16;
/// The words of a line.
const WORDS: usize = LINE / size_of::<u32>();
/// The row block where accumulators are not in memory yet.
const ROWS: usize = 128;

/// Where the accumulators of a block are in memory: its first one, which may be null for zeros, and from a row to the
/// next.
pub(in crate::kernel::cpu) type TilePtr<P> = (P, usize);

/// `to = from + lhs · rhs`
///
/// # Safety
/// The operands must be packed tiles of at least these extents, the accumulators be readable and writable by this call
/// alone, and the process must have the unit.
#[cfg(target_arch = "x86_64")]
pub(in crate::kernel::cpu) unsafe fn multiply(x: &Gemm, accumulators: &Accumulators<u32>) {
    // SAFETY: by the contract above.
    unsafe {
        configure_tiles(x.unit);
        for j in (0..x.columns).step_by(32) {
            for line in (0..x.lines()).step_by(x.k_block()) {
                let slice = x.k_slice(line);
                for i in (0..x.rows).step_by(32) {
                    let to = accumulators.to.add(i * accumulators.to_row + j);
                    let from = match line {
                        0 => (accumulators.of(i, j), accumulators.from_row),
                        _ => (to.cast_const(), accumulators.to_row),
                    };
                    block(&slice, [i, j], from, (to, accumulators.to_row));
                }
            }
        }
        release_tiles(x.unit);
    }
}

/// As [`multiply`], with a block of accumulators at a time given to `store`, with its first row and column.
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply_into(
    x: &Gemm,
    accumulators: &Accumulators<u32>,
    store: impl Fn([usize; 2], &Block),
) {
    let mut room = CpuTile([[0; 32 * 32]; ROWS / 32]);
    // SAFETY: as in `multiply`; `store` has no use for the tile registers.
    unsafe {
        configure_tiles(x.unit);
        let mut first = 0;
        while first < x.rows {
            let last = Ord::min(first + ROWS, x.rows);
            let mut j = 0;
            while j < x.columns {
                let mut line = 0;
                while line < x.lines() {
                    let slice = x.k_slice(line);
                    let mut i = first;
                    while i < last {
                        let sum: *mut Block = room.0.as_mut_ptr().add((i - first) / 32).cast();
                        let to: *mut u32 = sum.cast();
                        let from = if line == 0 {
                            (accumulators.of(i, j), accumulators.from_row)
                        } else {
                            (to.cast_const(), 32)
                        };
                        block(&slice, [i, j], from, (to, 32));
                        if line + x.k_block() >= x.lines() {
                            store([i, j], &*sum);
                        }
                        i += 32;
                    }
                    line += x.k_block();
                }
                j += 32;
            }
            first += ROWS;
        }
        release_tiles(x.unit);
    }
}

impl Gemm {
    /// Lines of K.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn lines(&self) -> usize {
        self.words.div_ceil(WORDS)
    }

    /// The K block, in lines: all of K for split-bf16, whose tiles come from L2.
    #[inline(always)]
    fn k_block(&self) -> usize {
        if self.types == OperandTypes::SplitF32 { self.lines() } else { LINES }
    }

    /// The K slice that begins at a line.
    #[inline(always)]
    fn k_slice(&self, line: usize) -> Gemm {
        let lhs = LhsTiles { ptr: self.lhs.ptr.wrapping_add(line * self.lhs.line), ..self.lhs };
        let rhs = self.rhs.wrapping_add(line * self.types.line_bytes());
        Gemm { words: Ord::min(self.words - line * WORDS, self.k_block() * WORDS), lhs, rhs, ..*self }
    }
}

impl Accumulators<u32> {
    /// What the block at a row and column is added to.
    #[inline(always)]
    fn of(&self, i: usize, j: usize) -> *const u32 {
        if self.from.is_null() { self.from } else { self.from.wrapping_add(i * self.from_row + j) }
    }
}

/// Configures the tile registers, which are this thread's until [`release_tiles`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn configure_tiles(unit: MatrixUnit) {
    if unit == MatrixUnit::Amx {
        // SAFETY: the process has the unit.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack)) };
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn release_tiles(unit: MatrixUnit) {
    if unit == MatrixUnit::Amx {
        // SAFETY: the process has the unit.
        unsafe { std::arch::asm!("tilerelease", options(nostack)) };
    }
}

/// Computes the block of 32 rows and columns at `at`.
///
/// # Safety
/// As for [`multiply`]; the tile registers must be configured.
#[cfg(target_arch = "x86_64")]
unsafe fn block(x: &Gemm, at: [usize; 2], from: TilePtr<*const u32>, to: TilePtr<*mut u32>) {
    // SAFETY: by the contract above.
    unsafe {
        match (x.unit, x.types) {
            (_, OperandTypes::SplitF32) => split_bf16::tiles(x, at, from, to),
            (MatrixUnit::Amx, OperandTypes::Bf16) => amx_bf16(x, at, from, to),
            (MatrixUnit::Amx, OperandTypes::Int8(true, true)) => amx_i8_i8(x, at, from, to),
            (MatrixUnit::Amx, OperandTypes::Int8(true, false)) => amx_i8_u8(x, at, from, to),
            (MatrixUnit::Amx, OperandTypes::Int8(false, true)) => amx_u8_i8(x, at, from, to),
            (MatrixUnit::Amx, OperandTypes::Int8(false, false)) => amx_u8_u8(x, at, from, to),
            (MatrixUnit::Vnni, types) => vnni::block(x, types, at, from, to),
        }
    }
}

/// Loads the accumulators of 32 rows and columns into the first four tile registers: those at `c`, from a row to the
/// next `row` bytes, or zeros where that is null.
#[cfg(target_arch = "x86_64")]
macro_rules! load_accumulators {
    () => {
        "test {c}, {c}
        jz 2f
        tileloadd tmm0, [{c} + {row}]
        tileloadd tmm1, [{c} + {row} + 64]
        lea {c}, [{c} + 8 * {row}]
        lea {c}, [{c} + 8 * {row}]
        tileloadd tmm2, [{c} + {row}]
        tileloadd tmm3, [{c} + {row} + 64]
        jmp 3f
        2:
        tilezero tmm0
        tilezero tmm1
        tilezero tmm2
        tilezero tmm3
        3:"
    };
}
/// Writes them to `to`, from a row to the next `to_row` bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! store_accumulators {
    () => {
        "tilestored [{to} + {to_row}], tmm0
        tilestored [{to} + {to_row} + 64], tmm1
        lea {to}, [{to} + 8 * {to_row}]
        lea {to}, [{to} + 8 * {to_row}]
        tilestored [{to} + {to_row}], tmm2
        tilestored [{to} + {to_row} + 64], tmm3"
    };
}
#[cfg(target_arch = "x86_64")]
pub(in crate::kernel::cpu) use {load_accumulators, store_accumulators};

#[cfg(target_arch = "x86_64")]
macro_rules! amx_kernels {
    ($($name:ident $multiply:literal)*) => { $(
        /// # Safety
        /// As for [`block`].
        unsafe fn $name(
            x: &Gemm,
            [i, j]: [usize; 2],
            (from, from_row): TilePtr<*const u32>,
            (to, to_row): TilePtr<*mut u32>,
        ) {
            // SAFETY: by the contract above.
            unsafe {
                std::arch::asm!(
                    load_accumulators!(),
                    // For each line of K; rows are not read again before others:
                    "4:",
                    "tileloaddt1 tmm4, [{a} + {a_row}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{b2} + {line}]",
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "tileloaddt1 tmm5, [{a2} + {a_row}]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "add {a}, {a_line}",
                    "add {a2}, {a_line}",
                    "add {b}, 1024",
                    "add {b2}, 1024",
                    "dec {k}",
                    "jnz 4b",
                    store_accumulators!(),
                    c = inout(reg) from => _,
                    row = in(reg) from_row * 4,
                    to = inout(reg) to => _,
                    to_row = in(reg) to_row * 4,
                    a = inout(reg) x.lhs.at(i) => _,
                    a2 = inout(reg) x.lhs.at(i + 16) => _,
                    a_row = in(reg) x.lhs.row,
                    a_line = in(reg) x.lhs.line,
                    b = inout(reg) x.rhs.add(j / 16 * x.stride) => _,
                    b2 = inout(reg) x.rhs.add((j / 16 + 1) * x.stride) => _,
                    line = in(reg) LINE,
                    k = inout(reg) x.lines() => _,
                    options(nostack),
                );
            }
        }
    )* };
}
#[cfg(target_arch = "x86_64")]
amx_kernels! {
    amx_bf16 "tdpbf16ps"
    amx_i8_i8 "tdpbssd"
    amx_i8_u8 "tdpbsud"
    amx_u8_i8 "tdpbusd"
    amx_u8_u8 "tdpbuud"
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// GEMM of `m` by `k` and `k` by `n`, by every matrix unit of this machine: the bits of the accumulators.
    fn gemms<E: VnniElement, const N: usize>(
        types: OperandTypes,
        (a, b): (&[E], &[E]),
        [m, k, n]: [usize; 3],
        by_rows: bool,
    ) -> Vec<Vec<u32>> {
        // Packing is compiled for AVX-512.
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return Vec::new();
        }
        let tile = |across: usize| [across.next_multiple_of(32), k.next_multiple_of(N)];
        let room = |across: usize| vec![E::default(); tile(across)[0] * tile(across)[1]];
        let (mut lhs, mut rhs) = (room(m), room(n));
        let strides = if by_rows { [1, n as i64] } else { [k as i64, 1] };
        // SAFETY: the sources have these extents, and there is room for tiles.
        unsafe {
            let from = Source { ptr: a.as_ptr(), strides: [k as i64, 1], extents: [m, k] };
            pack_rows::<E, N>(&from, tile(m), 0..k, lhs.as_mut_ptr());
            let from = Source { ptr: b.as_ptr(), strides, extents: [n, k] };
            // In two parts.
            let half = k / 2 / N * N;
            pack_columns::<E, N>(&from, tile(n), half..k, rhs.as_mut_ptr());
            pack_columns::<E, N>(&from, tile(n), 0..half, rhs.as_mut_ptr());
        }
        let amx = types.unit() == Some(MatrixUnit::Amx);
        let vectors = match types {
            OperandTypes::Bf16 => is_x86_feature_detected!("avx512bf16"),
            OperandTypes::SplitF32 => false,
            OperandTypes::Int8(..) => is_x86_feature_detected!("avx512vnni"),
        };
        let units = [(MatrixUnit::Amx, amx), (MatrixUnit::Vnni, vectors)].into_iter().filter(|(_, there)| *there);
        // Whole blocks also where they lie.
        let place = LhsTiles::in_place(a.as_ptr().cast(), size_of_val(a) / m);
        let is_whole = m.is_multiple_of(32) && k.is_multiple_of(N);
        let rows = [Some(LhsTiles::packed(types, lhs.as_ptr().cast(), tile(m)[1])), is_whole.then_some(place)];
        let ways = units.flat_map(|(unit, _)| rows.into_iter().flatten().map(move |lhs| (unit, lhs)));
        let one = |(unit, lhs)| {
            let (lines, words) = (k.div_ceil(N), types.words(k));
            let rhs = rhs.as_ptr().cast();
            let columns = tile(n)[0];
            let x = Gemm { types, unit, rows: m, columns, there: n, words, lhs, rhs, stride: lines * 1024 };
            let mut accumulators = vec![0u32; tile(m)[0] * columns];
            let mut into = Accumulators {
                from: std::ptr::null(),
                to: accumulators.as_mut_ptr(),
                from_row: columns,
                to_row: columns,
            };
            // SAFETY: the tiles and accumulators have room for whole blocks, and the machine has the unit. Added twice.
            unsafe {
                multiply(&x, &into);
                into.from = into.to;
                multiply(&x, &into);
            }
            (0..m * n).map(|i| accumulators[i / n * columns + i % n]).collect()
        };
        ways.map(one).collect()
    }

    fn bytes(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn products_of_bytes_are_exact() {
        for [m, k, n] in [[1, 1, 1], [32, 64, 32], [64, 192, 33], [33, 65, 31], [7, 200, 97]] {
            let (a, b) = (bytes(m * k, 1), bytes(k * n, 2));
            for (lhs, rhs, by_rows) in [
                (true, true, true),
                (true, false, true),
                (false, true, false),
                (false, false, true),
                (true, true, false),
            ] {
                let value = |v: u8, signed: bool| if signed { v.cast_signed().into() } else { i64::from(v) };
                let rhs_at = |j: usize, c: usize| b[if by_rows { j * n + c } else { c * k + j }];
                let sum = |i: usize| -> i64 {
                    (0..k).map(|j| value(a[i / n * k + j], lhs) * value(rhs_at(j, i % n), rhs)).sum()
                };
                let expected: Vec<u32> = (0..m * n).map(|i| (2 * sum(i)) as u32).collect();
                for accumulators in gemms::<u8, 64>(OperandTypes::Int8(lhs, rhs), (&a, &b), [m, k, n], by_rows) {
                    assert!(accumulators == expected, "{m} {k} {n} {lhs} {rhs} {by_rows}");
                }
            }
        }
    }

    #[test]
    fn products_of_halves_are_exact_where_they_can_be() {
        for [m, k, n] in [[1, 1, 1], [32, 32, 32], [64, 96, 33], [33, 65, 31], [7, 200, 97]] {
            // Small integers are exact.
            let bf16 = |len, seed| -> Vec<u16> {
                let half = |v: u8| (f32::from(v % 16).to_bits() >> 16) as u16;
                bytes(len, seed).into_iter().map(half).collect()
            };
            let (a, b) = (bf16(m * k, 1), bf16(k * n, 2));
            let value = |v: u16| f32::from_bits(u32::from(v) << 16);
            for by_rows in [true, false] {
                let rhs_at = |j: usize, c: usize| b[if by_rows { j * n + c } else { c * k + j }];
                let sum = |i: usize| (0..k).map(|j| value(a[i / n * k + j]) * value(rhs_at(j, i % n))).sum::<f32>();
                let expected: Vec<u32> = (0..m * n).map(|i| (2.0 * sum(i)).to_bits()).collect();
                for accumulators in gemms::<u16, 32>(OperandTypes::Bf16, (&a, &b), [m, k, n], by_rows) {
                    assert!(accumulators == expected, "{m} {k} {n} {by_rows}");
                }
            }
        }
    }
}
