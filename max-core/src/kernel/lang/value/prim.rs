//! The numbers that kernels compute with, and what each operation means on one of them.
//!
//! This is the definition that every form of a kernel follows: the CPU's vector code is these functions inlined into
//! loops, the reference form calls them one by one, and the PTX writer must agree with them bit for bit. None of them
//! can panic.

use crate::dtype::DType;
use crate::kernel::ir::{BinaryOp, CmpOp, UnaryOp};

/// A compute type: `bool`, an integer, `f32` or `f64`.
pub trait Prim: Copy + PartialEq + PartialOrd + Default + Send + Sync + std::fmt::Debug + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// Whether it is `f32` or `f64`.
    const FLOAT: bool;

    /// The value nearest to `v` (integers: truncated, saturating).
    fn from_f64(v: f64) -> Self;
    /// The value of an integer literal; integers wrap.
    fn from_i128(v: i128) -> Self;
    /// Its bits, zero-extended.
    fn bits(self) -> u64;
    /// The value of the low bits.
    fn of_bits(bits: u64) -> Self;

    /// [`UnaryOp::Neg`]
    fn neg(self) -> Self;
    /// [`UnaryOp::Abs`]
    fn abs(self) -> Self;
    /// [`UnaryOp::Not`]
    fn not(self) -> Self;
    /// [`UnaryOp::Sqrt`]
    fn sqrt(self) -> Self;
    /// [`UnaryOp::Floor`]
    fn floor(self) -> Self;
    /// [`UnaryOp::Ceil`]
    fn ceil(self) -> Self;
    /// [`UnaryOp::Trunc`]
    fn trunc(self) -> Self;
    /// [`UnaryOp::RoundEven`]
    fn round_even(self) -> Self;
    /// [`BinaryOp::Add`]
    fn add(self, b: Self) -> Self;
    /// [`BinaryOp::Sub`]
    fn sub(self, b: Self) -> Self;
    /// [`BinaryOp::Mul`]
    fn mul(self, b: Self) -> Self;
    /// [`BinaryOp::Div`]
    fn div(self, b: Self) -> Self;
    /// [`BinaryOp::Rem`]
    fn rem(self, b: Self) -> Self;
    /// [`BinaryOp::Min`]
    fn min(self, b: Self) -> Self;
    /// [`BinaryOp::Max`]
    fn max(self, b: Self) -> Self;
    /// [`BinaryOp::And`]
    fn and(self, b: Self) -> Self;
    /// [`BinaryOp::Or`]
    fn or(self, b: Self) -> Self;
    /// [`BinaryOp::Xor`]
    fn xor(self, b: Self) -> Self;
    /// [`BinaryOp::Shl`]
    fn shl(self, b: Self) -> Self;
    /// [`BinaryOp::Shr`]
    fn shr(self, b: Self) -> Self;
    /// [`BinaryOp::Dot4`]
    fn dot4(self, b: Self) -> Self;
    /// `a * b + c` with one rounding.
    fn fma(self, b: Self, c: Self) -> Self;

    /// Conversion to each compute type, as Rust's `as`.
    fn to_bool(self) -> bool;
    /// To `i8`.
    fn to_i8(self) -> i8;
    /// To `i16`.
    fn to_i16(self) -> i16;
    /// To `i32`.
    fn to_i32(self) -> i32;
    /// To `i64`.
    fn to_i64(self) -> i64;
    /// To `u8`.
    fn to_u8(self) -> u8;
    /// To `u16`.
    fn to_u16(self) -> u16;
    /// To `u32`.
    fn to_u32(self) -> u32;
    /// To `u64`.
    fn to_u64(self) -> u64;
    /// To `f32`.
    fn to_f32(self) -> f32;
    /// To `f64`.
    fn to_f64(self) -> f64;
    /// Converts any compute type to this one.
    fn cast_from<P: Prim>(p: P) -> Self;
}

