//! Execution: checks first, then memory, then the steps. A failed run returns nothing. On the host it has changed nothing either,
//! unless there is no memory for what a program keeps, or for what only a later stage knows the size of: that is found when the
//! program runs. Steps of a GPU are enqueued on one stream of it, and only what the host reads
//! waits for them; a GPU that fails meanwhile is lost, and everything that lies on it with it.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use smallvec::SmallVec;

use super::frame::{Computed, Frame};
use super::run::{Clock, Launch, Run, Work, read};
use crate::driver::allocator::Block;
use crate::driver::backend::{CapturedWork, StreamHandle};
use crate::driver::{Device, DeviceStream, DriverError, Tensor, UninitTensor};
use crate::dtype::DType;
use crate::engine::inputs::Input;
use crate::engine::limits::Limits;
use crate::engine::profile::Profile;
use crate::kernel::copy::copy_strided;
use crate::kernel::gpu::GpuKernel;
use crate::kernel::{BoundKernel, KernelError, TensorArg, with_pool};
use crate::plan::error::{EngineError, MemoryOf, OpRef, driver_error, gpu_error};
use crate::plan::shape_classes::Known;
use crate::plan::{Action, Arg, Labels, Memory, Plan, PlannedStep};

/// What a run leaves behind.
pub(super) struct Ran {
    pub results: Vec<Tensor>,
    /// The intermediate memory.
    pub blocks: SmallVec<[Block; 1]>,
    /// What was captured.
    pub captured: Option<Box<dyn CapturedWork>>,
}

