//! Products of `bf16` blocks by AMX, the tile unit of some x86-64 processors.
//!
//! A tile register holds 16 rows of 64 bytes. `tdpbf16ps` multiplies 16 rows of 32 `bf16` by 32 rows of 16 columns, of
//! which two rows stand interleaved in one row of the register (Intel 64 and IA-32 Architectures Software Developer's
//! Manual, volume 2, "TDPBF16PS"; volume 1, chapter 18). A pair of 16 rows is multiplied by a pair of 16 columns at a
//! time: four accumulators, and each tile that is loaded is used twice.

use super::pack::{Source, prefetch};

/// The bytes of a packed tile: 16 rows or columns by 32 steps of the depth a kilobyte.
#[inline(always)]
pub(super) const fn tile_bytes(across: usize, depth: usize) -> usize {
    across.div_ceil(16) * depth.div_ceil(32) * 1024
}

/// Packs rows: for 16 rows after the other, for 32 steps of the depth after the other, the rows of a tile register.
///
/// # Safety
/// The source must be readable as described, and `out` writable for a whole tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack_rows(from: Source<u16>, [across, depth]: [usize; 2], out: *mut u16) {
    let mut first = 0;
    while first < across {
        let mut k = 0;
        while k < depth {
            // SAFETY: the block is inside of `out`.
            let block = unsafe { out.add(first * depth.next_multiple_of(32) + k * 16) };
            for i in 0..16 {
                // SAFETY: elements inside the extents are read, by the contract above.
                let row = unsafe { part(&from, first + i, k) };
                // SAFETY: as for the block.
                unsafe { block.add(i * 32).cast::<[u16; 32]>().write_unaligned(row) };
            }
            k += 32;
        }
        first += 16;
    }
}

/// Packs columns: for 16 columns after the other, for 32 steps of the depth after the other, rows of 16 pairs.
///
/// # Safety
/// As for [`pack_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack_columns(from: Source<u16>, [across, depth]: [usize; 2], out: *mut u16) {
    let column = depth.next_multiple_of(32);
    if from.strides[1] != 1 {
        // Two rows at a time, along them.
        for pair in 0..column / 2 {
            let mut first = 0;
            while first < across {
                // SAFETY: elements inside the extents are read, by the contract above; the row is inside of `out`.
                unsafe {
                    let soon = ((2 * pair + 16) as i64 * from.strides[1] + first as i64 * from.strides[0]) as isize;
                    prefetch(from.ptr.wrapping_offset(soon), 1);
                    prefetch(from.ptr.wrapping_offset(soon + from.strides[1] as isize), 1);
                    let (low, high) = (line(&from, first, 2 * pair), line(&from, first, 2 * pair + 1));
                    let pairs: [u32; 16] = std::array::from_fn(|i| low[i] as u32 | (high[i] as u32) << 16);
                    let row = out.add(first * column + pair / 16 * 512 + pair % 16 * 32);
                    row.cast::<[u32; 16]>().write_unaligned(pairs);
                }
                first += 16;
            }
        }
        return;
    }
    let mut first = 0;
    while first < across {
        let mut k = 0;
        while k < depth {
            // SAFETY: the block is inside of `out`.
            let block = unsafe { out.add(first * column + k * 16) };
            // The pairs lie together: a transpose of 16 by 16 pairs.
            let mut lines = [[0u32; 16]; 16];
            for (i, line) in lines.iter_mut().enumerate() {
                // SAFETY: elements inside the extents are read; 32 `u16` are 16 `u32`.
                *line = unsafe { std::mem::transmute::<[u16; 32], [u32; 16]>(part(&from, first + i, k)) };
            }
            let mut pair = 0;
            while pair < 16 {
                let turned: [u32; 16] = std::array::from_fn(|i| lines[i][pair]);
                // SAFETY: as for the block.
                unsafe { block.add(pair * 32).cast::<[u32; 16]>().write_unaligned(turned) };
                pair += 1;
            }
            k += 32;
        }
        first += 16;
    }
}

