//! [`LayerList`]: layers of one type, by number.

use std::ops::{Deref, DerefMut};

use crate::nn::{Field, Module};

/// A list of layers of one type, named by their numbers; used as a `Vec`. What runs them is the model that owns it.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{LayerList, Linear, ModuleExt};
///
/// let mut layers = LayerList::from(vec![Linear::new(2, 2)?.without_bias()]);
/// layers.push(Linear::new(2, 2)?.without_bias());
/// assert_eq!(layers.named_parameters()[1].0, "1.weight");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Default, Module)]
pub struct LayerList<L: Field> {
    #[module(name = "")]
    layers: Vec<L>,
}

impl<L: Field> From<Vec<L>> for LayerList<L> {
    fn from(layers: Vec<L>) -> Self {
        LayerList { layers }
    }
}

impl<L: Field> Deref for LayerList<L> {
    type Target = Vec<L>;

    fn deref(&self) -> &Vec<L> {
        &self.layers
    }
}

impl<L: Field> DerefMut for LayerList<L> {
    fn deref_mut(&mut self) -> &mut Vec<L> {
        &mut self.layers
    }
}
