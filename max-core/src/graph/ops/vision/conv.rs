//! Convolutions. All are one kernel, `conv`, of volumes in groups, except where a tap is a single point, which is a matrix
//! product, and where channels do not meet, which is elementwise. In between stand views that cost nothing, except where
//! groups make their elements change places.

use super::super::linalg::matmul::matmul;
use super::super::movement::pad::{PadMode, pad_axis, pad_axis_with, part};
use super::super::movement::slice::narrow;
use super::super::movement::views::{permute_at, reshape_at, sliding_window};
use super::super::permute;
use super::layout::{ConvInputLayout, FilterLayout, channels_last, features_last, laid_out};
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::{GraphErrorKind, STATIC};
use crate::graph::node::{SliceAxis, Window};
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// How a convolution over `D` axes walks its input. The default: every position, neighbouring elements, no padding, one
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    /// The step between positions, along each axis.
    pub stride: [i64; D],
    /// The step between the elements that a filter meets.
    pub dilation: [i64; D],
    /// Zeros before and after each axis; of a transposed convolution, what is cut off its result there.
    pub padding: [[i64; 2]; D],
    /// Groups of channels that do not meet; input and output channels are divided among them in order.
    pub groups: i64,
    /// In which order the axes of the input and of the result are.
    pub input_layout: ConvInputLayout,
    /// In which order the axes of the filter are.
    pub filter_layout: FilterLayout,
}

impl<const D: usize> Default for ConvOptions<D> {
    fn default() -> Self {
        let (input_layout, filter_layout) = (ConvInputLayout::default(), FilterLayout::default());
        ConvOptions { stride: [1; D], dilation: [1; D], padding: [[0; 2]; D], groups: 1, input_layout, filter_layout }
    }
}

/// The 2-D convolution of an image `[batch, height, width, channels]` with a filter
/// `[height, width, channels / groups, features]`, plus a bias of `[features]`.
///
/// # Errors
/// When ranks or channels do not fit; when the filter, with its dilation, exceeds the padded image; when a stride or a
/// dilation is below 1, or a padding below 0; when the groups do not divide the channels and features; when a size of the
/// filter is symbolic; as [`add`](super::super::add) for dtypes, devices and graphs.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::ConvOptions}};
/// let image = TensorType::new(DType::F32, ("batch", 56, 56, 64), DeviceRef::CPU);
/// let filter = TensorType::new(DType::F32, (3, 3, 64, 128), DeviceRef::CPU);
/// let graph = Graph::new("g", [image, filter]);
/// let options = ConvOptions { stride: [2, 2], padding: [[1, 1], [1, 1]], ..ConvOptions::default() };
/// let y = ops::conv2d(&graph.inputs()[0], &graph.inputs()[1], None, options)?;
/// assert_eq!(y.shape().to_string(), "[batch, 28, 28, 128]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn conv2d(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias: Option<&TensorValue>,
    options: ConvOptions<2>,
) -> Result<TensorValue> {
    let site = Site::new("conv2d");
    let (x, filter) = operands(&site, x.into(), filter.into(), &options)?;
    let sizes = output_sizes(&site, &x, &filter, &options)?;
    let plane = Geometry::of_planes(&options);
    let (volume, taps) = (deepen(&site, &x, 1)?, deepen(&site, &filter, 0)?);
    let [height, width] = sizes;
    let y = convolve(&site, &volume, &taps, &plane, [Dim::Static(1), height, width])?;
    finish(&site, y, &options, bias)
}

/// The 3-D convolution of a volume `[batch, depth, height, width, channels]` with a filter
/// `[depth, height, width, channels / groups, features]`, plus a bias of `[features]`.
///
/// # Errors
/// As [`conv2d`].
#[track_caller]
pub fn conv3d(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias: Option<&TensorValue>,
    options: ConvOptions<3>,
) -> Result<TensorValue> {
    let site = Site::new("conv3d");
    let (x, filter) = operands(&site, x.into(), filter.into(), &options)?;
    let sizes = output_sizes(&site, &x, &filter, &options)?;
    let before = options.padding.map(|[before, _]| before);
    let ConvOptions { stride, dilation, groups, .. } = options;
    let y = convolve(&site, &x, &filter, &Geometry { stride, dilation, before, groups }, sizes)?;
    finish(&site, y, &options, bias)
}

