//! Elementwise ops. Each is one row of the tables below; its function, its method on [`TensorValue`], its documentation
//! and its type rule come from the row.
//!
//! Operands of several shapes are broadcast, operands of several dtypes promoted, numbers take the tensor's dtype.

use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::parameters::Parameters;
use crate::graph::value::{Operand, TensorValue};

/// Which dtypes an elementwise op takes and which it gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TypeRule {
    /// Integers and floats; the result has the same dtype.
    Numeric,
    /// Floats; the result has the same dtype.
    Float,
    /// `bool`; the result is `bool`.
    Logical,
    /// Integers, floats and `bool`; the result is `bool`.
    Compare,
    /// Integers and floats; the result is `bool`.
    Order,
    /// Floats; the result is `bool`.
    Classify,
}

impl TypeRule {
    /// The dtypes taken, in words.
    pub fn allowed(self) -> &'static str {
        match self {
            TypeRule::Numeric | TypeRule::Order => "integers and floats",
            TypeRule::Float | TypeRule::Classify => "floats",
            TypeRule::Logical => "bool",
            TypeRule::Compare => "any dtype",
        }
    }

    /// Whether operands of this dtype are taken.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            TypeRule::Numeric | TypeRule::Order => dtype != DType::Bool,
            TypeRule::Float | TypeRule::Classify => dtype.is_float(),
            TypeRule::Logical => dtype == DType::Bool,
            TypeRule::Compare => true,
        }
    }

    /// The result's dtype for operands of this dtype.
    pub fn result(self, dtype: DType) -> DType {
        match self {
            TypeRule::Numeric | TypeRule::Float => dtype,
            TypeRule::Logical | TypeRule::Compare | TypeRule::Order | TypeRule::Classify => DType::Bool,
        }
    }
}

/// One row of the table of elementwise ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElementwiseOp {
    /// The name of the function in [`ops`](super).
    pub name: &'static str,
    /// The name of the kernel.
    pub kernel: &'static str,
    /// The number of operands.
    pub arity: usize,
    /// The dtypes.
    pub rule: TypeRule,
}

fn apply<const N: usize>(site: &Site, row: &ElementwiseOp, operands: [TensorValue; N]) -> Result<TensorValue> {
    for operand in &operands {
        site.require("the operand", operand, row.rule.allowed(), |dtype| row.rule.accepts(dtype))?;
    }
    let operands = site.broadcast_all(operands)?;
    let all: [&TensorValue; N] = operands.each_ref();
    let Some(first) = all.first() else {
        return site.fail(&[], crate::graph::GraphErrorKind::NoTensor);
    };
    site.kernel(row.kernel, &all, first.ty.with_dtype(row.rule.result(first.dtype())), Parameters::new())
}

