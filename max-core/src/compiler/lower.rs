//! Lowering: from the graph's ops to steps over buffers.
//!
//! Views cost nothing here: reshape, permute, broadcast and slice become strides over the buffer of another value, and a
//! copy is added only where a kernel cannot walk them. Elementwise kernels walk any strides; tile programs take any but
//! the last, which has to be 1. A row kernel's operands are shown to it as matrices with the row's axis last; where that
//! axis is not the contiguous one, what has a kernel over `[outer, axis, inner]` goes to that: reductions, `softmax`,
//! `logsoftmax` and `cumsum`.

use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::context::Context;
use super::partition::{MANY_ELEMENTS, divided, rows_serve_better};
use super::schedule::{BufferId, Compiled, Home, Operand, Operands, RegionOperands, Schedule, Step, Work};
use super::view::{View, product};
use crate::driver::{DeviceRef, Tensor, UninitTensor};
use crate::dtype::DType;
use crate::graph::{Dim, GraphData, KernelCall, Node, Op, ParamValue, Shape, SliceAxes, SliceAxis, ValueId};
use crate::hash_map::{HashMap, HashSet};
use crate::kernel::abi::{Access, KernelDef, KernelKind, OperandDef, ParamDef};
use crate::kernel::copy::copy_strided;
use crate::kernel::{ParamArg, TensorArg};
use crate::plan::error::{EngineError, OperandError};
use crate::plan::sizes::Check;

/// Constants are brought into another order at load if the result is not larger than the constant, or than this.
const REORDER_BYTES: usize = 1 << 20;

/// With fewer columns than this, rows are copied together first: vectors across so few are mostly empty.
const FEW_COLUMNS: i64 = 8;
/// The same where all rows are written: then they are copied back as well.
const FEW_MAPPED: i64 = 4;
/// Fewer programs than this leave multiprocessors of a GPU idle.
const FEW_BLOCKS: i64 = 128;

/// Turns a graph into steps.
///
/// `compile` runs all passes on a region.
pub(super) fn lower(graph: &GraphData, context: &Context<'_>, compile: Compile<'_>) -> Result<Schedule, EngineError> {
    let inputs = graph.inputs.iter().flat_map(|id| graph.ty(*id).shape().parameters());
    let around = (0..graph.inherited).map(|number| Arc::from(graph.symbols.name(number)));
    let mut lowering = Lowering {
        compile,
        named: inputs.map(|name| Arc::from(name.name())).chain(around).collect(),
        graph,
        context,
        schedule: Schedule { check_indices: context.check_indices, ..Schedule::default() },
        operands: vec![None; graph.values.len()],
        last_use: last_uses(graph),
        writes: writes(graph, context)?,
        reordered: HashMap::default(),
        destinations: HashMap::default(),
    };
    // Most nodes make a step and a buffer; what is too much is never touched.
    lowering.schedule.steps.reserve(graph.nodes.len());
    lowering.schedule.buffers.reserve(graph.nodes.len());
    lowering.find_destinations();
    for (index, node) in graph.nodes.iter().enumerate() {
        lowering.node(index, node)?;
    }
    lowering.outputs();
    Ok(lowering.schedule)
}

/// The last node that reads each value, also through views; outputs are read at the end.
fn last_uses(graph: &GraphData) -> Vec<usize> {
    let mut last = vec![0; graph.values.len()];
    for output in graph.outputs.iter().flatten() {
        last[output.index()] = usize::MAX;
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let is_view = node.op.is_view();
        let through = if is_view { last[node.first_result.index()] } else { 0 };
        for (position, operand) in node.operands.iter().enumerate() {
            // Behind a fence stands the same memory.
            let through = match node.op {
                Op::Fence => node.results().nth(position).map_or(0, |result| last[result.index()]),
                _ => through,
            };
            let slot = &mut last[operand.index()];
            *slot = (*slot).max(index).max(through);
        }
    }
    last
}

