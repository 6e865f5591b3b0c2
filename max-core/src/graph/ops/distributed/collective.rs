//! Collectives: ops over one tensor on each of several devices.
//!
//! They are made of copies between devices, concatenations and sums, which each device's stream keeps in order. Terms are added in
//! the order of the devices, in `float32` if they are of a half type, so that all devices get the same bits.

use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site, at};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops;
use crate::graph::ops::movement::slice::DimSlice;
use crate::graph::ops::movement::views::{concat, transfer_to};
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::BufferType;
use crate::graph::value::{BufferValue, Operand, TensorValue};

/// The buffers by which devices of a collective wait for each other, as MAX declares them.
///
/// Here the copies between devices are ordered by streams, so that collectives take such buffers, check them, and need none.
///
/// ```
/// # use max_core::{driver::DeviceRef, graph::ops::Signals};
/// let signals = Signals::new((0..2).map(DeviceRef::gpu));
/// assert_eq!(signals.input_types()[1].device(), DeviceRef::gpu(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    devices: Vec<DeviceRef>,
}

impl Signals {
    /// The bytes of each buffer.
    pub const NUM_BYTES: i64 = 8;

    /// Of these devices.
    pub fn new(devices: impl IntoIterator<Item = DeviceRef>) -> Signals {
        Signals { devices: devices.into_iter().collect() }
    }

    /// The devices.
    pub fn devices(&self) -> &[DeviceRef] {
        &self.devices
    }

    /// The types of the buffers, to be inputs of a graph: one for each device.
    pub fn input_types(&self) -> Vec<BufferType> {
        self.devices.iter().map(|device| BufferType::new(DType::U8, [Signals::NUM_BYTES], *device)).collect()
    }
}

/// The operands of a collective: tensors of one graph and dtype on different devices.
fn operands<'a, V: Into<Operand>>(
    site: &Site,
    inputs: impl IntoIterator<Item = V>,
    signals: impl IntoIterator<Item = &'a BufferValue>,
) -> Result<Vec<TensorValue>> {
    let inputs: Vec<TensorValue> =
        inputs.into_iter().map(|value| site.tensor("an input", value)).collect::<Result<_>>()?;
    let all: Vec<&TensorValue> = inputs.iter().collect();
    let Some(first) = inputs.first() else { return site.fail(&[], GraphErrorKind::NoOperands) };
    site.one_graph(inputs.iter())?;
    for (i, value) in inputs.iter().enumerate() {
        if value.dtype() != first.dtype() {
            let dtypes = inputs.iter().map(TensorValue::dtype).collect();
            return site.fail(&all, GraphErrorKind::Promotion { dtypes });
        }
        if inputs[..i].iter().any(|other| other.device() == value.device()) {
            return site.argument(&all, "inputs", format!("two on {}", value.device()), "one on each device");
        }
    }
    let signals: Vec<DeviceRef> = signals.into_iter().map(BufferValue::device).collect();
    let devices: Vec<DeviceRef> = inputs.iter().map(TensorValue::device).collect();
    if !signals.is_empty() && signals != devices {
        let [given, expected] = [&signals, &devices].map(|devices| list(devices));
        let expected = format!("none, or buffers on the devices of the inputs: {expected}");
        return site.argument(&all, "signal_buffers", given, expected);
    }
    Ok(inputs)
}

fn list(devices: &[DeviceRef]) -> String {
    devices.iter().map(DeviceRef::to_string).collect::<Vec<_>>().join(", ")
}

/// Checks that all shapes are those of the first.
fn same_shapes(site: &Site, inputs: &[TensorValue]) -> Result<()> {
    match inputs.iter().find(|value| value.shape() != inputs[0].shape()) {
        None => Ok(()),
        Some(other) => {
            let (lhs, rhs) = (Box::new(inputs[0].shape().clone()), Box::new(other.shape().clone()));
            site.fail(&[&inputs[0], other], GraphErrorKind::Broadcast { lhs, rhs })
        }
    }
}

/// The sum of tensors on `device`, in their order.
fn sum_on(device: DeviceRef, terms: &[TensorValue]) -> Result<TensorValue> {
    let dtype = terms[0].dtype();
    let wide = |term: &TensorValue| {
        let term = transfer_to(term, device)?;
        if dtype.is_half() { ops::cast(term, DType::F32) } else { Ok(term) }
    };
    let mut sum = wide(&terms[0])?;
    for term in &terms[1..] {
        sum = ops::add(sum, wide(term)?)?;
    }
    if dtype.is_half() { ops::cast(sum, dtype) } else { Ok(sum) }
}

