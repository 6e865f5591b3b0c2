//! Activations: what each layer of a module gives, by the layer's name, and comparing them with those of another run.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use max_core::graph::GraphError;

use super::hooks::with_layer_hook;
use super::{Module, StateDict};
use crate::Result;
use crate::functional as f;
use crate::tensor::Tensor;

/// Runs `body` and records what the layers of `module` give that run by [`Forward::call`](super::Forward::call): by their names,
/// as in its state dict, with `#1`, `#2` and so on of a layer that runs again. The module's own output has no name.
///
/// With [`StateDict::save`] and [`SafetensorWeights`](max_core::graph::weights::SafetensorWeights), activations of another
/// framework are compared as well: see [`compare_activations`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{self, Forward, Linear, Sequential};
/// use max::tensor::Tensor;
///
/// let model = Sequential::new().then(Linear::new(2, 3)?).then(Linear::new(3, 1)?);
/// let x = Tensor::ones([1, 2])?;
/// let (y, first) = nn::record_activations(&model, || model.call(&x))?;
/// let (_, second) = nn::record_activations(&model, || model.call(&(&x * 1.001)))?;
/// assert_eq!(first.get("1").map(Tensor::to_string), Some(y.to_string()));
/// assert!(nn::compare_activations(&first, &first, 0.0)?.is_empty());
/// let differences = nn::compare_activations(&second, &first, 1e-6)?;
/// assert_eq!(differences[0].layer, "0");
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of `body`.
pub fn record_activations<T>(module: &dyn Module, body: impl FnOnce() -> Result<T>) -> Result<(T, StateDict)> {
    let found: Rc<RefCell<Vec<(String, Tensor)>>> = Rc::default();
    let seen = found.clone();
    let record = move |name: &str, _: &Tensor, output: &Tensor| {
        let mut seen = seen.borrow_mut();
        let again = seen.iter().filter(|(known, _)| known.split('#').next() == Some(name)).count();
        let name = if again == 0 { name.to_owned() } else { format!("{name}#{again}") };
        seen.push((name, output.clone()));
        Ok(None)
    };
    let result = with_layer_hook(module, record, body)?;
    let activations = found.take();
    Ok((result, activations.into()))
}

/// How a layer's output differs from what it should be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// The layer's name.
    pub layer: String,
    /// The largest difference of an element, as a part of the largest element there should be; infinite where one of both is
    /// missing, has another shape, or is not a number alone.
    pub largest: f64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` differs by {:e}", self.layer, self.largest)
    }
}

/// The layers whose outputs differ by more than `tolerance`, in the order in which they ran: the first is where to look. Only
/// layers that `expected` has are compared.
///
/// # Errors
/// When an output cannot be computed, or is a value of a graph.
#[track_caller]
pub fn compare_activations(actual: &StateDict, expected: &StateDict, tolerance: f64) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for (layer, expected) in expected.iter() {
        let largest = match actual.get(layer) {
            Some(actual) if actual.shape() == expected.shape() => largest_difference(actual, expected)?,
            _ => f64::INFINITY,
        };
        if largest > tolerance {
            differences.push(Difference { layer: layer.to_owned(), largest });
        }
    }
    Ok(differences)
}

/// The largest difference of two tensors of one shape, as a part of the largest element of the second.
#[track_caller]
fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f64, GraphError> {
    let wide = |x: &Tensor| f::cast(x, max_core::dtype::DType::F64)?.to_vec::<f64>();
    let (a, b) = (wide(a)?, wide(b)?);
    let largest = b.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    let unit = if largest == 0.0 { 1.0 } else { largest };
    let difference = |(a, b): (&f64, &f64)| match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false if a.is_finite() && b.is_finite() => (a - b).abs() / unit,
        false => f64::INFINITY,
    };
    Ok(a.iter().zip(&b).map(difference).fold(0.0, f64::max))
}
