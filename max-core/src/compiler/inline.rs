//! Calls of subgraphs: their nodes take the calls' places, with the caller's dims for the names of theirs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::context::{Context, Outcome};
use crate::graph::{Chain, Dim, GraphData, Node, NodeId, Op, Substitution, ValueDef, ValueId};

pub(super) fn inline(graph: &mut GraphData, _: &Context<'_>) -> Outcome {
    inline_all(graph);
    Ok(())
}

/// Whether a graph, or a region in it, calls others.
fn calls(graph: &GraphData) -> bool {
    let inside = |node: &Node| node.op.regions().iter().any(|(_, region)| calls(region));
    graph.nodes.iter().any(|node| matches!(node.op, Op::Call { .. }) || inside(node))
}

fn inline_all(graph: &mut GraphData) {
    if !calls(graph) {
        return;
    }
    let mut into = Inliner { nodes: Vec::new(), values: Vec::new(), calls: 0 };
    let mut values = vec![ValueId(0); graph.values.len()];
    into.copy(graph, &Substitution::default(), "", &mut values);
    for id in graph.inputs.iter_mut().chain(graph.outputs.iter_mut().flatten()) {
        *id = values[id.index()];
    }
    (graph.nodes, graph.values) = (into.nodes, into.values);
    let shapes: Vec<_> = graph.values.iter().map(|value| value.ty.shape().clone()).collect();
    shapes.iter().for_each(|shape| graph.declare_symbols(shape));
    for region in graph.nodes.iter_mut().flat_map(|node| node.op.regions_mut()) {
        inline_all(Arc::make_mut(region));
    }
}

struct Inliner {
    nodes: Vec<Node>,
    values: Vec<ValueDef>,
    calls: usize,
}

impl Inliner {
    /// Copies the nodes of a graph; `values` says which values its own become, at first of its inputs.
    fn copy(&mut self, graph: &GraphData, names: &Substitution, prefix: &str, values: &mut [ValueId]) {
        let is_called = self.calls > 0;
        // By the old number: the effects that stand in a node's place.
        let mut effects: Vec<SmallVec<[NodeId; 1]>> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let before = node.chain.iter().flat_map(|chain| &chain.after);
            let mut after: SmallVec<[NodeId; 1]> = before.flat_map(|id| effects[id.index()].clone()).collect();
            after.dedup();
            match &node.op {
                Op::Input(_) if is_called => {
                    effects.push(after);
                    continue;
                }
                Op::Call { graph: called, prefix: own } => {
                    self.calls += 1;
                    let mut inner = vec![ValueId(0); called.values.len()];
                    let mut inner_names = Substitution::default();
                    for (operand, input) in node.operands.iter().zip(&called.inputs) {
                        inner[input.index()] = values[operand.index()];
                        let dims = self.values[values[operand.index()].index()].ty.shape().clone();
                        for (dim, declared) in dims.iter().zip(called.ty(*input).shape().iter()) {
                            if let Dim::Symbolic(name) = declared
                                && inner_names.get(name.name()).is_none()
                            {
                                inner_names.insert(name.name(), dim.clone());
                            }
                        }
                    }
                    self.rename_bound(called, &mut inner_names);
                    let first = self.nodes.len();
                    self.copy(called, &inner_names, &format!("{prefix}{own}"), &mut inner);
                    for (result, output) in node.results().zip(called.outputs.iter().flatten()) {
                        values[result.index()] = inner[output.index()];
                    }
                    let own_effects = (first..self.nodes.len()).filter(|i| self.nodes[*i].chain.is_some());
                    let own_effects: SmallVec<[NodeId; 1]> = own_effects.map(|i| NodeId(i as u32)).collect();
                    if let Some(chain) = own_effects.first().and_then(|id| self.nodes[id.index()].chain.as_mut()) {
                        chain.after = after.clone();
                    }
                    effects.push(own_effects.last().map_or(after, |last| SmallVec::from_iter([*last])));
                    continue;
                }
                _ => {}
            }
            let id = NodeId(self.nodes.len() as u32);
            let first = ValueId(self.values.len() as u32);
            for (i, result) in node.results().enumerate() {
                values[result.index()] = ValueId(first.0 + i as u32);
                self.values.push(ValueDef { ty: names.ty(graph.ty(result)), node: id });
            }
            let operands = node.operands.iter().map(|operand| values[operand.index()]).collect();
            let chain = node.chain.is_some().then_some(Chain { after });
            let op = names.op(&node.op, prefix);
            self.nodes.push(Node { op, operands, first_result: first, chain, ..node.clone() });
            effects.push(SmallVec::from_iter([id]));
        }
    }

    /// Names that a called graph binds itself get names of their own where its caller does not know them as a result's.
    fn rename_bound(&self, called: &GraphData, names: &mut Substitution) {
        let results: Vec<_> = called.outputs.iter().flatten().map(|id| called.ty(*id).shape().clone()).collect();
        for node in &called.nodes {
            let bound = match &node.op {
                Op::BindDims(shape) => shape.clone(),
                Op::Rebind { .. } => called.ty(node.first_result).shape().clone(),
                _ => continue,
            };
            for dim in bound.iter() {
                let Dim::Symbolic(name) = dim else { continue };
                let is_result = results.iter().any(|shape| shape.parameters().contains(name));
                let is_inherited = called.symbols.find(name.name()).is_some_and(|number| number < called.inherited);
                if names.get(name.name()).is_none() && !is_result && !is_inherited {
                    names.insert(name.name(), Dim::from(format!("{}_{}", name.name(), self.calls)));
                }
            }
        }
    }
}