/// On each device of the inputs, all of them one after the other along an axis.
///
/// `signal_buffers` may be empty: see [`Signals`].
///
/// # Errors
/// When there are no inputs, or two on one device; when `signal_buffers` are on other devices; as [`concat`](crate::graph::ops::concat()).
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let types = [0, 1].map(|id| TensorType::new(DType::F32, (2, "n"), DeviceRef::gpu(id)));
/// let graph = Graph::new("g", types);
/// let whole = ops::allgather(graph.inputs(), [], 0)?;
/// assert_eq!((whole[1].shape().to_string().as_str(), whole[1].device()), ("[4, n]", DeviceRef::gpu(1)));
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn allgather<'a, V: Into<Operand>>(
    inputs: impl IntoIterator<Item = V>,
    signal_buffers: impl IntoIterator<Item = &'a BufferValue>,
    axis: i64,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("allgather");
    let inputs = operands(&site, inputs, signal_buffers)?;
    let gathered = |device| {
        let parts = inputs.iter().map(|value| transfer_to(value, device)).collect::<Result<Vec<_>>>()?;
        concat(parts, axis)
    };
    at(site.location, || inputs.iter().map(|value| gathered(value.device())).collect())
}

/// On each device of the inputs, their sum.
///
/// `signal_buffers` may be empty: see [`Signals`].
///
/// # Errors
/// When there are no inputs, two on one device, or shapes or dtypes differ; when `signal_buffers` are on other devices; as
/// [`add`](crate::graph::ops::add).
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let types = [0, 1].map(|id| TensorType::new(DType::F32, ("n",), DeviceRef::gpu(id)));
/// let graph = Graph::new("g", types);
/// assert_eq!(ops::allreduce(graph.inputs(), [])?.len(), 2);
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn allreduce<'a, V: Into<Operand>>(
    inputs: impl IntoIterator<Item = V>,
    signal_buffers: impl IntoIterator<Item = &'a BufferValue>,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("allreduce");
    let inputs = operands(&site, inputs, signal_buffers)?;
    same_shapes(&site, &inputs)?;
    at(site.location, || inputs.iter().map(|value| sum_on(value.device(), &inputs)).collect())
}

/// On each device of the inputs, one of equal parts of their sum along an axis: the first on the first device, and so on.
///
/// `signal_buffers` may be empty: see [`Signals`].
///
/// # Errors
/// Those of [`allreduce`]; when the axis is out of range, or the number of devices does not divide its dim.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let types = [0, 1].map(|id| TensorType::new(DType::F32, (4, "n"), DeviceRef::gpu(id)));
/// let graph = Graph::new("g", types);
/// assert_eq!(ops::reduce_scatter(graph.inputs(), [], 0)?[1].shape().to_string(), "[2, n]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn reduce_scatter<'a, V: Into<Operand>>(
    inputs: impl IntoIterator<Item = V>,
    signal_buffers: impl IntoIterator<Item = &'a BufferValue>,
    axis: i64,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("reduce_scatter");
    let inputs = operands(&site, inputs, signal_buffers)?;
    same_shapes(&site, &inputs)?;
    let axis = site.axis(&inputs[0], axis)?;
    let (dim, count) = (inputs[0].shape()[axis].clone(), inputs.len() as i64);
    let Some(size) = dim.as_static().filter(|size| size % count == 0).map(|size| size / count) else {
        let what = "the scattered dim";
        let all: Vec<&TensorValue> = inputs.iter().collect();
        let expected = "a multiple of the number of devices";
        return site.fail(&all, GraphErrorKind::DimValue { what, dim, expected });
    };
    let part = |value: &TensorValue, i: i64| {
        let mut indices = vec![DimSlice::from(..); axis];
        indices.push(DimSlice::range(Dim::from(i * size), Dim::from((i + 1) * size)));
        ops::slice_tensor(value, indices)
    };
    let parts = |i: usize| inputs.iter().map(|value| part(value, i as i64)).collect::<Result<Vec<_>>>();
    at(site.location, || inputs.iter().enumerate().map(|(i, value)| sum_on(value.device(), &parts(i)?)).collect())
}

/// The tensor on each of these devices.
///
/// # Errors
/// As [`transfer_to`].
#[track_caller]
pub fn distribute_value(x: impl Into<Operand>, devices: &[DeviceRef]) -> Result<Vec<TensorValue>> {
    let site = Site::new("distribute_value");
    let x = site.tensor("the operand", x)?;
    at(site.location, || devices.iter().map(|device| transfer_to(&x, *device)).collect())
}
