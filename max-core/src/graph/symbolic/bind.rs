//! Symbol sizes when a model executes: which input axis binds which name, and dims compiled for fast evaluation.
//!
//! [`Symbols`] numbers the names of a graph once, at load. [`ShapeMatcher`] then walks the actual input shapes: the
//! first axis that declares a name binds it, every later one is checked against it. [`DimExpr`] evaluates any dim over
//! the bound sizes, a plain slice, without hashing and without allocation.

use std::collections::HashMap;
use std::sync::Arc;

use arcstr::ArcStr;
use smallvec::SmallVec;

use super::dim::{Dim, DimError, floor_div};
use super::polynomial::Polynomial;
use super::polynomial::nested::{Atom, Form, innermost_first};
use super::shape::Shape;
use crate::steps;

/// The names of a graph's symbolic dims, numbered in the order in which they were met.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    names: Vec<ArcStr>,
    numbers: HashMap<ArcStr, usize>,
}

impl Symbols {
    /// No names.
    pub fn new() -> Self {
        Symbols::default()
    }

    /// How many names there are: the length of the sizes that expressions are evaluated over.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The number of a name, if it is known.
    pub fn find(&self, name: &str) -> Option<usize> {
        steps::count(1);
        self.numbers.get(name).copied()
    }

    /// The name with this number.
    pub fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("?", |name| name)
    }

    /// The number of a name, which is new if it was not known.
    pub(in crate::graph) fn intern(&mut self, name: &ArcStr) -> usize {
        self.find(name).unwrap_or_else(|| {
            self.numbers.insert(name.clone(), self.names.len());
            self.names.push(name.clone());
            self.names.len() - 1
        })
    }

    /// Adds a name and gives its number.
    pub(crate) fn add_name(&mut self, name: &str) -> usize {
        self.intern(&ArcStr::from(name))
    }

    /// Forgets the names behind the first `len`.
    pub(in crate::graph) fn truncate(&mut self, len: usize) {
        for name in self.names.drain(len.min(self.names.len())..) {
            self.numbers.remove(&name);
        }
    }

    /// Adds the name of a symbolic dim and gives its number.
    pub fn add(&mut self, dim: &super::dim::SymbolicDim) -> usize {
        self.intern(&ArcStr::from(dim.name()))
    }

    /// Compiles a dim over these names.
    ///
    /// # Errors
    /// [`DimError::Unbound`] when the dim uses a name that is not among them.
    pub fn compile(&self, dim: &Dim) -> Result<DimExpr, DimError> {
        let index = |name: &ArcStr| match self.find(name).and_then(|i| u32::try_from(i).ok()) {
            Some(index) => Ok(index),
            None => Err(dim.unbound(name)),
        };
        Ok(match dim {
            Dim::Static(size) => DimExpr::Const(*size),
            Dim::Symbolic(name) => DimExpr::Symbol(index(&ArcStr::from(name.name()))?),
            Dim::Algebraic(_) => {
                let (expression, mut code, mut kept) = (dim.to_polynomial(), Vec::new(), HashMap::new());
                for nested in innermost_first(&expression) {
                    match nested.form() {
                        Form::Sum(sum) => emit(sum, &index, &kept, &mut code)?,
                        Form::FloorDiv(numerator, divisor) => {
                            emit(numerator, &index, &kept, &mut code)?;
                            emit(divisor, &index, &kept, &mut code)?;
                            code.push(Step::FloorDiv);
                        }
                    }
                    code.push(Step::Keep);
                    kept.insert(nested.id(), kept.len() as u32);
                }
                emit(&expression, &index, &kept, &mut code)?;
                DimExpr::Program(Arc::new(Program { code, dim: dim.clone() }))
            }
        })
    }
}

/// A [`Dim`] compiled by [`Symbols::compile`].
#[derive(Clone, Debug)]
pub enum DimExpr {
    /// A known size.
    Const(i64),
    /// The size with this number.
    Symbol(u32),
    /// An expression.
    Program(Arc<Program>),
}

