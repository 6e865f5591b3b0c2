//! Horizontal fusion of matrix products: those of one left operand with constants become one product, with the constants
//! side by side, and their results are slices of its result. Queries, keys and values of attention are the common case.
//!
//! Large weights of mapped files stay where they are: side by side they would be in memory once more, and each of them is enough
//! for all threads.
//!
//! A GEMV of few columns leaves threads and multiprocessors idle, and each launch has its price. A product whose result goes to
//! an elementwise op stays alone: that op runs as its epilogue, which a slice of a wider result has not.

use smallvec::{SmallVec, smallvec};

use super::super::context::{Context, Outcome};
use super::dce::remove_dead;
use super::rewrite::insert;
use crate::driver::{Tensor, UninitTensor};
use crate::graph::{Dim, GraphData, Node, Op, SliceAxis, TensorType, Type, ValueId};
use crate::hash_map::HashMap;
use crate::kernel::abi::KernelKind;

/// Weights of files are not copied for products of more bytes than this.
const LARGE_BYTES: usize = 4 << 20;

/// The name of the product of matrices.
const MATMUL: &str = "matmul";

pub(in crate::compiler) fn merge(graph: &mut GraphData, context: &Context<'_>) -> Outcome {
    let products = |node: &Node| matches!(&node.op, Op::Kernel(call) if call.name == MATMUL);
    if graph.nodes.iter().filter(|node| products(node)).count() < 2 {
        return Ok(());
    }
    let uses = Uses::of(graph, context)?;
    let mut groups: Vec<Vec<Member>> = Vec::new();
    let mut known: HashMap<(ValueId, bool), usize> = HashMap::default();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| products(node)) {
        let Some((lhs, member)) = member(graph, node, index, &uses) else { continue };
        let next = groups.len();
        let group = *known.entry((lhs, member.transposed)).or_insert(next);
        if group == next {
            groups.push(Vec::new());
        }
        groups[group].push(member);
    }
    let mut inserted = Vec::new();
    for group in groups.into_iter().filter(|group| group.len() > 1 && !is_large_and_mapped(group)) {
        // Without memory for them side by side, they stay as they are.
        if let Some(constant) = side_by_side(&group) {
            inserted.push(replace(graph, &group, constant));
        }
    }
    if inserted.is_empty() {
        return Ok(());
    }
    insert(graph, inserted);
    // The constants that were put together.
    remove_dead(graph, context)
}

/// How values are used.
struct Uses {
    /// By value: how many nodes read it.
    readers: Vec<u32>,
    /// By value: whether it is returned, or an elementwise op is all that reads it, also through views.
    alone: Vec<bool>,
}

impl Uses {
    fn of(graph: &GraphData, context: &Context<'_>) -> Outcome<Uses> {
        let mut readers = vec![0; graph.values.len()];
        graph.nodes.iter().flat_map(|node| &node.operands).for_each(|id| readers[id.index()] += 1);
        let (mut returned, mut alone) = (vec![false; graph.values.len()], vec![false; graph.values.len()]);
        graph.outputs.iter().flatten().for_each(|id| returned[id.index()] = true);
        for node in graph.nodes.iter().rev() {
            let is_view = matches!(node.op, Op::Reshape | Op::Permute(_) | Op::Rebind { .. });
            let fuses = match &node.op {
                Op::Kernel(call) => context.kernel(graph, node, call)?.kind == KernelKind::Elementwise,
                _ => is_view && alone[node.first_result.index()],
            };
            let is_returned = is_view && returned[node.first_result.index()];
            for operand in &node.operands {
                returned[operand.index()] |= is_returned;
                // What others read as well has memory of its own, and its epilogue saves nothing.
                alone[operand.index()] |= fuses && readers[operand.index()] == 1;
            }
        }
        alone.iter_mut().zip(&returned).for_each(|(alone, returned)| *alone |= returned);
        Ok(Uses { readers, alone })
    }
}

/// A product that can be merged.
struct Member {
    node: usize,
    weight: Tensor,
    /// Whether the constant's rows are the columns of the product.
    transposed: bool,
    columns: usize,
}

