//! [`LoraLinear`]: a linear layer with a correction of low rank.

use max_core::graph::GraphError;

use crate::functional as f;
use crate::nn::{Forward, Linear, Module};
use crate::tensor::Tensor;
use crate::{Result, random};

/// `y = base(x) + scaling · (x Aᵀ) Bᵀ`, of `x`, `[.., in_dim]`, to `[.., out_dim]`, with `lora_a` `[rank, in_dim]` and `lora_b`
/// `[out_dim, rank]` (Hu et al.: LoRA, 2021).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, Linear, LoraLinear};
/// use max::tensor::Tensor;
///
/// let layer = LoraLinear::new(Linear::new(8, 4)?, 2, 4.0)?;
/// let x = Tensor::ones([3, 8])?;
/// // Without training, it adds nothing.
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, layer.base.forward(&x)?.to_vec::<f32>()?);
/// assert_eq!(layer.merged()?.weight.shape().to_string(), "[4, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LoraLinear {
    /// The layer that is corrected.
    pub base: Linear,
    /// `[rank, in_dim]`.
    pub lora_a: Tensor,
    /// `[out_dim, rank]`.
    pub lora_b: Tensor,
    /// What the correction is multiplied by: `alpha / rank`.
    pub scaling: f64,
}

impl LoraLinear {
    /// A correction of `base` that is zero: `A` is uniformly distributed between `±1 / sqrt(in_dim)`, and `B` zero.
    ///
    /// # Errors
    /// When there is no memory for it; when `base` has no matrix of static size.
    #[track_caller]
    pub fn new(base: Linear, rank: usize, alpha: f64) -> Result<LoraLinear> {
        let sizes = base.weight.shape().iter().map(|dim| dim.as_static().and_then(|size| usize::try_from(size).ok()));
        let Some(&[out_dim, in_dim]) = sizes.collect::<Option<Vec<usize>>>().as_deref() else {
            let expected = "a matrix of static size";
            return Err(GraphError::argument("lora_linear", "base", base.weight.ty(), expected));
        };
        let bound = 1.0 / (in_dim.max(1) as f64).sqrt();
        let lora_a = random::uniform([rank, in_dim], -bound..bound)?.cast(base.weight.dtype())?;
        let lora_b = Tensor::zeros([out_dim, rank])?.cast(base.weight.dtype())?;
        Ok(LoraLinear { base, lora_a, lora_b, scaling: alpha / rank.max(1) as f64 })
    }

    /// The plain layer that does the same: its weight is `W + scaling · B A`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    #[track_caller]
    pub fn merged(&self) -> Result<Linear> {
        let correction = f::mul(f::matmul(&self.lora_b, &self.lora_a)?, self.scaling)?;
        let weight = match self.base.quantization_encoding {
            Some(encoding) => f::dequantize(encoding, &self.base.weight)?,
            None => self.base.weight.clone(),
        };
        let (weight, bias) = (f::add(weight, correction)?, self.base.bias.clone());
        Ok(Linear { bias, ..Linear::of(weight) })
    }
}

impl Forward for LoraLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = f::matmul(x, f::transpose(&self.lora_a, 0, 1)?)?;
        let correction = f::matmul(inner, f::transpose(&self.lora_b, 0, 1)?)?;
        f::add(self.base.call(x)?, f::mul(correction, self.scaling)?)
    }
}
