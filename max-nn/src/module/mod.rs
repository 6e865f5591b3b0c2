//! [`Module`]: a component of a model, whose tensors and parts have names.

mod activations;
mod compile;
mod hooks;
mod print;
mod state;
mod subgraph;

pub use activations::{Difference, compare_activations, record_activations};
pub use compile::{Forward, compile};
pub(crate) use hooks::run as run_hooks;
pub use hooks::{add_layer_hook, clear_hooks, with_layer_hook};
pub use print::Tree;
pub use state::{LoadError, LoadReport, Mode, StateDict};

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{SafetensorWeights, WeightsRegistry};
use max_core::graph::{Graph, IntoTypes};
use std::path::Path;

use crate::Result;
use crate::tensor::{Tensor, Tensors};

/// A component of a model: parameters, buffers and other modules, by the names of its fields, as in PyTorch.
///
/// Derive it. A field that is a [`Tensor`] is a parameter, or a buffer with `#[module(buffer)]`; a field that is a module is a
/// part; `Option`s, `Vec`s and boxes of them are what is in them, the items of a `Vec` named by their numbers; plain numbers,
/// strings, dtypes and devices are printed. `#[module(skip)]` leaves a field out, `#[module(name = "..")]` renames one.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::{Result, functional as F, tensor::Tensor};
/// use max::nn::{Forward, Linear, Module, ModuleExt};
///
/// #[derive(Module)]
/// struct FeedForward {
///     up: Linear,
///     down: Linear,
///     scale: f64,
/// }
///
/// impl Forward for FeedForward {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         Ok(self.down.forward(&F::silu(self.up.forward(x)?)?)? * self.scale)
///     }
/// }
///
/// let layer = FeedForward { up: Linear::new(2, 4)?, down: Linear::new(4, 2)?.without_bias(), scale: 0.5 };
/// let names: Vec<String> = layer.state_dict().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["up.weight", "up.bias", "down.weight"]);
/// assert_eq!(layer.num_parameters(), 2 * 4 + 4 + 4 * 2);
/// # Ok::<(), max::Error>(())
/// ```
pub trait Module: Send + Sync {
    /// The name of its type.
    fn type_name(&self) -> &'static str;

