//! Elementwise kernels over operands that no single stride walks: the elements of several axes, in one launch.

use std::mem::take;

use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, KernelKind};
use crate::kernel::ir::{BinaryOp, Builder, Kernel, Loc, Op, Type, Value};

/// The elementwise kernel that copies elements of `size` bytes.
pub(super) fn copy(size: usize) -> Kernel {
    let dtype = match size {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    let mut b = Builder::new(Kernel::new("copy", KernelKind::Elementwise));
    let x = b.value(Type::Scalar(dtype), Loc::default());
    for (name, access) in [("x", Access::In), ("y", Access::Out)] {
        let operand = crate::kernel::ir::Operand { name: name.to_owned(), access, dtype, rank: 0 };
        b.kernel_mut().operands.push(operand);
    }
    b.kernel_mut().elements.push(x);
    b.finish(vec![x])
}

/// An elementwise kernel as a program over operands of `rank` axes: each program takes a row, and each of its lanes an
/// element. The grid's first extent is the number of rows.
pub(super) fn over_rows(mut kernel: Kernel, rank: usize) -> Kernel {
    let (i64, at) = (Type::Scalar(DType::I64), Loc::default());
    let (code, elements) = (take(&mut kernel.body), take(&mut kernel.elements));
    let operands: Vec<Access> = kernel.operands.iter().map(|operand| operand.access).collect();
    kernel.operands.iter_mut().for_each(|operand| operand.rank = rank as u32);
    kernel.kind = KernelKind::Program;
    kernel.grid = vec![GridAxis::constant(1)];

    let mut b = Builder::new(kernel);
    let one = |b: &mut Builder, op| b.push(op, &[i64], at)[0];
    let mut row = one(&mut b, Op::ProgramId(0));
    let mut index = vec![Value(0); rank];
    for axis in (0..rank.saturating_sub(1)).rev() {
        let dim = one(&mut b, Op::Dim { operand: 0, axis: axis as u32 });
        index[axis] = one(&mut b, Op::Binary(BinaryOp::Rem, row, dim));
        row = one(&mut b, Op::Binary(BinaryOp::Div, row, dim));
    }
    let len = one(&mut b, Op::Dim { operand: 0, axis: rank as u32 - 1 });
    let lane = b.value(i64, at);
    index[rank - 1] = lane;
    b.open_block();
    let (mut elements, mut results) = (elements.into_iter(), code.yields.into_iter());
    for (operand, access) in (0..).zip(&operands) {
        if *access != Access::Out
            && let Some(element) = elements.next()
        {
            b.push_into(Op::Load { operand, index: index.clone(), pad: None }, vec![element], at);
        }
    }
    code.insts.into_iter().for_each(|inst| b.push_into(inst.op, inst.results, inst.loc));
    for (operand, access) in (0..).zip(&operands) {
        if *access != Access::In
            && let Some(value) = results.next()
        {
            b.push(Op::Store { operand, index: index.clone(), value, scatter: false }, &[], at);
        }
    }
    let body = b.close_block(vec![]);
    b.push(Op::Lanes { len, index: lane, body }, &[], at);
    b.finish(vec![])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ir::verify;

    #[test]
    fn both_forms_are_valid() {
        for size in [1, 2, 4, 8] {
            verify(&copy(size)).unwrap();
            (1..=6).for_each(|rank| verify(&over_rows(copy(size), rank)).unwrap());
        }
    }
}
