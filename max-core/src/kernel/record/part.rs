//! Operands while a kernel is recorded, and the parts of them: what the language's index of an element is as the operand's.

use super::recorder::{const_i64, effect, element, scalar};
use crate::dtype::DType;
use crate::kernel::ir::{self, Op, Value};

/// What indexes a dimension of the operand that a [`RecTensor`] is a part of.
#[derive(Clone, Copy, Debug)]
enum Slot {
    /// A value.
    Fixed(Value),
    /// The part's own index of that number.
    Free(u8),
}

/// Which indices of a slice of an output are its own.
#[derive(Clone, Copy, Debug)]
enum Own {
    /// All that it has, which are so many.
    All(Value),
    /// Those of a slice of a slice, from one to another.
    Part(Value, Value),
}

/// The highest rank of an operand.
const MAX_RANK: usize = 6;

/// A part of an operand.
#[derive(Clone, Copy, Debug)]
pub struct RecTensor {
    pub(super) operand: u32,
    /// The operand's rank; 0 for an operand of an elementwise kernel.
    rank: u8,
    slots: [Slot; MAX_RANK],
    /// First element and length of a slice of the last free dimension.
    slice: Option<(Value, Value)>,
    /// The last index, if the part is read from its end.
    reverse: Option<Value>,
    /// Of a slice of an output, what is inside: nothing else that the operand has.
    own: Option<Own>,
    pub(super) pad: Option<Value>,
}

/// An operation on two indices.
#[track_caller]
fn index_op(op: ir::BinaryOp, a: Value, b: Value) -> Value {
    scalar(Op::Binary(op, a, b), DType::I64)
}

impl RecTensor {
    pub(super) fn whole(operand: u32, rank: usize) -> Self {
        RecTensor {
            operand,
            rank: rank as u8,
            slots: std::array::from_fn(|d| Slot::Free(d as u8)),
            slice: None,
            reverse: None,
            own: None,
            pad: None,
        }
    }

    /// The operand's index for an index of the part, and one that no operand has for what is not the part's own.
    #[track_caller]
    pub(super) fn own_index(&self, index: &[Value]) -> Vec<Value> {
        let mut all = self.index(index);
        if let (Some(own), Some(last)) = (self.own, all.last_mut()) {
            let (from, end) = match own {
                Own::All(n) => (const_i64(0), n),
                Own::Part(from, end) => (from, end),
            };
            let above = scalar(Op::Cmp(ir::CmpOp::Ge, index[0], from), DType::Bool);
            let below = scalar(Op::Cmp(ir::CmpOp::Lt, index[0], end), DType::Bool);
            let inside = scalar(Op::Binary(ir::BinaryOp::And, above, below), DType::Bool);
            *last = scalar(Op::Select(inside, *last, const_i64(-1)), DType::I64);
        }
        all
    }

    /// A slice of an output: nothing outside of it is inside.
    #[track_caller]
    pub(super) fn own_slice(self, lo: Value, n: Value) -> Self {
        let own = match self.own {
            None => Own::All(n),
            Some(own) => {
                let (from, end) = match own {
                    Own::All(n) => (const_i64(0), n),
                    Own::Part(from, end) => (from, end),
                };
                let count = index_op(ir::BinaryOp::Sub, end, from);
                let from = index_op(ir::BinaryOp::Sub, from, lo);
                let end = index_op(ir::BinaryOp::Add, from, count);
                // What would be beyond all indices is beyond the slice.
                let wraps = scalar(Op::Cmp(ir::CmpOp::Lt, end, from), DType::Bool);
                let end = scalar(Op::Select(wraps, n, end), DType::I64);
                let (from, end) =
                    (index_op(ir::BinaryOp::Max, from, const_i64(0)), index_op(ir::BinaryOp::Min, end, n));
                Own::Part(from, end)
            }
        };
        RecTensor { own: Some(own), ..self.slice(lo, n) }
    }

