//! Builds a [`Kernel`] instruction by instruction: what the recorder and the parser share.
//!
//! A block is opened, filled and closed; the closed block becomes a field of the instruction that holds it:
//!
//! ```
//! # use max_core as max;
//! use max::dtype::DType;
//! use max::kernel::ir::{BinaryOp, Builder, Kernel, Loc, Op, Type};
//! use max::kernel::abi::KernelKind;
//!
//! let (i64, at) = (Type::Scalar(DType::I64), Loc::default());
//! let mut b = Builder::new(Kernel::new("count", KernelKind::Program));
//! let len = b.push(Op::Const(8), &[i64], at)[0];
//! let index = b.value(i64, at);
//! b.open_block();
//! b.push(Op::Binary(BinaryOp::Add, index, len), &[i64], at);
//! let body = b.close_block(vec![]);
//! b.push(Op::Lanes { len, index, body }, &[], at);
//! assert_eq!(b.finish(vec![]).body.insts.len(), 2);
//! ```

use super::{Block, Inst, Kernel, Loc, Op, Type, Value, ValueDef};
use crate::dtype::DType;

/// A kernel under construction.
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    /// The instructions of each open block, the kernel's body first.
    open: Vec<Vec<Inst>>,
}

impl Builder {
    /// Starts from a kernel's header: its name, kind, operands, parameters and grid. Its body must be empty.
    pub fn new(header: Kernel) -> Self {
        debug_assert!(header.body.insts.is_empty(), "the body is what a builder makes");
        Builder { kernel: header, open: vec![Vec::new()] }
    }

    /// The kernel so far; its body is empty until [`Builder::finish`].
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The header, to add files, operands, parameters or elements while building.
    pub fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    /// A new value: a block's parameter, or a result for [`Builder::push_into`].
    pub fn value(&mut self, ty: Type, loc: Loc) -> Value {
        let value = Value(self.kernel.values.len() as u32);
        self.kernel.values.push(ValueDef { ty, loc });
        value
    }

    /// The type of a value made by this builder.
    pub fn ty(&self, value: Value) -> Type {
        self.kernel.ty(value)
    }

    /// The instruction of an open block that defines a value: `None` of a block's parameter.
    pub fn definition(&self, value: Value) -> Option<&Op> {
        let mut insts = self.open.iter().rev().flat_map(|block| block.iter().rev());
        insts.find(|inst| inst.results.contains(&value)).map(|inst| &inst.op)
    }

    /// What a comparison of constants gives: `None` where it is not known before the kernel runs.
    pub fn decided(&self, condition: Value) -> Option<bool> {
        let Some(Op::Cmp(op, a, b)) = self.definition(condition) else { return None };
        let constant = |v: &Value| match self.definition(*v) {
            Some(Op::Const(bits)) if self.ty(*v) == Type::Scalar(DType::I64) => Some(*bits as i64),
            _ => None,
        };
        Some(op.holds(&constant(a)?, &constant(b)?))
    }

    /// Appends an instruction to the innermost open block and gives its results, new values of `types`.
    pub fn push(&mut self, op: Op, types: &[Type], loc: Loc) -> Vec<Value> {
        let results: Vec<Value> = types.iter().map(|&ty| self.value(ty, loc)).collect();
        self.push_into(op, results.clone(), loc);
        results
    }

    /// Appends an instruction whose results were made before by [`Builder::value`].
    pub fn push_into(&mut self, op: Op, results: Vec<Value>, loc: Loc) {
        let inst = Inst { op, results, loc };
        match self.open.last_mut() {
            Some(block) => block.push(inst),
            None => unreachable!("the kernel's body stays open until `finish`"),
        }
    }

    /// Opens a block: instructions go there until it is closed.
    pub fn open_block(&mut self) {
        self.open.push(Vec::new());
    }

    /// Closes the innermost open block.
    ///
    /// # Panics
    /// Without a block opened by [`Builder::open_block`].
    #[track_caller]
    pub fn close_block(&mut self, yields: Vec<Value>) -> Block {
        assert!(self.open.len() > 1, "close_block without open_block");
        Block { insts: self.open.pop().unwrap_or_default(), yields }
    }

    /// Closes the kernel's body, which yields `yields`.
    ///
    /// # Panics
    /// If a block is still open.
    #[track_caller]
    pub fn finish(mut self, yields: Vec<Value>) -> Kernel {
        assert!(self.open.len() == 1, "{} blocks are still open", self.open.len() - 1);
        self.kernel.body = Block { insts: self.open.pop().unwrap_or_default(), yields };
        self.kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::abi::KernelKind;
    use crate::kernel::ir::CmpOp;

    const I64: Type = Type::Scalar(DType::I64);

    fn builder() -> Builder {
        Builder::new(Kernel::new("k", KernelKind::Program))
    }

    #[test]
    fn blocks_nest_and_values_are_numbered_in_order() {
        let mut b = builder();
        let at = Loc { file: 0, line: 3, column: 1 };
        let c = b.push(Op::Const(1), &[I64], at);
        b.open_block();
        b.push(Op::Const(2), &[I64], at);
        b.open_block();
        let inner = b.push(Op::Const(3), &[I64], at);
        let inner = b.close_block(inner);
        let outer = b.close_block(vec![]);
        assert_eq!((inner.insts.len(), inner.yields), (1, vec![Value(2)]));
        assert_eq!((outer.insts.len(), outer.yields), (1, vec![]));
        assert_eq!(b.kernel().values[2], ValueDef { ty: I64, loc: at });
        let kernel = b.finish(c);
        assert_eq!((kernel.body.insts.len(), kernel.body.yields), (1, vec![Value(0)]));
    }

    #[test]
    fn comparisons_of_constants_are_decided() {
        let mut b = builder();
        let at = Loc::default();
        let bool = Type::Scalar(DType::Bool);
        let small = b.push(Op::Const(-2i64 as u64), &[I64], at)[0];
        let large = b.push(Op::Const(64), &[I64], at)[0];
        let n = b.push(Op::Param(0), &[I64], at)[0];
        b.open_block();
        let compared =
            [(CmpOp::Lt, small, large), (CmpOp::Eq, small, large), (CmpOp::Ge, large, large), (CmpOp::Gt, n, small)]
                .map(|(op, x, y)| b.push(Op::Cmp(op, x, y), &[bool], at)[0]);
        assert_eq!(compared.map(|c| b.decided(c)), [Some(true), Some(false), Some(true), None]);
        assert_eq!(b.decided(n), None);
    }

    #[test]
    #[should_panic(expected = "close_block without open_block")]
    fn a_block_that_was_not_opened_cannot_be_closed() {
        builder().close_block(vec![]);
    }

    #[test]
    #[should_panic(expected = "1 blocks are still open")]
    fn an_open_block_is_not_lost() {
        let mut b = builder();
        b.open_block();
        b.finish(vec![]);
    }
}
