//! Whether a node of a graph that was read from a text is one that ops could have added: what the compiler relies on.

use crate::dtype::DType;
use crate::graph::builder::site::type_error;
use crate::graph::node::{GraphData, Node, Op, SliceAxis, Window};
use crate::graph::symbolic::bind::Symbols;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::Type;

type Checked = Result<(), String>;

/// Checks a node whose results are the last values of the graph.
pub(super) fn verify(graph: &GraphData, node: &Node) -> Checked {
    let results: Vec<&Type> = node.results().map(|id| graph.ty(id)).collect();
    let operands: Vec<&Type> = node.operands.iter().map(|id| graph.ty(*id)).collect();
    for ty in &results {
        if let Some(kind) = type_error(ty) {
            return Err(kind.to_string());
        }
        known(&graph.symbols, ty.shape())?;
        if ty.is_buffer() {
            return Err("no node makes a buffer".to_owned());
        }
    }
    let count = |given: usize, made: usize| -> Checked {
        if (operands.len(), results.len()) == (given, made) {
            return Ok(());
        }
        let (a, b) = (operands.len(), results.len());
        Err(format!("it has {a} operands and {b} results, not {given} and {made}"))
    };
    let holds = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    let has_effect = |expected: bool| -> Checked {
        holds(node.chain.is_some() == expected, if expected { "it is an `effect`" } else { "it is no `effect`" })
    };
    let like = |a: &Type, b: &Type| a.dtype() == b.dtype() && a.device() == b.device();
    let is_view = |ranks: bool| -> Checked {
        count(1, 1)?;
        has_effect(false)?;
        holds(!operands[0].is_buffer(), "a buffer is read by `buffer_load`")?;
        holds(like(operands[0], results[0]), "operand and result differ in dtype or device")?;
        let (from, to) = (operands[0].shape().rank(), results[0].shape().rank());
        holds(!ranks || from == to, "operand and result differ in rank")
    };
    match &node.op {
        Op::Input(_) => Err("an input stands at the head of its graph".to_owned()),
        Op::Constant(_) => count(0, 1).and(has_effect(false)),
        Op::ConstantExternal(_) => {
            count(0, 1).and(has_effect(false))?;
            holds(results[0].shape().is_static(), "the shape of a weight is static")
        }
        Op::Kernel(call) => {
            let rank = operands.iter().chain(&results).map(|ty| ty.shape().rank()).max().unwrap_or(0);
            holds(call.axis.is_none_or(|axis| axis < rank), "its axis is out of range")?;
            let devices = operands.iter().chain(&results).map(|ty| ty.device());
            holds({ devices }.all(|device| device == node.device), "its operands and results are on several devices")?;
            let buffers = operands.iter().any(|ty| ty.is_buffer());
            has_effect(buffers)?;
            for (_, value) in call.parameters.iter() {
                if let crate::graph::parameters::ParamValue::Dim(dim) = value {
                    known(&graph.symbols, &Shape::from([dim.clone()]))?;
                }
            }
            Ok(())
        }
        Op::Reshape => {
            is_view(false)?;
            let (from, to) = (operands[0].shape().num_elements(), results[0].shape().num_elements());
            holds(from == to, "the number of elements changes")
        }
        Op::Permute(axes) => {
            is_view(true)?;
            let (from, to) = (operands[0].shape(), results[0].shape());
            let all = axes.len() == from.rank() && (0..from.rank()).all(|axis| axes.contains(&axis));
            holds(all && axes.iter().zip(to.iter()).all(|(axis, dim)| from[*axis] == *dim), "it is no permutation")
        }
        Op::BroadcastTo => {
            is_view(false)?;
            holds(operands[0].shape().broadcasts_to(results[0].shape()), "the operand does not broadcast to the result")
        }
        Op::Slice(axes) => {
            is_view(true)?;
            part(graph, axes, operands[0].shape(), results[0].shape())
        }
        Op::SlidingWindow(window) => {
            is_view(false)?;
            windows(window, operands[0].shape(), results[0].shape())
        }
        Op::Concat(axis) => {
            has_effect(false)?;
            holds(!operands.is_empty() && results.len() == 1, "it joins some operands to one result")?;
            let to = results[0].shape();
            holds(*axis < to.rank(), "its axis is out of range")?;
            let mut sum = Dim::Static(0);
            for ty in &operands {
                let same = |(i, dim): (usize, &Dim)| i == *axis || *dim == to[i];
                let fits = ty.shape().rank() == to.rank() && ty.shape().iter().enumerate().all(same);
                holds(fits && like(ty, results[0]) && !ty.is_buffer(), "an operand does not fit the result")?;
                sum = sum + &ty.shape()[*axis];
            }
            holds(sum == to[*axis], "the sizes do not add up")
        }
        Op::Rebind { .. } => is_view(true),
        Op::ShapeToTensor(shape) => {
            count(0, 1).and(has_effect(false))?;
            known(&graph.symbols, shape)?;
            let ty = results[0];
            let fits = ty.dtype() == DType::I64 && ty.device().is_cpu() && ty.shape() == &Shape::from([shape.rank()]);
            holds(fits, "its result is an `int64` vector of the dims, on the CPU")
        }
        Op::BindDims(shape) => {
            count(1, 0).and(has_effect(false))?;
            known(&graph.symbols, shape)?;
            let ty = operands[0];
            let fits = ty.dtype() == DType::I64 && !ty.is_buffer() && ty.shape() == &Shape::from([shape.rank()]);
            holds(fits, "its operand is an `int64` vector of the dims")
        }
        Op::TransferTo => {
            count(1, 1).and(has_effect(false))?;
            let same = operands[0].dtype() == results[0].dtype() && operands[0].shape() == results[0].shape();
            holds(same && !operands[0].is_buffer(), "operand and result differ")
        }
        Op::BufferLoad => {
            count(1, 1).and(has_effect(true))?;
            let same = like(operands[0], results[0]) && operands[0].shape() == results[0].shape();
            holds(same && operands[0].is_buffer(), "the result is what a buffer holds")
        }
        Op::BufferStore | Op::BufferStoreSlice(_) => {
            count(2, 0).and(has_effect(true))?;
            let (to, from) = (operands[0], operands[1]);
            holds(to.is_buffer() && !from.is_buffer() && like(to, from), "a tensor is stored to a buffer like it")?;
            match &node.op {
                Op::BufferStoreSlice(axes) => part(graph, axes, to.shape(), from.shape()),
                _ => holds(to.shape() == from.shape(), "the tensor has another shape than the buffer"),
            }
        }
        Op::Cond { then, otherwise } => {
            let Some((predicate, captures)) = operands.split_first() else { return Err("no predicate".to_owned()) };
            let is_flag = predicate.dtype() == DType::Bool && predicate.shape().rank() == 0 && !predicate.is_buffer();
            holds(is_flag, "its predicate is a `bool` scalar")?;
            has_effect(then.has_effects() || otherwise.has_effects())?;
            for region in [then, otherwise] {
                interface(region, captures, &results)?;
            }
            Ok(())
        }
        Op::While { condition, body } => {
            let carried = operands.get(..results.len()).unwrap_or_default();
            holds(!carried.is_empty() && *carried == results[..], "the results are not as the initial values")?;
            holds(!condition.has_effects(), "its condition has side effects")?;
            has_effect(body.has_effects())?;
            let flag =
                Type::Tensor(crate::graph::types::TensorType::new(DType::Bool, (), crate::driver::DeviceRef::CPU));
            interface(condition, &operands, &[&flag])?;
            interface(body, &operands, &results)
        }
        Op::Call { graph: called, .. } => {
            has_effect(called.has_effects())?;
            let mut names = crate::graph::substitute::Substitution::default();
            holds(called.inputs.len() == operands.len(), "another number of operands than the graph has inputs")?;
            for (ty, id) in operands.iter().zip(&called.inputs) {
                for (dim, declared) in ty.shape().iter().zip(called.ty(*id).shape().iter()) {
                    if let Dim::Symbolic(name) = declared
                        && names.get(name.name()).is_none()
                    {
                        names.insert(name.name(), dim.clone());
                    }
                }
            }
            let mut inputs = operands.iter().zip(&called.inputs);
            holds(inputs.all(|(ty, id)| names.ty(called.ty(*id)) == **ty), "an operand is not as the graph's input")?;
            let outputs: Vec<Type> = called.outputs.iter().flatten().map(|id| names.ty(called.ty(*id))).collect();
            holds(called.outputs.is_some() && outputs.iter().eq(results.iter().copied()), "the results are others")
        }
        Op::Print { .. } => {
            has_effect(true)?;
            holds(operands.len() <= 1 && results.is_empty(), "it prints one tensor, or its label")?;
            holds(!operands.iter().any(|ty| ty.is_buffer()), "a buffer is read by `buffer_load`")
        }
        Op::Fence => {
            has_effect(true)?;
            holds(!operands.iter().any(|ty| ty.is_buffer()) && operands == results, "results are not as the operands")
        }
        Op::MergeChains => count(0, 0).and(has_effect(true)),
    }
}

