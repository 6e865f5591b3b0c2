//! Copies between tensors of any strides: how a value that is a view gets into row-major order.
//!
//! Axes that both sides walk without a jump are merged first. Then: whole runs where both are dense, squares where the two
//! sides are dense along different axes (a transpose), one element after the other else.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::arg::{TensorArg, collapse};
use super::cpu::transpose::{LINE, Strip, Word, copy_run, copy_words, fence, transpose};
use super::threads::parallel;
use super::tuning::{GRAIN_COPY_BYTES, STREAM_BYTES};

/// A transpose of this size and more is written by non-temporal stores: the rows that it jumps between often share a set of it.
const STREAM_TRANSPOSE_BYTES: usize = 1 << 20;
/// Runs of this size and more may be written by non-temporal stores: shorter ones have too few whole lines.
const STREAM_RUN_BYTES: usize = 8 * LINE;
/// Runs of up to this size are copied without a call.
const INLINED_RUN_BYTES: usize = 4 * LINE;
/// So many bytes of a long run are copied while a short one is begun: 3 ns, where a cache has both (Xeon, 2026-11-27).
const RUN_BYTES: usize = 96;
/// The same of an element that is copied alone.
const ELEMENT_BYTES: usize = 16;
/// Rows and columns of the squares in which a transpose is done: few enough that the pages of both sides stay at hand.
const SQUARE: i64 = 256;
/// Rows and columns of the target of what is written by non-temporal stores: the source is read on for long, as hardware fetches it ahead.
const FLAT: (i64, i64) = (1024, 64);
/// The same of rows that are not aligned to cache lines.
const LONG_SQUARE: i64 = 1024;

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

/// The first elements of both sides, and the strides of the merged axes.
struct Sides<W> {
    dims: SmallVec<[i64; 6]>,
    target: *mut W,
    source: *const W,
    strides: [SmallVec<[i64; 6]>; 2],
}

// SAFETY: threads write disjoint parts, which the caller of `copy_strided` vouches for.
unsafe impl<W> Sync for Sides<W> {}

impl<W> Sides<W> {
    /// The same, dense along the last axis, as bytes.
    fn in_bytes(mut self) -> Sides<u8> {
        let size = size_of::<W>() as i64;
        let last = self.dims.len() - 1;
        self.dims[last] *= size;
        for strides in &mut self.strides {
            strides[..last].iter_mut().for_each(|stride| *stride *= size);
        }
        Sides { dims: self.dims, target: self.target.cast(), source: self.source.cast(), strides: self.strides }
    }

    /// Calls `f` with the places of the runs `first..last`, counted row-major over the axes `axes`.
    #[inline(always)]
    fn runs(&self, axes: &[usize], first: i64, last: i64, mut f: impl FnMut(*mut W, *const W)) {
        let mut index: SmallVec<[i64; 6]> = SmallVec::from_elem(0, axes.len());
        let (mut rest, mut to, mut from) = (first, 0, 0);
        for (index, &axis) in index.iter_mut().zip(axes).rev() {
            *index = rest % self.dims[axis];
            rest /= self.dims[axis];
            to += *index * self.strides[0][axis];
            from += *index * self.strides[1][axis];
        }
        // By value, so that what `f` writes cannot be these. Along the innermost axis, places are so far apart.
        let (target, source) = (self.target, self.source);
        let [to_step, from_step] = axes.last().map_or([0; 2], |&axis| [self.strides[0][axis], self.strides[1][axis]]);
        let mut left = last - first;
        while left > 0 {
            let along = match (axes.last(), index.last_mut()) {
                (Some(&axis), Some(index)) => {
                    let along = Ord::min(self.dims[axis] - *index, left);
                    *index += along;
                    along
                }
                _ => left,
            };
            for _ in 0..along {
                f(target.wrapping_offset(to as isize), source.wrapping_offset(from as isize));
                to += to_step;
                from += from_step;
            }
            left -= along;
            // An index at its end begins again, and the one before it is the next.
            for (place, &axis) in axes.iter().enumerate().rev() {
                if index[place] < self.dims[axis] {
                    break;
                }
                index[place] = 0;
                to -= self.dims[axis] * self.strides[0][axis];
                from -= self.dims[axis] * self.strides[1][axis];
                if let Some(before) = place.checked_sub(1) {
                    index[before] += 1;
                    to += self.strides[0][axes[before]];
                    from += self.strides[1][axes[before]];
                }
            }
        }
    }
}

