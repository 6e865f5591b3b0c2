//! Loops that count: what their steps are, and whether the index can wrap.
//!
//! A step below 1 counts as 1, and an index that would wrap ends the loop. Most loops need code for neither: their step is a
//! positive constant, and they end at a dimension of an operand.

use super::LARGEST_DIM;
use super::emitter::Gen;
use super::machine::{Class, Reg};
use crate::kernel::ir::{BinaryOp, Block, Op, Value};

/// How the index of a loop moves on.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// The loop ends there.
    pub hi: Reg,
    by: Reg,
    /// Whether an index below `hi` and a step may be more than there is.
    wraps: bool,
}

/// What makes a value in a block, or in one inside of it; none makes the parameters of blocks.
fn maker(block: &Block, value: Value) -> Option<&Op> {
    block.insts.iter().find_map(|inst| match inst.results.contains(&value) && inst.op.blocks().is_empty() {
        true => Some(&inst.op),
        false => inst.op.blocks().into_iter().find_map(|(inner, _)| maker(inner, value)),
    })
}

impl Gen<'_> {
    /// The first index of a loop from `lo` to `hi`, and its steps.
    pub fn steps(&mut self, [lo, hi, step]: [Value; 3]) -> (Reg, Steps) {
        let body = &self.kernel.body;
        let constant = match maker(body, step) {
            Some(Op::Const(step)) => Some(*step as i64).filter(|step| *step > 0),
            _ => None,
        };
        let wraps = match constant {
            Some(1) => false,
            Some(step) => step > i64::MAX - LARGEST_DIM || !is_within_dims(body, hi),
            None => true,
        };
        let (lo, hi, mut by) = (self.get(lo), self.get(hi), self.get(step));
        if constant.is_none() {
            by = self.op2(Class::B64, "max.s64", by, 1);
        }
        (lo, Steps { hi, by, wraps })
    }

    /// Moves a loop's index on: one step, or to the end where that would wrap.
    pub fn step(&mut self, index: Reg, Steps { hi, by, wraps }: Steps) {
        if !wraps {
            return emit!(self, "add.s64", index, index, by);
        }
        let next = self.op2(Class::B64, "add.s64", index, by);
        let wrapped = self.op2(Class::Pred, "setp.lt.s64", next, index);
        emit!(self, "selp.b64", index, hi, next, wrapped);
    }
}

/// Whether a value is at most as large as the largest dimension.
fn is_within_dims(body: &Block, value: Value) -> bool {
    match maker(body, value) {
        Some(Op::Dim { .. }) => true,
        Some(Op::Const(bits)) => *bits as i64 <= LARGEST_DIM,
        Some(Op::Binary(BinaryOp::Min, a, b)) => is_within_dims(body, *a) || is_within_dims(body, *b),
        _ => false,
    }
}
