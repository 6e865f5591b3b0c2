//! Pooling: the elements that a window meets, combined. A window is taken apart: along the height as many strided views
//! as it is high, then along the width, so that combining them is elementwise, and fused.

use super::super::movement::pad::{PadMode, pad_axis, part};
use super::super::{add, div, maximum};
use super::layout::{ConvInputLayout, channels_last, laid_out};
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::SliceAxis;
use crate::graph::symbolic::dim::Dim;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// How windows lie on an image. The default: a window at every position, of neighbouring elements, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The step between windows, along the height and the width.
    pub stride: [i64; 2],
    /// The step between the elements of a window.
    pub dilation: [i64; 2],
    /// Padding on both sides of the height and of the width.
    pub padding: [i64; 2],
    /// Whether a window may reach over the end, if it begins inside.
    pub ceil_mode: bool,
    /// In which order the axes of the image and of the result are.
    pub input_layout: ConvInputLayout,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            stride: [1; 2],
            dilation: [1; 2],
            padding: [0; 2],
            ceil_mode: false,
            input_layout: ConvInputLayout::Nhwc,
        }
    }
}

/// The largest element of each window of an image `[batch, height, width, channels]`.
///
/// # Errors
/// When the operand does not have 4 axes, or is `bool`; when its height or width is symbolic and, with `ceil_mode`, windows
/// are so short beside stride and padding that the last one could begin outside; when a window, with its dilation,
/// exceeds the padded image; when a size, stride or dilation is below 1, or a padding below 0.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::PoolOptions}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("batch", 8, 9, 64), DeviceRef::CPU)]);
/// let options = PoolOptions { stride: [2, 2], ..PoolOptions::default() };
/// let y = ops::max_pool2d(&graph.inputs()[0], [2, 2], options)?;
/// assert_eq!(y.shape().to_string(), "[batch, 4, 4, 64]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn max_pool2d(input: impl Into<Operand>, kernel_size: [i64; 2], options: PoolOptions) -> Result<TensorValue> {
    let site = Site::new("max_pool2d");
    let x = site.tensor("the operand", input)?;
    site.require("the operand", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let dtype = x.dtype();
    let lowest = match dtype.is_float() {
        true => Scalar::Float(f64::NEG_INFINITY),
        false if dtype.is_unsigned_integral() => Scalar::Int(0),
        false => Scalar::Int(-(1i128 << (dtype.size_in_bytes() * 8 - 1))),
    };
    let x = if x.rank() == 4 { channels_last(x, options.input_layout)? } else { x };
    laid_out(pool(&site, x, kernel_size, options, lowest, |a, b| maximum(a, b))?, options.input_layout)
}

/// The mean of each window of an image `[batch, height, width, channels]`; padding counts as zeros, and with
/// `count_boundary` false is not counted.
///
/// # Errors
/// As [`max_pool2d`], and when the dtype is no float.
#[track_caller]
pub fn avg_pool2d(
    input: impl Into<Operand>,
    kernel_size: [i64; 2],
    options: PoolOptions,
    count_boundary: bool,
) -> Result<TensorValue> {
    let site = Site::new("avg_pool2d");
    let x = site.tensor("the operand", input)?;
    site.require("the operand", &x, "floats", DType::is_float)?;
    let x = if x.rank() == 4 { channels_last(x, options.input_layout)? } else { x };
    // Half types are summed in `float32`.
    let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let sum = |x| pool(&site, x, kernel_size, options, Scalar::Float(0.0), |a, b| add(a, b));
    let total = sum(site.cast(x.clone(), dtype)?)?;
    let mean = if count_boundary {
        let count = site.scalar(&total, Scalar::Int(i128::from(kernel_size[0]) * i128::from(kernel_size[1])), dtype)?;
        div(&total, &count)?
    } else {
        let ones = [Dim::Static(1), x.shape()[1].clone(), x.shape()[2].clone(), Dim::Static(1)];
        let ones = site.broadcast(site.scalar(&total, Scalar::Int(1), dtype)?, &ones.into())?;
        div(&total, &sum(ones)?)?
    };
    laid_out(site.cast(mean, x.dtype())?, options.input_layout)
}

