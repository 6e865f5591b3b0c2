//! Layouts of images and filters: in which order their axes are.

use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops::permute;
use crate::graph::value::TensorValue;

/// Where the channels of an image stand, and of what is made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvInputLayout {
    /// `[batch, height, width, channels]`, of a volume `[batch, depth, height, width, channels]`: how it is computed.
    #[default]
    Nhwc,
    /// `[batch, channels, height, width]`, of a volume `[batch, channels, depth, height, width]`. The axes are brought into
    /// the other order and back, of which the kernels may make copies.
    Nchw,
}

/// The order of a filter's axes: `Q`, `R` and `S` are its depth, height and width, `C` its input channels (of a transposed
/// convolution its output channels), `F` its features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterLayout {
    /// Channels and features last: RSCF of planes, QRSCF of volumes.
    #[default]
    ChannelsLast,
    /// `[height, width, channels, features]`.
    Rscf,
    /// `[depth, height, width, channels, features]`.
    Qrscf,
    /// `[features, channels, height, width]`, as in PyTorch.
    Fcrs,
    /// `[features, channels, depth, height, width]`, as in PyTorch.
    Fcqrs,
    /// `[channels, features, height, width]`.
    Cfrs,
}

/// An image with its channels last.
#[track_caller]
pub(super) fn channels_last(x: TensorValue, layout: ConvInputLayout) -> Result<TensorValue> {
    match layout {
        ConvInputLayout::Nhwc => Ok(x),
        ConvInputLayout::Nchw => {
            let last = x.rank() as i64;
            permute(x, [0].into_iter().chain(2..last).chain([1]).collect::<Vec<i64>>())
        }
    }
}

/// What was computed with its channels last, in that layout.
#[track_caller]
pub(super) fn laid_out(y: TensorValue, layout: ConvInputLayout) -> Result<TensorValue> {
    match layout {
        ConvInputLayout::Nhwc => Ok(y),
        ConvInputLayout::Nchw => {
            let last = y.rank() as i64 - 1;
            permute(y, [0, last].into_iter().chain(1..last).collect::<Vec<i64>>())
        }
    }
}

/// A filter with channels and features last.
#[track_caller]
pub(super) fn features_last(site: &Site, filter: TensorValue, layout: FilterLayout) -> Result<TensorValue> {
    let (rank, order): (usize, &[i64]) = match layout {
        FilterLayout::ChannelsLast => return Ok(filter),
        FilterLayout::Rscf => (4, &[0, 1, 2, 3]),
        FilterLayout::Qrscf => (5, &[0, 1, 2, 3, 4]),
        FilterLayout::Fcrs => (4, &[2, 3, 1, 0]),
        FilterLayout::Fcqrs => (5, &[2, 3, 4, 1, 0]),
        FilterLayout::Cfrs => (4, &[2, 3, 0, 1]),
    };
    if filter.rank() != rank {
        let expected = format!("{rank} axes, as its layout {layout:?}").into();
        return site.fail(&[&filter], GraphErrorKind::Rank { what: "the filter", rank: filter.rank(), expected });
    }
    permute(filter, order)
}