/// What a product multiplies, and the product, if its right operand is a constant of its own.
fn member(graph: &GraphData, node: &Node, index: usize, uses: &Uses) -> Option<(ValueId, Member)> {
    let [lhs, rhs] = node.operands[..] else { return None };
    let maker = |id: ValueId| graph.node(graph.value(id).node);
    let is_own = |id: ValueId| uses.readers[id.index()] == 1 && !uses.alone[id.index()];
    if uses.alone[node.first_result.index()] || !is_own(rhs) {
        return None;
    }
    let (transposed, constant) = match &maker(rhs).op {
        Op::Permute(axes) if axes[..] == [1, 0] => (true, maker(*maker(rhs).operands.first()?)),
        _ => (false, maker(rhs)),
    };
    let Op::Constant(weight) = &constant.op else { return None };
    let columns = *weight.shape().get(usize::from(!transposed))?;
    let fits = weight.rank() == 2 && weight.is_host() && weight.is_contiguous() && weight.num_elements() > 0;
    let fits = fits && is_own(constant.first_result) && graph.ty(lhs).dtype() == weight.dtype();
    fits.then(|| (lhs, Member { node: index, weight: weight.clone(), transposed, columns }))
}

/// Whether the constants are so large that copies of them are worth less than their memory, which else need not be there once they
/// are packed.
fn is_large_and_mapped(group: &[Member]) -> bool {
    let bytes = group.iter().fold(0_usize, |bytes, member| bytes.saturating_add(member.weight.num_bytes()));
    bytes > LARGE_BYTES && group.iter().any(|member| member.weight.is_mapped())
}

/// The constants as one.
fn side_by_side(group: &[Member]) -> Option<Tensor> {
    let first = group.first()?;
    let (columns, depth) = (group.iter().map(|m| m.columns).sum(), first.weight.shape()[usize::from(first.transposed)]);
    let (shape, size) =
        (if first.transposed { [columns, depth] } else { [depth, columns] }, first.weight.element_size());
    let mut whole = UninitTensor::new(first.weight.dtype(), &shape, first.weight.device()).ok()?;
    // Of each constant, so many rows are copied, each in one piece.
    let rows = if first.transposed { 1 } else { depth };
    let row_bytes = whole.num_bytes() / rows;
    let mut start = 0;
    for Member { weight, .. } in group {
        let bytes = weight.num_bytes() / rows;
        for row in 0..rows {
            let from = weight.data_ptr().wrapping_add(row * bytes);
            let to = whole.as_mut_ptr().wrapping_add(row * row_bytes + start);
            // SAFETY: `weight` is contiguous, on the host and only read; its rows are so long, and the rows of all constants
            // together as long as those of the new memory.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
        }
        start += bytes;
        debug_assert_eq!(bytes % size, 0);
    }
    // SAFETY: every byte was written, of elements of the same dtype.
    Some(unsafe { whole.assume_init() })
}

/// Puts slices of one product in the place of products, and gives the nodes that come before the first.
fn replace(graph: &mut GraphData, group: &[Member], constant: Tensor) -> (usize, Vec<Node>) {
    let at = group[0].node;
    let template = graph.nodes[at].clone();
    let (transposed, lhs) = (group[0].transposed, template.operands[0]);
    let device = template.device;
    let dims = constant.shape().iter().map(|dim| Dim::from(*dim)).collect::<SmallVec<[Dim; 2]>>();
    let node = |op: Op, operands: SmallVec<[ValueId; 4]>, dtype, dims: &[Dim], graph: &mut GraphData| {
        let first_result = graph.add_value(Type::Tensor(TensorType::new(dtype, dims, device)));
        Node { op, operands, first_result, result_count: 1, ..template.clone() }
    };
    let dtype = constant.dtype();
    let mut nodes = vec![node(Op::Constant(constant), smallvec![], dtype, &dims, graph)];
    let mut columns = &dims[1];
    if transposed {
        let turned = [dims[1].clone(), dims[0].clone()];
        let operand = nodes[0].first_result;
        nodes.push(node(Op::Permute(smallvec![1, 0]), smallvec![operand], dtype, &turned, graph));
        columns = &dims[0];
    }
    let rows = graph.ty(template.first_result).shape()[0].clone();
    let (dtype, rhs) = (graph.ty(template.first_result).dtype(), nodes[nodes.len() - 1].first_result);
    let product = node(template.op.clone(), smallvec![lhs, rhs], dtype, &[rows, columns.clone()], graph);
    let whole = product.first_result;
    nodes.push(product);
    let mut start = 0_i64;
    for member in group {
        let axis = |start: i64| SliceAxis { start: Dim::Static(start), step: 1 };
        let slice = &mut graph.nodes[member.node];
        slice.op = Op::Slice(smallvec![axis(0), axis(start)]);
        slice.operands = smallvec![whole];
        start += member.columns as i64;
    }
    (at, nodes)
}