/// The nodes that write each buffer.
fn writes(graph: &GraphData, context: &Context<'_>) -> Result<BTreeSet<(ValueId, usize)>, EngineError> {
    let mut writes = BTreeSet::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.chain.is_some()) {
        match &node.op {
            Op::BufferStore | Op::BufferStoreSlice(_) => {
                writes.extend(node.operands.first().map(|buffer| (*buffer, index)))
            }
            Op::Kernel(call) => {
                let def = context.kernel(graph, node, call)?;
                let inputs = def.operands.as_slice().iter().filter(|operand| operand.access != Access::Out);
                for (operand, value) in inputs.zip(&node.operands) {
                    if operand.access == Access::InOut {
                        writes.insert((*value, index));
                    }
                }
            }
            Op::Cond { .. } | Op::While { .. } => {
                let first = usize::from(matches!(node.op, Op::Cond { .. }));
                for (_, region) in node.op.regions() {
                    let inside = self::writes(region, context)?;
                    let is_written = |id: &ValueId| inside.range((*id, 0)..=(*id, usize::MAX)).next().is_some();
                    let inputs = region.inputs.iter().zip(&node.operands[first..]);
                    writes.extend(inputs.filter(|(id, _)| is_written(id)).map(|(_, value)| (*value, index)));
                }
            }
            _ => {}
        }
    }
    Ok(writes)
}

/// Runs all passes on a region.
pub(super) type Compile<'a> = &'a dyn Fn(GraphData) -> Result<(GraphData, Schedule), EngineError>;

pub(super) struct Lowering<'a> {
    compile: Compile<'a>,
    /// The names that have a size until here.
    named: HashSet<Arc<str>>,
    pub(super) graph: &'a GraphData,
    pub(super) context: &'a Context<'a>,
    schedule: Schedule,
    /// Where each value is, by value.
    operands: Vec<Option<Operand>>,
    last_use: Vec<usize>,
    writes: BTreeSet<(ValueId, usize)>,
    /// Copies in row-major order that were made already.
    reordered: HashMap<(BufferId, View), Operand>,
    /// Where results of kernels are written that are parts of a concatenation, and where concatenations lie.
    pub(super) destinations: HashMap<ValueId, Operand>,
}

