//! [`Graph`]: inputs, outputs and the handle through which a graph is built. The files beside this one have what ops share when
//! they are added: their sites, regions and optional operands.

pub(super) mod optional_operands;
pub(super) mod region;
pub(super) mod site;

use std::fmt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use smallvec::{SmallVec, smallvec};

use self::site::{Result, Site, type_error};
use super::error::GraphErrorKind;
use super::node::{Chain, GraphData, Op, ValueId};
use super::signature::SignatureError;
use super::symbolic::bind::Symbols;
use super::symbolic::dim::Dim;
use super::types::Type;
use super::value::convert::{IntoTypes, IntoValues};
use super::value::{BufferValue, GraphRef, TensorValue, Value};
use crate::driver::DeviceRef;
use crate::kernel::KernelLibrary;

/// A graph under construction: ops over typed values, from inputs to outputs.
///
/// Values belong to the graph that made them. Mistakes are errors at the caller's line: of a named op when it is called,
/// of an operator (`x + y`) when the outputs are set.
///
/// ```
/// use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, GraphError, TensorType, ops}};
///
/// let x = TensorType::new(DType::F32, ("batch", 4), DeviceRef::CPU);
/// let w = TensorType::new(DType::F32, (4, 2), DeviceRef::CPU);
/// let graph = Graph::build("linear_relu", [x, w], |_, inputs| {
///     ops::relu(ops::matmul(&inputs[0], &inputs[1])? + 0.5)
/// })?;
/// assert_eq!(
///     graph.to_string(),
///     "graph linear_relu(%0: float32[batch, 4], %1: float32[4, 2]) {
///   %2 = matmul(%0, %1) : float32[batch, 2]
///   %3 = constant 0.5 : float32[]
///   %4 = broadcast_to(%3) : float32[batch, 2]
///   %5 = add(%2, %4) : float32[batch, 2]
///   %6 = relu(%5) : float32[batch, 2]
///   return %6
/// }
/// "
/// );
/// # Ok::<(), GraphError>(())
/// ```
#[derive(Clone)]
pub struct Graph {
    reference: GraphRef,
    inputs: Arc<[Value]>,
    location: &'static Location<'static>,
}

impl Graph {
    /// An empty graph with inputs of the given types: one type, an array, a slice, a `Vec`, a tuple, or `()` for none.
    ///
    /// A symbolic dim that is the whole of an input's axis gets its size there when the model executes; the same name
    /// on another axis has to have the same size. An input type that cannot be (a negative dim, a bad name, an
    /// expression over a name that no axis gives) is an error of [`output`](Graph::output).
    #[track_caller]
    pub fn new(name: impl Into<Arc<str>>, input_types: impl IntoTypes) -> Graph {
        Graph::knowing(name.into(), input_types.into_types(), Symbols::new(), None)
    }

    /// As [`new`](Graph::new), with names that have a size already, and a library of kernels.
    #[track_caller]
    pub(super) fn knowing(
        name: Arc<str>,
        input_types: Vec<Type>,
        known: Symbols,
        library: Option<KernelLibrary>,
    ) -> Graph {
        let site = Site::new("input");
        let reference = GraphRef::new(name);
        {
            let mut data = reference.lock();
            (data.inherited, data.symbols, data.library) = (known.len(), known, library);
        }
        let mut inputs = Vec::new();
        for (index, ty) in input_types.into_iter().enumerate() {
            if let Some(kind) = type_error(&ty) {
                let error = site.error(&reference, [ty.clone()], kind);
                reference.lock().errors.push(error);
            }
            reference.lock().declare_symbols(ty.shape());
            let (device, results) = (ty.device(), smallvec![ty]);
            let values = site.push_values(&reference, Op::Input(index), SmallVec::new(), results, device, false);
            reference.lock().inputs.extend(values.iter().map(Value::id));
            inputs.extend(values);
        }
        for input in &inputs {
            let ty = input.ty();
            if let Err(kind) = site.known_symbols(&reference, ty.shape()) {
                let error = site.error(&reference, [ty], kind);
                reference.lock().errors.push(error);
            }
        }
        Graph { reference, inputs: inputs.into(), location: site.location }
    }

