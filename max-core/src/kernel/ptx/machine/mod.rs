//! The machine-level IR: instructions of virtual registers in basic blocks, between the tile IR and PTX text.
//!
//! It exists so that passes ask instructions for the registers that they read and write instead of reading text (what of
//! memory they touch, lowering marks), and so that another vendor's back end is a printer and a table. Kernels are lowered to it once ([`Gen`](super::emitter::Gen));
//! then passes run, and one printer writes the text ([`print`]).
//!
//! | | |
//! | --- | --- |
//! | [`Function`] | the blocks of a kernel; the first one is the prologue, of what is computed once |
//! | [`Inst`] | an opcode, a guard predicate, operands, and the line of the source that it is for |
//! | [`isa`] | the table of instructions: their operands, and the first target and PTX version that have them |
//! | [`barriers`] | barrier placement |
//! | [`verify`] | the verifier |
//! | [`Opcode`] | a row of that table with its modifiers and types |
//!
//! Registers are not in SSA form: variables and the results of branches are assigned several times.

pub(super) mod barriers;
mod cfg;
pub(super) mod isa;
pub(super) mod opcode;
pub(super) mod print;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod text;
pub(super) mod verify;

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use self::barriers::{Effect, Mark};
use self::isa::Control;
use self::opcode::Opcode;
use crate::dtype::DType;
use crate::kernel::ir::Loc;

/// A kind of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// A bool.
    Pred,
    /// Half precision, on its way to or from memory.
    B16,
    /// An integer of up to 32 bits; narrower ones are held sign- or zero-extended.
    B32,
    /// A 64-bit integer or an address.
    B64,
    F32,
    F64,
}

impl Class {
    pub const ALL: [Class; 6] = [Class::Pred, Class::B16, Class::B32, Class::B64, Class::F32, Class::F64];

    /// The class of a compute dtype's values.
    pub fn of(dtype: DType) -> Class {
        match dtype {
            DType::Bool => Class::Pred,
            DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::U32 => Class::B32,
            DType::I64 | DType::U64 => Class::B64,
            DType::F32 => Class::F32,
            DType::F64 => Class::F64,
            // In memory only: values of these dtypes are f32.
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F16 | DType::BF16 => {
                Class::F32
            }
        }
    }

    /// Its type in `mov`, `selp` and register declarations.
    pub fn ty(self) -> &'static str {
        match self {
            Class::Pred => "pred",
            Class::B16 => "b16",
            Class::B32 => "b32",
            Class::B64 => "b64",
            Class::F32 => "f32",
            Class::F64 => "f64",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "%p",
            Class::B16 => "%h",
            Class::B32 => "%r",
            Class::B64 => "%rd",
            Class::F32 => "%f",
            Class::F64 => "%fd",
        }
    }

    /// Zero, as an immediate.
    pub fn zero(self) -> Operand {
        match self {
            Class::Pred | Class::B16 | Class::B32 | Class::B64 => Operand::Int(0),
            Class::F32 => Operand::F32(0),
            Class::F64 => Operand::F64(0),
        }
    }

    /// Bytes of a value in shared memory, where a bool takes a word.
    pub fn shared_bytes(self) -> u32 {
        match self {
            Class::Pred | Class::B16 | Class::B32 | Class::F32 => 4,
            Class::B64 | Class::F64 => 8,
        }
    }
}

/// A virtual register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reg {
    pub class: Class,
    /// Its number among those of its class, from 1 on.
    pub number: u32,
}

impl Display for Reg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.class.prefix(), self.number)
    }
}

/// The label of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Label(u32);

/// A name of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Symbol {
    /// The dynamic shared memory of a block.
    Shared,
    /// A parameter of the entry, by its number.
    Param(u32),
    /// The format of a line that is printed, by its number.
    PrintFormat(u32),
    /// The local memory of the values that are printed.
    PrintValues,
}

/// A special register, which the hardware fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Special {
    /// The thread's index in its block.
    Thread,
    /// Threads of a block.
    Threads,
    /// The block's index in the grid.
    Block,
    /// Blocks of the grid.
    Blocks,
    /// Bytes of dynamic shared memory.
    DynamicSharedBytes,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Reg(Reg),
    Symbol(Symbol),
}

