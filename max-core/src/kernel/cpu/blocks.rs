//! Products whose operands are packed in the blocks that [`amx`] multiplies, or lie as it walks them.

use super::amx::{self, Rows};
use super::dot::{Operand, Packed, Product, extent, slot, source};
use super::factors::Factors;
use super::float8;
use super::level::Level;
use super::parts;
use super::scratch::{self, Side};
use super::tile::AnyVar;
use crate::kernel::lang::{Any, Prim};
use crate::kernel::table::PackForm;

/// The product of operands that are packed in blocks, and whether those last as long as the launch. `None` for `f32` that the
/// launch does not pack so, or that have values which their parts do not.
#[inline(always)]
pub(super) fn of_blocks<T: Any, U: Any>(
    factors: Factors,
    [rows, depth]: [usize; 2],
    a: &Operand<T>,
    b: &Operand<U>,
    [height, width]: [usize; 2],
    steps: usize,
) -> Option<(amx::Product, bool)> {
    let unit = factors.unit()?;
    let slots = (slot(a, [height, steps], PackForm::Blocks), slot(b, [steps, width], PackForm::Blocks));
    if factors == Factors::Floats && (slots.0.is_none() || slots.1.is_none()) {
        return None;
    }
    let from = source(a, 0);
    let is_whole = rows.is_multiple_of(32) && depth.is_multiple_of(factors.per_line()) && !a.2;
    let deep = room_of(b, slots.1, steps);
    let in_place =
        slots.0.is_none() && is_whole && amx::reads_in_place(T::dtype(), from.ptr.cast(), &from.strides, rows);
    let lasts = (slots.0.is_some() || in_place) && slots.1.is_some();
    // SAFETY: the launch, or the scratch memory, has room for tiles of these shapes; the machine has AVX-512, and sources
    // are inside their operands.
    let (left, right) = unsafe {
        let left = if in_place {
            Rows::in_place(from.ptr.cast(), from.strides[0] as usize * size_of::<T::Mem>())
        } else {
            let steps = room_of(a, slots.0, steps);
            let (left, has_all) = packed(factors, Side::Left, a, slots.0, [height, steps]);
            if !has_all {
                return None;
            }
            Rows::packed(factors, left, steps)
        };
        let (right, has_all) = packed(factors, Side::Right, b, slots.1, [width, deep]);
        if !has_all {
            return None;
        }
        (left, right)
    };
    let columns = (Ord::clamp(extent(b, 1), 1, width as i64) as usize).next_multiple_of(32);
    let lines = depth.div_ceil(factors.per_line());
    let stride = factors.group_bytes(deep);
    Some((amx::Product { factors, unit, rows, columns, lines, left, right, stride }, lasts))
}

/// The steps that a packed tile of an operand has room for: all, unless the launch has found that there are fewer.
#[inline(always)]
fn room_of<T: Any>(x: &Operand<T>, slot: Option<usize>, steps: usize) -> usize {
    // SAFETY: an operand that has slots has a pack, which is valid for the launch.
    if slot.is_some() { unsafe { (*x.0.pack).depth } } else { steps }
}

/// An operand's tile of so many rows (columns) and steps, packed in its slot or in scratch memory, and whether it has all of its
/// values.
///
/// # Safety
/// The machine must have AVX-512, and a slot be one of the operand's.
#[inline(always)]
unsafe fn packed<T: Any>(
    factors: Factors,
    side: Side,
    x: &Operand<T>,
    slot: Option<usize>,
    shape: [usize; 2],
) -> (*const u8, bool) {
    let columns = matches!(side, Side::Right);
    let tile = Packed { side, form: PackForm::Blocks, slot, shape, unit: 64, each: factors.group_bytes(shape[1]) / 16 };
    // SAFETY: by the contract above; there is room for tiles of the shape, and sources are inside their operands.
    unsafe {
        tile.get(x, |from, shape, steps, to| {
            match (factors, columns) {
                (Factors::Floats, _) => return parts::pack(from.cast(), columns, shape, steps, to),
                (Factors::Halves, _)
                    if float8::pack(T::dtype(), from.cast(), columns, shape, steps.clone(), to.cast()) => {}
                (Factors::Halves, true) => amx::pack_columns::<u16, 32>(&from.cast::<u16>(), shape, steps, to.cast()),
                (Factors::Halves, false) => amx::pack_rows::<u16, 32>(&from.cast::<u16>(), shape, steps, to.cast()),
                (Factors::Bytes(..), true) => amx::pack_columns::<u8, 64>(&from.cast::<u8>(), shape, steps, to),
                (Factors::Bytes(..), false) => amx::pack_rows::<u8, 64>(&from.cast::<u8>(), shape, steps, to),
            }
            true
        })
    }
}

/// `acc += left · b` with the left operand computed, if the launch packs the right one in blocks: it does that for factors that
/// are values of `bf16`. Whether it was that.
///
/// # Safety
/// The left operand must have as many rows as the sum, of `steps` elements, and these shapes be multiples of 32.
#[inline(never)]
pub(super) unsafe fn computed_by_blocks<L: Level, U: Any, P: Prim>(
    left: *const f32,
    b: &Operand<U>,
    acc: AnyVar<'_, P>,
    steps: usize,
) -> bool {
    let ([rows, width], factors) = (acc.shape, Factors::Halves);
    let (Some(unit), Some(slot)) = (factors.unit(), slot(b, [steps, width], PackForm::Blocks)) else { return false };
    let lines = (extent(b, 0).clamp(0, steps as i64) as usize).div_ceil(factors.per_line());
    if lines == 0 {
        return true;
    }
    let columns = (Ord::clamp(extent(b, 1), 1, width as i64) as usize).next_multiple_of(32);
    // SAFETY: by the contract above; a launch that packs blocks does it for a machine that multiplies them, which has AVX-512.
    unsafe {
        let to = scratch::tile(Side::Left, factors.tile_bytes(rows, steps));
        amx::pack_computed(left, [rows, steps], lines, to);
        // Halves have all of their values.
        let deep = room_of(b, Some(slot), steps);
        let (right, _) = packed(factors, Side::Right, b, Some(slot), [width, deep]);
        let stride = factors.group_bytes(deep);
        let left = Rows::packed(factors, to, steps);
        let product = amx::Product { factors, unit, rows, columns, lines, left, right, stride };
        acc.add::<L>(0, &Product::Blocks(product));
    }
    true
}
