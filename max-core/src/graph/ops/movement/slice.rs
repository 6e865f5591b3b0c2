//! Parts of tensors: [`DimSlice`], an index whose bounds may be dims, and the views that it makes.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::SmallVec;

use super::super::dims::position as value_position;
use super::views::reshape_at;
use crate::driver::SliceIndex;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{Op, SliceAxes, SliceAxis};
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{GraphRef, Operand, TensorValue};

/// One index of [`slice_tensor`]: a [`SliceIndex`] whose bounds may be dims.
///
/// Integers, dims, ranges of either and [`SliceIndex`] convert into it. Negative integers count from the end; a dim is
/// the position that it says.
#[derive(Clone, Debug)]
pub enum DimSlice {
    /// One position; the axis is dropped.
    Index(Dim),
    /// The positions from `start` (included) to `stop` (excluded), by `step`.
    Range {
        /// The first position; `None` for the first of the axis in the direction of `step`.
        start: Option<Dim>,
        /// The position to stop before; `None` for taking all that remain.
        stop: Option<Dim>,
        /// The distance of positions; negative to go backwards, not 0.
        step: i64,
    },
    /// All axes that no other index takes. At most one.
    Ellipsis,
    /// A new axis of size 1.
    NewAxis,
    /// One position, which a scalar tensor holds: negative ones count from the end. The axis is dropped.
    Value(TensorValue),
    /// The positions from one that a scalar tensor holds on, by `step`, as many as `size` says.
    ValueRange {
        /// The first position; negative ones count from the end.
        start: TensorValue,
        /// The distance of positions; negative to go backwards, not 0.
        step: i64,
        /// How many are taken.
        size: Dim,
    },
}

impl PartialEq for DimSlice {
    /// Tensors are equal if they are the same value.
    fn eq(&self, other: &DimSlice) -> bool {
        let same = |a: &TensorValue, b: &TensorValue| a.graph.same(&b.graph) && a.id == b.id;
        match (self, other) {
            (DimSlice::Index(a), DimSlice::Index(b)) => a == b,
            (
                DimSlice::Range { start, stop, step },
                DimSlice::Range { start: other_start, stop: other_stop, step: other_step },
            ) => (start, stop, step) == (other_start, other_stop, other_step),
            (DimSlice::Ellipsis, DimSlice::Ellipsis) | (DimSlice::NewAxis, DimSlice::NewAxis) => true,
            (DimSlice::Value(a), DimSlice::Value(b)) => same(a, b),
            (
                DimSlice::ValueRange { start, step, size },
                DimSlice::ValueRange { start: other, step: other_step, size: other_size },
            ) => same(start, other) && (step, size) == (other_step, other_size),
            _ => false,
        }
    }
}

impl Eq for DimSlice {}

impl DimSlice {
    /// `size` positions, from the one on that a scalar tensor holds: a part of fixed extent whose place data decide.
    ///
    /// ```
    /// # use max_core::{driver::DeviceRef, dtype::DType, graph::{DimSlice, Graph, TensorType, ops}};
    /// let x = TensorType::new(DType::F32, (4096, 64), DeviceRef::CPU);
    /// let at = TensorType::new(DType::I64, (), DeviceRef::CPU);
    /// let graph = Graph::new("g", [x, at]);
    /// let window = DimSlice::at(graph.inputs()[1].tensor()?, 16);
    /// assert_eq!(ops::slice_tensor(&graph.inputs()[0], [window])?.shape().to_string(), "[16, 64]");
    /// # Ok::<(), max_core::graph::GraphError>(())
    /// ```
    pub fn at(start: &TensorValue, size: impl Into<Dim>) -> DimSlice {
        DimSlice::ValueRange { start: start.clone(), step: 1, size: size.into() }
    }

    /// The positions from `start` (included) to `stop` (excluded), of which one may be a number and the other a dim.
    ///
    /// ```
    /// # use max_core::graph::{Dim, DimSlice};
    /// assert_eq!(DimSlice::range(1, "seq").to_string(), "1..seq");
    /// assert_eq!(DimSlice::from(..Dim::from("seq") + 1).step_by(2).to_string(), "..seq + 1 by 2");
    /// ```
    pub fn range(start: impl Into<Dim>, stop: impl Into<Dim>) -> DimSlice {
        DimSlice::Range { start: Some(start.into()), stop: Some(stop.into()), step: 1 }
    }

