//! Convolutions over one, two and three axes.

mod conv1d;
mod conv2d;
mod conv3d;
mod conv_transpose2d;

pub use conv_transpose2d::ConvTranspose2d;
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use conv3d::Conv3d;

use crate::tensor::Tensor;
use crate::{Result, random};

/// New weights, uniformly distributed between `±1 / sqrt(inputs of an output)`, and a bias alike: as in PyTorch.
#[track_caller]
fn weights(shape: &[usize], fan_in: usize, out_channels: usize) -> Result<(Tensor, Option<Tensor>)> {
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    Ok((random::uniform(shape, -bound..bound)?, Some(random::uniform([out_channels], -bound..bound)?)))
}

/// The order that moves the channels of `axes` spatial axes from the first place after the batch to the last.
fn channels_last(axes: i64) -> Vec<i64> {
    [0].into_iter().chain(2..axes + 2).chain([1]).collect()
}

/// The order that moves them back.
fn channels_first(axes: i64) -> Vec<i64> {
    [0, axes + 1].into_iter().chain(1..axes + 1).collect()
}

/// The order of a filter's axes, from `[out, in, ..]` to `[.., in, out]`.
fn filter_last(axes: i64) -> Vec<i64> {
    (2..axes + 2).chain([1, 0]).collect()
}
