//! What makes each value of a kernel, and of which dtype of memory a tile's elements are known to be.

use std::collections::{HashMap, HashSet};

use super::{Block, Inst, Kernel, Op, Type, Value};
use crate::dtype::DType;

/// The instructions that make a kernel's values.
pub(crate) struct Makers<'k> {
    kernel: &'k Kernel,
    made: HashMap<Value, &'k Inst>,
    /// What variables hold where the walk stands, and what they held where they were read, as far as that is one value.
    held: HashMap<Value, Value>,
    read: HashMap<Value, Value>,
}

impl<'k> Makers<'k> {
    /// Those of a kernel.
    pub fn of(kernel: &'k Kernel) -> Self {
        let (made, held, read) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut makers = Makers { kernel, made, held, read };
        makers.add_block(&kernel.body);
        makers
    }

    /// The instruction that makes a value; none makes the parameters of blocks.
    pub fn get(&self, value: Value) -> Option<&'k Inst> {
        self.made.get(&value).copied()
    }

    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
            self.made.extend(inst.results.iter().map(|&v| (v, inst)));
            if let Op::Var(value) = inst.op {
                self.held.insert(inst.results[0], value);
            } else if let Op::Set(variable, value) = inst.op {
                self.held.insert(variable, value);
            } else if let Op::Get(variable) = inst.op
                && let Some(&value) = self.held.get(&variable)
            {
                self.read.insert(inst.results[0], value);
            }
            self.add_inner(&inst.op);
        }
    }

    /// The blocks of an instruction, which may run again or not at all.
    fn add_inner(&mut self, op: &'k Op) {
        let mut assigned = HashSet::new();
        op.blocks().into_iter().for_each(|(inner, _)| assigned_in(inner, &mut assigned));
        self.held.retain(|variable, _| !assigned.contains(variable));
        for (inner, _) in op.blocks() {
            let held = self.held.clone();
            self.add_block(inner);
            self.held = held;
        }
    }

    /// The dtype of memory that all elements of a tile were loaded from or rounded to, so that they are values of it.
    pub fn dtype_of_elements(&self, tile: Value) -> Option<DType> {
        let op = &self.get(tile)?.op;
        if let Op::TileLoad { operand, .. } = op {
            Some(self.kernel.operands[*operand as usize].dtype)
        } else if let Op::TileRound(dtype, _) = op {
            Some(*dtype)
        } else if let Op::TileCast(from) = op
            && self.kernel.ty(*from) == self.kernel.ty(tile)
        {
            self.dtype_of_elements(*from)
        } else if let Op::Get(_) = op {
            self.dtype_of_elements(*self.read.get(&tile)?)
        } else if let Op::TileMap { body, .. } = op {
            self.rounded_to(*body.yields.first()?)
        } else {
            None
        }
    }

    /// Whether all elements of a tile of `f32` were converted from 8-bit integers, so that they are values of every half dtype.
    pub fn are_of_bytes(&self, tile: Value) -> bool {
        let Some(inst) = self.get(tile).filter(|_| matches!(self.kernel.ty(tile), Type::Tile(DType::F32, ..))) else {
            return false;
        };
        if let Op::TileCast(from) | Op::TileRound(_, from) = inst.op {
            self.is_byte(from) || self.are_of_bytes(from)
        } else if let Op::Get(_) = inst.op {
            self.read.get(&tile).is_some_and(|&value| self.are_of_bytes(value))
        } else if let Op::TileMap { body, .. } = &inst.op {
            body.yields.first().is_some_and(|&value| self.is_of_byte(value))
        } else {
            false
        }
    }

    /// Whether an element was converted from a byte; what stands for it outside of an operand is 0.
    fn is_of_byte(&self, value: Value) -> bool {
        match self.get(value).map(|inst| &inst.op) {
            Some(Op::Cast(from)) => self.is_byte(*from),
            Some(Op::Round(_, from)) => self.is_of_byte(*from),
            Some(Op::Select(_, value, pad)) => self.is_zero(*pad) && self.is_of_byte(*value),
            _ => false,
        }
    }

    fn is_byte(&self, value: Value) -> bool {
        let (Type::Scalar(dtype) | Type::Tile(dtype, ..)) = self.kernel.ty(value) else { return false };
        matches!(dtype, DType::I8 | DType::U8 | DType::Bool)
    }

    fn is_zero(&self, value: Value) -> bool {
        self.get(value).is_some_and(|inst| matches!(inst.op, Op::Const(0)))
    }

    /// The dtype that an element was rounded to; what stands for it outside of an operand is 0, which every dtype has.
    fn rounded_to(&self, value: Value) -> Option<DType> {
        let op = &self.get(value)?.op;
        if let Op::Round(dtype, _) = op {
            return Some(*dtype);
        }
        let Op::Select(_, value, pad) = op else { return None };
        self.is_zero(*pad).then(|| self.rounded_to(*value))?
    }
}

/// The variables that code assigns.
pub(crate) fn assigned_in(block: &Block, found: &mut HashSet<Value>) {
    for inst in &block.insts {
        if let Op::Set(variable, _) = inst.op {
            found.insert(variable);
        }
        inst.op.blocks().into_iter().for_each(|(inner, _)| assigned_in(inner, found));
    }
}
