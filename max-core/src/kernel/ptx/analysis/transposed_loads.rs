//! Transposed tiles that go through shared memory on their way to registers.
//!
//! It exists so that memory is read along one axis and written along the other, both in whole vectors: a thread loads
//! neighbours of a column, which lie side by side in memory, and stores neighbours of a row.

use super::super::BLOCK_SIZE;
use super::super::memory::shared_tile::VECTOR_BYTES;
use super::layout::Layout;
use super::plan::{Plan, shape};
use crate::kernel::ir::{Inst, Kernel, Op};

/// The most neighbours of a row that a thread has.
const MAX_NEIGHBOURS: u32 = 4;

impl Plan {
    /// Finds the tiles that are loaded along their columns, and lays them out in runs of rows.
    pub fn exchange_transposed(&mut self, kernel: &Kernel, loads: &[&Inst]) {
        for inst in loads {
            let Op::TileLoad { operand, transpose: true, .. } = inst.op else { continue };
            let (rows, columns) = shape(kernel, inst.results[0]);
            let size = kernel.operands[operand as usize].dtype.size_in_bytes() as u32;
            // There is a vector of the smallest elements along both axes, and a thread for each.
            let divides = |n: u32| n.is_power_of_two() && (VECTOR_BYTES..=BLOCK_SIZE).contains(&n);
            if divides(rows) && divides(columns) {
                let count = (VECTOR_BYTES / size).min(MAX_NEIGHBOURS);
                let stored = Layout::runs(rows, columns, columns / count, count, false);
                self.layouts.entry((rows, columns)).or_insert(stored);
                self.exchanged.insert(inst.results[0]);
            }
        }
    }
}
