//! [`TensorArg`]: a tensor operand at a launch, and what all launches do with dims and strides.

use smallvec::SmallVec;

pub(crate) type Dims = SmallVec<[i64; 6]>;

/// A tensor operand at a launch: its first element, dims, and strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct TensorArg<'a> {
    /// The first element.
    pub ptr: *mut u8,
    /// The dims.
    pub dims: &'a [i64],
    /// The strides.
    pub strides: &'a [i64],
}

/// How many elements a tensor of these dims has. FusedSide a dim of 0, the others may have any product; more than there can be in
/// memory, which only sizes of grids reach, count as `isize::MAX`.
pub(super) fn num_elements(dims: &[i64]) -> usize {
    if dims.iter().any(|dim| *dim <= 0) {
        return 0;
    }
    let elements = dims.iter().fold(1_i64, |elements, dim| elements.saturating_mul(*dim));
    isize::try_from(elements).unwrap_or(isize::MAX) as usize
}

/// Drops dims of 1 and merges neighbouring dims that every operand walks through without a jump.
pub(crate) fn collapse(dims: &[i64], tensors: &[TensorArg<'_>]) -> (Dims, SmallVec<[Dims; 8]>) {
    let mut merged = Dims::new();
    let mut strides: SmallVec<[Dims; 8]> = tensors.iter().map(|_| Dims::new()).collect();
    for (d, &dim) in dims.iter().enumerate() {
        if dim == 1 {
            continue;
        }
        let joins = merged.last().is_some()
            && tensors
                .iter()
                .zip(&strides)
                .all(|(t, s)| s.last().is_some_and(|last| Some(*last) == t.strides[d].checked_mul(dim)));
        match merged.last_mut() {
            Some(last) if joins => *last = last.saturating_mul(dim),
            _ => {
                merged.push(dim);
                strides.iter_mut().for_each(|s| s.push(0));
            }
        }
        for (t, s) in tensors.iter().zip(&mut strides) {
            if let Some(last) = s.last_mut() {
                *last = t.strides[d];
            }
        }
    }
    (merged, strides)
}
