//! The fundamental types of PTX and the modifiers of an operation.

use crate::ops::softfloat::Round;

/// A PTX type, with its width and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
    Tf32,
    E4m3x2,
    E5m2x2,
}

/// Which values a type holds; `b` types fit every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Pred,
    Bits,
    Unsigned,
    Signed,
    Float,
}

impl Ty {
    /// The type of the modifier or declaration word `name`.
    pub fn named(name: &str) -> Option<Ty> {
        Some(match name {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "b128" => Ty::B128,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "u16x2" => Ty::U16x2,
            "s16x2" => Ty::S16x2,
            "f16" => Ty::F16,
            "f16x2" => Ty::F16x2,
            "bf16" => Ty::Bf16,
            "bf16x2" => Ty::Bf16x2,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            "tf32" => Ty::Tf32,
            "e4m3x2" => Ty::E4m3x2,
            "e5m2x2" => Ty::E5m2x2,
            _ => return None,
        })
    }

    /// Its size in bytes; a predicate has none.
    pub fn bytes(self) -> u32 {
        match self {
            Ty::Pred => 0,
            Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 | Ty::E4m3x2 | Ty::E5m2x2 => 2,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::Tf32 => 4,
            Ty::U16x2 | Ty::S16x2 | Ty::F16x2 | Ty::Bf16x2 => 4,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
            Ty::B128 => 16,
        }
    }

    /// Its class. Packed and converted formats live in bit registers.
    pub fn class(self) -> Class {
        match self {
            Ty::Pred => Class::Pred,
            Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128 => Class::Bits,
            Ty::U16x2 | Ty::S16x2 | Ty::Bf16 | Ty::Bf16x2 => Class::Bits,
            Ty::Tf32 | Ty::E4m3x2 | Ty::E5m2x2 => Class::Bits,
            Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 => Class::Unsigned,
            Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64 => Class::Signed,
            Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64 => Class::Float,
        }
    }

    pub fn is_signed(self) -> bool {
        self.class() == Class::Signed
    }

    /// Whether it is an integer or bit type of 8 to 64 bits.
    pub fn is_integer(self) -> bool {
        matches!(self, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64) || self.is_signed()
    }
}

/// The modifiers that a scalar function looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mods {
    pub round: Round,
    /// `.ftz`: subnormal inputs and results become zero of their sign.
    pub ftz: bool,
    /// `.sat`: clamp to [0, 1], or to the integer range.
    pub sat: bool,
    /// `.satfinite`: overflow gives the largest finite value.
    pub finite: bool,
    /// `.relu`: negative results become +0.
    pub relu: bool,
    /// `.NaN`: a NaN input gives NaN.
    pub nan: bool,
    /// `.abs`
    pub abs: bool,
    /// `.xorsign`
    pub xorsign: bool,
    /// An immediate table or mode: the table of `lop3`, the mode of `prmt`.
    pub table: u8,
}

impl Mods {
    /// No modifier at all, but rounding to nearest.
    pub const PLAIN: Mods = Mods {
        round: Round::Near,
        ftz: false,
        sat: false,
        finite: false,
        relu: false,
        nan: false,
        abs: false,
        xorsign: false,
        table: 0,
    };
}

impl Default for Mods {
    fn default() -> Self {
        Mods::PLAIN
    }
}
