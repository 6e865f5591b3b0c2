//! Read-modify-write of one element, indivisible among all blocks.

use super::super::convert::Memory;
use super::super::emitter::Gen;
use super::super::machine::{Class, Reg, mem};
use super::super::scalar::Kind;
use super::Place;
use crate::dtype::DType;
use crate::kernel::ir::{AtomicOp, BinaryOp, Value};

impl Gen<'_> {
    pub fn atomic(&mut self, op: AtomicOp, operand: u32, index: &[Value], value: Value) {
        let place = self.write_place(operand, index);
        let value = self.get(value);
        let dtype = self.memory_dtype(operand);
        match native(op, dtype) {
            Some(instruction) => {
                let opcode = format!("red.relaxed.gpu.global.{instruction}");
                emit!(self, when place.inside, opcode, mem(place.address), value);
            }
            None => self.exchange_loop(op, dtype, place, value),
        }
    }

    /// Replaces the element until nobody else has changed it meanwhile. An 8-bit one is replaced with the aligned word
    /// that it lies in.
    fn exchange_loop(&mut self, op: AtomicOp, dtype: DType, place: Place, value: Reg) {
        let (again, done) = (self.label(), self.label());
        if let Some(inside) = place.inside {
            emit!(self, @!inside, "bra", done);
        }
        let size = dtype.size_in_bytes();
        let (class, bits) = match size {
            8 => (Class::B64, "b64"),
            2 => (Class::B16, "b16"),
            _ => (Class::B32, "b32"),
        };
        let mut address = place.address;
        let mut byte_shift = None;
        if size == 1 {
            let low = self.op1(Class::B32, "cvt.u32.u64", address);
            let byte = self.op2(Class::B32, "and.b32", low, 3);
            byte_shift = Some(self.op2(Class::B32, "shl.b32", byte, 3));
            address = self.op2(Class::B64, "and.b64", address, -4);
        }
        let old = self.reg(class);
        emit!(self, format!("ld.relaxed.gpu.global.{bits}"), old, mem(address));
        self.place_label(again);
        let raw = match byte_shift {
            Some(shift) => {
                let low = self.op2(Class::B32, "shr.u32", old, shift);
                self.narrow(byte_dtype(dtype), low)
            }
            None => self.untyped_to_raw(dtype, old),
        };
        let before = self.decode(dtype, raw);
        let after = self.binary(binary(op), dtype, before, value);
        let raw = self.encode(dtype, after);
        let new = match byte_shift {
            Some(shift) => {
                let byte = self.op2(Class::B32, "and.b32", raw, 0xff);
                let byte = self.op2(Class::B32, "shl.b32", byte, shift);
                let ones = self.immediate(Class::B32, 0xff);
                let mask = self.op2(Class::B32, "shl.b32", ones, shift);
                let mask = self.op1(Class::B32, "not.b32", mask);
                let others = self.op2(Class::B32, "and.b32", old, mask);
                self.op2(Class::B32, "or.b32", others, byte)
            }
            None => self.raw_to_untyped(dtype, raw),
        };
        let seen = self.reg(class);
        emit!(self, format!("atom.relaxed.gpu.global.cas.{bits}"), seen, mem(address), old, new);
        let compared = match size {
            2 => "setp.ne.b16",
            8 => "setp.ne.b64",
            _ => "setp.ne.b32",
        };
        let changed = self.op2(Class::Pred, compared, seen, old);
        self.mov(old, seen);
        emit!(self, @changed, "bra", again);
        self.place_label(done);
    }

    /// The register that a load would give, from the untyped word.
    fn untyped_to_raw(&mut self, dtype: DType, word: Reg) -> Reg {
        let (class, _) = Memory::of(dtype).raw(dtype);
        match (word.class, class) {
            (Class::B16, Class::B32) if dtype.is_signed_integral() => self.op1(class, "cvt.s32.s16", word),
            (Class::B16, Class::B32) => self.op1(class, "cvt.u32.u16", word),
            (from, to) if from == to => word,
            (Class::B64, _) => self.op1(class, "mov.b64", word),
            _ => self.op1(class, "mov.b32", word),
        }
    }

    /// The reverse of [`Gen::untyped_to_raw`].
    fn raw_to_untyped(&mut self, dtype: DType, raw: Reg) -> Reg {
        match (dtype.size_in_bytes(), raw.class) {
            (2, Class::B32) => self.op1(Class::B16, "cvt.u16.u32", raw),
            (_, Class::F32) => self.op1(Class::B32, "mov.b32", raw),
            (_, Class::F64) => self.op1(Class::B64, "mov.b64", raw),
            _ => raw,
        }
    }
}

fn binary(op: AtomicOp) -> BinaryOp {
    match op {
        AtomicOp::Add => BinaryOp::Add,
        AtomicOp::Min => BinaryOp::Min,
        AtomicOp::Max => BinaryOp::Max,
        AtomicOp::And => BinaryOp::And,
        AtomicOp::Or => BinaryOp::Or,
        AtomicOp::Xor => BinaryOp::Xor,
    }
}

/// A byte of a word, before [`Gen::decode`].
fn byte_dtype(dtype: DType) -> DType {
    if dtype == DType::I8 { DType::I8 } else { DType::U8 }
}

/// The operation and type of the one instruction that does it, if there is one. `red.add.f32` is none: in global memory
/// it flushes subnormals.
fn native(op: AtomicOp, dtype: DType) -> Option<String> {
    let kind = Kind::of(dtype);
    if dtype.is_float() && dtype != DType::F64 || dtype.size_in_bytes() < 4 {
        return None;
    }
    let ty = match (op, kind) {
        (AtomicOp::Add, Kind::F64) => "f64",
        (_, Kind::F64) => return None,
        // Addition wraps alike for both signs, and has no s64 form.
        (AtomicOp::Add, Kind::Signed(64)) => "u64",
        (AtomicOp::Add | AtomicOp::Min | AtomicOp::Max, _) => kind.ty(),
        (AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, _) => kind.bits(),
    };
    Some(format!("{}.{ty}", op.name()))
}
