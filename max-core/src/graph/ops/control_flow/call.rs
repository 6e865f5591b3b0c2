//! Subgraphs: graphs that others call.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::driver::DeviceRef;
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{GraphData, Op};
use crate::graph::substitute::Substitution;
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::Type;
use crate::graph::value::Value;
use crate::graph::value::convert::{IntoTypes, IntoValues};

/// The outputs of a graph that is given the values `args`: of a layer, say, that is written once and called for each
/// layer of a model.
///
/// The names of weights that the graph declares get `prefix` in front (`"layers.3."`, with its dot). The names of dims
/// of its inputs stand for the dims of the arguments; other names mean what they mean around the call. When the graph is
/// loaded, the subgraph's nodes take the call's place.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, Weight, ops}};
/// let x = TensorType::new(DType::F32, ("batch", 8), DeviceRef::CPU);
/// let graph = Graph::new("model", [&x]);
/// let layer = graph.add_subgraph("layer", [&x], |layer, inputs| {
///     let weight = layer.add_weight(&Weight::new("weight", DType::F32, (8, 8), DeviceRef::CPU))?;
///     ops::relu(ops::matmul(&inputs[0], weight)?)
/// })?;
/// let first = ops::call(&layer, &graph.inputs()[0], "layers.0.")?;
/// let second = ops::call(&layer, &first[0], "layers.1.")?;
/// graph.output(second)?;
/// assert_eq!(graph.output_types()[0].to_string(), "float32[batch, 8]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
///
/// # Errors
/// The subgraph's first mistake, or that it has no outputs; when there is another number of arguments than it has inputs,
/// or one of another kind, dtype, device or shape; when it has neither arguments nor a graph to be called in.
#[track_caller]
pub fn call(graph: &Graph, args: impl IntoValues, prefix: &str) -> Result<Vec<Value>> {
    call_at(&Site::new("call"), None, graph, args.into_values(), prefix)
}

#[track_caller]
fn call_at(site: &Site, caller: Option<&Graph>, called: &Graph, args: Vec<Value>, prefix: &str) -> Result<Vec<Value>> {
    if let Some(error) = args.iter().find_map(Value::error) {
        return Err(error.clone());
    }
    let caller = caller.map(Graph::reference).or_else(|| args.first().map(Value::graph)).cloned();
    let Some(caller) = caller else {
        return site.argument(&[], "args", "empty", "at least one value; without any, use `Graph::call`");
    };
    let types: Vec<Type> = args.iter().map(Value::ty).collect();
    let fail = |kind| Err(site.error(&caller, types.iter(), kind));
    if let Some(stranger) = args.iter().find(|value| !value.graph().same(&caller)) {
        return fail(GraphErrorKind::OtherGraph { other: stranger.graph().name().clone() });
    }
    if called.reference().same(&caller) {
        return site.argument(&[], "graph", called.name(), "another graph than the one that calls it");
    }
    // Locked for no longer than it takes to clone it: its memory is shared.
    let body: GraphData = called.finished()?.clone();
    if body.inputs.len() != args.len() {
        let (what, expected, actual) = ("the subgraph's inputs", body.inputs.len(), args.len());
        return fail(GraphErrorKind::ValueCount { what, expected, actual });
    }
    let mut names = Substitution::default();
    for (ty, id) in types.iter().zip(&body.inputs) {
        for (dim, declared) in ty.shape().iter().zip(body.ty(*id).shape().iter()) {
            if let Dim::Symbolic(name) = declared
                && names.get(name.name()).is_none()
            {
                names.insert(name.name(), dim.clone());
            }
        }
    }
    for (index, (ty, id)) in types.iter().zip(&body.inputs).enumerate() {
        let declared = body.ty(*id);
        if names.ty(declared) != *ty {
            let (actual, expected) = (Box::new(ty.clone()), Box::new(declared.clone()));
            let bound = names.to_string();
            return fail(GraphErrorKind::CallArgument { index, actual, expected, bound });
        }
    }
    let outputs = body.outputs.iter().flatten();
    let results: Vec<Type> = outputs.map(|id| names.ty(body.ty(*id))).collect();
    for ty in &results {
        // A name that the subgraph binds itself has its size behind the call.
        if !ty.shape().is_static() {
            caller.lock().declare_symbols(ty.shape());
        }
        if let Err(kind) = site.known_symbols(&caller, ty.shape()) {
            return fail(kind);
        }
    }
    let (effect, operands) = (body.has_effects(), args.iter().map(Value::id).collect::<SmallVec<[_; 4]>>());
    let op = Op::Call { graph: Arc::new(body), prefix: prefix.into() };
    Ok(site.push_values(&caller, op, operands, results.into(), DeviceRef::CPU, effect))
}

impl Graph {
    /// As [`ops::call`](call), of a subgraph that may take no values at all.
    ///
    /// # Errors
    /// As [`ops::call`](call).
    #[track_caller]
    pub fn call(&self, graph: &Graph, args: impl IntoValues, prefix: &str) -> Result<Vec<Value>> {
        call_at(&Site::new("call"), Some(self), graph, args.into_values(), prefix)
    }

    /// A graph to be [called](call) in this one: with the same kernels, and in which the names that have a size here are
    /// known. `body` may call others of its kind.
    ///
    /// # Errors
    /// As [`Graph::build`].
    #[track_caller]
    pub fn add_subgraph<O: IntoValues>(
        &self,
        name: impl Into<Arc<str>>,
        input_types: impl IntoTypes,
        body: impl FnOnce(&Graph, &[Value]) -> Result<O>,
    ) -> Result<Graph> {
        let (known, library) = {
            let data = self.reference().lock();
            (data.symbols.clone(), data.library.clone())
        };
        let graph = Graph::knowing(name.into(), input_types.into_types(), known, library);
        let outputs = body(&graph, graph.inputs())?.into_values();
        graph.finish(outputs)?;
        Ok(graph)
    }
}
