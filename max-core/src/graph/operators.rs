//! Operators on [`TensorValue`]: `+ - * / %` with values and numbers on either side, unary `-`, and `& | ^ !` on `bool`.
//!
//! An operator that fails gives a poisoned value and records the error in the graph, with the operator's line.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use super::builder::site::Result;
use super::ops;
use super::value::{Operand, TensorValue};

/// The result, or a value that stands for the error. The error is known to the graphs of both operands.
fn or_poisoned(result: Result<TensorValue>, lhs: &TensorValue, rhs: Option<&Operand>) -> TensorValue {
    let error = match result {
        Ok(value) => return value,
        Err(error) => error,
    };
    if let Some(Operand::Tensor(rhs)) = rhs
        && !rhs.graph.same(&lhs.graph)
    {
        TensorValue::poisoned(rhs, error.clone());
    }
    TensorValue::poisoned(lhs, error)
}

macro_rules! binary_operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<R: Into<Operand>> $trait<R> for &TensorValue {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self, rhs: R) -> TensorValue {
                let rhs = rhs.into();
                or_poisoned(ops::$op(self, rhs.clone()), self, Some(&rhs))
            }
        }

        impl<R: Into<Operand>> $trait<R> for TensorValue {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self, rhs: R) -> TensorValue {
                $trait::$method(&self, rhs)
            }
        }

        binary_operators!(@scalar $trait $method $op: f64 f32 i64 i32 bool);
    )*};
    (@scalar $trait:ident $method:ident $op:ident: $($scalar:ty)*) => {$(
        impl $trait<&TensorValue> for $scalar {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self, rhs: &TensorValue) -> TensorValue {
                or_poisoned(ops::$op(self, rhs), rhs, None)
            }
        }

        impl $trait<TensorValue> for $scalar {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self, rhs: TensorValue) -> TensorValue {
                $trait::$method(self, &rhs)
            }
        }
    )*};
}
binary_operators! {
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
    Rem rem mod_;
    BitAnd bitand logical_and;
    BitOr bitor logical_or;
    BitXor bitxor logical_xor;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl $trait for &TensorValue {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self) -> TensorValue {
                or_poisoned(ops::$op(self), self, None)
            }
        }

        impl $trait for TensorValue {
            type Output = TensorValue;

            #[track_caller]
            fn $method(self) -> TensorValue {
                $trait::$method(&self)
            }
        }
    )*};
}
unary_operators! {
    Neg neg negate;
    Not not logical_not;
}