/// Postfix code of a [`DimExpr`], and the dim it came from for messages.
#[derive(Debug)]
pub struct Program {
    code: Vec<Step>,
    dim: Dim,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Const(i64),
    Symbol(u32),
    Add,
    Mul,
    FloorDiv,
    /// Takes the value of a nested expression from the stack, for all places where it stands.
    Keep,
    /// The value that was kept as that.
    Kept(u32),
}

fn emit(
    polynomial: &Polynomial,
    index: &dyn Fn(&ArcStr) -> Result<u32, DimError>,
    kept: &HashMap<usize, u32>,
    code: &mut Vec<Step>,
) -> Result<(), DimError> {
    if polynomial.0.is_empty() {
        code.push(Step::Const(0));
    }
    for (i, (monomial, coefficient)) in polynomial.0.iter().enumerate() {
        let plain = *coefficient == 1 && !monomial.0.is_empty();
        if !plain {
            code.push(Step::Const(*coefficient));
        }
        for (j, atom) in monomial.0.iter().enumerate() {
            match atom {
                Atom::Symbol(name) => code.push(Step::Symbol(index(name)?)),
                Atom::Nested(nested) => code.extend(kept.get(&nested.id()).map(|at| Step::Kept(*at))),
            }
            if !plain || j > 0 {
                code.push(Step::Mul);
            }
        }
        if i > 0 {
            code.push(Step::Add);
        }
    }
    Ok(())
}

impl DimExpr {
    /// The value over `sizes`, one for each name of the [`Symbols`] that compiled it.
    ///
    /// # Errors
    /// As [`Dim::eval`]; a missing entry of `sizes` is an unbound symbol.
    #[inline]
    pub fn eval(&self, sizes: &[i64]) -> Result<i64, DimError> {
        match self {
            DimExpr::Const(size) => Ok(*size),
            DimExpr::Symbol(index) => sizes.get(*index as usize).copied().ok_or_else(|| missing(*index)),
            DimExpr::Program(program) => program.eval(sizes),
        }
    }
}

#[cold]
fn missing(index: u32) -> DimError {
    DimError::Unbound { symbol: format!("symbol {index}"), dim: format!("symbol {index}") }
}

impl Program {
    fn eval(&self, sizes: &[i64]) -> Result<i64, DimError> {
        let overflow = || DimError::Overflow { dim: self.dim.to_string() };
        let (mut stack, mut kept) = (SmallVec::<[i64; 16]>::new(), SmallVec::<[i64; 16]>::new());
        for step in &self.code {
            let value = match *step {
                Step::Const(value) => value,
                Step::Symbol(index) => *sizes.get(index as usize).ok_or_else(|| missing(index))?,
                Step::Keep => {
                    kept.push(stack.pop().ok_or_else(overflow)?);
                    continue;
                }
                Step::Kept(at) => *kept.get(at as usize).ok_or_else(overflow)?,
                Step::Add | Step::Mul | Step::FloorDiv => {
                    let (Some(b), Some(a)) = (stack.pop(), stack.pop()) else {
                        return Err(overflow());
                    };
                    match step {
                        Step::Add => a.checked_add(b).ok_or_else(overflow)?,
                        Step::Mul => a.checked_mul(b).ok_or_else(overflow)?,
                        _ if b == 0 => {
                            return Err(DimError::DivisionByZero { dim: self.dim.to_string() });
                        }
                        _ => floor_div(a, b).ok_or_else(overflow)?,
                    }
                }
            };
            stack.push(value);
        }
        stack.pop().ok_or_else(overflow)
    }
}