macro_rules! unary_ops {
    ($($(#[doc = $doc:literal])+ $name:ident: $rule:ident, $kernel:literal;)+) => {
        /// The elementwise ops of one operand.
        pub const UNARY: &[ElementwiseOp] = &[$(
            ElementwiseOp { name: stringify!($name), kernel: $kernel, arity: 1, rule: TypeRule::$rule },
        )+];

        $(
            $(#[doc = $doc])+
            ///
            /// # Errors
            /// When the operand is a buffer or its dtype is not taken.
            #[track_caller]
            pub fn $name(x: impl Into<Operand>) -> Result<TensorValue> {
                const ROW: ElementwiseOp =
                    ElementwiseOp { name: stringify!($name), kernel: $kernel, arity: 1, rule: TypeRule::$rule };
                let site = Site::new(ROW.name);
                apply(&site, &ROW, [site.tensor("the operand", x)?])
            }
        )+

        impl TensorValue {$(
            $(#[doc = $doc])+
            ///
            /// # Errors
            #[doc = concat!("As [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self) -> Result<TensorValue> {
                $name(self)
            }
        )+}
    };
}

macro_rules! binary_ops {
    ($($(#[doc = $doc:literal])+ $name:ident $(as $method:ident)?: $rule:ident, $kernel:literal;)+) => {
        /// The elementwise ops of two operands.
        pub const BINARY: &[ElementwiseOp] = &[$(
            ElementwiseOp { name: stringify!($name), kernel: $kernel, arity: 2, rule: TypeRule::$rule },
        )+];

        $(
            $(#[doc = $doc])+
            ///
            /// The shapes are broadcast and the dtypes promoted; a number takes the other side's dtype.
            ///
            /// # Errors
            /// When the shapes do not broadcast, when no operand's dtype holds the values of the other, when the dtype
            /// is not taken, and when the operands are of two graphs or two devices.
            #[track_caller]
            pub fn $name(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
                const ROW: ElementwiseOp =
                    ElementwiseOp { name: stringify!($name), kernel: $kernel, arity: 2, rule: TypeRule::$rule };
                let site = Site::new(ROW.name);
                let operands = site.promote([lhs.into(), rhs.into()])?;
                apply(&site, &ROW, operands)
            }
        )+

        impl TensorValue {$($(
            #[doc = concat!("See [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            ///
            /// # Errors
            #[doc = concat!("As [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            #[track_caller]
            pub fn $method(&self, rhs: impl Into<Operand>) -> Result<TensorValue> {
                $name(self, rhs)
            }
        )?)+}
    };
}

unary_ops! {
    /// The absolute value. The most negative integer stays what it is.
    abs: Numeric, "abs";
    /// The arc cosine; NaN outside of -1 to 1.
    acos: Float, "acos";
    /// The inverse hyperbolic tangent.
    atanh: Float, "atanh";
    /// The smallest integer that is not below the operand.
    ceil: Float, "ceil";
    /// The cosine of an angle in radians.
    cos: Float, "cos";
    /// The error function.
    erf: Float, "erf";
    /// e to the power of the operand.
    exp: Float, "exp";
    /// The largest integer that is not above the operand.
    floor: Float, "floor";
    /// Whether the operand is an infinity of either sign.
    is_inf: Classify, "is_inf";
    /// Whether the operand is not a number.
    is_nan: Classify, "is_nan";
    /// The natural logarithm.
    log: Float, "log";
    /// The natural logarithm of 1 + x, exact near 0.
    log1p: Float, "log1p";
    /// The opposite truth value.
    logical_not: Logical, "logical_not";
    /// The operand with the opposite sign. Integers wrap.
    negate: Numeric, "negate";
    /// The larger of 0 and the operand.
    relu: Numeric, "relu";
    /// The nearest integer; halfway cases go to the even one.
    round: Float, "round";
    /// 1 / sqrt(x).
    rsqrt: Float, "rsqrt";
    /// 1 / (1 + exp(-x)).
    sigmoid: Float, "sigmoid";
    /// x · sigmoid(x).
    silu: Float, "silu";
    /// The sine of an angle in radians.
    sin: Float, "sin";
    /// The square root; NaN below 0.
    sqrt: Float, "sqrt";
    /// The hyperbolic tangent.
    tanh: Float, "tanh";
    /// The integer towards 0.
    trunc: Float, "trunc";
}

binary_ops! {
    /// The sum. Integers wrap.
    add: Numeric, "add";
    /// Whether both sides are equal. NaN equals nothing.
    equal as eq_: Compare, "equal";
    /// Whether the left side is greater.
    greater as gt: Order, "greater";
    /// Whether the left side is greater or equal.
    greater_equal as ge: Order, "greater_equal";
    /// Whether both sides are true.
    logical_and as logical_and: Logical, "logical_and";
    /// Whether one side or both are true.
    logical_or as logical_or: Logical, "logical_or";
    /// Whether exactly one side is true.
    logical_xor as logical_xor: Logical, "logical_xor";
    /// The remainder with the divisor's sign: x - floor(x / y) · y. An integer modulo 0 is 0.
    mod_ as mod_: Numeric, "mod";
    /// The product. Integers wrap.
    mul: Numeric, "mul";
    /// Whether both sides differ.
    not_equal as ne_: Compare, "not_equal";
    /// The difference. Integers wrap.
    sub: Numeric, "sub";
    /// The larger of both sides, elementwise. For the largest element along an axis see [`max`](super::max).
    maximum as maximum: Numeric, "max";
    /// The smaller of both sides, elementwise. For the smallest element along an axis see [`min`](super::min).
    minimum as minimum: Numeric, "min";
}

impl TensorValue {
    /// Whether this is less than the other side: [`greater`] with the sides exchanged.
    ///
    /// # Errors
    /// As [`greater`].
    #[track_caller]
    pub fn lt(&self, rhs: impl Into<Operand>) -> Result<TensorValue> {
        greater(rhs, self)
    }

    /// Whether this is less or equal: [`greater_equal`] with the sides exchanged.
    ///
    /// # Errors
    /// As [`greater_equal`].
    #[track_caller]
    pub fn le(&self, rhs: impl Into<Operand>) -> Result<TensorValue> {
        greater_equal(rhs, self)
    }
}

/// The quotient. Integers are divided as `float64`.
///
/// The shapes are broadcast and the dtypes promoted; a number takes the other side's dtype.
///
/// # Errors
/// As [`add`].
#[track_caller]
pub fn div(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
    const ROW: ElementwiseOp = ElementwiseOp { name: "div", kernel: "div", arity: 2, rule: TypeRule::Float };
    let site = Site::new(ROW.name);
    let mut operands = site.promote([lhs.into(), rhs.into()])?;
    if operands[0].dtype().is_integral() {
        for operand in &mut operands {
            *operand = site.cast(operand.clone(), DType::F64)?;
        }
    }
    apply(&site, &ROW, operands)
}

/// The left side to the power of the right side.
///
/// Integers wrap. To a negative power they are what is left of the fraction: 0, but for 1 and -1.
///
/// The shapes are broadcast and the dtypes promoted; a number takes the other side's dtype.
///
/// # Errors
/// As [`add`].
#[track_caller]
pub fn pow(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("pow");
    let operands = site.promote([lhs.into(), rhs.into()])?;
    let kernel = if operands[0].dtype().is_integral() { "pow_integer" } else { "pow" };
    apply(&site, &ElementwiseOp { name: "pow", kernel, arity: 2, rule: TypeRule::Numeric }, operands)
}

/// How [`gelu`] is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GeluApproximation {
    /// Exactly, with the error function.
    #[default]
    None,
    /// 0.5 · x · (1 + tanh(0.7978845608028654 · (x + 0.044715 · x³))).
    Tanh,
    /// x · sigmoid(1.702 · x).
    Quick,
}

/// The Gaussian error linear unit, x · Φ(x).
///
/// # Errors
/// When the operand is not a float tensor.
#[track_caller]
pub fn gelu(x: impl Into<Operand>, approximate: GeluApproximation) -> Result<TensorValue> {
    let site = Site::new("gelu");
    let kernel = match approximate {
        GeluApproximation::None => "gelu",
        GeluApproximation::Tanh => "gelu_tanh",
        GeluApproximation::Quick => "gelu_quick",
    };
    let row = ElementwiseOp { name: "gelu", kernel, arity: 1, rule: TypeRule::Float };
    apply(&site, &row, [site.tensor("the operand", x)?])
}

/// Where `condition` is true the element of `x`, elsewhere that of `y`. All three are broadcast.
///
/// # Errors
/// When the condition is not `bool`, and as [`add`] for `x` and `y`.
#[track_caller]
pub fn where_(condition: impl Into<Operand>, x: impl Into<Operand>, y: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("where");
    let condition = site.tensor("the condition", condition)?;
    site.require("the condition", &condition, "bool", |dtype| dtype == DType::Bool)?;
    let [x, y] = match (x.into(), y.into()) {
        // Two numbers have no tensor to take their dtype from.
        (x, y) if ![&x, &y].iter().any(|o| matches!(o, Operand::Tensor(_) | Operand::Buffer(_))) => {
            return site.fail(&[&condition], crate::graph::GraphErrorKind::NoTensor);
        }
        operands => site.promote(operands.into())?,
    };
    site.together(&[&condition, &x, &y])?;
    let [condition, x, y] = site.broadcast_all([condition, x, y])?;
    let ty = x.ty.clone();
    site.kernel("where", &[&condition, &x, &y], ty, Parameters::new())
}

/// The elements converted to another dtype: floats to integers towards 0, saturating, NaN to 0; to `bool` by `x != 0`.
///
/// # Errors
/// When the operand is a buffer.
#[track_caller]
pub fn cast(x: impl Into<Operand>, dtype: DType) -> Result<TensorValue> {
    let site = Site::new("cast");
    let x = site.tensor("the operand", x)?;
    site.cast(x, dtype)
}

impl TensorValue {
    /// See [`pow`].
    ///
    /// # Errors
    /// As [`pow`].
    #[track_caller]
    pub fn pow(&self, rhs: impl Into<Operand>) -> Result<TensorValue> {
        pow(self, rhs)
    }

    /// See [`cast`].
    ///
    /// # Errors
    /// As [`cast`].
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<TensorValue> {
        cast(self, dtype)
    }

    /// See [`gelu`].
    ///
    /// # Errors
    /// As [`gelu`].
    #[track_caller]
    pub fn gelu(&self, approximate: GeluApproximation) -> Result<TensorValue> {
        gelu(self, approximate)
    }
}
