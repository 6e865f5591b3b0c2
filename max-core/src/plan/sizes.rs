//! Sizes at execution: every dim, stride and offset that the steps use stands in one table of numbers.
//!
//! Of a model without symbols the table is complete at load and shared by all executions. Otherwise each execution takes a
//! copy, in which the entries that depend on symbols are computed by flat expressions.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{EngineError, OpRef};
use crate::dtype::DType;
use crate::graph::{BindError, Dim, DimError, DimExpr, Shape, ShapeMatcher, SliceAxes, Symbols};
use crate::hash_map::{HashMap, HashSet};
use crate::kernel::ptx::LARGEST_DIM;

/// What has to hold when the model executes, in the order in which it is checked.
pub(crate) enum Check {
    /// The sizes `actual` are those of `declared`; names that are new are bound by it.
    Rebind { actual: Shape, declared: Shape, message: Arc<str>, location: &'static Location<'static> },
    /// The sizes that a step reads are those of `declared`; names that are new are bound by it. The stage of that number
    /// begins with it.
    Bind { declared: Shape, stage: u32, op: &'static str, location: &'static Location<'static> },
    /// A slice stays inside.
    Slice { op: &'static str, shape: Shape, axes: SliceAxes, taken: Shape, location: &'static Location<'static> },
}

/// So many sizes take longer to compute than to be found.
const MANY_SIZES: usize = 32;

/// The stage of an execution in which a dim has its value.
pub(crate) type StageOf<'a> = &'a dyn Fn(&Dim) -> u32;

/// A [`Check`], compiled.
enum Rule {
    Rebind {
        actual: Vec<DimExpr>,
        declared: Vec<Declared>,
        shape: Box<Shape>,
        message: Arc<str>,
        location: &'static Location<'static>,
    },
    /// As a rebind to the sizes that a step read.
    Bind {
        op: &'static str,
        declared: Vec<Declared>,
        shape: Box<Shape>,
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
    table: Vec<i64>,
    /// What is known from the start, then what each step that binds names makes known.
    stages: Vec<Stage>,
}

/// What is computed when the sizes of some names are known.
#[derive(Default)]
struct Stage {
    rules: Vec<Rule>,
    code: Vec<(u32, DimExpr)>,
    extents: Vec<Extent>,
}

/// Symbols of one execution.
pub(crate) type Bound = SmallVec<[i64; 16]>;
/// The table of one execution.
pub(crate) type Table = SmallVec<[i64; 192]>;

/// Collects entries of the table.
pub(crate) struct SizesBuilder<'a> {
    sizes: Sizes,
    stage: StageOf<'a>,
    symbols: Symbols,
    known: HashMap<SmallVec<[Dim; 4]>, u32>,
    /// The extents that are checked: entry, rank and dtype.
    checked: HashSet<(u32, u32, DType)>,
}

impl<'a> SizesBuilder<'a> {
    /// `around` are the names that have a size where a region runs; its inputs then bind none.
    pub fn new(
        model: &Arc<str>,
        declared: &[Shape],
        checks: &[Check],
        around: Option<&Symbols>,
        (stage, last_stage): (StageOf<'a>, u32),
    ) -> Result<SizesBuilder<'a>, EngineError> {
        let dim_error = |source| EngineError::Dim { model: model.clone(), source };
        let matcher =
            ShapeMatcher::new(if around.is_some() { &[] } else { declared }).map_err(|error| match error {
                BindError::Dim { source, .. } => dim_error(source),
                other => dim_error(DimError::Unbound { symbol: String::new(), dim: other.to_string() }),
            })?;
        let mut symbols = around.unwrap_or(matcher.symbols()).clone();
        let mut stages: Vec<Stage> = (0..=last_stage).map(|_| Stage::default()).collect();
        for check in checks {
            let (of, rule) = rule(check, &mut symbols, stage).map_err(dim_error)?;
            stages[of as usize].rules.push(rule);
        }
        let sizes = Sizes { model: model.clone(), matcher, symbol_count: symbols.len(), table: Vec::new(), stages };
        Ok(SizesBuilder { sizes, stage, symbols, known: HashMap::default(), checked: HashSet::default() })
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
                    self.sizes.stages[(self.stage)(dim) as usize].code.push((entry, expression));
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
        if !dims.iter().all(Dim::is_static) && self.checked.insert((at, rank, dtype)) {
            let stage = dims.iter().map(self.stage).max().unwrap_or(0);
            let extent = Extent { at, rank, dtype, name, shape: dims.into(), location };
            self.sizes.stages[stage as usize].extents.push(extent);
        }
        Ok(at)
    }

    /// All names that have a size at some stage.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    pub fn finish(self) -> Sizes {
        self.sizes
    }
}

/// What each dim of a shape that gives names their sizes does.
fn declare(shape: &Shape, symbols: &mut Symbols) -> Result<Vec<Declared>, DimError> {
    // Names are bound before expressions over them are compiled.
    let mut slots: SmallVec<[Option<Declared>; 4]> = SmallVec::new();
    for dim in shape.iter() {
        let new = match dim {
            Dim::Symbolic(name) if symbols.find(name.name()).is_none() => Some(symbols.add(name)),
            _ => None,
        };
        slots.push(new.map(Declared::Bind));
    }
    let compile = |(slot, dim): (Option<Declared>, &Dim)| match slot {
        Some(bind) => Ok(bind),
        None => Ok(Declared::Check(symbols.compile(dim)?)),
    };
    slots.into_iter().zip(shape.iter()).map(compile).collect()
}

/// A check, compiled, and the stage in which it can be made.
fn rule(check: &Check, symbols: &mut Symbols, stage: StageOf<'_>) -> Result<(u32, Rule), DimError> {
    let latest = |dims: &mut dyn Iterator<Item = &Dim>| dims.map(stage).max().unwrap_or(0);
    match check {
        Check::Bind { declared, stage: begun, op, location } => {
            let stage = latest(&mut declared.iter()).max(*begun);
            let dims = declare(declared, symbols)?;
            let shape = Box::new(declared.clone());
            Ok((stage, Rule::Bind { op, declared: dims, shape, location }))
        }
        Check::Rebind { actual: actual_dims, declared, message, location } => {
            let actual = actual_dims.iter().map(|dim| symbols.compile(dim)).collect::<Result<_, _>>()?;
            let dims = declare(declared, symbols)?;
            let stage = latest(&mut actual_dims.iter().chain(declared.iter()));
            Ok((
                stage,
                Rule::Rebind {
                    actual,
                    declared: dims,
                    shape: Box::new(declared.clone()),
                    message: message.clone(),
                    location,
                },
            ))
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
            let starts = axes.iter().map(|axis| &axis.start);
            let stage = latest(&mut starts.chain(shape.iter()).chain(taken.iter()));
            Ok((stage, Rule::Slice { op, axes: rules, location }))
        }
    }
}

impl Sizes {
    /// The table, if it does not depend on symbols.
    pub fn fixed(&self) -> Option<&[i64]> {
        let is_empty = |stage: &Stage| stage.code.is_empty() && stage.rules.is_empty();
        (self.symbol_count == 0 && self.stages.iter().all(is_empty)).then_some(&self.table[..])
    }

