//! Blocked GEMM: binds operands packed as VNNI/AMX blocks, or rows of A in place, to [`amx`].
//!
//! It packs what is not packed yet, and defers the GEMM where its operands last as long as the launch.

use super::amx::{self, LhsTiles};
use super::{split_bf16, vnni_packing};
use crate::kernel::abi::PackForm;
use crate::kernel::cpu::gemm::{Gemm, Operand, Packed, extent, slot, source};
use crate::kernel::cpu::isa::Level;
use crate::kernel::cpu::pack::float8;
use crate::kernel::cpu::pack::operand_types::OperandTypes;
use crate::kernel::cpu::scratch;
use crate::kernel::cpu::scratch::Side;
use crate::kernel::cpu::tile::AnyVar;
use crate::kernel::cpu_features::MatrixUnit;
use crate::kernel::lang::{Any, Prim};

/// The GEMM of operands that are packed in blocks, and whether those last as long as the launch. `None` for `f32` that
/// the launch does not split, or that has values out of range, and where there is no memory for a tile.
#[inline(always)]
pub(in crate::kernel::cpu) fn tiled_gemm<T: Any, U: Any>(
    types: OperandTypes,
    [rows, depth]: [usize; 2],
    a: &Operand<T>,
    b: &Operand<U>,
    [height, width]: [usize; 2],
    steps: usize,
) -> Option<(amx::Gemm, bool)> {
    let unit = types.unit()?;
    let slots = (slot(a, [height, steps], PackForm::Blocks), slot(b, [steps, width], PackForm::Blocks));
    if types == OperandTypes::SplitF32 && (slots.0.is_none() || slots.1.is_none()) {
        return None;
    }
    let from = source(a, 0);
    let is_whole = rows.is_multiple_of(32) && depth.is_multiple_of(types.per_line()) && !a.2;
    let deep = room_of(b, slots.1, steps);
    let in_place =
        slots.0.is_none() && is_whole && amx::reads_in_place(T::dtype(), from.ptr.cast(), &from.strides, rows);
    let lasts = (slots.0.is_some() || in_place) && slots.1.is_some();
    // SAFETY: the launch, or the scratch memory, has room for tiles of these shapes; the machine has AVX-512, and
    // sources are inside their operands.
    let (lhs, rhs) = unsafe {
        let lhs = if in_place {
            LhsTiles::in_place(from.ptr.cast(), from.strides[0] as usize * size_of::<T::Mem>())
        } else {
            let steps = room_of(a, slots.0, steps);
            let (lhs, has_all) = packed(types, Side::Lhs, a, slots.0, [height, steps])?;
            if !has_all {
                return None;
            }
            LhsTiles::packed(types, lhs, steps)
        };
        let (rhs, has_all) = packed(types, Side::Rhs, b, slots.1, [width, deep])?;
        if !has_all {
            return None;
        }
        (lhs, rhs)
    };
    let columns = Ord::clamp(extent(b, 1), 1, width as i64) as usize;
    let stride = types.group_bytes(deep);
    Some((amx::Gemm { types, unit, rows, columns, words: types.words(depth), lhs, rhs, stride }, lasts))
}

/// The steps that a packed tile of an operand has room for: all, unless the launch has found that there are fewer.
#[inline(always)]
fn room_of<T: Any>(x: &Operand<T>, slot: Option<usize>, steps: usize) -> usize {
    // SAFETY: an operand that has slots has a pack, which is valid for the launch.
    if slot.is_some() { unsafe { (*x.0.pack).depth } } else { steps }
}

/// An operand's tile of so many rows (columns) and steps, packed in its slot or in scratch memory, and whether it has
/// all of its values; `None` if there is no memory for it.
///
/// # Safety
/// The machine must have AVX-512, and a slot be one of the operand's.
#[inline(always)]
unsafe fn packed<T: Any>(
    types: OperandTypes,
    side: Side,
    x: &Operand<T>,
    slot: Option<usize>,
    shape: [usize; 2],
) -> Option<(*const u8, bool)> {
    let columns = matches!(side, Side::Rhs);
    let tile = Packed {
        side,
        form: PackForm::Blocks,
        slot,
        shape,
        granularity: 64,
        bytes_each: types.group_bytes(shape[1]) / 16,
    };
    // SAFETY: by the contract above; there is room for tiles of the shape, and sources are inside their operands.
    unsafe {
        tile.get(x, |from, shape, steps, to| {
            // What is read: vectors that have values, or blocks of tile registers.
            let group = if types.unit() == Some(MatrixUnit::Vnni) { 16 } else { 32 };
            let read = [Ord::min(shape[0], from.extents[0].next_multiple_of(group)), shape[1]];
            match (types, columns) {
                (OperandTypes::SplitF32, _) => return split_bf16::pack(from.cast(), columns, shape, steps, to),
                (OperandTypes::Bf16, _)
                    if float8::pack(T::dtype(), from.cast(), columns, read, steps.clone(), to.cast()) => {}
                (OperandTypes::Bf16, true) => {
                    vnni_packing::pack_columns::<u16, 32>(&from.cast::<u16>(), read, steps, to.cast())
                }
                (OperandTypes::Bf16, false) => {
                    vnni_packing::pack_rows::<u16, 32>(&from.cast::<u16>(), read, steps, to.cast())
                }
                (OperandTypes::Int8(..), true) => {
                    vnni_packing::pack_columns::<u8, 64>(&from.cast::<u8>(), read, steps, to)
                }
                (OperandTypes::Int8(..), false) => {
                    vnni_packing::pack_rows::<u8, 64>(&from.cast::<u8>(), read, steps, to)
                }
            }
            true
        })
    }
}

/// `acc += lhs · b` with the left operand computed, if the launch packs the right one in blocks: it does that for
/// operands that are values of `bf16`. Whether it was that; not where there is no memory for the left one.
///
/// # Safety
/// The left operand must have as many rows as the sum, of `steps` elements, and these shapes be multiples of 32.
#[inline(never)]
pub(in crate::kernel::cpu) unsafe fn computed_lhs_blocks<L: Level, U: Any, P: Prim>(
    lhs: *const f32,
    b: &Operand<U>,
    acc: AnyVar<'_, P>,
    steps: usize,
) -> bool {
    let ([rows, width], types) = (acc.shape, OperandTypes::Bf16);
    let (Some(unit), Some(slot)) = (types.unit(), slot(b, [steps, width], PackForm::Blocks)) else { return false };
    let depth = extent(b, 0).clamp(0, steps as i64) as usize;
    if depth == 0 {
        return true;
    }
    let columns = Ord::clamp(extent(b, 1), 1, width as i64) as usize;
    // SAFETY: by the contract above; a launch that packs blocks does it for a machine that multiplies them, which has
    // AVX-512.
    unsafe {
        let Some(to) = scratch::tile(Side::Lhs, types.tile_bytes(rows, steps)) else { return false };
        vnni_packing::pack_computed(lhs, [rows, steps], depth.div_ceil(types.per_line()), to);
        // Halves have all of their values.
        let deep = room_of(b, Some(slot), steps);
        let Some((rhs, _)) = packed(types, Side::Rhs, b, Some(slot), [width, deep]) else { return false };
        let stride = types.group_bytes(deep);
        let lhs = LhsTiles::packed(types, to, steps);
        let gemm = amx::Gemm { types, unit, rows, columns, words: types.words(depth), lhs, rhs, stride };
        acc.add::<L>(0, &Gemm::Blocks(gemm));
    }
    true
}
