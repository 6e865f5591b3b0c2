//! Conversions between dtypes, those of memory included.

use super::emitter::Gen;
use super::float8::Float8;
use super::machine::{Class, Operand, Reg};
use super::scalar::Kind;
use crate::dtype::DType;

/// How a dtype lies in memory.
pub(super) enum Memory {
    /// A byte, 0 or 1.
    Bool,
    /// As in a register; the type in `ld` and `st`.
    Plain(&'static str),
    F16,
    BF16,
    Float8(Float8),
}

impl Memory {
    pub fn of(dtype: DType) -> Memory {
        match dtype {
            DType::Bool => Memory::Bool,
            DType::I8 => Memory::Plain("s8"),
            DType::I16 => Memory::Plain("s16"),
            DType::U8 => Memory::Plain("u8"),
            DType::U16 => Memory::Plain("u16"),
            DType::I32 | DType::U32 => Memory::Plain("b32"),
            DType::I64 | DType::U64 => Memory::Plain("b64"),
            DType::F32 => Memory::Plain("f32"),
            DType::F64 => Memory::Plain("f64"),
            DType::F16 => Memory::F16,
            DType::BF16 => Memory::BF16,
            DType::F8E4M3FN => Memory::Float8(Float8::E4M3FN),
            DType::F8E4M3FNUZ => Memory::Float8(Float8::E4M3FNUZ),
            DType::F8E5M2 => Memory::Float8(Float8::E5M2),
            DType::F8E5M2FNUZ => Memory::Float8(Float8::E5M2FNUZ),
        }
    }

    /// The class of a register that holds what lies in memory, and the type in `ld` and `st`.
    pub fn raw(&self, dtype: DType) -> (Class, &'static str) {
        match self {
            Memory::Bool | Memory::Float8(_) => (Class::B32, "u8"),
            Memory::Plain(ty) => (Class::of(dtype), ty),
            Memory::F16 | Memory::BF16 => (Class::B16, "b16"),
        }
    }
}

impl Gen<'_> {
    /// The value of what was read from memory.
    pub fn decode(&mut self, dtype: DType, raw: Reg) -> Reg {
        match Memory::of(dtype) {
            Memory::Plain(_) => raw,
            Memory::Bool => self.op2(Class::Pred, "setp.ne.u32", raw, 0),
            Memory::F16 => self.op1(Class::F32, "cvt.f32.f16", raw),
            Memory::BF16 => {
                let wide = self.op1(Class::B32, "cvt.u32.u16", raw);
                let bits = self.op2(Class::B32, "shl.b32", wide, 16);
                self.op1(Class::F32, "mov.b32", bits)
            }
            Memory::Float8(format) => self.decode_float8(format, raw),
        }
    }

    /// What a value becomes in memory.
    pub fn encode(&mut self, dtype: DType, value: Reg) -> Reg {
        match Memory::of(dtype) {
            Memory::Plain(_) => value,
            Memory::Bool => self.selp(Class::B32, 1, 0, value),
            Memory::F16 => self.op1(Class::B16, "cvt.rn.f16.f32", value),
            Memory::BF16 => self.op1(Class::B16, "cvt.rn.bf16.f32", value),
            Memory::Float8(format) => self.encode_float8(format, value),
        }
    }

    pub fn round(&mut self, dtype: DType, value: Reg) -> Reg {
        let raw = self.encode(dtype, value);
        self.decode(dtype, raw)
    }