/// Windows of more elements along an axis are combined in a number of steps that grows with its logarithm.
const FEW_TAPS: i64 = 16;

/// Combines the elements of each window.
fn pool(
    site: &Site,
    x: TensorValue,
    kernel_size: [i64; 2],
    options: PoolOptions,
    padding: Scalar,
    combine: impl Fn(&TensorValue, &TensorValue) -> Result<TensorValue>,
) -> Result<TensorValue> {
    if x.rank() != 4 {
        let kind = GraphErrorKind::Rank { what: "the operand", rank: x.rank(), expected: "4 axes".into() };
        return site.fail(&[&x], kind);
    }
    let PoolOptions { stride, dilation, padding: sides, ceil_mode, .. } = options;
    for (argument, values, least) in
        [("kernel_size", kernel_size, 1), ("stride", stride, 1), ("dilation", dilation, 1), ("padding", sides, 0)]
    {
        if values.iter().any(|value| *value < least) {
            return site.argument(&[&x], argument, format!("{values:?}"), format!("at least {least}"));
        }
    }
    let mut result = x;
    for axis in [0, 1] {
        let (taps, step, gap, side) = (kernel_size[axis], stride[axis], dilation[axis], sides[axis]);
        let dim = &result.shape()[axis + 1];
        let size = dim.clone();
        let reach = gap.saturating_mul(taps - 1);
        let image = &size + side.saturating_mul(2);
        let room = &image - reach - 1;
        if room.as_static().is_some_and(|room| room < 0) {
            let expected = format!("such that a window fits into {image}, the size of the padded axis {}", axis + 1);
            return site.argument(&[&result], "kernel_size", format!("{kernel_size:?}"), expected);
        }
        // What the last window needs, which may be more than there is, or less.
        let (windows, end) = match room.as_static().zip(size.as_static()) {
            Some((room, size)) => {
                let mut windows = room / step + 1;
                if ceil_mode && room % step != 0 && windows.saturating_mul(step) < size.saturating_add(side) {
                    windows += 1;
                }
                (Dim::Static(windows), ((windows - 1) * step + reach + 1 - size - side).max(0))
            }
            // However large it is, no window begins behind the image.
            None if ceil_mode && reach + 1 < step + side => {
                let (what, dim) = (["the height", "the width"][axis], dim.clone());
                let expected = "static, as with `ceil_mode` the last window could begin outside";
                return site.fail(&[&result], GraphErrorKind::DimValue { what, dim, expected });
            }
            None if ceil_mode => ((&room + (step - 1)) / step + 1, side + step - 1),
            None => (&room / step + 1, side),
        };
        let padded = pad_axis(site, result, axis + 1, [side, end], PadMode::Constant(padding))?;
        let view = |of: &TensorValue, tap: i64, step: i64, count: Dim| {
            let range = SliceAxis { start: Dim::Static(tap * gap), step };
            part(site, of, axis + 1, range, count)
        };
        // Of long windows, runs of 1, 2, 4 … taps are combined; each window is made of such runs.
        let (mut run, mut length, mut done) = (padded, 1, 0);
        let mut combined: Option<TensorValue> = None;
        while done < taps {
            if taps <= FEW_TAPS || taps & length != 0 {
                let taken = view(&run, done, step, windows.clone())?;
                combined = Some(combined.map_or(Ok(taken.clone()), |all| combine(&all, &taken))?);
                done += length;
            }
            if taps > FEW_TAPS && done < taps {
                let count = &size + side + end - (2 * length - 1) * gap;
                run = combine(&view(&run, 0, 1, count.clone())?, &view(&run, length, 1, count)?)?;
                length *= 2;
            }
        }
        result = combined.unwrap_or(run);
    }
    Ok(result)
}