    /// Calls `f` with the name and the value of each field.
    fn visit(&self, f: &mut dyn FnMut(&str, Member<'_>));

    /// Calls `f` with the name of each field that holds tensors, to be changed.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, MemberMut<'_>));
}

/// What a field of a module is.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Member<'a> {
    /// A tensor that training changes.
    Parameter(&'a Tensor),
    /// A tensor that belongs to the module's state, but is not trained.
    Buffer(&'a Tensor),
    /// How the blocks of the module's `weight` are quantized, if they are.
    Encoding(Option<QuantizationEncoding>),
    /// The order in which the blocks of the module's `weight` take its input, if it is another.
    InputOrder(Option<&'a Tensor>),
    /// A part.
    Module(&'a dyn Module),
    /// Something plain, for printing.
    Attribute(&'a dyn std::fmt::Debug),
}

/// As [`Member`], to be changed.
#[non_exhaustive]
pub enum MemberMut<'a> {
    /// A tensor that training changes.
    Parameter(&'a mut Tensor),
    /// A tensor that belongs to the module's state, but is not trained.
    Buffer(&'a mut Tensor),
    /// How the blocks of the module's `weight` are quantized, if they are.
    Encoding(&'a mut Option<QuantizationEncoding>),
    /// The order in which the blocks of the module's `weight` take its input, if it is another.
    InputOrder(&'a mut InputOrder),
    /// A part.
    Module(&'a mut dyn Module),
}

/// What a field of a module may be: see [`Module`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a tensor, nor a module, nor a plain value",
    note = "derive `Module` for it, or leave the field out with `#[module(skip)]`"
)]
pub trait Field {
    /// Calls `f` with what the field holds.
    fn visit(&self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>));

    /// As [`visit`](Self::visit), to be changed.
    fn visit_mut(&mut self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>));

    /// As [`visit`](Self::visit), of an option of it.
    #[doc(hidden)]
    fn visit_option(field: &Option<Self>, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>))
    where
        Self: Sized,
    {
        field.iter().for_each(|field| field.visit(name, is_buffer, f));
    }

    /// As [`visit_mut`](Self::visit_mut), of an option of it.
    #[doc(hidden)]
    fn visit_option_mut(field: &mut Option<Self>, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>))
    where
        Self: Sized,
    {
        field.iter_mut().for_each(|field| field.visit_mut(name, is_buffer, f));
    }
}

impl Field for Tensor {
    fn visit(&self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        f(name, if is_buffer { Member::Buffer(self) } else { Member::Parameter(self) });
    }

    fn visit_mut(&mut self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        f(name, if is_buffer { MemberMut::Buffer(self) } else { MemberMut::Parameter(self) });
    }
}

impl<T: Field> Field for Option<T> {
    fn visit(&self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        T::visit_option(self, name, is_buffer, f);
    }

    fn visit_mut(&mut self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        T::visit_option_mut(self, name, is_buffer, f);
    }
}

/// An optional one is that of the `weight` beside it, which a state dict with blocks sets.
impl Field for QuantizationEncoding {
    fn visit(&self, name: &str, _: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        f(name, Member::Attribute(self));
    }

    fn visit_mut(&mut self, _: &str, _: bool, _: &mut dyn FnMut(&str, MemberMut<'_>)) {}

    fn visit_option(field: &Option<Self>, name: &str, _: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        f(name, Member::Encoding(*field));
    }

    fn visit_option_mut(field: &mut Option<Self>, name: &str, _: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        f(name, MemberMut::Encoding(field));
    }
}

/// The order in which the blocks of a quantized weight take the elements of an input, `int32` `[in_dim]`, if it is another: as GPTQ
/// orders them by their activations. A state dict with blocks sets it.
#[derive(Clone, Default)]
pub struct InputOrder(pub Option<Tensor>);

impl Field for InputOrder {
    fn visit(&self, name: &str, _: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        f(name, Member::InputOrder(self.0.as_ref()));
    }

    fn visit_mut(&mut self, name: &str, _: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        f(name, MemberMut::InputOrder(self));
    }
}

impl<M: Module + ?Sized> Field for Box<M> {
    fn visit(&self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
        // Of an unsized type there is no reference to a trait object, but the box is a module too.
        let _ = is_buffer;
        f(name, Member::Module(self));
    }

    fn visit_mut(&mut self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        let _ = is_buffer;
        f(name, MemberMut::Module(self));
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn visit(&self, f: &mut dyn FnMut(&str, Member<'_>)) {
        (**self).visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
        (**self).visit_mut(f);
    }
}

macro_rules! fields_of_sequences {
    ($([$($generics:tt)*] $ty:ty;)*) => {$(
        impl<$($generics)*> Field for $ty {
            fn visit(&self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
                for (i, item) in self.iter().enumerate() {
                    item.visit(&joined(name, &i.to_string()), is_buffer, f);
                }
            }

            fn visit_mut(&mut self, name: &str, is_buffer: bool, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
                for (i, item) in self.iter_mut().enumerate() {
                    item.visit_mut(&joined(name, &i.to_string()), is_buffer, f);
                }
            }
        }
    )*};
}
fields_of_sequences! {
    [T: Field] Vec<T>;
    [T: Field, const N: usize] [T; N];
}

macro_rules! plain_fields {
    ($($ty:ty)*) => {$(
        impl Field for $ty {
            fn visit(&self, name: &str, _: bool, f: &mut dyn FnMut(&str, Member<'_>)) {
                f(name, Member::Attribute(self));
            }

            fn visit_mut(&mut self, _: &str, _: bool, _: &mut dyn FnMut(&str, MemberMut<'_>)) {}
        }
    )*};
}
plain_fields!(bool i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64 char String &'static str DType DeviceRef);
plain_fields!(max_core::graph::Shape max_core::graph::TensorType crate::nn::Activation);

impl<T: ?Sized> Field for std::marker::PhantomData<T> {
    fn visit(&self, _: &str, _: bool, _: &mut dyn FnMut(&str, Member<'_>)) {}

    fn visit_mut(&mut self, _: &str, _: bool, _: &mut dyn FnMut(&str, MemberMut<'_>)) {}
}

/// The name of a member of a part.
fn joined(prefix: &str, name: &str) -> String {
    match (prefix, name) {
        ("", name) | (name, "") => name.to_owned(),
        (prefix, name) => format!("{prefix}.{name}"),
    }
}

fn walk(module: &dyn Module, prefix: &str, f: &mut dyn FnMut(&str, Member<'_>)) {
    module.visit(&mut |name, member| {
        let name = joined(prefix, name);
        f(&name, member);
        if let Member::Module(part) = member {
            walk(part, &name, f);
        }
    });
}

fn walk_mut(module: &mut dyn Module, prefix: &str, f: &mut dyn FnMut(&str, MemberMut<'_>)) {
    module.visit_mut(&mut |name, member| {
        let name = joined(prefix, name);
        match member {
            MemberMut::Module(part) => walk_mut(part, &name, f),
            tensor => f(&name, tensor),
        }
    });
}

/// What every module can do.
pub trait ModuleExt: Module {
    /// The parameters with their names, in the order of the fields, those of parts after a dot: `layers.0.weight`.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut found = Vec::new();
        walk(self.as_module(), "", &mut |name, member| {
            if let Member::Parameter(tensor) = member {
                found.push((name.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// The buffers with their names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut found = Vec::new();
        walk(self.as_module(), "", &mut |name, member| {
            if let Member::Buffer(tensor) = member {
                found.push((name.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// Parameters and buffers with their names: what [`load_state_dict`](Self::load_state_dict) takes.
    fn state_dict(&self) -> StateDict {
        let mut found = Vec::new();
        walk(self.as_module(), "", &mut |name, member| {
            if let Member::Parameter(tensor) | Member::Buffer(tensor) = member {
                found.push((name.to_owned(), tensor.clone()));
            }
        });
        found.into()
    }

    /// Sets parameters and buffers to the tensors of their names: of a [`StateDict`], of safetensors, of a map.
    ///
    /// The blocks of a quantized weight are taken as they are by layers with a `quantization_encoding`, which is set too.
    ///
    /// Nothing changes unless all that is there fits. With [`Mode::Strict`], every name must be there, and no other.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// use max::nn::{Linear, Mode, ModuleExt, StateDict};
    /// use max::tensor::Tensor;
    ///
    /// let mut layer = Linear::new(2, 1)?.without_bias();
    /// let wrong = StateDict::from([("weight", Tensor::ones([1, 3])?), ("biass", Tensor::ones([1])?)]);
    /// let error = layer.load_state_dict(&wrong, Mode::Strict).unwrap_err().to_string();
    /// assert!(error.contains("weight: float32[1, 2] is wanted, float32[1, 3] is there"), "{error}");
    /// assert!(error.contains("unexpected: biass"), "{error}");
    /// layer.load_state_dict(&StateDict::from([("weight", Tensor::ones([1, 2])?)]), Mode::Strict)?;
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// A [`LoadError`] with all differences at once, as the source of the error; when a tensor cannot be read.
    #[track_caller]
    fn load_state_dict(&mut self, state: &dyn WeightsRegistry, mode: Mode) -> Result<LoadReport> {
        state::load(self.as_module_mut(), state, mode)
    }

    /// Writes parameters and buffers as a safetensors file: [`StateDict::save`].
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// # let path = std::env::temp_dir().join(format!("module-{}.safetensors", std::process::id()));
    /// use max::nn::{Linear, Mode, ModuleExt};
    ///
    /// let layer = Linear::new(2, 3)?;
    /// layer.save(&path)?;
    /// let mut same = Linear::new(2, 3)?;
    /// same.load(&path, Mode::Strict)?;
    /// assert_eq!(same.weight.to_vec::<f32>()?, layer.weight.to_vec::<f32>()?);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`StateDict::save`].
    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        self.state_dict().save(path)
    }

    /// Sets parameters and buffers to the tensors of a safetensors file, whose memory is mapped:
    /// [`load_state_dict`](Self::load_state_dict).
    ///
    /// # Errors
    /// When the file cannot be read; as [`load_state_dict`](Self::load_state_dict).
    #[track_caller]
    fn load(&mut self, path: impl AsRef<Path>, mode: Mode) -> Result<LoadReport>
    where
        Self: Sized,
    {
        self.load_state_dict(&SafetensorWeights::open([path])?, mode)
    }

    /// Calls `f` with each part, parts of parts after them, and its name.
    fn for_each_module(&self, f: &mut dyn FnMut(&str, &dyn Module)) {
        walk(self.as_module(), "", &mut |name, member| {
            if let Member::Module(part) = member {
                f(name, part);
            }
        });
    }

    /// How many elements the parameters have.
    fn num_parameters(&self) -> usize {
        let count = |(_, tensor): &(String, Tensor)| {
            tensor.num_elements().as_static().and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
        };
        self.named_parameters().iter().map(count).sum()
    }

    /// Moves parameters and buffers to a device.
    ///
    /// # Errors
    /// When the machine has no such device, or not enough memory there; then all stay where they were.
    #[track_caller]
    fn to(&mut self, device: DeviceRef) -> Result<()> {
        self.map_tensors(&mut |_, tensor| {
            let moved = tensor.to(device)?;
            moved.realize()?;
            Ok(moved)
        })
    }

    /// Converts parameters and buffers of floats to another dtype of floats.
    ///
    /// # Errors
    /// When there is not enough memory; then all stay what they were.
    #[track_caller]
    fn cast(&mut self, dtype: DType) -> Result<()> {
        self.map_tensors(&mut |_, tensor| match tensor.dtype().is_float() {
            true => {
                let cast = tensor.cast(dtype)?;
                cast.realize()?;
                Ok(cast)
            }
            false => Ok(tensor.clone()),
        })
    }

    /// Replaces every parameter and buffer by what `f` makes of it.
    ///
    /// # Errors
    /// The first error of `f`; then all stay what they were.
    fn map_tensors(&mut self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<()> {
        let mut replaced = Vec::new();
        let mut result = Ok(());
        walk(self.as_module(), "", &mut |name, member| {
            if let (Member::Parameter(tensor) | Member::Buffer(tensor), Ok(())) = (member, &result) {
                match f(name, tensor) {
                    Ok(tensor) => replaced.push(tensor),
                    Err(error) => result = Err(error),
                }
            }
        });
        result?;
        let mut replaced = replaced.into_iter();
        walk_mut(self.as_module_mut(), "", &mut |_, member| {
            if let MemberMut::Parameter(tensor) | MemberMut::Buffer(tensor) = member
                && let Some(next) = replaced.next()
            {
                *tensor = next;
            }
        });
        Ok(())
    }

    /// A subgraph of `graph` with what `forward` computes of inputs of these types, for [`ops::call`]: a layer that is traced once, and called
    /// for each layer of a model. Parameters and buffers are its weights, by their names: those that begin with `weight_prefix` without
    /// it, so that the call's own prefix takes its place. The module is as it was when this returns.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// use max::{driver::{self, DeviceRef}, dtype::DType, engine::InferenceSession, graph::{Graph, TensorType, ops}};
    /// use max::nn::{Forward, Linear, ModuleExt, Sequential};
    ///
    /// let model = Sequential::new().then(Linear::new(4, 4)?).then(Linear::new(4, 4)?);
    /// let ty = TensorType::new(DType::F32, ("batch", 4), DeviceRef::CPU);
    /// let graph = Graph::new("model", [&ty]);
    /// let mut layer = Linear::new(4, 4)?;
    /// let layer = layer.build_subgraph(&graph, "layer", [&ty], "", |layer, x| layer.forward(&x[0]))?;
    /// let first = ops::call(&layer, &graph.inputs()[0], "0.")?;
    /// graph.output(ops::call(&layer, &first[0], "1.")?)?;
    /// let called = InferenceSession::new().load_with_weights(&graph, &model.state_dict())?;
    /// let x = driver::Tensor::full(0.5f32, [2, 4])?;
    /// assert_eq!(called.execute(&x)?[0].to_vec::<f32>()?, model.forward(&(&x).into())?.to_vec::<f32>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`ops::call`]: max_core::graph::ops::call
    ///
    /// # Errors
    /// Those of `forward`; when a shape of a parameter is not static; as [`Graph::add_subgraph`].
    #[track_caller]
    fn build_subgraph<T: Tensors>(
        &mut self,
        graph: &Graph,
        name: &str,
        input_types: impl IntoTypes,
        weight_prefix: &str,
        forward: impl FnOnce(&Self, &[Tensor]) -> Result<T>,
    ) -> Result<Graph>
    where
        Self: Sized,
    {
        subgraph::build(self, graph, name, input_types, weight_prefix, forward)
    }

    /// The tree of parts with their plain fields, and with the numbers of parameters and bytes, to be printed.
    fn tree(&self) -> Tree<'_> {
        Tree::new(self.as_module())
    }

    /// The module as a trait object.
    fn as_module(&self) -> &dyn Module;

    /// The module as a trait object, to be changed.
    fn as_module_mut(&mut self) -> &mut dyn Module;
}

impl<M: Module> ModuleExt for M {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn as_module_mut(&mut self) -> &mut dyn Module {
        self
    }
}