/// Thirty-two steps of the depth of one row; 0 outside.
#[inline(always)]
unsafe fn part(from: &Source<u16>, row: usize, k: usize) -> [u16; 32] {
    if row >= from.extents[0] || k >= from.extents[1] {
        return [0; 32];
    }
    let n = from.extents[1] - k;
    // SAFETY: by the contract of the callers.
    unsafe {
        let p = from.ptr.offset(row as isize * from.strides[0] as isize + k as isize * from.strides[1] as isize);
        if from.strides[1] == 1 && n >= 32 {
            return p.cast::<[u16; 32]>().read_unaligned();
        }
        std::array::from_fn(|j| if j < n { *p.offset(j as isize * from.strides[1] as isize) } else { 0 })
    }
}

/// Sixteen columns of one step of the depth; 0 outside.
#[inline(always)]
unsafe fn line(from: &Source<u16>, column: usize, k: usize) -> [u16; 16] {
    if column >= from.extents[0] || k >= from.extents[1] {
        return [0; 16];
    }
    let n = from.extents[0] - column;
    // SAFETY: by the contract of the callers.
    unsafe {
        let p = from.ptr.offset(column as isize * from.strides[0] as isize + k as isize * from.strides[1] as isize);
        if from.strides[0] == 1 && n >= 16 {
            return p.cast::<[u16; 16]>().read_unaligned();
        }
        std::array::from_fn(|j| if j < n { *p.offset(j as isize * from.strides[0] as isize) } else { 0 })
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

/// `acc += left · right` of packed tiles; `rows`, `columns` and `depth` are multiples of 32, and none is 0.
///
/// # Safety
/// The operands must be packed tiles of at least these extents, `acc` be writable by this call alone, and the process
/// must have been given the use of AMX.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn block(
    [rows, columns, depth]: [usize; 3],
    tile_depth: usize,
    left: *const u16,
    right: *const u16,
    acc: *mut f32,
    acc_row: usize,
) {
    // The bytes of 16 rows or columns in a packed tile.
    let block = tile_depth.div_ceil(32) * 1024;
    for j in 0..columns / 32 {
        // SAFETY: by the contract above. The registers are configured, used and released within one block of assembly.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{k}]",
                // For each pair of 16 rows:
                "2:",
                "mov {d}, {row}",
                "shl {d}, 4",
                "add {d}, {c}",
                "tileloadd tmm0, [{c} + {row}]",
                "tileloadd tmm1, [{c} + {row} + 64]",
                "tileloadd tmm2, [{d} + {row}]",
                "tileloadd tmm3, [{d} + {row} + 64]",
                "mov {k}, {bytes}",
                // For each 32 steps of the depth:
                "3:",
                "tileloadd tmm4, [{a} + {line}]",
                "tileloadd tmm6, [{b} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {a}, {block}",
                "add {b}, {block}",
                "tileloadd tmm5, [{a} + {line}]",
                "tileloadd tmm7, [{b} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "sub {a}, {block}",
                "sub {b}, {block}",
                "add {a}, 1024",
                "add {b}, 1024",
                "sub {k}, 1024",
                "jnz 3b",
                "tilestored [{c} + {row}], tmm0",
                "tilestored [{c} + {row} + 64], tmm1",
                "tilestored [{d} + {row}], tmm2",
                "tilestored [{d} + {row} + 64], tmm3",
                "sub {a}, {bytes}",
                "sub {b}, {bytes}",
                "lea {a}, [{a} + 2*{block}]",
                "mov {c}, {d}",
                "mov {d}, {row}",
                "shl {d}, 4",
                "add {c}, {d}",
                "dec {m}",
                "jnz 2b",
                "tilerelease",
                k = inout(reg) &raw const CONFIG => _,
                c = inout(reg) acc.add(j * 32) => _,
                d = out(reg) _,
                row = in(reg) acc_row * 4,
                a = inout(reg) left => _,
                b = inout(reg) right.cast::<u8>().add(j * 2 * block) => _,
                bytes = in(reg) depth * 32,
                line = in(reg) 64_u64,
                block = in(reg) block,
                m = inout(reg) rows / 32 => _,
                options(nostack),
            );
        }
    }
}
