//! State dicts: the tensors of a module by name, and loading them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use max_core::driver;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{SafetensorWeights, WeightsError, WeightsRegistry, save_safetensors};
use max_core::graph::{Dim, GraphError, Shape, TensorType};

use super::{Member, MemberMut, Module, walk, walk_mut};
use crate::Result;
use crate::tensor::{Tensor, device};

/// Tensors by name, in the order of a module's fields.
#[derive(Clone, Default)]
pub struct StateDict(Vec<(String, Tensor)>);

impl StateDict {
    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor)
    }

    /// How many tensors it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the tensors as a safetensors file, which takes the place of one that is there once all of it is written. What has no
    /// value is computed first.
    ///
    /// # Errors
    /// When a tensor cannot be computed, or is a value of a graph; when its dtype is none of the format's; when the file cannot be
    /// written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let values = self.iter().map(|(name, tensor)| Ok((name, tensor.driver_tensor()?)));
        let values = values.collect::<Result<Vec<_>>>()?;
        Ok(save_safetensors(path, values.iter().map(|(name, value)| (*name, value)), &BTreeMap::new())?)
    }

    /// The tensors of a safetensors file, whose memory is mapped.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
        let file = SafetensorWeights::open([path])?;
        let tensors = file.weight_names().into_iter().map(|name| {
            let tensor = file.tensor(&name)?;
            Ok((name, tensor.into()))
        });
        Ok(StateDict(tensors.collect::<Result<_>>()?))
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl From<Vec<(String, Tensor)>> for StateDict {
    fn from(tensors: Vec<(String, Tensor)>) -> StateDict {
        StateDict(tensors)
    }
}

impl<const N: usize> From<[(&str, Tensor); N]> for StateDict {
    fn from(tensors: [(&str, Tensor); N]) -> StateDict {
        StateDict(tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect())
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl WeightsRegistry for StateDict {
    fn weight(&self, name: &str) -> Result<Option<driver::Tensor>, WeightsError> {
        // A tensor without a value is not there, which is said with its name.
        Ok(self.get(name).and_then(|tensor| tensor.driver_tensor().ok()))
    }

    fn weight_names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// Which names a state dict must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// All of the module's, and no other.
    #[default]
    Strict,
    /// Whatever it has: other names are left as they are, and reported.
    Lenient,
}

/// The names that a state dict and a module do not share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadReport {
    /// Those of the module that the state dict does not have.
    pub missing: Vec<String>,
    /// Those of the state dict that the module does not have.
    pub unexpected: Vec<String>,
}

/// Why a state dict was not loaded: everything that differs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadError {
    /// The module's type.
    pub module: &'static str,
    /// Names without a tensor, and tensors without a name; empty for [`Mode::Lenient`].
    pub names: LoadReport,
    /// Tensors of another dtype or shape: the name, what is wanted, and what is there.
    pub mismatched: Vec<(String, TensorType, TensorType)>,
    /// Tensors that could not be read, with the reason.
    pub unreadable: Vec<(String, String)>,
}