macro_rules! casts_out {
    ($self:ident => $($name:ident $t:ty = $e:expr),*) => { $(#[inline(always)] fn $name($self) -> $t { $e })* };
}

macro_rules! int_prim {
    ($($t:ident $signed:literal $d:ident $to:ident),*) => { $(
        impl Prim for $t {
            const DTYPE: DType = DType::$d;
            const FLOAT: bool = false;
            #[inline(always)] fn from_f64(v: f64) -> Self { v as $t }
            #[inline(always)] fn from_i128(v: i128) -> Self { v as $t }
            #[inline(always)] fn bits(self) -> u64 { u64::from_le_bytes({ let mut b = [0; 8]; let s = self.to_le_bytes(); let mut i = 0; while i < s.len() { b[i] = s[i]; i += 1 } b }) }
            #[inline(always)] fn of_bits(bits: u64) -> Self { bits as $t }
            #[inline(always)] fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)] #[allow(unused_comparisons)] fn abs(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
            #[inline(always)] fn not(self) -> Self { !self }
            #[inline(always)] fn sqrt(self) -> Self { self }
            #[inline(always)] fn floor(self) -> Self { self }
            #[inline(always)] fn ceil(self) -> Self { self }
            #[inline(always)] fn trunc(self) -> Self { self }
            #[inline(always)] fn round_even(self) -> Self { self }
            #[inline(always)] fn add(self, b: Self) -> Self { self.wrapping_add(b) }
            #[inline(always)] fn sub(self, b: Self) -> Self { self.wrapping_sub(b) }
            #[inline(always)] fn mul(self, b: Self) -> Self { self.wrapping_mul(b) }
            #[inline(always)] fn div(self, b: Self) -> Self { if b == 0 { 0 } else { self.wrapping_div(b) } }
            #[inline(always)] fn rem(self, b: Self) -> Self { if b == 0 { 0 } else { self.wrapping_rem(b) } }
            #[inline(always)] fn min(self, b: Self) -> Self { if self < b { self } else { b } }
            #[inline(always)] fn max(self, b: Self) -> Self { if self > b { self } else { b } }
            #[inline(always)] fn and(self, b: Self) -> Self { self & b }
            #[inline(always)] fn or(self, b: Self) -> Self { self | b }
            #[inline(always)] fn xor(self, b: Self) -> Self { self ^ b }
            #[inline(always)] fn shl(self, b: Self) -> Self { self.wrapping_shl(b as u32) }
            #[inline(always)] fn shr(self, b: Self) -> Self { self.wrapping_shr(b as u32) }
            #[inline(always)] fn dot4(self, b: Self) -> Self {
                let (a, b) = (self as u64 as u32, b as u64 as u32);
                let (mut sum, mut k) = (0_i32, 0);
                while k < 32 {
                    sum += ((a >> k & 127) as i32) * ((b >> k) as i8 as i32);
                    k += 8;
                }
                sum as $t
            }
            #[inline(always)] fn fma(self, b: Self, c: Self) -> Self { self.wrapping_mul(b).wrapping_add(c) }
            casts_out!(self => to_bool bool = self != 0, to_i8 i8 = self as i8, to_i16 i16 = self as i16, to_i32 i32 = self as i32,
                to_i64 i64 = self as i64, to_u8 u8 = self as u8, to_u16 u16 = self as u16, to_u32 u32 = self as u32,
                to_u64 u64 = self as u64, to_f32 f32 = self as f32, to_f64 f64 = self as f64);
            #[inline(always)] fn cast_from<P: Prim>(p: P) -> Self { p.$to() }
        }
    )* };
}
int_prim!(i8 true I8 to_i8, i16 true I16 to_i16, i32 true I32 to_i32, i64 true I64 to_i64,
          u8 false U8 to_u8, u16 false U16 to_u16, u32 false U32 to_u32, u64 false U64 to_u64);

/// Truncates toward zero, saturating, NaN to 0, in a form that stays in vector registers: Rust's `as` compiles to
/// scalar code here, an unchecked conversion of a clamped value does not.
macro_rules! float_to_int {
    ($x:expr, $f:ident, $i:ident) => {{
        let x = $x;
        // Bounds that the float type represents: MIN is a power of two, MAX + 1 as well.
        let lo = $i::MIN as $f;
        let over = $i::MAX as $f; // rounds up to MAX + 1 where MAX is not representable
        let exact = (over as i128) == ($i::MAX as i128);
        let inside = (x >= lo) & if exact { x <= over } else { x < over };
        let safe = if inside { x } else { 0.0 };
        // SAFETY: `safe` is finite and, truncated, in the integer's range.
        let v: $i = unsafe { safe.to_int_unchecked() };
        let v = if x >= over { $i::MAX } else { v };
        if x < lo { $i::MIN } else { v }
    }};
}

macro_rules! float_prim {
    ($($t:ident $bits:ident $d:ident $to:ident),*) => { $(
        impl Prim for $t {
            const DTYPE: DType = DType::$d;
            const FLOAT: bool = true;
            #[inline(always)] fn from_f64(v: f64) -> Self { v as $t }
            #[inline(always)] fn from_i128(v: i128) -> Self { v as $t }
            #[inline(always)] fn bits(self) -> u64 { self.to_bits() as u64 }
            #[inline(always)] fn of_bits(bits: u64) -> Self { $t::from_bits(bits as $bits) }
            #[inline(always)] fn neg(self) -> Self { -self }
            #[inline(always)] fn abs(self) -> Self { $t::abs(self) }
            #[inline(always)] fn not(self) -> Self { self }
            #[inline(always)] fn sqrt(self) -> Self { $t::sqrt(self) }
            #[inline(always)] fn floor(self) -> Self { $t::floor(self) }
            #[inline(always)] fn ceil(self) -> Self { $t::ceil(self) }
            #[inline(always)] fn trunc(self) -> Self { $t::trunc(self) }
            #[inline(always)] fn round_even(self) -> Self { $t::round_ties_even(self) }
            #[inline(always)] fn add(self, b: Self) -> Self { self + b }
            #[inline(always)] fn sub(self, b: Self) -> Self { self - b }
            #[inline(always)] fn mul(self, b: Self) -> Self { self * b }
            #[inline(always)] fn div(self, b: Self) -> Self { self / b }
            // `x - trunc(x / y) * y` is not exact; Rust's `%` is, through libm's fmod.
            #[inline(always)] fn rem(self, b: Self) -> Self { self % b }
            // IEEE 754-2019 minimum and maximum: NaN if either is, -0 < +0.
            #[inline(always)] fn min(self, b: Self) -> Self {
                let m = if self < b { self } else { b };
                let m = if self == b { $t::from_bits(self.to_bits() | b.to_bits()) } else { m };
                if self != self { self } else { m }
            }
            #[inline(always)] fn max(self, b: Self) -> Self {
                let m = if self > b { self } else { b };
                let m = if self == b { $t::from_bits(self.to_bits() & b.to_bits()) } else { m };
                if self != self { self } else { m }
            }
            #[inline(always)] fn and(self, _: Self) -> Self { self }
            #[inline(always)] fn or(self, _: Self) -> Self { self }
            #[inline(always)] fn xor(self, _: Self) -> Self { self }
            #[inline(always)] fn shl(self, _: Self) -> Self { self }
            #[inline(always)] fn shr(self, _: Self) -> Self { self }
            #[inline(always)] fn dot4(self, _: Self) -> Self { self }
            #[inline(always)] fn fma(self, b: Self, c: Self) -> Self { self.mul_add(b, c) }
            casts_out!(self => to_bool bool = self != 0.0, to_i8 i8 = float_to_int!(self, $t, i8), to_i16 i16 = float_to_int!(self, $t, i16),
                to_i32 i32 = float_to_int!(self, $t, i32), to_i64 i64 = float_to_int!(self, $t, i64), to_u8 u8 = float_to_int!(self, $t, u8),
                to_u16 u16 = float_to_int!(self, $t, u16), to_u32 u32 = float_to_int!(self, $t, u32), to_u64 u64 = float_to_int!(self, $t, u64),
                to_f32 f32 = self as f32, to_f64 f64 = self as f64);
            #[inline(always)] fn cast_from<P: Prim>(p: P) -> Self { p.$to() }
        }
    )* };
}
float_prim!(f32 u32 F32 to_f32, f64 u64 F64 to_f64);