impl Plan {
    /// Runs the plan.
    pub(crate) fn run(&self, inputs: &mut [Input<'_>]) -> Result<Vec<Tensor>, EngineError> {
        self.run_in(inputs, None, None)
    }

    /// Runs the plan; work that is worth several threads on those of `pool`.
    pub(in crate::engine) fn run_in(
        &self,
        inputs: &mut [Input<'_>],
        pool: Option<&rayon_core::ThreadPool>,
        limits: Option<&Limits>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let _span = tracing::debug_span!("execute", model = &*self.name).entered();
        let run = Run { pool, limits, ..Run::of("execute") };
        if !self.uses_gpus {
            return self.run_on(inputs, run).map(|ran| ran.results);
        }
        self.run_in_order(inputs, run).map(|ran| ran.results)
    }

    /// Runs the plan, and measures its steps.
    pub(in crate::engine) fn profile(
        &self,
        inputs: &mut [Input<'_>],
        pool: Option<&rayon_core::ThreadPool>,
    ) -> Result<(Vec<Tensor>, Profile), EngineError> {
        let clock = Clock { start: Instant::now(), steps: RefCell::default(), depth: Cell::new(0) };
        let run = Run { pool, clock: Some(&clock), ..Run::of("profile") };
        let ran = if self.uses_gpus { self.run_in_order(inputs, run) } else { self.run_on(inputs, run) };
        let results = ran?.results;
        let total = clock.start.elapsed();
        Ok((results, Profile { steps: clock.steps.into_inner(), total }))
    }

    /// As [`run_on`](Self::run_on), on default streams, which wait for those that inputs are bound to; and those wait for what
    /// was run, also where it failed: what it has begun reads and changes the inputs.
    pub(super) fn run_in_order(&self, inputs: &mut [Input<'_>], run: Run<'_>) -> Result<Ran, EngineError> {
        let bound: SmallVec<[DeviceStream; 4]> =
            inputs.iter().map(|input| input.tensor().stream()).filter(|stream| !stream.is_default()).collect();
        let wait = |stream: &DeviceStream, other: &DeviceStream| {
            let waits = stream.wait_for(other);
            waits.map_err(|source| self.driver_error(run.call, stream.device(), None, source))
        };
        bound.iter().try_for_each(|stream| wait(&stream.device().default_stream(), stream))?;
        let ran = self.run_on(inputs, run);
        let after = bound.iter().try_for_each(|stream| wait(stream, &stream.device().default_stream()));
        ran.and_then(|ran| after.map(|()| ran))
    }

    /// As [`run_in`](Self::run_in), however the steps are run.
    pub(super) fn run_on(&self, inputs: &mut [Input<'_>], run: Run<'_>) -> Result<Ran, EngineError> {
        self.check_inputs(inputs)?;
        let mut computed = Computed::new(self);
        self.bind(inputs, &mut computed.bound)?;
        let given = self.sizes.is_kept().then(|| computed.bound.clone());
        let known = given.as_ref().map_or(Known::Nothing, |given| self.classes.find(given));
        let class = if let Known::Class(class) = &known { Some(&**class) } else { None };
        let mut frame = Frame::new(self, class, run, &mut computed);
        // Kept until all steps are enqueued.
        let mut copies = Vec::new();
        frame.compute(self, 0, &[])?;
        frame.inputs = self.input_pointers(run.call, inputs, &mut copies)?;
        frame.allocate_results(self, 0)?;
        frame.allocate(self, 0)?;
        if let (Known::Seen, Some(given)) = (&known, given) {
            self.classes.keep(given, frame.class());
        }
        let captured = match (run.capture, run.pool) {
            (Some((device, gpu)), _) => {
                let failed = |source| self.driver_error(run.call, device, None, source);
                gpu.begin_capture(run.stream).map_err(failed)?;
                let steps = self.steps_in(&mut frame);
                // Whatever happened, the stream has to leave the capture.
                let captured = gpu.end_capture(run.stream);
                steps?;
                Some(captured.map_err(failed)?)
            }
            (None, Some(pool)) => {
                with_pool(pool, || self.steps_in(&mut frame))?;
                None
            }
            (None, None) => {
                self.steps_in(&mut frame)?;
                None
            }
        };
        let (results, blocks) = frame.finish();
        Ok(Ran { results, blocks, captured })
    }

    /// Runs the steps, which begin later stages.
    pub(super) fn steps_in(&self, frame: &mut Frame<'_>) -> Result<(), EngineError> {
        let _range = self.labels.as_ref().and_then(Labels::model);
        let is_traced = tracing::enabled!(tracing::Level::TRACE);
        for (index, step) in self.steps.iter().enumerate() {
            if let Some(reason) = frame.run.limits.and_then(Limits::reached) {
                return Err(EngineError::Stopped { op: self.op_of(step), reason });
            }
            let args = &self.args[step.args.clone()];
            let mut tensors: SmallVec<[TensorArg<'_>; 16]> = SmallVec::new();
            let mut is_empty = true;
            for arg in args {
                let tensor = self.tensor(arg, frame);
                is_empty &= !arg.written || tensor.dims.contains(&0);
                tensors.push(tensor);
            }
            if is_empty && !step.action.is_control() {
                continue;
            }
            if let Some(indices) = step.indices {
                // SAFETY: the arguments are those of the kernel, on the host, and what it reads is there.
                unsafe { self.check_indices(step, indices, &tensors) }?;
            }
            if let Some(trace) = frame.run.trace {
                let dims = tensors.iter().flat_map(|tensor| tensor.dims).copied().collect();
                trace.borrow_mut().push(Launch { op: step.name, location: step.location, dims });
            }
            let _range = self.labels.as_ref().and_then(|labels| labels.step(index));
            let _span = is_traced.then(|| step.span().entered());
            let work = frame.run.clock.map_or_else(Work::default, |_| Work::of(step, args, &tensors));
            let begin = frame.run.clock.map(|_| Instant::now());
            match &step.action {
                Action::Kernel(kernel, constants) => {
                    // SAFETY: the compiler made the arguments for this signature; inputs were checked, sizes were
                    // computed from theirs, and memory that is written is this execution's own: its results, its arena,
                    // and buffers that it borrows mutably and that no other handle shares.
                    let launch =
                        |kernel: &BoundKernel| unsafe { kernel.launch_fused(&tensors, &[], constants.as_ref()) };
                    let launched = match step.params.is_empty() {
                        true => launch(kernel),
                        false => with_kernel(|| kernel.with_params(frame.params(step)), launch),
                    };
                    launched.map_err(|source| self.launch_error(step, source))?;
                }
                // SAFETY: as above; the planner shares memory between operands of a region only as it allows.
                Action::Region(region) => unsafe { region.launch(&tensors) },
                // SAFETY: as above; what is inside has no memory and is not asked for any.
                Action::Fused(fused, constants) => unsafe { fused.launch(&tensors, constants.as_ref()) }
                    .map_err(|source| self.launch_error(step, source))?,
                // SAFETY: as above; the dims are equal, and a copy is never made within one buffer.
                Action::Copy => unsafe { copy_strided(&tensors[0], &tensors[1], args[0].element_size as usize) },
                Action::Sizes { at, rank } => {
                    let sizes = &frame.table()[*at as usize..][..*rank as usize];
                    // SAFETY: as above: an `int64` vector of that many elements.
                    unsafe { tensors[0].ptr.cast::<i64>().copy_from_nonoverlapping(sizes.as_ptr(), sizes.len()) };
                }
                Action::GpuKernel(kernel) => {
                    // SAFETY: as above, in memory of the GPU. It is used in the order of one stream, and given back in the
                    // same order.
                    let launch = |kernel: &GpuKernel| unsafe { kernel.launch_on(&tensors, frame.run.stream) };
                    let launched = match step.params.is_empty() {
                        true => launch(kernel),
                        false => with_kernel(|| kernel.with_params(frame.params(step)), |kernel| Ok(launch(kernel)))
                            .map_err(|source| self.launch_error(step, source))?,
                    };
                    launched.map_err(|source| self.gpu_error(frame, step, source))?;
                }
                Action::GpuCopy(copy) => {
                    // SAFETY: as above; the dims are equal, and a copy is never made within one buffer.
                    let launched = unsafe { copy.launch(&tensors[0], &tensors[1], frame.run.stream) };
                    launched.map_err(|source| self.gpu_error(frame, step, source))?;
                }
                Action::Transfer { to, from } => {
                    let bytes = tensors[1].dims.iter().product::<i64>() as usize * args[1].element_size as usize;
                    // SAFETY: as above; both are in row-major order, with the same dims.
                    let moved =
                        unsafe { transfer((to, tensors[0].ptr), (from, tensors[1].ptr), bytes, frame.run.stream) };
                    moved.map_err(|source| self.gpu_error(frame, step, source))?;
                }
                Action::Fence => {}
                Action::Bind { stage, count, device } => {
                    let mut sizes: SmallVec<[i64; 8]> = SmallVec::from_elem(0, *count);
                    let from = tensors[0].ptr;
                    // SAFETY: as above: an `int64` vector of that many elements.
                    unsafe { read(device, from, sizes.as_mut_ptr().cast(), *count * size_of::<i64>(), frame.run) }
                        .map_err(|source| self.gpu_error(frame, step, source))?;
                    drop(tensors);
                    frame.compute(self, *stage, &sizes)?;
                    frame.allocate_results(self, *stage)?;
                    frame.allocate(self, *stage)?;
                }
                Action::Regions(regions) => {
                    let memory = (tensors.iter().zip(args)).map(|(tensor, arg)| {
                        (tensor.ptr, tensor.dims.iter().product::<i64>() as usize * arg.element_size as usize)
                    });
                    let memory: SmallVec<[(*mut u8, usize); 16]> = memory.collect();
                    drop(tensors);
                    // SAFETY: as above: arguments are in row-major order.
                    unsafe { regions.run(&memory, frame, (self, step)) }?;
                }
                Action::Print { label, dtype, device } => {
                    // SAFETY: as above; it is in row-major order.
                    unsafe { print(label, *dtype, device, tensors.first(), frame.run) }
                        .map_err(|source| self.gpu_error(frame, step, source))?;
                }
            }
            if let (Some(clock), Some(begin)) = (frame.run.clock, begin) {
                clock.note(step, begin, work);
            }
        }
        Ok(())
    }

    pub(in crate::engine) fn op_of(&self, step: &PlannedStep) -> OpRef {
        OpRef { model: self.name.clone(), op: step.name.into(), location: step.location }
    }

    /// That there is no memory for an arena, with the op whose value is the largest there.
    #[cold]
    pub(super) fn no_arena(&self, call: &'static str, arena: u32, table: &[i64], source: DriverError) -> EngineError {
        let inside = |arg: &&Arg| {
            let own = matches!(arg.memory, Memory::Arena(at, _) | Memory::Slot(at, _) if at == arena);
            own && arg.written
        };
        let bytes = |arg: &Arg| {
            let dims = table[arg.dims as usize..][..arg.rank as usize].iter();
            dims.fold(i64::from(arg.element_size), |bytes, dim| bytes.saturating_mul(*dim))
        };
        let largest = |step: &PlannedStep| self.args[step.args.clone()].iter().filter(inside).map(bytes).max();
        let writing = self.steps.iter().filter_map(|step| Some((largest(step)?, step)));
        let of = writing.max_by_key(|(bytes, _)| *bytes).map(|(_, step)| {
            let op = OpRef { model: self.name.clone(), op: step.name.into(), location: step.location };
            MemoryOf::Intermediates(op)
        });
        self.driver_error(call, &self.arenas[arena as usize].device, of, source)
    }

    #[cold]
    fn launch_error(&self, step: &PlannedStep, source: KernelError) -> EngineError {
        EngineError::Kernel { op: self.op_of(step), source: source.into() }
    }

    #[cold]
    pub(super) fn gpu_error(&self, frame: &Frame<'_>, step: &PlannedStep, source: DriverError) -> EngineError {
        gpu_error((&self.name, frame.run.call), (step.name, step.location), step.device, source)
    }

    #[cold]
    pub(in crate::engine) fn driver_error(
        &self,
        call: &'static str,
        device: &Device,
        of: Option<MemoryOf>,
        source: DriverError,
    ) -> EngineError {
        driver_error((&self.name, call), device.into(), of, source)
    }

    #[inline]
    fn tensor<'a>(&self, arg: &Arg, frame: &'a Frame<'_>) -> TensorArg<'a> {
        let base = match arg.memory {
            Memory::Input(i) => frame.inputs[i as usize],
            Memory::Constant(i) => self.constants[i as usize].data_ptr().cast_mut(),
            Memory::Output(i) => frame.results[i as usize],
            Memory::Arena(arena, bytes) => frame.arenas[arena as usize].wrapping_offset(bytes as isize),
            Memory::Slot(arena, i) => {
                let start = frame.slots[arena as usize].0[i as usize];
                frame.arenas[arena as usize].wrapping_offset(start as isize)
            }
            Memory::Nowhere => std::ptr::null_mut(),
        };
        let (table, rank) = (frame.table(), arg.rank as usize);
        let offset = table[arg.offset as usize].wrapping_mul(i64::from(arg.element_size));
        TensorArg {
            // Of a value without elements the offset may lie outside, and nothing is read there.
            ptr: base.wrapping_offset(offset as isize),
            dims: &table[arg.dims as usize..][..rank],
            strides: &table[arg.strides as usize..][..rank],
        }
    }
}

/// Launches a kernel that is made for this execution. Not inlined: on the stack of [`Plan::steps_in`] it would be room that
/// every execution has to touch.
#[inline(never)]
fn with_kernel<K, R>(
    make: impl FnOnce() -> Result<K, KernelError>,
    launch: impl FnOnce(&K) -> Result<R, KernelError>,
) -> Result<R, KernelError> {
    launch(&make()?)
}

/// Copies between devices, in row-major order.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes` bytes, each on its device, of which one is no host.
unsafe fn transfer(
    (to_device, to): (&Device, *mut u8),
    (from_device, from): (&Device, *mut u8),
    bytes: usize,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    // SAFETY: by the contract above.
    unsafe {
        match (from_device.gpu(), to_device.gpu()) {
            (_, None) => from_device.backend().download(from, to, bytes, stream),
            (None, Some(_)) => to_device.backend().upload(from, to, bytes, stream),
            (Some(other), Some(gpu)) => {
                to_device.default_stream().wait_for(&from_device.default_stream())?;
                gpu.copy_from(other, from, to, bytes, stream)?;
                // What is copied may be overwritten by what comes next on its device.
                from_device.default_stream().wait_for(&to_device.default_stream())
            }
        }
    }
}

/// Prints a tensor behind its label, or only that.
///
/// # Safety
/// The tensor lies on the device, in row-major order.
unsafe fn print(
    label: &str,
    dtype: Option<DType>,
    device: &Device,
    tensor: Option<&TensorArg<'_>>,
    run: Run<'_>,
) -> Result<(), DriverError> {
    use std::io::Write;
    let mut text = label.to_owned();
    if let (Some(tensor), Some(dtype)) = (tensor, dtype) {
        let shape: SmallVec<[usize; 8]> = tensor.dims.iter().map(|&dim| dim as usize).collect();
        let mut memory = UninitTensor::new(dtype, &shape, &Device::cpu())?;
        let bytes = memory.num_bytes();
        // SAFETY: by the contract above; the memory is as large.
        let copy = unsafe {
            read(device, tensor.ptr, memory.as_mut_ptr(), bytes, run)?;
            memory.assume_init()
        };
        text = format!("{label} = {copy}");
    }
    // That nobody reads what is printed is no reason to fail.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
    Ok(())
}
