//! Copies between tensors of any strides: how a value that is a view gets into row-major order.
//!
//! Axes that both sides walk without a jump are merged first. Then: whole runs where both are dense, square blocks where
//! the two sides are dense along different axes (a transpose), one element after the other else.

use smallvec::SmallVec;

use crate::kernel::{TensorArg, collapse, parallel};

/// Bytes that are worth another thread.
const GRAIN_BYTES: usize = 256 * 1024;
/// Rows and columns of the blocks in which a transpose is done: two of them stay in the first-level cache.
const BLOCK: i64 = 32;

/// Copies `from` to `to`, which has the same dims.
///
/// # Safety
/// All elements that `from` describes must be readable, those of `to` writable by this call alone, with no element of
/// `to` described twice, none of `from` among them, and both aligned to `element_size`, which is 1, 2, 4 or 8.
pub(crate) unsafe fn copy_strided(to: &TensorArg<'_>, from: &TensorArg<'_>, element_size: usize) {
    // SAFETY: by the contract above; elements are copied as integers of their size.
    unsafe {
        match element_size {
            1 => copy::<u8>(to, from),
            2 => copy::<u16>(to, from),
            4 => copy::<u32>(to, from),
            _ => copy::<u64>(to, from),
        }
    }
}

/// One side of a copy: the first element, and the strides of the merged axes.
struct Side<W> {
    first: *mut W,
    strides: SmallVec<[i64; 6]>,
}

// SAFETY: threads write disjoint parts, which the caller of `copy_strided` vouches for.
unsafe impl<W> Sync for Side<W> {}

impl<W> Side<W> {
    /// The element where the run number `run` of the axes `axes` starts.
    fn start(&self, dims: &[i64], axes: &[usize], mut run: i64) -> *mut W {
        let mut offset = 0;
        for &axis in axes.iter().rev() {
            offset += run % dims[axis] * self.strides[axis];
            run /= dims[axis];
        }
        self.first.wrapping_offset(offset as isize)
    }
}

/// # Safety
/// As for [`copy_strided`].
unsafe fn copy<W: Copy>(to: &TensorArg<'_>, from: &TensorArg<'_>) {
    if to.dims.contains(&0) {
        return;
    }
    let (mut dims, mut strides) = collapse(to.dims, &[*to, *from]);
    if dims.is_empty() {
        dims.push(1);
        strides.iter_mut().for_each(|s| s.push(1));
    }
    let [to, from] = [to, from].map(|side| side.ptr.cast::<W>());
    let (to, from) =
        (Side { first: to, strides: strides[0].clone() }, Side { first: from, strides: strides[1].clone() });
    let last = dims.len() - 1;
    let total: i64 = dims.iter().product();
    let bytes = total as usize * size_of::<W>();
    let across = (0..last).find(|&axis| from.strides[axis] == 1 && to.strides[last] == 1);
    match across {
        Some(across) if from.strides[last] != 1 => {
            // A transpose of the axes `across` and `last`: units of BLOCK rows.
            let outer: SmallVec<[usize; 6]> = (0..last).filter(|&axis| axis != across).collect();
            let bands = (dims[across] + BLOCK - 1) / BLOCK;
            let units = (total / dims[across] / dims[last] * bands) as usize;
            parallel(units, (GRAIN_BYTES * units).div_ceil(bytes).max(1), |first, end| {
                for unit in first as i64..end as i64 {
                    let (run, band) = (unit / bands, unit % bands * BLOCK);
                    let (target, source) = (to.start(&dims, &outer, run), from.start(&dims, &outer, run));
                    let rows = band..dims[across].min(band + BLOCK);
                    for left in (0..dims[last]).step_by(BLOCK as usize) {
                        for row in rows.clone() {
                            for column in left..dims[last].min(left + BLOCK) {
                                let at = row * to.strides[across] + column;
                                let of = row + column * from.strides[last];
                                // SAFETY: an element of each side, by the contract above.
                                unsafe { *target.offset(at as isize) = *source.offset(of as isize) };
                            }
                        }
                    }
                }
            });
        }
        _ => {
            let outer: SmallVec<[usize; 6]> = (0..last).collect();
            let (length, step_to, step_from) = (dims[last], to.strides[last], from.strides[last]);
            // One long run is cut into pieces.
            let pieces = if outer.is_empty() { (bytes / GRAIN_BYTES).clamp(1, length as usize) as i64 } else { 1 };
            let units = (total / length * pieces) as usize;
            parallel(units, (GRAIN_BYTES * units).div_ceil(bytes).max(1), |first, end| {
                for unit in first as i64..end as i64 {
                    let (run, piece) = (unit / pieces, unit % pieces);
                    let (begin, stop) = (length * piece / pieces, length * (piece + 1) / pieces);
                    let target = to.start(&dims, &outer, run).wrapping_offset((begin * step_to) as isize);
                    let source = from.start(&dims, &outer, run).wrapping_offset((begin * step_from) as isize);
                    let count = (stop - begin) as usize;
                    // SAFETY: the elements of one run of each side, by the contract above.
                    unsafe {
                        if step_to == 1 && step_from == 1 {
                            target.copy_from_nonoverlapping(source, count);
                        } else {
                            for i in 0..count as isize {
                                *target.offset(i * step_to as isize) = *source.offset(i * step_from as isize);
                            }
                        }
                    }
                }
            });
        }
    }
}