    /// Every `step`-th position of a range; anything else is left as it is.
    #[must_use]
    pub fn step_by(self, step: i64) -> DimSlice {
        match self {
            DimSlice::Range { start, stop, .. } => DimSlice::Range { start, stop, step },
            DimSlice::ValueRange { start, size, .. } => DimSlice::ValueRange { start, step, size },
            DimSlice::Index(_) | DimSlice::Ellipsis | DimSlice::NewAxis | DimSlice::Value(_) => self,
        }
    }

    fn dims(&self) -> impl Iterator<Item = &Dim> {
        let (first, second) = match self {
            DimSlice::Index(index) => (Some(index), None),
            DimSlice::Range { start, stop, .. } => (start.as_ref(), stop.as_ref()),
            DimSlice::ValueRange { size, .. } => (Some(size), None),
            DimSlice::Ellipsis | DimSlice::NewAxis | DimSlice::Value(_) => (None, None),
        };
        first.into_iter().chain(second)
    }
}

impl fmt::Display for DimSlice {
    /// As it is written in Rust, with ` by 2` for a step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimSlice::Index(index) => index.fmt(f),
            DimSlice::Range { start, stop, step } => {
                let text = |end: &Option<Dim>| end.as_ref().map_or(String::new(), Dim::to_string);
                write!(f, "{}..{}", text(start), text(stop))?;
                if *step == 1 { Ok(()) } else { write!(f, " by {step}") }
            }
            DimSlice::Ellipsis => f.write_str("..."),
            DimSlice::NewAxis => f.write_str("a new axis"),
            DimSlice::Value(value) => write!(f, "{value:?}"),
            DimSlice::ValueRange { start, step, size } => write!(f, "{size} from {start:?} by {step}"),
        }
    }
}

impl From<SliceIndex> for DimSlice {
    fn from(index: SliceIndex) -> DimSlice {
        let dim = |end: isize| Dim::Static(end as i64);
        match index {
            SliceIndex::Index(index) => DimSlice::Index(dim(index)),
            SliceIndex::Range { start, stop, step } => {
                DimSlice::Range { start: start.map(dim), stop: stop.map(dim), step: step as i64 }
            }
            SliceIndex::Ellipsis => DimSlice::Ellipsis,
            SliceIndex::NewAxis => DimSlice::NewAxis,
        }
    }
}

impl From<&TensorValue> for DimSlice {
    fn from(index: &TensorValue) -> DimSlice {
        DimSlice::Value(index.clone())
    }
}

impl From<&SliceIndex> for DimSlice {
    fn from(index: &SliceIndex) -> DimSlice {
        DimSlice::from(*index)
    }
}

impl From<&DimSlice> for DimSlice {
    fn from(index: &DimSlice) -> DimSlice {
        index.clone()
    }
}

macro_rules! from_integers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for DimSlice {
            fn from(index: $ty) -> DimSlice {
                SliceIndex::from(index).into()
            }
        }
    )*};
}
from_integers!(
    isize,
    Range<isize>,
    RangeFrom<isize>,
    RangeTo<isize>,
    RangeInclusive<isize>,
    RangeToInclusive<isize>,
    RangeFull
);

macro_rules! from_numbers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for DimSlice {
            fn from(index: $ty) -> DimSlice {
                DimSlice::Index(index.into())
            }
        }

        impl From<Range<$ty>> for DimSlice {
            fn from(range: Range<$ty>) -> DimSlice {
                DimSlice::range(range.start, range.end)
            }
        }

        impl From<RangeFrom<$ty>> for DimSlice {
            fn from(range: RangeFrom<$ty>) -> DimSlice {
                DimSlice::Range { start: Some(range.start.into()), stop: None, step: 1 }
            }
        }

        impl From<RangeTo<$ty>> for DimSlice {
            fn from(range: RangeTo<$ty>) -> DimSlice {
                DimSlice::Range { start: None, stop: Some(range.end.into()), step: 1 }
            }
        }
    )*};
}
from_numbers!(i32, i64, usize);

impl From<Dim> for DimSlice {
    fn from(index: Dim) -> DimSlice {
        DimSlice::Index(index)
    }
}

impl From<Range<Dim>> for DimSlice {
    fn from(range: Range<Dim>) -> DimSlice {
        DimSlice::range(range.start, range.end)
    }
}