/// Whether all names have a size.
fn known(symbols: &Symbols, shape: &Shape) -> Checked {
    match shape.parameters().iter().find(|name| symbols.find(name.name()).is_none()) {
        Some(name) => Err(format!("nothing gives `{}` a size", name.name())),
        None => Ok(()),
    }
}

/// Whether a region takes and gives these types.
fn interface(region: &GraphData, inputs: &[&Type], outputs: &[&Type]) -> Checked {
    let inside = region.inputs.iter().map(|id| region.ty(*id));
    if !inside.eq(inputs.iter().copied()) {
        return Err(format!("`{}` has other inputs than what is given to it", region.name));
    }
    match &region.outputs {
        Some(ids) if ids.iter().map(|id| region.ty(*id)).eq(outputs.iter().copied()) => Ok(()),
        _ => Err(format!("`{}` has other outputs than the op's results", region.name)),
    }
}

/// Whether windows lie inside of what they are of.
fn windows(window: &Window, whole: &Shape, taken: &Shape) -> Checked {
    let Window { axis, step, dilation } = *window;
    let is_other = |i: usize| i < axis && whole[i] == taken[i] || i > axis && whole[i] == taken[i + 1];
    if axis >= whole.rank() || taken.rank() != whole.rank() + 1 || !(0..whole.rank()).all(|i| i == axis || is_other(i))
    {
        return Err(
            "the result does not have an axis of windows and one of their elements in place of its axis".to_owned()
        );
    }
    let sizes = [&whole[axis], &taken[axis], &taken[axis + 1]].map(Dim::as_static);
    let [Some(size), Some(count), Some(elements)] = sizes else { return Err("its axis is static".to_owned()) };
    let reach = |count: i64, by: i64| count.checked_sub(1)?.checked_mul(by);
    let last = reach(count, step).zip(reach(elements, dilation)).and_then(|(first, more)| first.checked_add(more));
    if step < 1 || dilation < 1 || !(count == 0 || elements == 0 || last.is_some_and(|last| (0..size).contains(&last)))
    {
        let all = format!("{count} windows of {elements} elements, by {step} and {dilation},");
        return Err(format!("{all} are not inside of {size}"));
    }
    Ok(())
}

/// Whether a part lies inside, as far as it is known: what depends on names is checked when the graph is executed.
fn part(graph: &GraphData, axes: &[SliceAxis], whole: &Shape, taken: &Shape) -> Checked {
    if axes.len() != whole.rank() || taken.rank() != whole.rank() {
        return Err("it does not say where it begins on each axis".to_owned());
    }
    for (axis, (size, count)) in axes.iter().zip(whole.iter().zip(taken.iter())) {
        known(&graph.symbols, &Shape::from([axis.start.clone()]))?;
        let (Some(size), Some(count), Some(start)) = (size.as_static(), count.as_static(), axis.start.as_static())
        else {
            continue;
        };
        let last = count.checked_sub(1).and_then(|count| start.checked_add(count.checked_mul(axis.step)?));
        let inside = |at: i64| (0..size).contains(&at);
        let is_empty = count == 0 && (-1..=size).contains(&start);
        if !(is_empty || inside(start) && last.is_some_and(inside)) {
            return Err(format!("{count} elements from {start} on, by {}, are not inside of {size}", axis.step));
        }
    }
    Ok(())
}