    /// The operand's index for an index of the part.
    #[track_caller]
    pub(super) fn index(&self, index: &[Value]) -> Vec<Value> {
        let mut out = Vec::with_capacity(self.rank as usize);
        for slot in &self.slots[..self.rank as usize] {
            out.push(match *slot {
                Slot::Fixed(v) => v,
                Slot::Free(d) => {
                    let mut i = index[d as usize];
                    if let Some(last) = self.reverse {
                        i = scalar(Op::Binary(ir::BinaryOp::Sub, last, i), DType::I64);
                    }
                    if let Some((lo, _)) = self.slice {
                        i = scalar(Op::Binary(ir::BinaryOp::Add, lo, i), DType::I64);
                    }
                    i
                }
            });
        }
        out
    }

    /// The coordinates of the leading dimensions, for a part of rank 2.
    pub(super) fn batch(&self) -> Vec<Value> {
        self.slots[..self.rank as usize]
            .iter()
            .filter_map(|slot| match slot {
                Slot::Fixed(v) => Some(*v),
                Slot::Free(_) => None,
            })
            .collect()
    }

    pub(super) fn select(mut self, axis: u8, i: Value) -> Self {
        for slot in &mut self.slots[..self.rank as usize] {
            match slot {
                Slot::Free(d) if *d == axis => *slot = Slot::Fixed(i),
                Slot::Free(d) if *d > axis => *d -= 1,
                _ => {}
            }
        }
        self
    }

    #[track_caller]
    pub(super) fn dim(&self, axis: usize) -> Value {
        if let Some((_, n)) = self.slice {
            return n;
        }
        let free = |slot: &Slot| matches!(slot, Slot::Free(d) if *d as usize == axis);
        match self.slots[..self.rank as usize].iter().position(free) {
            Some(d) => scalar(Op::Dim { operand: self.operand, axis: d as u32 }, DType::I64),
            None => const_i64(1),
        }
    }

    #[track_caller]
    pub(super) fn slice(mut self, lo: Value, n: Value) -> Self {
        match self.reverse {
            // From the end: the last index moves, the start stays.
            Some(last) => {
                self.reverse = Some(scalar(Op::Binary(ir::BinaryOp::Sub, last, lo), DType::I64));
                self.slice = Some((self.slice.map_or_else(|| const_i64(0), |(lo, _)| lo), n));
            }
            None => {
                let lo = match self.slice {
                    Some((outer, _)) => scalar(Op::Binary(ir::BinaryOp::Add, outer, lo), DType::I64),
                    None => lo,
                };
                self.slice = Some((lo, n));
            }
        }
        self
    }

    #[track_caller]
    pub(super) fn reversed(mut self) -> Self {
        let (n, one) = (self.dim(0), const_i64(1));
        // A slice of fewer than no elements has none.
        let n = match self.slice {
            Some(_) => index_op(ir::BinaryOp::Max, n, const_i64(0)),
            None => n,
        };
        if let Some(Own::Part(from, end)) = self.own {
            self.own = Some(Own::Part(index_op(ir::BinaryOp::Sub, n, end), index_op(ir::BinaryOp::Sub, n, from)));
        }
        let last = scalar(Op::Binary(ir::BinaryOp::Sub, n, one), DType::I64);
        self.reverse = match self.reverse {
            None => Some(last),
            // Twice reversed: `was - (last - i)`, which is `i` unless the part was sliced between.
            Some(was) => {
                if let Some((lo, _)) = &mut self.slice {
                    let skipped = scalar(Op::Binary(ir::BinaryOp::Sub, was, last), DType::I64);
                    *lo = scalar(Op::Binary(ir::BinaryOp::Add, *lo, skipped), DType::I64);
                }
                None
            }
        };
        self
    }

    #[track_caller]
    pub(super) fn load(&self, index: &[Value], dtype: DType) -> Value {
        if self.rank == 0 {
            return element(self.operand).unwrap_or_else(|| scalar(Op::Const(0), dtype));
        }
        let index = self.own_index(index);
        scalar(Op::Load { operand: self.operand, index, pad: self.pad }, dtype)
    }

    #[track_caller]
    pub(super) fn store(&self, index: &[Value], value: Value, scatter: bool) {
        // Who writes the whole of a slice names none but its own indices.
        let index = if let Some(Own::Part(..)) = self.own { self.own_index(index) } else { self.index(index) };
        effect(Op::Store { operand: self.operand, index, value, scatter });
    }
}
