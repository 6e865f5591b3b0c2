//! [`Plan`]: what a loaded model is. A flat list of steps over places in memory, and the table of sizes that they use.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{EngineError, InputRef};
use super::metadata::{TensorSpec, signature};
use super::region::Region;
use super::sizes::{Sizes, SizesBuilder};
use crate::compiler::draft::{Draft, Home, Step, Work};
use crate::compiler::{Context, View};
use crate::driver::{Device, DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::{Dim, DimExpr, GraphData, Shape, Type, ValueId};
use crate::kernel::BoundKernel;
use crate::kernel::table::{Access, KernelKind};

/// Which memory an argument lies in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    Input(u32),
    Constant(u32),
    Output(u32),
    /// Bytes from the arena's start.
    Arena(i64),
    Slot(u32),
}

/// An argument of a step. `offset`, `dims` and `strides` are places in the table of sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arg {
    pub memory: Memory,
    pub offset: u32,
    pub dims: u32,
    pub strides: u32,
    pub rank: u32,
    pub element_size: u32,
    pub written: bool,
}

/// What a planned step does.
pub(super) enum Action {
    Kernel(BoundKernel),
    Region(Region),
    /// Copies the second argument to the first.
    Copy,
    /// Writes `rank` entries of the table, from `at` on, to the one argument.
    Sizes {
        at: u32,
        rank: u32,
    },
}

/// A step and its arguments, a range of [`Plan::args`].
pub(super) struct PlannedStep {
    pub action: Action,
    pub args: Range<usize>,
}

/// A result: its dtype and the place of its sizes.
pub(super) struct PlannedOutput {
    pub dtype: DType,
    pub dims: Range<usize>,
}

/// A model ready to execute.
pub(crate) struct Plan {
    pub(super) name: Arc<str>,
    pub(super) signature: Arc<str>,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) results: Vec<PlannedOutput>,
    pub(super) sizes: Sizes,
    pub(super) constants: Vec<Tensor>,
    pub(super) steps: Vec<PlannedStep>,
    pub(super) args: Vec<Arg>,
    /// Bytes of the arena whose place is known.
    pub(super) arena_bytes: i64,
    /// The sizes of the buffers in each slot behind them.
    pub(super) slots: Vec<SmallVec<[DimExpr; 2]>>,
    pub(super) device: Device,
}

impl Plan {
    /// Flattens a draft.
    pub fn new(graph: &GraphData, draft: Draft, context: &Context<'_>) -> Result<Plan, EngineError> {
        let (name, types) =
            (graph.name.clone(), |ids: &[ValueId]| ids.iter().map(|id| graph.ty(*id).clone()).collect());
        let input_types: Vec<Type> = types(&graph.inputs);
        let output_types: Vec<Type> = types(graph.outputs.as_deref().unwrap_or_default());
        let declared: Vec<Shape> = input_types.iter().map(|ty| ty.shape().clone()).collect();
        let mut sizes = SizesBuilder::new(&name, &declared, &draft.checks)?;
        let mut args = Vec::new();
        let mut steps = Vec::with_capacity(draft.steps.len());
        for step in &draft.steps {
            let first = args.len();
            for index in 0..step.operands.len() {
                args.push(arg(&draft, step, index, &mut sizes)?);
            }
            let action = match &step.work {
                Work::Kernel(kernel) => Action::Kernel(kernel.clone()),
                Work::Region(region) => Action::Region(region.clone()),
                Work::Copy => Action::Copy,
                Work::Sizes(shape) => Action::Sizes { at: sizes.entries(shape)?, rank: shape.rank() as u32 },
            };
            steps.push(PlannedStep { action, args: first..args.len() });
        }
        let mut results = Vec::with_capacity(output_types.len());
        for (ty, id) in output_types.iter().zip(graph.outputs.iter().flatten()) {
            let location = graph.node(graph.value(*id).node).location;
            let at = sizes.extent(ty.shape(), ty.dtype(), "output", location)? as usize;
            results.push(PlannedOutput { dtype: ty.dtype(), dims: at..at + ty.shape().rank() });
        }
        let compiled = |bytes: &SmallVec<[Dim; 2]>| bytes.iter().map(|dim| sizes.compile(dim)).collect();
        let slots = draft.slots.iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
        let inputs = specs("input", input_types);
        let outputs = specs("output", output_types);
        debug_assert!(context.devices.contains(&DeviceRef::CPU) || draft.steps.is_empty());
        Ok(Plan {
            signature: signature(&name, &inputs, &outputs).into(),
            name,
            inputs,
            outputs,
            results,
            sizes: sizes.finish(),
            constants: draft.constants,
            steps,
            args,
            arena_bytes: draft.arena_bytes,
            slots,
            device: Device::cpu(),
        })
    }

    /// An input, for messages.
    #[cold]
    pub(super) fn input(&self, index: usize) -> Box<InputRef> {
        let spec = &self.inputs[index];
        Box::new(InputRef { model: self.name.clone(), index, name: spec.name.clone(), ty: spec.ty.clone() })
    }

    /// Whether all the work of an execution stays on the calling thread.
    pub(super) fn is_light(&self, table: &[i64]) -> bool {
        self.steps.iter().all(|step| {
            let elements = |arg: &Arg| table[arg.dims as usize..][..arg.rank as usize].iter().product::<i64>();
            let light = self.args[step.args.clone()].iter().map(elements).sum::<i64>() <= 8 * 1024;
            let parallel = match &step.action {
                Action::Kernel(kernel) => kernel.def().kind == KernelKind::Program && kernel.dense(),
                Action::Region(_) | Action::Copy | Action::Sizes { .. } => false,
            };
            light && !parallel
        })
    }
}

fn specs(prefix: &str, types: Vec<Type>) -> Vec<TensorSpec> {
    let spec = |(i, ty)| TensorSpec { name: format!("{prefix}{i}").into(), ty };
    types.into_iter().enumerate().map(spec).collect()
}

fn arg(draft: &Draft, step: &Step, index: usize, sizes: &mut SizesBuilder) -> Result<Arg, EngineError> {
    let operand = &step.operands[index];
    let buffer = &draft.buffers[operand.buffer.index()];
    let View { offset, dims, strides } = &operand.view;
    let memory = match buffer.home {
        Home::Input(i) => Memory::Input(i),
        Home::Constant(i) => Memory::Constant(i),
        Home::Output(i) => Memory::Output(i),
        Home::At(bytes) => Memory::Arena(bytes),
        Home::Slot(i) => Memory::Slot(i),
        // Not reached: the planner has placed everything that a step touches.
        Home::Arena => Memory::Arena(0),
    };
    Ok(Arg {
        memory,
        offset: sizes.entries(std::slice::from_ref(offset))?,
        dims: sizes.extent(dims, buffer.dtype, step.name(), step.location)?,
        strides: sizes.entries(strides)?,
        rank: dims.len() as u32,
        element_size: buffer.dtype.size_in_bytes() as u32,
        written: step.access(index) != Access::In,
    })
}
