//! Custom ops: any kernel of the kernel library, checked against its signature when it is added.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::convert::{IntoTypes, IntoValues};
use crate::graph::error::{GraphErrorKind, list};
use crate::graph::node::{KernelCall, Op, ParamValue, Parameters};
use crate::graph::site::{Result, Site, type_error};
use crate::graph::types::Type;
use crate::graph::value::{GraphRef, Value};
use crate::kernel::KernelError;
use crate::kernel::table::{Access, DTypeRef, KernelDef, KernelKind, OperandDef, ParamDef, ParamKind};

/// A custom op that the kernel library cannot run as written.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CustomOpError {
    /// No kernel has this name, or two have.
    #[error("{0}")]
    Library(KernelError),
    /// The kernel does not fit what it was given.
    #[error("{mismatch}\n  kernel: {kernel}")]
    Mismatch {
        /// The kernel.
        kernel: KernelSignature,
        /// What does not fit.
        mismatch: Mismatch,
    },
}

/// A kernel for messages: its signature as written, and its crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelSignature {
    /// The signature as written.
    pub signature: &'static str,
    /// The crate that the kernel stands in.
    pub krate: &'static str,
}

impl fmt::Display for KernelSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (crate `{}`)", self.signature, self.krate)
    }
}

/// How an op and its kernel disagree.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Another number of values than the kernel takes.
    #[error("the kernel takes {expected} values, got {actual}")]
    Values {
        /// How many it takes.
        expected: usize,
        /// How many it was given.
        actual: usize,
    },
    /// Another number of results than the kernel writes.
    #[error("the kernel writes {expected} results, but `out_types` has {actual}")]
    Results {
        /// How many it writes.
        expected: usize,
        /// How many types were given.
        actual: usize,
    },
    /// The kernel changes a value that may not change.
    #[error("the kernel changes `{operand}` in place; pass a buffer, and add the op with `inplace_custom`")]
    InPlace {
        /// The operand.
        operand: &'static str,
    },
    /// A fixed dtype is another.
    #[error("`{operand}` must be {expected}, got {actual}; cast it with `cast`")]
    DType {
        /// The operand.
        operand: &'static str,
        /// Its dtype in the signature.
        expected: DType,
        /// The dtype given.
        actual: DType,
    },
    /// A generic with two dtypes.
    #[error("`{generic}` is {bound} from `{first}`, but `{operand}` is {actual}; cast one of them with `cast`")]
    Conflict {
        /// The generic.
        generic: &'static str,
        /// The dtype it was bound to.
        bound: DType,
        /// What bound it.
        first: &'static str,
        /// The operand that differs.
        operand: &'static str,
        /// That operand's dtype.
        actual: DType,
    },
    /// A dtype that the kernel was not compiled for.
    #[error("the kernel was not compiled for `{generic}` = {dtype}; it was for {}", list(compiled))]
    Instance {
        /// The generic.
        generic: &'static str,
        /// The dtype asked for.
        dtype: DType,
        /// The dtypes it was compiled for.
        compiled: Vec<DType>,
    },
    /// A generic that nothing binds.
    #[error("nothing says what `{generic}` is; give it as a parameter, a dtype of that name")]
    Unbound {
        /// The generic.
        generic: &'static str,
    },
    /// Another rank than the kernel takes.
    #[error("`{operand}` must have rank {expected}, got {actual}; reshape it with `reshape`")]
    Rank {
        /// The operand.
        operand: &'static str,
        /// Its rank in the signature.
        expected: usize,
        /// The rank given.
        actual: usize,
    },
    /// A parameter without a value.
    #[error("parameter `{name}` is missing")]
    MissingParameter {
        /// Its name.
        name: &'static str,
    },
    /// A parameter that the kernel does not have.
    #[error("the kernel has no parameter `{name}`{}", known_parameters(known))]
    UnknownParameter {
        /// The name given.
        name: String,
        /// The kernel's parameters.
        known: Vec<&'static str>,
    },
    /// A parameter of another kind.
    #[error("parameter `{name}` must be {expected}, got {actual}")]
    ParameterKind {
        /// Its name.
        name: &'static str,
        /// Its kind in the signature.
        expected: &'static str,
        /// The value given.
        actual: ParamValue,
    },
    /// A string that is none of those the kernel knows.
    #[error("parameter `{name}` must be one of {}, got {actual:?}", quoted(choices))]
    ParameterChoice {
        /// Its name.
        name: &'static str,
        /// The strings that the kernel knows.
        choices: Vec<&'static str>,
        /// The string given.
        actual: String,
    },
}

