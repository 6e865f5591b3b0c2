//! [`Dim`]: the size of one axis: a number, a name, or an expression over names.
//!
//! ```
//! use max_core::graph::Dim;
//!
//! let batch = Dim::from("batch");
//! assert_eq!((batch.clone() * 2 + 1).to_string(), "batch * 2 + 1");
//! assert_eq!(-(batch.clone() + 4), -batch.clone() - 4);
//! assert_eq!(batch.clone() * 8 / 4, batch * 2);
//! ```

use std::collections::HashMap;
use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

use arcstr::ArcStr;

use super::polynomial::Polynomial;
use super::polynomial::nested::{Atom, Form, innermost_first};

/// The size of one axis of a tensor.
///
/// Arithmetic (`+`, `-`, `*`, and `/`, which rounds down) gives a normal form, so equal expressions compare equal
/// however they were written, up to 256 terms; above that, if they were written alike. A value that exceeds `i64` saturates; [`eval`](Dim::eval) and every op that needs the
/// number report it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dim {
    /// A size known when the graph is built.
    Static(i64),
    /// A named size, bound when the model executes. The same name means the same size in the whole graph.
    Symbolic(SymbolicDim),
    /// An expression over named sizes.
    Algebraic(AlgebraicDim),
}

/// The name of a [`Dim::Symbolic`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SymbolicDim(ArcStr);

impl SymbolicDim {
    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The expression of a [`Dim::Algebraic`], in normal form.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AlgebraicDim(Arc<Polynomial>);

/// Why a [`Dim`] has no value.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DimError {
    /// A symbol of the expression was given no size.
    #[error("dim `{dim}` needs the size of `{symbol}`, which no input binds; declare an input with an axis `{symbol}`")]
    Unbound {
        /// The symbol without a size.
        symbol: String,
        /// The expression.
        dim: String,
    },
    /// The expression divides by a size that is zero.
    #[error("dim `{dim}` divides by zero")]
    DivisionByZero {
        /// The expression.
        dim: String,
    },
    /// The value, or an intermediate one, exceeds `i64`.
    #[error("dim `{dim}` exceeds the largest size, 2^63 - 1")]
    Overflow {
        /// The expression.
        dim: String,
    },
}

impl Dim {
    /// The size, when it is known.
    pub fn as_static(&self) -> Option<i64> {
        match self {
            Dim::Static(size) => Some(*size),
            Dim::Symbolic(_) | Dim::Algebraic(_) => None,
        }
    }

    /// Whether the size is known.
    pub fn is_static(&self) -> bool {
        self.as_static().is_some()
    }

    /// The names that this dim depends on, each once, sorted.
    pub fn parameters(&self) -> Vec<SymbolicDim> {
        let mut names = Vec::new();
        self.for_each_symbol(&mut |name| names.push(name.clone()));
        names.sort();
        names.dedup();
        names.into_iter().map(SymbolicDim).collect()
    }

    /// `self / divisor` when the division is exact for every size: `batch * 128` by `batch` is `128`.
    pub fn exact_div(&self, divisor: &Dim) -> Option<Dim> {
        if let (Dim::Static(a), Dim::Static(b)) = (self, divisor) {
            return a.checked_rem(*b).filter(|rest| *rest == 0).and_then(|_| a.checked_div(*b)).map(Dim::Static);
        }
        self.to_polynomial().exact_div(&divisor.to_polynomial()).map(Dim::from_polynomial)
    }

