//! Operators on [`Tensor`]: `+ - * / %` with tensors and numbers on either side, unary `-`, and `& | ^ !` on `bool`.
//!
//! An operator cannot return an error. On eager tensors a mistake panics with the op's message, which names the operator's
//! line; `try_add` and its kin return it. In a graph, the result stands for the mistake, which setting the graph's outputs
//! returns.

use std::ops::{
    Add, AddAssign, BitAnd, BitOr, BitXor, Div, DivAssign, Mul, MulAssign, Neg, Not, Rem, RemAssign, Sub, SubAssign,
};

use max_core::graph::TensorValue;

use super::{Operand, Repr, Tensor};
use crate::Result;
use crate::functional as f;

/// Whether a mistake may stand in a graph.
fn is_of_graph(operand: &Operand) -> bool {
    !matches!(operand, Operand::Tensor(Tensor(Repr::Eager(_))) | Operand::Scalar(_))
}

/// The result, or what an operator does without one.
#[track_caller]
fn or_panic(result: Result<Tensor>, is_of_graph: bool) -> Tensor {
    match result {
        Ok(tensor) => tensor,
        Err(error) if is_of_graph => TensorValue::of_error(error).into(),
        Err(error) => panic!("{error}"),
    }
}

macro_rules! binary_operators {
    ($($trait:ident $method:ident $op:ident $try:ident $($assign:ident $assign_method:ident)?;)*) => {
        $(
            impl<R: Into<Operand>> $trait<R> for &Tensor {
                type Output = Tensor;

                #[track_caller]
                fn $method(self, rhs: R) -> Tensor {
                    let (lhs, rhs) = (Operand::from(self), rhs.into());
                    let is_of_graph = is_of_graph(&lhs) || is_of_graph(&rhs);
                    or_panic(f::$op(lhs, rhs), is_of_graph)
                }
            }

            impl<R: Into<Operand>> $trait<R> for Tensor {
                type Output = Tensor;

                #[track_caller]
                fn $method(self, rhs: R) -> Tensor {
                    let (lhs, rhs) = (Operand::from(self), rhs.into());
                    let is_of_graph = is_of_graph(&lhs) || is_of_graph(&rhs);
                    or_panic(f::$op(lhs, rhs), is_of_graph)
                }
            }

            $(
                impl<R: Into<Operand>> $assign<R> for Tensor {
                    #[track_caller]
                    fn $assign_method(&mut self, rhs: R) {
                        *self = $trait::$method(&*self, rhs);
                    }
                }
            )?

            // One type of floats and one of integers, so that literals have a type.
            binary_operators!(@scalar $trait $method $op: f64 i64 bool);
        )*

        impl Tensor {$(
            #[doc = concat!("[`", stringify!($op), "`](crate::functional::", stringify!($op), ") of both: the operator, with an error instead of a panic.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($op), "`](crate::functional::", stringify!($op), ").")]
            #[track_caller]
            pub fn $try(&self, rhs: impl Into<Operand>) -> Result<Tensor> {
                f::$op(self, rhs)
            }
        )*}
    };
    (@scalar $trait:ident $method:ident $op:ident: $($scalar:ty)*) => {$(
        impl $trait<&Tensor> for $scalar {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Tensor {
                let rhs = Operand::from(rhs);
                let is_of_graph = is_of_graph(&rhs);
                or_panic(f::$op(self, rhs), is_of_graph)
            }
        }

        impl $trait<Tensor> for $scalar {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: Tensor) -> Tensor {
                let rhs = Operand::from(rhs);
                let is_of_graph = is_of_graph(&rhs);
                or_panic(f::$op(self, rhs), is_of_graph)
            }
        }
    )*};
}
binary_operators! {
    Add add add try_add AddAssign add_assign;
    Sub sub sub try_sub SubAssign sub_assign;
    Mul mul mul try_mul MulAssign mul_assign;
    Div div div try_div DivAssign div_assign;
    Rem rem mod_ try_rem RemAssign rem_assign;
    BitAnd bitand logical_and try_and;
    BitOr bitor logical_or try_or;
    BitXor bitxor logical_xor try_xor;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $op:ident $try:ident;)*) => {
        $(
            impl $trait for &Tensor {
                type Output = Tensor;

                #[track_caller]
                fn $method(self) -> Tensor {
                    let operand = Operand::from(self);
                    let is_of_graph = is_of_graph(&operand);
                    or_panic(f::$op(operand), is_of_graph)
                }
            }

            impl $trait for Tensor {
                type Output = Tensor;

                #[track_caller]
                fn $method(self) -> Tensor {
                    $trait::$method(&self)
                }
            }
        )*

        impl Tensor {$(
            #[doc = concat!("[`", stringify!($op), "`](crate::functional::", stringify!($op), "): the operator, with an error instead of a panic.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($op), "`](crate::functional::", stringify!($op), ").")]
            #[track_caller]
            pub fn $try(&self) -> Result<Tensor> {
                f::$op(self)
            }
        )*}
    };
}
unary_operators! {
    Neg neg negate try_neg;
    Not not logical_not try_not;
}
