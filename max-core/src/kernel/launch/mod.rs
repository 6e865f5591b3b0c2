//! Launches on the CPU: work partitioning of elements and program instances over threads.
//!
//! A launch also packs shared operands ([`packing`]), and runs fused prologues and epilogues ([`fusion`]).

pub(super) mod bound;
pub(super) mod fusion;
pub(super) mod packing;
pub(super) mod stack;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;

use self::bound::BoundKernel;
use self::fusion::{FusedSide, FusedSides};
use self::packing::Constants;
use self::stack::threads_for;
use super::abi::{Access, KernelKind, LaunchArgs, OperandDef, RawTensor};
use super::arg::{TensorArg, collapse, num_elements};
use super::cpu::transpose::{LINE, fence};
use super::cpu::{InLaunch, LONG_ROW, programs_together, take_out_of_memory, with_idle_threads};
use super::error::KernelError;
use super::threads::{Shared, num_threads, parallel, parallel_over_tiles};
use super::tuning::{GRAIN_BYTES, GRAIN_ELEMENTS, STREAM_BYTES, STREAM_PRODUCT_BYTES};

/// The number of the next launch that has one.
static NEXT_LAUNCH: AtomicU64 = AtomicU64::new(1);

impl BoundKernel {
    /// Runs the kernel over all of its grid or elements, on as many threads as the work is worth.
    ///
    /// Of an elementwise kernel all operands have the same dims (a broadcast one strides of 0).
    ///
    /// # Errors
    /// When there is no memory for rows that its programs materialize. What was written then means nothing.
    ///
    /// # Safety
    /// There must be one argument for each operand of the definition, of its dtype and rank; what they describe must
    /// be readable, and for `Out` and `InOut` operands writable, by this call alone, and no written element may be
    /// described twice.
    pub unsafe fn launch(&self, tensors: &[TensorArg<'_>]) -> Result<(), KernelError> {
        // SAFETY: by the contract above.
        unsafe { self.launch_fused(tensors, &[], None) }
    }

    /// As [`launch`](Self::launch), of a program kernel with fused prologues and epilogues, and with the packed
    /// tiles of constant operands.
    ///
    /// # Safety
    /// As there, where operands that lie inside need no memory; the table must name the parts of all operands that
    /// something is done beside. What the constant operands describe must not have changed since they were first
    /// launched with.
    pub(crate) unsafe fn launch_fused(
        &self,
        tensors: &[TensorArg<'_>],
        beside: &[FusedSide<'_>],
        constants: Option<&Constants>,
    ) -> Result<(), KernelError> {
        let is_inside = |index: usize| beside.iter().any(|beside| beside.inside && beside.operand == index);
        for (index, (operand, tensor)) in self.def().operands.as_slice().iter().zip(tensors).enumerate() {
            let tile = || self.tile(self.code(tensors));
            if operand.access == Access::Out && !is_inside(index) && !self.def().writes_all(index, tensors, tile) {
                // SAFETY: results are contiguous and ours to write.
                unsafe { zero(tensor, self.size_of(operand.dtype)) };
            }
        }
        match self.def().kind {
            // SAFETY: by the contract above.
            KernelKind::Elementwise => unsafe { elementwise(self, tensors) },
            // SAFETY: by the contract above.
            KernelKind::Program => unsafe { programs(self, tensors, beside, constants)? },
        }
        Ok(())
    }
}

/// Fills a contiguous tensor with zeros.
///
/// # Safety
/// Its memory must be writable by this call alone.
unsafe fn zero(tensor: &TensorArg<'_>, element_size: usize) {
    // SAFETY: by the contract above; sizes were checked when the memory was allocated.
    unsafe { std::ptr::write_bytes(tensor.ptr, 0, num_elements(tensor.dims) * element_size) };
}

/// Runs an elementwise kernel over operands of the same dims.
///
/// # Safety
/// As for [`BoundKernel::launch`].
unsafe fn elementwise(kernel: &BoundKernel, tensors: &[TensorArg<'_>]) {
    let Some(dims) = tensors.first().map(|t| t.dims) else { return };
    let total = num_elements(dims) as i64;
    if total == 0 {
        return;
    }
    let (dims, strides) = collapse(dims, tensors);
    let (inner, outer) = match dims.split_last() {
        Some((inner, outer)) => (*inner, outer),
        None => (1, &[][..]),
    };
    let operands = kernel.def().operands.as_slice();
    let sizes: SmallVec<[i64; 8]> = operands.iter().map(|o| kernel.size_of(o.dtype) as i64).collect();
    let bytes = strides.iter().zip(&sizes).map(|(strides, size)| distinct_bytes(&dims, strides, *size as usize));
    let stream = bytes.fold(0, usize::saturating_add) >= STREAM_BYTES.get()
        && (0..operands.len())
            .filter(|i| operands[*i].access == Access::Out)
            .all(|i| rows_begin_at_lines(tensors[i].ptr, &strides[i], sizes[i] as usize));
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
    let (rows, most, cost) = (total / inner, GRAIN_ELEMENTS.get().max(1), kernel.cost());
    let grain = Ord::max(cost.grain(most), BLOCK);
    if kernel.serial() || total as usize <= grain {
        let all = || (0..rows).for_each(|row| run(row, 0, inner));
        return if is_measured(total as usize, most) { cost.measure(total as usize, all) } else { all() };
    }
    // SAFETY: elements are written once, by the contract above.
    let run = unsafe { Shared::new(&run) };
    if rank <= 1 || inner as usize >= grain * 4 {
        // Whole blocks of lanes, so that only the last one has a tail.
        let units = (inner as usize).div_ceil(BLOCK);
        for row in 0..rows {
            parallel(units, grain / BLOCK, |first, last| {
                let (first, last) = ((first * BLOCK) as i64, inner.min((last * BLOCK) as i64));
                cost.measure((last - first) as usize, || run.get()(row, first, last));
            });
        }
    } else {
        parallel(rows as usize, grain.div_ceil(inner as usize), |first, last| {
            cost.measure((last - first) * inner as usize, || {
                (first..last).for_each(|row| run.get()(row as i64, 0, inner));
            });
        });
    }
}

/// Bytes of an operand's elements, of which those that are repeated count once.
pub(crate) fn distinct_bytes(dims: &[i64], strides: &[i64], element_size: usize) -> usize {
    let dims = dims.iter().zip(strides).filter(|(_, stride)| **stride != 0);
    dims.fold(element_size, |bytes, (dim, _)| bytes.saturating_mul(*dim as usize))
}

/// Whether every row of the last axis begins at a line of the cache. Where few do, non-temporal stores of those that do take several
/// times as long as all others.
pub(crate) fn rows_begin_at_lines(ptr: *mut u8, strides: &[i64], element_size: usize) -> bool {
    let outer = strides.split_last().map_or(&[][..], |(_, outer)| outer);
    let mut begin =
        outer.iter().map(|stride| (stride.unsigned_abs() as usize).wrapping_mul(element_size)).chain([ptr.addr()]);
    begin.all(|at| at.is_multiple_of(LINE))
}

/// Whether so much work is measured, of which `most` is worth another thread whatever it costs: it takes longer than to look at a clock.
pub(crate) fn is_measured(units: usize, most: usize) -> bool {
    units >= most / 8
}

static ONE: i64 = 1;
/// Elements by which a run is divided.
const BLOCK: usize = 1024;

/// Grains that are worth a second thread where a matrix unit multiplies: packing takes as long as that, and what one core packs and
/// another one reads is moved between their caches (`matmul_bf16_64x512x64` takes 8 us on one thread, and 18 on two).
const GRAINS_BY_UNIT: usize = 12;
/// As many bytes of operands are, until it is known what it takes.
const BYTES_BY_UNIT: usize = 512 << 10;

/// Runs a program kernel over its grid, and its fused prologues and epilogues.
///
/// # Errors
/// When there is no memory for rows that programs materialize.
///
/// # Safety
/// As for [`BoundKernel::launch_fused`].
unsafe fn programs(
    kernel: &BoundKernel,
    tensors: &[TensorArg<'_>],
    beside: &[FusedSide<'_>],
    constants: Option<&Constants>,
) -> Result<(), KernelError> {
    let code = kernel.code(tensors);
    let grid = kernel.grid(tensors, code)?;
    let total = num_elements(&grid);
    if total == 0 {
        return Ok(());
    }
    let operands = kernel.def().operands.as_slice();
    let mut raw: SmallVec<[RawTensor; 8]> = SmallVec::new();
    let (mut bytes, mut written, mut at_lines) = (0_usize, 0_usize, true);
    let size_of = |operand: &OperandDef, tensor: &TensorArg<'_>| {
        num_elements(tensor.dims).saturating_mul(kernel.size_of(operand.dtype))
    };
    for (operand, tensor) in operands.iter().zip(tensors) {
        let size = size_of(operand, tensor);
        bytes = bytes.saturating_add(size);
        // What is read once more is not written by non-temporal stores.
        let is_read = beside.iter().any(|beside| beside.operand == raw.len());
        if operand.access == Access::Out && !is_read {
            written = written.saturating_add(size);
            at_lines &= rows_begin_at_lines(tensor.ptr, tensor.strides, kernel.size_of(operand.dtype));
        }
        let (dims, strides) = (tensor.dims.as_ptr(), tensor.strides.as_ptr());
        raw.push(RawTensor { ptr: tensor.ptr, dims, strides, pack: std::ptr::null() });
    }
    // Room for packed tiles, until the end of the launch.
    let packs = kernel.packs(tensors, code, grid, constants);
    if let Some(packs) = &packs {
        packs.attach(&mut raw);
    }
    let order = packs.as_ref().map_or([0, 1, 2], |packs| packs.order);
    let stream = match kernel.multiplies() {
        true => written >= STREAM_PRODUCT_BYTES.get(),
        false if bytes < STREAM_BYTES.get() || !at_lines => false,
        false => {
            // Of a table, no more is read than results have.
            let read = operands.iter().zip(tensors).filter(|(operand, _)| operand.access != Access::Out);
            let read = read.map(|(operand, tensor)| size_of(operand, tensor).min(written));
            read.fold(written, usize::saturating_add) >= STREAM_BYTES.get()
        }
    };
    let args = LaunchArgs { tensors: raw.as_ptr(), params: kernel.params().as_ptr(), grid, order, stream };
    // SAFETY: by the contract above; these are instances of the grid.
    let run_programs = |args: &LaunchArgs, first, last| unsafe { kernel.run_programs(code, args, first, last) };
    let operand = |i: usize| (&operands[i], kernel.size_of(operands[i].dtype));
    let sides = (!beside.is_empty()).then(|| FusedSides::new(beside, operand, tensors, kernel.tile(code), grid));
    let work = (args, run_programs);
    // SAFETY: instances of one launch write disjoint elements, by the contract above.
    let shared = unsafe { Shared::new(&work) };
    let missing = AtomicUsize::new(0);
    let (cost, most) = (kernel.cost(), GRAIN_BYTES.get());
    // Of fewer bytes no row is long.
    let leaves_idle = bytes >= LONG_ROW as usize && total < num_threads();
    let each = |units: usize, programs: usize| units.saturating_mul(programs).div_ceil(total);
    // What programs make of operands serves the next ones, unless a prologue writes these for each.
    let has_prologue = beside.iter().any(|beside| beside.before);
    let launch = if kernel.multiplies() && !has_prologue { NEXT_LAUNCH.fetch_add(1, Ordering::Relaxed) } else { 0 };
    let run = |first: usize, last: usize| {
        let (args, run_programs) = shared.get();
        let work = || match &sides {
            // SAFETY: by the contract above, and as the arguments have all operands.
            Some(sides) => unsafe { sides.run(args, operands.len(), first as i64, last as i64, run_programs) },
            None => run_programs(args, first as i64, last as i64),
        };
        let work = || if leaves_idle { with_idle_threads(work) } else { work() };
        match kernel.multiplies() {
            true => {
                let _entered = InLaunch::enter(launch);
                cost.measure(last - first, work);
            }
            false if is_measured(bytes, most) => cost.measure(each(bytes, last - first), work),
            false => work(),
        }
        if stream {
            fence();
        }
        if let Some(bytes) = take_out_of_memory() {
            missing.fetch_max(bytes, Ordering::Relaxed);
        }
    };
    let by_unit = packs.as_ref().is_some_and(|packs| packs.by_unit);
    let is_worth = !by_unit || cost.has(total, GRAINS_BY_UNIT).unwrap_or(bytes >= BYTES_BY_UNIT);
    let grain = match (kernel.serial(), kernel.multiplies()) {
        (true, _) => total,
        // Enough of them for every thread, unless all together are not worth a second one.
        (false, true) if total < 2 * cost.grain(1) || !is_worth => total,
        (false, true) => Ord::min(cost.grain(1), total / (4 * num_threads()).max(1)).max(1),
        (false, false) => cost.grain(most).saturating_mul(total).div_ceil(bytes.max(1)).max(1),
    };
    let together = programs_together(&grid, tensors.iter().map(|tensor| tensor.dims));
    let all = || match kernel.multiplies() {
        true => parallel_over_tiles(total, grain, run),
        false => {
            let run = |first, last| run(first * together, Ord::min(last * together, total));
            parallel(total.div_ceil(together), grain.div_ceil(together), run);
        }
    };
    match kernel.large_tiles() {
        Some(tiles) => threads_for(kernel.def().name.as_str(), tiles)?.install(all),
        None => all(),
    }
    match missing.into_inner() {
        0 => Ok(()),
        bytes => Err(KernelError::Memory { kernel: kernel.def().name.as_str(), bytes }),
    }
}
