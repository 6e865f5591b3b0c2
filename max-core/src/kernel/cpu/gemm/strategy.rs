//! How a `dot` is computed: one table, which binding asks of the IR's tiles and running of a kernel's types, so that what is
//! packed is what is read.

use super::super::isa::Level;
use super::super::pack;
use super::super::pack::operand_types::OperandTypes;
use crate::dtype::DType;
use crate::kernel::lang::compute_dtype;

/// A `dot` of tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dot {
    /// What the operands hold.
    pub lhs: DType,
    pub rhs: DType,
    /// What is accumulated in.
    pub accumulator: DType,
    /// Whether the left operand is read from memory, and not computed. The right one always is.
    pub lhs_in_memory: bool,
    /// Rows, columns and steps of the tiles.
    pub shape: [usize; 3],
}

/// How a `dot` is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::cpu) enum Strategy {
    /// By the [microkernel](super::microkernel) of floats, over panels or in place.
    Panels,
    /// By that of integers, over panels of [pairs](pack::is_packed_in_pairs).
    Pairs,
    /// What is not `f32` is [converted](pack::convert), and then multiplied in panels.
    Converted,
    /// By plain loops.
    Loops,
}

impl Dot {
    /// What a matrix unit multiplies, if there are units for these dtypes and blocks divide the tiles. A computed left
    /// operand has to have the values of `bf16`.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn blocks(&self) -> Option<OperandTypes> {
        let types = OperandTypes::of(self.lhs, self.rhs, self.accumulator)?;
        let [m, n, k] = self.shape;
        let is_whole = m.is_multiple_of(32) && n.is_multiple_of(32) && k.is_multiple_of(types.per_line());
        (is_whole && (self.lhs_in_memory || types == OperandTypes::Bf16)).then_some(types)
    }

    /// Whether there are.
    pub(in crate::kernel) fn has_blocks(&self) -> bool {
        self.blocks().is_some()
    }

    /// The same at a level: those with AVX-512 have the instructions.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn blocks_at<L: Level>(&self) -> Option<OperandTypes> {
        if cfg!(target_arch = "x86_64") && L::AVX512 { self.blocks() } else { None }
    }

    /// How it is computed at a level where no matrix unit does that. The first row that fits:
    ///
    /// | operands | accumulators | strategy |
    /// | --- | --- | --- |
    /// | computed in the accumulators' dtype | `f32` or `f64`, whole vectors of columns | [`Strategy::Panels`] |
    /// | 8-bit integers | `i32` | [`Strategy::Pairs`] |
    /// | others | `f32`, whole vectors of columns | [`Strategy::Converted`] |
    /// | any | any | [`Strategy::Loops`] |
    #[inline(always)]
    pub(in crate::kernel::cpu) fn strategy<L: Level>(&self) -> Strategy {
        let [_, columns, _] = self.shape;
        let lanes = match self.accumulator {
            DType::F32 => Some(if L::AVX512 { 16 } else { 8 }),
            DType::F64 => Some(if L::AVX512 { 8 } else { 4 }),
            _ => None,
        };
        let in_vectors = lanes.is_some_and(|lanes| columns.is_multiple_of(lanes));
        let is_computed_so = |dtype| compute_dtype(dtype) == self.accumulator;
        let in_pairs = |dtype| pack::is_packed_in_pairs(dtype);
        if !cfg!(target_arch = "x86_64") || !L::AVX2 {
            Strategy::Loops
        } else if in_vectors && is_computed_so(self.lhs) && is_computed_so(self.rhs) {
            Strategy::Panels
        } else if self.accumulator == DType::I32 && self.lhs_in_memory && in_pairs(self.lhs) && in_pairs(self.rhs) {
            Strategy::Pairs
        } else if in_vectors && self.accumulator == DType::F32 {
            Strategy::Converted
        } else {
            Strategy::Loops
        }
    }
}