impl Lowering<'_> {
    fn node(&mut self, index: usize, node: &Node) -> Result<(), EngineError> {
        self.context.check_device(self.graph, node)?;
        let result = node.first_result;
        let dims = |id: ValueId| self.graph.ty(id).shape().dims();
        let first = |lowering: &Self| node.operands.first().and_then(|id| lowering.operands[id.index()].clone());
        let location = node.location;
        let operand = match &node.op {
            Op::Input(position) => {
                let ty = self.graph.ty(result);
                let home = Home::Input(*position as u32);
                let buffer = self.schedule.buffer(home, ty.device(), ty.dtype(), product(ty.shape()));
                Some(Operand { buffer, view: View::contiguous(ty.shape()) })
            }
            Op::Constant(tensor) => {
                let buffer = self.schedule.constant(tensor.clone(), self.graph.ty(result).device());
                Some(Operand { buffer, view: View::contiguous(dims(result)) })
            }
            // Constants by now.
            Op::ConstantExternal(_) => None,
            Op::TransferTo => first(self).map(|x| self.transfer(x, self.graph.ty(result).device(), location)),
            Op::Permute(axes) => first(self).map(|x| Operand { view: x.view.permute(axes), ..x }),
            Op::BroadcastTo => first(self).map(|x| Operand { view: x.view.broadcast_to(dims(result)), ..x }),
            Op::Reshape => first(self).map(|x| self.reshape(&x, dims(result), location)),
            Op::Slice(axes) => {
                let shape = node.operands.first().map(|id| self.graph.ty(*id).shape().clone()).unwrap_or_default();
                self.check_slice("slice", shape, axes, self.graph.ty(result).shape().clone(), location);
                first(self).map(|x| Operand { view: x.view.slice(axes, dims(result)), ..x })
            }
            Op::SlidingWindow(window) => {
                first(self).map(|x| Operand { view: x.view.windows(window, dims(result)), ..x })
            }
            Op::Rebind { message } => {
                let actual = node.operands.first().map(|id| self.graph.ty(*id).shape().clone()).unwrap_or_default();
                let declared = self.graph.ty(result).shape().clone();
                let stage = actual.iter().map(|dim| self.schedule.stage(dim)).max().unwrap_or(0);
                self.name(&declared, stage);
                if actual != declared {
                    self.schedule.checks.push(Check::Rebind { actual, declared, message: message.clone(), location });
                }
                first(self).map(|x| Operand { view: x.view.renamed(dims(result)), ..x })
            }
            Op::ShapeToTensor(shape) => {
                let target = self.fresh(DType::I64, node.device, dims(result));
                self.step(Work::Sizes(shape.clone()), smallvec![target.clone()], location);
                Some(target)
            }
            Op::Concat(axis) => Some(self.concat(node, *axis)),
            Op::BufferLoad => first(self).map(|x| match self.written_before_read(node, index) {
                true => self.copy(&x, location),
                false => x,
            }),
            Op::BufferStore | Op::BufferStoreSlice(_) => {
                if let [buffer, value] = node.operands[..]
                    && let (Some(mut to), Some(from)) =
                        (self.operands[buffer.index()].clone(), self.operands[value.index()].clone())
                {
                    if let Op::BufferStoreSlice(axes) = &node.op {
                        let [whole, part] = [buffer, value].map(|id| self.graph.ty(id).shape().clone());
                        self.check_slice("buffer_store_slice", whole, axes, part, location);
                        to.view = to.view.slice(axes, dims(value));
                    }
                    self.step(Work::Copy, smallvec![to, from], location);
                }
                None
            }
            Op::Kernel(call) => return self.kernel(node, call),
            Op::BindDims(declared) => {
                self.bind_dims(node, declared);
                None
            }
            Op::Cond { .. } | Op::While { .. } => return self.regions(node),
            // The passes before this one put its nodes in its place.
            Op::Call { .. } => None,
            Op::MergeChains => {
                self.step(Work::Fence, SmallVec::new(), location);
                None
            }
            Op::Print { label } => {
                let operand = first(self).map(|x| self.in_rows(x, location));
                self.step(Work::Print(label.clone()), operand.into_iter().collect(), location);
                None
            }
            Op::Fence => {
                for (result, operand) in node.results().zip(&node.operands) {
                    self.operands[result.index()] = self.operands[operand.index()].clone();
                }
                self.step(Work::Fence, SmallVec::new(), location);
                return Ok(());
            }
        };
        if node.result_count > 0 {
            self.operands[result.index()] = operand;
        }
        Ok(())
    }

    /// Has a slice checked at execution if it is not known to be inside.
    fn check_slice(
        &mut self,
        op: &'static str,
        shape: Shape,
        axes: &SliceAxes,
        taken: Shape,
        location: &'static Location<'static>,
    ) {
        let is_inside = |((dim, taken), axis): ((&Dim, &Dim), &SliceAxis)| {
            let is_whole = axis.start == 0 && axis.step == 1 && dim == taken;
            is_whole || dim.is_static() && taken.is_static() && axis.start.is_static()
        };
        if !shape.iter().zip(taken.iter()).zip(axes).all(is_inside) {
            self.schedule.checks.push(Check::Slice { op, shape, axes: axes.clone(), taken, location });
        }
    }

    /// Whether a buffer that `node` loads is written before the last use of what was loaded.
    fn written_before_read(&self, node: &Node, index: usize) -> bool {
        let last_use = self.last_use[node.first_result.index()];
        let Some(&buffer) = node.operands.first() else { return false };
        last_use > index && self.writes.range((buffer, index + 1)..=(buffer, last_use)).next().is_some()
    }

    fn step(&mut self, work: Work, operands: Operands, location: &'static Location<'static>) {
        self.step_with(work, operands, location, SmallVec::new());
    }

    fn step_with(
        &mut self,
        work: Work,
        operands: Operands,
        location: &'static Location<'static>,
        params: SmallVec<[(u32, Dim); 1]>,
    ) {
        let device = operands.first().map_or(DeviceRef::CPU, |operand| self.schedule.device(operand));
        self.schedule.steps.push(Step { work, operands, device, location, params });
    }

    /// Notes that the names that stand alone on an axis have a size from a stage on, if they are new.
    fn name(&mut self, shape: &Shape, stage: u32) {
        for dim in shape.iter() {
            if let Dim::Symbolic(name) = dim
                && self.named.insert(Arc::from(name.name()))
                && stage > 0
            {
                self.schedule.stages.insert(Arc::from(name.name()), stage);
            }
        }
    }

    /// A step that reads sizes, and begins a stage.
    fn bind_dims(&mut self, node: &Node, declared: &Shape) {
        let Some(sizes) = node.operands.first().and_then(|id| self.operands[id.index()].clone()) else { return };
        let sizes = self.in_rows(sizes, node.location);
        self.schedule.last_stage += 1;
        let stage = self.schedule.last_stage;
        self.name(declared, stage);
        let (declared, op, location) = (declared.clone(), "bind_dims", node.location);
        self.schedule.checks.push(Check::Bind { declared, stage, op, location });
        self.step(Work::Bind(stage), smallvec![sizes], location);
    }

    /// The same elements in row-major order, which they may be in already.
    fn in_rows(&mut self, value: Operand, location: &'static Location<'static>) -> Operand {
        if value.view.is_contiguous() { value } else { self.reorder(&value, location) }
    }

    /// A step that runs regions.
    fn regions(&mut self, node: &Node) -> Result<(), EngineError> {
        let mut compiled: SmallVec<[Compiled; 2]> = SmallVec::new();
        for (_, region) in node.op.regions() {
            let (graph, schedule) = (self.compile)((**region).clone())?;
            compiled.push(Compiled { graph, schedule });
        }
        let Ok(compiled) = <[Compiled; 2]>::try_from(compiled.into_iter().collect::<Vec<_>>()) else { return Ok(()) };
        let is_loop = matches!(node.op, Op::While { .. });
        let mut operands: Operands = SmallVec::new();
        for _ in 0..=usize::from(is_loop) {
            for result in node.results() {
                let ty = self.graph.ty(result);
                operands.push(self.fresh(ty.dtype(), ty.device(), ty.shape().dims()));
            }
        }
        let (written, results) = (operands.len(), node.result_count as usize);
        for (result, value) in node.results().zip(&operands) {
            self.operands[result.index()] = Some(value.clone());
        }
        for id in &node.operands {
            let Some(value) = self.operands[id.index()].clone() else { continue };
            operands.push(self.in_rows(value, node.location));
        }
        let inputs = written + usize::from(!is_loop);
        let of = RegionOperands { written, results, inputs, changes: node.chain.is_some() };
        let compiled = Box::new(compiled);
        let work = if is_loop { Work::While(compiled, of) } else { Work::Cond(compiled, of) };
        self.step(work, operands, node.location);
        Ok(())
    }

    /// Whether a name has a size.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.named.contains(name)
    }

    /// A new intermediate value in row-major order.
    pub(super) fn fresh(&mut self, dtype: DType, device: DeviceRef, dims: &[Dim]) -> Operand {
        let buffer = self.schedule.buffer(Home::Arena, device, dtype, product(dims));
        Operand { buffer, view: View::contiguous(dims) }
    }

    /// A copy in row-major order, made where the steps stand now.
    fn copy(&mut self, from: &Operand, location: &'static Location<'static>) -> Operand {
        let dtype = self.schedule.buffers[from.buffer.index()].dtype;
        let to = self.fresh(dtype, self.schedule.device(from), &from.view.dims);
        self.step(Work::Copy, smallvec![to.clone(), from.clone()], location);
        to
    }

    /// A value on another device: of a constant at load, else by a step.
    fn transfer(&mut self, from: Operand, device: DeviceRef, location: &'static Location<'static>) -> Operand {
        if self.schedule.device(&from) == device {
            return from;
        }
        if let Home::Constant(position) = self.schedule.home(&from) {
            let constant = self.schedule.constants[position as usize].clone();
            // A part of a constant, such as a shard of a weight, is all that the device gets.
            let elements = product(&from.view.dims).as_static().and_then(|elements| usize::try_from(elements).ok());
            if elements.is_some_and(|elements| elements < constant.num_elements())
                && let Some(part) = self.reorder_constant(&from)
            {
                let buffer = self.schedule.constant(part, device);
                return Operand { buffer, view: View::contiguous(&from.view.dims) };
            }
            return Operand { buffer: self.schedule.constant(constant, device), view: from.view };
        }
        let from = if from.view.is_contiguous() { from } else { self.reorder(&from, location) };
        let dtype = self.schedule.buffers[from.buffer.index()].dtype;
        let to = self.fresh(dtype, device, &from.view.dims);
        self.step(Work::Transfer, smallvec![to.clone(), from], location);
        to
    }

    /// The same elements in row-major order: of a constant at load, else by a copy, made once.
    fn reorder(&mut self, from: &Operand, location: &'static Location<'static>) -> Operand {
        let key = (from.buffer, from.view.clone());
        if let Some(copy) = self.reordered.get(&key) {
            return copy.clone();
        }
        let copy = match self.reorder_constant(from) {
            Some(constant) => {
                let buffer = self.schedule.constant(constant, self.schedule.device(from));
                Operand { buffer, view: View::contiguous(&from.view.dims) }
            }
            None => self.copy(from, location),
        };
        // The contents of an input buffer may change.
        if !self.is_mutable(from) {
            self.reordered.insert(key, copy.clone());
        }
        copy
    }

    fn is_mutable(&self, operand: &Operand) -> bool {
        let Home::Input(position) = self.schedule.home(operand) else { return false };
        self.graph.inputs.get(position as usize).is_some_and(|id| self.graph.ty(*id).is_buffer())
    }

    fn reorder_constant(&self, from: &Operand) -> Option<Tensor> {
        let Home::Constant(position) = self.schedule.home(from) else { return None };
        let constant = &self.schedule.constants[position as usize];
        let known = |dims: &[Dim]| dims.iter().map(Dim::as_static).collect::<Option<SmallVec<[i64; 4]>>>();
        let (dims, strides) = (known(&from.view.dims)?, known(&from.view.strides)?);
        let shape = dims.iter().map(|dim| usize::try_from(*dim).ok()).collect::<Option<Vec<usize>>>()?;
        let offset = from.view.offset.as_static()?;
        let size = constant.element_size();
        let mut copy = UninitTensor::new(constant.dtype(), &shape, constant.device()).ok()?;
        if copy.num_bytes() > constant.num_bytes().max(REORDER_BYTES) {
            return None;
        }
        let target = View::contiguous(&from.view.dims);
        let to = TensorArg { ptr: copy.as_mut_ptr(), dims: &dims, strides: &known(&target.strides)? };
        let ptr = constant.data_ptr().cast_mut().wrapping_offset(offset as isize * size as isize);
        // SAFETY: the view lies inside the constant, which is only read; the copy has the same dims, and all of it is
        // written with elements of the same dtype.
        unsafe {
            copy_strided(&to, &TensorArg { ptr, dims: &dims, strides: &strides }, size);
            Some(copy.assume_init())
        }
    }

    fn reshape(&mut self, x: &Operand, dims: &[Dim], location: &'static Location<'static>) -> Operand {
        match x.view.reshape(dims) {
            Some(view) => Operand { buffer: x.buffer, view },
            None => Operand { buffer: self.reorder(x, location).buffer, view: View::contiguous(dims) },
        }
    }

    fn concat(&mut self, node: &Node, axis: usize) -> Operand {
        let whole = match self.destinations.get(&node.first_result) {
            Some(whole) => whole.clone(),
            None => {
                let ty = self.graph.ty(node.first_result);
                self.fresh(ty.dtype(), ty.device(), ty.shape())
            }
        };
        let mut start = Dim::Static(0);
        for id in &node.operands {
            let Some(part) = self.operands[id.index()].clone() else { continue };
            let view = whole.view.part(axis, &start, &part.view.dims);
            start = start + &part.view.dims[axis];
            // What was written there needs no copy.
            if part.buffer != whole.buffer {
                self.step(Work::Copy, smallvec![Operand { buffer: whole.buffer, view }, part], node.location);
            }
        }
        whole
    }

    /// An op along an axis whose elements do not lie side by side, by its kernel's form for columns; `None` where rows serve better.
    fn columns(&mut self, node: &Node, call: &KernelCall, def: &'static KernelDef) -> Option<()> {
        let [x] = &node.operands[..] else { return None };
        let of = &self.operands[x.index()].as_ref()?.view;
        let is_matrix = |id: ValueId| self.graph.ty(id).shape().rank() == 2;
        // Where the op has no axis, rows are those of a matrix.
        let (axis, lies) = match call.axis {
            Some(axis) => (axis, of.clone()),
            None if is_matrix(*x) && is_matrix(node.first_result) => (0, of.t()),
            None => return None,
        };
        // Rows of one element are columns of one as well, and those lie side by side in vectors.
        let are_single = lies.dims.get(axis) == Some(&Dim::Static(1)) && lies.is_contiguous();
        if !are_single && lies.rows(axis).and_then(View::with_unit_rows).is_some() {
            return None;
        }
        let [to, _] = def.operands.as_slice() else { return None };
        if node.result_count != 1 {
            return None;
        }
        let dtypes = [node.first_result, *x].map(|id| self.graph.ty(id).dtype());
        let param = |name: &str| call.parameters.get(name).map(param_arg);
        let bound = def.bind(&dtypes, param, self.context.form).ok()?;
        let on_cpu = node.device.is_cpu();
        // The last axis of its grid divides columns.
        let columns = def.grid.as_slice().last().and_then(|axis| bound.block(axis, on_cpu))?;
        let x = self.operands[x.index()].clone()?;
        let (outer, inner) = match are_single {
            true => (Dim::Static(1), product(&lies.dims)),
            false => (product(lies.dims.get(..axis)?), product(lies.dims.get(axis + 1..)?)),
        };
        let is_map = to.rank == 3;
        let few = if is_map { FEW_MAPPED } else { FEW_COLUMNS };
        let is_few = inner.as_static().is_some_and(|inner| inner < few);
        // Rows of which there are many elements are divided among threads better than few columns.
        let is_alone = match (on_cpu, outer.as_static(), inner.as_static().and_then(|inner| u64::try_from(inner).ok()))
        {
            (true, ..) => is_map && rows_serve_better(&outer, &inner, (self.context.threads)()),
            (false, Some(outer), Some(inner)) => outer.saturating_mul(inner.div_ceil(columns) as i64) < FEW_BLOCKS,
            (false, ..) => false,
        };
        let is_alone = is_alone && product(&x.view.dims).as_static().is_some_and(|all| all >= MANY_ELEMENTS);
        if is_few || is_alone {
            return None;
        }
        let view = lies.reshape(&[outer.clone(), lies.dims[axis].clone(), inner.clone()])?.with_unit_rows()?;
        let dims = self.graph.ty(node.first_result).shape().dims();
        let (result, shown) = match (call.axis, dims) {
            // Either all the rows are left, or none is.
            (Some(_), dims) if is_map => (self.fresh(dtypes[0], node.device, dims), View::contiguous(&view.dims)),
            (Some(_), dims) => (self.fresh(dtypes[0], node.device, dims), View::contiguous(&[outer, inner])),
            (None, [rows, row]) if is_map => {
                let result = self.fresh(dtypes[0], node.device, &[row.clone(), rows.clone()]);
                let shown = View::contiguous(&[Dim::Static(1), row.clone(), rows.clone()]);
                (Operand { view: result.view.t(), ..result }, shown)
            }
            (None, [rows, Dim::Static(1)]) => {
                (self.fresh(dtypes[0], node.device, dims), View::contiguous(&[Dim::Static(1), rows.clone()]))
            }
            (None, _) => return None,
        };
        let parts = match on_cpu {
            true => divided(&view, &shown, columns, (self.context.threads)()),
            false => smallvec![(view, shown)],
        };
        self.operands[node.first_result.index()] = Some(result.clone());
        for (view, shown) in parts {
            let to = Operand { buffer: result.buffer, view: shown };
            let operands = smallvec![to, Operand { buffer: x.buffer, view }];
            self.step_with(Work::Kernel(bound.clone()), operands, node.location, dim_params(def, call));
        }
        Some(())
    }

    fn kernel(&mut self, node: &Node, call: &KernelCall) -> Result<(), EngineError> {
        let def = self.context.kernel(self.graph, node, call)?;
        if def.columns.is_some_and(|form| self.columns(node, call, form).is_some()) {
            return Ok(());
        }
        let transposed = def.transposed.filter(|form| self.is_transposed(node, call, form));
        let def = transposed.unwrap_or(def);
        let fail = |source: OperandError| {
            let op = self.context.op(self.graph, node);
            Err(EngineError::Operand { op, signature: def.signature.as_str(), source: source.into() })
        };
        let operands = def.operands.as_slice();
        let (mut inputs, mut results) = (node.operands.iter().copied(), node.results());
        let pick = |operand: &OperandDef| match operand.access {
            Access::Out => results.next(),
            Access::In | Access::InOut => inputs.next(),
        };
        let values: SmallVec<[ValueId; 8]> = operands.iter().map_while(pick).collect();
        let given = node.operands.len() + node.result_count as usize;
        if values.len() != operands.len() || given != operands.len() {
            return fail(OperandError::Count { expected: operands.len(), actual: given });
        }
        let dtypes: SmallVec<[DType; 8]> = values.iter().map(|id| self.graph.ty(*id).dtype()).collect();
        let param = |name: &str| call.parameters.get(name).map(param_arg);
        let bound = def
            .bind(&dtypes, param, self.context.form)
            .map_err(|source| EngineError::Kernel { op: self.context.op(self.graph, node), source: source.into() })?;
        if let Err(source) = self.check_shapes(def, call, &values) {
            return fail(source);
        }
        if let Err(source) = self.check_buffers(def, &values) {
            return fail(source);
        }

        let full_rank = values.iter().map(|id| self.graph.ty(*id).shape().rank()).max().unwrap_or(0);
        let mut arguments = Operands::with_capacity(operands.len());
        for (i, (operand, id)) in operands.iter().zip(&values).enumerate() {
            let shape = self.graph.ty(*id).shape();
            let axis = row_axis(call, operand, shape, full_rank);
            let argument = if operand.access == Access::Out {
                let (value, argument) = self.result(*id, axis);
                self.operands[id.index()] = Some(value);
                argument
            } else {
                let Some(mut value) = self.operands[id.index()].clone() else { continue };
                if transposed.is_some() && i + 1 == operands.len() {
                    value.view = value.view.t();
                }
                if operand.access == Access::In && self.is_changed_by(def, &values, *id) {
                    value = self.copy(&value, node.location);
                }
                match def.kind {
                    KernelKind::Elementwise => value,
                    KernelKind::Program => self.matrix(&value, axis, node.location),
                }
            };
            arguments.push(argument);
        }
        self.step_with(Work::Kernel(bound), arguments, node.location, dim_params(def, call));
        Ok(())
    }

    /// Whether the last operand of an op lies as rows of its transpose, which a form for that reads without a copy.
    fn is_transposed(&self, node: &Node, call: &KernelCall, form: &KernelDef) -> bool {
        let (None, [.., last]) = (call.axis, &node.operands[..]) else { return false };
        let Some(Operand { view, .. }) = &self.operands[last.index()] else { return false };
        let rank = form.operands.as_slice().last().and_then(|operand| usize::try_from(operand.rank).ok());
        rank == Some(view.dims.len())
            && view.dims.len() >= 2
            && view.clone().with_unit_rows().is_none()
            && view.t().with_unit_rows().is_some()
    }

    fn check_shapes(&self, def: &KernelDef, call: &KernelCall, values: &[ValueId]) -> Result<(), OperandError> {
        let shape = |id: &ValueId| self.graph.ty(*id).shape();
        let first = values.first().map(shape).cloned().unwrap_or_default();
        let full_rank = values.iter().map(|id| shape(id).rank()).max().unwrap_or(0);
        for (operand, id) in def.operands.as_slice().iter().zip(values) {
            let (name, shape): (_, &Shape) = (operand.name.as_str(), shape(id));
            match usize::try_from(operand.rank) {
                Err(_) if *shape != first => {
                    let (actual, first) = (Box::new(shape.clone()), Box::new(first));
                    return Err(OperandError::Shape { operand: name, actual, first });
                }
                Ok(_) if row_axis(call, operand, shape, full_rank).is_some() => {}
                Ok(expected) if expected != shape.rank() => {
                    return Err(OperandError::Rank { operand: name, expected, actual: shape.rank() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a kernel changes has to be a buffer, and each one another.
    fn check_buffers(&self, def: &KernelDef, values: &[ValueId]) -> Result<(), OperandError> {
        let changed = || {
            let all = def.operands.as_slice().iter().zip(values);
            all.enumerate().filter(|(_, (operand, _))| operand.access == Access::InOut)
        };
        for (i, (operand, id)) in changed() {
            let name = operand.name.as_str();
            if !self.graph.ty(*id).is_buffer() {
                return Err(OperandError::NotABuffer { operand: name });
            }
            if let Some((_, (other, _))) = changed().find(|(j, (_, other))| *j > i && *other == id) {
                return Err(OperandError::SameBuffer { first: name, second: other.name.as_str() });
            }
        }
        Ok(())
    }

    /// Whether the kernel changes the buffer `id` through another operand.
    fn is_changed_by(&self, def: &KernelDef, values: &[ValueId], id: ValueId) -> bool {
        let mut all = def.operands.as_slice().iter().zip(values);
        all.any(|(operand, other)| operand.access == Access::InOut && *other == id)
    }

    /// Memory for a result: the value, and what the kernel is shown of it.
    ///
    /// Rows along an axis that are not contiguous in the value's own order are made so: the value then has strides.
    fn result(&mut self, id: ValueId, axis: Option<usize>) -> (Operand, Operand) {
        let ty = self.graph.ty(id);
        let (dtype, dims) = (ty.dtype(), ty.shape().dims());
        if let Some(value) = self.destinations.get(&id) {
            return (value.clone(), value.clone());
        }
        let value = self.fresh(dtype, ty.device(), dims);
        let Some(axis) = axis else { return (value.clone(), value) };
        let buffer = value.buffer;
        if let Some(view) = value.view.rows(axis).and_then(View::with_unit_rows) {
            return (value, Operand { buffer, view });
        }
        let order = View::rows_order(dims.len(), axis);
        let mut back = order.clone();
        order.iter().enumerate().for_each(|(i, axis)| back[*axis] = i);
        let ordered: SmallVec<[Dim; 4]> = order.iter().map(|axis| dims[*axis].clone()).collect();
        let view = View::contiguous(&ordered);
        let rows =
            View::contiguous(&[product(&ordered[..axis_count(&ordered)]), ordered[axis_count(&ordered)].clone()]);
        (Operand { buffer, view: view.permute(&back) }, Operand { buffer, view: rows })
    }

    /// An operand of a tile program: along `axis` as rows if there is one, and with contiguous rows.
    fn matrix(&mut self, value: &Operand, axis: Option<usize>, location: &'static Location<'static>) -> Operand {
        let view = match axis {
            Some(axis) => value.view.rows(axis),
            None => Some(value.view.clone()),
        };
        if let Some(view) = view.and_then(View::with_unit_rows) {
            return Operand { buffer: value.buffer, view };
        }
        let ordered = match axis {
            Some(axis) => value.view.permute(&View::rows_order(value.view.dims.len(), axis)),
            None => value.view.clone(),
        };
        let copy = self.reorder(&Operand { buffer: value.buffer, view: ordered }, location);
        let dims = &copy.view.dims;
        let view = match axis {
            Some(_) => View::contiguous(&[product(&dims[..axis_count(dims)]), dims[axis_count(dims)].clone()]),
            None => copy.view,
        };
        Operand { buffer: copy.buffer, view }
    }

    /// Results are written where they are returned from; what is no buffer of its own is copied at the end.
    fn outputs(&mut self) {
        for (position, id) in self.graph.outputs.iter().flatten().enumerate() {
            let Some(value) = self.operands[id.index()].clone() else { continue };
            let home = Home::Output(position as u32);
            let buffer = &mut self.schedule.buffers[value.buffer.index()];
            let ty = self.graph.ty(*id);
            let elements = product(ty.shape());
            if buffer.home == Home::Arena && value.view.is_whole() && buffer.elements == elements {
                buffer.home = home;
                continue;
            }
            let buffer = self.schedule.buffer(home, ty.device(), ty.dtype(), elements);
            let to = Operand { buffer, view: View::contiguous(ty.shape()) };
            let location = self.graph.node(self.graph.value(*id).node).location;
            self.step(Work::Copy, smallvec![to, value], location);
        }
    }
}

/// The axis along which an operand is shown to a row kernel as a matrix; tensors of lower rank are taken as they are.
fn row_axis(call: &KernelCall, operand: &OperandDef, shape: &Shape, full_rank: usize) -> Option<usize> {
    let is_matrix = operand.rank == 2 && operand.access != Access::InOut && shape.rank() == full_rank;
    call.axis.filter(|axis| is_matrix && *axis < full_rank)
}

/// The number of axes before the last.
fn axis_count(dims: &[Dim]) -> usize {
    dims.len().saturating_sub(1)
}

/// The parameters of a kernel that are computed at each execution.
fn dim_params(def: &KernelDef, call: &KernelCall) -> SmallVec<[(u32, Dim); 1]> {
    let value = |param: &ParamDef| match call.parameters.get(param.name.as_str()) {
        Some(ParamValue::Dim(dim)) => Some(dim.clone()),
        _ => None,
    };
    (0..).zip(def.params.as_slice()).filter_map(|(i, param)| Some((i, value(param)?))).collect()
}

fn param_arg(value: &ParamValue) -> ParamArg<'_> {
    match value {
        ParamValue::Int(value) => ParamArg::Int(*value),
        ParamValue::Dim(_) => ParamArg::Dynamic,
        ParamValue::Bool(value) => ParamArg::Bool(*value),
        ParamValue::Float(value) => ParamArg::Float(*value),
        ParamValue::String(value) => ParamArg::String(value),
        ParamValue::DType(value) => ParamArg::DType(*value),
    }
}
