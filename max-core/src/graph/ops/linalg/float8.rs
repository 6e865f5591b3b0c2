//! Products of 8-bit floats with scales, and how tensors are quantized for them.

use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::ops::{abs, cast, div, max, maximum, minimum, mul};
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, TensorValue};

/// What the smallest scale is: that of a tensor of zeros is not 0. Quantized to it, 1 / 512 is the largest element of `float8_e4m3fn`.
const SMALLEST_SCALE: f64 = 1.0 / (448.0 * 512.0);

/// The largest finite value of an 8-bit float.
fn largest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F8E4M3FN => Some(448.0),
        DType::F8E4M3FNUZ => Some(240.0),
        DType::F8E5M2 | DType::F8E5M2FNUZ => Some(57344.0),
        _ => None,
    }
}

/// The largest finite value of the dtype that is quantized to.
fn limit(site: &Site, x: &TensorValue, out_type: DType) -> Result<f64> {
    match largest(out_type) {
        Some(limit) => Ok(limit),
        None => site.argument(&[x], "out_type", out_type, "an 8-bit float, such as float8_e4m3fn"),
    }
}

#[track_caller]
fn saturated(x: &TensorValue, limit: f64, out_type: DType) -> Result<TensorValue> {
    cast(minimum(maximum(x, -limit)?, limit)?, out_type)
}

/// The tensor as 8-bit floats: what is out of their range, infinities too, becomes the closest that is finite. NaN stays NaN. (A
/// [`cast`] makes NaN, or an infinity, of it.)
///
/// # Errors
/// When the operand is no float, and when `out_type` is no 8-bit float.
#[track_caller]
pub fn cast_saturating(x: impl Into<Operand>, out_type: DType) -> Result<TensorValue> {
    let site = Site::new("cast_saturating");
    let x = site.tensor("the operand", x)?;
    site.require("the operand", &x, "floats", DType::is_float)?;
    let limit = limit(&site, &x, out_type)?;
    saturated(&cast(&x, DType::F32)?, limit, out_type)
}

/// `x` quantized to 8-bit floats with one scale: `x / scale`, or `x * scale` where the scale is not inverted, saturated.
///
/// `scale` is of `float32`, `float16` or `bfloat16`, and has one element.
///
/// # Errors
/// When `x` or `scale` is no float, when `scale` has several elements, when `out_type` is no 8-bit float, and when operands are of
/// different graphs or on different devices.
#[track_caller]
pub fn quantize_static_scaled_float8(
    x: impl Into<Operand>,
    scale: impl Into<Operand>,
    scale_is_inverted: bool,
    out_type: DType,
) -> Result<TensorValue> {
    let site = Site::new("quantize_static_scaled_float8");
    let (x, scale) = (site.tensor("`x`", x)?, site.tensor("`scale`", scale)?);
    site.together(&[&x, &scale])?;
    site.require("`x`", &x, "floats", DType::is_float)?;
    site.require("`scale`", &scale, "floats", DType::is_float)?;
    let limit = limit(&site, &x, out_type)?;
    if scale.shape().iter().any(|dim| *dim != 1) {
        return site.argument(&[&x, &scale], "scale", scale.shape(), "[] or [1], one element");
    }
    let scale = cast(reshape_at(&site, &scale, Shape::default())?, DType::F32)?;
    let x = cast(&x, DType::F32)?;
    let scaled = if scale_is_inverted { div(&x, &scale)? } else { mul(&x, &scale)? };
    saturated(&scaled, limit, out_type)
}