    /// Names the inputs, in their order: [`Model::execute_named`](crate::engine::Model::execute_named), metadata, messages and files of
    /// graphs have these names in place of `input0`, `input1`, ….
    ///
    /// ```
    /// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, GraphError, TensorType}};
    /// let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    /// let graph = Graph::new("sum", [&ty, &ty]);
    /// graph.name_inputs(["prices", "fees"])?;
    /// graph.output(graph.inputs()[0].tensor()? + graph.inputs()[1].tensor()?)?;
    /// assert!(graph.to_string().starts_with(r#"graph sum(%0 "prices": float32[n], %1 "fees": float32[n])"#));
    /// # Ok::<(), GraphError>(())
    /// ```
    ///
    /// # Errors
    /// When there are not as many names as inputs, and when two are equal or one is empty.
    #[track_caller]
    pub fn name_inputs<N: Into<Arc<str>>>(&self, names: impl IntoIterator<Item = N>) -> Result<()> {
        let site = Site::new("name_inputs");
        let names: Vec<Arc<str>> = names.into_iter().map(Into::into).collect();
        let fail = |value: String, expected: String| {
            let kind = GraphErrorKind::Argument { argument: "names", value, expected: expected.into() };
            Err(site.error(&self.reference, self.input_types(), kind))
        };
        if names.len() != self.inputs.len() {
            return fail(format!("{} names", names.len()), format!("{}, one for each input", self.inputs.len()));
        }
        let is_known = |(i, name): (usize, &Arc<str>)| name.is_empty() || names[..i].contains(name);
        if let Some(i) = (0..names.len()).find(|i| is_known((*i, &names[*i]))) {
            return fail(format!("{:?} for input {i}", names[i]), "names that differ and are not empty".to_owned());
        }
        self.reference.lock().input_names = names;
        Ok(())
    }

    /// A graph whose outputs are what `body` returns: one value, an array, a `Vec`, a tuple, or `()` for a graph that
    /// only changes buffers (or whose body calls [`output`](Graph::output) itself).
    ///
    /// # Errors
    /// The error that `body` returns, and those of [`output`](Graph::output).
    #[track_caller]
    pub fn build<O: IntoValues>(
        name: impl Into<Arc<str>>,
        input_types: impl IntoTypes,
        body: impl FnOnce(&Graph, &[Value]) -> Result<O>,
    ) -> Result<Graph> {
        let graph = Graph::new(name, input_types);
        let outputs = body(&graph, &graph.inputs)?.into_values();
        graph.finish(outputs)?;
        Ok(graph)
    }

    /// Sets the outputs, unless there are none, and they were set.
    #[track_caller]
    pub(super) fn finish(&self, outputs: Vec<Value>) -> Result<()> {
        if outputs.is_empty() && self.reference.lock().outputs.is_some() {
            return self.finished().map(drop);
        }
        self.output(outputs)
    }

    /// The last effect of each device that has one, as a chain for what follows it.
    pub fn device_chains(&self) -> Vec<(DeviceRef, Chain)> {
        let data = self.reference.lock();
        data.chains.iter().map(|(device, last)| (*device, Chain { after: SmallVec::from_iter([*last]) })).collect()
    }

    /// The chain that follows nothing: of work that need not wait for any effect.
    pub fn always_ready_chain(&self) -> Chain {
        Chain::default()
    }

    /// The graph of finished data.
    pub(super) fn finished_of(data: GraphData, location: &'static Location<'static>) -> Graph {
        let reference = GraphRef::new(data.name.clone());
        *reference.lock() = data;
        Graph { location, ..Graph::of(&reference) }
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        self.reference.name()
    }

    /// The inputs, in the order of their types.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// Sets the outputs: one value, an array, a `Vec`, a tuple, or `()` for none.
    ///
    /// # Errors
    /// The first mistake made in the graph through an operator or in an input type, at its own line. Else: when the
    /// outputs are already set, and for a value that is a buffer or of another graph.
    #[track_caller]
    pub fn output(&self, outputs: impl IntoValues) -> Result<()> {
        let site = Site::new("output");
        self.first_error()?;
        let outputs = outputs.into_values();
        let types = || outputs.iter().map(Value::ty);
        let mut ids = Vec::with_capacity(outputs.len());
        for value in &outputs {
            if let Some(error) = value.error() {
                return Err(error.clone());
            }
            if !value.graph().same(&self.reference) {
                let other = value.graph().name().clone();
                return Err(site.error(&self.reference, types(), GraphErrorKind::OtherGraph { other }));
            }
            if self.reference.lock().is_closed(value.id()) {
                return Err(site.error(&self.reference, types(), GraphErrorKind::EndedRegion));
            }
            if let Value::Buffer(_) = value {
                return Err(site.error(&self.reference, types(), GraphErrorKind::NotATensor { what: "an output" }));
            }
            ids.push(value.id());
        }
        let mut data = self.reference.lock();
        if !data.open.is_empty() {
            drop(data);
            return Err(site.error(&self.reference, types(), GraphErrorKind::OutputInRegion));
        }
        if data.outputs.is_some() {
            drop(data);
            return Err(site.error(&self.reference, types(), GraphErrorKind::OutputTwice));
        }
        data.outputs = Some(ids);
        Ok(())
    }