impl Base {
    /// Whether it can be an address of shared memory, which has 32 bits, or of other memory.
    fn is_address(self, shared: bool) -> bool {
        match self {
            Base::Reg(reg) => reg.class == if shared { Class::B32 } else { Class::B64 },
            Base::Symbol(Symbol::Shared) => shared,
            Base::Symbol(Symbol::Param(_) | Symbol::PrintFormat(_) | Symbol::PrintValues) => !shared,
        }
    }
}

impl From<Reg> for Base {
    fn from(reg: Reg) -> Self {
        Base::Reg(reg)
    }
}

impl From<Symbol> for Base {
    fn from(symbol: Symbol) -> Self {
        Base::Symbol(symbol)
    }
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Reg(Reg),
    Int(i64),
    /// An integer that `i64` does not have.
    Large(u64),
    /// An integer whose bits matter, such as a mask.
    Bits(u32),
    /// The bits of an `f32`.
    F32(u32),
    /// The bits of an `f64`.
    F64(u64),
    /// Memory, so many bytes behind a base.
    Address(Base, Option<u32>),
    /// A tensor map, and the coordinates of a box.
    Tensor(Reg, Box<[Reg]>),
    /// Registers that one access or one matrix instruction takes.
    Vector(Box<[Reg]>),
    Label(Label),
    Symbol(Symbol),
    Special(Special),
    /// A result that is not wanted.
    Sink,
}

impl Operand {
    /// The registers that it names.
    pub fn regs(&self) -> impl Iterator<Item = Reg> + '_ {
        let (one, several): (Option<Reg>, &[Reg]) = match self {
            Operand::Reg(reg) | Operand::Address(Base::Reg(reg), _) => (Some(*reg), &[]),
            Operand::Tensor(map, at) => (Some(*map), at),
            Operand::Vector(regs) => (None, regs),
            Operand::Int(_) | Operand::Large(_) | Operand::Bits(_) | Operand::F32(_) | Operand::F64(_) => (None, &[]),
            Operand::Address(Base::Symbol(_), _) | Operand::Symbol(_) | Operand::Special(_) => (None, &[]),
            Operand::Label(_) | Operand::Sink => (None, &[]),
        };
        one.into_iter().chain(several.iter().copied())
    }
}

/// Memory at an address.
pub(super) fn mem(base: impl Into<Base>) -> Operand {
    Operand::Address(base.into(), None)
}

/// Memory so many bytes behind an address.
pub(super) fn mem_at(base: impl Into<Base>, offset: u32) -> Operand {
    Operand::Address(base.into(), Some(offset))
}

/// Registers as a vector.
pub(super) fn vector_of(regs: &[Reg]) -> Operand {
    Operand::Vector(regs.into())
}

/// Registers as a vector, or the only one of them.
pub(super) fn one_or_vector(regs: &[Reg]) -> Operand {
    match regs {
        [one] => Operand::Reg(*one),
        _ => vector_of(regs),
    }
}

macro_rules! operand_from {
    ($($ty:ty: $value:ident => $operand:expr),* $(,)?) => {$(
        impl From<$ty> for Operand {
            fn from($value: $ty) -> Self {
                $operand
            }
        }
    )*};
}
operand_from! {
    Reg: reg => Operand::Reg(reg),
    &Reg: reg => Operand::Reg(*reg),
    Label: label => Operand::Label(label),
    Symbol: symbol => Operand::Symbol(symbol),
    Special: special => Operand::Special(special),
    i8: value => Operand::Int(value.into()),
    i16: value => Operand::Int(value.into()),
    i32: value => Operand::Int(value.into()),
    u32: value => Operand::Int(value.into()),
    i64: value => Operand::Int(value),
    u64: value => i64::try_from(value).map_or(Operand::Large(value), Operand::Int),
    usize: value => Operand::from(value as u64),
}

/// The predicate under which an instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub predicate: Reg,
    /// Whether it is executed where the predicate does not hold.
    pub negated: bool,
}

impl Guard {
    pub fn when(predicate: Reg) -> Guard {
        Guard { predicate, negated: false }
    }

    pub fn unless(predicate: Reg) -> Guard {
        Guard { predicate, negated: true }
    }
}

/// The number of an opcode in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpcodeId(u16);

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inst {
    pub opcode: OpcodeId,
    pub guard: Option<Guard>,
    /// The source line that it is for, if that is to be shown.
    pub loc: Loc,
    /// Where its operands are among those of the function, and how many.
    operands: (u32, u32),
}

