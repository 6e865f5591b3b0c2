//! Copies between tensors of any strides: how a value that is a view gets into row-major order.
//!
//! Axes that both sides walk without a jump are merged first. Then: whole runs where both are dense, square blocks where
//! the two sides are dense along different axes (a transpose), one element after the other else.

use smallvec::SmallVec;

use crate::kernel::{TensorArg, collapse, parallel};

/// Bytes that are worth another thread.
const GRAIN_BYTES: usize = 256 * 1024;
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

/// Rows and columns of the squares in which a transpose is done: few enough that the pages of both sides stay at hand.
const SQUARE: i64 = 256;

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
            // A transpose of the axes `across` and `last`: a unit is a square of blocks.
            let outer: SmallVec<[usize; 6]> = (0..last).filter(|&axis| axis != across).collect();
            let (rows, columns) = (dims[across], dims[last]);
            let (down, right) = ((rows + SQUARE - 1) / SQUARE, (columns + SQUARE - 1) / SQUARE);
            let units = (total / rows / columns * down * right) as usize;
            parallel(units, (GRAIN_BYTES * units).div_ceil(bytes).max(1), |first, end| {
                for unit in first as i64..end as i64 {
                    let run = unit / (down * right);
                    let (top, left) = (unit / right % down * SQUARE, unit % right * SQUARE);
                    let (target, source) = (to.start(&dims, &outer, run), from.start(&dims, &outer, run));
                    let (distance, step) = (to.strides[across], from.strides[last]);
                    let target = target.wrapping_offset((top * distance + left) as isize);
                    let source = source.wrapping_offset((top + left * step) as isize);
                    let (height, width) = (SQUARE.min(rows - top), SQUARE.min(columns - left));
                    // SAFETY: the elements of a square of each side, by the contract above.
                    unsafe { Block::transpose_square((target, distance), (source, step), height, width) };
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

/// A square of elements, as wide as a cache line, through which a transpose goes: so each line of either side is read or
/// written once and whole, even where the strides put all lines of a block in one set of the cache.
struct Block<W>(std::marker::PhantomData<W>);

impl<W: Copy> Block<W> {
    const SIDE: i64 = if size_of::<W>() < 4 { 32 } else { 64 / size_of::<W>() as i64 };

    /// As [`transpose`](Self::transpose), for any counts: block by block.
    ///
    /// # Safety
    /// As there.
    unsafe fn transpose_square(target: (*mut W, i64), source: (*const W, i64), height: i64, width: i64) {
        for top in (0..height).step_by(Self::SIDE as usize) {
            for left in (0..width).step_by(Self::SIDE as usize) {
                let part = target.0.wrapping_offset((top * target.1 + left) as isize);
                let of = source.0.wrapping_offset((top + left * source.1) as isize);
                let (height, width) = (Self::SIDE.min(height - top), Self::SIDE.min(width - left));
                // SAFETY: by the contract above.
                unsafe { Self::transpose((part, target.1), (of, source.1), height, width) };
            }
        }
    }

    /// Writes `height` rows of `width` elements, whose columns are the rows of the source. Both are a first element and
    /// the distance of rows.
    ///
    /// # Safety
    /// The elements of the source must be readable, those of the target writable; neither count exceeds the side.
    #[inline(always)]
    unsafe fn transpose(target: (*mut W, i64), source: (*const W, i64), height: i64, width: i64) {
        // SAFETY: by the contract above.
        unsafe {
            match (height == Self::SIDE && width == Self::SIDE, size_of::<W>()) {
                (true, 1 | 2) => Self::whole::<32>(target, source),
                (true, 4) => Self::whole::<16>(target, source),
                (true, _) => Self::whole::<8>(target, source),
                (false, _) => {
                    for column in 0..width as isize {
                        let line = source.0.offset(column * source.1 as isize);
                        for row in 0..height as isize {
                            *target.0.offset(row * target.1 as isize + column) = *line.offset(row);
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`transpose`](Self::transpose), for `N` rows and columns.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "a row of the result is a column of what is indexed")]
    unsafe fn whole<const N: usize>(target: (*mut W, i64), source: (*const W, i64)) {
        // SAFETY: by the contract above.
        unsafe {
            let lines: [[W; N]; N] = std::array::from_fn(|i| {
                source.0.offset(i as isize * source.1 as isize).cast::<[W; N]>().read_unaligned()
            });
            for row in 0..N {
                let turned: [W; N] = std::array::from_fn(|i| lines[i][row]);
                target.0.offset(row as isize * target.1 as isize).cast::<[W; N]>().write_unaligned(turned);
            }
        }
    }
}