fn known_parameters(names: &[&str]) -> String {
    if names.is_empty() { "; it takes none".to_owned() } else { format!("; it has `{}`", names.join("`, `")) }
}

fn quoted(choices: &[&str]) -> String {
    choices.iter().map(|choice| format!("{choice:?}")).collect::<Vec<_>>().join(", ")
}

/// Adds a kernel by name: `values` in the order of its signature, results of the types `out_types`.
///
/// The shapes of an elementwise kernel's values are broadcast to that of the results.
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
    let types: Vec<Type> = values.iter().map(Value::ty).collect();
    let fail = |kind| Err(site.error(&graph, types.iter(), kind));
    if let Some(stranger) = values.iter().find(|value| !value.graph().same(&graph)) {
        return fail(GraphErrorKind::OtherGraph { other: stranger.graph().name().clone() });
    }
    let mut devices: Vec<DeviceRef> =
        [device].into_iter().chain(types.iter().chain(&out_types).map(Type::device)).collect();
    devices.dedup();
    if devices.len() > 1 {
        return fail(GraphErrorKind::Devices { devices });
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
    let library = graph.lock().kernel_library();
    let kernel = match library.get(name) {
        Ok(kernel) => kernel,
        Err(error) => return fail(CustomOpError::Library(error).into()),
    };
    if let Err(mismatch) = verify(kernel, &types, &out_types, &mut parameters, in_place) {
        let kernel = KernelSignature { signature: kernel.signature.as_str(), krate: kernel.krate.as_str() };
        return fail(CustomOpError::Mismatch { kernel, mismatch }.into());
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

/// Checks an op against its kernel's signature, and gives parameters the kind that the signature names.
fn verify(
    kernel: &KernelDef,
    values: &[Type],
    results: &[Type],
    parameters: &mut Parameters,
    in_place: bool,
) -> std::result::Result<(), Mismatch> {
    let of = |out: bool| move |operand: &&OperandDef| (operand.access == Access::Out) == out;
    let inputs: Vec<&OperandDef> = kernel.operands.as_slice().iter().filter(of(false)).collect();
    let outputs: Vec<&OperandDef> = kernel.operands.as_slice().iter().filter(of(true)).collect();
    if inputs.len() != values.len() {
        return Err(Mismatch::Values { expected: inputs.len(), actual: values.len() });
    }
    if outputs.len() != results.len() {
        return Err(Mismatch::Results { expected: outputs.len(), actual: results.len() });
    }
    let mut bound = bind_dtype_parameters(kernel, parameters)?;
    for (operand, ty) in inputs.into_iter().zip(values).chain(outputs.into_iter().zip(results)) {
        let name = operand.name.as_str();
        if operand.access == Access::InOut && !(in_place && ty.is_buffer()) {
            return Err(Mismatch::InPlace { operand: name });
        }
        bind_dtype(kernel, operand.dtype, name, ty.dtype(), &mut bound)?;
        if let Ok(expected) = usize::try_from(operand.rank)
            && expected != ty.shape().rank()
        {
            return Err(Mismatch::Rank { operand: name, expected, actual: ty.shape().rank() });
        }
    }
    for (generic, binding) in kernel.generics.as_slice().iter().zip(&bound) {
        let (name, codes) = (generic.name.as_str(), generic.dtypes.as_slice());
        let Some((dtype, _)) = *binding else {
            return Err(Mismatch::Unbound { generic: name });
        };
        if !codes.contains(&dtype.code()) {
            let compiled = codes.iter().filter_map(|code| DType::from_code(*code)).collect();
            return Err(Mismatch::Instance { generic: name, dtype, compiled });
        }
    }
    verify_parameters(kernel, parameters)
}

/// The dtype of each generic, and what bound it.
type Bound = SmallVec<[Option<(DType, &'static str)>; 2]>;

fn bind_dtype_parameters(kernel: &KernelDef, parameters: &Parameters) -> std::result::Result<Bound, Mismatch> {
    let mut bound: Bound = smallvec![];
    for generic in kernel.generics.as_slice() {
        let name = generic.name.as_str();
        bound.push(match parameters.get(name) {
            None => None,
            Some(ParamValue::DType(dtype)) => Some((*dtype, "the parameter")),
            Some(other) => {
                return Err(Mismatch::ParameterKind { name, expected: "a dtype", actual: other.clone() });
            }
        });
    }
    Ok(bound)
}

fn bind_dtype(
    kernel: &KernelDef,
    expected: DTypeRef,
    operand: &'static str,
    actual: DType,
    bound: &mut Bound,
) -> std::result::Result<(), Mismatch> {
    let Ok(index) = usize::try_from(expected.generic) else {
        return match DType::from_code(expected.fixed) {
            Some(expected) if expected != actual => Err(Mismatch::DType { operand, expected, actual }),
            _ => Ok(()),
        };
    };
    match bound.get_mut(index) {
        Some(Some((dtype, first))) if *dtype != actual => {
            let generic = kernel.generics.as_slice()[index].name.as_str();
            Err(Mismatch::Conflict { generic, bound: *dtype, first, operand, actual })
        }
        Some(slot @ None) => {
            *slot = Some((actual, operand));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn verify_parameters(kernel: &KernelDef, parameters: &mut Parameters) -> std::result::Result<(), Mismatch> {
    let known = kernel.params.as_slice();
    let generics = kernel.generics.as_slice();
    let is_known =
        |name: &str| known.iter().any(|p| p.name.as_str() == name) || generics.iter().any(|g| g.name.as_str() == name);
    if let Some((name, _)) = parameters.iter().find(|(name, _)| !is_known(name)) {
        let known = known.iter().map(|param| param.name.as_str()).collect();
        return Err(Mismatch::UnknownParameter { name: name.to_owned(), known });
    }
    for param in known {
        let name = param.name.as_str();
        match parameters.get(name).cloned() {
            None if param.has_default => {}
            None => return Err(Mismatch::MissingParameter { name }),
            Some(value) => *parameters = std::mem::take(parameters).with(name, verify_parameter(param, value)?),
        }
    }
    Ok(())
}

fn verify_parameter(param: &ParamDef, value: ParamValue) -> std::result::Result<ParamValue, Mismatch> {
    let name = param.name.as_str();
    let choices = param.choices.as_slice();
    let expected = match (param.kind, &value) {
        (ParamKind::Int, ParamValue::Int(_))
        | (ParamKind::Bool, ParamValue::Bool(_))
        | (ParamKind::Float, ParamValue::Float(_)) => return Ok(value),
        (ParamKind::Float, ParamValue::Int(value)) => return Ok(ParamValue::Float(*value as f64)),
        (ParamKind::String, ParamValue::String(text)) => {
            if choices.is_empty() || choices.iter().any(|choice| choice.as_str() == &**text) {
                return Ok(value);
            }
            let choices = choices.iter().map(|choice| choice.as_str()).collect();
            return Err(Mismatch::ParameterChoice { name, choices, actual: text.to_string() });
        }
        (ParamKind::Int, _) => "an integer",
        (ParamKind::Bool, _) => "a bool",
        (ParamKind::String, _) => "a string",
        (ParamKind::Float, _) => "a float",
    };
    Err(Mismatch::ParameterKind { name, expected, actual: value })
}
