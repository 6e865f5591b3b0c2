//! Prologue and epilogue fusion on the CPU: elementwise work before each program, to compute what it reads, or after
//! it, on what it wrote.
//!
//! It exists to keep intermediate results in the cache. A program touches one part of such an operand, and no other
//! program touches that part, as the kernel table tells. So the fused work runs part by part. An operand that nothing
//! else reads needs no more memory than a part for each thread.

use smallvec::SmallVec;

use super::super::abi::{LaunchArgs, OperandDef, RawTensor};
use super::super::arg::TensorArg;
use super::super::cpu::OwnedScratch;
use super::super::cpu::transpose::fence;

type Sizes = SmallVec<[i64; 6]>;

/// Elements up to which consecutive programs with small parts run together.
const TOGETHER: i64 = 4096;

/// A prologue or epilogue fused to each program of a launch.
pub(crate) struct FusedSide<'a> {
    /// The kernel's operand that it computes or reads.
    pub operand: usize,
    /// Whether that operand lies in scratch memory of each thread, and not where the launch's argument says.
    pub inside: bool,
    /// Whether it is a prologue, and not an epilogue.
    pub before: bool,
    /// Whether it uses non-temporal (streaming) stores.
    pub stream: bool,
    /// The work on a part of the operand.
    pub run: &'a (dyn Fn(&Part<'_>) + Sync),
}

/// A part of an operand.
pub(crate) struct Part<'a> {
    /// Its first element.
    ptr: *mut u8,
    element_size: usize,
    /// The operand's dims.
    dims: &'a [i64],
    strides: &'a [i64],
    origin: Sizes,
    extents: Sizes,
}

impl Part<'_> {
    /// The part as runs of elements that lie side by side: each one's first element, its number in row-major order over
    /// the whole operand, and their count.
    pub fn runs(&self, mut run: impl FnMut(*mut u8, i64, i64)) {
        if self.extents.contains(&0) {
            return;
        }
        // The dims that a run goes along: up to and with the first one, from behind, that is not whole.
        let (mut inner, mut count) = (self.dims.len(), 1);
        while inner > 0 && self.strides[inner - 1] == count {
            inner -= 1;
            count *= self.extents[inner];
            if self.extents[inner] != self.dims[inner] {
                break;
            }
        }
        let mut index = Sizes::from_elem(0, inner);
        loop {
            let (mut number, mut offset, mut size) = (0, 0, 1);
            for d in (0..self.dims.len()).rev() {
                let i = index.get(d).copied().unwrap_or(0);
                number += (self.origin[d] + i) * size;
                offset += i * self.strides[d];
                size *= self.dims[d];
            }
            run(self.ptr.wrapping_offset(offset as isize * self.element_size as isize), number, count);
            let Some(d) = (0..inner).rev().find(|d| index[*d] + 1 < self.extents[*d]) else { return };
            index[d] += 1;
            index[d + 1..].fill(0);
        }
    }
}

/// [`FusedSide`] for one launch.
pub(in crate::kernel) struct Placed<'a> {
    beside: &'a FusedSide<'a>,
    element_size: usize,
    /// The first element of the operand as the launch has it.
    ptr: *mut u8,
    dims: &'a [i64],
    strides: Sizes,
    /// For each dimension, the grid axis and the size of its blocks, if it is divided.
    blocks: SmallVec<[Option<(usize, i64)>; 6]>,
    /// Where its part begins in the memory of a thread, if it is inside, and how many bytes it has there.
    at: usize,
    bytes: usize,
    /// Whether that has to be filled with zeros first, because the kernel may leave elements unwritten.
    zero_init: bool,
}

// SAFETY: threads touch disjoint parts of the operands that whoever launches the kernel vouches for.
unsafe impl Sync for Placed<'_> {}

/// The fused prologues and epilogues of one launch.
pub(in crate::kernel) struct FusedSides<'a> {
    placed: SmallVec<[Placed<'a>; 2]>,
    /// Consecutive programs that run together.
    together: usize,
    /// The memory that a program needs.
    bytes: usize,
}

