//! Opcodes: a row of the table of instructions, with modifiers and types.

use super::isa::{Control, INSTRUCTIONS, Instruction, Kind, LATER};
use super::{Class, Operand};

/// What a type says of the registers that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Pred,
    /// Any register of that size.
    Bits,
    Integer,
    Float,
    /// Floats of less than 32 bits, or packed ones: in registers of bits.
    PackedFloat,
}

/// A type in an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Type {
    bits: u32,
    form: Form,
}

impl Type {
    fn parse(name: &str) -> Option<Type> {
        let (form, bits) = match name {
            "pred" => (Form::Pred, 1),
            "f16" | "bf16" => (Form::PackedFloat, 16),
            "f16x2" | "bf16x2" | "tf32" => (Form::PackedFloat, 32),
            "e4m3" | "e5m2" => (Form::PackedFloat, 8),
            _ => {
                let form = match name.as_bytes().first()? {
                    b'b' => Form::Bits,
                    b's' | b'u' => Form::Integer,
                    b'f' => Form::Float,
                    _ => return None,
                };
                (form, name[1..].parse().ok().filter(|bits| [8, 16, 32, 64].contains(bits))?)
            }
        };
        Some(Type { bits, form })
    }

    /// Whether a register of a class has it. Loads, stores and conversions take wider registers than the type, and bits
    /// for floats.
    fn is_in(self, class: Class, wider: bool) -> bool {
        match class {
            Class::Pred => self.form == Form::Pred,
            Class::B16 => self.bits == 16 && self.form != Form::Float,
            Class::B32 => {
                let fits = self.bits == 32 || wider && self.bits < 32 && self.form != Form::PackedFloat;
                fits && self.form != Form::Pred && (wider || self.form != Form::Float)
            }
            Class::B64 => self.bits == 64 && self.form != Form::Float,
            Class::F32 => self.bits == 32 && matches!(self.form, Form::Float | Form::Bits),
            Class::F64 => self.bits == 64 && matches!(self.form, Form::Float | Form::Bits),
        }
    }
}

/// Bits of a register.
fn bits(class: Class) -> u32 {
    match class {
        Class::Pred => 1,
        Class::B16 => 16,
        Class::B32 | Class::F32 => 32,
        Class::B64 | Class::F64 => 64,
    }
}

/// What an instruction is, as PTX spells it, and what the table says of it.
#[derive(Debug)]
pub(in crate::kernel::ptx) struct Opcode {
    text: Box<str>,
    /// Its row; `None` if there is none, or none with these modifiers.
    instruction: Option<&'static Instruction>,
    first: Option<Type>,
    last: Option<Type>,
    /// The registers of an access.
    vector: usize,
    /// Whether it names memory with addresses of 32 bits.
    is_shared: bool,
    /// The first target and PTX version that have it.
    sm: u32,
    ptx: u32,
}

