//! [`build_subgraph`](super::ModuleExt::build_subgraph): a module as a graph that others call, with its tensors as weights.

use max_core::graph::weights::Weight;
use max_core::graph::{Graph, IntoTypes};

use super::{Module, ModuleExt, StateDict};
use crate::Result;
use crate::tensor::{Tensor, Tensors};

/// A module whose tensors are others for a while: they are put back in the end, whatever happens.
struct Changed<'a, M: Module> {
    module: &'a mut M,
    tensors: StateDict,
}

impl<M: Module> Drop for Changed<'_, M> {
    fn drop(&mut self) {
        let tensors = &self.tensors;
        // Nothing is computed, so that nothing fails.
        let _ = self.module.map_tensors(&mut |name, tensor| Ok(tensors.get(name).unwrap_or(tensor).clone()));
    }
}

#[track_caller]
pub(super) fn build<M: Module, T: Tensors>(
    module: &mut M,
    graph: &Graph,
    name: &str,
    input_types: impl IntoTypes,
    weight_prefix: &str,
    forward: impl FnOnce(&M, &[Tensor]) -> Result<T>,
) -> Result<Graph> {
    graph.add_subgraph(name, input_types, |subgraph, inputs| {
        let tensors = module.state_dict();
        let changed = Changed { module, tensors };
        changed.module.map_tensors(&mut |name, tensor| {
            let name = name.strip_prefix(weight_prefix).unwrap_or(name);
            Ok(subgraph.add_weight(&Weight::of(name, tensor.ty().clone()))?.into())
        })?;
        let outputs = forward(&*changed.module, &Tensor::of_inputs(inputs)?)?;
        Ok(Tensor::to_outputs(&outputs))
    })
}