impl LoadError {
    fn is_empty(&self) -> bool {
        self.names == LoadReport::default() && self.mismatched.is_empty() && self.unreadable.is_empty()
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the state dict does not fit `{}`, which was left as it is:", self.module)?;
        for name in &self.names.missing {
            write!(f, "\n  missing: {name}")?;
        }
        for name in &self.names.unexpected {
            write!(f, "\n  unexpected: {name}")?;
        }
        for (name, expected, actual) in &self.mismatched {
            write!(f, "\n  {name}: {}{} is wanted, ", expected.dtype, expected.shape)?;
            write!(f, "{}{} is there", actual.dtype, actual.shape)?;
        }
        for (name, reason) in &self.unreadable {
            write!(f, "\n  {name}: {reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// See [`ModuleExt::load_state_dict`](super::ModuleExt::load_state_dict).
#[track_caller]
pub(super) fn load(module: &mut dyn Module, state: &dyn WeightsRegistry, mode: Mode) -> Result<LoadReport> {
    let mut names = LoadReport::default();
    let mut error = LoadError { module: module.type_name(), ..LoadError::default() };
    let mut known = Vec::new();
    let mut loaded: Vec<Option<Tensor>> = Vec::new();
    let (mut encodings, mut orders) = (BTreeMap::new(), BTreeMap::new());
    walk(module, "", &mut |name, member| match member {
        Member::Encoding(encoding) => drop(encodings.insert(name.to_owned(), encoding)),
        Member::InputOrder(order) => drop(orders.insert(name.to_owned(), order.cloned())),
        _ => {}
    });
    walk(module, "", &mut |name, member| {
        let (Member::Parameter(tensor) | Member::Buffer(tensor)) = member else { return };
        known.push(name.to_owned());
        let mut next = None;
        if let Some(encoding) = beside(name, "quantization_encoding").and_then(|beside| encodings.get_mut(&beside)) {
            let order = beside(name, "input_order").and_then(|beside| orders.get_mut(&beside));
            let found = blocks(tensor, *encoding, state.quantized(name)).and_then(|found| match found {
                Some(found) => Ok(Some((found, ordered(tensor, order.is_some(), state.input_order(name))?))),
                None => Ok(None),
            });
            match found {
                Ok(None) => {}
                Ok(Some(((blocks, its), next))) => {
                    *encoding = Some(its);
                    if let Some(order) = order {
                        *order = next;
                    }
                    return loaded.push(Some(blocks));
                }
                Err(reason) => {
                    error.unreadable.push((name.to_owned(), reason));
                    return loaded.push(None);
                }
            }
        }
        match state.weight(name) {
            Ok(None) => names.missing.push(name.to_owned()),
            Err(reason) => error.unreadable.push((name.to_owned(), reason.to_string())),
            Ok(Some(value)) => {
                let expected = tensor.ty();
                let actual = TensorType::new(value.dtype(), value.shape(), expected.device);
                if actual != *expected {
                    error.mismatched.push((name.to_owned(), expected.clone(), actual));
                } else {
                    let moved = device(expected.device).and_then(|device| Ok(value.to(&device)?));
                    match moved {
                        Ok(value) => next = Some(value.into()),
                        Err(reason) => error.unreadable.push((name.to_owned(), reason.to_string())),
                    }
                }
            }
        }
        loaded.push(next);
    });
    names.unexpected = state.weight_names().into_iter().filter(|name| !known.contains(name)).collect();
    names.unexpected.sort_unstable();
    if mode == Mode::Strict {
        error.names = names.clone();
    }
    if !error.is_empty() {
        return Err(GraphError::value("load_state_dict", Arc::new(error)));
    }
    let mut loaded = loaded.into_iter();
    walk_mut(module, "", &mut |name, member| match member {
        MemberMut::Parameter(tensor) | MemberMut::Buffer(tensor) => {
            if let Some(Some(next)) = loaded.next() {
                *tensor = next;
            }
        }
        MemberMut::Encoding(encoding) => *encoding = encodings.get(name).copied().flatten(),
        MemberMut::InputOrder(order) => order.0 = orders.get(name).cloned().flatten(),
        MemberMut::Module(_) => {}
    });
    Ok(names)
}

/// The name of what says more of a weight's blocks.
fn beside(name: &str, field: &str) -> Option<String> {
    let module = name.strip_suffix("weight").filter(|module| module.is_empty() || module.ends_with('.'))?;
    Some(format!("{module}{field}"))
}

/// The order in which the blocks of a weight take an input, on the device of a tensor whose elements they are, or why it is none.
fn ordered(
    tensor: &Tensor,
    has_place: bool,
    found: Result<Option<driver::Tensor>, WeightsError>,
) -> Result<Option<Tensor>, String> {
    let Some(order) = found.map_err(|reason| reason.to_string())? else { return Ok(None) };
    if !has_place {
        return Err("its blocks take their input in another order, which this layer does not".into());
    }
    device(tensor.device()).and_then(|device| Ok(Some(order.to(&device)?.into()))).map_err(|reason| reason.to_string())
}

/// The blocks of a quantized weight on the device of a tensor whose elements they are, or why they are not.
fn blocks(
    tensor: &Tensor,
    encoding: Option<QuantizationEncoding>,
    found: Result<Option<(driver::Tensor, QuantizationEncoding)>, WeightsError>,
) -> Result<Option<(Tensor, QuantizationEncoding)>, String> {
    let Some((value, its)) = found.map_err(|reason| reason.to_string())? else { return Ok(None) };
    let sizes = |shape: &Shape| shape.iter().map(Dim::as_static).collect::<Option<Vec<i64>>>();
    let elements = |mut sizes: Vec<i64>, encoding: QuantizationEncoding| {
        let last = sizes.last_mut()?;
        *last = *last / encoding.block_size() as i64 * encoding.elements_per_block() as i64;
        Some(sizes)
    };
    let own = sizes(tensor.shape());
    let wanted = own.and_then(|own| encoding.map_or(Some(own.clone()), |encoding| elements(own, encoding)));
    let there = elements(value.shape().iter().map(|size| *size as i64).collect(), its);
    if wanted.is_none() || wanted != there {
        let shape = |sizes: Option<Vec<i64>>| format!("{:?}", sizes.unwrap_or_default());
        return Err(format!("{} elements are wanted, {its} blocks of {} are there", shape(wanted), shape(there)));
    }
    let moved = device(tensor.device()).and_then(|device| Ok(value.to(&device)?));
    moved.map(|value| Some((value.into(), its))).map_err(|reason| reason.to_string())
}
