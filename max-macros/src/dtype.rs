//! The element types as kernels spell them, the bounds that stand for sets of them, and the machine levels that each is
//! compiled for.

use crate::level::Level;

/// What kind of number a dtype is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Bool,
    Float8,
    Float,
    Signed,
    Unsigned,
}

/// An element type.
#[derive(Debug, PartialEq, Eq)]
pub struct Dtype {
    /// The name in kernels, and of the Rust type.
    pub name: &'static str,
    /// The other name of the Rust type, if it has one.
    pub alias: &'static str,
    /// The variant of `DType`.
    pub variant: &'static str,
    /// What it is.
    pub class: Class,
    /// Its width; 8 for `bool`.
    pub bits: u32,
    /// The x86-64 levels that it is compiled for.
    pub levels: &'static [Level],
}

const ALL_LEVELS: &[Level] = &[Level::V2, Level::V3, Level::V4];
const MODERN: &[Level] = &[Level::V3, Level::V4];
const RARE: &[Level] = &[Level::V3];

const fn dtype(
    name: &'static str,
    alias: &'static str,
    variant: &'static str,
    class: Class,
    bits: u32,
    levels: &'static [Level],
) -> Dtype {
    Dtype { name, alias, variant, class, bits, levels }
}

/// Every dtype.
pub static DTYPES: [Dtype; 17] = [
    dtype("bool", "", "Bool", Class::Bool, 8, RARE),
    dtype("f8_e4m3fn", "F8E4M3", "F8E4M3FN", Class::Float8, 8, RARE),
    dtype("f8_e4m3fnuz", "F8E4M3FNUZ", "F8E4M3FNUZ", Class::Float8, 8, RARE),
    dtype("f8_e5m2", "F8E5M2", "F8E5M2", Class::Float8, 8, RARE),
    dtype("f8_e5m2fnuz", "F8E5M2FNUZ", "F8E5M2FNUZ", Class::Float8, 8, RARE),
    dtype("f16", "", "F16", Class::Float, 16, MODERN),
    dtype("bf16", "", "BF16", Class::Float, 16, MODERN),
    dtype("f32", "", "F32", Class::Float, 32, ALL_LEVELS),
    dtype("f64", "", "F64", Class::Float, 64, MODERN),
    dtype("u8", "", "U8", Class::Unsigned, 8, MODERN),
    dtype("i8", "", "I8", Class::Signed, 8, MODERN),
    dtype("u16", "", "U16", Class::Unsigned, 16, RARE),
    dtype("i16", "", "I16", Class::Signed, 16, RARE),
    dtype("u32", "", "U32", Class::Unsigned, 32, RARE),
    dtype("i32", "", "I32", Class::Signed, 32, MODERN),
    dtype("u64", "", "U64", Class::Unsigned, 64, RARE),
    dtype("i64", "", "I64", Class::Signed, 64, RARE),
];

impl Dtype {
    /// The dtype that kernels spell `name`.
    pub fn find(name: &str) -> Option<&'static Dtype> {
        DTYPES.iter().find(|d| d.name == name || (!d.alias.is_empty() && d.alias == name))
    }

    /// Whether its type needs no path.
    pub fn is_primitive(&self) -> bool {
        !matches!(self.class, Class::Float8) && !matches!(self.name, "f16" | "bf16")
    }

    /// Whether it is an integer.
    pub fn is_int(&self) -> bool {
        matches!(self.class, Class::Signed | Class::Unsigned)
    }

    /// Whether it is a floating-point type.
    pub fn is_float(&self) -> bool {
        matches!(self.class, Class::Float | Class::Float8)
    }
}

/// The bound of a kernel's generic: a set of dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Every dtype, moved but not computed with: compiled once for each size of element.
    Any,
    /// Every dtype.
    Scalar,
    /// Every dtype that can be computed with, except `bool`.
    Number,
    /// `f16`, `bf16`, `f32` and `f64`.
    Float,
    /// The integers.
    Int,
    /// The signed integers and the floats.
    Signed,
}

impl Bound {
    /// The bounds' names.
    pub const NAMES: [&'static str; 6] = ["Any", "Scalar", "Number", "Float", "Int", "Signed"];

    /// The bound of that name.
    pub fn find(name: &str) -> Option<Bound> {
        Some(match name {
            "Any" => Bound::Any,
            "Scalar" => Bound::Scalar,
            "Number" => Bound::Number,
            "Float" => Bound::Float,
            "Int" => Bound::Int,
            "Signed" => Bound::Signed,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Any => "Any",
            Bound::Scalar => "Scalar",
            Bound::Number => "Number",
            Bound::Float => "Float",
            Bound::Int => "Int",
            Bound::Signed => "Signed",
        }
    }

    /// Whether it stands for `dtype`.
    pub fn contains(self, dtype: &Dtype) -> bool {
        match self {
            // One for each size.
            Bound::Any => dtype.class == Class::Unsigned,
            Bound::Scalar => true,
            Bound::Number => dtype.is_int() || dtype.class == Class::Float,
            Bound::Float => dtype.class == Class::Float,
            Bound::Int => dtype.is_int(),
            Bound::Signed => matches!(dtype.class, Class::Signed | Class::Float),
        }
    }

    /// The dtypes it stands for.
    pub fn dtypes(self) -> impl Iterator<Item = &'static Dtype> {
        DTYPES.iter().filter(move |d| self.contains(d))
    }
}

/// The dtypes' names, for messages.
pub fn names() -> String {
    DTYPES.iter().map(|d| d.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_the_right_sizes() {
        let count = |b: Bound| b.dtypes().count();
        assert_eq!(count(Bound::Any), 4);
        assert_eq!(count(Bound::Scalar), 17);
        assert_eq!(count(Bound::Number), 12);
        assert_eq!(count(Bound::Float), 4);
        assert_eq!(count(Bound::Int), 8);
        assert_eq!(count(Bound::Signed), 8);
        for name in Bound::NAMES {
            assert_eq!(Bound::find(name).map(Bound::name), Some(name));
        }
    }

    #[test]
    fn every_dtype_has_v3() {
        assert!(DTYPES.iter().all(|d| d.levels.contains(&Level::V3)));
        assert_eq!(Dtype::find("F8E4M3").map(|d| d.name), Some("f8_e4m3fn"));
        assert_eq!(Dtype::find(""), None);
    }
}
