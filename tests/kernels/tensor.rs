//! Operands in memory: views of all kinds into buffers whose other bytes must stay as they are.

use max::dtype::DType;
use max::kernel::TensorArg;

use crate::number::{Num, decode, put};
use crate::random::Rng;

/// How a tensor lies in its buffer. The default is contiguous, at the buffer's alignment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// Rotates the order of the axes in memory.
    pub rotate: u8,
    /// Elements skipped between two along the axis that is innermost in memory.
    pub gap: u8,
    /// The axes that are walked backwards, a bit each.
    pub flip: u8,
    /// The axes along which all elements are one, a bit each.
    pub broadcast: u8,
    /// Elements before the tensor.
    pub offset: u8,
    /// Elements skipped between two along the axis that is outermost in memory, if there are others.
    pub skip: u8,
}

impl Layout {
    /// The same without what a result cannot have: two indices of one element.
    pub fn writable(self) -> Self {
        Layout { broadcast: 0, ..self }
    }

    /// Contiguous, but not at the buffer's alignment.
    pub fn contiguous(self) -> Self {
        Layout { offset: self.offset, ..Layout::default() }
    }
}

/// A tensor in a buffer with bytes before and after it.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: DType,
    pub dims: Vec<i64>,
    /// In elements.
    pub strides: Vec<i64>,
    /// The byte where the element at index 0 starts.
    pub start: usize,
    buffer: Vec<u64>,
}

/// Bytes on each side of a tensor.
const GUARD: usize = 128;

impl Tensor {
    /// A tensor in a buffer of random bytes.
    pub fn new(dtype: DType, dims: &[i64], layout: Layout, rng: &mut Rng) -> Self {
        let rank = dims.len();
        let mut strides = vec![0; rank];
        let mut step = 1 + i64::from(layout.gap);
        let (mut lowest, mut highest) = (0, 0);
        for k in 0..rank {
            // From the innermost axis out.
            let axis = (2 * rank - 1 - k - usize::from(layout.rotate) % rank) % rank;
            if k > 0 && k == rank - 1 {
                step += i64::from(layout.skip);
            }
            if layout.broadcast >> axis & 1 != 0 {
                continue;
            }
            let reach = step * (dims[axis] - 1).max(0);
            if layout.flip >> axis & 1 != 0 {
                strides[axis] = -step;
                lowest -= reach;
            } else {
                strides[axis] = step;
                highest += reach;
            }
            step *= dims[axis].max(1);
        }
        let size = dtype.size_in_bytes();
        let start = GUARD + (usize::from(layout.offset) + lowest.unsigned_abs() as usize) * size;
        let bytes = start + (highest as usize + 1) * size + GUARD;
        let buffer = (0..bytes.div_ceil(8)).map(|_| rng.bits()).collect();
        Tensor { dtype, dims: dims.to_vec(), strides, start, buffer }
    }

    pub fn len(&self) -> usize {
        self.dims.iter().product::<i64>() as usize
    }

    /// The whole buffer.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.buffer)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.buffer)
    }

    /// The tensor as an operand of a kernel of this machine.
    pub fn arg(&mut self) -> TensorArg<'_> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        TensorArg { ptr: bytes[self.start..].as_mut_ptr(), dims: &self.dims, strides: &self.strides }
    }

    /// The byte at which each element starts, in row-major order of the indices.
    #[inline]
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let size = self.dtype.size_in_bytes() as i64;
        let last = self.dims.len().saturating_sub(1);
        let (row, step) =
            (self.dims.last().copied().unwrap_or(1), self.strides.last().map_or(0, |stride| stride * size));
        let (mut index, mut next, mut left) = (vec![0; last], self.start as i64, row);
        (0..self.len()).map(move |_| {
            let place = next;
            next += step;
            left -= 1;
            if left == 0 {
                left = row;
                next -= row * step;
                self.next_row(&mut index, &mut next);
            }
            place as usize
        })
    }

    /// Goes on to the row behind that at `index`, and from the byte where the one begins to where the other does.
    fn next_row(&self, index: &mut [i64], next: &mut i64) {
        let size = self.dtype.size_in_bytes() as i64;
        for (axis, i) in index.iter_mut().enumerate().rev() {
            let (dim, stride) = (self.dims[axis], self.strides[axis]);
            *i += 1;
            *next += stride * size;
            if *i < dim {
                return;
            }
            *next -= dim * stride * size;
            *i = 0;
        }
    }

    /// Writes every element.
    pub fn fill(&mut self, mut element: impl FnMut() -> [u8; 8]) {
        let size = self.dtype.size_in_bytes();
        let places: Vec<usize> = self.places().collect();
        for place in places {
            put(&mut self.bytes_mut()[place..place + size], element());
        }
    }

    pub fn values(&self) -> Vec<Num> {
        let size = self.dtype.size_in_bytes();
        self.places().map(|place| decode(self.dtype, &self.bytes()[place..place + size])).collect()
    }

    /// The first byte outside of the elements that is not the same in `before`.
    pub fn stray_write(&self, before: &Tensor) -> Option<usize> {
        let size = self.dtype.size_in_bytes();
        let (own, other) = (self.bytes(), before.bytes());
        // Mostly the elements have no gaps, and only what is before and behind them can be a stray write.
        let (first, last) = self.places().fold((own.len(), 0), |(lo, hi), place| (lo.min(place), hi.max(place + size)));
        if last.saturating_sub(first) == self.len() * size {
            return (0..first).chain(last..own.len()).find(|&i| own[i] != other[i]);
        }
        let mut elements = vec![false; own.len()];
        self.places().for_each(|place| elements[place..place + size].fill(true));
        (0..own.len()).find(|&i| !elements[i] && own[i] != other[i])
    }
}
