//! Attention: one kernel, with a mask or without, to which the heads of queries that share a head of keys are shown as one head of more rows.

use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, TensorValue};

/// How queries see keys. The default: all of them, with scores divided by the square root of the head size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// What scores are multiplied by; `None` for `1 / sqrt(head size)`.
    pub scale: Option<f64>,
    /// Whether a query sees only the keys up to its own position, both counted from 0.
    pub causal: bool,
    /// Whether the last query stands at the last key, and not the first at the first: where the keys begin with those of
    /// earlier queries, out of a cache. Queries that stand before all keys see none, and their result is 0.
    pub queries_last: bool,
}

/// `softmax(query · keyᵀ * scale) · value` of each head: `query` is `[.., heads, queries, size]`, `key`
/// `[.., key heads, keys, size]` and `value` `[.., key heads, keys, value size]`, with the same axes before; the result is
/// `[.., heads, queries, value size]`. Where there are fewer key heads, as many neighbouring heads share one. Heads of any
/// size are taken; without keys the result is 0. A step of decoding with a cache of keys is one query that sees all of them:
/// `causal: true` needs `queries_last: true` there.
///
/// # Errors
/// When an operand has fewer than 3 axes or another rank than the query; when the axes before the heads, the head sizes,
/// or the keys and values differ; when the heads are symbolic and not the key heads, or no multiple of them; when the
/// dtype is none of `float16`, `bfloat16` and `float32`; when the head size is symbolic and there is no scale; as
/// [`add`](crate::graph::ops::add) for dtypes, devices and graphs.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::AttentionOptions}};
/// let query = TensorType::new(DType::F32, ("batch", 32, 1, 128), DeviceRef::CPU);
/// let key = TensorType::new(DType::F32, ("batch", 8, "keys", 128), DeviceRef::CPU);
/// let graph = Graph::new("g", [query, key.clone(), key]);
/// let [q, k, v] = [0, 1, 2].map(|i| &graph.inputs()[i]);
/// let y = ops::attention(q, k, v, AttentionOptions::default())?;
/// assert_eq!(y.shape().to_string(), "[batch, 32, 1, 128]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn attention(
    query: impl Into<Operand>,
    key: impl Into<Operand>,
    value: impl Into<Operand>,
    options: AttentionOptions,
) -> Result<TensorValue> {
    attend(&Site::new("attention"), [query.into(), key.into(), value.into()], None, options)
}

/// [`attention`] with `mask` added to the scaled scores: floats whose shape broadcasts to `[.., heads, queries, keys]`. A key
/// whose mask is negative infinity is not seen, and a query that sees none has the result 0; `options` leave out keys beside.
///
/// Of a mask of truth values, `where_(mask, zero, f32::NEG_INFINITY)` is one to be added, with the constant 0. A mask that differs between heads, or
/// between images, but not both, is copied for all of them; so is one of another dtype than `float32`.
///
/// # Errors
/// Those of [`attention`]; when the mask has no floats, or a shape that does not broadcast so.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::AttentionOptions}};
/// let heads = TensorType::new(DType::F32, ("batch", 8, "n", 64), DeviceRef::CPU);
/// let mask = TensorType::new(DType::F32, ("n", "n"), DeviceRef::CPU);
/// let graph = Graph::new("g", [heads.clone(), heads.clone(), heads, mask]);
/// let [q, k, v, mask] = [0, 1, 2, 3].map(|i| &graph.inputs()[i]);
/// let y = ops::attention_masked(q, k, v, mask, AttentionOptions::default())?;
/// assert_eq!(y.shape().to_string(), "[batch, 8, n, 64]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn attention_masked(
    query: impl Into<Operand>,
    key: impl Into<Operand>,
    value: impl Into<Operand>,
    mask: impl Into<Operand>,
    options: AttentionOptions,
) -> Result<TensorValue> {
    let operands = [query.into(), key.into(), value.into()];
    attend(&Site::new("attention_masked"), operands, Some(mask.into()), options)
}

