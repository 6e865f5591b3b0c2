//! Packing ahead of the first execution: what [`Model::warm_up`](super::Model::warm_up) does.
//!
//! Constants are packed by whoever multiplies by them first. Here that is a product with a few rows of zeros, on all threads,
//! so that no execution pays for it. Then the constants' own memory is given back where it is that of a file.

use smallvec::SmallVec;

use crate::driver::{Device, Tensor};
use crate::dtype::DType;
use crate::kernel::{BoundKernel, Constants, TensorArg, with_pool};
use crate::plan::error::EngineError;
use crate::plan::sizes::Table;
use crate::plan::{Action, Memory, Plan, PlannedStep};

/// The sizes of named dims for which kernels have their own forms of tiles: one row, and many.
const SIZES: [i64; 2] = [1, 64];
/// Operands beside the constants are no larger.
const MAX_BYTES: i64 = 64 << 20;

impl Plan {
    /// Packs what products read of constants.
    pub(super) fn pack(&self, pool: Option<&rayon_core::ThreadPool>) -> Result<(), EngineError> {
        for size in SIZES {
            // Sizes that cannot be are those of no execution.
            let Some(table) = self.sizes.with_all(size) else { continue };
            for step in &self.steps {
                match &step.action {
                    Action::Kernel(kernel, Some(constants)) => self.pack_step(step, kernel, constants, &table, pool)?,
                    Action::Fused(fused, Some(constants)) => {
                        self.pack_step(step, &fused.program, constants, &table, pool)?;
                    }
                    _ => {}
                }
            }
        }
        for step in &self.steps {
            if let Action::Regions(regions) = &step.action {
                regions.plans.iter().try_for_each(|region| region.plan.pack(pool))?;
            }
            if let Action::Kernel(_, Some(constants)) | Action::Fused(_, Some(constants)) = &step.action
                && constants.are_packed()
            {
                for arg in &self.args[step.args.clone()] {
                    if let Memory::Constant(index) = arg.memory {
                        self.constants[index as usize].release_pages();
                    }
                }
            }
        }
        Ok(())
    }

    fn pack_step(
        &self,
        step: &PlannedStep,
        kernel: &BoundKernel,
        constants: &Constants,
        table: &Table,
        pool: Option<&rayon_core::ThreadPool>,
    ) -> Result<(), EngineError> {
        let count = kernel.def().operands.as_slice().len();
        let args = &self.args[step.args.clone()][..count];
        if !step.params.is_empty() || !constants.have_room() {
            return Ok(());
        }
        let mut memory: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        let mut strides: SmallVec<[SmallVec<[i64; 4]>; 4]> = SmallVec::new();
        for arg in args {
            let dims = &table[arg.dims as usize..][..arg.rank as usize];
            let bytes = dims.iter().fold(i64::from(arg.element_size), |bytes, dim| bytes.saturating_mul((*dim).max(0)));
            let is_constant = matches!(arg.memory, Memory::Constant(_));
            if dims.iter().any(|dim| *dim < 1) || !is_constant && bytes > MAX_BYTES {
                return Ok(());
            }
            strides.push(match is_constant {
                true => table[arg.strides as usize..][..arg.rank as usize].into(),
                false => row_major(dims),
            });
            memory.push(match is_constant {
                true => None,
                false => {
                    let zeros = Tensor::zeros(DType::U8, [bytes as usize], &Device::cpu());
                    Some(zeros.map_err(|source| self.driver_error("warm_up", &Device::cpu(), None, source))?)
                }
            });
        }
        let tensors: SmallVec<[TensorArg<'_>; 8]> = args
            .iter()
            .zip(&memory)
            .zip(&strides)
            .map(|((arg, memory), strides)| {
                let offset = table[arg.offset as usize].wrapping_mul(i64::from(arg.element_size)) as isize;
                let ptr = match (arg.memory, memory) {
                    (_, Some(memory)) => memory.data_ptr().cast_mut(),
                    (Memory::Constant(index), None) => {
                        self.constants[index as usize].data_ptr().cast_mut().wrapping_offset(offset)
                    }
                    _ => std::ptr::null_mut(),
                };
                TensorArg { ptr, dims: &table[arg.dims as usize..][..arg.rank as usize], strides }
            })
            .collect();
        // SAFETY: the compiler made the arguments for this signature; constants lie where an execution has them and are only
        // read, as an execution does; every other operand has zeros of its own, which nobody else knows of.
        let launch = || unsafe { kernel.launch_fused(&tensors, &[], Some(constants)) };
        let launched = match pool {
            Some(pool) => with_pool(pool, launch),
            None => launch(),
        };
        launched.map_err(|source| EngineError::Kernel { op: self.op_of(step), source: source.into() })
    }
}

/// Row-major strides.
fn row_major(dims: &[i64]) -> SmallVec<[i64; 4]> {
    let mut strides: SmallVec<[i64; 4]> = SmallVec::from_elem(1, dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}
