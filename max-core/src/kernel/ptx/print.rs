//! Printing: calls of `vprintf`, the function of the driver that is behind CUDA's `printf`.
//!
//! It writes to a buffer of the driver's own, which the driver shows on standard output whenever the host waits for the device. So
//! nothing has to be passed to a kernel that prints, replays of a capture print too, and other kernels are as they were.

use super::emitter::{Fixed, Gen, ascii};
use super::machine::isa::CALL_VPRINTF;
use super::machine::{Class, Label, Reg, Symbol, mem_at};
use super::scalar::Kind;
use crate::dtype::DType;
use crate::kernel::abi::KernelKind;
use crate::kernel::ir::Value;

/// What the module of a kernel that prints has to declare.
#[derive(Debug, Default)]
pub(super) struct Printed {
    /// The formats.
    formats: Vec<String>,
    /// The most values of a line.
    values: usize,
}

impl Printed {
    /// What stands before the entry.
    pub fn module(&self) -> String {
        let mut text = String::new();
        if !self.formats.is_empty() {
            text += ".extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 values);\n\n";
        }
        for (i, format) in self.formats.iter().enumerate() {
            let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
            let (count, bytes, comment) = (bytes.len(), bytes.join(", "), ascii(format.trim_end()));
            text += &format!("// {comment}\n.global .align 1 .b8 print_format{i}[{count}] = {{{bytes}}};\n\n");
        }
        text
    }

    /// What stands at the start of the entry.
    pub fn entry(&self) -> String {
        match self.values {
            0 => String::new(),
            count => format!("    .local .align 8 .b8 print_values[{}];\n", 8 * count),
        }
    }
}

impl Gen<'_> {
    pub fn print(&mut self, label: &str, values: &[Value]) {
        let (mut format, mut given) = self.line_start();
        format += &escaped(label);
        for &value in values {
            let (reg, how) = self.as_argument(self.dtype(value), self.get(value));
            given.push(reg);
            format += how;
        }
        let skip = self.label();
        self.only_once(skip);
        self.call_printf(format + "\n", &given);
        self.place_label(skip);
    }

    /// Prints an access outside of an operand, where that is issued.
    pub fn check_bounds(&mut self, access: &str, operand: u32, index: &[Value], inside: Option<Reg>) {
        let (true, Some(inside)) = (self.options.bounds, inside) else { return };
        let skip = self.label();
        emit!(self, @inside, "bra", skip);
        self.only_once(skip);
        let (mut format, mut given) = self.line_start();
        let list = vec!["%lld"; index.len()].join(", ");
        format += &format!(
            "outside of `{}`: [{list}] of [{list}] is {access}\n",
            escaped(&self.kernel.operands[operand as usize].name)
        );
        given.extend(index.iter().map(|&v| self.get(v)));
        given.extend((0..index.len() as u32).map(|axis| self.dim(operand, axis)));
        self.call_printf(format, &given);
        self.place_label(skip);
    }

    /// What a line begins with: the place in the source, if it is known, and of a program its ids.
    fn line_start(&self) -> (String, Vec<Reg>) {
        let mut format = escaped(&self.source_line().unwrap_or_default());
        let ids = match self.kernel.kind {
            KernelKind::Program => self.program_ids.clone(),
            KernelKind::Elementwise => Vec::new(),
        };
        if !ids.is_empty() {
            format += " (%lld, %lld, %lld)";
        }
        format += if format.is_empty() { "" } else { ": " };
        (format, ids)
    }

    /// Program code is run by all threads of a block: all but one skip what follows.
    fn only_once(&mut self, skip: Label) {
        if !self.in_lanes {
            let first = self.fixed(Fixed::Leader);
            emit!(self, @!first, "bra", skip);
        }
    }

    /// A value in the 8 bytes in which `vprintf` takes it, and how it is written there.
    fn as_argument(&mut self, dtype: DType, value: Reg) -> (Reg, &'static str) {
        match Kind::of(dtype) {
            Kind::Bool => (self.selp(Class::B64, 1, 0, value), " %lld"),
            Kind::Signed(64) => (value, " %lld"),
            Kind::Signed(_) => (self.op1(Class::B64, "cvt.s64.s32", value), " %lld"),
            Kind::Unsigned(64) => (value, " %llu"),
            Kind::Unsigned(_) => (self.op1(Class::B64, "cvt.u64.u32", value), " %llu"),
            Kind::F32 => (self.op1(Class::F64, "cvt.f64.f32", value), " %.7g"),
            Kind::F64 => (value, " %.15g"),
        }
    }

    fn call_printf(&mut self, format: String, values: &[Reg]) {
        self.printed.values = self.printed.values.max(values.len());
        let known = self.printed.formats.iter().position(|f| *f == format);
        let index = known.unwrap_or_else(|| {
            self.printed.formats.push(format);
            self.printed.formats.len() - 1
        });
        for (i, value) in (0..).zip(values) {
            emit!(self, format!("st.local.{}", value.class.ty()), mem_at(Symbol::PrintValues, 8 * i), value);
        }
        let format = self.op1(Class::B64, "mov.u64", Symbol::PrintFormat(index as u32));
        let format = self.op1(Class::B64, "cvta.global.u64", format);
        let values = match values {
            [] => self.zero(Class::B64),
            [_, ..] => {
                let start = self.op1(Class::B64, "mov.u64", Symbol::PrintValues);
                self.op1(Class::B64, "cvta.local.u64", start)
            }
        };
        emit!(self, CALL_VPRINTF, format, values);
    }
}

/// Text in a format.
fn escaped(text: &str) -> String {
    text.replace('%', "%%")
}
