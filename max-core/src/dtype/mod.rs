//! Element types: [`DType`], the run-time name of an element type, and [`Element`], the Rust types that have one.
//!
//! One table in this file declares every dtype (variant, MAX's numeric code, Rust type, class, names); the enum, its
//! predicates, its names, the `Element` implementations and the [`dispatch!`](crate::dispatch) macro are derived from it.
//! The numeric codes are those of MAX's `DType`, so that they can be stored and exchanged. Conversions to the four 8-bit
//! float formats are in [`float8`].
//!
//! ```
//! # extern crate max_core as max;
//! use max::dtype::{DType, Element, bf16};
//!
//! assert_eq!(bf16::DTYPE, DType::BF16);
//! assert_eq!(DType::BF16.to_string(), "bfloat16");
//! assert_eq!("f32".parse::<DType>()?, DType::F32);
//! assert_eq!(DType::I64.size_in_bytes(), 8);
//! # Ok::<(), max::dtype::ParseDTypeError>(())
//! ```

mod element;
pub mod float8;
pub(crate) mod limits;

pub use self::element::Element;
pub use self::float8::{F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
pub use half::{bf16, f16};

use std::fmt;
use std::str::FromStr;

/// What a dtype is, for the predicates of [`DType`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Bool,
    Float8,
    Half,
    Float,
    Signed,
    Unsigned,
}

/// Calls the macro `$with` with the table of dtypes, after the tokens `$args`.
#[doc(hidden)]
#[macro_export]
macro_rules! __dtype_table {
    ({ $($with:tt)+ } $($args:tt)*) => {
        $($with)+! {
            [$($args)*]
            // Variant   code  Rust type                        class     MAX's name          short name
            Bool         = 1,   bool,                           Bool,     "bool",             "bool";
            F8E4M3FN     = 66,  $crate::dtype::F8E4M3,          Float8,   "float8_e4m3fn",    "f8_e4m3fn";
            F8E4M3FNUZ   = 67,  $crate::dtype::F8E4M3FNUZ,      Float8,   "float8_e4m3fnuz",  "f8_e4m3fnuz";
            F8E5M2       = 68,  $crate::dtype::F8E5M2,          Float8,   "float8_e5m2",      "f8_e5m2";
            F8E5M2FNUZ   = 69,  $crate::dtype::F8E5M2FNUZ,      Float8,   "float8_e5m2fnuz",  "f8_e5m2fnuz";
            F16          = 70,  $crate::dtype::f16,             Half,     "float16",          "f16";
            BF16         = 71,  $crate::dtype::bf16,            Half,     "bfloat16",         "bf16";
            F32          = 72,  f32,                            Float,    "float32",          "f32";
            F64          = 73,  f64,                            Float,    "float64",          "f64";
            U8           = 134, u8,                             Unsigned, "uint8",            "u8";
            I8           = 135, i8,                             Signed,   "int8",             "i8";
            U16          = 136, u16,                            Unsigned, "uint16",           "u16";
            I16          = 137, i16,                            Signed,   "int16",            "i16";
            U32          = 138, u32,                            Unsigned, "uint32",           "u32";
            I32          = 139, i32,                            Signed,   "int32",            "i32";
            U64          = 140, u64,                            Unsigned, "uint64",           "u64";
            I64          = 141, i64,                            Signed,   "int64",            "i64";
        }
    };
}
pub(crate) use __dtype_table as dtype_table;

macro_rules! define_dtype {
    ([] $($variant:ident = $code:literal, $ty:ty, $class:ident, $name:literal, $short:literal;)*) => {
        /// The type of a tensor's elements.
        ///
        /// The discriminant is MAX's numeric code of the dtype. `Display` prints MAX's name (`float32`), `FromStr` reads
        /// that and the short Rust form (`f32`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = concat!("MAX's `", $name, "`.")] $variant = $code,)*
        }

        impl DType {
            /// Every dtype, in the order of the codes.
            pub const ALL: [DType; [$($code),*].len()] = [$(DType::$variant),*];

            /// The dtype with MAX's numeric code `code`, or `None` if there is none.
            pub const fn from_code(code: u8) -> Option<DType> {
                match code {
                    $($code => Some(DType::$variant),)*
                    _ => None,
                }
            }

            /// The size of one element in bytes.
            pub const fn size_in_bytes(self) -> usize {
                match self {
                    $(DType::$variant => size_of::<$ty>(),)*
                }
            }

            /// The alignment of one element in bytes.
            pub const fn align(self) -> usize {
                match self {
                    $(DType::$variant => align_of::<$ty>(),)*
                }
            }

            /// MAX's name, for example `float32` or `bfloat16`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                }
            }

            /// The name in Rust's manner, for example `f32` or `bf16`.
            pub const fn short_name(self) -> &'static str {
                match self {
                    $(DType::$variant => $short,)*
                }
            }

            // Entries of kernels ask: no call is left there.
            #[inline(always)]
            const fn class(self) -> Class {
                match self {
                    $(DType::$variant => Class::$class,)*
                }
            }
        }
    };
}
dtype_table!({ define_dtype });