/// A matrix quantized to 8-bit floats with a scale for each row, or for each group of so many neighbouring elements of a row, and the
/// scales: the largest magnitude of a group, but at most `scale_ub`, becomes the largest number of `out_type`.
///
/// `group_size_or_per_token` of -1 is one group a row. The scales are `[groups of a row, rows]`, rounded to `scales_type`; elements are
/// divided by what they are rounded to.
///
/// # Errors
/// When `input` is no float or not of rank 2; when rows are not whole groups; when `scale_ub` is not above 0; when `out_type` is no 8-bit
/// float, or `scales_type` no float.
#[track_caller]
pub fn quantize_dynamic_scaled_float8(
    input: impl Into<Operand>,
    scale_ub: f64,
    group_size_or_per_token: i64,
    out_type: DType,
    scales_type: DType,
) -> Result<(TensorValue, TensorValue)> {
    let site = Site::new("quantize_dynamic_scaled_float8");
    let input = site.tensor("`input`", input)?;
    site.require("`input`", &input, "floats", DType::is_float)?;
    let limit = limit(&site, &input, out_type)?;
    if !matches!(scales_type, DType::F16 | DType::BF16 | DType::F32) {
        return site.argument(&[&input], "scales_type", scales_type, "float32, float16 or bfloat16");
    }
    if scale_ub.is_nan() || scale_ub <= 0.0 {
        return site.argument(&[&input], "scale_ub", scale_ub, "above 0");
    }
    let [rows, columns] = input.shape().dims() else {
        let kind = GraphErrorKind::Rank { what: "`input`", rank: input.rank(), expected: "2 axes".into() };
        return site.fail(&[&input], kind);
    };
    let (rows, columns) = (rows.clone(), columns.clone());
    let (size, groups) = match group_size_or_per_token {
        -1 => (columns.clone(), Dim::Static(1)),
        size if size > 0 => match columns.exact_div(&Dim::Static(size)) {
            Some(groups) => (Dim::Static(size), groups),
            None => {
                let expected = format!("a divisor of the last dim of `input`, {columns}");
                return site.argument(&[&input], "group_size_or_per_token", size, expected);
            }
        },
        other => return site.argument(&[&input], "group_size_or_per_token", other, "-1, or a size of at least 1"),
    };
    let x = cast(reshape_at(&site, &input, [&rows, &groups, &size].into())?, DType::F32)?;
    let magnitude = minimum(max(abs(&x)?, 2)?, scale_ub)?;
    let scales = cast(maximum(div(&magnitude, limit)?, SMALLEST_SCALE)?, scales_type)?;
    let quantized = saturated(&div(&x, cast(&scales, DType::F32)?)?, limit, out_type)?;
    let scales = ops::transpose(reshape_at(&site, &scales, [rows.clone(), groups].into())?, 0, 1)?;
    Ok((reshape_at(&site, &quantized, [rows, columns].into())?, scales))
}

