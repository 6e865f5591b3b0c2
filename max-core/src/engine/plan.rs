//! [`Plan`]: what a loaded model is. A flat list of steps over places in memory, and the table of sizes that they use.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{EngineError, InputRef, MemoryOf, OpRef};
use super::fused::Fused;
use super::metadata::{TensorSpec, signature};
use super::profiling::{GpuProfiling, Labels};
use super::region::Region;
use super::sizes::{Sizes, SizesBuilder};
use crate::compiler::draft::{Draft, Home, Operand, Step, Work};
use crate::compiler::{Context, View};
use crate::driver::launched::Site;
use crate::driver::{Device, DeviceRef, DeviceSpec, DriverError, Tensor};
use crate::dtype::DType;
use crate::graph::{Dim, DimExpr, GraphData, Shape, Type, ValueId};
use crate::kernel::gpu::GpuCopy;
use crate::kernel::table::Access;
use crate::kernel::{BoundKernel, CodeOptions, Constants, GpuError, GpuKernel};

/// Which memory an argument lies in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    Input(u32),
    Constant(u32),
    Output(u32),
    /// Bytes from the start of the arena of that number.
    Arena(u32, i64),
    /// The slot of that number in the arena of that number.
    Slot(u32, u32),
    /// The step needs no memory for it.
    Nowhere,
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
    /// Runs a kernel, with the packed tiles of its constant operands.
    Kernel(BoundKernel, Option<Constants>),
    Region(Region),
    Fused(Box<Fused>, Option<Constants>),
    /// Copies the second argument to the first.
    Copy,
    GpuKernel(GpuKernel),
    GpuCopy(GpuCopy),
    /// Copies the second argument to the first, on another device.
    Transfer {
        to: Device,
        from: Device,
    },
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
    /// The op that it came from, and its line.
    pub name: &'static str,
    pub location: &'static Location<'static>,
    pub device: DeviceRef,
}

/// Intermediate memory on one device.
pub(super) struct PlannedArena {
    pub device: Device,
    /// Bytes whose place is known.
    pub bytes: i64,
    /// The sizes of the buffers in each slot behind them.
    pub slots: Vec<SmallVec<[DimExpr; 2]>>,
}

/// A result: the op that it is of, its dtype, its device and the place of its sizes.
pub(super) struct PlannedOutput {
    pub op: OpRef,
    pub dtype: DType,
    pub device: Device,
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
    pub(super) arenas: Vec<PlannedArena>,
    /// The device of each input.
    pub(super) devices: Vec<Device>,
    /// Whether anything runs or lies elsewhere than on the host.
    pub(super) uses_gpus: bool,
    /// The names that profilers get to see.
    pub(super) labels: Option<Labels>,
}

impl Plan {
    /// The plan, with ranges for profilers.
    pub fn profiled(mut self, mode: GpuProfiling) -> Plan {
        let label = |step: &PlannedStep| {
            let PlannedStep { name, location, device, .. } = step;
            (format!("{name} ({}:{})", location.file(), location.line()), !device.is_cpu())
        };
        self.labels = Labels::new(mode, &self.name, self.steps.iter().map(label));
        self
    }

    /// Flattens a draft.
    pub fn new(graph: &GraphData, draft: Draft, context: &Context<'_>) -> Result<Plan, EngineError> {
        let (name, types) =
            (graph.name.clone(), |ids: &[ValueId]| ids.iter().map(|id| graph.ty(*id).clone()).collect());
        let input_types: Vec<Type> = types(&graph.inputs);
        let output_types: Vec<Type> = types(graph.outputs.as_deref().unwrap_or_default());
        let declared: Vec<Shape> = input_types.iter().map(|ty| ty.shape().clone()).collect();
        let find = |device: DeviceRef| {
            let loaded = DeviceSpec::from(device).load();
            loaded.map_err(|source| driver_error((&name, "load"), device, None, source))
        };
        let mut sizes = SizesBuilder::new(&name, &declared, &draft.checks)?;
        let mut args = Vec::new();
        let mut steps = Vec::with_capacity(draft.steps.len());
        for step in &draft.steps {
            let first = args.len();
            for index in 0..step.operands.len() {
                args.push(arg(&draft, step, index, &mut sizes)?);
            }
            let action = match &step.work {
                Work::Sizes(shape) => Action::Sizes { at: sizes.entries(shape)?, rank: shape.rank() as u32 },
                Work::Transfer => {
                    let [to, from] = [0, 1].map(|i| find(draft.device(&step.operands[i])));
                    Action::Transfer { to: to?, from: from? }
                }
                _ if !step.device.is_cpu() => on_gpu(&name, &draft, step, (&find(step.device)?, context.code))?,
                Work::Kernel(kernel) => Action::Kernel(kernel.clone(), constants(kernel, &args[first..])),
                Work::Region(region) => Action::Region(region.clone()),
                Work::Fused(fused) => Action::Fused(fused.clone(), constants(&fused.program, &args[first..])),
                Work::Copy => Action::Copy,
            };
            let (name, location, device) = (step.name(), step.location, step.device);
            steps.push(PlannedStep { action, args: first..args.len(), name, location, device });
        }
        let mut results = Vec::with_capacity(output_types.len());
        for (ty, id) in output_types.iter().zip(graph.outputs.iter().flatten()) {
            let op = context.op(graph, graph.node(graph.value(*id).node));
            let at = sizes.extent(ty.shape(), ty.dtype(), "output", op.location)? as usize;
            let device = find(ty.device())?;
            results.push(PlannedOutput { op, dtype: ty.dtype(), device, dims: at..at + ty.shape().rank() });
        }
        let mut arenas = Vec::with_capacity(draft.arenas.len());
        for arena in &draft.arenas {
            let compiled = |bytes: &SmallVec<[Dim; 2]>| bytes.iter().map(|dim| sizes.compile(dim)).collect();
            let slots = arena.slots.iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
            arenas.push(PlannedArena { device: find(arena.device)?, bytes: arena.bytes, slots });
        }
        let mut constants = draft.constants;
        // Those that only became parameters of kernels are in no memory of a device.
        for operand in draft.steps.iter().flat_map(|step| &step.operands) {
            let buffer = &draft.buffers[operand.buffer.index()];
            if let Home::Constant(position) = buffer.home
                && let Some(constant) = constants.get_mut(position as usize)
            {
                let moved = constant.to(&find(buffer.device)?);
                *constant = moved.map_err(|source| driver_error((&name, "load"), buffer.device, None, source))?;
            }
        }
        let devices = input_types.iter().map(|ty| find(ty.device())).collect::<Result<Vec<_>, _>>()?;
        let uses_gpus = draft.buffers.iter().any(|buffer| !buffer.device.is_cpu());
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
            constants,
            steps,
            args,
            arenas,
            devices,
            uses_gpus,
            labels: None,
        })
    }

    /// An input, for messages.
    #[cold]
    pub(super) fn input(&self, index: usize) -> Box<InputRef> {
        let spec = &self.inputs[index];
        Box::new(InputRef { model: self.name.clone(), index, name: spec.name.clone(), ty: spec.ty.clone() })
    }
}

