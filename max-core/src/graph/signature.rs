//! An op against its kernel's signature: values, results, dtypes, ranks and parameters.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use super::parameters::{ParamValue, Parameters};
use super::types::{TensorType, Type, list};
use crate::dtype::DType;
use crate::kernel::KernelError;
use crate::kernel::abi::{Access, DTypeRef, KernelDef, OperandDef, ParamDef, ParamKind};

/// An op that the kernel library cannot run as written.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
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
#[derive(Clone, PartialEq, thiserror::Error)]
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
    /// An op in place whose kernel changes nothing.
    #[error("the kernel changes none of its operands in place; add the op with `custom`")]
    NothingInPlace,
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
    #[error("the kernel was not compiled for `{generic}` = {dtype}; it was for {}; cast with `cast`", list(compiled))]
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
    /// A parameter given twice.
    #[error("parameter `{name}` is given twice")]
    RepeatedParameter {
        /// The name given.
        name: String,
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
    /// A number that the parameter's dtype does not have.
    #[error("parameter `{name}` is {dtype}, from {range}, got {actual}")]
    ParameterRange {
        /// Its name.
        name: &'static str,
        /// Its dtype in the signature.
        dtype: DType,
        /// The numbers of that dtype.
        range: String,
        /// The number given.
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

/// What a kernel sees of a value.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    dtype: DType,
    rank: usize,
    is_buffer: bool,
}

impl Seen {
    pub(super) fn tensor(ty: &TensorType) -> Self {
        Seen { dtype: ty.dtype, rank: ty.rank(), is_buffer: false }
    }
}

impl From<&Type> for Seen {
    fn from(ty: &Type) -> Self {
        Seen { is_buffer: ty.is_buffer(), ..Seen::tensor(ty.as_tensor()) }
    }
}

/// How an op calls its kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A built-in op: the compiler brings the operands into the kernel's rank.
    BuiltIn,
    /// A custom op.
    Custom,
    /// A custom op that may change buffers.
    InPlace,
}

/// Checks an op against its kernel's signature, and gives parameters the kind that the signature names.
pub(super) fn verify(
    kernel: &KernelDef,
    values: &[Seen],
    results: &[Seen],
    parameters: &mut Parameters,
    call: Call,
) -> std::result::Result<(), SignatureError> {
    verify_operands(kernel, values, results, parameters, call)
        .and_then(|()| verify_parameters(kernel, parameters))
        .map_err(|mismatch| {
            let kernel = KernelSignature { signature: kernel.signature.as_str(), krate: kernel.krate.as_str() };
            SignatureError::Mismatch { kernel, mismatch }
        })
}

fn verify_operands(
    kernel: &KernelDef,
    values: &[Seen],
    results: &[Seen],
    parameters: &Parameters,
    call: Call,
) -> std::result::Result<(), Mismatch> {
    let operands = kernel.operands.as_slice();
    let is_result = |operand: &OperandDef| operand.access == Access::Out;
    let outputs = operands.iter().filter(|operand| is_result(operand)).count();
    let inputs = operands.len() - outputs;
    if inputs != values.len() {
        return Err(Mismatch::Values { expected: inputs, actual: values.len() });
    }
    if outputs != results.len() {
        return Err(Mismatch::Results { expected: outputs, actual: results.len() });
    }
    if call == Call::InPlace && operands.iter().all(|operand| operand.access != Access::InOut) {
        return Err(Mismatch::NothingInPlace);
    }
    let mut bound = bind_dtype_parameters(kernel, parameters)?;
    // Values first: where a result disagrees, the message should blame the result.
    let inputs = operands.iter().filter(|operand| !is_result(operand)).zip(values);
    let outputs = operands.iter().filter(|operand| is_result(operand)).zip(results);
    for (operand, seen) in inputs.chain(outputs) {
        let name = operand.name.as_str();
        if operand.access == Access::InOut && !(call == Call::InPlace && seen.is_buffer) {
            return Err(Mismatch::InPlace { operand: name });
        }
        bind_dtype(kernel, operand.dtype, name, seen.dtype, &mut bound)?;
        if let Ok(expected) = usize::try_from(operand.rank)
            && call != Call::BuiltIn
            && expected != seen.rank
        {
            return Err(Mismatch::Rank { operand: name, expected, actual: seen.rank });
        }
    }
    for (generic, binding) in kernel.generics.as_slice().iter().zip(&bound) {
        let (name, codes) = (generic.name.as_str(), generic.dtypes.as_slice());
        let Some((dtype, _)) = *binding else {
            return Err(Mismatch::Unbound { generic: name });
        };
        if generic.code(dtype).is_none() {
            let compiled = codes.iter().filter_map(|code| DType::from_code(*code)).collect();
            return Err(Mismatch::Instance { generic: name, dtype, compiled });
        }
    }
    Ok(())
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
    if let Some(name) = parameters.repeated() {
        return Err(Mismatch::RepeatedParameter { name: name.to_owned() });
    }
    if let Some((name, _)) = parameters.iter().find(|(name, _)| !is_known(name)) {
        let known = known.iter().map(|param| param.name.as_str()).collect();
        return Err(Mismatch::UnknownParameter { name: name.to_owned(), known });
    }
    for param in known {
        let name = param.name.as_str();
        let is_given = || kernel.operands.as_slice().iter().any(|operand| operand.name.as_str() == name);
        match parameters.get(name).cloned() {
            // An operand that may be absent, and that has a value.
            None if is_given() => parameters.set(name.into(), ParamValue::Bool(true)),
            None if param.has_default => {}
            None => return Err(Mismatch::MissingParameter { name }),
            Some(value) => parameters.set(name.into(), verify_parameter(param, value)?),
        }
    }
    Ok(())
}

fn verify_parameter(param: &ParamDef, value: ParamValue) -> std::result::Result<ParamValue, Mismatch> {
    let name = param.name.as_str();
    let choices = param.choices.as_slice();
    let range = match (param.kind, &value) {
        (ParamKind::Int, ParamValue::Int(value)) => param.int_range_without(*value),
        (ParamKind::Float, ParamValue::Float(value)) => param.float_range_without(*value),
        _ => None,
    };
    if let (Some(range), Some(dtype)) = (range, DType::from_code(param.dtype)) {
        return Err(Mismatch::ParameterRange { name, dtype, range, actual: value });
    }
    let expected = match (param.kind, &value) {
        (ParamKind::Int, ParamValue::Int(_) | ParamValue::Dim(_))
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