impl Prim for bool {
    const DTYPE: DType = DType::Bool;
    const FLOAT: bool = false;
    #[inline(always)]
    fn from_f64(v: f64) -> Self {
        v != 0.0
    }
    #[inline(always)]
    fn from_i128(v: i128) -> Self {
        v != 0
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        self as u64
    }
    #[inline(always)]
    fn of_bits(bits: u64) -> Self {
        bits & 1 != 0
    }
    #[inline(always)]
    fn neg(self) -> Self {
        self
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self
    }
    #[inline(always)]
    fn not(self) -> Self {
        !self
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self
    }
    #[inline(always)]
    fn floor(self) -> Self {
        self
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        self
    }
    #[inline(always)]
    fn trunc(self) -> Self {
        self
    }
    #[inline(always)]
    fn round_even(self) -> Self {
        self
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self | b
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self ^ b
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn rem(self, _: Self) -> Self {
        false
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self | b
    }
    #[inline(always)]
    fn and(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        self | b
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        self ^ b
    }
    #[inline(always)]
    fn shl(self, _: Self) -> Self {
        self
    }
    #[inline(always)]
    fn shr(self, _: Self) -> Self {
        self
    }
    #[inline(always)]
    fn dot4(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        (self & b) | c
    }
    casts_out!(self => to_bool bool = self, to_i8 i8 = self as i8, to_i16 i16 = self as i16, to_i32 i32 = self as i32,
        to_i64 i64 = self as i64, to_u8 u8 = self as u8, to_u16 u16 = self as u16, to_u32 u32 = self as u32,
        to_u64 u64 = self as u64, to_f32 f32 = self as u8 as f32, to_f64 f64 = self as u8 as f64);
    #[inline(always)]
    fn cast_from<P: Prim>(p: P) -> Self {
        p.to_bool()
    }
}

/// The operations as types, so that generic code is instantiated for one operation at a time.
pub mod op {
    use super::*;

