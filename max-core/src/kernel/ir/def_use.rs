//! Def-use: the instruction that defines each value, and the memory dtype that a tile's elements are known to have.
//!
//! Back ends need it to see that an operand of `dot` is exact in half precision, or loaded unchanged.

use std::collections::{HashMap, HashSet};

use super::{Block, Inst, Kernel, Op, Type, Value};
use crate::dtype::DType;
use crate::steps;

/// The instructions that make a kernel's values.
pub(crate) struct DefUse<'k> {
    kernel: &'k Kernel,
    made: HashMap<Value, &'k Inst>,
    /// What variables hold where the walk stands, as far as that is one value.
    held: HashMap<Value, Value>,
    /// The dtypes that values and elements of tiles are known to be of.
    dtypes: HashMap<Value, DType>,
    /// Values and tiles that were converted from bytes.
    bytes: HashSet<Value>,
}

impl<'k> DefUse<'k> {
    /// Those of a kernel.
    pub fn of(kernel: &'k Kernel) -> Self {
        let (made, held, dtypes, bytes) = (HashMap::new(), HashMap::new(), HashMap::new(), HashSet::new());
        let mut defs = DefUse { kernel, made, held, dtypes, bytes };
        defs.add_block(&kernel.body);
        defs
    }

    /// The instruction that makes a value; none makes the parameters of blocks.
    pub fn get(&self, value: Value) -> Option<&'k Inst> {
        self.made.get(&value).copied()
    }

    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
            steps::count(1);
            self.made.extend(inst.results.iter().map(|&v| (v, inst)));
            self.add_inner(&inst.op);
            // What an instruction takes stands before it, so all of it is known: nothing goes back along chains.
            self.add_facts(inst);
            if let Op::Var(value) = inst.op {
                self.held.extend(inst.results.first().map(|&variable| (variable, value)));
            } else if let Op::Set(variable, value) = inst.op {
                self.held.insert(variable, value);
            }
        }
    }

    /// The blocks of an instruction, which may run again or not at all.
    fn add_inner(&mut self, op: &'k Op) {
        let blocks = op.blocks();
        if blocks.is_empty() {
            return;
        }
        let mut assigned = HashSet::new();
        blocks.iter().for_each(|(inner, _)| assigned_in(inner, &mut assigned));
        for (inner, _) in blocks {
            self.forget(&assigned);
            self.add_block(inner);
        }
        self.forget(&assigned);
    }

    /// What these variables hold is not known here.
    fn forget(&mut self, variables: &HashSet<Value>) {
        for variable in variables {
            self.held.remove(variable);
        }
    }

    /// The dtype of memory that all elements of a tile were loaded from or rounded to, so that they are values of it.
    pub fn dtype_of_elements(&self, tile: Value) -> Option<DType> {
        self.dtypes.get(&tile).copied().filter(|_| self.is_tile(tile))
    }

    /// Whether all elements of a tile of `f32` were converted from 8-bit integers, so that they are values of every
    /// half-precision dtype.
    pub fn are_of_bytes(&self, tile: Value) -> bool {
        self.bytes.contains(&tile) && self.is_tile(tile)
    }

    /// Notes what is known of an instruction's results.
    fn add_facts(&mut self, inst: &Inst) {
        let Some(&result) = inst.results.first() else { return };
        let of_f32 = matches!(self.kernel.ty(result), Type::Tile(DType::F32, ..));
        let (dtype, are_of_bytes) = match &inst.op {
            Op::TileLoad { operand, .. } => {
                (self.kernel.operands.get(*operand as usize).map(|operand| operand.dtype), false)
            }
            Op::TileRound(dtype, from) => (Some(*dtype), of_f32 && self.is_of_byte(*from)),
            Op::TileCast(from) => {
                let is_same = self.kernel.ty(*from) == self.kernel.ty(result);
                (self.dtypes.get(from).copied().filter(|_| is_same), of_f32 && self.is_of_byte(*from))
            }
            Op::Get(variable) if self.is_tile(result) => {
                let held = self.held.get(variable);
                let dtype = held.and_then(|value| self.dtypes.get(value)).copied();
                (dtype, of_f32 && held.is_some_and(|value| self.bytes.contains(value)))
            }
            Op::TileMap { body, .. } => {
                let element = body.yields.first();
                let dtype = element.and_then(|value| self.dtypes.get(value)).copied();
                (dtype, of_f32 && element.is_some_and(|value| self.bytes.contains(value)))
            }
            Op::Round(dtype, from) => (Some(*dtype), self.bytes.contains(from)),
            Op::Cast(from) => (None, self.is_byte(*from)),
            // What stands for an element outside of an operand is 0, which every dtype has.
            Op::Select(_, value, pad) if self.is_zero(*pad) => {
                (self.dtypes.get(value).copied(), self.bytes.contains(value))
            }
            Op::Const(_)
            | Op::Param(_)
            | Op::ProgramId(_)
            | Op::NumPrograms(_)
            | Op::Dim { .. }
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Cmp(..)
            | Op::Select(..)
            | Op::Fma(..)
            | Op::Bitcast(_)
            | Op::FromBits(..)
            | Op::ToBits(..)
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::Print { .. }
            | Op::Var(_)
            | Op::Get(_)
            | Op::Set(..)
            | Op::If { .. }
            | Op::While { .. }
            | Op::For { .. }
            | Op::Lanes { .. }
            | Op::Fold { .. }
            | Op::Scan { .. }
            | Op::TileFull(_)
            | Op::TileStore { .. }
            | Op::TileReduce(..)
            | Op::TileElement(..)
            | Op::Dot(..) => return,
        };
        self.dtypes.extend(dtype.map(|dtype| (result, dtype)));
        self.bytes.extend(are_of_bytes.then_some(result));
    }

    /// Whether it is of bytes or was converted from them.
    fn is_of_byte(&self, value: Value) -> bool {
        self.is_byte(value) || self.bytes.contains(&value)
    }

    fn is_byte(&self, value: Value) -> bool {
        let (Type::Scalar(dtype) | Type::Tile(dtype, ..)) = self.kernel.ty(value) else { return false };
        matches!(dtype, DType::I8 | DType::U8 | DType::Bool)
    }

    fn is_tile(&self, value: Value) -> bool {
        matches!(self.kernel.ty(value), Type::Tile(..))
    }

    fn is_zero(&self, value: Value) -> bool {
        self.get(value).is_some_and(|inst| matches!(inst.op, Op::Const(0)))
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

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::kernel::ir;

    /// A kernel with a chain of `length` tiles, each made of the one before and multiplied: the dtype of the last of
    /// them, and whether it is of bytes.
    fn chain(length: u32, dtype: &str, link: impl Fn(u32) -> String) -> (usize, Option<DType>, bool) {
        let mut text = format!("kernel \"chain\" program grid(1) (in x: {dtype}[2]) {{\n%0: i64 = const 0\n");
        writeln!(text, "%1: tile<{dtype}, 8x32> = tile_load x[%0, %0]").unwrap();
        writeln!(text, "%2: tile<f32, 8x32> = tile_cast %1").unwrap();
        (3..length).for_each(|i| text.push_str(&link(i)));
        text.push('}');
        let kernel = ir::parse(&text).unwrap();
        let (mut found, last) = (None, Value(length - 1));
        let steps = steps::of(|| {
            let defs = DefUse::of(&kernel);
            found = Some((defs.dtype_of_elements(last), defs.are_of_bytes(last)));
        });
        let (of, are_of_bytes) = found.unwrap();
        (steps, of, are_of_bytes)
    }

    /// Longer than any stack would serve, if each link took a frame.
    const LONG: u32 = 300_000;

    #[test]
    fn long_chains_are_known_in_steps_in_proportion() {
        let rounded = |i: u32| format!("%{i}: tile<f32, 8x32> = tile_round bf16 %{}\n", i - 1);
        let cast = |i: u32| format!("%{i}: tile<f32, 8x32> = tile_cast %{}\n", i - 1);
        for (dtype, of_bytes) in [("u8", true), ("f16", false)] {
            let (few, ..) = chain(LONG / 2, dtype, rounded);
            let (many, of, are_of_bytes) = chain(LONG, dtype, rounded);
            assert_eq!((of, are_of_bytes), (Some(DType::BF16), of_bytes));
            assert!(many <= few * 5 / 2, "{few} steps, then {many}");
            let (_, of, are_of_bytes) = chain(LONG, dtype, cast);
            assert_eq!((of, are_of_bytes), (None, of_bytes));
        }
        let (_, of, _) = chain(LONG, "f32", cast);
        assert_eq!(of, Some(DType::F32));
    }
}
