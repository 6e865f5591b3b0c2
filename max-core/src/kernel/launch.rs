//! Launches on the CPU: how elements and program instances are walked and divided among threads.

use smallvec::SmallVec;

use super::beside::{Beside, Sides};
use super::bound::{BoundKernel, TensorArg};
use super::cpu::moves::fence;
use super::panels::Constants;
use super::table::{Access, LaunchArgs, RawTensor};
use super::threads::{parallel, parallel_in_order};
use super::tuning::{GRAIN_BYTES, GRAIN_ELEMENTS, STREAM_BYTES, STREAM_PRODUCT_BYTES};

pub(crate) type Dims = SmallVec<[i64; 6]>;

/// The operands' pointers are shared among threads that write disjoint parts.
#[derive(Clone, Copy)]
struct Shared<'a, T: ?Sized>(&'a T);
// SAFETY: instances of one launch write disjoint elements, which whoever launches vouches for.
unsafe impl<T: ?Sized> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized> Send for Shared<'_, T> {}

impl<T: ?Sized> Shared<'_, T> {
    fn get(&self) -> &T {
        self.0
    }
}

/// Fills a contiguous tensor with zeros.
///
/// # Safety
/// Its memory must be writable by this call alone.
pub(super) unsafe fn zero(tensor: &TensorArg<'_>, element_size: usize) {
    let elements: i64 = tensor.dims.iter().product();
    // SAFETY: by the contract above; sizes were checked when the memory was allocated.
    unsafe { std::ptr::write_bytes(tensor.ptr, 0, elements as usize * element_size) };
}