impl From<RangeFrom<Dim>> for DimSlice {
    fn from(range: RangeFrom<Dim>) -> DimSlice {
        DimSlice::Range { start: Some(range.start), stop: None, step: 1 }
    }
}

impl From<RangeTo<Dim>> for DimSlice {
    fn from(range: RangeTo<Dim>) -> DimSlice {
        DimSlice::Range { start: None, stop: Some(range.end), step: 1 }
    }
}

/// A part of the tensor, as NumPy's basic indexing takes it. Axes without an entry are taken whole.
///
/// Bounds beyond a static axis are clamped to it. Where the axis or a bound is symbolic, the size is computed as an
/// expression (`x[1..]` of `n` has `n - 1`), and that `0 <= start <= stop <= n` is checked when the model executes.
///
/// # Errors
/// When there are more entries than axes or two ellipses, when a step is 0, when an index is out of range, and when a
/// bound uses a name that gets no size in the graph.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Dim, DimSlice, Graph, TensorType, ops}};
/// let cache = TensorType::new(DType::F32, (4096, 64), DeviceRef::CPU);
/// let tokens = TensorType::new(DType::I64, ("seq",), DeviceRef::CPU);
/// let graph = Graph::new("g", [cache, tokens]);
/// let used = ops::slice_tensor(&graph.inputs()[0], [..Dim::from("seq")])?;
/// assert_eq!(used.shape().to_string(), "[seq, 64]");
/// assert_eq!(ops::slice_tensor(&used, [DimSlice::range(1, -1)])?.shape().to_string(), "[seq - 2, 64]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn slice_tensor<I: Into<DimSlice>>(
    x: impl Into<Operand>,
    indices: impl IntoIterator<Item = I>,
) -> Result<TensorValue> {
    let site = Site::new("slice_tensor");
    let x = site.tensor("the operand", x)?;
    let part = Part::new(&site, &x.graph, x.shape(), indices).or_else(|kind| site.fail(&[&x], kind))?;
    let Part { axes, taken, shape } = part;
    let mut kept = axes.iter().zip(&taken).zip(x.shape().iter());
    let whole = kept.all(|((axis, size), dim)| axis.start == 0 && axis.step == 1 && size == dim);
    let part = if whole { x.clone() } else { site.view(Op::Slice(axes), &x, x.ty.with_shape(taken.into()))? };
    reshape_at(&site, &part, shape.into())
}

/// What indices take of a tensor.
pub(in crate::graph::ops) struct Part {
    /// Where it begins on each axis.
    pub axes: SliceAxes,
    /// How many elements are taken of each axis.
    pub taken: Vec<Dim>,
    /// The shape of the part, without the axes that an index drops and with those that are new.
    pub shape: Vec<Dim>,
}

impl Part {
    /// The part of a tensor of the shape `whole`.
    pub fn new<I: Into<DimSlice>>(
        site: &Site,
        graph: &GraphRef,
        whole: &Shape,
        indices: impl IntoIterator<Item = I>,
    ) -> std::result::Result<Part, GraphErrorKind> {
        let refuse = |value: String, expected: String| {
            Err(GraphErrorKind::Argument { argument: "indices", value, expected: expected.into() })
        };
        let mut entries: Vec<DimSlice> = indices.into_iter().map(Into::into).collect();
        let used = entries.iter().filter(|i| !matches!(i, DimSlice::Ellipsis | DimSlice::NewAxis)).count();
        let ellipses = entries.iter().filter(|i| matches!(i, DimSlice::Ellipsis)).count();
        let rank = whole.rank();
        if used > rank || ellipses > 1 {
            let given = format!("{used} indices and {ellipses} ellipses");
            return refuse(given, format!("at most {rank} indices and one ellipsis"));
        }
        let bounds = entries.iter().flat_map(DimSlice::dims).cloned().collect();
        site.known_symbols(graph, &bounds)?;
        let at = entries.iter().position(|i| matches!(i, DimSlice::Ellipsis)).unwrap_or(entries.len());
        entries.splice(at..(at + ellipses), std::iter::repeat_n(DimSlice::from(..), rank - used));

        let mut part = Part { axes: SmallVec::new(), taken: Vec::new(), shape: Vec::new() };
        for entry in &entries {
            let dim = whole.get(part.axes.len()).cloned().unwrap_or(Dim::Static(1));
            match entry {
                DimSlice::NewAxis => part.shape.push(Dim::Static(1)),
                DimSlice::Ellipsis => {}
                DimSlice::Value(index) => {
                    part.axes.push(SliceAxis { start: computed(site, graph, index, &dim)?, step: 1 });
                    part.taken.push(Dim::Static(1));
                }
                DimSlice::ValueRange { start, step, size } => {
                    if *step == 0 || size.as_static().is_some_and(|size| size < 0) {
                        return refuse(entry.to_string(), "a step other than 0 and a size of at least 0".to_owned());
                    }
                    part.axes.push(SliceAxis { start: computed(site, graph, start, &dim)?, step: *step });
                    part.taken.push(size.clone());
                    part.shape.push(size.clone());
                }
                DimSlice::Index(index) => {
                    if let (Some(size), Some(index)) = (dim.as_static(), index.as_static())
                        && !(-size..size).contains(&index)
                    {
                        return refuse(index.to_string(), format!("an element of an axis of size {dim}"));
                    }
                    part.axes.push(SliceAxis { start: position(index, &dim), step: 1 });
                    part.taken.push(Dim::Static(1));
                }
                DimSlice::Range { start, stop, step } => {
                    let Some(length) = step.checked_abs().filter(|length| *length > 0) else {
                        return refuse(entry.to_string(), "a range with a step other than 0".to_owned());
                    };
                    let (start, size) = range(&dim, start.as_ref(), stop.as_ref(), *step, length);
                    part.axes.push(SliceAxis { start, step: *step });
                    part.taken.push(size.clone());
                    part.shape.push(size);
                }
            }
        }
        Ok(part)
    }
}

