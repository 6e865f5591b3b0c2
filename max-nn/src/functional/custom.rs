//! Ops of your own: kernels by name.

use std::sync::Arc;

use max_core::driver::DeviceRef;
use max_core::graph::{self, GraphError, IntoTypes, Parameters, TensorType, Value, ops};

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

/// The results of the kernel that is registered under `name`: see [`ops::custom`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::{driver::DeviceRef, functional as F, tensor::Tensor};
///
/// let x = Tensor::constant([1.0f32, -2.0])?;
/// let y = F::custom("relu", DeviceRef::CPU, [&x], x.ty(), ())?;
/// assert_eq!(y[0].to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// As [`ops::custom`].
#[track_caller]
pub fn custom<V: Into<Operand>>(
    name: &str,
    device: DeviceRef,
    values: impl IntoIterator<Item = V>,
    out_types: impl IntoTypes,
    parameters: impl Into<Parameters>,
) -> Result<Vec<Tensor>> {
    let mut values: Vec<Operand> = values.into_iter().map(Into::into).collect();
    let types: Vec<TensorType> = out_types.into_types().iter().map(|ty| ty.as_tensor().clone()).collect();
    let attributes = (Arc::<str>::from(name), device, types, parameters.into());
    apply("custom", &mut values, attributes, |x, (name, device, types, parameters)| {
        let values = x.iter().map(value).collect::<Result<Vec<Value>>>()?;
        let results = ops::custom(name, *device, values, types, parameters.clone())?;
        results.iter().map(|value| value.tensor().cloned()).collect::<Result<Vec<_>>>()
    })
}

/// An operand that is a value: a kernel has no dtype for a number.
#[track_caller]
fn value(operand: &graph::Operand) -> Result<Value> {
    match operand {
        graph::Operand::Tensor(value) => Ok(value.into()),
        graph::Operand::Buffer(value) => Ok(value.into()),
        other => {
            let expected = "a tensor: make one of a number with `Tensor::constant`";
            Err(GraphError::argument("custom", "values", format!("{other:?}"), expected))
        }
    }
}