    macro_rules! functions {
        ($(#[$doc:meta])* $trait:ident: $code:ident |$($arg:ident),*| -> $out:ty; $($name:ident $args:tt = $call:expr),* $(,)?) => {
            $(#[$doc])*
            pub trait $trait: 'static {
                /// Its opcode in the IR.
                const OP: $code;
                /// What it computes.
                fn apply<P: Prim>($($arg: P),*) -> $out;
            }
            $(functions!(@one $trait $code $out; $name $args = $call);)*
        };
        (@one $trait:ident $code:ident $out:ty; $name:ident ($($arg:ident),*) = $call:expr) => {
            #[doc = concat!("[`", stringify!($code), "::", stringify!($name), "`]")]
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}
            impl $trait for $name {
                const OP: $code = $code::$name;
                #[inline(always)]
                fn apply<P: Prim>($($arg: P),*) -> $out {
                    $call
                }
            }
        };
    }

    functions! {
        /// An operation on one value.
        UnaryFn: UnaryOp |a| -> P;
        Neg(a) = a.neg(), Abs(a) = a.abs(), Not(a) = a.not(), Sqrt(a) = a.sqrt(), Floor(a) = a.floor(),
        Ceil(a) = a.ceil(), Trunc(a) = a.trunc(), RoundEven(a) = a.round_even(),
    }
    functions! {
        /// An operation on two values.
        BinaryFn: BinaryOp |a, b| -> P;
        Add(a, b) = a.add(b), Sub(a, b) = a.sub(b), Mul(a, b) = a.mul(b), Div(a, b) = a.div(b), Rem(a, b) = a.rem(b),
        Min(a, b) = a.min(b), Max(a, b) = a.max(b), And(a, b) = a.and(b), Or(a, b) = a.or(b), Xor(a, b) = a.xor(b),
        Shl(a, b) = a.shl(b), Shr(a, b) = a.shr(b), Dot4(a, b) = a.dot4(b),
    }
    functions! {
        /// A comparison.
        CmpFn: CmpOp |a, b| -> bool;
        Lt(a, b) = a < b, Le(a, b) = a <= b, Gt(a, b) = a > b, Ge(a, b) = a >= b, Eq(a, b) = a == b, Ne(a, b) = a != b,
    }
}
