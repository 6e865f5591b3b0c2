//! [`Layout`]: where the elements of a tensor lie, as a shape and strides, and the views that can be made by changing them.
//!
//! A layout says nothing of memory. Each view comes with the offset of its first element from that of the layout it was
//! made from; strides and offsets count elements. Every layout here is made from a row-major one by these functions, so all
//! its elements lie within those of the row-major one; that is what makes reading through it sound.

use crate::driver::DriverError;
use crate::driver::slice::SliceIndex;
use crate::dtype::DType;
use smallvec::SmallVec;

/// The sizes of a tensor's axes.
pub(super) type Sizes = SmallVec<[usize; 4]>;
/// The strides of a tensor's axes, in elements.
pub(super) type Strides = SmallVec<[isize; 4]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub shape: Sizes,
    pub strides: Strides,
}

/// The product of `shape`, or `None` if it overflows. A single size that no index can reach overflows even beside a 0.
pub(super) fn element_count(shape: &[usize]) -> Option<usize> {
    if shape.iter().any(|&size| size > isize::MAX as usize) {
        return None;
    }
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))
}

/// The number of elements and of bytes of a tensor.
pub(super) fn byte_count(op: &'static str, dtype: DType, shape: &[usize]) -> Result<(usize, usize), DriverError> {
    element_count(shape)
        .and_then(|count| Some((count, count.checked_mul(dtype.size_in_bytes())?)))
        .filter(|&(_, bytes)| bytes <= isize::MAX as usize)
        .ok_or_else(|| DriverError::SizeOverflow { op, dtype, shape: shape.to_vec() })
}

