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

#[cfg(target_arch = "x86_64")]
use super::{split_bf16, vnni};
use crate::dtype::DType;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::CpuTile;
use crate::kernel::cpu::gemm::microkernel::{Accumulators, rhs_stays_in_cache};
use crate::kernel::cpu::pack::operand_types::{LINE, OperandTypes};
use crate::kernel::cpu_features::MatrixUnit;

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
    /// Columns, of which multiples of 32 are computed.
    pub columns: usize,
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
            (MatrixUnit::Vnni, _) => vnni::block(x, at, from, to),
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
    use super::super::vnni_packing::{VnniElement, pack_columns, pack_rows};
    use super::*;
    use crate::kernel::cpu::pack::Source;

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
            let x = Gemm { types, unit, rows: m, columns: n, words, lhs, rhs, stride: lines * 1024 };
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
