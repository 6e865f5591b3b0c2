//! Graphs as drawings: the DOT language of Graphviz.

use std::fmt::{self, Write};

use crate::graph::Graph;
use crate::graph::node::{GraphData, Op};

impl Graph {
    /// The graph in the DOT language: `dot -Tsvg` of Graphviz draws it. Regions and called graphs are boxes.
    ///
    /// ```
    /// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
    /// let x = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    /// let graph = Graph::build("g", [x], |_, inputs| ops::relu(&inputs[0]))?;
    /// assert!(graph.to_dot().contains("g0n0 -> g0n1 [label=\"float32[n]\"]"));
    /// # Ok::<(), max_core::graph::GraphError>(())
    /// ```
    pub fn to_dot(&self) -> String {
        let mut text = "digraph {\n  node [shape=box, fontname=\"monospace\"]\n".to_owned();
        let mut count = 0;
        // A string takes whatever is written.
        let _ = draw(&self.reference().lock(), &mut count, &mut text);
        text.push_str("}\n");
        text
    }
}

/// Draws a graph whose nodes are named by its number, which is the next one.
fn draw(graph: &GraphData, count: &mut usize, text: &mut String) -> fmt::Result {
    let own = *count;
    *count += 1;
    for (index, node) in graph.nodes.iter().enumerate() {
        let label = match &node.op {
            Op::Input(position) => format!("input {position}"),
            op => op.to_string(),
        };
        writeln!(text, "  g{own}n{index} [label={label:?}]")?;
        for operand in &node.operands {
            let from = graph.value(*operand).node.index();
            writeln!(text, "  g{own}n{from} -> g{own}n{index} [label={:?}]", graph.ty(*operand).to_string())?;
        }
        for before in node.chain.iter().flat_map(|chain| &chain.after) {
            writeln!(text, "  g{own}n{} -> g{own}n{index} [style=dashed]", before.index())?;
        }
        let called = match &node.op {
            Op::Call { graph, .. } => Some(("call", graph)),
            _ => None,
        };
        for (name, inner) in node.op.regions().into_iter().chain(called) {
            let number = *count;
            writeln!(text, "  subgraph cluster{number} {{\n  label={name:?}")?;
            draw(inner, count, text)?;
            writeln!(text, "  }}\n  g{own}n{index} -> g{number}out [style=dotted]")?;
        }
    }
    writeln!(text, "  g{own}out [label=\"return\"]")?;
    for output in graph.outputs.iter().flatten() {
        let from = graph.value(*output).node.index();
        writeln!(text, "  g{own}n{from} -> g{own}out [label={:?}]", graph.ty(*output).to_string())?;
    }
    Ok(())
}
