//! Weights: what a graph declares by name becomes constants, over the memory that the registry gives.

use super::context::{Context, Outcome};
use crate::graph::{GraphData, Node, Op, Type, weights};
use crate::plan::error::EngineError;

pub(super) fn find(graph: &mut GraphData, context: &Context<'_>) -> Outcome {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::ConstantExternal(name) = &node.op else { continue };
        let Type::Tensor(ty) = graph.ty(node.first_result) else { continue };
        let found = weights::find(context.weights, name, ty).map_err(|source| failed(graph, node, context, source))?;
        graph.nodes[index].op = Op::Constant(found);
    }
    Ok(())
}

fn failed(graph: &GraphData, node: &Node, context: &Context<'_>, source: weights::WeightsError) -> EngineError {
    EngineError::Weight { op: context.op(graph, node), source: source.into() }
}
