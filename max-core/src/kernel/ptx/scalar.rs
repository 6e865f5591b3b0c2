//! Scalar operations.

use super::emitter::Gen;
use super::machine::{Class, Label, Operand, Reg};
use crate::dtype::DType;
use crate::kernel::ir::{BinaryOp, CmpOp, UnaryOp};

/// What PTX has to know of a dtype.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Bool,
    /// Signed, with its width; in a 32-bit register if narrower.
    Signed(u32),
    /// Unsigned, likewise.
    Unsigned(u32),
    F32,
    F64,
}

impl Kind {
    pub fn of(dtype: DType) -> Kind {
        match dtype {
            DType::Bool => Kind::Bool,
            DType::I8 => Kind::Signed(8),
            DType::I16 => Kind::Signed(16),
            DType::I32 => Kind::Signed(32),
            DType::I64 => Kind::Signed(64),
            DType::U8 => Kind::Unsigned(8),
            DType::U16 => Kind::Unsigned(16),
            DType::U32 => Kind::Unsigned(32),
            DType::U64 => Kind::Unsigned(64),
            DType::F64 => Kind::F64,
            DType::F32 | DType::F16 | DType::BF16 => Kind::F32,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => Kind::F32,
        }
    }

    /// The type in arithmetic instructions.
    pub fn ty(self) -> &'static str {
        match self {
            Kind::Bool => "pred",
            Kind::Signed(64) => "s64",
            Kind::Signed(_) => "s32",
            Kind::Unsigned(64) => "u64",
            Kind::Unsigned(_) => "u32",
            Kind::F32 => "f32",
            Kind::F64 => "f64",
        }
    }

    /// The untyped form of the same size.
    pub fn bits(self) -> &'static str {
        match self {
            Kind::Bool => "pred",
            Kind::Signed(64) | Kind::Unsigned(64) | Kind::F64 => "b64",
            Kind::Signed(_) | Kind::Unsigned(_) | Kind::F32 => "b32",
        }
    }
}

