//! Dead code elimination. A node lives if a result is read by one that lives or is an output, if it changes a buffer, or
//! if it is an input or an assertion.

use super::super::context::{Context, Outcome};
use super::rewrite::{identity, rewrite};
use crate::graph::{GraphData, Op};

pub(in crate::compiler) fn remove_dead(graph: &mut GraphData, _: &Context<'_>) -> Outcome {
    let mut read = vec![false; graph.values.len()];
    for output in graph.outputs.iter().flatten() {
        read[output.index()] = true;
    }
    let mut keep = vec![true; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let needed = match node.op {
            Op::Input(_) | Op::Rebind { .. } | Op::BindDims(_) => true,
            // Reading a buffer is in the chain of effects for its order alone.
            Op::BufferLoad => false,
            _ => node.chain.is_some(),
        };
        keep[index] = needed || node.results().any(|result| read[result.index()]);
        if keep[index] {
            node.operands.iter().for_each(|operand| read[operand.index()] = true);
        }
    }
    rewrite(graph, &keep, &identity(graph));
    Ok(())
}