impl Layout {
    /// The row-major layout of `shape`, whose number of elements must fit an `isize`.
    pub fn contiguous(shape: &[usize]) -> Layout {
        let mut strides = Strides::from_elem(0, shape.len());
        // A shape without elements may have sizes whose product overflows; its strides are never used.
        if !shape.contains(&0) {
            let mut stride = 1;
            for (axis, &size) in shape.iter().enumerate().rev() {
                strides[axis] = stride;
                stride *= size as isize;
            }
        }
        Layout { shape: Sizes::from_slice(shape), strides }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub fn num_elements(&self) -> usize {
        // Layouts are only made of shapes whose elements can be counted.
        element_count(&self.shape).unwrap_or(usize::MAX)
    }

    /// Whether the elements lie in row-major order without gaps. The strides of axes of size 1 do not matter, and a layout
    /// without elements is contiguous.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size == 0 {
                return true;
            }
            if size != 1 && stride != expected {
                return self.shape.contains(&0);
            }
            expected *= size as isize;
        }
        true
    }

    /// An axis given from the front (0, 1, …) or from the back (−1, −2, …).
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize, DriverError> {
        let rank = self.rank();
        let index = if axis < 0 { axis.checked_add_unsigned(rank) } else { Some(axis) };
        index
            .and_then(|index| usize::try_from(index).ok())
            .filter(|&index| index < rank)
            .ok_or_else(|| DriverError::AxisOutOfRange { op, axis, shape: self.shape.to_vec() })
    }

    /// An index along `axis`, given from the front or, if negative, from the back.
    fn index(&self, op: &'static str, axis: usize, index: isize) -> Result<usize, DriverError> {
        let size = self.shape[axis];
        let from_front = if index < 0 { index.checked_add_unsigned(size) } else { Some(index) };
        from_front
            .and_then(|index| usize::try_from(index).ok())
            .filter(|&index| index < size)
            .ok_or(DriverError::IndexOutOfRange { op, axis, index, size })
    }

    pub fn slice(&self, indices: &[SliceIndex]) -> Result<(Layout, isize), DriverError> {
        let consumed = indices.iter().filter(|index| index.takes_axis()).count();
        if consumed > self.rank() {
            return Err(DriverError::TooManyIndices { op: "slice", count: consumed, shape: self.shape.to_vec() });
        }
        let ellipses = indices.iter().filter(|index| matches!(index, SliceIndex::Ellipsis)).count();
        if ellipses > 1 {
            return Err(DriverError::RepeatedEllipsis);
        }
        let mut result = Layout { shape: Sizes::new(), strides: Strides::new() };
        let mut offset = 0;
        let mut axis = 0;
        for &index in indices {
            match index {
                SliceIndex::Index(index) => {
                    let index = self.index("slice", axis, index)?;
                    offset += index as isize * self.strides[axis];
                    axis += 1;
                }
                SliceIndex::Range { start, stop, step } => {
                    let (start, count) =
                        clamp_range(start, stop, step, self.shape[axis]).ok_or(DriverError::ZeroStep { axis })?;
                    // An empty range may start beyond the last element; then it starts at the first, within the memory.
                    if count > 0 {
                        offset += start * self.strides[axis];
                    }
                    result.shape.push(count);
                    result.strides.push(if count > 1 { step * self.strides[axis] } else { self.strides[axis] });
                    axis += 1;
                }
                SliceIndex::Ellipsis => {
                    let skipped = self.rank() - consumed;
                    result.push_axes(self, axis..axis + skipped);
                    axis += skipped;
                }
                SliceIndex::NewAxis => {
                    result.shape.push(1);
                    result.strides.push(0);
                }
            }
        }
        result.push_axes(self, axis..self.rank());
        Ok((result, offset))
    }

    fn push_axes(&mut self, from: &Layout, axes: std::ops::Range<usize>) {
        self.shape.extend_from_slice(&from.shape[axes.clone()]);
        self.strides.extend_from_slice(&from.strides[axes]);
    }

    pub fn select(&self, axis: isize, index: isize) -> Result<(Layout, isize), DriverError> {
        let axis = self.axis("select", axis)?;
        let index = self.index("select", axis, index)?;
        let mut result = self.clone();
        result.shape.remove(axis);
        result.strides.remove(axis);
        Ok((result, index as isize * self.strides[axis]))
    }

    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Result<(Layout, isize), DriverError> {
        let axis = self.axis("narrow", axis)?;
        let size = self.shape[axis];
        let end = start.checked_add(length).filter(|&end| end <= size);
        if end.is_none() {
            let index = start.saturating_add(length).try_into().unwrap_or(isize::MAX);
            return Err(DriverError::IndexOutOfRange { op: "narrow", axis, index, size });
        }
        let mut result = self.clone();
        result.shape[axis] = length;
        let offset = if length == 0 { 0 } else { start as isize * self.strides[axis] };
        Ok((result, offset))
    }

    pub fn permute(&self, axes: &[isize]) -> Result<Layout, DriverError> {
        let invalid =
            || DriverError::InvalidPermutation { op: "permute", axes: axes.to_vec(), shape: self.shape.to_vec() };
        if axes.len() != self.rank() {
            return Err(invalid());
        }
        let mut seen = SmallVec::<[bool; 8]>::from_elem(false, self.rank());
        let mut result = Layout { shape: Sizes::new(), strides: Strides::new() };
        for &axis in axes {
            let axis = self.axis("permute", axis)?;
            if std::mem::replace(&mut seen[axis], true) {
                return Err(invalid());
            }
            result.shape.push(self.shape[axis]);
            result.strides.push(self.strides[axis]);
        }
        Ok(result)
    }

    pub fn transpose(&self, axis_1: isize, axis_2: isize) -> Result<Layout, DriverError> {
        let (a, b) = (self.axis("transpose", axis_1)?, self.axis("transpose", axis_2)?);
        let mut result = self.clone();
        result.shape.swap(a, b);
        result.strides.swap(a, b);
        Ok(result)
    }

    /// The caller checks that the elements of `shape` can be counted.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Layout, DriverError> {
        let error = || DriverError::NotBroadcastable { from: self.shape.to_vec(), to: shape.to_vec() };
        let added = shape.len().checked_sub(self.rank()).ok_or_else(error)?;
        let mut result = Layout { shape: Sizes::from_slice(shape), strides: Strides::from_elem(0, shape.len()) };
        for (axis, &size) in self.shape.iter().enumerate() {
            let to = shape[added + axis];
            if size == to {
                result.strides[added + axis] = self.strides[axis];
            } else if size != 1 {
                return Err(error());
            }
        }
        Ok(result)
    }

    /// The layout of the same elements in the same order under another shape with as many elements, or `None` if that
    /// needs a copy.
    pub fn reshape(&self, shape: &[usize]) -> Option<Layout> {
        if self.is_contiguous() {
            return Some(Layout::contiguous(shape));
        }
        let merged = self.merged();
        let mut result = Layout { shape: Sizes::from_slice(shape), strides: Strides::from_elem(0, shape.len()) };
        // Each merged axis, a run of equally spaced elements, must split into a group of the new axes.
        let mut axis = shape.len();
        for (&size, &stride) in merged.shape.iter().zip(&merged.strides).rev() {
            let mut filled = 1;
            while filled < size {
                axis = axis.checked_sub(1)?;
                result.strides[axis] = stride * filled as isize;
                filled *= shape[axis];
            }
            if filled != size {
                return None;
            }
        }
        Some(result)
    }

    /// The same elements in the same order with as few axes as possible: axes of size 1 dropped, and neighbours merged
    /// where one stride continues the other. Not for layouts without elements.
    pub fn merged(&self) -> Layout {
        let mut result = Layout { shape: Sizes::new(), strides: Strides::new() };
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            if size == 1 {
                continue;
            }
            match (result.shape.last_mut(), result.strides.last_mut()) {
                (Some(outer_size), Some(outer_stride)) if *outer_stride == stride * size as isize => {
                    *outer_size *= size;
                    *outer_stride = stride;
                }
                _ => {
                    result.shape.push(size);
                    result.strides.push(stride);
                }
            }
        }
        result
    }

    /// Removes the last axis and returns its size and stride; without axes, those of a single element.
    pub fn pop_axis(&mut self) -> (usize, isize) {
        (self.shape.pop().unwrap_or(1), self.strides.pop().unwrap_or(1))
    }

    /// Moves a multi-index and its offset to the next element in row-major order; false after the last.
    #[inline]
    pub fn advance(&self, index: &mut [usize], offset: &mut isize) -> bool {
        for axis in (0..self.rank()).rev() {
            index[axis] += 1;
            if index[axis] < self.shape[axis] {
                *offset += self.strides[axis];
                return true;
            }
            *offset -= self.strides[axis] * (index[axis] - 1) as isize;
            index[axis] = 0;
        }
        false
    }
}

/// Python's meaning of `start:stop:step` over an axis of `size`: the first index and the count; `None` for a step of 0.
fn clamp_range(start: Option<isize>, stop: Option<isize>, step: isize, size: usize) -> Option<(isize, usize)> {
    let size = size as isize;
    // Going down, the positions beyond the ends are −1 and size − 1; going up, 0 and size.
    let (low, high) = if step < 0 { (-1, size - 1) } else { (0, size) };
    let clamp = |bound: isize| {
        let from_front = if bound < 0 { bound.saturating_add(size) } else { bound };
        from_front.clamp(low, high.max(low))
    };
    let (first, last) = if step < 0 { (high, low) } else { (low, high) };
    let start = start.map_or(first, clamp);
    let stop = stop.map_or(last, clamp);
    let distance = if step < 0 { start - stop } else { stop - start };
    match step {
        0 => None,
        _ if distance <= 0 => Some((start, 0)),
        _ => Some((start, (distance as usize).div_ceil(step.unsigned_abs()))),
    }
}