fn attend(
    site: &Site,
    operands: [Operand; 3],
    mask: Option<Operand>,
    options: AttentionOptions,
) -> Result<TensorValue> {
    let [q, k, v] = site.promote(operands)?;
    let mask = mask.map(|mask| site.tensor("the mask", mask)).transpose()?;
    let all = [&q, &k, &v];
    site.require("the query", &q, "float16, bfloat16 and float32", |dtype| {
        matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
    })?;
    for (what, x) in [("the query", &q), ("the key", &k), ("the value", &v)] {
        if x.rank() < 3 || x.rank() != q.rank() {
            let expected = if q.rank() < 3 { "at least 3 axes".into() } else { format!("{} axes", q.rank()).into() };
            return site.fail(&all, GraphErrorKind::Rank { what, rank: x.rank(), expected });
        }
    }
    let ([before, heads, queries, size], [k_before, shared, keys, k_size]) = (split(&q), split(&k));
    let [v_before, v_shared, v_keys, v_size] = split(&v);
    for (what, lhs, rhs) in [
        ("the product of the axes before the heads of query and key", &before, &k_before),
        ("the product of the axes before the heads of key and value", &k_before, &v_before),
        ("the head sizes of query and key", &size, &k_size),
        ("the heads of key and value", &shared, &v_shared),
        ("the numbers of keys and of values", &keys, &v_keys),
    ] {
        if lhs != rhs {
            let kind = GraphErrorKind::DimMismatch { what, lhs: lhs.clone(), rhs: rhs.clone() };
            return site.fail(&all, kind);
        }
    }
    let Some(group) = group(&heads, &shared) else {
        let (what, dim) = ("the number of heads", heads);
        let expected = "a multiple of the number of key heads; repeat heads with `repeat_interleave`";
        return site.fail(&all, GraphErrorKind::DimValue { what, dim, expected });
    };
    let scale = match (options.scale, size.as_static()) {
        (Some(scale), _) => scale,
        (None, Some(size)) => 1.0 / (size.max(1) as f64).sqrt(),
        (None, None) => {
            let (what, dim) = ("the head size", size);
            return site.fail(&all, GraphErrorKind::DimValue { what, dim, expected: "static where no scale is given" });
        }
    };
    let mask = mask.map(|mask| mask_of(site, &q, &keys, mask)).transpose()?;
    // Heads that share keys are rows of one, unless the kernel could not tell their positions apart, or a mask would have to
    // be copied for each.
    let known = queries.as_static().filter(|queries| *queries > 0);
    let (heads, rows) = match group {
        1 => (&before * &heads, queries),
        _ if !mask.as_ref().is_none_or(|(_, of_heads)| *of_heads || known == Some(1)) => (&before * &heads, queries),
        _ if options.causal && known.is_none() => (&before * &heads, queries),
        group => (&before * &shared, queries * group),
    };
    let rows_of = |x: &TensorValue, rows: &Dim, columns: &Dim| {
        reshape_at(site, x, Shape::from([&before * &split(x)[1], rows.clone(), columns.clone()]))
    };
    let q3 = reshape_at(site, &q, Shape::from([heads.clone(), rows.clone(), size.clone()]))?;
    let (k3, v3) = (rows_of(&k, &keys, &size)?, rows_of(&v, &keys, &v_size)?);
    let ty = q.ty.with_shape(Shape::from([heads.clone(), rows.clone(), v_size.clone()]));
    let parameters = Parameters::new()
        .with("scale", scale)
        .with("causal", options.causal)
        .with("queries", known.unwrap_or(0))
        .with("queries_last", options.queries_last)
        .with("mask", mask.is_some());
    let mask = match mask {
        None => site.absent(&q, DType::F32, 3)?,
        Some((mask, _)) => reshape_at(site, &mask, Shape::from([heads, rows, keys]))?,
    };
    let y = site.kernel("attention", &[&q3, &k3, &v3, &mask], ty, parameters)?;
    let mut shape = q.shape().clone();
    let last = shape.rank() - 1;
    shape[last] = v_size;
    reshape_at(site, &y, shape)
}

/// The mask in `float32`, for every query and key, and whether it is another one for each head.
fn mask_of(site: &Site, q: &TensorValue, keys: &Dim, mask: TensorValue) -> Result<(TensorValue, bool)> {
    site.together(&[q, &mask])?;
    let allowed = "floats, which are added to scores; of a bool mask, `where_(mask, 0.0, f32::NEG_INFINITY)`";
    site.require("the mask", &mask, allowed, DType::is_float)?;
    let mut shape = q.shape().clone();
    let last = shape.rank() - 1;
    shape[last] = keys.clone();
    if !mask.shape().broadcasts_to(&shape) {
        let (from, to) = (Box::new(mask.shape().clone()), Box::new(shape));
        return site.fail(&[q, &mask], GraphErrorKind::BroadcastTo { from, to });
    }
    let heads = |shape: &Shape| shape.rank().checked_sub(3).map(|axis| shape[axis].clone());
    let of_heads = heads(mask.shape()) == heads(&shape);
    Ok((site.broadcast(site.cast(mask, DType::F32)?, &shape)?, of_heads))
}

/// The product of the axes before the last three, and these.
fn split(x: &TensorValue) -> [Dim; 4] {
    match x.shape().dims() {
        [before @ .., heads, rows, size] => {
            [before.iter().fold(Dim::Static(1), |all, dim| all * dim), heads.clone(), rows.clone(), size.clone()]
        }
        // Not reached: ranks were checked.
        _ => [const { Dim::Static(1) }; 4],
    }
}

/// How many heads share one of the keys.
fn group(heads: &Dim, shared: &Dim) -> Option<i64> {
    match (heads.as_static(), shared.as_static()) {
        _ if heads == shared => Some(1),
        (Some(heads), Some(shared)) if shared > 0 && heads % shared == 0 => Some(heads / shared),
        _ => None,
    }
}