/// The transposed 2-D convolution: what [`conv2d`] with the same filter and options does to an image, it does backwards,
/// from `[batch, height, width, channels]` with a filter `[height, width, features / groups, channels]` to
/// `[batch, (height - 1) · stride - padding + dilation · (taps - 1) + 1 + output_paddings, …, features]`, plus a bias of
/// `[features]`. Each group makes features of its own of as many neighbouring channels.
///
/// # Errors
/// As [`conv2d`]; when the groups do not divide the channels; `output_paddings` are at least 0.
#[track_caller]
pub fn conv2d_transpose(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias: Option<&TensorValue>,
    options: ConvOptions<2>,
    output_paddings: [i64; 2],
) -> Result<TensorValue> {
    let site = Site::new("conv2d_transpose");
    let (x, filter) = operands(&site, x.into(), filter.into(), &options)?;
    check(&site, &x, &filter, &options)?;
    let group = Dim::Static(options.groups);
    let group_channels = if options.groups < 1 { None } else { filter.shape()[3].exact_div(&group) };
    let Some(group_channels) = group_channels else {
        let expected = format!("at least 1, and a divisor of the filter's channels, {}", filter.shape()[3]);
        return site.argument(&[&x, &filter], "groups", options.groups, expected);
    };
    if output_paddings.iter().any(|padding| *padding < 0) {
        return site.argument(&[&x, &filter], "output_paddings", format!("{output_paddings:?}"), "at least 0");
    }
    if x.shape()[3] != filter.shape()[3] {
        let (lhs, rhs) = (x.shape()[3].clone(), filter.shape()[3].clone());
        let what = "the input's channels and the filter's";
        return site.fail(&[&x, &filter], GraphErrorKind::DimMismatch { what, lhs, rhs });
    }
    // The convolution, with the filter turned around, of the input with zeros between its elements.
    let mut sparse = x.clone();
    let mut sizes = [Dim::Static(0), Dim::Static(0)];
    let mut before = [0; 3];
    let mut turned = filter.clone();
    for axis in [0, 1] {
        let taps = known(&site, &filter, axis, "a size of the filter")?;
        let size = x.shape()[axis + 1].clone();
        let [start, end] = options.padding[axis];
        let (stride, reach) = (options.stride[axis], options.dilation[axis].saturating_mul(taps - 1));
        let full = (&size - 1) * stride + reach + 1;
        let result = &full - start - end + output_paddings[axis];
        if result.as_static().is_some_and(|result| result < 0) || size == 0 {
            return site.argument(&[&x, &filter], "padding", start.saturating_add(end), format!("at most {full}"));
        }
        sizes[axis] = result;
        before[axis + 1] = reach - start;
        let mut split: Vec<Dim> = sparse.shape().to_vec();
        split.insert(axis + 2, Dim::Static(1));
        let apart = reshape_at(&site, &sparse, split.as_slice().into())?;
        let spaced = pad_axis(&site, apart, axis + 2, [0, stride - 1], PadMode::Constant(Scalar::Int(0)))?;
        split.remove(axis + 2);
        split[axis + 1] = size * stride;
        sparse = reshape_at(&site, &spaced, split.as_slice().into())?;
        turned = part(&site, &turned, axis, SliceAxis { start: Dim::Static(taps - 1), step: -1 }, Dim::Static(taps))?;
    }
    let turned = if options.groups == 1 {
        permute(&turned, [0, 1, 3, 2])?
    } else {
        // The features of all groups, one group after the other, and the channels of one.
        let [rows, columns, group_features, _] = dims(&site, &turned)?;
        let parted = [&rows, &columns, &group_features, &group, &group_channels];
        let parted = reshape_at(&site, &turned, Shape::from_iter(parted.into_iter().cloned()))?;
        let features = &group * &group_features;
        let all = [rows, columns, group_channels, features];
        reshape_at(&site, &permute(parted, [0, 1, 4, 3, 2])?, all.into())?
    };
    let taps = deepen(&site, &turned, 0)?;
    let dilation = [1, options.dilation[0], options.dilation[1]];
    let geometry = Geometry { stride: [1; 3], dilation, before, groups: options.groups };
    let [height, width] = sizes;
    let y = convolve(&site, &deepen(&site, &sparse, 1)?, &taps, &geometry, [Dim::Static(1), height, width])?;
    finish(&site, y, &options, bias)
}

/// How the kernel walks a volume.
struct Geometry {
    stride: [i64; 3],
    dilation: [i64; 3],
    /// Zeros before each axis; below 0, elements that are skipped there.
    before: [i64; 3],
    groups: i64,
}