/// An actual input shape that does not fit the declared one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another number of inputs than the graph declares.
    #[error("expected {expected} inputs, got {actual}")]
    Count {
        /// How many inputs the graph declares.
        expected: usize,
        /// How many were given.
        actual: usize,
    },
    /// Another number of axes than declared.
    #[error("input {input}: declared {declared} (rank {}), got {actual:?} (rank {})", declared.rank(), actual.len())]
    Rank {
        /// The input's position.
        input: usize,
        /// The declared shape.
        declared: Box<Shape>,
        /// The actual shape.
        actual: Vec<usize>,
    },
    /// A size that differs from a static dim.
    #[error("input {input}, axis {axis}: declared {declared} in {shape}, got {actual}")]
    Static {
        /// The input's position.
        input: usize,
        /// The axis.
        axis: usize,
        /// The declared size.
        declared: i64,
        /// The declared shape.
        shape: Box<Shape>,
        /// The actual size.
        actual: i64,
    },
    /// A symbol with two sizes.
    #[error(
        "input {input}, axis {axis}: `{symbol}` is {actual} here, but {bound} on axis {first_axis} of input {first_input}"
    )]
    Symbol {
        /// The input's position.
        input: usize,
        /// The axis.
        axis: usize,
        /// The symbol's name.
        symbol: String,
        /// The size found here.
        actual: i64,
        /// The input that bound the symbol first.
        first_input: usize,
        /// The axis that bound the symbol first.
        first_axis: usize,
        /// The size bound there.
        bound: i64,
    },
    /// A size that differs from an expression over symbols bound elsewhere.
    #[error("input {input}, axis {axis}: declared `{dim}`, which is {expected} for these inputs, got {actual}")]
    Expression {
        /// The input's position.
        input: usize,
        /// The axis.
        axis: usize,
        /// The declared dim.
        dim: Dim,
        /// Its value.
        expected: i64,
        /// The actual size.
        actual: i64,
    },
    /// A declared dim has no value.
    #[error("input {input}, axis {axis}: {source}")]
    Dim {
        /// The input's position.
        input: usize,
        /// The axis.
        axis: usize,
        /// Why.
        source: DimError,
    },
}

#[derive(Debug)]
enum AxisRule {
    Static(i64),
    Bind(usize),
    Same(usize),
    Expression(DimExpr),
}

/// Checks actual input shapes against the declared ones and binds the symbols.
///
/// ```
/// # use max_core::graph::{Shape, ShapeMatcher};
/// let matcher = ShapeMatcher::new(&[Shape::from(("batch", 8)), Shape::from(("batch",))])?;
/// let mut sizes = vec![0; matcher.symbols().len()];
/// matcher.bind([&[3, 8][..], &[3][..]], &mut sizes)?;
/// assert_eq!(sizes, [3]);
///
/// let error = matcher.bind([&[3, 8][..], &[4][..]], &mut sizes).unwrap_err();
/// assert_eq!(error.to_string(), "input 1, axis 0: `batch` is 4 here, but 3 on axis 0 of input 0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ShapeMatcher {
    symbols: Symbols,
    /// Where each symbol is bound: input and axis.
    origins: Vec<(usize, usize)>,
    declared: Vec<Shape>,
    /// The rules of all axes, input after input.
    rules: Vec<AxisRule>,
    has_expressions: bool,
}