/// `(a · bᵀ) * a_scales * b_scales`: the product of matrices of 8-bit floats with a scale for each row of `a` and each row of `b`, as
/// [`quantize_dynamic_scaled_float8`] makes them, in `out_type`.
///
/// `a` is `[m, k]` and `b` `[n, k]`, both `float8_e4m3fn` or both `float8_e5m2`. `a_scales` is `[1, m]` and `b_scales` `[n, 1]`; one of a
/// single element is for all rows. Products are added in `float32`.
///
/// Scales of blocks are `[k / s, m]` and `[n / r, k / s]`: one for `s` neighbouring elements of a row of `a`, and for `r` rows of as many
/// of `b`, with the same `s`. Then the matrices are multiplied as `float32`, with their scales.
///
/// # Errors
/// When the matrices have another rank, inner dims that are not equal, or other dtypes; when scales are of other shapes or no floats, or
/// do not divide the matrices; when
/// `out_type` is no float; when operands are of different graphs or on different devices.
#[track_caller]
pub fn dynamic_scaled_matmul(
    a: impl Into<Operand>,
    b: impl Into<Operand>,
    a_scales: impl Into<Operand>,
    b_scales: impl Into<Operand>,
    out_type: DType,
) -> Result<TensorValue> {
    let site = Site::new("dynamic_scaled_matmul");
    let (a, b) = (site.tensor("`a`", a)?, site.tensor("`b`", b)?);
    let (a_scales, b_scales) = (site.tensor("`a_scales`", a_scales)?, site.tensor("`b_scales`", b_scales)?);
    site.together(&[&a, &b, &a_scales, &b_scales])?;
    let float8 = |dtype: DType| matches!(dtype, DType::F8E4M3FN | DType::F8E5M2);
    site.require("`a`", &a, "float8_e4m3fn and float8_e5m2", float8)?;
    if a.dtype() != b.dtype() {
        let (actual, expected) = (Box::new(b.ty.clone().into()), Box::new(b.ty.with_dtype(a.dtype()).into()));
        return site.fail(&[&a, &b], GraphErrorKind::TypeMismatch { what: "`b`", actual, expected });
    }
    if !matches!(out_type, DType::F16 | DType::BF16 | DType::F32) {
        return site.argument(&[&a, &b], "out_type", out_type, "float32, float16 or bfloat16");
    }
    for (what, value) in [("`a`", &a), ("`b`", &b)] {
        if value.rank() != 2 {
            return site.fail(&[value], GraphErrorKind::Rank { what, rank: value.rank(), expected: "2 axes".into() });
        }
    }
    let [lhs, rhs] = [&a, &b].map(|value| value.shape()[1].clone());
    if lhs != rhs {
        let what = "the last dims of `a` and `b`";
        return site.fail(&[&a, &b], GraphErrorKind::DimMismatch { what, lhs, rhs });
    }
    let (m, n) = (a.shape()[0].clone(), b.shape()[0].clone());
    if let (2, 2, [groups, _], [_, b_groups]) =
        (a_scales.rank(), b_scales.rank(), a_scales.shape().dims(), b_scales.shape().dims())
        && *groups != 1
        && groups == b_groups
    {
        return blockwise(&site, [&a, &b], [&a_scales, &b_scales], out_type);
    }
    let scales = |what: &'static str, argument: &'static str, value: &TensorValue, rows: &Dim, of: [&Dim; 2]| {
        site.require(what, value, "floats", DType::is_float)?;
        let one = value.shape().iter().all(|dim| *dim == 1);
        if !one && !value.shape().iter().eq(of) {
            let expected = format!("[{}, {}], a scale for each row, or one element", of[0], of[1]);
            return site.argument(&[value], argument, value.shape(), expected);
        }
        let flat = if one { Dim::Static(1) } else { rows.clone() };
        let flat = cast(reshape_at(&site, value, [flat].into())?, DType::F32)?;
        site.broadcast(flat, &[rows.clone()].into())
    };
    let unit = Dim::Static(1);
    let a_scales = scales("`a_scales`", "a_scales", &a_scales, &m, [&unit, &m])?;
    let b_scales = scales("`b_scales`", "b_scales", &b_scales, &n, [&n, &unit])?;
    let ty = a.ty.with_shape([m, n].into()).with_dtype(DType::F32);
    let y = site.kernel("matmul_dynamic_scaled_float8", &[&a, &b, &a_scales, &b_scales], ty, Parameters::new())?;
    cast(y, out_type)
}

/// The product of matrices with a scale for each block of elements.
#[track_caller]
fn blockwise(
    site: &Site,
    [a, b]: [&TensorValue; 2],
    [a_scales, b_scales]: [&TensorValue; 2],
    out_type: DType,
) -> Result<TensorValue> {
    for (what, value) in [("`a_scales`", a_scales), ("`b_scales`", b_scales)] {
        site.require(what, value, "floats", DType::is_float)?;
    }
    let (m, n, k) = (&a.shape()[0], &b.shape()[0], &a.shape()[1]);
    let (groups, row_groups) = (&a_scales.shape()[0], &b_scales.shape()[0]);
    if a_scales.shape()[1] != *m {
        let expected = format!("[{groups}, {m}], a scale for each group of each row");
        return site.argument(&[a_scales], "a_scales", a_scales.shape(), expected);
    }
    let (Some(size), Some(rows)) = (k.exact_div(groups), n.exact_div(row_groups)) else {
        let expected = format!("sizes that divide {n} and {k}");
        return site.argument(&[b, b_scales], "b_scales", b_scales.shape(), expected);
    };
    let one = Dim::Static(1);
    let scaled = |x: &TensorValue, parts: [&Dim; 4], scales: TensorValue, parts_of_scales: [&Dim; 4], rows: &Dim| {
        let x = reshape_at(site, &cast(x, DType::F32)?, parts.into())?;
        let scales = reshape_at(site, &cast(scales, DType::F32)?, parts_of_scales.into())?;
        reshape_at(site, &mul(x, scales)?, [rows, k].into())
    };
    let a_scales = ops::transpose(a_scales, 0, 1)?;
    let a = scaled(a, [m, &one, groups, &size], a_scales, [m, &one, groups, &one], m)?;
    let b = scaled(b, [row_groups, &rows, groups, &size], b_scales.clone(), [row_groups, &one, groups, &one], n)?;
    cast(ops::matmul(a, ops::transpose(b, 0, 1)?)?, out_type)
}