impl Geometry {
    fn of_planes(options: &ConvOptions<2>) -> Geometry {
        let ConvOptions { stride: [sy, sx], dilation: [dy, dx], padding: [[top, _], [left, _]], groups, .. } = *options;
        Geometry { stride: [1, sy, sx], dilation: [1, dy, dx], before: [0, top, left], groups }
    }
}

/// Input and filter, with channels and features last.
fn operands<const D: usize>(
    site: &Site,
    x: Operand,
    filter: Operand,
    options: &ConvOptions<D>,
) -> Result<(TensorValue, TensorValue)> {
    let rank = D + 2;
    let [x, filter] = site.promote([x, filter])?;
    for (what, value) in [("the input", &x), ("the filter", &filter)] {
        site.require(what, value, "floats", DType::is_float)?;
        if value.rank() != rank {
            let kind = GraphErrorKind::Rank { what, rank: value.rank(), expected: format!("{rank} axes").into() };
            return site.fail(&[&x, &filter], kind);
        }
    }
    let x = channels_last(x, options.input_layout)?;
    Ok((x, features_last(site, filter, options.filter_layout)?))
}

/// Checks the numbers of the options.
fn check<const D: usize>(site: &Site, x: &TensorValue, filter: &TensorValue, options: &ConvOptions<D>) -> Result<()> {
    let all = [x, filter];
    for (argument, values) in [("stride", options.stride), ("dilation", options.dilation)] {
        if values.iter().any(|value| *value < 1) {
            return site.argument(&all, argument, format!("{values:?}"), "at least 1");
        }
    }
    if options.padding.iter().flatten().any(|padding| *padding < 0) {
        return site.argument(&all, "padding", format!("{:?}", options.padding), "at least 0");
    }
    Ok(())
}

/// Checks the options and the channels, and computes the sizes of the result.
fn output_sizes<const D: usize>(
    site: &Site,
    x: &TensorValue,
    filter: &TensorValue,
    options: &ConvOptions<D>,
) -> Result<[Dim; D]> {
    check(site, x, filter, options)?;
    let all = [x, filter];
    let groups = options.groups;
    let channels = &filter.shape()[D] * groups;
    let features = &filter.shape()[D + 1];
    if groups < 1 || features.exact_div(&Dim::Static(groups)).is_none() {
        return site.argument(&all, "groups", groups, format!("a divisor of the filter's {features} features"));
    }
    if channels != x.shape()[D + 1] {
        let what = "the input's channels and the filter's, times the groups";
        let kind = GraphErrorKind::DimMismatch { what, lhs: x.shape()[D + 1].clone(), rhs: channels };
        return site.fail(&all, kind);
    }
    let mut sizes = [const { Dim::Static(0) }; D];
    for (axis, slot) in sizes.iter_mut().enumerate() {
        let [before, after] = options.padding[axis];
        let taps = known(site, filter, axis, "a size of the filter")?;
        let reach = options.dilation[axis].saturating_mul(taps - 1);
        let dim = &x.shape()[axis + 1];
        let padded = dim + before + after;
        if padded.as_static().is_some_and(|size| size <= reach) || taps == 0 {
            let what = "the padded input";
            return site
                .fail(&all, GraphErrorKind::DimValue { what, dim: padded, expected: "the filter's size at least" });
        }
        *slot = (padded - reach - 1) / options.stride[axis] + 1;
    }
    Ok(sizes)
}

/// A dim that must be static.
fn known(site: &Site, x: &TensorValue, axis: usize, what: &'static str) -> Result<i64> {
    match x.shape()[axis].as_static() {
        Some(size) => Ok(size),
        None => {
            let dim = x.shape()[axis].clone();
            site.fail(&[x], GraphErrorKind::DimValue { what, dim, expected: STATIC })
        }
    }
}

/// The value with an axis of size 1 in front of `axis`: an image as a volume.
fn deepen(site: &Site, x: &TensorValue, axis: usize) -> Result<TensorValue> {
    let mut shape: Vec<Dim> = x.shape().to_vec();
    shape.insert(axis, Dim::Static(1));
    reshape_at(site, x, shape.as_slice().into())
}