impl ShapeMatcher {
    /// Compiles the declared input shapes.
    ///
    /// # Errors
    /// [`BindError::Dim`] when an expression uses a name that no input declares as an axis of its own.
    pub fn new(declared: &[Shape]) -> Result<Self, BindError> {
        let (mut symbols, mut origins) = (Symbols::new(), Vec::new());
        for (input, shape) in declared.iter().enumerate() {
            for (axis, dim) in shape.iter().enumerate() {
                if let Dim::Symbolic(name) = dim
                    && symbols.add(name) == origins.len()
                {
                    origins.push((input, axis));
                }
            }
        }
        let mut rules = Vec::new();
        for (input, shape) in declared.iter().enumerate() {
            for (axis, dim) in shape.iter().enumerate() {
                let dim = symbols.compile(dim).map_err(|source| BindError::Dim { input, axis, source })?;
                rules.push(match dim {
                    DimExpr::Const(size) => AxisRule::Static(size),
                    DimExpr::Symbol(index) if origins[index as usize] == (input, axis) => {
                        AxisRule::Bind(index as usize)
                    }
                    DimExpr::Symbol(index) => AxisRule::Same(index as usize),
                    DimExpr::Program(_) => AxisRule::Expression(dim),
                });
            }
        }
        let has_expressions = rules.iter().any(|rule| matches!(rule, AxisRule::Expression(_)));
        Ok(ShapeMatcher { symbols, origins, declared: declared.to_vec(), rules, has_expressions })
    }

    /// The names that the inputs bind.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Binds the symbols: writes the size of symbol i to `sizes[i]`. A shorter `sizes` is filled as far as it goes.
    ///
    /// # Errors
    /// For the first axis that does not fit: the input, the axis, the declared dim or name, and both sizes.
    pub fn bind<'a, I>(&self, shapes: I, sizes: &mut [i64]) -> Result<(), BindError>
    where
        I: IntoIterator<Item = &'a [usize], IntoIter: ExactSizeIterator + Clone>,
    {
        let shapes = shapes.into_iter();
        if shapes.len() != self.declared.len() {
            return Err(BindError::Count { expected: self.declared.len(), actual: shapes.len() });
        }
        let mut rules = self.rules.iter();
        for (input, (actual, declared)) in shapes.clone().zip(&self.declared).enumerate() {
            if actual.len() != declared.rank() {
                return Err(BindError::Rank { input, declared: Box::new(declared.clone()), actual: actual.to_vec() });
            }
            for (axis, (size, rule)) in actual.iter().zip(&mut rules).enumerate() {
                let size = i64::try_from(*size).unwrap_or(i64::MAX);
                match rule {
                    AxisRule::Static(declared_size) if *declared_size != size => {
                        let shape = Box::new(declared.clone());
                        return Err(BindError::Static { input, axis, declared: *declared_size, shape, actual: size });
                    }
                    AxisRule::Bind(index) => {
                        if let Some(slot) = sizes.get_mut(*index) {
                            *slot = size;
                        }
                    }
                    AxisRule::Same(index) if sizes.get(*index) != Some(&size) => {
                        let (first_input, first_axis) = self.origins[*index];
                        let bound = sizes.get(*index).copied().unwrap_or_default();
                        let symbol = self.symbols.name(*index).to_owned();
                        return Err(BindError::Symbol {
                            input,
                            axis,
                            symbol,
                            actual: size,
                            first_input,
                            first_axis,
                            bound,
                        });
                    }
                    AxisRule::Static(_) | AxisRule::Same(_) | AxisRule::Expression(_) => {}
                }
            }
        }
        if self.has_expressions { self.check_expressions(shapes, sizes) } else { Ok(()) }
    }

