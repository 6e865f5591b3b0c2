//! Composites: what a program writes in terms of several ops becomes the one kernel that computes it and reads its operand once.
//! Kernels of half types compute such a composite in `f32`, and round once.
//!
//! | composite | kernel |
//! | --- | --- |
//! | `softmax(q · kᵀ * scale + mask) · v` of equally many matrices | `attention` |
//! | `exp(x - max(x)) / sum(exp(x - max(x)))` | `softmax` |
//! | `x * rsqrt(mean(x * x) + epsilon) * weight` | `rms_norm` |
//! | `d * rsqrt(mean(d * d) + epsilon) * gamma + beta`, with `d = x - mean(x)` | `layer_norm` |
//!
//! Factors and terms may stand in either order. Nothing else may read what is between.

use smallvec::{SmallVec, smallvec};

use super::super::context::{Context, Outcome};
use super::dce::remove_dead;
use super::rewrite::insert;
use crate::driver::Tensor;
use crate::dtype::DType;
use crate::graph::{Dim, GraphData, KernelCall, Node, Op, Parameters, TensorType, Type, ValueId, placeholder};

pub(in crate::compiler) fn find(graph: &mut GraphData, context: &Context<'_>) -> Outcome {
    // Attention may be made of a softmax that is a composite itself.
    while find_once(graph, context)? {}
    Ok(())
}

/// Whether there was a composite.
fn find_once(graph: &mut GraphData, context: &Context<'_>) -> Outcome<bool> {
    let begins = |node: &Node| matches!(name_of(node), Some("batch_matmul" | "div" | "mul" | "add"));
    if !graph.nodes.iter().any(begins) {
        return Ok(false);
    }
    let mut readers = vec![0_u32; graph.values.len()];
    let operands = graph.nodes.iter().flat_map(|node| &node.operands);
    operands.chain(graph.outputs.iter().flatten()).for_each(|id| readers[id.index()] += 1);
    let finder = Finder { graph, readers };
    let mut found: Vec<(usize, Found)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| begins(node)) {
        if let Some(composite) = finder.composite(node)
            && context.kernel(graph, node, &composite.call).is_ok()
        {
            found.push((index, composite));
        }
    }
    if found.is_empty() {
        return Ok(false);
    }
    let inserted = found.into_iter().map(|(index, found)| (index, replace(graph, index, found))).collect();
    insert(graph, inserted);
    remove_dead(graph, context)?;
    Ok(true)
}

/// The kernel's name, of a node that is one.
fn name_of(node: &Node) -> Option<&str> {
    match &node.op {
        Op::Kernel(call) => Some(&call.name),
        _ => None,
    }
}

/// A composite: the kernel, what it takes, and the views of operands that it takes them as.
struct Found {
    call: KernelCall,
    operands: SmallVec<[ValueId; 4]>,
    views: SmallVec<[(usize, Op, Vec<Dim>); 2]>,
}

/// Makes a node of a composite, and gives the views that come before it.
fn replace(graph: &mut GraphData, index: usize, found: Found) -> Vec<Node> {
    let Found { call, mut operands, views } = found;
    let mut nodes = Vec::new();
    for (operand, op, dims) in views {
        let (id, node) = (operands[operand], &graph.nodes[index]);
        let (location, device) = (node.location, node.device);
        let (dtype, operands_of) = match &op {
            Op::Constant(tensor) => (tensor.dtype(), smallvec![]),
            _ => (graph.ty(id).dtype(), smallvec![id]),
        };
        let first_result = graph.add_value(Type::Tensor(TensorType::new(dtype, dims, device)));
        nodes.push(Node { op, operands: operands_of, first_result, result_count: 1, device, chain: None, location });
        operands[operand] = first_result;
    }
    let node = &mut graph.nodes[index];
    (node.op, node.operands) = (Op::Kernel(call), operands);
    nodes
}

fn call(name: &'static str, axis: Option<usize>, parameters: Parameters) -> KernelCall {
    KernelCall { name: name.into(), axis, parameters }
}

struct Finder<'a> {
    graph: &'a GraphData,
    readers: Vec<u32>,
}

impl<'a> Finder<'a> {
    fn composite(&self, node: &'a Node) -> Option<Found> {
        let [a, b] = node.operands[..] else { return None };
        match name_of(node)? {
            "batch_matmul" => self.attention(a, b),
            "div" => self.softmax(a, b),
            "mul" => self.rms_norm(a, b).or_else(|| self.rms_norm(b, a)),
            "add" => self.layer_norm(a, b).or_else(|| self.layer_norm(b, a)),
            _ => None,
        }
    }

