//! The end of compilation: flattens a schedule to a [`Plan`], with kernels loaded on their GPUs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::context::Context;
use super::super::schedule::{Compiled, Home, Operand, Schedule, Step, Work};
use super::super::view::{Layout, View};
use crate::driver::launch_journal::Site;
use crate::driver::{Device, DeviceRef, DeviceSpec, Tensor};
use crate::dtype::DType;
use crate::graph::ops::kernel_facts;
use crate::graph::{Dim, GraphData, Shape, Symbols, Type, ValueId};
use crate::kernel::abi::Access;
use crate::kernel::gpu::GpuCopy;
use crate::kernel::{BoundKernel, CodeOptions, GpuKernel};
use crate::plan::error::{EngineError, driver_error, gpu_error};
use crate::plan::metadata::{TensorSpec, signature};
use crate::plan::shape_classes::ShapeClasses;
use crate::plan::sizes::{SizesBuilder, StageOf};
use crate::plan::{Action, Arg, Memory, Plan, PlannedArena, PlannedOutput, PlannedStep, RegionPlan, Regions};

/// Flattens a schedule.
pub(crate) fn flatten(graph: &GraphData, schedule: Schedule, context: &Context<'_>) -> Result<Plan, EngineError> {
    flatten_in(graph, schedule, context, None)
}

/// Flattens a region, among the names that have a size where it runs.
fn flatten_region(region: Compiled, context: &Context<'_>, around: &Symbols) -> Result<RegionPlan, EngineError> {
    let Compiled { graph, schedule } = region;
    let (mut names, mut inherited) = (Symbols::new(), Vec::new());
    for name in (0..graph.inherited).map(|number| graph.symbols.name(number)) {
        if let Some(number) = around.find(name) {
            inherited.push((number as u32, names.add_name(name) as u32));
        }
    }
    Ok(RegionPlan { plan: flatten_in(&graph, schedule, context, Some(&names))?, inherited })
}

