//! [`Sequential`]: layers one after the other.

use crate::Result;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// Layers of any types, each of which takes what the one before gives; named by their numbers.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, LayerNorm, Linear, ModuleExt, Sequential};
/// use max::tensor::Tensor;
///
/// let model = Sequential::new().then(Linear::new(4, 8)?).then(LayerNorm::new(8)?).then(Linear::new(8, 2)?);
/// assert_eq!(model.named_parameters()[4].0, "2.weight");
/// assert_eq!(model.forward(&Tensor::ones([3, 4])?)?.shape().to_string(), "[3, 2]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Default, Module)]
pub struct Sequential {
    #[module(name = "")]
    layers: Vec<Box<dyn Forward>>,
}

impl Sequential {
    /// No layers: the output is the input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// These layers, and one more.
    #[must_use]
    pub fn then(mut self, layer: impl Forward + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }

    /// The layers.
    pub fn layers(&self) -> &[Box<dyn Forward>] {
        &self.layers
    }
}

impl Forward for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.call(&x))
    }
}
