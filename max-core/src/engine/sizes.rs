//! Sizes at execution: every dim, stride and offset that the steps use stands in one table of numbers.
//!
//! Of a model without symbols the table is complete at load and shared by all executions. Otherwise each execution takes a
//! copy, in which the entries that depend on symbols are computed by flat expressions.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{EngineError, OpRef};
use crate::compiler::draft::Check;
use crate::dtype::DType;
use crate::graph::{BindError, Dim, DimError, DimExpr, Shape, ShapeMatcher, Symbols};

/// What has to hold for the sizes of one execution.
enum Rule {
    Rebind {
        actual: Vec<DimExpr>,
        declared: Vec<Declared>,
        shape: Box<Shape>,
        message: Arc<str>,
        location: &'static Location<'static>,
    },
    Slice {
        op: &'static str,
        axes: Vec<SliceRule>,
        location: &'static Location<'static>,
    },
}

/// A dim that a `rebind` declares.
enum Declared {
    /// The size binds the symbol of this number.
    Bind(usize),
    Check(DimExpr),
}

struct SliceRule {
    axis: usize,
    size: DimExpr,
    start: DimExpr,
    count: DimExpr,
    step: i64,
}

/// Sizes that have to make a tensor: the entries `at..at + rank` of the table.
struct Extent {
    at: u32,
    rank: u32,
    dtype: DType,
    name: &'static str,
    shape: Shape,
    location: &'static Location<'static>,
}

/// The table, and how its entries are computed.
pub(crate) struct Sizes {
    model: Arc<str>,
    pub matcher: ShapeMatcher,
    symbol_count: usize,
    rules: Vec<Rule>,
    table: Vec<i64>,
    code: Vec<(u32, DimExpr)>,
    extents: Vec<Extent>,
}

/// Symbols of one execution.
pub(crate) type Bound = SmallVec<[i64; 16]>;
/// The table of one execution.
pub(crate) type Table = SmallVec<[i64; 192]>;

/// Collects entries of the table.
pub(crate) struct SizesBuilder {
    sizes: Sizes,
    symbols: Symbols,
    known: HashMap<SmallVec<[Dim; 4]>, u32>,
}

impl SizesBuilder {
    pub fn new(model: &Arc<str>, declared: &[Shape], checks: &[Check]) -> Result<SizesBuilder, EngineError> {
        let dim_error = |source| EngineError::Dim { model: model.clone(), source };
        let matcher = ShapeMatcher::new(declared).map_err(|error| match error {
            BindError::Dim { source, .. } => dim_error(source),
            other => dim_error(DimError::Unbound { symbol: String::new(), dim: other.to_string() }),
        })?;
        let mut symbols = matcher.symbols().clone();
        let rules =
            checks.iter().map(|check| rule(check, &mut symbols)).collect::<Result<_, _>>().map_err(dim_error)?;
        let sizes = Sizes {
            model: model.clone(),
            matcher,
            symbol_count: symbols.len(),
            rules,
            table: Vec::new(),
            code: Vec::new(),
            extents: Vec::new(),
        };
        Ok(SizesBuilder { sizes, symbols, known: HashMap::new() })
    }

    /// Where the values of `dims` stand, one after the other.
    pub fn entries(&mut self, dims: &[Dim]) -> Result<u32, EngineError> {
        if let Some(&at) = self.known.get(dims) {
            return Ok(at);
        }
        let at = self.sizes.table.len() as u32;
        for dim in dims {
            let entry = self.sizes.table.len() as u32;
            let value = match self.compile(dim)? {
                DimExpr::Const(value) => value,
                expression => {
                    self.sizes.code.push((entry, expression));
                    0
                }
            };
            self.sizes.table.push(value);
        }
        self.known.insert(dims.into(), at);
        Ok(at)
    }

    /// Compiles one dim.
    pub fn compile(&self, dim: &Dim) -> Result<DimExpr, EngineError> {
        let model = || self.sizes.model.clone();
        self.symbols.compile(dim).map_err(|source| EngineError::Dim { model: model(), source })
    }

    /// As [`entries`](Self::entries), for the sizes of a tensor, which are checked when they are known.
    pub fn extent(
        &mut self,
        dims: &[Dim],
        dtype: DType,
        name: &'static str,
        location: &'static Location<'static>,
    ) -> Result<u32, EngineError> {
        let at = self.entries(dims)?;
        let rank = dims.len() as u32;
        let same = |extent: &Extent| extent.at == at && extent.rank == rank && extent.dtype == dtype;
        if !dims.iter().all(Dim::is_static) && !self.sizes.extents.iter().any(same) {
            self.sizes.extents.push(Extent { at, rank, dtype, name, shape: dims.into(), location });
        }
        Ok(at)
    }

    pub fn finish(self) -> Sizes {
        self.sizes
    }
}