/// # Safety
/// As for [`copy_strided`].
unsafe fn copy<W: Word>(to: &TensorArg<'_>, from: &TensorArg<'_>) {
    if to.dims.contains(&0) {
        return;
    }
    let (mut dims, mut strides) = collapse(to.dims, &[*to, *from]);
    if dims.is_empty() {
        dims.push(1);
        strides.iter_mut().for_each(|s| s.push(1));
    }
    let strides = [strides[0].clone(), strides[1].clone()];
    let sides = Sides { dims, target: to.ptr.cast(), source: from.ptr.cast::<W>().cast_const(), strides };
    let [to, from] = &sides.strides;
    let last = sides.dims.len() - 1;
    let across = (0..last).find(|&axis| from[axis] == 1 && to[last] == 1);
    // SAFETY: by the contract above.
    unsafe {
        match across {
            Some(across) if from[last] != 1 => transposed(&sides, across),
            _ if (from[last], to[last]) == (1, 1) => dense_runs(&sides.in_bytes()),
            _ => by_elements(&sides),
        }
    }
}

/// A transpose of the last axis and the axis `across`: a unit is a square.
///
/// # Safety
/// As for [`copy_strided`].
unsafe fn transposed<W: Word>(sides: &Sides<W>, across: usize) {
    let dims = &sides.dims;
    let last = dims.len() - 1;
    let (step, distance) = (sides.strides[1][last], sides.strides[0][across]);
    let outer: SmallVec<[usize; 6]> = (0..last).filter(|&axis| axis != across).collect();
    // Rows of the target are columns of the source.
    let (rows, columns) = (dims[across], dims[last]);
    let total = dims.iter().product::<i64>();
    let bytes = total as usize * size_of::<W>();
    let stream = bytes >= STREAM_TRANSPOSE_BYTES && columns as usize >= W::PER_LINE;
    let aligned = (sides.target as usize).is_multiple_of(LINE)
        && (0..last).all(|axis| sides.strides[0][axis] % W::PER_LINE as i64 == 0);
    let (height, length) = match stream {
        true if aligned => FLAT,
        true => (SQUARE, LONG_SQUARE),
        false => (SQUARE, SQUARE),
    };
    let (down, right) = ((rows + height - 1) / height, (columns + length - 1) / length);
    let units = (total / rows / columns * down * right) as usize;
    parallel(units, (GRAIN_COPY_BYTES.get() * units).div_ceil(bytes).max(1), |first, end| {
        let mut strip = Strip::new();
        for unit in first as i64..end as i64 {
            let run = unit / (down * right);
            // Along the source's rows first.
            let (left, top) = (unit / down % right * length, unit % down * height);
            let part = (length.min(columns - left) as usize, height.min(rows - top) as usize);
            sides.runs(&outer, run, run + 1, |target, source| {
                let target = target.wrapping_offset((top * distance + left) as isize);
                let source = source.wrapping_offset((top + left * step) as isize);
                // SAFETY: the elements of a square of each side, by the contract above.
                unsafe { transpose((target, distance as isize), (source, step as isize), part, stream, &mut strip) };
            });
        }
        if stream {
            fence();
        }
    });
}

/// One run of the last axis after the other, each of which is dense on both sides.
///
/// # Safety
/// As for [`copy_strided`].
unsafe fn dense_runs(sides: &Sides<u8>) {
    let last = sides.dims.len() - 1;
    let (outer, length) = ((0..last).collect::<SmallVec<[usize; 6]>>(), sides.dims[last] as usize);
    let bytes = sides.dims.iter().product::<i64>() as usize;
    let stream = bytes.saturating_mul(2) >= STREAM_BYTES.get() && length >= STREAM_RUN_BYTES;
    if outer.is_empty() {
        // One long run is cut into pieces, between lines.
        let pieces = length / LINE;
        return parallel(pieces.max(1), GRAIN_COPY_BYTES.get() / LINE, |first, end| {
            let (begin, stop) = (first * LINE, if end >= pieces { length } else { end * LINE });
            // SAFETY: the bytes of a piece of each side, by the contract above.
            unsafe {
                copy_run(sides.target.wrapping_add(begin), sides.source.wrapping_add(begin), stop - begin, stream);
            }
            if stream {
                fence();
            }
        });
    }
    let units = bytes / length;
    let cost = bytes.saturating_add(units.saturating_mul(RUN_BYTES));
    parallel(units, GRAIN_COPY_BYTES.get().saturating_mul(units).div_ceil(cost).max(1), |first, end| {
        let (first, end) = (first as i64, end as i64);
        // SAFETY: the bytes of one run of each side, by the contract above.
        unsafe {
            if stream {
                sides.runs(&outer, first, end, |target, source| copy_run(target, source, length, true));
                fence();
            } else if length <= INLINED_RUN_BYTES {
                sides.runs(&outer, first, end, move |target, source| copy_words(target, source, length));
            } else {
                sides.runs(&outer, first, end, |target, source| copy_run(target, source, length, false));
            }
        }
    });
}