/// The position that a tensor holds.
fn computed(site: &Site, graph: &GraphRef, index: &TensorValue, dim: &Dim) -> std::result::Result<Dim, GraphErrorKind> {
    if !index.graph.same(graph) {
        return Err(GraphErrorKind::OtherGraph { other: index.graph.name().clone() });
    }
    if index.shape().num_elements() != 1 {
        return Err(GraphErrorKind::Rank { what: "an index", rank: index.rank(), expected: "one element".into() });
    }
    value_position(site, index, dim).map_err(|error| error.kind().clone())
}

/// A bound as a position: a negative integer counts from the end.
fn position(bound: &Dim, dim: &Dim) -> Dim {
    match bound.as_static() {
        Some(from_end) if from_end < 0 => dim + from_end,
        _ => bound.clone(),
    }
}

/// Start and size of a range on an axis, by a step of that length.
fn range(dim: &Dim, start: Option<&Dim>, stop: Option<&Dim>, step: i64, length: i64) -> (Dim, Dim) {
    let forwards = step > 0;
    let clamp = |bound: Dim| match (dim.as_static(), bound.as_static()) {
        (Some(size), Some(bound)) if forwards => Dim::Static(bound.clamp(0, size)),
        (Some(size), Some(bound)) => Dim::Static(bound.clamp(-1, size - 1)),
        // What depends on a symbol is checked at execution.
        _ => bound,
    };
    let end = |bound: Option<&Dim>, default: Dim| bound.map_or(default, |bound| clamp(position(bound, dim)));
    let (first, last) = if forwards { (Dim::Static(0), dim.clone()) } else { (dim - 1, Dim::Static(-1)) };
    let (first, last) = (end(start, first), end(stop, last));
    let span = if forwards { &last - &first } else { &first - &last };
    if span.as_static().is_some_and(|span| span <= 0) {
        return (Dim::Static(0), Dim::Static(0));
    }
    let size = if length == 1 { span } else { (span - 1) / length + 1 };
    (first, size)
}

/// A part of one axis whose bounds are known to be inside.
pub(in crate::graph::ops) fn narrow(
    site: &Site,
    x: &TensorValue,
    axis: usize,
    start: Dim,
    size: Dim,
) -> Result<TensorValue> {
    let mut axes: SliceAxes = (0..x.rank()).map(|_| SliceAxis { start: Dim::Static(0), step: 1 }).collect();
    axes[axis].start = start;
    let mut shape = x.shape().clone();
    shape[axis] = size;
    site.view(Op::Slice(axes), x, x.ty.with_shape(shape))
}

impl TensorValue {
    /// See [`slice_tensor`].
    ///
    /// # Errors
    /// As [`slice_tensor`].
    #[track_caller]
    pub fn slice_tensor<I: Into<DimSlice>>(&self, indices: impl IntoIterator<Item = I>) -> Result<TensorValue> {
        slice_tensor(self, indices)
    }
}