    /// The second round: expressions may use symbols that a later input binds.
    fn check_expressions<'a>(&self, shapes: impl Iterator<Item = &'a [usize]>, sizes: &[i64]) -> Result<(), BindError> {
        let mut rules = self.rules.iter();
        for (input, actual) in shapes.enumerate() {
            for (axis, (size, rule)) in actual.iter().zip(&mut rules).enumerate() {
                let AxisRule::Expression(expression) = rule else {
                    continue;
                };
                let expected = expression.eval(sizes).map_err(|source| BindError::Dim { input, axis, source })?;
                let actual = i64::try_from(*size).unwrap_or(i64::MAX);
                if expected != actual {
                    let dim = self.declared[input][axis].clone();
                    return Err(BindError::Expression { input, axis, dim, expected, actual });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::symbolic::dim::Bindings;

    fn bind(declared: &[Shape], actual: &[&[usize]]) -> Result<Vec<i64>, String> {
        let matcher = ShapeMatcher::new(declared).map_err(|e| e.to_string())?;
        let mut sizes = vec![-1; matcher.symbols().len()];
        matcher.bind(actual.iter().copied(), &mut sizes).map_err(|e| e.to_string())?;
        Ok(sizes)
    }

    #[test]
    fn the_first_axis_binds_and_the_others_are_checked() {
        let declared = [Shape::from(("n", "m")), Shape::from(("m", 4, "n"))];
        assert_eq!(bind(&declared, &[&[2, 3], &[3, 4, 2]]), Ok(vec![2, 3]));
        assert_eq!(bind(&declared, &[&[0, 0], &[0, 4, 0]]), Ok(vec![0, 0]));
        let error = "input 1, axis 2: `n` is 5 here, but 2 on axis 0 of input 0";
        assert_eq!(bind(&declared, &[&[2, 3], &[3, 4, 5]]), Err(error.to_owned()));
    }

    #[test]
    fn wrong_counts_ranks_and_sizes_are_named() {
        let declared = [Shape::from(("n", 4))];
        assert_eq!(bind(&declared, &[]), Err("expected 1 inputs, got 0".to_owned()));
        let rank = "input 0: declared [n, 4] (rank 2), got [2, 4, 1] (rank 3)";
        assert_eq!(bind(&declared, &[&[2, 4, 1]]), Err(rank.to_owned()));
        assert_eq!(bind(&declared, &[&[2, 5]]), Err("input 0, axis 1: declared 4 in [n, 4], got 5".to_owned()));
    }

    #[test]
    fn expressions_are_checked_after_all_symbols_are_bound() {
        let n = Dim::from("n");
        let declared = [Shape::from([&n * 2 + 1]), Shape::from([n.clone()])];
        assert_eq!(bind(&declared, &[&[7], &[3]]), Ok(vec![3]));
        let error = "input 0, axis 0: declared `n * 2 + 1`, which is 7 for these inputs, got 8";
        assert_eq!(bind(&declared, &[&[8], &[3]]), Err(error.to_owned()));
        let unbound = bind(&declared[..1], &[&[7]]).unwrap_err();
        assert!(unbound.starts_with("input 0, axis 0: dim `n * 2 + 1` needs the size of `n`"), "{unbound}");
    }

    #[test]
    fn a_compiled_dim_has_the_value_of_the_dim() {
        let (a, b) = (Dim::from("a"), Dim::from("b"));
        let mut symbols = Symbols::new();
        for dim in [&a, &b] {
            symbols.add(&dim.parameters()[0]);
        }
        let dims = [
            Dim::from(5),
            b.clone(),
            &a * &b * 3 - &a + 7,
            (&a + 1) * (&b - 2) / 3,
            (&a + &b) / (&a + 1) * &b,
            -&a - &b,
            &a - &a,
        ];
        for dim in dims {
            let bindings = Bindings::from([("a", 6), ("b", 11)]);
            let compiled = symbols.compile(&dim).unwrap();
            assert_eq!(compiled.eval(&[6, 11]), dim.eval(&bindings), "{dim}");
        }
    }

    #[test]
    fn a_compiled_dim_reports_what_the_dim_reports() {
        let a = Dim::from("a");
        let mut symbols = Symbols::new();
        symbols.add(&a.parameters()[0]);
        let eval = |dim: Dim, size| symbols.compile(&dim).and_then(|compiled| compiled.eval(&[size]));
        assert_eq!(eval(&a * &a, i64::MAX), Err(DimError::Overflow { dim: "a * a".into() }));
        assert_eq!(eval(Dim::from(1) / &a, 0), Err(DimError::DivisionByZero { dim: "1 / a".into() }));
        assert_eq!(eval(Dim::from("b"), 0), Err(Dim::from("b").unbound("b")));
    }
}