impl Gen<'_> {
    /// Extends the low bits of a 32-bit register, for integers narrower than it.
    pub fn narrow(&mut self, dtype: DType, r: Reg) -> Reg {
        match Kind::of(dtype) {
            Kind::Signed(8) => self.op1(Class::B32, "cvt.s32.s8", r),
            Kind::Signed(16) => self.op1(Class::B32, "cvt.s32.s16", r),
            Kind::Unsigned(8) => self.op2(Class::B32, "and.b32", r, 0xff),
            Kind::Unsigned(16) => self.op2(Class::B32, "and.b32", r, 0xffff),
            Kind::Bool | Kind::Signed(_) | Kind::Unsigned(_) | Kind::F32 | Kind::F64 => r,
        }
    }

    /// A constant from its bits.
    pub fn constant(&mut self, dtype: DType, bits: u64) -> Reg {
        let class = Class::of(dtype);
        match Kind::of(dtype) {
            Kind::Bool => self.immediate(class, bits),
            Kind::F32 => self.immediate(class, Operand::F32(bits as u32)),
            Kind::F64 => self.immediate(class, Operand::F64(bits)),
            Kind::Signed(8) => self.immediate(class, bits as i8),
            Kind::Signed(16) => self.immediate(class, bits as i16),
            Kind::Signed(32) => self.immediate(class, bits as i32),
            Kind::Signed(_) => self.immediate(class, bits as i64),
            Kind::Unsigned(_) => self.immediate(class, bits),
        }
    }

    pub fn unary(&mut self, op: UnaryOp, dtype: DType, a: Reg) -> Reg {
        let (class, kind) = (Class::of(dtype), Kind::of(dtype));
        let ty = kind.ty();
        let signed = matches!(kind, Kind::Signed(_));
        let float = matches!(kind, Kind::F32 | Kind::F64);
        let integral = |g: &mut Self, rounding: &str| g.op1(class, &format!("cvt.{rounding}.{ty}.{ty}"), a);
        match op {
            UnaryOp::Neg if float => self.op1(class, &format!("neg.{ty}"), a),
            UnaryOp::Neg => self.negate(dtype, a),
            UnaryOp::Abs if float => self.op1(class, &format!("abs.{ty}"), a),
            UnaryOp::Abs if signed => {
                let negative = self.negate(dtype, a);
                self.op2(class, &format!("max.{ty}"), a, negative)
            }
            UnaryOp::Abs => a,
            UnaryOp::Not => {
                let d = self.op1(class, &format!("not.{}", kind.bits()), a);
                self.narrow(dtype, d)
            }
            UnaryOp::Sqrt => self.op1(class, &format!("sqrt.rn.{ty}"), a),
            UnaryOp::Floor => integral(self, "rmi"),
            UnaryOp::Ceil => integral(self, "rpi"),
            UnaryOp::Trunc => integral(self, "rzi"),
            UnaryOp::RoundEven => integral(self, "rni"),
            // Its error is 2^-22 (PTX ISA, "ex2").
            UnaryOp::Exp2Approx => self.op1(class, "ex2.approx.ftz.f32", a),
        }
    }

    /// `0 - a` of integers, wrapping.
    fn negate(&mut self, dtype: DType, a: Reg) -> Reg {
        let instruction = if Class::of(dtype) == Class::B64 { "neg.s64" } else { "neg.s32" };
        let d = self.op1(Class::of(dtype), instruction, a);
        self.narrow(dtype, d)
    }

    pub fn binary(&mut self, op: BinaryOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        match Kind::of(dtype) {
            Kind::Bool | Kind::Signed(_) | Kind::Unsigned(_) => self.integer_binary(op, dtype, a, b),
            Kind::F32 | Kind::F64 => self.float_binary(op, dtype, a, b),
        }
    }

    fn float_binary(&mut self, op: BinaryOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        let (class, kind) = (Class::of(dtype), Kind::of(dtype));
        let ty = kind.ty();
        match op {
            BinaryOp::Add => self.op2(class, &format!("add.rn.{ty}"), a, b),
            BinaryOp::Sub => self.op2(class, &format!("sub.rn.{ty}"), a, b),
            BinaryOp::Mul => self.op2(class, &format!("mul.rn.{ty}"), a, b),
            BinaryOp::Div => self.op2(class, &format!("div.rn.{ty}"), a, b),
            BinaryOp::Rem if kind == Kind::F32 => {
                let (wide_a, wide_b) = (self.op1(Class::F64, "cvt.f64.f32", a), self.op1(Class::F64, "cvt.f64.f32", b));
                // The remainder of two f32 values is an f32 value: nothing is rounded here.
                let wide = self.float_remainder(wide_a, wide_b);
                self.op1(class, "cvt.rn.f32.f64", wide)
            }
            BinaryOp::Rem => self.float_remainder(a, b),
            BinaryOp::Min if kind == Kind::F32 => self.op2(class, "min.NaN.f32", a, b),
            BinaryOp::Max if kind == Kind::F32 => self.op2(class, "max.NaN.f32", a, b),
            BinaryOp::Min => self.f64_extreme("lt", "or", a, b),
            BinaryOp::Max => self.f64_extreme("gt", "and", a, b),
            // The verifier allows these for integers and bools alone.
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Dot4 => a,
        }
    }

    /// Minimum or maximum of `f64`, for which PTX has no form that keeps NaN. Equal values differ in the sign of zero
    /// at most, which `and` and `or` of the bits decide.
    fn f64_extreme(&mut self, better: &str, zeros: &str, a: Reg, b: Reg) -> Reg {
        let a_wins = self.op2(Class::Pred, &format!("setp.{better}.f64"), a, b);
        let winner = self.selp(Class::F64, a, b, a_wins);
        let equal = self.op2(Class::Pred, "setp.eq.f64", a, b);
        let (a_bits, b_bits) = (self.op1(Class::B64, "mov.b64", a), self.op1(Class::B64, "mov.b64", b));
        let bits = self.op2(Class::B64, &format!("{zeros}.b64"), a_bits, b_bits);
        let zero = self.op1(Class::F64, "mov.b64", bits);
        let number = self.selp(Class::F64, zero, winner, equal);
        let unordered = self.op2(Class::Pred, "setp.nan.f64", a, b);
        let nan = self.op2(Class::F64, "add.rn.f64", a, b);
        self.selp(Class::F64, nan, number, unordered)
    }

    /// The exact remainder, by long division of the significands: ten bits of the quotient at a time.
    fn float_remainder(&mut self, a: Reg, b: Reg) -> Reg {
        const B64: Class = Class::B64;
        const PRED: Class = Class::Pred;
        let (done, again) = (self.label(), self.label());
        let bits = self.op1(B64, "mov.b64", a);
        let b_bits = self.op1(B64, "mov.b64", b);
        let magnitude = self.op2(B64, "and.b64", bits, i64::MAX);
        let divisor = self.op2(B64, "and.b64", b_bits, i64::MAX);
        let infinity = f64::INFINITY.to_bits();

        // A finite by something larger is itself; by zero, or of an infinity, or with a NaN, it is NaN.
        let result = self.copy(a);
        let invalid = self.op2(PRED, "setp.ge.u64", magnitude, infinity);
        let by_zero = self.op2(PRED, "setp.eq.u64", divisor, 0);
        let by_nan = self.op2(PRED, "setp.gt.u64", divisor, infinity);
        let invalid = self.op2(PRED, "or.pred", invalid, by_zero);
        let invalid = self.op2(PRED, "or.pred", invalid, by_nan);
        emit!(self, @invalid, "mov.f64", result, Operand::F64(0x7FF8000000000000));
        let smaller = self.op2(PRED, "setp.lt.u64", magnitude, divisor);
        let known = self.op2(PRED, "or.pred", invalid, smaller);
        emit!(self, @known, "bra", done);

        let (significand, exponent) = self.split_f64(magnitude);
        let (b_significand, b_exponent) = self.split_f64(divisor);
        let left = self.op2(B64, "sub.s64", exponent, b_exponent);
        let rest = self.op2(B64, "rem.u64", significand, b_significand);
        self.place_label(again);
        let finished = self.op2(PRED, "setp.le.s64", left, 0);
        let out = self.label();
        emit!(self, @finished, "bra", out);
        let step = self.op2(B64, "min.s64", left, 10);
        let shift = self.op1(Class::B32, "cvt.u32.u64", step);
        emit!(self, "shl.b64", rest, rest, shift);
        emit!(self, "rem.u64", rest, rest, b_significand);
        emit!(self, "sub.s64", left, left, step);
        emit!(self, "bra", again);
        self.place_label(out);

        // rest * 2^(b_exponent - 1075), where that power of two may itself be subnormal.
        let number = self.op1(Class::F64, "cvt.rn.f64.u64", rest);
        let normal = self.op2(B64, "sub.s64", b_exponent, 52);
        let normal = self.op2(B64, "shl.b64", normal, 52);
        let shift = self.op2(B64, "sub.s64", b_exponent, 1);
        let shift = self.op1(Class::B32, "cvt.u32.u64", shift);
        let one = self.immediate(B64, 1);
        let subnormal = self.op2(B64, "shl.b64", one, shift);
        let is_normal = self.op2(PRED, "setp.gt.s64", b_exponent, 52);
        let scale = self.selp(B64, normal, subnormal, is_normal);
        let scale = self.op1(Class::F64, "mov.b64", scale);
        let scaled = self.op2(Class::F64, "mul.rn.f64", number, scale);
        let scaled = self.op1(B64, "mov.b64", scaled);
        let sign = self.op2(B64, "and.b64", bits, i64::MIN);
        let signed = self.op2(B64, "or.b64", scaled, sign);
        emit!(self, "mov.b64", result, signed);
        self.place_label(done);
        result
    }

    /// Significand and biased exponent (1 for subnormals) of the bits of a positive finite `f64`.
    fn split_f64(&mut self, magnitude: Reg) -> (Reg, Reg) {
        let fraction = self.op2(Class::B64, "and.b64", magnitude, (1_u64 << 52) - 1);
        let full = self.op2(Class::B64, "or.b64", fraction, 1_u64 << 52);
        let exponent = self.op2(Class::B64, "shr.u64", magnitude, 52);
        let subnormal = self.op2(Class::Pred, "setp.eq.u64", exponent, 0);
        let significand = self.selp(Class::B64, fraction, full, subnormal);
        (significand, self.op2(Class::B64, "max.u64", exponent, 1))
    }

    fn integer_binary(&mut self, op: BinaryOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        let (class, kind) = (Class::of(dtype), Kind::of(dtype));
        let (ty, bits) = (kind.ty(), kind.bits());
        let simple = |g: &mut Self, instruction: &str, ty: &str| g.op2(class, &format!("{instruction}.{ty}"), a, b);
        let d = match op {
            BinaryOp::Add => simple(self, "add", ty),
            BinaryOp::Sub => simple(self, "sub", ty),
            BinaryOp::Mul => simple(self, "mul.lo", ty),
            BinaryOp::Min => simple(self, "min", ty),
            BinaryOp::Max => simple(self, "max", ty),
            BinaryOp::And => simple(self, "and", bits),
            BinaryOp::Or => simple(self, "or", bits),
            BinaryOp::Xor => simple(self, "xor", bits),
            BinaryOp::Div | BinaryOp::Rem => self.divide(op == BinaryOp::Rem, dtype, a, b),
            BinaryOp::Shl | BinaryOp::Shr => {
                let count = if class == Class::B64 { self.op1(Class::B32, "cvt.u32.u64", b) } else { b };
                let width = 8 * dtype.size_in_bytes();
                let count = self.op2(Class::B32, "and.b32", count, width - 1);
                let instruction = match op == BinaryOp::Shl {
                    true => format!("shl.{bits}"),
                    false => format!("shr.{ty}"),
                };
                self.op2(class, &instruction, a, count)
            }
            BinaryOp::Dot4 => {
                let low = self.op2(Class::B32, "and.b32", a, 0x7f7f_7f7f);
                let d = self.reg(Class::B32);
                emit!(self, "dp4a.u32.s32", d, low, b, 0);
                d
            }
        };
        match op {
            // What these make of extended operands is extended already.
            BinaryOp::Min | BinaryOp::Max | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shr => d,
            // A sum of 32 bits, which `int32` has.
            BinaryOp::Dot4 => d,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem | BinaryOp::Shl => {
                self.narrow(dtype, d)
            }
        }
    }

    /// Branches to `wide` unless two 64-bit integers are both of 32 bits without a sign; gives them as such.
    ///
    /// GPUs have no division of integers. One of 32 bits takes about 20 instructions; one of 64 bits is a call, of about
    /// 100, and few indices and sizes need it.
    fn narrow_division(&mut self, a: Reg, b: Reg, wide: Label) -> [Reg; 2] {
        let both = self.op2(Class::B64, "or.b64", a, b);
        let high = self.op2(Class::B64, "shr.u64", both, 32);
        let is_wide = self.op2(Class::Pred, "setp.ne.s64", high, 0);
        emit!(self, @is_wide, "bra", wide);
        [a, b].map(|r| self.op1(Class::B32, "cvt.u32.u64", r))
    }

    /// Division or remainder by what is neither 0 nor -1; of 64-bit integers by one of 32 bits where that is enough.
    fn divide_integers(&mut self, op: &str, ty: &str, a: Reg, b: Reg) -> Reg {
        if a.class != Class::B64 {
            return self.op2(a.class, &format!("{op}.{ty}"), a, b);
        }
        let (result, wide, end) = (self.reg(Class::B64), self.label(), self.label());
        let [narrow_a, narrow_b] = self.narrow_division(a, b, wide);
        let narrow = self.op2(Class::B32, &format!("{op}.u32"), narrow_a, narrow_b);
        emit!(self, "cvt.u64.u32", result, narrow);
        emit!(self, "bra", end);
        self.place_label(wide);
        emit!(self, format!("{op}.{ty}"), result, a, b);
        self.place_label(end);
        result
    }

    /// Quotient and remainder of 64-bit integers that are not negative, the second of which is not 0.
    pub fn div_rem(&mut self, a: Reg, b: Reg) -> [Reg; 2] {
        let (quotient, rest) = (self.reg(Class::B64), self.reg(Class::B64));
        let (wide, end) = (self.label(), self.label());
        let [narrow_a, narrow_b] = self.narrow_division(a, b, wide);
        let narrow = self.op2(Class::B32, "div.u32", narrow_a, narrow_b);
        let whole = self.op2(Class::B32, "mul.lo.u32", narrow, narrow_b);
        let narrow_rest = self.op2(Class::B32, "sub.u32", narrow_a, whole);
        emit!(self, "cvt.u64.u32", quotient, narrow);
        emit!(self, "cvt.u64.u32", rest, narrow_rest);
        emit!(self, "bra", end);
        self.place_label(wide);
        emit!(self, "div.u64", quotient, a, b);
        let whole = self.op2(Class::B64, "mul.lo.s64", quotient, b);
        emit!(self, "sub.s64", rest, a, whole);
        self.place_label(end);
        [quotient, rest]
    }

    /// Division or remainder, with 0 for a divisor of 0, and wrapping where the quotient overflows. PTX leaves both
    /// open, so the divisions that it does are by something else.
    fn divide(&mut self, remainder: bool, dtype: DType, a: Reg, b: Reg) -> Reg {
        let (class, ty) = (Class::of(dtype), Kind::of(dtype).ty());
        let signed = matches!(Kind::of(dtype), Kind::Signed(_));
        let by_zero = self.op2(Class::Pred, &format!("setp.eq.{ty}"), b, 0);
        let mut divisor = self.selp(class, 1, b, by_zero);
        let mut negated = None;
        if signed {
            let by_minus_one = self.op2(Class::Pred, &format!("setp.eq.{ty}"), b, -1);
            divisor = self.selp(class, 1, divisor, by_minus_one);
            negated = Some(by_minus_one);
        }
        if remainder {
            // By 1, and so by 0 and -1, nothing remains.
            return self.divide_integers("rem", ty, a, divisor);
        }
        let mut quotient = self.divide_integers("div", ty, a, divisor);
        if let Some(by_minus_one) = negated {
            let minus = self.op1(class, &format!("neg.{ty}"), a);
            quotient = self.selp(class, minus, quotient, by_minus_one);
        }
        self.selp(class, 0, quotient, by_zero)
    }

    pub fn cmp(&mut self, op: CmpOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        let kind = Kind::of(dtype);
        if kind == Kind::Bool {
            return self.bool_cmp(op, a, b);
        }
        let unordered_ne = matches!(kind, Kind::F32 | Kind::F64);
        let name = match op {
            CmpOp::Ne if unordered_ne => "neu",
            CmpOp::Lt | CmpOp::Le | CmpOp::Gt | CmpOp::Ge | CmpOp::Eq | CmpOp::Ne => op.name(),
        };
        self.op2(Class::Pred, &format!("setp.{name}.{}", kind.ty()), a, b)
    }

    fn bool_cmp(&mut self, op: CmpOp, a: Reg, b: Reg) -> Reg {
        let not = |g: &mut Self, a| g.op1(Class::Pred, "not.pred", a);
        let pair = |g: &mut Self, instruction, a, b| g.op2(Class::Pred, instruction, a, b);
        match op {
            CmpOp::Ne => pair(self, "xor.pred", a, b),
            CmpOp::Eq => {
                let differ = pair(self, "xor.pred", a, b);
                not(self, differ)
            }
            CmpOp::Lt => {
                let not_a = not(self, a);
                pair(self, "and.pred", not_a, b)
            }
            CmpOp::Le => {
                let not_a = not(self, a);
                pair(self, "or.pred", not_a, b)
            }
            CmpOp::Gt => self.bool_cmp(CmpOp::Lt, b, a),
            CmpOp::Ge => self.bool_cmp(CmpOp::Le, b, a),
        }
    }

    pub fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        if a.class != Class::Pred {
            return self.selp(a.class, a, b, condition);
        }
        let yes = self.op2(Class::Pred, "and.pred", condition, a);
        let otherwise = self.op1(Class::Pred, "not.pred", condition);
        let no = self.op2(Class::Pred, "and.pred", otherwise, b);
        self.op2(Class::Pred, "or.pred", yes, no)
    }

    pub fn fma(&mut self, dtype: DType, a: Reg, b: Reg, c: Reg) -> Reg {
        let d = self.reg(a.class);
        emit!(self, format!("fma.rn.{}", Kind::of(dtype).ty()), d, a, b, c);
        d
    }
}
