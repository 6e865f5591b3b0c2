//! Which form of a kernel a command is about: the dtypes of its generics and the values of its parameters.

use std::str::FromStr;

use max::dtype::DType;
use max::graph::ParamValue;
use max::kernel::abi::{GenericDef, KernelDef, OperandDef, ParamBits, ParamDef, ParamKind, hash_str};

use crate::error::CliError;

/// `NAME=VALUE` on the command line.
#[derive(Clone, Debug)]
pub struct Assignment<T> {
    /// What is named.
    pub name: String,
    /// What it is to be.
    pub value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Assignment<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else { return Err("expected NAME=VALUE".to_owned()) };
        let value = value.trim().parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Assignment { name: name.trim().to_owned(), value })
    }
}

/// The options that choose a form of a kernel.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct VariantArgs {
    /// The dtype of every generic of the kernel that can be it, such as `bf16` [default: f32 where possible]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<DType>,
    /// The dtypes of generics by name: `T=f32,U=i32`
    #[arg(long, value_name = "NAME=DTYPE", value_delimiter = ',')]
    pub dtypes: Vec<Assignment<DType>>,
    /// The value of a parameter; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub params: Vec<Assignment<String>>,
}

/// A form of a kernel.
pub struct Variant {
    /// The dtype of each generic.
    pub dtypes: Vec<DType>,
    /// The value of each parameter that was given, in the order of the definition.
    pub params: Vec<Option<ParamValue>>,
}

impl VariantArgs {
    /// Finds the form that these options choose.
    ///
    /// # Errors
    /// When the kernel does not have such a generic or parameter, or not with such a dtype or value.
    pub fn choose(&self, def: &'static KernelDef) -> Result<Variant, CliError> {
        let (generics, definitions) = (def.generics.as_slice(), def.params.as_slice());
        let mut dtypes: Vec<Option<DType>> = vec![None; generics.len()];
        let mut params = vec![None; definitions.len()];
        for Assignment { name, value } in &self.dtypes {
            set_dtype(def, &mut dtypes, name, *value)?;
        }
        for Assignment { name, value } in &self.params {
            if let Some(i) = definitions.iter().position(|param| param.name.as_str() == name) {
                params[i] = Some(parse_param(def, &definitions[i], value)?);
            } else if let (Some(_), Ok(dtype)) = (position(def, name), value.parse()) {
                // A dtype parameter is the generic of that name.
                set_dtype(def, &mut dtypes, name, dtype)?;
            } else {
                let known = definitions.iter().map(|param| param.name.as_str()).collect();
                let (kernel, signature) = (def.name.as_str(), def.signature.as_str());
                return Err(CliError::UnknownParam { kernel, name: name.clone(), known, signature });
            }
        }
        if let Some(dtype) = self.dtype {
            let fixed = |operand: &OperandDef| operand.dtype.generic < 0 && operand.dtype.fixed == dtype.code();
            match generics.first() {
                None if !def.operands.as_slice().iter().any(fixed) => {
                    let (kernel, signature) = (def.name.as_str(), def.signature.as_str());
                    return Err(CliError::FixedDType { kernel, dtype, signature });
                }
                Some(first) if generics.iter().all(|generic| generic.code(dtype).is_none()) => {
                    return Err(dtype_error(def, first, dtype));
                }
                _ => {}
            }
        }
        let dtypes = generics.iter().zip(dtypes).map(|(generic, given)| {
            given
                .or(self.dtype.filter(|dtype| generic.code(*dtype).is_some()))
                .unwrap_or_else(|| default_dtype(generic))
        });
        Ok(Variant { dtypes: dtypes.collect(), params })
    }
}

impl Variant {
    /// The dtypes by which the kernel is recorded: those it was compiled for. A kernel that only moves elements was
    /// compiled for their sizes.
    pub fn recorded_dtypes(&self, def: &KernelDef) -> Vec<DType> {
        let recorded =
            |(generic, dtype): (&GenericDef, &DType)| generic.code(*dtype).and_then(DType::from_code).unwrap_or(*dtype);
        def.generics.as_slice().iter().zip(&self.dtypes).map(recorded).collect()
    }

    /// The bits of all parameters, or `None`, which leaves them open, if none was given.
    ///
    /// # Errors
    /// When some were given, but one is missing that has no default.
    pub fn param_bits(&self, def: &'static KernelDef) -> Result<Option<Vec<ParamBits>>, CliError> {
        if self.params.iter().all(Option::is_none) {
            return Ok(None);
        }
        let bits = def.params.as_slice().iter().zip(&self.params).map(|(param, given)| match given {
            Some(ParamValue::Int(v)) => Ok(*v as u64),
            Some(ParamValue::Bool(v)) => Ok(u64::from(*v)),
            Some(ParamValue::Float(v)) => Ok(v.to_bits()),
            Some(ParamValue::String(v)) => Ok(hash_str(v)),
            _ if param.has_default => Ok(param.default),
            _ => Err(missing(def, param)),
        });
        bits.collect::<Result<_, _>>().map(Some)
    }
}