/// The convolution of a volume `[batch, depth, height, width, channels]`, to the given sizes of the result.
fn convolve(
    site: &Site,
    x: &TensorValue,
    filter: &TensorValue,
    geometry: &Geometry,
    sizes: [Dim; 3],
) -> Result<TensorValue> {
    let Geometry { stride, dilation, before, groups } = geometry;
    let [batch, depth, height, width, channels] = dims(site, x)?;
    let [q, r, s, group_channels, features] = dims(site, filter)?;
    let [depth_out, height_out, width_out] = sizes;
    let is_point = [&q, &r, &s].into_iter().all(|taps| *taps == 1) && *before == [0; 3];
    if is_point
        && *groups == 1
        && *stride == [1; 3]
        && [&depth_out, &height_out, &width_out] == [&depth, &height, &width]
    {
        return matmul(x, reshape_at(site, filter, [channels, features].into())?);
    }
    let sizes_out = [depth_out, height_out, width_out];
    if let Some(axis) = unfolds(x, filter, geometry, &sizes_out) {
        let (x, filter, geometry) = unfold(site, x, filter, geometry, axis, &sizes_out)?;
        return convolve(site, &x, &filter, &geometry, sizes_out);
    }
    if folds(x, filter, geometry, &sizes_out) {
        return fold(site, x, filter, geometry, &sizes_out);
    }
    let [depth_out, height_out, width_out] = sizes_out;
    let sizes_known = [&depth, &height, &width, &q, &r, &s].into_iter().all(Dim::is_static);
    if *groups > 1 && group_channels == 1 && features == *groups && sizes_known {
        return depthwise(site, x, filter, geometry, [depth_out, height_out, width_out]);
    }
    let group = Dim::Static(*groups);
    let group_features = features.exact_div(&group).unwrap_or(features.clone());
    let (mut x, mut w) = (x.clone(), filter.clone());
    if *groups > 1 {
        let parted = [&batch, &depth, &height, &width, &group, &group_channels];
        x = permute(reshape_at(site, &x, Shape::from_iter(parted.into_iter().cloned()))?, [4, 0, 1, 2, 3, 5])?;
        let parted = [&q, &r, &s, &group_channels, &group, &group_features];
        w = permute(reshape_at(site, &w, Shape::from_iter(parted.into_iter().cloned()))?, [4, 0, 1, 2, 3, 5])?;
    }
    let planes = &group * &batch * &depth;
    let w = reshape_at(site, &w, [&group * &q, r, s, group_channels.clone(), group_features.clone()].into())?;
    // Columns by their phase.
    let step = stride[2];
    x = reshape_at(site, &x, [planes.clone(), height.clone(), width.clone(), group_channels.clone()].into())?;
    let columns = (&width + (step - 1)) / step;
    let rest = &columns * step - &width;
    if rest != 0 {
        let zero = site.scalar(&x, Scalar::Int(0), x.dtype())?;
        x = pad_axis_with(site, x, 2, [Dim::Static(0), rest], &zero)?;
    }
    let x = reshape_at(site, &x, [planes, height, columns, Dim::Static(step), group_channels].into())?;
    let x = permute(x, [0, 1, 3, 2, 4])?;

    let lead = (before[2].max(0) + step - 1) / step;
    let parameters = Parameters::new()
        .with("groups", *groups)
        .with("depth", &depth)
        .with("depth_out", &depth_out)
        .with("height_out", &height_out)
        .with("stride_depth", stride[0])
        .with("stride_height", stride[1])
        .with("dilation_depth", dilation[0])
        .with("dilation_height", dilation[1])
        .with("dilation_width", dilation[2])
        .with("padding_depth", before[0])
        .with("padding_height", before[1])
        .with("lead", lead)
        .with("offset", lead * step - before[2]);
    let rows = &group * &batch * &depth_out * &height_out;
    let ty = x.ty.with_shape([rows, width_out.clone(), group_features.clone()].into());
    let y = site.kernel("conv", &[&x, &w], ty, parameters)?;
    let parted = [&group, &batch, &depth_out, &height_out, &width_out, &group_features];
    let y = reshape_at(site, &y, Shape::from_iter(parted.into_iter().cloned()))?;
    let y = permute(y, [1, 2, 3, 4, 0, 5])?;
    reshape_at(site, &y, [batch, depth_out, height_out, width_out, features].into())
}