fn rule(check: &Check, symbols: &mut Symbols) -> Result<Rule, DimError> {
    match check {
        Check::Rebind { actual, declared, message, location } => {
            let actual = actual.iter().map(|dim| symbols.compile(dim)).collect::<Result<_, _>>()?;
            // Names are bound before expressions over them are compiled.
            let mut slots: SmallVec<[Option<Declared>; 4]> = SmallVec::new();
            for dim in declared.iter() {
                let new = match dim {
                    Dim::Symbolic(name) if symbols.find(name.name()).is_none() => Some(symbols.add(name)),
                    _ => None,
                };
                slots.push(new.map(Declared::Bind));
            }
            let mut dims = Vec::new();
            for (slot, dim) in slots.into_iter().zip(declared.iter()) {
                dims.push(match slot {
                    Some(bind) => bind,
                    None => Declared::Check(symbols.compile(dim)?),
                });
            }
            Ok(Rule::Rebind {
                actual,
                declared: dims,
                shape: Box::new(declared.clone()),
                message: message.clone(),
                location,
            })
        }
        Check::Slice { op, shape, axes, taken, location } => {
            let mut rules = Vec::new();
            for (axis, (slice, (size, count))) in axes.iter().zip(shape.iter().zip(taken.iter())).enumerate() {
                let is_whole = slice.start == 0 && slice.step == 1 && size == count;
                if !is_whole {
                    rules.push(SliceRule {
                        axis,
                        size: symbols.compile(size)?,
                        start: symbols.compile(&slice.start)?,
                        count: symbols.compile(count)?,
                        step: slice.step,
                    });
                }
            }
            Ok(Rule::Slice { op, axes: rules, location })
        }
    }
}

impl Sizes {
    /// The table, if it does not depend on symbols.
    pub fn fixed(&self) -> Option<&[i64]> {
        let is_fixed = self.symbol_count == 0 && self.code.is_empty() && self.rules.is_empty();
        is_fixed.then_some(&self.table[..])
    }

    /// Room for the symbols of one execution.
    pub fn unbound(&self) -> Bound {
        SmallVec::from_elem(0, self.symbol_count)
    }

    /// Checks the rules, binds the symbols that `rebind` introduces, and computes the table.
    pub fn evaluate(&self, bound: &mut Bound, table: &mut Table) -> Result<(), EngineError> {
        for rule in &self.rules {
            self.apply(rule, bound)?;
        }
        table.extend_from_slice(&self.table);
        for (entry, expression) in &self.code {
            table[*entry as usize] = self.eval(expression, bound)?;
        }
        self.extents.iter().try_for_each(|extent| self.check_extent(extent, table))
    }

    #[inline]
    fn eval(&self, expression: &DimExpr, bound: &[i64]) -> Result<i64, EngineError> {
        expression.eval(bound).map_err(|source| EngineError::Size { model: self.model.clone(), source })
    }

    fn op(&self, name: &'static str, location: &'static Location<'static>) -> OpRef {
        OpRef { model: self.model.clone(), op: name.into(), location }
    }

    fn check_extent(&self, extent: &Extent, table: &[i64]) -> Result<(), EngineError> {
        let dims = &table[extent.at as usize..][..extent.rank as usize];
        let size = extent.dtype.size_in_bytes() as i64;
        // A dim of 0 makes the tensor empty, but its strides still have to be representable.
        let bytes =
            dims.iter().try_fold(size, |bytes, &dim| if dim < 0 { None } else { bytes.checked_mul(dim.max(1)) });
        if bytes.is_some() {
            return Ok(());
        }
        let op = self.op(extent.name, extent.location);
        Err(EngineError::Extent {
            op,
            shape: dims.to_vec(),
            dtype: extent.dtype,
            declared: extent.shape.clone().into(),
        })
    }

    fn apply(&self, rule: &Rule, bound: &mut Bound) -> Result<(), EngineError> {
        match rule {
            Rule::Rebind { actual, declared, shape, message, location } => {
                let mut sizes: SmallVec<[i64; 6]> = SmallVec::new();
                for expression in actual {
                    sizes.push(self.eval(expression, bound)?);
                }
                for (size, declared) in sizes.iter().zip(declared) {
                    if let Declared::Bind(symbol) = declared {
                        bound[*symbol] = *size;
                    }
                }
                for (size, declared) in sizes.iter().zip(declared) {
                    if let Declared::Check(expression) = declared
                        && self.eval(expression, bound)? != *size
                    {
                        return Err(EngineError::Rebind {
                            op: self.op("rebind", location),
                            actual: sizes.to_vec(),
                            declared: shape.clone(),
                            message: message.clone(),
                        });
                    }
                }
                Ok(())
            }
            Rule::Slice { op, axes, location } => axes.iter().try_for_each(|rule| {
                let [size, start, count] = [&rule.size, &rule.start, &rule.count].map(|e| self.eval(e, bound));
                let (size, start, count, step) = (size?, start?, count?, rule.step);
                let last = (count - 1).checked_mul(step).and_then(|span| start.checked_add(span));
                let inside = |i: i64| (0..size).contains(&i);
                // A range without elements stands before, between or behind those of the axis.
                let is_empty = count == 0 && (-1..=size).contains(&start);
                if is_empty || (count > 0 && inside(start) && last.is_some_and(inside)) {
                    return Ok(());
                }
                let op = self.op(op, location);
                Err(EngineError::Slice { op, axis: rule.axis, size, start, count, step })
            }),
        }
    }
}
