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
    // By the old position; of removed values the entries mean nothing.
    let (mut new_values, mut makers) = (vec![ValueId(0); graph.values.len()], vec![None; graph.values.len()]);
    let (mut kept_nodes, mut kept_values) = (0, 0);
    // Whether values stand in the order of their nodes, so that they can stay where they are, but for gaps.
    let (mut in_order, mut last) = (true, None);
    for (node, _) in graph.nodes.iter().zip(keep).filter(|(_, kept)| **kept) {
        for result in node.results() {
            in_order &= last < Some(result);
            last = Some(result);
            new_values[result.index()] = ValueId(kept_values);
            makers[result.index()] = Some(NodeId(kept_nodes));
            kept_values += 1;
        }
        kept_nodes += 1;
    }
    keep_values(graph, &makers, (!in_order).then_some(&new_values));
    // What stands for each node in a chain: itself, or of a removed one what is before it.
    let mut new_nodes: Vec<SmallVec<[NodeId; 1]>> = Vec::new();
    let has_effects = graph.nodes.iter().any(|node| node.chain.is_some());
    let (mut index, mut id, mut first) = (0, 0, 0);
    graph.nodes.retain_mut(|node| {
        let is_kept = keep[index];
        index += 1;
        if has_effects {
            let before = node.chain.iter().flat_map(|chain| &chain.after);
            let mut after: SmallVec<[NodeId; 1]> = before.flat_map(|id| new_nodes[id.index()].clone()).collect();
            after.sort_unstable();
            after.dedup();
            new_nodes.push(if is_kept { SmallVec::from_iter([NodeId(id)]) } else { after.clone() });
            node.chain = node.chain.take().map(|_| Chain { after });
        }
        if is_kept {
            for operand in &mut node.operands {
                *operand = new_values[replaced[operand.index()].index()];
            }
            node.first_result = ValueId(first);
            first += node.result_count;
            id += 1;
        }
        is_kept
    });
    graph.inputs.iter_mut().for_each(|id| *id = new_values[id.index()]);
    for id in graph.outputs.iter_mut().flatten() {
        *id = new_values[replaced[id.index()].index()];
    }
}

/// Keeps the values that a node makes, in order, or where `order` says.
fn keep_values(graph: &mut GraphData, makers: &[Option<NodeId>], order: Option<&Vec<ValueId>>) {
    let mut index = 0;
    graph.values.retain_mut(|value| {
        let maker = makers[index];
        index += 1;
        value.node = maker.unwrap_or(value.node);
        maker.is_some()
    });
    if let Some(order) = order {
        let kept = makers.iter().zip(order).filter(|(maker, _)| maker.is_some());
        permute(&mut graph.values, kept.map(|(_, id)| id.index()).collect());
    }
}

/// Puts nodes before others, each list before the node of its number. Their results are values of the graph already.
pub(in crate::compiler) fn insert(graph: &mut GraphData, mut before: Vec<(usize, Vec<Node>)>) {
    if before.is_empty() {
        return;
    }
    before.sort_by_key(|(index, _)| *index);
    let old = graph.nodes.len();
    let count: usize = before.iter().map(|(_, nodes)| nodes.len()).sum();
    // Where each node goes: first of the old ones, then of the new ones, which are put behind them.
    let (mut places, mut new_places) = (Vec::with_capacity(old + count), Vec::with_capacity(count));
    graph.nodes.reserve_exact(count);
    let mut before = before.into_iter().peekable();
    for index in 0..old {
        while let Some((_, nodes)) = before.next_if(|(at, _)| *at == index) {
            let place = places.len() + new_places.len();
            new_places.extend(place..place + nodes.len());
            graph.nodes.extend(nodes);
        }
        places.push(places.len() + new_places.len());
    }
    for chain in graph.nodes.iter_mut().filter_map(|node| node.chain.as_mut()) {
        chain.after.iter_mut().for_each(|id| *id = NodeId(places[id.index()] as u32));
    }
    places.append(&mut new_places);
    permute(&mut graph.nodes, places);
    for (index, node) in graph.nodes.iter().enumerate() {
        node.results().for_each(|id| graph.values[id.index()].node = NodeId(index as u32));
    }
}

/// Moves each item to its place, without memory for items.
pub(in crate::compiler) fn permute<T>(items: &mut [T], mut places: Vec<usize>) {
    for index in 0..items.len() {
        while places[index] != index {
            let place = places[index];
            items.swap(index, place);
            places.swap(index, place);
        }
    }
}

/// Every value in its own place: the start of a list for [`rewrite`].
pub(in crate::compiler) fn identity(graph: &GraphData) -> Vec<ValueId> {
    (0..graph.values.len() as u32).map(ValueId).collect()
}