/// Instructions that are executed one after the other. The last one alone may be a branch or return.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub label: Option<Label>,
    pub insts: Vec<Inst>,
    /// What stands between its instructions until barriers are placed, in order.
    pub marks: Vec<Mark>,
}

impl Block {
    /// Whether nothing stands in it, and it has no label.
    fn is_new(&self) -> bool {
        self.label.is_none() && self.insts.is_empty() && self.marks.is_empty()
    }
}

/// The prologue.
const PROLOGUE: usize = 0;

/// The code of a kernel.
#[derive(Debug)]
pub(super) struct Function {
    pub blocks: Vec<Block>,
    /// Whether the last block has ended.
    ended: bool,
    operands: Vec<Operand>,
    opcodes: Vec<Opcode>,
    by_text: HashMap<Box<str>, OpcodeId, foldhash::fast::FixedState>,
    counts: [u32; Class::ALL.len()],
    labels: u32,
}

impl Function {
    /// The prologue, and a block that goes on behind it.
    pub fn new() -> Function {
        Function {
            blocks: vec![Block::default(), Block::default()],
            ended: false,
            operands: Vec::new(),
            opcodes: Vec::new(),
            by_text: HashMap::default(),
            counts: [0; Class::ALL.len()],
            labels: 0,
        }
    }

    /// A new register.
    pub fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.counts[class as usize];
        *count += 1;
        Reg { class, number: *count }
    }

    /// How many registers of a class there are.
    pub fn count(&self, class: Class) -> u32 {
        self.counts[class as usize]
    }

    /// A new label, to be placed.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Begins a block.
    pub fn place_label(&mut self, label: Label) {
        self.ended = false;
        let last = self.blocks.len() - 1;
        match self.blocks.last_mut() {
            Some(block) if last > PROLOGUE && block.is_new() => block.label = Some(label),
            Some(_) | None => self.blocks.push(Block { label: Some(label), ..Block::default() }),
        }
    }

    /// Appends an instruction.
    pub fn push(&mut self, opcode: &str, guard: Option<Guard>, operands: impl IntoIterator<Item = Operand>, loc: Loc) {
        let inst = self.inst(opcode, guard, operands, loc);
        let ends = self.opcode(inst).control() != Control::Next;
        self.open_block().insts.push(inst);
        self.ended = ends;
    }

    /// Appends a mark.
    pub fn mark(&mut self, effect: Effect, loc: Loc) {
        let block = self.open_block();
        let before = block.insts.len();
        block.marks.push(Mark { effect, before, loc });
    }

    /// The block that is being filled: a new one behind a branch.
    fn open_block(&mut self) -> &mut Block {
        if std::mem::take(&mut self.ended) {
            self.blocks.push(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }

    /// Appends an instruction to the prologue.
    pub fn push_to_prologue(
        &mut self,
        opcode: &str,
        guard: Option<Guard>,
        operands: impl IntoIterator<Item = Operand>,
    ) {
        let inst = self.inst(opcode, guard, operands, Loc::default());
        self.blocks[PROLOGUE].insts.push(inst);
    }

    fn inst(
        &mut self,
        opcode: &str,
        guard: Option<Guard>,
        operands: impl IntoIterator<Item = Operand>,
        loc: Loc,
    ) -> Inst {
        let opcode = self.opcode_id(opcode);
        let first = self.operands.len();
        self.operands.extend(operands);
        let count = self.operands.len() - first;
        Inst { opcode, guard, loc, operands: (first as u32, count as u32) }
    }

    fn opcode_id(&mut self, text: &str) -> OpcodeId {
        if let Some(&id) = self.by_text.get(text) {
            return id;
        }
        let id = OpcodeId(self.opcodes.len() as u16);
        self.opcodes.push(Opcode::parse(text));
        self.by_text.insert(text.into(), id);
        id
    }

    pub fn opcode(&self, inst: Inst) -> &Opcode {
        &self.opcodes[usize::from(inst.opcode.0)]
    }

    pub fn operands(&self, inst: Inst) -> &[Operand] {
        let (first, count) = inst.operands;
        &self.operands[first as usize..(first + count) as usize]
    }

    /// Whether an instruction says which line of the source it is for.
    pub fn has_lines(&self) -> bool {
        self.blocks.iter().flat_map(|block| &block.insts).any(|inst| inst.loc.line != 0)
    }
}