impl Opcode {
    /// Finds the row of an opcode, `add.rn.f32`.
    pub fn parse(text: &str) -> Opcode {
        let names = |row: &&Instruction| {
            text.strip_prefix(row.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let row = INSTRUCTIONS.iter().filter(names).max_by_key(|row| row.name.len());
        let mut opcode = Opcode {
            text: text.into(),
            instruction: row,
            first: None,
            last: None,
            vector: 1,
            is_shared: false,
            sm: row.map_or(0, |row| row.sm),
            ptx: row.map_or(0, |row| row.ptx),
        };
        let modifiers = row.and_then(|row| text.get(row.name.len() + 1..)).unwrap_or_default();
        for modifier in modifiers.split('.').filter(|modifier| !modifier.is_empty()) {
            if !row.is_some_and(|row| opcode.add(row, modifier)) {
                opcode.instruction = None;
            }
        }
        opcode
    }

    /// Takes a modifier, if the row has it.
    fn add(&mut self, row: &Instruction, modifier: &str) -> bool {
        if let Some(&(_, sm, ptx)) = LATER.iter().find(|(later, ..)| *later == modifier) {
            (self.sm, self.ptx) = (self.sm.max(sm), self.ptx.max(ptx));
        }
        if row.types.split(' ').any(|ty| ty == modifier) {
            self.last = Type::parse(modifier);
            self.first = self.first.or(self.last);
            return self.last.is_some();
        }
        self.is_shared |= modifier.starts_with("shared");
        match modifier {
            "v2" => self.vector = 2,
            "v4" => self.vector = 4,
            _ => {}
        }
        // The shape of a warpgroup's instruction: `m64n128k16`.
        let is_shape = row.name == "wgmma.mma_async" && modifier.starts_with("m64n");
        is_shape || row.modifiers.split(' ').any(|known| known == modifier)
    }

    /// As PTX spells it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the table says of it.
    pub fn instruction(&self) -> Option<&'static Instruction> {
        self.instruction
    }

    /// Where code goes on behind it.
    pub fn control(&self) -> Control {
        self.instruction.map_or(Control::Next, |row| row.control)
    }

    /// The first target and the first version of PTX that have it.
    pub fn since(&self) -> (u32, u32) {
        (self.sm, self.ptx)
    }

    /// Whether an operand is of a kind.
    pub fn takes(&self, kind: Kind, operand: &Operand) -> bool {
        let wider = self.instruction.is_some_and(|row| row.is_wide);
        let typed = |ty: Option<Type>, operand: &Operand| match operand {
            Operand::Reg(reg) => ty.is_some_and(|ty| ty.is_in(reg.class, wider)),
            Operand::Int(_) | Operand::Large(_) => ty.is_some_and(|ty| ty.form != Form::Float),
            Operand::Bits(_) => ty.is_some_and(|ty| ty.bits == 32 && ty.form != Form::Float),
            Operand::F32(_) => ty.is_some_and(|ty| ty.bits == 32 && ty.form == Form::Float),
            Operand::F64(_) => ty.is_some_and(|ty| ty.bits == 64 && ty.form == Form::Float),
            Operand::Address(..) | Operand::Tensor(..) | Operand::Vector(_) | Operand::Label(_) => false,
            Operand::Symbol(_) | Operand::Special(_) | Operand::Sink => false,
        };
        let exactly = |bits, form| Some(Type { bits, form });
        match (kind, operand) {
            (Kind::Typed, Operand::Vector(regs)) => {
                regs.len() == self.vector && regs.iter().all(|reg| typed(self.last, &Operand::Reg(*reg)))
            }
            (Kind::Typed, _) => self.vector == 1 && typed(self.last, operand),
            (Kind::First, Operand::Vector(regs)) => regs.iter().all(|reg| typed(self.first, &Operand::Reg(*reg))),
            (Kind::First, _) => typed(self.first, operand),
            (Kind::Wide, _) => typed(self.last.map(|ty| Type { bits: 2 * ty.bits, ..ty }), operand),
            (Kind::Moved, Operand::Vector(regs)) => {
                self.last.is_some_and(|ty| ty.bits == regs.iter().map(|reg| bits(reg.class)).sum::<u32>())
            }
            (Kind::Moved, Operand::Symbol(_)) => self.last.is_some_and(|ty| ty.bits >= 32),
            (Kind::Moved, Operand::Special(_)) => self.last == exactly(32, Form::Integer),
            (Kind::Moved, _) => typed(self.last, operand),
            (Kind::Any, _) => matches!(operand, Operand::Reg(_)),
            (Kind::Pred, _) => typed(exactly(1, Form::Pred), operand),
            (Kind::B32 | Kind::Matrix, Operand::Vector(regs)) => regs.iter().all(|reg| reg.class == Class::B32),
            (Kind::B32, _) => typed(exactly(32, Form::Integer), operand),
            (Kind::B64, Operand::Sink) => true,
            (Kind::B64 | Kind::Matrix, _) => typed(exactly(64, Form::Integer), operand),
            (Kind::Int, Operand::Int(_)) | (Kind::Tensor, Operand::Tensor(..)) => true,
            (Kind::Target, Operand::Label(_)) => true,
            (Kind::Address, Operand::Address(base, _)) => base.is_address(self.is_shared),
            (Kind::Shared, Operand::Address(base, _)) => base.is_address(true),
            (Kind::Global, Operand::Address(base, _)) => base.is_address(false),
            (Kind::Int | Kind::Tensor | Kind::Target | Kind::Address | Kind::Shared | Kind::Global, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_is_meant() {
        let name = |text: &str| Opcode::parse(text).instruction().map(|row| row.name);
        assert_eq!(name("mul.rn.f32"), Some("mul"));
        assert_eq!(name("mul.wide.u32"), Some("mul.wide"));
        assert_eq!(name("cp.async.cg.shared.global"), Some("cp.async"));
        assert_eq!(name("cp.async.wait_all"), Some("cp.async.wait_all"));
        assert_eq!(name("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"), Some("wgmma.mma_async"));
        for unknown in ["madd.lo.s32", "add.rz.f32", "add.f16", "adds.f32", "mul.f"] {
            assert_eq!(name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn types_say_which_registers_hold_them() {
        let reg = |class| Operand::Reg(super::super::Reg { class, number: 1 });
        let takes = |text: &str, kind, class| Opcode::parse(text).takes(kind, &reg(class));
        assert!(takes("add.s32", Kind::Typed, Class::B32) && !takes("add.s32", Kind::Typed, Class::F32));
        assert!(takes("selp.b32", Kind::Typed, Class::F32) && !takes("selp.f32", Kind::Typed, Class::B32));
        assert!(takes("ld.global.u8", Kind::Typed, Class::B32) && !takes("ld.global.v2.u8", Kind::Typed, Class::B32));
        assert!(takes("cvt.rn.bf16.f32", Kind::First, Class::B16) && takes("cvt.s32.s8", Kind::Typed, Class::B32));
        assert!(takes("mul.wide.u32", Kind::Wide, Class::B64));
    }

    #[test]
    fn later_types_need_later_targets() {
        assert_eq!(Opcode::parse("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32").since(), (89, 84));
        assert_eq!(Opcode::parse("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32").since(), (80, 70));
    }
}