    /// Converts as Rust's `as` does, and to bool by `x != 0`.
    pub fn cast(&mut self, from: DType, to: DType, a: Reg) -> Reg {
        let (source, target) = (Kind::of(from), Kind::of(to));
        let class = Class::of(to);
        if source == target {
            return a;
        }
        match (source, target) {
            (Kind::Bool, _) => {
                let one = match target {
                    Kind::F32 => Operand::F32(1.0_f32.to_bits()),
                    Kind::F64 => Operand::F64(1.0_f64.to_bits()),
                    Kind::Bool | Kind::Signed(_) | Kind::Unsigned(_) => Operand::Int(1),
                };
                self.selp(class, one, class.zero(), a)
            }
            (Kind::F32 | Kind::F64, Kind::Bool) => {
                self.op2(class, &format!("setp.neu.{}", source.ty()), a, a.class.zero())
            }
            (Kind::Signed(_) | Kind::Unsigned(_), Kind::Bool) => {
                self.op2(class, &format!("setp.ne.{}", source.ty()), a, 0)
            }
            (Kind::Signed(_) | Kind::Unsigned(_), Kind::F32 | Kind::F64) => {
                self.op1(class, &format!("cvt.rn.{}.{}", target.ty(), source.ty()), a)
            }
            (Kind::F32, Kind::F64) => self.op1(class, "cvt.f64.f32", a),
            (Kind::F64, Kind::F32 | Kind::F64) => self.op1(class, "cvt.rn.f32.f64", a),
            (Kind::F32, Kind::F32) => a,
            (Kind::F32 | Kind::F64, Kind::Signed(_) | Kind::Unsigned(_)) => self.float_to_integer(source, to, a),
            (Kind::Signed(_) | Kind::Unsigned(_), Kind::Signed(_) | Kind::Unsigned(_)) => {
                self.integer_to_integer(source, to, a)
            }
        }
    }

    fn float_to_integer(&mut self, source: Kind, to: DType, a: Reg) -> Reg {
        let class = Class::of(to);
        let (from_ty, ty) = (source.ty(), Kind::of(to).ty());
        // The instruction saturates to 32 or 64 bits; what it makes of NaN depends on the types.
        let wide = self.op1(class, &format!("cvt.rzi.{ty}.{from_ty}"), a);
        let nan = self.op2(Class::Pred, &format!("setp.nan.{from_ty}"), a, a);
        let number = self.selp(class, 0, wide, nan);
        match Kind::of(to) {
            Kind::Signed(width @ (8 | 16)) => {
                let low = self.op2(class, "max.s32", number, -(1_i32 << (width - 1)));
                self.op2(class, "min.s32", low, (1_i32 << (width - 1)) - 1)
            }
            Kind::Unsigned(width @ (8 | 16)) => self.op2(class, "min.u32", number, (1_u32 << width) - 1),
            Kind::Signed(_) | Kind::Unsigned(_) | Kind::Bool | Kind::F32 | Kind::F64 => number,
        }
    }

    fn integer_to_integer(&mut self, source: Kind, to: DType, a: Reg) -> Reg {
        let signed = matches!(source, Kind::Signed(_));
        match (a.class, Class::of(to)) {
            (Class::B32, Class::B64) if signed => self.op1(Class::B64, "cvt.s64.s32", a),
            (Class::B32, Class::B64) => self.op1(Class::B64, "cvt.u64.u32", a),
            (Class::B64, Class::B32) => {
                let low = self.op1(Class::B32, "cvt.u32.u64", a);
                self.narrow(to, low)
            }
            _ => self.narrow(to, a),
        }
    }

    /// The value of a small float whose bits are in the register of an integer.
    pub fn decode_bits(&mut self, dtype: DType, bits: Reg) -> Reg {
        let raw = if Memory::of(dtype).raw(dtype).0 == Class::B16 {
            self.op1(Class::B16, "cvt.u16.u32", bits)
        } else {
            // A signed byte has copies of its sign above it.
            self.op2(Class::B32, "and.b32", bits, 0xff)
        };
        self.decode(dtype, raw)
    }

    /// The bits of a value as a small float, as an integer of dtype `to`.
    pub fn encode_bits(&mut self, dtype: DType, to: DType, value: Reg) -> Reg {
        let mut raw = self.encode(dtype, value);
        if raw.class == Class::B16 {
            raw = self.op1(Class::B32, "cvt.u32.u16", raw);
        }
        self.narrow(to, raw)
    }

    /// The same bits as another dtype of that size.
    pub fn bitcast(&mut self, to: DType, a: Reg) -> Reg {
        let class = Class::of(to);
        if class == a.class {
            return self.narrow(to, a);
        }
        let bits = if class.shared_bytes() == 8 { "b64" } else { "b32" };
        self.op1(class, &format!("mov.{bits}"), a)
    }
}