fn flatten_in(
    graph: &GraphData,
    mut schedule: Schedule,
    context: &Context<'_>,
    around: Option<&Symbols>,
) -> Result<Plan, EngineError> {
    let (name, types) = (graph.name.clone(), |ids: &[ValueId]| ids.iter().map(|id| graph.ty(*id).clone()).collect());
    let input_types: Vec<Type> = types(&graph.inputs);
    let output_types: Vec<Type> = types(graph.outputs.as_deref().unwrap_or_default());
    let declared: Vec<Shape> = input_types.iter().map(|ty| ty.shape().clone()).collect();
    let find = |device: DeviceRef| {
        let loaded = DeviceSpec::from(device).load();
        loaded.map_err(|source| driver_error((&name, "load"), device, None, source))
    };
    let constants = constants_of(&name, &schedule)?;
    // What is planned is not copied from the schedule, but taken.
    let scheduled = std::mem::take(&mut schedule.steps);
    let schedule = &schedule;
    let stage = |dim: &Dim| schedule.stage(dim);
    let stages = (&stage as StageOf<'_>, schedule.last_stage);
    let mut sizes = SizesBuilder::new(&name, &declared, &schedule.checks, around, stages)?;
    let mut uses_gpus = schedule.buffers.iter().any(|buffer| !buffer.device.is_cpu());
    // Where the packed tiles of a kernel's constant operands are kept.
    let packed = |kernel: &BoundKernel, args: &[Arg]| {
        let constant = |arg: &Arg| match arg.memory {
            Memory::Constant(index) => constants.get(index as usize).cloned(),
            _ => None,
        };
        kernel.constants(args.iter().map(constant), context.packed)
    };
    let mut args = Vec::new();
    let has_steps = !scheduled.is_empty();
    let mut steps = Vec::with_capacity(scheduled.len());
    for step in scheduled {
        let first = args.len();
        for index in 0..step.operands.len() {
            args.push(arg(schedule, &step, index, &mut sizes)?);
        }
        let (step_name, location, device) = (step.name(), step.location, step.device);
        let is_loop = matches!(step.work, Work::While(..));
        let action = match step.work {
            Work::Kernel(_) | Work::Region(_) | Work::Fused(_) | Work::Copy if !device.is_cpu() => {
                on_gpu(&name, schedule, &step, (&find(device)?, context.code))?
            }
            Work::Sizes(shape) => Action::Sizes { at: sizes.entries(&shape)?, rank: shape.rank() as u32 },
            Work::Transfer => {
                let [to, from] = [0, 1].map(|i| find(schedule.device(&step.operands[i])));
                Action::Transfer { to: to?, from: from? }
            }
            Work::Bind(stage) => {
                let count = step.operands.first().and_then(|sizes| sizes.view.dims.first()?.as_static()).unwrap_or(1);
                Action::Bind { stage, count: count as usize, device: find(step.device)? }
            }
            Work::Cond(regions, of) | Work::While(regions, of) => {
                let mut plans = Vec::with_capacity(regions.len());
                for region in *regions {
                    plans.push(flatten_region(region, context, sizes.symbols())?);
                }
                uses_gpus |= plans.iter().any(|region| region.plan.uses_gpus);
                let at = |i: usize| step.operands.get(i).map_or(DeviceRef::CPU, |operand| schedule.device(operand));
                let devices = (0..step.operands.len()).map(|i| find(at(i))).collect::<Result<_, _>>()?;
                let (written, results, inputs) = (of.written, of.results, of.inputs);
                Action::Regions(Box::new(Regions { plans, is_loop, written, results, inputs, devices }))
            }
            Work::Fence => Action::Fence,
            Work::Print(label) => {
                let dtype = step.operands.first().map(|operand| schedule.buffers[operand.buffer.index()].dtype);
                Action::Print { label: label.clone(), dtype, device: find(step.device)? }
            }
            Work::Kernel(kernel) => {
                let packed = packed(&kernel, &args[first..]);
                Action::Kernel(kernel, packed)
            }
            Work::Region(region) => Action::Region(region),
            Work::Fused(fused) => {
                let packed = packed(&fused.program, &args[first..]);
                Action::Fused(fused, packed)
            }
            Work::Copy => Action::Copy,
        };
        let mut params = SmallVec::new();
        for (number, dim) in &step.params {
            params.push((*number, sizes.entries(std::slice::from_ref(dim))?));
        }
        let is_checked = context.check_indices && device.is_cpu() && matches!(action, Action::Kernel(..));
        let indices = if is_checked { kernel_facts::indices(step_name) } else { None };
        steps.push(PlannedStep { action, args: first..args.len(), name: step_name, location, device, params, indices });
    }
    let mut results = Vec::with_capacity(output_types.len());
    for (ty, id) in output_types.iter().zip(graph.outputs.iter().flatten()) {
        let op = context.op(graph, graph.node(graph.value(*id).node));
        let at = sizes.extent(ty.shape(), ty.dtype(), "output", op.location)? as usize;
        let device = find(ty.device())?;
        let stage = ty.shape().iter().map(stage).max().unwrap_or(0);
        results.push(PlannedOutput { op, dtype: ty.dtype(), device, stage, dims: at..at + ty.shape().rank() });
    }
    let mut arenas = Vec::with_capacity(schedule.arenas.len());
    for arena in &schedule.arenas {
        let compiled = |bytes: &SmallVec<[Dim; 2]>| bytes.iter().map(|dim| sizes.compile(dim)).collect();
        let slots = arena.slots.iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
        arenas.push(PlannedArena { device: find(arena.device)?, stage: arena.stage, bytes: arena.bytes, slots });
    }
    let devices = input_types.iter().map(|ty| find(ty.device())).collect::<Result<Vec<_>, _>>()?;
    let inputs = specs("input", &graph.input_names, input_types);
    let outputs = specs("output", &[], output_types);
    debug_assert!(context.devices.contains(&DeviceRef::CPU) || !has_steps);
    Ok(Plan {
        signature: signature(&name, &inputs, &outputs).into(),
        name,
        inputs,
        outputs,
        results,
        sizes: sizes.finish(),
        classes: ShapeClasses::default(),
        constants,
        steps,
        args,
        arenas,
        devices,
        uses_gpus,
        labels: None,
    })
}

/// The constants, each on its device. Those that no step reads, such as what others were computed from, take no memory, and those
/// that only became parameters of kernels are in no memory of a device.
fn constants_of(name: &Arc<str>, schedule: &Schedule) -> Result<Vec<Tensor>, EngineError> {
    let failed = |device| move |source| driver_error((name, "load"), device, None, source);
    let none = Tensor::zeros(DType::U8, [0], &Device::cpu()).map_err(failed(DeviceRef::CPU))?;
    let mut constants = vec![none; schedule.constants.len()];
    for operand in schedule.steps.iter().flat_map(|step| &step.operands) {
        let buffer = &schedule.buffers[operand.buffer.index()];
        if let Home::Constant(position) = buffer.home
            && let (Some(constant), Some(slot)) =
                (schedule.constants.get(position as usize), constants.get_mut(position as usize))
            && slot.num_bytes() == 0
        {
            let device = DeviceSpec::from(buffer.device).load().map_err(failed(buffer.device))?;
            *slot = constant.to(&device).map_err(failed(buffer.device))?;
            if !device.is_host() {
                constant.release_pages();
            }
        }
    }
    Ok(constants)
}

/// What a step does on a GPU: its kernel, loaded there.
fn on_gpu(
    model: &Arc<str>,
    schedule: &Schedule,
    step: &Step,
    device: (&Device, CodeOptions),
) -> Result<Action, EngineError> {
    // Merging axes makes one of those of dense and of repeated operands.
    let one_stride = |view: &View| view.is_contiguous() || view.strides.iter().all(|stride| *stride == 0);
    let rank = match step.operands.iter().all(|operand| one_stride(&operand.view)) {
        true => 1,
        false => step.operands.iter().map(|operand| operand.view.dims.len()).max().unwrap_or(1),
    };
    let site = Site::of(step.name(), Some(step.location));
    let launched = |kernel: GpuKernel| Action::GpuKernel(Box::new(kernel.at(site)));
    let made = match &step.work {
        Work::Kernel(kernel) => kernel.on_gpu_for(device, rank).map(launched),
        Work::Region(region) => region.on_gpu(device, rank).map(launched),
        Work::Fused(fused) => fused.on_gpu(device).map(launched),
        // What else there is was done before: it is no work of a GPU.
        _ => {
            let element = |operand: &Operand| schedule.buffers[operand.buffer.index()].dtype.size_in_bytes();
            let size = step.operands.first().map_or(1, element);
            GpuCopy::new(device.0, size, rank, site).map(|copy| Action::GpuCopy(Box::new(copy)))
        }
    };
    made.map_err(|source| gpu_error((model, "load"), (step.name(), step.location), device.0.into(), source))
}

/// Inputs or outputs by their names, or numbered.
fn specs(prefix: &str, names: &[Arc<str>], types: Vec<Type>) -> Vec<TensorSpec> {
    let name = |i: usize| names.get(i).cloned().unwrap_or_else(|| format!("{prefix}{i}").into());
    let spec = |(i, ty)| TensorSpec { name: name(i), ty };
    types.into_iter().enumerate().map(spec).collect()
}

fn arg(schedule: &Schedule, step: &Step, index: usize, sizes: &mut SizesBuilder<'_>) -> Result<Arg, EngineError> {
    let operand = &step.operands[index];
    let buffer = &schedule.buffers[operand.buffer.index()];
    let Layout { offset, dims, strides } = &*operand.view;
    let arena = || {
        let place = (buffer.device, schedule.stage(&buffer.elements));
        schedule.arenas.iter().position(|arena| (arena.device, arena.stage) == place).unwrap_or(0) as u32
    };
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