    /// Where the graph's kernels are found: those linked into the program, if no other library was set.
    pub fn kernel_library(&self) -> KernelLibrary {
        self.reference.lock().kernel_library()
    }

    /// The dynamic libraries among the graph's kernels, in the order in which they were added.
    pub fn kernel_libraries_paths(&self) -> Vec<PathBuf> {
        self.kernel_library().library_paths()
    }

    /// Sets where the graph's kernels are found. Custom ops added before were checked against the library set then.
    pub fn set_kernel_library(&self, library: KernelLibrary) {
        self.reference.lock().library = Some(library);
    }

    /// Adds the kernels of a dynamic library to those of the graph.
    ///
    /// # Safety
    /// As for [`KernelLibrary::with_extension`].
    ///
    /// # Errors
    /// As [`KernelLibrary::with_extension`].
    #[track_caller]
    pub unsafe fn add_extension(&self, path: impl AsRef<Path>) -> Result<()> {
        let site = Site::new("add_extension");
        // SAFETY: the caller's promise is the same.
        match unsafe { self.kernel_library().with_extension(path) } {
            Ok(library) => {
                self.set_kernel_library(library);
                Ok(())
            }
            Err(error) => {
                let kind = GraphErrorKind::from(SignatureError::Library(error));
                Err(site.error(&self.reference, None::<Type>, kind))
            }
        }
    }

    /// The types of the outputs; empty until they are set.
    pub fn output_types(&self) -> Vec<Type> {
        let data = self.reference.lock();
        data.outputs.iter().flatten().map(|id| data.ty(*id).clone()).collect()
    }

    /// The types of the inputs.
    pub fn input_types(&self) -> Vec<Type> {
        self.inputs.iter().map(Value::ty).collect()
    }

    /// The finished graph, for the compiler: locked until the guard is dropped.
    ///
    /// # Errors
    /// The first mistake made in the graph, or that the outputs are not set.
    pub(crate) fn finished(&self) -> Result<MutexGuard<'_, GraphData>> {
        self.first_error()?;
        let data = self.reference.lock();
        if data.outputs.is_none() {
            drop(data);
            let site = Site { op: "output".into(), location: self.location };
            return Err(site.error(&self.reference, None::<Type>, GraphErrorKind::NoOutput));
        }
        Ok(data)
    }

    fn first_error(&self) -> Result<()> {
        self.reference.lock().errors.first().cloned().map_or(Ok(()), Err)
    }

    /// The graph of a value.
    #[track_caller]
    pub(super) fn of(reference: &GraphRef) -> Graph {
        let data = reference.lock();
        let value = |id: &ValueId| {
            let (graph, id) = (reference.clone(), *id);
            match data.ty(id).clone() {
                Type::Tensor(ty) => Value::Tensor(TensorValue { graph, id, ty, error: None }),
                Type::Buffer(ty) => Value::Buffer(BufferValue { graph, id, ty }),
            }
        };
        let inputs = data.inputs.iter().map(value).collect();
        Graph { reference: reference.clone(), inputs, location: Location::caller() }
    }

    pub(super) fn reference(&self) -> &GraphRef {
        &self.reference
    }
}

impl TensorValue {
    /// The graph that it belongs to.
    pub fn graph(&self) -> Graph {
        Graph::of(&self.graph)
    }
}

impl GraphData {
    /// Notes the names that stand alone on an axis: they get a size there.
    pub(crate) fn declare_symbols(&mut self, shape: &super::Shape) {
        for dim in shape.iter() {
            if let Dim::Symbolic(_) = dim {
                dim.for_each_symbol(&mut |name| {
                    self.symbols.intern(name);
                });
            }
        }
    }

    /// All names that get a size, numbered: those of the inputs first, as a
    /// [`ShapeMatcher`](super::ShapeMatcher) over the inputs' shapes numbers them, then those that a rebind adds.
    pub fn symbol_table(&self) -> Symbols {
        self.symbols.clone()
    }
}

impl fmt::Display for Graph {
    /// The text form: every node with its operands, attributes and types. With `{:#}` also the source lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.lock().fmt(f)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