/// One run of the last axis after the other, element by element.
///
/// # Safety
/// As for [`copy_strided`].
unsafe fn by_elements<W: Word>(sides: &Sides<W>) {
    let last = sides.dims.len() - 1;
    let outer: SmallVec<[usize; 6]> = (0..last).collect();
    let (length, steps) = (sides.dims[last], [0, 1].map(|side| sides.strides[side][last] as isize));
    let copy = |target: *mut W, source: *const W| {
        let count = length as usize;
        // SAFETY: the elements of one run of each side, by the contract above.
        unsafe {
            match steps {
                [1, 0] => std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<W>>(), count)
                    .fill(MaybeUninit::new(*source)),
                [1, -1] => (0..count).for_each(|i| *target.add(i) = *source.sub(i)),
                [1, step] => (0..count).for_each(|i| *target.add(i) = *source.offset(i as isize * step)),
                [to, from] => (0..count as isize).for_each(|i| *target.offset(i * to) = *source.offset(i * from)),
            }
        }
    };
    let total = sides.dims.iter().product::<i64>();
    let units = (total / length) as usize;
    let cost = (total as usize).saturating_mul(size_of::<W>() + ELEMENT_BYTES);
    parallel(units, GRAIN_COPY_BYTES.get().saturating_mul(units).div_ceil(cost).max(1), |first, end| {
        sides.runs(&outer, first as i64, end as i64, copy);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_major(dims: &[i64]) -> Vec<i64> {
        let mut strides = vec![1; dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = strides[axis] * dims[axis];
        }
        strides
    }

    /// Copies a view of `elements` of the given first element and strides, and compares it with what its strides say.
    fn check<W: Word + PartialEq + std::fmt::Debug>(elements: &[W], first: usize, dims: &[i64], strides: &[i64]) {
        let total = dims.iter().product::<i64>() as usize;
        let mut result = vec![elements[0]; total + 1];
        let place = row_major(dims);
        let to = TensorArg { ptr: result.as_mut_ptr().cast(), dims, strides: &place };
        let from = TensorArg { ptr: elements[first..].as_ptr().cast_mut().cast(), dims, strides };
        // SAFETY: the vector has room for all elements; those of the source are checked below.
        unsafe { copy_strided(&to, &from, size_of::<W>()) };
        for (i, found) in result[..total].iter().enumerate() {
            let steps = dims.iter().zip(&place).zip(strides);
            let at: i64 = steps.map(|((dim, place), stride)| i as i64 / place % dim * stride).sum();
            assert_eq!(*found, elements[first.wrapping_add_signed(at as isize)], "{dims:?} {strides:?} at {i}");
        }
        assert_eq!(result[total], elements[0], "{dims:?} {strides:?} wrote beyond the end");
    }

    fn check_all<W: Word + PartialEq + std::fmt::Debug>(elements: &[W]) {
        let dims = [3, 66, 131];
        let strides = row_major(&dims);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let permuted = |of: &[i64]| order.map(|axis| of[axis]);
            check(elements, 0, &permuted(&dims), &permuted(&strides));
        }
        // Non-temporal stores, aligned and not; reversed, with steps, broadcast; one run, no axes, no elements.
        check(elements, 0, &[1024, 2048], &[1, 1024]);
        check(elements, 1, &[1030, 1100], &[1, 1037]);
        check(elements, 0, &[2_100_001], &[1]);
        check(elements, 5, &[3, 700_001], &[700_003, 1]);
        check(elements, 999, &[10, 100], &[-100, -1]);
        check(elements, 0, &[300, 70], &[210, 3]);
        check(elements, 3, &[40, 50], &[1, 0]);
        check(elements, 7, &[], &[]);
        for length in 1..70 {
            check(elements, 1, &[300, length], &[length + 5, 1]);
        }
        // Transposes of few rows and few columns.
        for short in 1..36 {
            for long in [1, 15, 16, 17, 63, 301, 1030] {
                check(elements, 1, &[short, long], &[1, short]);
                check(elements, 2, &[long, short], &[1, long]);
                check(elements, 3, &[2, short, long], &[long * (short + 1), 1, short + 1]);
            }
        }
        check(elements, 0, &[4, 0], &[1, 4]);
    }

    #[test]
    fn any_strides_are_copied() {
        let count = 2_200_000u64;
        check_all(&(0..count).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>());
        check_all(&(0..count).map(|i| (i * 31) as u16).collect::<Vec<_>>());
        check_all(&(0..count).map(|i| i as u32).collect::<Vec<_>>());
        check_all(&(0..count).collect::<Vec<_>>());
    }
}