    /// Whether so much follows from the inputs' shapes, and nothing else, that it is worth to keep it.
    pub fn is_kept(&self) -> bool {
        matches!(&self.stages[..], [stage] if stage.code.len() >= MANY_SIZES)
    }

    /// Room for the symbols of one execution.
    pub fn unbound(&self) -> Bound {
        SmallVec::from_elem(0, self.symbol_count)
    }

    /// The table, before anything in it is computed.
    pub fn start(&self, table: &mut Table) {
        table.extend_from_slice(&self.table);
    }

    /// The table of an execution in which every name has this size; `None` where sizes cannot be computed then. Nothing is checked.
    pub fn with_all(&self, size: i64) -> Option<Table> {
        let (bound, mut table) = (Bound::from_elem(size, self.symbol_count), Table::new());
        self.start(&mut table);
        for (entry, expression) in self.stages.iter().flat_map(|stage| &stage.code) {
            table[*entry as usize] = expression.eval(&bound).ok()?;
        }
        Some(table)
    }

    /// Checks the rules of a stage, binds the symbols that it introduces, and computes its part of the table. `read` are the
    /// sizes that the step read with which it begins.
    pub fn evaluate(&self, stage: u32, read: &[i64], bound: &mut Bound, table: &mut Table) -> Result<(), EngineError> {
        let Some(stage) = self.stages.get(stage as usize) else { return Ok(()) };
        for rule in &stage.rules {
            self.apply(rule, read, bound)?;
        }
        for (entry, expression) in &stage.code {
            table[*entry as usize] = self.eval(expression, bound)?;
        }
        stage.extents.iter().try_for_each(|extent| self.check_extent(extent, table))
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
        let bytes = dims.iter().try_fold(size, |bytes, &dim| {
            if !(0..=LARGEST_DIM).contains(&dim) { None } else { bytes.checked_mul(dim.max(1)) }
        });
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

    /// Gives names the sizes, and says whether they are those that are declared.
    fn declare(&self, declared: &[Declared], sizes: &[i64], bound: &mut Bound) -> Result<bool, EngineError> {
        for (size, declared) in sizes.iter().zip(declared) {
            if let Declared::Bind(symbol) = declared {
                bound[*symbol] = *size;
            }
        }
        for (size, declared) in sizes.iter().zip(declared) {
            if let Declared::Check(expression) = declared
                && self.eval(expression, bound)? != *size
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn apply(&self, rule: &Rule, read: &[i64], bound: &mut Bound) -> Result<(), EngineError> {
        match rule {
            Rule::Bind { op, declared, shape, location } => {
                if self.declare(declared, read, bound)? {
                    return Ok(());
                }
                let (actual, declared) = (read.to_vec(), shape.clone());
                Err(EngineError::BoundDims { op: self.op(op, location), actual, declared })
            }
            Rule::Rebind { actual, declared, shape, message, location } => {
                let mut sizes: SmallVec<[i64; 6]> = SmallVec::new();
                for expression in actual {
                    sizes.push(self.eval(expression, bound)?);
                }
                if self.declare(declared, &sizes, bound)? {
                    return Ok(());
                }
                Err(EngineError::Rebind {
                    op: self.op("rebind", location),
                    actual: sizes.to_vec(),
                    declared: shape.clone(),
                    message: message.clone(),
                })
            }
            Rule::Slice { op, axes, location } => axes.iter().try_for_each(|rule| {
                let [size, start, count] = [&rule.size, &rule.start, &rule.count].map(|e| self.eval(e, bound));
                let (size, start, count, step) = (size?, start?, count?, rule.step);
                let last = count.checked_sub(1).and_then(|count| start.checked_add(count.checked_mul(step)?));
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
