//! Elementwise kernels over operands that no single stride walks: the elements of several axes, in one launch. And copies whose
//! sides are contiguous along different axes, a tile at a time.

use std::mem::take;

use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, KernelKind};
use crate::kernel::ir::{BinaryOp, Builder, Kernel, Loc, Op, Type, Value};

/// The elementwise kernel that copies elements of `size` bytes.
pub(super) fn copy(size: usize) -> Kernel {
    let mut b = Builder::new(Kernel::new("copy", KernelKind::Elementwise));
    let dtype = add_operands(&mut b, size, 0);
    let x = b.value(Type::Scalar(dtype), Loc::default());
    b.kernel_mut().elements.push(x);
    b.finish(vec![x])
}

/// Adds the operands of a copy of elements of `size` bytes; gives their dtype.
fn add_operands(b: &mut Builder, size: usize, rank: u32) -> DType {
    let dtype = match size {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    for (name, access) in [("x", Access::In), ("y", Access::Out)] {
        let operand = crate::kernel::ir::Operand { name: name.to_owned(), access, dtype, rank };
        b.kernel_mut().operands.push(operand);
    }
    dtype
}

/// Rows and columns of a tile of [`transpose`].
pub(super) const TILE: u32 = 64;

/// The kernel that copies elements of `size` bytes from an operand whose last two axes are those of the other the other way
/// round: a tile to each program. The grid's extents are the number of matrices, and of tiles down and along the second operand's.
pub(super) fn transpose(size: usize, rank: usize) -> Kernel {
    let (i64, at) = (Type::Scalar(DType::I64), Loc::default());
    let mut b = Builder::new(Kernel::new("transpose", KernelKind::Program));
    b.kernel_mut().grid = vec![GridAxis::constant(1); 3];
    let dtype = add_operands(&mut b, size, rank as u32);
    let one = |b: &mut Builder, op| b.push(op, &[i64], at)[0];
    let side = one(&mut b, Op::Const(TILE.into()));
    let [row, column] = [1, 2].map(|axis| {
        let id = one(&mut b, Op::ProgramId(axis));
        one(&mut b, Op::Binary(BinaryOp::Mul, id, side))
    });
    let mut matrix = one(&mut b, Op::ProgramId(0));
    let mut batch = vec![Value(0); rank.saturating_sub(2)];
    for axis in (0..batch.len()).rev() {
        let dim = one(&mut b, Op::Dim { operand: 0, axis: axis as u32 });
        batch[axis] = one(&mut b, Op::Binary(BinaryOp::Rem, matrix, dim));
        matrix = one(&mut b, Op::Binary(BinaryOp::Div, matrix, dim));
    }
    let load = Op::TileLoad { operand: 0, batch: batch.clone(), origin: [column, row], transpose: true };
    let value = b.push(load, &[Type::Tile(dtype, TILE, TILE)], at)[0];
    b.push(Op::TileStore { operand: 1, batch, origin: [row, column], value }, &[], at);
    b.finish(vec![])
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
            (2..=6).for_each(|rank| verify(&transpose(size, rank)).unwrap());
        }
    }
}