    /// The value for the given sizes.
    ///
    /// # Errors
    /// When a symbol has no size in `bindings`, on a division by zero, and when the value exceeds `i64`.
    ///
    /// ```
    /// # use max_core::graph::{Bindings, Dim};
    /// let sizes = Bindings::from([("batch", 3)]);
    /// assert_eq!((Dim::from("batch") * 2 + 1).eval(&sizes), Ok(7));
    /// ```
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        match self {
            Dim::Static(size) => Ok(*size),
            Dim::Symbolic(name) => bindings.get(&name.0).ok_or_else(|| self.unbound(&name.0)),
            Dim::Algebraic(expression) => self.eval_expression(&expression.0, bindings),
        }
    }

    /// Evaluates what the expression holds, each once, then itself.
    fn eval_expression(&self, expression: &Polynomial, bindings: &Bindings) -> Result<i64, DimError> {
        let mut known = HashMap::new();
        for nested in innermost_first(expression) {
            let value = match nested.form() {
                Form::Sum(sum) => self.eval_polynomial(sum, &known, bindings)?,
                Form::FloorDiv(numerator, divisor) => {
                    let numerator = self.eval_polynomial(numerator, &known, bindings)?;
                    match self.eval_polynomial(divisor, &known, bindings)? {
                        0 => return Err(DimError::DivisionByZero { dim: self.to_string() }),
                        divisor => floor_div(numerator, divisor).ok_or_else(|| self.overflow())?,
                    }
                }
            };
            known.insert(nested.id(), value);
        }
        self.eval_polynomial(expression, &known, bindings)
    }

    /// The value where those of nested expressions are known.
    fn eval_polynomial(
        &self,
        polynomial: &Polynomial,
        known: &HashMap<usize, i64>,
        bindings: &Bindings,
    ) -> Result<i64, DimError> {
        let overflow = || self.overflow();
        polynomial.0.iter().try_fold(0i64, |sum, (monomial, coefficient)| {
            let term = monomial.0.iter().try_fold(*coefficient, |product, atom| {
                let value = match atom {
                    Atom::Symbol(name) => bindings.get(name).ok_or_else(|| self.unbound(name))?,
                    Atom::Nested(nested) => *known.get(&nested.id()).ok_or_else(overflow)?,
                };
                product.checked_mul(value).ok_or_else(overflow)
            })?;
            sum.checked_add(term).ok_or_else(overflow)
        })
    }

    fn overflow(&self) -> DimError {
        DimError::Overflow { dim: self.to_string() }
    }

    pub(in crate::graph) fn unbound(&self, symbol: &str) -> DimError {
        DimError::Unbound { symbol: symbol.to_owned(), dim: self.to_string() }
    }

    pub(in crate::graph) fn for_each_symbol(&self, f: &mut dyn FnMut(&ArcStr)) {
        match self {
            Dim::Static(_) => {}
            Dim::Symbolic(name) => f(&name.0),
            Dim::Algebraic(expression) => expression.0.for_each_symbol(f),
        }
    }

    pub(in crate::graph) fn to_polynomial(&self) -> Polynomial {
        match self {
            Dim::Static(size) => Polynomial::constant(*size),
            Dim::Symbolic(name) => Polynomial::symbol(name.0.clone()),
            Dim::Algebraic(expression) => (*expression.0).clone(),
        }
    }

    fn from_polynomial(polynomial: Polynomial) -> Dim {
        if let Some(size) = polynomial.as_constant() {
            return Dim::Static(size);
        }
        match polynomial.as_symbol() {
            Some(name) => Dim::Symbolic(SymbolicDim(name.clone())),
            None => Dim::Algebraic(AlgebraicDim(Arc::new(polynomial))),
        }
    }
}

/// `floor(a / b)`, or `None` when `b` is zero or the result exceeds `i64`.
pub(in crate::graph) fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Static(size) => write!(f, "{size}"),
            Dim::Symbolic(name) => f.write_str(&name.0),
            Dim::Algebraic(expression) => write!(f, "{}", expression.0),
        }
    }
}

macro_rules! dim_from_integer {
    ($($int:ty),*) => {$(
        impl From<$int> for Dim {
            /// A static dim; a value above `i64::MAX` saturates.
            fn from(size: $int) -> Dim {
                Dim::Static(i64::try_from(size).unwrap_or(i64::MAX))
            }
        }

        impl PartialEq<$int> for Dim {
            fn eq(&self, other: &$int) -> bool {
                i64::try_from(*other).is_ok_and(|size| self.as_static() == Some(size))
            }
        }
    )*};
}
dim_from_integer!(i32, u32, i64, usize);

impl From<&str> for Dim {
    /// A symbolic dim of this name.
    fn from(name: &str) -> Dim {
        Dim::Symbolic(SymbolicDim(name.into()))
    }
}