    fn maker(&self, id: ValueId) -> &'a Node {
        self.graph.node(self.graph.value(id).node)
    }

    fn is_own(&self, id: ValueId) -> bool {
        self.readers[id.index()] == 1
    }

    /// The operands of the kernel of that name that makes a value, along the axis if it is one of rows.
    fn kernel<const N: usize>(&self, id: ValueId, name: &str, axis: Option<usize>) -> Option<[ValueId; N]> {
        let node = self.maker(id);
        let Op::Kernel(call) = &node.op else { return None };
        let fits = call.name == name && call.axis == axis && node.result_count == 1;
        if fits { node.operands[..].try_into().ok() } else { None }
    }

    /// The same, of a value that only one node reads.
    fn own<const N: usize>(&self, id: ValueId, name: &str, axis: Option<usize>) -> Option<[ValueId; N]> {
        if self.is_own(id) { self.kernel(id, name, axis) } else { None }
    }

    /// What is repeated to make a value.
    fn repeated(&self, id: ValueId) -> Option<ValueId> {
        let node = self.maker(id);
        if matches!(node.op, Op::BroadcastTo) { node.operands.first().copied() } else { None }
    }

    /// The number that all elements of a value are.
    fn number(&self, id: ValueId) -> Option<f64> {
        let Op::Constant(tensor) = &self.maker(self.repeated(id).unwrap_or(id)).op else { return None };
        if tensor.num_elements() == 1 { number(tensor) } else { None }
    }

    fn last_axis(&self, id: ValueId) -> Option<usize> {
        self.graph.ty(id).shape().rank().checked_sub(1)
    }

    /// The operand of a reshape that nothing else reads, or the value itself.
    fn unshaped(&self, id: ValueId) -> ValueId {
        let node = self.maker(id);
        match (&node.op, node.operands.first()) {
            (Op::Reshape, Some(operand)) if self.is_own(id) => *operand,
            _ => id,
        }
    }

    /// The operands of the product that makes scores, and what it is multiplied by.
    fn scores(&self, mut id: ValueId) -> Option<([ValueId; 2], f64)> {
        let mut scale = 1.0;
        if let Some([a, b]) = self.own(id, "mul", None) {
            let (rest, factor) =
                self.number(b).map(|factor| (a, factor)).or(self.number(a).map(|factor| (b, factor)))?;
            (id, scale) = (rest, factor);
        } else if let Some([a, b]) = self.own(id, "div", None) {
            (id, scale) = (a, 1.0 / self.number(b)?);
        }
        let operands = self.own(if self.is_own(id) { self.unshaped(id) } else { id }, "batch_matmul", None)?;
        Some((operands, scale))
    }

    fn attention(&self, weights: ValueId, values: ValueId) -> Option<Found> {
        let weights = if self.is_own(weights) { self.unshaped(weights) } else { return None };
        let [scores] = self.own(weights, "softmax", self.last_axis(weights))?;
        let masked = || {
            let [a, b] = self.own(scores, "add", None)?;
            let of = |scores, mask| Some((self.scores(scores)?, Some(mask)));
            of(a, b).or_else(|| of(b, a))
        };
        let (([queries, keys], scale), mask) = self.scores(scores).map(|found| (found, None)).or_else(masked)?;
        let [ty, mask_ty] = [Some(queries), mask].map(|id| id.map(|id| self.graph.ty(id)));
        let (ty, dims) = (ty?, |id: ValueId| self.graph.ty(id).shape().dims());
        let is_float = matches!(ty.dtype(), DType::F16 | DType::BF16 | DType::F32);
        if !is_float || mask_ty.is_some_and(|mask| mask.dtype() != DType::F32) || !scale.is_finite() {
            return None;
        }
        let ([heads, rows, _], [_, size, count]) = (dims(queries), dims(keys)) else { return None };
        let turned = vec![heads.clone(), count.clone(), size.clone()];
        let mut views: SmallVec<[(usize, Op, Vec<Dim>); 2]> = smallvec![(1, Op::Permute(smallvec![0, 2, 1]), turned)];
        let operands = smallvec![queries, keys, values, mask.unwrap_or(queries)];
        let parameters = Parameters::new().with("scale", scale).with("causal", false).with("queries_last", false);
        views.push(match mask {
            Some(_) => (3, Op::Reshape, vec![heads.clone(), rows.clone(), count.clone()]),
            None => (3, Op::Constant(placeholder(DType::F32, 3).ok()?), vec![Dim::Static(1); 3]),
        });
        let parameters = parameters.with("mask", mask.is_some());
        Some(Found { call: call("attention", None, parameters), operands, views })
    }

    fn softmax(&self, exponentials: ValueId, sums: ValueId) -> Option<Found> {
        let axis = match &self.maker(self.repeated(sums)?).op {
            Op::Kernel(call) => call.axis?,
            _ => return None,
        };
        let sum = self.repeated(sums).filter(|_| self.is_own(sums))?;
        let [summed] = self.own(sum, "sum", Some(axis))?;
        let [difference] = self.kernel(exponentials, "exp", None)?;
        let [x, largest] = self.own(difference, "sub", None)?;
        let [of] = self.own(self.repeated(largest).filter(|_| self.is_own(largest))?, "reduce_max", Some(axis))?;
        let fits = summed == exponentials && of == x && self.readers[exponentials.index()] == 2;
        let found = || Found {
            call: call("softmax", Some(axis), Parameters::new()),
            operands: smallvec![x],
            views: smallvec![],
        };
        fits.then(found)
    }

    /// `x` and `epsilon` of `x * rsqrt(mean(x * x) + epsilon)`.
    fn normalized(&self, id: ValueId) -> Option<(ValueId, f64)> {
        let [a, b] = self.own(id, "mul", None)?;
        let of = |x: ValueId, factor: ValueId| {
            let root = self.repeated(factor).filter(|_| self.is_own(factor))?;
            let [sum] = self.own(root, "rsqrt", None)?;
            let [a, b] = self.own(sum, "add", None)?;
            let (mean, epsilon) = self.number(b).map(|e| (a, e)).or(self.number(a).map(|e| (b, e)))?;
            let [square] = self.own(mean, "mean", self.last_axis(x))?;
            let is_square = self.own(square, "mul", None)? == [x, x];
            (is_square && epsilon > 0.0).then_some((x, epsilon))
        };
        of(a, b).or_else(|| of(b, a))
    }

    /// The vector of the last dim's size that is repeated to make a value.
    fn vector(&self, id: ValueId, x: ValueId) -> Option<ValueId> {
        let vector = self.repeated(id)?;
        let (own, dims) = (self.graph.ty(vector).shape().dims(), self.graph.ty(x).shape().dims());
        (own.len() == 1 && own.last() == dims.last()).then_some(vector)
    }

    fn rms_norm(&self, normalized: ValueId, weight: ValueId) -> Option<Found> {
        let (x, epsilon) = self.normalized(normalized)?;
        // What `layer_norm` is made of is left for it.
        let is_centered = self.kernel::<2>(x, "sub", None).is_some() && self.readers[x.index()] == 3;
        let weight = self.vector(weight, x).filter(|_| !is_centered)?;
        let call = call("rms_norm", self.last_axis(x), Parameters::new().with("epsilon", epsilon));
        Some(Found { call, operands: smallvec![x, weight], views: smallvec![] })
    }

    fn layer_norm(&self, scaled: ValueId, beta: ValueId) -> Option<Found> {
        let [a, b] = self.own(scaled, "mul", None)?;
        let of = |normalized: ValueId, gamma: ValueId| Some((self.normalized(normalized)?, gamma));
        let ((difference, epsilon), gamma) = of(a, b).or_else(|| of(b, a))?;
        // Twice in the square, and once behind it.
        let [x, mean] = self.kernel(difference, "sub", None).filter(|_| self.readers[difference.index()] == 3)?;
        let [of] = self.own(self.repeated(mean).filter(|_| self.is_own(mean))?, "mean", self.last_axis(x))?;
        let (gamma, beta) = (self.vector(gamma, x)?, self.vector(beta, x)?);
        let call = call("layer_norm", self.last_axis(x), Parameters::new().with("epsilon", epsilon));
        (of == x).then_some(Found { call, operands: smallvec![x, gamma, beta], views: smallvec![] })
    }
}

/// The one element of a tensor of floats.
fn number(tensor: &Tensor) -> Option<f64> {
    match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>().ok()?.first().copied(),
        DType::F32 => tensor.to_vec::<f32>().ok()?.first().copied().map(f64::from),
        DType::F16 => tensor.to_vec::<half::f16>().ok()?.first().copied().map(f64::from),
        DType::BF16 => tensor.to_vec::<half::bf16>().ok()?.first().copied().map(f64::from),
        _ => None,
    }
}
