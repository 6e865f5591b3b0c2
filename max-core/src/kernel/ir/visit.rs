//! The visitor of instructions: the values that one uses, and the blocks that it holds.
//!
//! Passes that treat all instructions alike are written over it, so that a new instruction is described once.

use super::{Block, Op, Value};

impl Op {
    /// The values it takes, without those used inside its blocks.
    pub fn uses(&self) -> Vec<Value> {
        match self {
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => vec![],
            Op::Unary(_, a) | Op::Cast(a) | Op::Bitcast(a) | Op::Round(_, a) | Op::Var(a) | Op::Get(a) => vec![*a],
            Op::FromBits(_, a) | Op::ToBits(_, a) => vec![*a],
            Op::Binary(_, a, b) | Op::Cmp(_, a, b) | Op::Set(a, b) => vec![*a, *b],
            Op::Select(a, b, c) | Op::Fma(a, b, c) | Op::Dot(a, b, c) => vec![*a, *b, *c],
            Op::Load { index, pad, .. } => index.iter().chain(pad).copied().collect(),
            Op::Store { index, value, .. } | Op::Atomic { index, value, .. } => {
                index.iter().chain([value]).copied().collect()
            }
            Op::Print { values, .. } => values.clone(),
            Op::If { condition, .. } => vec![*condition],
            Op::While { .. } => vec![],
            Op::For { lo, hi, step, .. } => vec![*lo, *hi, *step],
            Op::Lanes { len, .. } => vec![*len],
            Op::Fold { len, init, .. } | Op::Scan { len, init, .. } => [len].into_iter().chain(init).copied().collect(),
            Op::TileFull(a) | Op::TileReduce(_, a) | Op::TileCast(a) | Op::TileRound(_, a) => {
                vec![*a]
            }
            Op::TileLoad { batch, origin, .. } => batch.iter().chain(origin).copied().collect(),
            Op::TileStore { batch, origin, value, .. } => batch.iter().chain(origin).chain([value]).copied().collect(),
            Op::TileElement(a, [i, j]) => vec![*a, *i, *j],
            Op::TileMap { inputs, .. } => inputs.clone(),
        }
    }

    /// The blocks it holds, in the order of the text form, each with the values that are its parameters.
    pub fn blocks(&self) -> Vec<(&Block, Vec<Value>)> {
        match self {
            Op::If { then, otherwise, .. } => vec![(then, vec![]), (otherwise, vec![])],
            Op::While { condition, body } => vec![(condition, vec![]), (body, vec![])],
            Op::For { index, body, .. } | Op::Lanes { index, body, .. } => {
                vec![(body, vec![*index])]
            }
            Op::Fold { index, acc, body, lhs, rhs, combine, .. } => {
                vec![(body, [&[*index], acc.as_slice()].concat()), (combine, [lhs.as_slice(), rhs].concat())]
            }
            Op::Scan { index, item, lhs, rhs, combine, prefix, emit, .. } => vec![
                (item, vec![*index]),
                (combine, [lhs.as_slice(), rhs].concat()),
                (emit, [&[*index], prefix.as_slice()].concat()),
            ],
            Op::TileMap { position, elements, body, .. } => vec![(body, [position, elements.as_slice()].concat())],
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => vec![],
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => vec![],
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) | Op::FromBits(..) | Op::ToBits(..) | Op::Print { .. } => {
                vec![]
            }
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Get(_) | Op::Set(..) => vec![],
            Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileReduce(..) | Op::Dot(..) => vec![],
            Op::TileElement(..) | Op::TileCast(_) | Op::TileRound(..) => vec![],
        }
    }

    /// What [`uses`](Self::uses) and [`blocks`](Self::blocks) give, to be changed: all values that the instruction
    /// names, parameters of its blocks among them, but its results; and the blocks.
    pub fn parts_mut(&mut self) -> (Vec<&mut Value>, Vec<&mut Block>) {
        match self {
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => (vec![], vec![]),
            Op::Unary(_, a) | Op::Cast(a) | Op::Bitcast(a) | Op::Round(_, a) | Op::Var(a) | Op::Get(a) => {
                (vec![a], vec![])
            }
            Op::FromBits(_, a) | Op::ToBits(_, a) => (vec![a], vec![]),
            Op::Binary(_, a, b) | Op::Cmp(_, a, b) | Op::Set(a, b) => (vec![a, b], vec![]),
            Op::Select(a, b, c) | Op::Fma(a, b, c) | Op::Dot(a, b, c) => (vec![a, b, c], vec![]),
            Op::Load { index, pad, .. } => (index.iter_mut().chain(pad).collect(), vec![]),
            Op::Store { index, value, .. } | Op::Atomic { index, value, .. } => {
                (index.iter_mut().chain([value]).collect(), vec![])
            }
            Op::Print { values, .. } => (values.iter_mut().collect(), vec![]),
            Op::If { condition, then, otherwise } => (vec![condition], vec![then, otherwise]),
            Op::While { condition, body } => (vec![], vec![condition, body]),
            Op::For { lo, hi, step, index, body } => (vec![lo, hi, step, index], vec![body]),
            Op::Lanes { len, index, body } => (vec![len, index], vec![body]),
            Op::Fold { len, index, init, acc, body, lhs, rhs, combine } => {
                let values = [len, index].into_iter().chain(init).chain(acc).chain(lhs).chain(rhs);
                (values.collect(), vec![body, combine])
            }
            Op::Scan { len, index, init, item, lhs, rhs, combine, prefix, emit } => {
                let values = [len, index].into_iter().chain(init).chain(lhs).chain(rhs).chain(prefix);
                (values.collect(), vec![item, combine, emit])
            }
            Op::TileFull(a) | Op::TileReduce(_, a) | Op::TileCast(a) | Op::TileRound(_, a) => (vec![a], vec![]),
            Op::TileElement(a, index) => ([a].into_iter().chain(index).collect(), vec![]),
            Op::TileLoad { batch, origin, .. } => (batch.iter_mut().chain(origin).collect(), vec![]),
            Op::TileStore { batch, origin, value, .. } => {
                (batch.iter_mut().chain(origin).chain([value]).collect(), vec![])
            }
            Op::TileMap { inputs, position, elements, body } => {
                (inputs.iter_mut().chain(position).chain(elements).collect(), vec![body])
            }
        }
    }
}