/// The axis whose taps become channels. Of a row that costs nothing: the channels that its taps meet are neighbours in memory, and
/// windows are views. Of others it is a copy, which pays where so few channels meet that sums are loaded and stored for little, if
/// there are features enough that sums are of.
fn unfolds(x: &TensorValue, filter: &TensorValue, geometry: &Geometry, sizes: &[Dim; 3]) -> Option<usize> {
    /// Of a column's taps.
    const CHANNELS: i64 = 48;
    /// Measured with AVX-512: of 110 the copies pay, of 96 not for all images.
    const FEATURES: i64 = 100;
    let [channels, features] = [3, 4].map(|axis| filter.shape()[axis].as_static());
    // The width first, whose taps are neighbours: those of axes after the one that is found are 1.
    let axis = (0..3).rev().find(|axis| filter.shape()[*axis] != 1)?;
    let is_row = axis == 2 && geometry.dilation[2] == 1;
    if geometry.groups != 1 || !is_row && (channels? > CHANNELS || features? < FEATURES) {
        return None;
    }
    (sizes[axis].as_static()? > 0 && x.shape()[axis + 1].is_static()).then_some(axis)
}

/// The same convolution with one tap along an axis, whose taps are channels: of the input, what each tap meets.
fn unfold(
    site: &Site,
    x: &TensorValue,
    filter: &TensorValue,
    geometry: &Geometry,
    axis: usize,
    sizes: &[Dim; 3],
) -> Result<(TensorValue, TensorValue, Geometry)> {
    let Geometry { mut stride, mut dilation, mut before, groups } = *geometry;
    let taps = known(site, filter, axis, "a size of the filter")?;
    let size = known(site, x, axis + 1, "a size of the input")?;
    let count = sizes[axis].as_static().unwrap_or(0);
    // What overflows is more than memory has: padding says so.
    let reach = (taps - 1).saturating_mul(dilation[axis]).saturating_add(1);
    let end = (count - 1).saturating_mul(stride[axis]).saturating_add(reach);
    let ends = [before[axis].max(0), end.saturating_sub(before[axis]).saturating_sub(size).max(0)];
    let padded = pad_axis(site, x.clone(), axis + 1, ends, PadMode::Constant(Scalar::Int(0)))?;
    let met = narrow(site, &padded, axis + 1, Dim::Static((-before[axis]).max(0)), Dim::Static(end))?;
    let window = Window { axis: axis + 1, step: stride[axis], dilation: dilation[axis] };
    let windows = sliding_window(site, &met, window, count, taps)?;
    // The taps in front of the channels.
    let order = (0..5).filter(|from| *from != axis + 2).chain([axis + 2, 5]).collect();
    let mut shape = dims::<5>(site, x)?;
    (shape[axis + 1], shape[4]) = (count.into(), &shape[4] * taps);
    let x = reshape_at(site, &permute_at(site, &windows, order)?, shape.into())?;
    let mut shape = dims::<5>(site, filter)?;
    (shape[axis], shape[3]) = (Dim::Static(1), &shape[3] * taps);
    let filter = reshape_at(site, filter, shape.into())?;
    (stride[axis], dilation[axis], before[axis]) = (1, 1, 0);
    Ok((x, filter, Geometry { stride, dilation, before, groups }))
}

/// Whether the rows of images become one: where taps are of one column, and rows are so short that all of the filter would be read for a
/// few pixels. Windows are copied for that, which costs what is read for so many pixels.
fn folds(x: &TensorValue, filter: &TensorValue, geometry: &Geometry, [_, height, width]: &[Dim; 3]) -> bool {
    /// So many rows of a product read a filter once, as fast as more do.
    const PIXELS: i64 = 24;
    /// For each pixel of a row, numbers of the filter that are multiplied with one of a window: measured with AVX-512.
    const PAYS: i64 = 8;
    let [taps, columns, features] = [1, 2, 4].map(|axis| filter.shape()[axis].as_static());
    let (Some(taps), Some(1), Some(features), Some(pixels)) = (taps, columns, features, width.as_static()) else {
        return false;
    };
    let pays = pixels < PIXELS && taps.saturating_mul(features) >= PAYS * pixels;
    let rows_meet = x.shape()[3] == *width && geometry.before[2] == 0 && geometry.stride[1..] == [1, 1];
    pays && rows_meet && *height != 1
}