/// `f32-i64`, or nothing for a kernel without generics.
pub fn dtype_names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.short_name()).collect::<Vec<_>>().join("-")
}

/// The kernel and its dtypes for messages: `` kernel `cast` (T = f32, U = bf16) ``.
pub fn describe(def: &KernelDef, dtypes: &[DType]) -> String {
    let bound = def.generics.as_slice().iter().zip(dtypes);
    let bound: Vec<String> = bound.map(|(g, dtype)| format!("{} = {}", g.name.as_str(), dtype.short_name())).collect();
    let bound = if bound.is_empty() { String::new() } else { format!(" ({})", bound.join(", ")) };
    format!("kernel `{}`{bound}", def.name.as_str())
}

/// The dtypes of a generic.
pub fn generic_dtypes(generic: &GenericDef) -> impl Iterator<Item = DType> {
    generic.dtypes.as_slice().iter().filter_map(|code| DType::from_code(*code))
}

/// All combinations of dtypes that the kernel was compiled for.
pub fn combinations(def: &KernelDef) -> Vec<Vec<DType>> {
    let mut all = vec![Vec::new()];
    for generic in def.generics.as_slice() {
        let longer = |start: &Vec<DType>| {
            let start = start.clone();
            generic_dtypes(generic).map(move |dtype| start.iter().copied().chain([dtype]).collect())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// The error for a parameter that has neither a value nor a default.
pub fn missing(def: &'static KernelDef, param: &ParamDef) -> CliError {
    let (kernel, signature) = (def.name.as_str(), def.signature.as_str());
    CliError::MissingParam { kernel, name: param.name.as_str(), signature }
}

/// What a parameter may be, for tables and messages.
pub fn param_kind(param: &ParamDef) -> String {
    let choices = param.choices.as_slice();
    match param.kind {
        ParamKind::Int => "int".to_owned(),
        ParamKind::Bool => "bool".to_owned(),
        ParamKind::Float => "float".to_owned(),
        ParamKind::String if choices.is_empty() => "string".to_owned(),
        ParamKind::String => choices.iter().map(|c| format!("{:?}", c.as_str())).collect::<Vec<_>>().join(" or "),
    }
}

fn default_dtype(generic: &GenericDef) -> DType {
    let preferred = [DType::F32, DType::I64, DType::I32].into_iter().find(|dtype| generic.code(*dtype).is_some());
    preferred.or_else(|| generic_dtypes(generic).next()).unwrap_or(DType::F32)
}

fn position(def: &KernelDef, generic: &str) -> Option<usize> {
    def.generics.as_slice().iter().position(|g| g.name.as_str() == generic)
}

fn set_dtype(def: &'static KernelDef, dtypes: &mut [Option<DType>], name: &str, dtype: DType) -> Result<(), CliError> {
    let Some(i) = position(def, name) else {
        let (kernel, signature) = (def.name.as_str(), def.signature.as_str());
        return Err(CliError::Generic { kernel, generic: name.to_owned(), signature });
    };
    let generic = &def.generics.as_slice()[i];
    if generic.code(dtype).is_none() {
        return Err(dtype_error(def, generic, dtype));
    }
    dtypes[i] = Some(dtype);
    Ok(())
}

fn dtype_error(def: &'static KernelDef, generic: &GenericDef, dtype: DType) -> CliError {
    CliError::DType {
        kernel: def.name.as_str(),
        generic: generic.name.as_str(),
        dtype,
        known: generic_dtypes(generic).collect(),
        signature: def.signature.as_str(),
    }
}

fn parse_param(def: &'static KernelDef, param: &ParamDef, value: &str) -> Result<ParamValue, CliError> {
    let choices = param.choices.as_slice();
    let mut expected = param_kind(param);
    let mut holds = |range_without: Option<String>| range_without.map(|range| expected = range).is_none();
    let parsed = match param.kind {
        ParamKind::Int => value.parse().ok().filter(|v| holds(param.int_range_without(*v))).map(ParamValue::Int),
        ParamKind::Bool => value.parse().ok().map(ParamValue::Bool),
        ParamKind::Float => value.parse().ok().filter(|v| holds(param.float_range_without(*v))).map(ParamValue::Float),
        ParamKind::String if !choices.is_empty() && choices.iter().all(|choice| choice.as_str() != value) => None,
        ParamKind::String => Some(ParamValue::String(value.into())),
    };
    parsed.ok_or_else(|| CliError::ParamValue {
        kernel: def.name.as_str(),
        name: param.name.as_str(),
        value: value.to_owned(),
        expected,
        signature: def.signature.as_str(),
    })
}
