//! [`KernelCall`]: a kernel by name, with the values of its [`Parameters`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::symbolic::dim::Dim;
use crate::dtype::DType;

/// A kernel by name, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The name in the kernel library.
    pub name: Cow<'static, str>,
    /// The axis that a row kernel works along. Operands that the kernel declares with rank 2 are presented to it as
    /// `[all other axes, this axis]`, those of another declared rank as they are.
    pub axis: Option<usize>,
    /// The parameters.
    pub parameters: Parameters,
}

/// The value of one kernel parameter.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ParamValue {
    /// An integer.
    Int(i64),
    /// An integer that is computed from sizes at each execution.
    Dim(Dim),
    /// A truth value.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
    /// A string.
    String(Arc<str>),
    /// A dtype, bound to the kernel's generic of that name.
    DType(DType),
}

impl ParamValue {
    /// The kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            ParamValue::Int(_) => "an integer",
            ParamValue::Dim(_) => "a dim",
            ParamValue::Bool(_) => "a bool",
            ParamValue::Float(_) => "a float",
            ParamValue::String(_) => "a string",
            ParamValue::DType(_) => "a dtype",
        }
    }
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamValue::Int(value) => value.fmt(f),
            ParamValue::Dim(value) => value.fmt(f),
            ParamValue::Bool(value) => value.fmt(f),
            ParamValue::Float(value) => write!(f, "{value:?}"),
            ParamValue::String(value) => write!(f, "{value:?}"),
            ParamValue::DType(value) => value.fmt(f),
        }
    }
}

macro_rules! param_value {
    ($($ty:ty => $variant:ident: $value:ident, $convert:expr;)*) => {$(
        impl From<$ty> for ParamValue {
            fn from($value: $ty) -> Self {
                ParamValue::$variant($convert)
            }
        }
    )*};
}
param_value! {
    i64 => Int: value, value;
    i32 => Int: value, value.into();
    u32 => Int: value, value.into();
    usize => Int: value, i64::try_from(value).unwrap_or(i64::MAX);
    bool => Bool: value, value;
    f64 => Float: value, value;
    f32 => Float: value, value.into();
    &str => String: value, value.into();
    String => String: value, value.into();
    DType => DType: value, value;
}

impl From<Dim> for ParamValue {
    /// An integer, if the dim is one.
    fn from(dim: Dim) -> Self {
        dim.as_static().map_or(ParamValue::Dim(dim), ParamValue::Int)
    }
}

impl From<&Dim> for ParamValue {
    fn from(dim: &Dim) -> Self {
        dim.clone().into()
    }
}

/// The parameters of a kernel, by name.
///
/// ```
/// use max_core::graph::Parameters;
///
/// let one = Parameters::from([("value", 10)]);
/// let several = Parameters::new().with("axis", 1).with("mode", "tanh").with("exclusive", true);
/// assert_eq!(several.to_string(), r#"axis = 1, exclusive = true, mode = "tanh""#);
/// # assert_eq!(one.len(), 1);
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Parameters {
    /// Sorted by name.
    values: Vec<(Cow<'static, str>, ParamValue)>,
    /// A name that was given a second time.
    repeated: Option<Cow<'static, str>>,
}

impl Parameters {
    /// No parameters.
    pub fn new() -> Self {
        Parameters::default()
    }

    /// These parameters and one more. A name given twice is an error of the op that they are given to.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<ParamValue>) -> Self {
        let name = name.into();
        if self.get(&name).is_some() {
            self.repeated = Some(name.clone());
        }
        self.set(name, value.into());
        self
    }

    /// Sets the value of a parameter, whether it has one or not.
    pub(super) fn set(&mut self, name: Cow<'static, str>, value: ParamValue) {
        match self.values.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(i) => self.values[i].1 = value,
            Err(i) => self.values.insert(i, (name, value)),
        }
    }

    /// A name that was given twice.
    pub(super) fn repeated(&self) -> Option<&str> {
        self.repeated.as_deref()
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&ParamValue> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ParamValue)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name} = {value}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl From<()> for Parameters {
    /// No parameters.
    fn from((): ()) -> Self {
        Parameters::new()
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<ParamValue>> FromIterator<(N, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(items: I) -> Self {
        items.into_iter().fold(Parameters::new(), |all, (name, value)| all.with(name, value))
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<ParamValue>, const LEN: usize> From<[(N, V); LEN]> for Parameters {
    fn from(items: [(N, V); LEN]) -> Self {
        items.into_iter().collect()
    }
}