/// The same convolution of images with one row, in which the rows follow each other, by taps that are a row apart.
fn fold(
    site: &Site,
    x: &TensorValue,
    filter: &TensorValue,
    geometry: &Geometry,
    sizes: &[Dim; 3],
) -> Result<TensorValue> {
    let Geometry { stride, dilation, before, groups } = *geometry;
    let [batch, depth, height, width, channels] = dims(site, x)?;
    let [q, r, s, group_channels, features] = dims(site, filter)?;
    let apart = known(site, x, 3, "a size of the input")?;
    let [depth_out, height_out, width_out] = sizes.clone();
    let shape = [&batch, &depth, &Dim::Static(1), &(height * width), &channels].map(Dim::clone);
    let x = reshape_at(site, x, shape.into())?;
    let filter = reshape_at(site, filter, [q, s, r, group_channels, features.clone()].into())?;
    let dilation = [dilation[0], 1, dilation[1].saturating_mul(apart)];
    let before = [before[0], 0, before[1].saturating_mul(apart)];
    let geometry = Geometry { stride: [stride[0], 1, 1], dilation, before, groups };
    let y = convolve(site, &x, &filter, &geometry, [depth_out.clone(), Dim::Static(1), &height_out * &width_out])?;
    reshape_at(site, &y, [batch, depth_out, height_out, width_out, features].into())
}

/// A convolution whose channels do not meet: there is no matrix to multiply by, so it is the sum over all taps of what
/// the tap meets, a view, times the tap's vector of channels: elementwise, and fused.
fn depthwise(
    site: &Site,
    x: &TensorValue,
    filter: &TensorValue,
    geometry: &Geometry,
    sizes: [Dim; 3],
) -> Result<TensorValue> {
    let Geometry { stride, dilation, before, .. } = geometry;
    // Half types are added in `float32`.
    let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let mut padded = site.cast(x.clone(), dtype)?;
    let weights = site.cast(filter.clone(), dtype)?;
    let mut taps = [0; 3];
    for axis in 0..3 {
        taps[axis] = known(site, filter, axis, "the filter's sizes")?;
        let size = known(site, x, axis + 1, "the sizes of the input")?;
        let out = sizes[axis].as_static().unwrap_or(0);
        let end = (out - 1) * stride[axis] + (taps[axis] - 1) * dilation[axis] + 1;
        let after = (end - before[axis] - size).max(0);
        padded = pad_axis(site, padded, axis + 1, [before[axis], after], PadMode::Constant(Scalar::Int(0)))?;
    }
    let [_, _, _, _, features] = dims(site, filter)?;
    let mut sum: Option<TensorValue> = None;
    for tap in 0..taps.iter().product() {
        let at = [tap / taps[2] / taps[1], tap / taps[2] % taps[1], tap % taps[2]];
        let (mut met, mut weight) = (padded.clone(), weights.clone());
        for axis in 0..3 {
            let range = SliceAxis { start: Dim::Static(at[axis] * dilation[axis]), step: stride[axis] };
            met = part(site, &met, axis + 1, range, sizes[axis].clone())?;
            let range = SliceAxis { start: Dim::Static(at[axis]), step: 1 };
            weight = part(site, &weight, axis, range, Dim::Static(1))?;
        }
        let term = super::super::mul(met, reshape_at(site, &weight, [features.clone()].into())?)?;
        sum = Some(match sum {
            Some(sum) => super::super::add(sum, term)?,
            None => term,
        });
    }
    match sum {
        Some(sum) => site.cast(sum, x.dtype()),
        None => site.fail(&[x, filter], GraphErrorKind::NoOperands),
    }
}

fn dims<const R: usize>(site: &Site, x: &TensorValue) -> Result<[Dim; R]> {
    match <[Dim; R]>::try_from(x.shape().to_vec()) {
        Ok(dims) => Ok(dims),
        Err(_) => site.fail(
            &[x],
            GraphErrorKind::Rank { what: "an operand", rank: x.rank(), expected: format!("{R} axes").into() },
        ),
    }
}

/// The result with its bias, in the layout asked for.
fn finish<const D: usize>(
    site: &Site,
    y: TensorValue,
    options: &ConvOptions<D>,
    bias: Option<&TensorValue>,
) -> Result<TensorValue> {
    let [batch, _, height, width, features] = dims(site, &y)?;
    let y = if D == 2 { reshape_at(site, &y, [batch, height, width, features.clone()].into())? } else { y };
    let Some(bias) = bias else { return laid_out(y, options.input_layout) };
    if bias.shape() != &Shape::from([features]) {
        let kind =
            GraphErrorKind::Rank { what: "the bias", rank: bias.rank(), expected: "1 axis, of the features".into() };
        return site.fail(&[&y, bias], kind);
    }
    laid_out(super::super::add(y, bias)?, options.input_layout)
}
