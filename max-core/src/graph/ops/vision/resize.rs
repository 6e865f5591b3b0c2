//! Images in other sizes, and images put together from blocks.

use super::super::movement::views::reshape_at;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, TensorValue};

/// What stands between the pixels of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterpolationMode {
    /// The nearest pixel; of two, the first.
    Nearest,
    /// A line between two pixels, along both axes.
    #[default]
    Bilinear,
    /// The cubic convolution of four pixels with a slope of -3/4 (Keys, 1981), along both axes.
    Bicubic,
}

/// An image `[batch, channels, height, width]` in another size. The middle of a pixel of the result lies where it lies in
/// the image, both scaled to the same size; past its border the image continues with its last pixels.
///
/// # Errors
/// When the image or the shape does not have 4 axes; when batch or channels change; when the image's height or width is 0
/// and the result's is not; when a symbol of the shape gets no size in the graph; except for
/// [`InterpolationMode::Nearest`], when the dtype is none of `float16`, `bfloat16` and `float32`.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::InterpolationMode}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("batch", 3, 224, 224), DeviceRef::CPU)]);
/// let y = ops::resize(&graph.inputs()[0], ("batch", 3, 112, 300), InterpolationMode::Bicubic)?;
/// assert_eq!(y.shape().to_string(), "[batch, 3, 112, 300]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn resize(
    input: impl Into<Operand>,
    shape: impl Into<Shape>,
    interpolation: InterpolationMode,
) -> Result<TensorValue> {
    let site = Site::new("resize");
    let (x, shape) = (site.tensor("the image", input)?, shape.into());
    for (what, rank) in [("the image", x.rank()), ("the shape", shape.rank())] {
        if rank != 4 {
            return site.fail(&[&x], GraphErrorKind::Rank { what, rank, expected: "4 axes".into() });
        }
    }
    site.known_symbols(&x.graph, &shape).or_else(|kind| site.fail(&[&x], kind))?;
    for axis in 0..4 {
        let (lhs, rhs) = (x.shape()[axis].clone(), shape[axis].clone());
        if axis < 2 && lhs != rhs {
            let what = "the image's batch and channels and the shape's";
            return site.fail(&[&x], GraphErrorKind::DimMismatch { what, lhs, rhs });
        }
        if axis >= 2 && lhs == 0 && rhs != 0 {
            let what = "the image's height or width";
            return site.fail(&[&x], GraphErrorKind::DimValue { what, dim: lhs, expected: "at least 1" });
        }
    }
    let kernel = match interpolation {
        InterpolationMode::Nearest => "resize_nearest",
        InterpolationMode::Bilinear => "resize_linear",
        InterpolationMode::Bicubic => "resize_cubic",
    };
    if interpolation != InterpolationMode::Nearest {
        let allowed = |dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        site.require("the image", &x, "float16, bfloat16 and float32", allowed)?;
    }
    let planes = |shape: &Shape| Shape::from([&shape[0] * &shape[1], shape[2].clone(), shape[3].clone()]);
    let flat = reshape_at(&site, &x, planes(x.shape()))?;
    let y = site.kernel(kernel, &[&flat], x.ty.with_shape(planes(&shape)), Parameters::new())?;
    reshape_at(&site, &y, shape)
}

/// How the blocks of [`fold`] lie. The default: one beside the other, of neighbouring pixels, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldOptions {
    /// The step between blocks, along the height and the width.
    pub stride: [i64; 2],
    /// The step between the pixels of a block.
    pub dilation: [i64; 2],
    /// What is cut off on both sides of the height and of the width.
    pub padding: [i64; 2],
}

impl Default for FoldOptions {
    fn default() -> Self {
        FoldOptions { stride: [1; 2], dilation: [1; 2], padding: [0; 2] }
    }
}

/// Blocks `[batch, channels · height · width of a block, blocks]`, in order from the left and from the top, put together
/// to images `[batch, channels, height, width]` of `output_size`, added where they overlap.
///
/// # Errors
/// When the operand does not have 3 axes or is no float; when a size, stride or dilation is below 1, or a padding below 0;
/// when a block, with its dilation, exceeds the padded image; when the second axis is no multiple of a block's pixels, or
/// the last one not the number of blocks.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::FoldOptions}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("batch", 12, 12), DeviceRef::CPU)]);
/// let y = ops::fold(&graph.inputs()[0], [4, 5], [2, 2], FoldOptions::default())?;
/// assert_eq!(y.shape().to_string(), "[batch, 3, 4, 5]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn fold(
    input: impl Into<Operand>,
    output_size: impl Into<Shape>,
    kernel_size: [i64; 2],
    options: FoldOptions,
) -> Result<TensorValue> {
    let output_size = output_size.into();
    let site = Site::new("fold");
    let x = site.tensor("the operand", input)?;
    site.require("the operand", &x, "floats", DType::is_float)?;
    let [batch, taps, blocks] = x.shape().dims() else {
        let kind = GraphErrorKind::Rank { what: "the operand", rank: x.rank(), expected: "3 axes".into() };
        return site.fail(&[&x], kind);
    };
    let FoldOptions { stride, dilation, padding } = options;
    for (argument, values, least) in
        [("kernel_size", kernel_size, 1), ("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0)]
    {
        if values.iter().any(|value| *value < least) {
            return site.argument(&[&x], argument, format!("{values:?}"), format!("at least {least}"));
        }
    }
    if output_size.rank() != 2 || output_size.iter().any(|dim| dim.as_static().is_some_and(|size| size < 1)) {
        return site.argument(&[&x], "output_size", output_size, "a height and a width of at least 1");
    }
    site.known_symbols(&x.graph, &output_size).or_else(|kind| site.fail(&[&x], kind))?;
    let mut counts = [const { Dim::Static(0) }; 2];
    for axis in 0..2 {
        let size = &output_size[axis] + padding[axis].saturating_mul(2);
        let room = &size - dilation[axis].saturating_mul(kernel_size[axis] - 1) - 1;
        if room.as_static().is_some_and(|room| room < 0) {
            let (what, dim) = ("the padded image", size);
            return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "a block's size at least" });
        }
        counts[axis] = room / stride[axis] + 1;
    }
    let (block, count) = (kernel_size[0].saturating_mul(kernel_size[1]), &counts[0] * &counts[1]);
    if *blocks != count {
        let (lhs, rhs) = (blocks.clone(), count);
        return site
            .fail(&[&x], GraphErrorKind::DimMismatch { what: "the last dim and the number of blocks", lhs, rhs });
    }
    let Some(channels) = taps.exact_div(&Dim::Static(block)) else {
        let (what, dim) = ("the second dim", taps.clone());
        return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "a multiple of a block's pixels" });
    };
    let images = batch * &channels;
    let (height, width) = (output_size[0].clone(), output_size[1].clone());
    let flat = reshape_at(&site, &x, Shape::from([images.clone(), Dim::Static(block), blocks.clone()]))?;
    let ty = x.ty.with_shape(Shape::from([images, height.clone(), width.clone()]));
    let parameters = Parameters::new()
        .with("taps_width", kernel_size[1])
        .with("across", &counts[1])
        .with("stride_height", stride[0])
        .with("stride_width", stride[1])
        .with("dilation_height", dilation[0])
        .with("dilation_width", dilation[1])
        .with("padding_height", padding[0])
        .with("padding_width", padding[1]);
    let y = site.kernel("fold", &[&flat], ty, parameters)?;
    reshape_at(&site, &y, Shape::from([batch.clone(), channels, height, width]))
}
