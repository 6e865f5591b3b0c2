//! Sequences, constants, repeated elements, bands and the inverse Fourier transform.

use std::panic::Location;
use std::sync::Arc;

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::ops::{self, Normalization};
use max_core::graph::{self, Graph, GraphError, Scalar, TensorType, TensorValue};

use crate::Result;
use crate::tensor::{Data, Operand, Tensor, apply, session};

/// What an op without operands makes, which is computed at once.
#[track_caller]
fn made(op: &'static str, device: DeviceRef, make: impl FnOnce(&Graph) -> Result<TensorValue>) -> Result<Tensor> {
    let location = Location::caller();
    let graph = Graph::new(op, ());
    graph::at(location, || {
        graph.output(make(&graph).map_err(|error| error.outside_of_graph())?)?;
        let outputs = session(&[device])?.load(&graph).and_then(|model| model.execute(()));
        let outputs = outputs.map_err(|error| GraphError::value(op, Arc::new(error)))?;
        let expected = "an op with a result";
        outputs.first().map(Tensor::from).ok_or_else(|| GraphError::argument(op, "results", "none", expected))
    })
}

/// A tensor with these values in a dtype, on a device.
///
/// # Errors
/// When the dtype does not hold a value.
#[track_caller]
pub fn constant(value: impl Data, dtype: DType, device: DeviceRef) -> Result<Tensor> {
    let value = value.into_tensor()?;
    made("constant", device, |graph| ops::constant(graph, value, dtype, device))
}

/// A weight of a graph, by the name that its value has in the weights that the graph is loaded with.
///
/// # Errors
/// When the graph has a weight of that name and another type; when the shape is not static.
#[track_caller]
pub fn constant_external(graph: &Graph, name: impl Into<Arc<str>>, ty: TensorType) -> Result<Tensor> {
    Ok(ops::constant_external(graph, name, ty)?.into())
}

/// The numbers `start`, `start + step`, … before `stop`.
///
/// # Errors
/// When the step is 0, or the dtype does not hold one of the numbers.
#[track_caller]
pub fn range(
    start: impl Into<Scalar>,
    stop: impl Into<Scalar>,
    step: impl Into<Scalar>,
    dtype: DType,
    device: DeviceRef,
) -> Result<Tensor> {
    let [start, stop, step]: [Scalar; 3] = [start.into(), stop.into(), step.into()];
    made("range", device, |graph| ops::range(graph, start, stop, step, dtype, device))
}

/// A Hann window: `0.5 - 0.5 cos(2π i / n)`, with `n` the length, or one less if it is not `periodic`.
///
/// # Errors
/// When the dtype is no float.
#[track_caller]
pub fn hann_window(window_length: usize, device: DeviceRef, periodic: bool, dtype: DType) -> Result<Tensor> {
    made("hann_window", device, |graph| ops::hann_window(graph, window_length, device, periodic, dtype))
}

/// Each element repeated along an axis, or, without an axis, of the flattened tensor.
///
/// # Errors
/// When the axis is out of range, or `repeats` is negative.
#[track_caller]
pub fn repeat_interleave(x: impl Into<Operand>, repeats: i64, axis: Option<i64>) -> Result<Tensor> {
    apply("repeat_interleave", &mut [x.into()], (repeats, axis), |x, (repeats, axis)| {
        ops::repeat_interleave(&x[0], *repeats, *axis)
    })
}

/// The tensor repeated as a whole, so often along each axis.
///
/// # Errors
/// When there are not as many numbers as axes, or one is negative.
#[track_caller]
pub fn tile(x: impl Into<Operand>, repeats: impl AsRef<[i64]>) -> Result<Tensor> {
    apply("tile", &mut [x.into()], repeats.as_ref().to_vec(), |x, repeats| ops::tile(&x[0], &repeats[..]))
}

/// Pairs of the last axis as complex numbers: `[.., 2 n]` becomes `[.., n, 2]`.
///
/// # Errors
/// When the last axis is odd.
#[track_caller]
pub fn as_interleaved_complex(x: impl Into<Operand>) -> Result<Tensor> {
    apply("as_interleaved_complex", &mut [x.into()], (), |x, ()| ops::as_interleaved_complex(&x[0]))
}

/// Zero outside of a band around the diagonal of the last two axes; inside of it if `exclude`.
///
/// # Errors
/// When the operand has fewer than two axes.
#[track_caller]
pub fn band_part(
    x: impl Into<Operand>,
    num_lower: Option<i64>,
    num_upper: Option<i64>,
    exclude: bool,
) -> Result<Tensor> {
    let attributes = (num_lower, num_upper, exclude);
    apply("band_part", &mut [x.into()], attributes, |x, (lower, upper, exclude)| {
        ops::band_part(&x[0], *lower, *upper, *exclude)
    })
}

/// The inverse of the Fourier transform of real numbers along an axis.
///
/// # Errors
/// As [`ops::irfft`].
#[track_caller]
pub fn irfft(
    input: impl Into<Operand>,
    n: Option<usize>,
    axis: i64,
    normalization: Normalization,
    input_is_complex: bool,
) -> Result<Tensor> {
    let attributes = (n, axis, normalization, input_is_complex);
    apply("irfft", &mut [input.into()], attributes, |x, (n, axis, normalization, is_complex)| {
        ops::irfft(&x[0], *n, *axis, *normalization, *is_complex)
    })
}
