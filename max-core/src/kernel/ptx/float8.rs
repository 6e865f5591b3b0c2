//! The 8-bit floats, converted with integer instructions on every target.
//!
//! The same algorithm as in [`crate::dtype::float8`], on the bits of an `f32`: rounding to nearest even, and nothing
//! saturates.

use super::emitter::Gen;
use super::machine::{Class, Operand, Reg};

/// What tells one 8-bit float format from another.
pub(super) struct Float8 {
    /// Stored bits of the significand.
    mantissa: u32,
    /// Exponent bias.
    bias: u32,
    /// The largest finite code.
    largest: u32,
    /// What a positive value out of range becomes.
    overflow: u32,
    /// The positive NaN.
    nan: u32,
    /// Whether there is one zero and one NaN, `0x80`.
    unsigned_zero: bool,
}

impl Float8 {
    pub const E4M3FN: Float8 =
        Float8 { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7f, nan: 0x7f, unsigned_zero: false };
    pub const E4M3FNUZ: Float8 =
        Float8 { mantissa: 3, bias: 8, largest: 0x7f, overflow: 0x80, nan: 0x80, unsigned_zero: true };
    pub const E5M2: Float8 =
        Float8 { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7c, nan: 0x7e, unsigned_zero: false };
    pub const E5M2FNUZ: Float8 =
        Float8 { mantissa: 2, bias: 16, largest: 0x7f, overflow: 0x80, nan: 0x80, unsigned_zero: true };
}

/// The bits of 2^`exponent`.
fn power_of_two(exponent: i32) -> u32 {
    ((exponent + 127) as u32) << 23
}

const INFINITY: u32 = 0x7f80_0000;

impl Gen<'_> {
    /// The code of an `f32`, in a 32-bit register.
    pub fn encode_float8(&mut self, f: Float8, value: Reg) -> Reg {
        const B32: Class = Class::B32;
        const PRED: Class = Class::Pred;
        let bias = f.bias as i32;
        let bits = self.op1(B32, "mov.b32", value);
        let magnitude = self.op2(B32, "and.b32", bits, i32::MAX);

        // Normal: add just under half of the last kept place, and the bit that breaks ties, then re-bias the exponent.
        let shift = 23 - f.mantissa;
        let last = self.op2(B32, "shr.u32", magnitude, shift);
        let odd = self.op2(B32, "and.b32", last, 1);
        let sum = self.op2(B32, "add.u32", magnitude, (1_u32 << (shift - 1)) - 1);
        let sum = self.op2(B32, "add.u32", sum, odd);
        let rounded = self.op2(B32, "shr.u32", sum, shift);
        let normal = self.op2(B32, "sub.u32", rounded, (127 - f.bias) << f.mantissa);

        // Subnormal: the last place of the sum is the smallest subnormal, so the addition rounds.
        let magic = power_of_two(1 - bias - f.mantissa as i32 + 23);
        let positive = self.op1(Class::F32, "mov.b32", magnitude);
        let sum = self.op2(Class::F32, "add.rn.f32", positive, Operand::F32(magic));
        let sum = self.op1(B32, "mov.b32", sum);
        let subnormal = self.op2(B32, "sub.u32", sum, magic);

        let small = self.op2(PRED, "setp.lt.u32", magnitude, power_of_two(1 - bias));
        let code = self.selp(B32, subnormal, normal, small);
        let large = self.op2(PRED, "setp.gt.u32", code, f.largest);
        let code = self.selp(B32, f.overflow, code, large);
        let nan = self.op2(PRED, "setp.gt.u32", magnitude, INFINITY);
        let code = self.selp(B32, f.nan, code, nan);
        let sign = self.op2(B32, "shr.u32", bits, 24);
        let sign = self.op2(B32, "and.b32", sign, 0x80);
        let signed = self.op2(B32, "or.b32", code, sign);
        if !f.unsigned_zero {
            return signed;
        }
        let zero = self.op2(PRED, "setp.eq.u32", code, 0);
        self.selp(B32, 0, signed, zero)
    }

    /// The `f32` of a code.
    pub fn decode_float8(&mut self, f: Float8, code: Reg) -> Reg {
        const B32: Class = Class::B32;
        const PRED: Class = Class::Pred;
        let magnitude = self.op2(B32, "and.b32", code, 0x7f);
        // As the exponent and fraction of an f32, subnormal or not, it is short of a power of two alone.
        let shifted = self.op2(B32, "shl.b32", magnitude, 23 - f.mantissa);
        let small = self.op1(Class::F32, "mov.b32", shifted);
        let scale = power_of_two(127 - f.bias as i32);
        let value = self.op2(Class::F32, "mul.rn.f32", small, Operand::F32(scale));
        let mut bits = self.op1(B32, "mov.b32", value);
        let nan = 0x7fc0_0000_u32;
        if f.unsigned_zero {
            let sign = self.op2(B32, "and.b32", code, 0x80);
            let sign = self.op2(B32, "shl.b32", sign, 24);
            bits = self.op2(B32, "or.b32", bits, sign);
            let is_nan = self.op2(PRED, "setp.eq.u32", code, 0x80);
            bits = self.selp(B32, nan, bits, is_nan);
        } else {
            if f.overflow != f.nan {
                let infinite = self.op2(PRED, "setp.eq.u32", magnitude, f.overflow);
                bits = self.selp(B32, INFINITY, bits, infinite);
            }
            let last_number = if f.overflow == f.nan { f.largest } else { f.overflow };
            let is_nan = self.op2(PRED, "setp.gt.u32", magnitude, last_number);
            bits = self.selp(B32, nan, bits, is_nan);
            let sign = self.op2(B32, "and.b32", code, 0x80);
            let sign = self.op2(B32, "shl.b32", sign, 24);
            bits = self.op2(B32, "or.b32", bits, sign);
        }
        self.op1(Class::F32, "mov.b32", bits)
    }
}
