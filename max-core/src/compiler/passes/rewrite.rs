//! Removing nodes from a graph and putting values in the place of others.

use smallvec::SmallVec;

use crate::graph::{Chain, GraphData, Node, NodeId, ValueId};

/// Keeps the nodes that `keep` names, and reads `replaced[value]` wherever a value was read.
///
/// Whoever reads a value of a removed node must read another by then.
pub(in crate::compiler) fn rewrite(graph: &mut GraphData, keep: &[bool], replaced: &[ValueId]) {
    if keep.iter().all(|kept| *kept) && replaced.iter().enumerate().all(|(i, id)| id.index() == i) {
        return;
    }
    let mut values = Vec::with_capacity(graph.values.len());
    // By the old position; of removed values the entries mean nothing.
    let mut new_values = vec![ValueId(0); graph.values.len()];
    let mut new_nodes: Vec<SmallVec<[NodeId; 1]>> = vec![SmallVec::new(); graph.nodes.len()];
    let mut old_values: Vec<_> = std::mem::take(&mut graph.values).into_iter().map(Some).collect();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (index, mut node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        // The effects before a removed one take its place in the chain.
        let before = node.chain.iter().flat_map(|chain| &chain.after);
        let mut after: SmallVec<[NodeId; 1]> = before.flat_map(|id| new_nodes[id.index()].clone()).collect();
        after.sort_unstable();
        after.dedup();
        if !keep[index] {
            new_nodes[index] = after;
            continue;
        }
        let id = NodeId(nodes.len() as u32);
        new_nodes[index] = SmallVec::from_iter([id]);
        node.chain = node.chain.map(|_| Chain { after });
        for operand in &mut node.operands {
            *operand = new_values[replaced[operand.index()].index()];
        }
        let first = ValueId(values.len() as u32);
        for (i, result) in node.results().enumerate() {
            new_values[result.index()] = ValueId(first.0 + i as u32);
            if let Some(mut value) = old_values[result.index()].take() {
                value.node = id;
                values.push(value);
            }
        }
        node.first_result = first;
        nodes.push(node);
    }
    graph.nodes = nodes;
    graph.values = values;
    graph.inputs.iter_mut().for_each(|id| *id = new_values[id.index()]);
    for id in graph.outputs.iter_mut().flatten() {
        *id = new_values[replaced[id.index()].index()];
    }
}

/// Puts nodes before others, each list before the node of its number. Their results are values of the graph already.
pub(in crate::compiler) fn insert(graph: &mut GraphData, mut before: Vec<(usize, Vec<Node>)>) {
    if before.is_empty() {
        return;
    }
    before.sort_by_key(|(index, _)| *index);
    let mut before = before.into_iter().peekable();
    let (mut nodes, mut new_nodes) = (Vec::with_capacity(graph.nodes.len()), Vec::with_capacity(graph.nodes.len()));
    for (index, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        while let Some((_, new)) = before.next_if(|(at, _)| *at == index) {
            nodes.extend(new);
        }
        new_nodes.push(NodeId(nodes.len() as u32));
        nodes.push(node);
    }
    for (index, node) in nodes.iter_mut().enumerate() {
        if let Some(chain) = &mut node.chain {
            chain.after.iter_mut().for_each(|id| *id = new_nodes[id.index()]);
        }
        node.results().for_each(|id| graph.values[id.index()].node = NodeId(index as u32));
    }
    graph.nodes = nodes;
}

/// Every value in its own place: the start of a list for [`rewrite`].
pub(in crate::compiler) fn identity(graph: &GraphData) -> Vec<ValueId> {
    (0..graph.values.len() as u32).map(ValueId).collect()
}