/// Where the packed tiles of a kernel's constant operands are kept.
fn constants(kernel: &BoundKernel, args: &[Arg]) -> Option<Constants> {
    kernel.constants(args.iter().map(|arg| matches!(arg.memory, Memory::Constant(_))))
}

/// What a step does on a GPU: its kernel, loaded there.
fn on_gpu(model: &Arc<str>, draft: &Draft, step: &Step, device: (&Device, CodeOptions)) -> Result<Action, EngineError> {
    // Merging axes makes one of those of dense and of repeated operands.
    let one_stride = |view: &View| view.is_contiguous() || view.strides.iter().all(|stride| *stride == 0);
    let rank = match step.operands.iter().all(|operand| one_stride(&operand.view)) {
        true => 1,
        false => step.operands.iter().map(|operand| operand.view.dims.len()).max().unwrap_or(1),
    };
    let site = Site::of(step.name(), Some(step.location));
    let launched = |kernel: GpuKernel| Action::GpuKernel(kernel.at(site));
    let made = match &step.work {
        Work::Kernel(kernel) => kernel.on_gpu_for(device, rank).map(launched),
        Work::Region(region) => region.on_gpu(device, rank).map(launched),
        Work::Fused(fused) => fused.on_gpu(device).map(launched),
        // Transfers and sizes are no work of a GPU.
        Work::Copy | Work::Transfer | Work::Sizes(_) => {
            let element = |operand: &Operand| draft.buffers[operand.buffer.index()].dtype.size_in_bytes();
            let size = step.operands.first().map_or(1, element);
            GpuCopy::new(device.0, size, rank, site).map(Action::GpuCopy)
        }
    };
    made.map_err(|source| gpu_error((model, "load"), (step.name(), step.location), device.0.into(), source))
}

/// What a GPU says of an op.
#[cold]
pub(super) fn gpu_error(
    (model, call): (&Arc<str>, &'static str),
    (name, location): (&'static str, &'static Location<'static>),
    device: DeviceRef,
    source: impl Into<GpuError>,
) -> EngineError {
    match source.into() {
        // Lost before this op, or with others.
        GpuError::Driver(source @ DriverError::DeviceLost { .. }) if !is_lost_in(&source, name, location) => {
            driver_error((model, call), device, None, source)
        }
        source => {
            let op = OpRef { model: model.clone(), op: name.into(), location };
            EngineError::Gpu { op, device, source: Box::new(source) }
        }
    }
}

/// Whether it is this op that a device was lost in.
fn is_lost_in(error: &DriverError, name: &str, location: &Location<'_>) -> bool {
    let DriverError::DeviceLost { launched, .. } = error else { return false };
    launched.only().is_some_and(|only| only.op == name && only.location == Some(location))
}

/// What a device says, or the system, outside of an op, in a call of a session or a model.
#[cold]
pub(super) fn driver_error(
    (model, call): (&Arc<str>, &'static str),
    device: DeviceRef,
    of: Option<MemoryOf>,
    source: DriverError,
) -> EngineError {
    let model = model.clone();
    match (&source, of) {
        (DriverError::OutOfMemory { .. } | DriverError::SizeOverflow { .. }, of) => {
            EngineError::Memory { model, of: of.map(Box::new), source }
        }
        (_, Some(of)) if !matches!(source, DriverError::DeviceLost { .. }) => {
            EngineError::Memory { model, of: Some(Box::new(of)), source }
        }
        _ => EngineError::Driver { model, device, call, source },
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
    let arena = || draft.arenas.iter().position(|arena| arena.device == buffer.device).unwrap_or(0) as u32;
    let memory = match buffer.home {
        Home::Input(i) => Memory::Input(i),
        Home::Constant(i) => Memory::Constant(i),
        Home::Output(i) => Memory::Output(i),
        Home::At(bytes) => Memory::Arena(arena(), bytes),
        Home::Slot(i) => Memory::Slot(arena(), i),
        // The planner has placed everything else that a step touches.
        Home::Inside | Home::Arena => Memory::Nowhere,
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
