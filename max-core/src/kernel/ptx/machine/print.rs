//! The printer: PTX text of a function.

use std::fmt::Write;

use super::isa::CALL_VPRINTF;
use super::{Base, Class, Function, Guard, Inst, Label, Operand, Reg, Special, Symbol};
use crate::kernel::ir::Loc;

/// The body of the call of `vprintf`, whose parameters have a scope of their own.
const CALL: [&str; 7] = [
    "{",
    ".param .b64 print_format;",
    ".param .b64 print_given;",
    ".param .b32 print_status;",
    "st.param.b64 [print_format], ",
    "st.param.b64 [print_given], ",
    "call.uni (print_status), vprintf, (print_format, print_given);",
];

impl Function {
    /// Appends the declarations of registers.
    pub fn print_registers(&self, text: &mut String) {
        for class in Class::ALL {
            let count = self.count(class);
            if count > 0 {
                // Writing to a string does not fail.
                let _ = writeln!(text, "    .reg .{} {}<{}>;", class.ty(), class.prefix(), count + 1);
            }
        }
    }

    /// Appends the code. `file_name` names the file of a line, for a comment.
    pub fn print(&self, text: &mut String, file_name: impl Fn(u32) -> String) {
        let mut written = Loc::default();
        for block in &self.blocks {
            if let Some(label) = block.label {
                print_label(text, label);
                text.push_str(":\n");
            }
            for &inst in block.insts.iter().filter(|inst| !inst.is_pseudo(self)) {
                if inst.loc.line != 0 && inst.loc != written {
                    written = inst.loc;
                    let Loc { file, line, column } = inst.loc;
                    let _ = writeln!(text, "    .loc {} {line} {column} // {}:{line}", file + 1, file_name(file));
                }
                self.print_inst(text, inst);
            }
        }
    }

    pub(super) fn print_inst(&self, text: &mut String, inst: Inst) {
        let (opcode, operands) = (self.opcode(inst).text(), self.operands(inst));
        if opcode == CALL_VPRINTF {
            return print_call(text, operands);
        }
        text.push_str("    ");
        if let Some(guard) = inst.guard {
            print_guard(text, guard);
        }
        text.push_str(opcode);
        for (i, operand) in operands.iter().enumerate() {
            text.push_str(if i == 0 { " " } else { ", " });
            print_operand(text, operand);
        }
        text.push_str(";\n");
    }
}

fn print_call(text: &mut String, operands: &[Operand]) {
    let mut operands = operands.iter();
    for line in CALL {
        text.push_str("    ");
        text.push_str(line);
        if line.ends_with(", ") {
            operands.next().into_iter().for_each(|operand| print_operand(text, operand));
            text.push(';');
        }
        text.push('\n');
    }
    text.push_str("    }\n");
}

fn print_guard(text: &mut String, guard: Guard) {
    text.push_str(if guard.negated { "@!" } else { "@" });
    print_reg(text, guard.predicate);
    text.push(' ');
}

fn print_reg(text: &mut String, reg: Reg) {
    text.push_str(reg.class.prefix());
    print_number(text, reg.number.into());
}

/// Appends a number, without the machinery of `write!`: most operands are numbered registers.
fn print_number(text: &mut String, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[first..].iter().map(|&digit| char::from(digit)));
}

pub(super) fn print_label(text: &mut String, label: Label) {
    text.push_str("$L");
    print_number(text, label.0.into());
}

fn print_vector(text: &mut String, regs: &[Reg]) {
    text.push('{');
    for (i, &reg) in regs.iter().enumerate() {
        text.push_str(if i == 0 { "" } else { ", " });
        print_reg(text, reg);
    }
    text.push('}');
}

fn print_symbol(text: &mut String, symbol: Symbol) {
    let (name, number) = match symbol {
        Symbol::Shared => ("shared", None),
        Symbol::PrintValues => ("print_values", None),
        Symbol::Param(number) => ("p", Some(number)),
        Symbol::PrintFormat(number) => ("print_format", Some(number)),
    };
    text.push_str(name);
    number.into_iter().for_each(|number| print_number(text, number.into()));
}

fn print_operand(text: &mut String, operand: &Operand) {
    match operand {
        Operand::Reg(reg) => print_reg(text, *reg),
        Operand::Int(value) => {
            text.push_str(if *value < 0 { "-" } else { "" });
            print_number(text, value.unsigned_abs());
        }
        Operand::Large(value) => print_number(text, *value),
        Operand::Bits(bits) => {
            let _ = write!(text, "{bits:#x}");
        }
        Operand::F32(bits) => {
            let _ = write!(text, "0f{bits:08X}");
        }
        Operand::F64(bits) => {
            let _ = write!(text, "0d{bits:016X}");
        }
        Operand::Address(base, offset) => {
            text.push('[');
            match base {
                Base::Reg(reg) => print_reg(text, *reg),
                Base::Symbol(symbol) => print_symbol(text, *symbol),
            }
            if let Some(offset) = offset {
                text.push('+');
                print_number(text, (*offset).into());
            }
            text.push(']');
        }
        Operand::Tensor(map, at) => {
            text.push('[');
            print_reg(text, *map);
            text.push_str(", ");
            print_vector(text, at);
            text.push(']');
        }
        Operand::Vector(regs) => print_vector(text, regs),
        Operand::Label(label) => print_label(text, *label),
        Operand::Symbol(symbol) => print_symbol(text, *symbol),
        Operand::Special(special) => text.push_str(match special {
            Special::Thread => "%tid.x",
            Special::Threads => "%ntid.x",
            Special::Block => "%ctaid.x",
            Special::Blocks => "%nctaid.x",
            Special::DynamicSharedBytes => "%dynamic_smem_size",
        }),
        Operand::Sink => text.push('_'),
    }
}
