//! Regions: parts of a graph that an op runs, such as the branches of a `cond`.
//!
//! While a region is built, its nodes are added to the graph around it, so that ops take values of both. Closing it takes
//! them out again: the region becomes a graph of its own, whose inputs are its arguments and what it reads of the graph
//! around it. Constants that it reads are repeated in it. The numbers of its values are not given again outside, so that
//! a handle that outlives the region is found out.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::graph::node::{Chain, GraphData, Node, NodeId, Op, OpenRegion, ValueDef, ValueId};
use crate::graph::symbolic::bind::Symbols;
use crate::graph::types::Type;
use crate::graph::value::GraphRef;

/// An open region of a graph. One that is dropped is taken out of the graph, and forgotten.
pub(in crate::graph) struct RegionScope {
    graph: GraphRef,
    depth: usize,
}

impl RegionScope {
    pub fn open(graph: &GraphRef) -> RegionScope {
        let mut data = graph.lock();
        let (chains, merged) = (std::mem::take(&mut data.chains), data.merged.take());
        let (first_node, first_value, symbols) = (data.nodes.len(), data.values.len(), data.symbols.len());
        data.open.push(OpenRegion { first_node, first_value, symbols, chains, merged });
        RegionScope { graph: graph.clone(), depth: data.open.len() }
    }

    /// Takes the region out of the graph. Its first `arguments` nodes are its arguments.
    pub fn close(self, arguments: usize, outputs: Vec<ValueId>) -> Option<Closed> {
        let graph = self.graph.clone();
        let mut data = graph.lock();
        let (nodes, region, symbols) = take(&mut data, self.depth)?;
        let values = data.values[region.first_value..].to_vec();
        Some(Closed { nodes, values, first: region, symbols, arguments, outputs })
    }
}

impl Drop for RegionScope {
    fn drop(&mut self) {
        let mut data = self.graph.lock();
        while data.open.len() >= self.depth && take(&mut data, self.depth).is_some() {}
    }
}

/// Takes the nodes of the region at `depth`, and what is still open inside of it, out of the graph.
fn take(data: &mut GraphData, depth: usize) -> Option<(Vec<Node>, OpenRegion, Symbols)> {
    if data.open.len() < depth {
        return None;
    }
    data.open.truncate(depth);
    let region = data.open.pop()?;
    let symbols = data.symbols.clone();
    data.symbols.truncate(region.symbols);
    data.chains = region.chains.clone();
    data.merged = region.merged;
    let nodes = data.nodes.split_off(region.first_node);
    let range = region.first_value as u32..data.values.len() as u32;
    while data.closed.last().is_some_and(|inner| inner.start >= range.start) {
        data.closed.pop();
    }
    if !range.is_empty() {
        data.closed.push(range);
    }
    Some((nodes, region, symbols))
}

/// A region that was taken out of its graph.
pub(in crate::graph) struct Closed {
    nodes: Vec<Node>,
    values: Vec<ValueDef>,
    first: OpenRegion,
    symbols: Symbols,
    arguments: usize,
    outputs: Vec<ValueId>,
}

impl Closed {
    /// The values of the graph around it that it reads, each once.
    pub fn outside(&self) -> Vec<ValueId> {
        let read = self.nodes.iter().flat_map(|node| &node.operands).chain(&self.outputs);
        let mut outside: Vec<ValueId> = read.copied().filter(|id| id.index() < self.first.first_value).collect();
        outside.sort_unstable();
        outside.dedup();
        outside
    }

    /// Whether it changes something.
    pub fn has_effects(&self) -> bool {
        self.nodes.iter().any(|node| node.chain.is_some())
    }

    /// The graph that it is, with its arguments and then `captures` as inputs.
    pub fn into_graph(
        self,
        around: &GraphData,
        name: &str,
        captures: &[ValueId],
        location: &'static Location<'static>,
    ) -> GraphData {
        let mut region = GraphData::new(Arc::from(format!("{}.{name}", around.name)));
        region.library = around.library.clone();
        (region.symbols, region.inherited) = (self.symbols.clone(), self.first.symbols);
        let mut known: HashMap<ValueId, ValueId> = HashMap::new();
        let input = |region: &mut GraphData, ty: Type, location| {
            let position = Op::Input(region.inputs.len());
            let device = ty.device();
            let id = region.push(position, SmallVec::new(), SmallVec::from_iter([ty]), device, false, location);
            region.inputs.push(id);
            id
        };
        for node in &self.nodes[..self.arguments] {
            let ty = self.values[node.first_result.index() - self.first.first_value].ty.clone();
            known.insert(node.first_result, input(&mut region, ty, node.location));
        }
        for id in captures {
            known.insert(*id, input(&mut region, around.ty(*id).clone(), location));
        }
        for id in self.outside() {
            if let Some(constant) = around.constant(id).filter(|_| !known.contains_key(&id)) {
                let ty = SmallVec::from_iter([around.ty(id).clone()]);
                let (op, place) = (constant.op.clone(), constant.location);
                known.insert(id, region.push(op, SmallVec::new(), ty, constant.device, false, place));
            }
        }
        // By the position in the region.
        let mut nodes: Vec<NodeId> = Vec::new();
        for (index, mut node) in self.nodes.into_iter().enumerate() {
            let id = NodeId(region.nodes.len() as u32);
            nodes.push(id);
            if index < self.arguments {
                continue;
            }
            let first = ValueId(region.values.len() as u32);
            for (i, result) in node.results().enumerate() {
                known.insert(result, ValueId(first.0 + i as u32));
                let ty = self.values[result.index() - self.first.first_value].ty.clone();
                region.values.push(ValueDef { ty, node: id });
            }
            node.first_result = first;
            node.operands.iter_mut().for_each(|operand| *operand = known[operand]);
            let inside =
                |id: &NodeId| id.index().checked_sub(self.first.first_node).and_then(|i| nodes.get(i)).copied();
            node.chain = node.chain.map(|chain| Chain { after: chain.after.iter().filter_map(inside).collect() });
            region.nodes.push(node);
        }
        region.outputs = Some(self.outputs.iter().map(|id| known[id]).collect());
        region
    }
}

impl GraphData {
    /// The node of a constant.
    fn constant(&self, id: ValueId) -> Option<&Node> {
        let node = self.nodes.get(self.value(id).node.index())?;
        matches!(node.op, Op::Constant(_) | Op::ConstantExternal(_)).then_some(node)
    }

    /// The values that regions take from around them: all that they read but constants, which are repeated in them.
    pub(in crate::graph) fn captures(&self, regions: [&Closed; 2]) -> Vec<ValueId> {
        let mut all: Vec<ValueId> = regions.iter().flat_map(|region| region.outside()).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|id| self.constant(*id).is_none());
        all
    }

    /// Whether a value is one of a region that was closed.
    pub(super) fn is_closed(&self, id: ValueId) -> bool {
        let after = self.closed.partition_point(|range| range.start <= id.0);
        after.checked_sub(1).is_some_and(|at| self.closed[at].contains(&id.0))
    }
}
