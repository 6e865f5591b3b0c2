//! The scalar operations of the kernel language, each declared once.
//!
//! One row gives an operation its IR opcode, its name in the text form, and its documentation. The CPU's meaning of
//! each stands in `kernel::lang::prim`, the PTX in `kernel::ptx`; both match without a catch-all, so that a new row
//! makes rustc list the places to fill in.

macro_rules! opcodes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            /// Every operation of this kind.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Its name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }

            /// The operation of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|op| op.name() == name)
            }
        }
    };
}

opcodes! {
    /// Operations on one value, with a result of the same type.
    UnaryOp {
        /// `-x`; integers wrap.
        Neg = "neg",
        /// `|x|`; the most negative integer stays itself.
        Abs = "abs",
        /// Bitwise complement, or logical not of a bool.
        Not = "not",
        /// Correctly rounded square root (floats).
        Sqrt = "sqrt",
        /// Largest integral value not above x (floats).
        Floor = "floor",
        /// Smallest integral value not below x (floats).
        Ceil = "ceil",
        /// Rounds toward zero (floats).
        Trunc = "trunc",
        /// Rounds to the nearest integral value, ties to even (floats).
        RoundEven = "round_even",
        /// `2^x` to a relative error of 2^-22 (`f32`). Below 2^-126 the result may be 0.
        Exp2Approx = "exp2_approx",
    }
}

opcodes! {
    /// Operations on two values of one type, with a result of that type.
    BinaryOp {
        /// `a + b`; integers wrap.
        Add = "add",
        /// `a - b`; integers wrap.
        Sub = "sub",
        /// `a * b`; integers wrap.
        Mul = "mul",
        /// `a / b`; integers round toward zero, `x / 0` is 0, `MIN / -1` wraps.
        Div = "div",
        /// Remainder with the sign of `a`; of integers, `x % 0` is 0.
        Rem = "rem",
        /// The smaller; NaN if either is NaN, and -0 is below +0.
        Min = "min",
        /// The larger; NaN if either is NaN, and -0 is below +0.
        Max = "max",
        /// Bitwise and (integers, bools).
        And = "and",
        /// Bitwise or (integers, bools).
        Or = "or",
        /// Bitwise exclusive or (integers, bools).
        Xor = "xor",
        /// Shift left by `b` modulo the width (integers).
        Shl = "shl",
        /// Shift right by `b` modulo the width, arithmetic for signed integers.
        Shr = "shr",
        /// The sum of the products of four bytes: of `a` the low 7 bits of each, unsigned; of `b` all bits, signed (`int32`).
        Dot4 = "dot4",
    }
}

opcodes! {
    /// Comparisons of two values of one type; any comparison with NaN but `ne` is false.
    CmpOp {
        /// `a < b`
        Lt = "lt",
        /// `a <= b`
        Le = "le",
        /// `a > b`
        Gt = "gt",
        /// `a >= b`
        Ge = "ge",
        /// `a == b`
        Eq = "eq",
        /// `a != b`
        Ne = "ne",
    }
}

impl CmpOp {
    /// Whether it is so of two values.
    pub fn holds<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            CmpOp::Lt => a < b,
            CmpOp::Le => a <= b,
            CmpOp::Gt => a > b,
            CmpOp::Ge => a >= b,
            CmpOp::Eq => a == b,
            CmpOp::Ne => a != b,
        }
    }
}

opcodes! {
    /// Read-modify-write of one element, indivisible among all program instances; the result is not given back.
    AtomicOp {
        /// Adds; integers wrap.
        Add = "add",
        /// Keeps the smaller.
        Min = "min",
        /// Keeps the larger.
        Max = "max",
        /// Bitwise and.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
    }
}

opcodes! {
    /// How the rows of a tile are reduced to one value each.
    ReduceOp {
        /// Sum.
        Sum = "sum",
        /// Largest (see [`BinaryOp::Max`]).
        Max = "max",
        /// Smallest.
        Min = "min",
    }
}