impl DType {
    /// MAX's numeric code.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The dtype that PyTorch calls so, with or without `torch.` in front, as `torch_dtype` of a model's `config.json` is; `None`
    /// where there is none here.
    ///
    /// ```
    /// use max_core::dtype::DType;
    ///
    /// assert_eq!(DType::from_torch("torch.bfloat16"), Some(DType::BF16));
    /// assert_eq!(DType::from_torch("long"), Some(DType::I64));
    /// assert_eq!(DType::from_torch("complex64"), None);
    /// assert_eq!(DType::F8E4M3FN.to_torch(), "torch.float8_e4m3fn");
    /// ```
    pub fn from_torch(name: &str) -> Option<DType> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        // PyTorch's other names of some: https://docs.pytorch.org/docs/stable/tensor_attributes.html
        Some(match name {
            "half" => DType::F16,
            "float" => DType::F32,
            "double" => DType::F64,
            "short" => DType::I16,
            "int" => DType::I32,
            "long" => DType::I64,
            _ => return DType::ALL.into_iter().find(|dtype| dtype.name() == name),
        })
    }

    /// As PyTorch calls the dtype: `torch.float32`.
    pub fn to_torch(self) -> String {
        format!("torch.{}", self.name())
    }

    /// Whether this is a floating-point type of any width, the 8-bit ones included.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float8 | Class::Half | Class::Float)
    }

    /// Whether this is one of the four 8-bit floating-point types.
    #[inline(always)]
    pub const fn is_float8(self) -> bool {
        matches!(self.class(), Class::Float8)
    }

    /// Whether this is `float16` or `bfloat16`.
    #[inline]
    pub const fn is_half(self) -> bool {
        matches!(self.class(), Class::Half)
    }

    /// Whether this is a signed or unsigned integer type (`bool` is not).
    #[inline]
    pub const fn is_integral(self) -> bool {
        matches!(self.class(), Class::Signed | Class::Unsigned)
    }

    /// Whether this is a signed integer type.
    #[inline]
    pub const fn is_signed_integral(self) -> bool {
        matches!(self.class(), Class::Signed)
    }

    /// Whether this is an unsigned integer type (`bool` is not).
    #[inline]
    pub const fn is_unsigned_integral(self) -> bool {
        matches!(self.class(), Class::Unsigned)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no dtype.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{text}`: write one of {}", known_names())]
#[non_exhaustive]
pub struct ParseDTypeError {
    /// The text that was read.
    pub text: String,
}

fn known_names() -> String {
    DType::ALL.map(DType::name).join(", ")
}

impl FromStr for DType {
    type Err = ParseDTypeError;

    /// Reads MAX's name (`float32`) or the short form (`f32`).
    fn from_str(text: &str) -> Result<DType, ParseDTypeError> {
        DType::ALL
            .into_iter()
            .find(|dtype| text == dtype.name() || text == dtype.short_name())
            .ok_or_else(|| ParseDTypeError { text: text.to_owned() })
    }
}

/// Evaluates an expression with a type name bound to the [`Element`](crate::dtype::Element) type of a dtype:
/// `dispatch!(dtype, T => expression using T)`.
///
/// The expression is compiled once for each dtype and must have the same type in all of them.
///
/// ```
/// # extern crate max_core as max;
/// use max::dtype::DType;
///
/// let size = max::dispatch!(DType::BF16, T => size_of::<T>());
/// assert_eq!(size, 2);
/// ```
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::__dtype_table!({ $crate::__dispatch_arms } $dtype, $T, $body)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __dispatch_arms {
    (
        [$dtype:expr, $T:ident, $body:expr]
        $($variant:ident = $code:literal, $ty:ty, $class:ident, $name:literal, $short:literal;)*
    ) => {
        match $dtype {
            $($crate::dtype::DType::$variant => {
                type $T = $ty;
                $body
            })*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_those_of_max() {
        let codes = DType::ALL.map(|dtype| dtype.code());
        assert_eq!(codes, [1, 66, 67, 68, 69, 70, 71, 72, 73, 134, 135, 136, 137, 138, 139, 140, 141]);
        assert_eq!(DType::from_code(135), Some(DType::I8));
        assert_eq!(DType::from_code(141), Some(DType::I64));
        let known = (0..=u8::MAX).filter_map(DType::from_code).collect::<Vec<_>>();
        assert_eq!(known, DType::ALL);
    }

    #[test]
    fn names_are_unique_and_parse_back() {
        let mut seen = HashSet::new();
        for dtype in DType::ALL {
            assert!(seen.insert(dtype.name()));
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            assert_eq!(dtype.short_name().parse(), Ok(dtype));
        }
        assert_eq!("float8_e4m3fnuz".parse(), Ok(DType::F8E4M3FNUZ));
        assert_eq!(format!("{:>9}", DType::F32), "  float32");
        let error = "float".parse::<DType>().unwrap_err().to_string();
        assert!(error.starts_with("unknown dtype `float`: write one of bool, float8_e4m3fn"), "{error}");
    }

    #[test]
    fn sizes_and_alignments() {
        let sizes = DType::ALL.map(DType::size_in_bytes);
        assert_eq!(sizes, [1, 1, 1, 1, 1, 2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8]);
        assert_eq!(DType::ALL.map(DType::align), sizes);
    }

    #[test]
    fn predicates() {
        let members = |test: fn(DType) -> bool| {
            DType::ALL.into_iter().filter(|&d| test(d)).map(DType::short_name).collect::<Vec<_>>().join(" ")
        };
        let float8 = "f8_e4m3fn f8_e4m3fnuz f8_e5m2 f8_e5m2fnuz";
        assert_eq!(members(DType::is_float8), float8);
        assert_eq!(members(DType::is_half), "f16 bf16");
        assert_eq!(members(DType::is_float), format!("{float8} f16 bf16 f32 f64"));
        assert_eq!(members(DType::is_signed_integral), "i8 i16 i32 i64");
        assert_eq!(members(DType::is_unsigned_integral), "u8 u16 u32 u64");
        assert_eq!(members(DType::is_integral), "u8 i8 u16 i16 u32 i32 u64 i64");
    }

    #[test]
    fn dispatch_binds_the_element_type() {
        for dtype in DType::ALL {
            assert_eq!(dispatch!(dtype, T => <T as Element>::DTYPE), dtype);
        }
    }
}
