//! [`PatchEmbedding`]: an image as a sequence of vectors.

use max_core::graph::ops::ConvOptions;

use super::Conv2d;
use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// A linear transformation of each patch of an image, `[batch, channels, height, width]`, to `[batch, patches, hidden]`, in row-major
/// order (Dosovitskiy et al.: An image is worth 16x16 words, 2020).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, PatchEmbedding};
/// use max::tensor::Tensor;
///
/// let layer = PatchEmbedding::new([4, 4], 3, 16)?;
/// assert_eq!(layer.forward(&Tensor::ones([2, 3, 8, 12])?)?.shape().to_string(), "[2, 6, 16]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct PatchEmbedding {
    /// Its windows are the patches.
    pub projection: Conv2d,
}

impl PatchEmbedding {
    /// A layer with a bias; its weight has PyTorch's order of axes, `[hidden, channels, height, width]`.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(patch_size: [usize; 2], in_channels: usize, hidden: usize) -> Result<PatchEmbedding> {
        let conv = Conv2d::new(patch_size, in_channels, hidden)?;
        let weight = conv.weight.permute([3, 2, 0, 1])?;
        let options = ConvOptions { stride: patch_size.map(|size| size as i64), ..conv.options };
        Ok(PatchEmbedding { projection: Conv2d { weight, options, permute: true, ..conv } })
    }
}

impl Forward for PatchEmbedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        f::transpose(f::flatten(self.projection.call(x)?, 2, 3)?, 1, 2)
    }
}