/// Runs an elementwise kernel over operands of the same dims.
///
/// # Safety
/// As for [`BoundKernel::launch`].
pub(super) unsafe fn elementwise(kernel: &BoundKernel, tensors: &[TensorArg<'_>]) {
    let Some(dims) = tensors.first().map(|t| t.dims) else { return };
    let (dims, strides) = collapse(dims, tensors);
    let total: i64 = dims.iter().product();
    if total == 0 {
        return;
    }
    let (inner, outer) = match dims.split_last() {
        Some((inner, outer)) => (*inner, outer),
        None => (1, &[][..]),
    };
    let operands = kernel.def().operands.as_slice();
    let sizes: SmallVec<[i64; 8]> = operands.iter().map(|o| kernel.size_of(o.dtype) as i64).collect();
    let written = operands.iter().zip(&sizes).filter(|(o, _)| o.access == Access::Out).map(|(_, s)| s).sum::<i64>();
    let stream = (written * total) as usize >= STREAM_BYTES.get();
    let rank = dims.len();

    // The elements `first..last` of the run that starts at coordinate `row` of the outer dims.
    let run = |row: i64, first: i64, last: i64| {
        let mut raw: SmallVec<[RawTensor; 8]> = SmallVec::new();
        for (k, tensor) in tensors.iter().enumerate() {
            let strides = &strides[k];
            let (mut rest, mut offset) = (row, 0);
            for (d, dim) in outer.iter().enumerate().rev() {
                offset += rest % dim * strides[d];
                rest /= dim;
            }
            raw.push(RawTensor {
                ptr: tensor.ptr.wrapping_offset((offset * sizes[k]) as isize),
                dims: &raw const inner,
                strides: strides.last().map_or(&raw const ONE, |s| &raw const *s),
                pack: std::ptr::null(),
            });
        }
        // SAFETY: by the contract above; `first..last` are elements of the run.
        unsafe { kernel.run(&raw, stream, first, last) };
        if stream {
            fence();
        }
    };
    let (rows, grain) = (total / inner, GRAIN_ELEMENTS.get().max(1));
    if kernel.serial() || total as usize <= grain {
        for row in 0..rows {
            run(row, 0, inner);
        }
        return;
    }
    let run = Shared(&run);
    if rank <= 1 || inner as usize >= grain * 4 {
        // Whole blocks of lanes, so that only the last one has a tail.
        let units = (inner as usize).div_ceil(BLOCK);
        for row in 0..rows {
            parallel(units, grain / BLOCK, |first, last| {
                run.get()(row, (first * BLOCK) as i64, inner.min((last * BLOCK) as i64));
            });
        }
    } else {
        parallel(rows as usize, grain.div_ceil(inner as usize), |first, last| {
            for row in first..last {
                run.get()(row as i64, 0, inner);
            }
        });
    }
}

static ONE: i64 = 1;
/// Elements by which a run is divided.
const BLOCK: usize = 1024;

/// Drops dims of 1 and merges neighbouring dims that every operand walks through without a jump.
pub(crate) fn collapse(dims: &[i64], tensors: &[TensorArg<'_>]) -> (Dims, SmallVec<[Dims; 8]>) {
    let mut merged = Dims::new();
    let mut strides: SmallVec<[Dims; 8]> = tensors.iter().map(|_| Dims::new()).collect();
    for (d, &dim) in dims.iter().enumerate() {
        if dim == 1 {
            continue;
        }
        let joins = merged.last().is_some()
            && tensors.iter().zip(&strides).all(|(t, s)| s.last().is_some_and(|last| *last == t.strides[d] * dim));
        match merged.last_mut() {
            Some(last) if joins => *last *= dim,
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

/// Runs a program kernel over its grid, and what stands beside its programs.
///
/// # Safety
/// As for [`BoundKernel::launch_beside`].
pub(super) unsafe fn programs(
    kernel: &BoundKernel,
    tensors: &[TensorArg<'_>],
    beside: &[Beside<'_>],
    constants: Option<&Constants>,
) {
    let code = kernel.code(tensors);
    let grid = kernel.grid(tensors, code);
    let total = grid.iter().product::<i64>();
    if total <= 0 {
        return;
    }
    let operands = kernel.def().operands.as_slice();
    let mut raw: SmallVec<[RawTensor; 8]> = SmallVec::new();
    let (mut bytes, mut written) = (0, 0);
    for (operand, tensor) in operands.iter().zip(tensors) {
        let size = tensor.dims.iter().product::<i64>() as usize * kernel.size_of(operand.dtype);
        bytes += size;
        // What is read once more is not written past the cache.
        let is_read = beside.iter().any(|beside| beside.operand == raw.len());
        written += if operand.access == Access::Out && !is_read { size } else { 0 };
        let (dims, strides) = (tensor.dims.as_ptr(), tensor.strides.as_ptr());
        raw.push(RawTensor { ptr: tensor.ptr, dims, strides, pack: std::ptr::null() });
    }
    // Room for packed tiles, until the end of the launch.
    let packs = kernel.packs(tensors, code, grid, constants);
    if let Some(packs) = &packs {
        packs.give(&mut raw);
    }
    let order = packs.as_ref().map_or([0, 1, 2], |packs| packs.order);
    let least = if kernel.dense() { STREAM_PRODUCT_BYTES.get() } else { STREAM_BYTES.get() };
    let stream = written >= least;
    let args = LaunchArgs { tensors: raw.as_ptr(), params: kernel.params().as_ptr(), grid, order, stream };
    // SAFETY: by the contract above; these are instances of the grid.
    let run_programs = |args: &LaunchArgs, first, last| unsafe { kernel.run_programs(code, args, first, last) };
    let operand = |i: usize| (&operands[i], kernel.size_of(operands[i].dtype));
    let sides = (!beside.is_empty()).then(|| Sides::new(beside, operand, tensors, kernel.tile(code), grid));
    let shared = Shared(&(args, run_programs));
    let run = |first: usize, last: usize| {
        let (args, run_programs) = shared.get();
        match &sides {
            // SAFETY: by the contract above, and as the arguments have all operands.
            Some(sides) => unsafe { sides.run(args, operands.len(), first as i64, last as i64, run_programs) },
            None => run_programs(args, first as i64, last as i64),
        }
        if stream {
            fence();
        }
    };
    let total = total as usize;
    let grain = match (kernel.serial(), kernel.dense()) {
        (true, _) => total,
        (false, true) => 1,
        (false, false) => (GRAIN_BYTES.get() * total).div_ceil(bytes.max(1)).max(1),
    };
    // Programs of products share tiles.
    match kernel.dense() {
        true => parallel_in_order(total, grain, run),
        false => parallel(total, grain, run),
    }
}