impl From<String> for Dim {
    fn from(name: String) -> Dim {
        Dim::from(name.as_str())
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

macro_rules! dim_operator {
    ($($trait:ident $method:ident: $on_static:expr, $simple:expr, $on_polynomial:expr;)*) => {$(
        impl<T: Into<Dim>> $trait<T> for &Dim {
            type Output = Dim;

            fn $method(self, rhs: T) -> Dim {
                let rhs = rhs.into();
                if let (Dim::Static(a), Dim::Static(b)) = (self, &rhs) {
                    let value: Option<i64> = $on_static(*a, *b);
                    if let Some(value) = value {
                        return Dim::Static(value);
                    }
                }
                let simple: fn(&Dim, &Dim) -> Option<Dim> = $simple;
                if let Some(dim) = simple(self, &rhs) {
                    return dim;
                }
                Dim::from_polynomial($on_polynomial(&self.to_polynomial(), &rhs.to_polynomial()))
            }
        }

        impl<T: Into<Dim>> $trait<T> for Dim {
            type Output = Dim;

            fn $method(self, rhs: T) -> Dim {
                $trait::$method(&self, rhs)
            }
        }

        impl $trait<Dim> for i64 {
            type Output = Dim;

            fn $method(self, rhs: Dim) -> Dim {
                $trait::$method(&Dim::from(self), rhs)
            }
        }

        impl $trait<&Dim> for i64 {
            type Output = Dim;

            fn $method(self, rhs: &Dim) -> Dim {
                $trait::$method(&Dim::from(self), rhs)
            }
        }
    )*};
}
dim_operator! {
    Add add: i64::checked_add, simple_sum, Polynomial::add;
    Sub sub: i64::checked_sub, |a, b| (*b == 0).then(|| a.clone()), |a: &Polynomial, b: &Polynomial| a.add(&b.neg());
    Mul mul: i64::checked_mul, simple_product, Polynomial::mul;
    Div div: floor_div, |a, b| (*b == 1).then(|| a.clone()), Polynomial::floor_div;
}

/// The sum, where one of them is 0.
fn simple_sum(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        (Dim::Static(0), other) | (other, Dim::Static(0)) => Some(other.clone()),
        _ => None,
    }
}

/// The product, where one of them is a number: strides are products of many of these.
fn simple_product(a: &Dim, b: &Dim) -> Option<Dim> {
    let (factor, other) = match (a, b) {
        (Dim::Static(factor), other) | (other, Dim::Static(factor)) => (*factor, other),
        _ => return None,
    };
    Some(match factor {
        0 => Dim::Static(0),
        1 => other.clone(),
        _ => Dim::from_polynomial(other.to_polynomial().scale(factor)),
    })
}

impl Neg for &Dim {
    type Output = Dim;

    fn neg(self) -> Dim {
        Dim::from_polynomial(self.to_polynomial().neg())
    }
}

impl Neg for Dim {
    type Output = Dim;

    fn neg(self) -> Dim {
        -&self
    }
}

/// The sizes of symbolic dims, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bindings(Vec<(String, i64)>);

impl Bindings {
    /// No sizes.
    pub fn new() -> Self {
        Bindings::default()
    }

    /// Sets the size of a symbol, and returns the one it had.
    pub fn insert(&mut self, symbol: &str, size: i64) -> Option<i64> {
        match self.0.iter_mut().find(|(name, _)| name == symbol) {
            Some((_, old)) => Some(std::mem::replace(old, size)),
            None => {
                self.0.push((symbol.to_owned(), size));
                None
            }
        }
    }

