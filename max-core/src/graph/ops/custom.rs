//! Custom ops: any kernel of the kernel library, checked against its signature when it is added.

use smallvec::SmallVec;

use crate::driver::DeviceRef;
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site, type_error};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::parameters::{KernelCall, Parameters};
use crate::graph::signature::{Call, Seen, SignatureError, verify};
use crate::graph::types::Type;
use crate::graph::value::convert::{IntoTypes, IntoValues};
use crate::graph::value::{GraphRef, Value};
use crate::kernel::abi::KernelKind;

/// Adds a kernel by name: `values` in the order of its signature, results of the types `out_types`.
///
/// The shapes of an elementwise kernel's values are broadcast to that of the results. An operand that the kernel may go
/// without (`Option<In<…>>`) is left out of `values`: the last of these, or those that a parameter of their name,
/// `("mask", false)`, says are absent.
///
/// # Errors
/// When the library has no such kernel; when values, results or parameters do not fit its signature; when it changes a
/// value in place ([`inplace_custom`] is for that); when a value is on another device than `device`; when there is no
/// value (then use [`Graph::custom`]); when an output type cannot be.
///
/// ```no_run
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, Parameters, TensorType, ops}};
/// let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
/// let graph = Graph::build("add_ten", [&ty], |_, inputs| {
///     let parameters = [("value", 10)];
///     ops::custom("add_constant", DeviceRef::CPU, inputs, [&ty], parameters)
/// })?;
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn custom(
    name: &str,
    device: DeviceRef,
    values: impl IntoValues,
    out_types: impl IntoTypes,
    parameters: impl Into<Parameters>,
) -> Result<Vec<Value>> {
    custom_at(None, false, name, device, values.into_values(), out_types.into_types(), parameters.into())
}

/// Adds a kernel that changes buffers: those of `values` that are `&mut` in its signature. See [`custom`].
///
/// The op is a side effect: on one device side effects happen in the order in which they were added.
///
/// # Errors
/// As [`custom`].
#[track_caller]
pub fn inplace_custom(
    name: &str,
    device: DeviceRef,
    values: impl IntoValues,
    out_types: impl IntoTypes,
    parameters: impl Into<Parameters>,
) -> Result<Vec<Value>> {
    custom_at(None, true, name, device, values.into_values(), out_types.into_types(), parameters.into())
}

impl Graph {
    /// As [`ops::custom`](custom), for a kernel that may take no values at all.
    ///
    /// # Errors
    /// As [`ops::custom`](custom).
    #[track_caller]
    pub fn custom(
        &self,
        name: &str,
        device: DeviceRef,
        values: impl IntoValues,
        out_types: impl IntoTypes,
        parameters: impl Into<Parameters>,
    ) -> Result<Vec<Value>> {
        custom_at(
            Some(self.reference()),
            false,
            name,
            device,
            values.into_values(),
            out_types.into_types(),
            parameters.into(),
        )
    }
}

#[track_caller]
fn custom_at(
    graph: Option<&GraphRef>,
    in_place: bool,
    name: &str,
    device: DeviceRef,
    mut values: Vec<Value>,
    out_types: Vec<Type>,
    mut parameters: Parameters,
) -> Result<Vec<Value>> {
    let site = Site::new(if in_place { format!("inplace_custom(\"{name}\")") } else { format!("custom(\"{name}\")") });
    if let Some(error) = values.iter().find_map(Value::error) {
        return Err(error.clone());
    }
    let Some(graph) = graph.or_else(|| values.first().map(Value::graph)).cloned() else {
        return site.argument(&[], "values", "empty", "at least one value; without any, use `Graph::custom`");
    };
    let library = graph.lock().kernel_library();
    let kernel = library.get(name);
    if let Ok(kernel) = &kernel {
        site.fill_absent((&graph, device), kernel, &mut values, &out_types, &mut parameters)?;
    }
    let types: Vec<Type> = values.iter().map(Value::ty).collect();
    let fail = |kind| Err(site.error(&graph, types.iter(), kind));
    if let Some(stranger) = values.iter().find(|value| !value.graph().same(&graph)) {
        return fail(GraphErrorKind::OtherGraph { other: stranger.graph().name().clone() });
    }
    for (what, types) in [("an operand", &types), ("a result", &out_types)] {
        if let Some(actual) = types.iter().map(Type::device).find(|actual| *actual != device) {
            return fail(GraphErrorKind::OpDevice { what, actual, device });
        }
    }
    for ty in &out_types {
        if ty.is_buffer() {
            return fail(GraphErrorKind::NotATensor { what: "a result" });
        }
        let unknown = site.known_symbols(&graph, ty.shape()).err();
        if let Some(kind) = type_error(ty).or(unknown) {
            return fail(kind);
        }
    }
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => return fail(SignatureError::Library(error).into()),
    };
    let seen = |types: &[Type]| types.iter().map(Seen::from).collect::<SmallVec<[Seen; 4]>>();
    let call = if in_place { Call::InPlace } else { Call::Custom };
    if let Err(error) = verify(kernel, &seen(&types), &seen(&out_types), &mut parameters, call) {
        return fail(error.into());
    }
    if let (KernelKind::Elementwise, Some(result)) = (kernel.kind, out_types.first()) {
        for value in &mut values {
            broadcast_value(&site, value, result)?;
        }
    }
    let operands: SmallVec<[_; 4]> = values.iter().map(Value::id).collect();
    let call = KernelCall { name: name.to_owned().into(), axis: None, parameters };
    Ok(site.push_values(&graph, Op::Kernel(call), operands, out_types.into(), device, in_place))
}

fn broadcast_value(site: &Site, value: &mut Value, result: &Type) -> Result<()> {
    let Value::Tensor(tensor) = value else {
        return Ok(());
    };
    if !tensor.shape().broadcasts_to(result.shape()) {
        let (from, to) = (Box::new(tensor.shape().clone()), Box::new(result.shape().clone()));
        return site.fail(&[tensor], GraphErrorKind::BroadcastTo { from, to });
    }
    *tensor = site.broadcast(tensor.clone(), result.shape())?;
    Ok(())
}
