//! How the accumulators of `dot`s lie that threads make by fused multiply-adds.
//!
//! It exists because such a `dot` is bound by issue slots: a load of shared memory for each operand and step takes as many as the
//! products do. Threads that hold neighbouring columns read a right operand of row-major order in vectors.

use super::super::BLOCK_SIZE;
use super::super::memory::shared_tile::VECTOR_BYTES;
use super::super::tile::ops::UNROLL;
use super::layout::{Kind, Layout};
use super::plan::{Plan, Uses, shape};
use crate::kernel::ir::{Inst, Kernel, Op, Value};

/// The most threads side by side that hold neighbouring columns.
const THREADS: u32 = 16;

impl Plan {
    /// Lays out accumulators of a shape in runs of columns, if all `dot`s of it take both operands from shared memory, and the
    /// right one row by row.
    pub(super) fn lay_out_fma(&mut self, kernel: &Kernel, uses: &Uses<'_>) {
        for inst in &uses.dots {
            let Op::Dot(_, b, _) = inst.op else { continue };
            let (rows, columns) = shape(kernel, inst.results[0]);
            let is_shape = |v: &Value| shape(kernel, *v) == (rows, columns);
            let suits = |dot: &&Inst| {
                let Op::Dot(a, b, _) = dot.op else { return false };
                match is_shape(&dot.results[0]) {
                    true => {
                        let by_tensor_cores = self.dot_operand_dtypes(dot.results[0]).is_some();
                        let right = self.smem_tile(b).is_some_and(|tile| !tile.transposed);
                        right
                            && self.smem_tile(a).is_some()
                            && !by_tensor_cores
                            && self.sliced_k(dot.results[0]).is_none()
                    }
                    // Operands in registers lie as they are passed on.
                    false => ![a, b].iter().any(|v| is_shape(v) && self.smem_tile(*v).is_none()),
                }
            };
            let Some(right) = self.smem_tile(b).filter(|_| uses.dots.iter().all(suits)) else { continue };
            let count = VECTOR_BYTES / right.tile.size;
            let threads = (columns / count).min(THREADS);
            let divides = threads.is_power_of_two() && columns.is_multiple_of(threads * count);
            if divides && rows.is_multiple_of(BLOCK_SIZE / threads) {
                let layout = Layout::runs(rows, columns, threads, count, false);
                self.layouts.entry((rows, columns)).or_insert(layout);
            }
        }
    }

    /// Registers that a `dot` takes beside its accumulators: for the operands of the steps that are read at a time, where these lie
    /// in runs, and for sums that are promoted.
    pub(super) fn dot_scratch(&self, kernel: &Kernel, dot: &Inst) -> usize {
        let (rows, columns) = shape(kernel, dot.results[0]);
        let layout = self.layout(rows, columns);
        match layout.kind {
            _ if self.promotes(dot.results[0]) => layout.registers(),
            Kind::Runs { .. } => (UNROLL * (layout.own_rows() + layout.own_columns())) as usize,
            Kind::Cyclic { .. } | Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => 0,
        }
    }
}