    /// The size of a symbol.
    pub fn get(&self, symbol: &str) -> Option<i64> {
        self.0.iter().find(|(name, _)| name == symbol).map(|(_, size)| *size)
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Bindings {
    fn from(sizes: [(&str, i64); N]) -> Self {
        let mut bindings = Bindings::new();
        for (symbol, size) in sizes {
            bindings.insert(symbol, size);
        }
        bindings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::symbolic::bind::Symbols;
    use crate::steps;
    use proptest::prelude::*;

    fn dim(name: &str) -> Dim {
        Dim::from(name)
    }

    #[test]
    fn prints_terms_by_degree_with_the_constant_last() {
        let (a, b) = (dim("a"), dim("b"));
        let cases = [
            (a.clone() * 5, "a * 5"),
            (1 + &a * 2, "a * 2 + 1"),
            (-&a - 4, "-a - 4"),
            ((&a + 1) * (&b - 1), "a * b - a + b - 1"),
            (&a / 2, "a / 2"),
            ((&a + 1) / 2 * 3, "((a + 1) / 2) * 3"),
            (&a / &b + 1, "(a / b) + 1"),
            (&a - &a, "0"),
        ];
        for (dim, text) in cases {
            assert_eq!(dim.to_string(), text);
        }
    }

    #[test]
    fn expressions_collapse_to_the_simplest_kind() {
        let a = dim("a");
        assert_eq!(&a + 0, a);
        assert_eq!(&a * 1, a);
        assert_eq!(&a * Dim::from(0), Dim::Static(0));
        assert_eq!(&a + 3 - &a, Dim::Static(3));
        assert!(matches!(&a * 2, Dim::Algebraic(_)));
        assert_eq!(Dim::from(7) / -2, Dim::Static(-4));
    }

    #[test]
    fn floor_division_has_one_form() {
        let (a, b) = (dim("a"), dim("b"));
        assert_eq!((&a * 4 + 6) / 4, &a + 1);
        assert_eq!((&a * 4 + 6) / 8, (&a * 2 + 3) / 4);
        assert_eq!((&a / 2 + 3) / 5, (&a + 6) / 10);
        assert_eq!(&a / -2, -&a / 2);
        assert_eq!(&a * &b * 6 / (&b * 2), &a * 3);
        assert_eq!((&a * &b + 1) / &b, &a + Dim::from(1) / &b);
        assert_ne!(&a / 2, (&a + 1) / 2);
    }

    #[test]
    fn exact_division_is_only_given_when_it_holds_for_every_size() {
        let (a, b) = (dim("a"), dim("b"));
        assert_eq!((&a * &b * 4).exact_div(&(&a * 2)), Some(&b * 2));
        assert_eq!(((&a + 1) * (&b + 2)).exact_div(&(&b + 2)), Some(&a + 1));
        assert_eq!((&a * 3).exact_div(&Dim::from(2)), None);
        assert_eq!(a.exact_div(&b), None);
        assert_eq!(Dim::from(6).exact_div(&Dim::from(0)), None);
        assert_eq!(a.exact_div(&Dim::from(0)), None);
    }

    #[test]
    fn evaluation_names_what_is_wrong() {
        let sizes = Bindings::from([("a", 0), ("big", i64::MAX)]);
        let expression = dim("n") * 2;
        let unbound = DimError::Unbound { symbol: "n".into(), dim: "n * 2".into() };
        assert_eq!(expression.eval(&sizes), Err(unbound));
        assert_eq!((Dim::from(4) / dim("a")).eval(&sizes), Err(DimError::DivisionByZero { dim: "4 / a".into() }));
        assert_eq!((dim("a") / 0).eval(&sizes), Err(DimError::DivisionByZero { dim: "a / 0".into() }));
        assert_eq!((dim("big") * 2).eval(&sizes), Err(DimError::Overflow { dim: "big * 2".into() }));
    }

    #[test]
    fn overflow_saturates_instead_of_wrapping() {
        assert_eq!(Dim::from(i64::MAX) * 2, Dim::Static(i64::MAX));
        assert_eq!(-Dim::from(i64::MIN), Dim::Static(i64::MAX));
        assert_eq!(Dim::from(i64::MIN) / -1, Dim::Static(i64::MAX));
    }

    /// A floor division that holds the one before twice.
    fn divisions(count: usize) -> Dim {
        (0..count).fold(dim("n"), |d, _| (&d * dim("s") + &d + 1) / dim("t"))
    }

    fn symbols() -> Symbols {
        let mut symbols = Symbols::new();
        divisions(1).parameters().iter().for_each(|name| {
            symbols.add(name);
        });
        symbols
    }

    #[test]
    fn nested_divisions_take_steps_in_proportion_to_how_they_were_written() {
        let sizes = Bindings::from([("n", 5), ("s", 1), ("t", 2)]);
        let steps = |count| {
            steps::of(|| {
                let (a, b) = (divisions(count), divisions(count));
                assert_eq!(a, b);
                assert_ne!(a, divisions(count - 1));
                assert_eq!(a.parameters().len(), 3);
                assert!(a.to_string().chars().count() <= 501);
                let compiled = symbols().compile(&a).unwrap();
                let value = (0..count).fold(5, |d, _| (d + d + 1) / 2);
                assert_eq!((a.eval(&sizes), compiled.eval(&[5, 1, 2])), (Ok(value), Ok(value)));
            })
        };
        let [few, many] = [50, 400].map(steps);
        assert!(many < few * 9, "{few} steps, then {many}");
    }

    #[test]
    fn divisions_nest_deeper_than_the_stack_is() {
        let deep = divisions(100_000);
        assert!(deep.to_string().ends_with('…'));
        assert_ne!(deep, divisions(99_999));
        assert_eq!(deep.parameters().len(), 3);
    }

    /// The elements of `[a0 + b0, a1 + b1, …]`.
    fn elements(rank: usize) -> Dim {
        (0..rank).fold(Dim::from(1), |product, i| product * (dim(&format!("a{i}")) + dim(&format!("b{i}"))))
    }

    #[test]
    fn products_of_sums_are_multiplied_out_up_to_a_limit() {
        let steps = |rank| {
            steps::of(|| {
                let product = elements(rank);
                assert_eq!(product, elements(rank));
                assert_eq!(product.parameters().len(), 2 * rank);
                let sizes = product.parameters().iter().fold(Bindings::new(), |mut sizes, name| {
                    sizes.insert(name.name(), 1);
                    sizes
                });
                assert_eq!(product.eval(&sizes), Ok(1 << rank));
            })
        };
        let [few, many] = [15, 60].map(steps);
        // A product has up to 256 terms before it becomes one factor; the shorter one has that once, the longer one seven times.
        assert!(many < few * 16, "{few} steps, then {many}");
        // Up to the limit, the order is of no account.
        let reversed = (0..8).rev().fold(Dim::from(1), |p, i| p * (dim(&format!("b{i}")) + dim(&format!("a{i}"))));
        assert_eq!(elements(8), reversed);
    }

    #[test]
    fn powers_sums_and_long_divisions_stay_small() {
        let steps = steps::of(|| {
            let power = (0..60).fold(dim("n"), |d, _| &d * &d);
            assert_eq!(power.eval(&Bindings::from([("n", 1)])), Ok(1));
            let sum = |names: usize| (0..names).fold(Dim::from(0), |sum, i| sum + dim(&format!("a{i}")));
            assert_eq!(sum(1000).parameters().len(), 1000);
            assert_eq!(sum(1000), sum(1000));
            let long = (0..63).fold(dim("n"), |d, _| d * dim("n")) / (dim("n") + sum(5));
            let ones = ["n", "a0", "a1", "a2", "a3", "a4"].map(|name| (name, 1));
            assert_eq!(long.eval(&Bindings::from(ones)), Ok(0));
        });
        assert!(steps < 4_000_000, "{steps}");
    }

    /// An expression as the user wrote it, evaluated without any normal form.
    #[derive(Clone, Debug)]
    enum Expr {
        Const(i64),
        Symbol(usize),
        Binary(char, Box<Expr>, Box<Expr>),
    }

    const NAMES: [&str; 3] = ["a", "b", "c"];

    impl Expr {
        fn dim(&self) -> Dim {
            match self {
                Expr::Const(value) => Dim::from(*value),
                Expr::Symbol(index) => Dim::from(NAMES[*index]),
                Expr::Binary('+', a, b) => a.dim() + b.dim(),
                Expr::Binary('-', a, b) => a.dim() - b.dim(),
                Expr::Binary('*', a, b) => a.dim() * b.dim(),
                Expr::Binary(_, a, b) => a.dim() / b.dim(),
            }
        }

        /// `None` where a divisor is zero.
        fn eval(&self, sizes: &[i64; 3]) -> Option<i64> {
            match self {
                Expr::Const(value) => Some(*value),
                Expr::Symbol(index) => Some(sizes[*index]),
                Expr::Binary(op, a, b) => {
                    let (a, b) = (a.eval(sizes)?, b.eval(sizes)?);
                    match op {
                        '+' => a.checked_add(b),
                        '-' => a.checked_sub(b),
                        '*' => a.checked_mul(b),
                        _ => floor_div(a, b),
                    }
                }
            }
        }
    }

    fn expr() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![(-5i64..6).prop_map(Expr::Const), (0usize..3).prop_map(Expr::Symbol)];
        leaf.prop_recursive(4, 16, 2, |inner| {
            let op = prop::sample::select(vec!['+', '-', '*', '/']);
            (op, inner.clone(), inner).prop_map(|(op, a, b)| Expr::Binary(op, Box::new(a), Box::new(b)))
        })
    }

    proptest! {
        #[test]
        fn the_normal_form_has_the_value_of_what_was_written(e in expr(), sizes in prop::array::uniform3(0i64..9)) {
            let bindings = Bindings::from([(NAMES[0], sizes[0]), (NAMES[1], sizes[1]), (NAMES[2], sizes[2])]);
            let dim = e.dim();
            if let Some(value) = e.eval(&sizes) {
                prop_assert_eq!(dim.eval(&bindings), Ok(value), "{}", dim);
            }
            let mut symbols = Symbols::new();
            for name in NAMES {
                symbols.add(&SymbolicDim(name.into()));
            }
            let compiled = symbols.compile(&dim).unwrap();
            prop_assert_eq!(compiled.eval(&sizes), dim.eval(&bindings), "{}", dim);
        }

        #[test]
        fn sums_and_products_commute_and_distribute(x in expr(), y in expr(), z in expr()) {
            let (x, y, z) = (x.dim(), y.dim(), z.dim());
            prop_assert_eq!(&x + &y, &y + &x);
            prop_assert_eq!(&x * &y, &y * &x);
            prop_assert_eq!(&x * (&y + &z), &x * &y + &x * &z);
            prop_assert_eq!(&x - &y + &y, x);
        }
    }
}