impl<'a> FusedSides<'a> {
    /// `operand` gives the definition and the size of elements of an operand, `tile` are the tile constants.
    pub fn new<'o>(
        sides: &'a [FusedSide<'a>],
        operand: impl Fn(usize) -> (&'o OperandDef, usize),
        tensors: &'a [TensorArg<'a>],
        tile: &[u64],
        grid: [i64; 3],
    ) -> Self {
        let mut placed: SmallVec<[Placed<'a>; 2]> = SmallVec::new();
        for beside in sides {
            let ((def, element_size), tensor) = (operand(beside.operand), &tensors[beside.operand]);
            let mut blocks = SmallVec::from_elem(None, tensor.dims.len());
            for part in def.part.as_slice() {
                let size = usize::try_from(part.tile).ok().and_then(|t| tile.get(t).copied()).unwrap_or(part.size);
                if let Some(block) = blocks.get_mut(part.dim as usize) {
                    *block = Some((part.axis as usize, size.max(1) as i64));
                }
            }
            let strides = Sizes::from(tensor.strides);
            let (ptr, dims) = (tensor.ptr, tensor.dims);
            let zero_init = def.leaves_out() && beside.inside && !beside.before;
            placed.push(Placed { beside, element_size, ptr, dims, strides, blocks, at: 0, bytes: 0, zero_init });
        }
        let together = together(&placed, grid);
        let mut bytes = 0;
        for side in placed.iter_mut().filter(|side| side.beside.inside) {
            let mut size = 1;
            for d in (0..side.dims.len()).rev() {
                side.strides[d] = size;
                size *= side.blocks[d].map_or(side.dims[d], |(_, size)| size.min(side.dims[d].max(1)));
            }
            side.at = bytes;
            side.bytes = size as usize * together * side.element_size;
            bytes += side.bytes.next_multiple_of(64);
        }
        FusedSides { placed, together, bytes }
    }

    /// Runs the programs `first..last` of the launch that `args` describes.
    ///
    /// # Safety
    /// As for [`RunFn`](super::super::abi::RunFn), which `run` is called as.
    pub unsafe fn run(
        &self,
        args: &LaunchArgs,
        operands: usize,
        first: i64,
        last: i64,
        run: impl Fn(&LaunchArgs, i64, i64),
    ) {
        // SAFETY: a launch has that many operands.
        let mut raw = SmallVec::<[RawTensor; 8]>::from(unsafe { std::slice::from_raw_parts(args.tensors, operands) });
        // Without memory for the parts, the launch is an error.
        let Some(memory) = OwnedScratch::for_slices(self.bytes) else { return };
        let mut at = first;
        while at < last {
            let end = last.min(at + self.together as i64);
            let ids = args.program_ids(args.coordinates(at));
            let parts = self.placed.iter().map(|side| side.part(ids, end - at, &memory));
            let parts: SmallVec<[(Part<'_>, *mut u8); 2]> = parts.collect();
            for (side, (_, origin)) in self.placed.iter().zip(&parts) {
                raw[side.beside.operand].ptr = *origin;
                raw[side.beside.operand].strides = side.strides.as_ptr();
            }
            for side in self.placed.iter().filter(|side| side.zero_init) {
                // SAFETY: the memory is this thread's, and has room for all sides.
                unsafe { memory.at(side.at).write_bytes(0, side.bytes) };
            }
            let beside = |before: bool| {
                let sides = self.placed.iter().zip(&parts).filter(|(side, _)| side.beside.before == before);
                sides.for_each(|(side, (part, _))| (side.beside.run)(part));
            };
            beside(true);
            run(&LaunchArgs { tensors: raw.as_ptr(), ..*args }, at, end);
            beside(false);
            at = end;
        }
        if self.placed.iter().any(|side| side.beside.stream) {
            fence();
        }
    }
}

/// How many consecutive programs have parts that follow each other, and are small.
fn together(placed: &[Placed<'_>], grid: [i64; 3]) -> usize {
    let mut most = TOGETHER;
    for side in placed {
        let rows = match *side.blocks {
            [Some((0, rows)), ref rest @ ..] if rest.iter().all(Option::is_none) && grid[1] * grid[2] == 1 => rows,
            _ => return 1,
        };
        let elements = rows * side.dims[1..].iter().product::<i64>();
        most = most.min(TOGETHER / elements.max(1));
    }
    most.max(1) as usize
}

impl Placed<'_> {
    /// The part of so many programs, of which the first has these ids, and where the operand's first element would be.
    fn part(&self, ids: [i64; 3], programs: i64, memory: &OwnedScratch) -> (Part<'_>, *mut u8) {
        let (mut origin, mut extents) = (Sizes::new(), Sizes::from(self.dims));
        let mut before = 0;
        for (d, block) in self.blocks.iter().enumerate() {
            let (first, size) = block.map_or((0, self.dims[d]), |(axis, size)| (ids[axis] * size, size * programs));
            origin.push(first);
            extents[d] = size.min(self.dims[d] - first).max(0);
            before += first * self.strides[d];
        }
        let bytes = before as isize * self.element_size as isize;
        let (ptr, first) = match self.beside.inside {
            true => (memory.at(self.at), memory.at(self.at).wrapping_offset(-bytes)),
            false => (self.ptr.wrapping_offset(bytes), self.ptr),
        };
        let (dims, element_size) = (self.dims, self.element_size);
        (Part { ptr, element_size, dims, strides: &self.strides, origin, extents }, first)
    }
}
