//! Execution: checks first, then memory, then the steps. On the host nothing can fail once the first step has begun, so a
//! failed run returns nothing and has changed nothing. Steps of a GPU are enqueued on one stream of it, and only transfers
//! to the host wait for them; a GPU that fails meanwhile is lost, and everything that lies on it with it.

use std::cell::RefCell;
use std::panic::Location;

use smallvec::SmallVec;

use super::copy::copy_strided;
use super::error::{EngineError, MemoryOf, OpRef};
use super::inputs::Input;
use super::plan::{Action, Arg, Memory, Plan, PlannedArena, PlannedStep, driver_error, gpu_error};
use super::profiling::Labels;
use super::sizes::Table;
use crate::compiler::memory::aligned;
use crate::driver::allocator::Block;
use crate::driver::backend::{CapturedWork, Gpu, StreamHandle};
use crate::driver::{Device, DeviceStream, DriverError, Tensor, UninitTensor};
use crate::graph::BindError;
use crate::kernel::{TensorArg, with_pool};

type Pointers = SmallVec<[*mut u8; 16]>;

/// The memory of one execution.
struct Frame<'a> {
    inputs: Pointers,
    results: Pointers,
    arenas: Pointers,
    /// Where the slots of each arena begin.
    slots: SmallVec<[Slots; 1]>,
    table: &'a [i64],
    /// The stream of every GPU.
    stream: StreamHandle,
    /// Gets what is launched.
    trace: Option<&'a RefCell<Vec<Launch>>>,
    /// What was called.
    call: &'static str,
}

/// What a GPU was given to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Launch {
    pub op: &'static str,
    pub location: &'static Location<'static>,
    /// The dims of all arguments, one after the other.
    pub dims: SmallVec<[i64; 12]>,
}

/// How the steps of a plan are run.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// What was called, for messages.
    pub call: &'static str,
    /// Where work that is worth several threads is done.
    pub pool: Option<&'a rayon::ThreadPool>,
    /// The stream of every GPU.
    pub stream: StreamHandle,
    /// The GPU that captures what is added to that stream.
    pub capture: Option<(&'a Device, &'static dyn Gpu)>,
    /// Gets what is launched.
    pub trace: Option<&'a RefCell<Vec<Launch>>>,
}

impl Run<'_> {
    /// An execution on the caller's thread, and on the default streams.
    pub fn of(call: &'static str) -> Run<'static> {
        Run { call, pool: None, stream: StreamHandle::default(), capture: None, trace: None }
    }
}

/// What a run leaves behind.
pub(super) struct Ran {
    pub results: Vec<Tensor>,
    /// The intermediate memory.
    pub blocks: SmallVec<[Block; 1]>,
    /// What was captured.
    pub captured: Option<Box<dyn CapturedWork>>,
}

/// Where the slots of an arena begin.
type Slots = SmallVec<[i64; 16]>;
/// The slots and the size of each arena.
type Arenas = SmallVec<[(Slots, i64); 1]>;

impl Plan {
    /// Runs the plan.
    pub(crate) fn run(&self, inputs: &mut [Input<'_>]) -> Result<Vec<Tensor>, EngineError> {
        self.run_in(inputs, None)
    }

    /// Runs the plan; work that is worth several threads on those of `pool`.
    pub(super) fn run_in(
        &self,
        inputs: &mut [Input<'_>],
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let run = Run { pool, ..Run::of("execute") };
        if !self.uses_gpus {
            return self.run_on(inputs, run).map(|ran| ran.results);
        }
        self.run_in_order(inputs, run).map(|ran| ran.results)
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
        let mut computed = Table::new();
        let table = match self.sizes.fixed() {
            Some(table) => {
                self.bind(inputs, &mut [])?;
                table
            }
            None => {
                let mut bound = self.sizes.unbound();
                self.bind(inputs, &mut bound)?;
                self.sizes.evaluate(&mut bound, &mut computed)?;
                let mut arenas = Arenas::new();
                for arena in &self.arenas {
                    arenas.push(self.place_slots(arena, &bound)?);
                }
                return self.run_with(inputs, &computed, arenas, run);
            }
        };
        let arenas = self.arenas.iter().map(|arena| (Slots::new(), arena.bytes)).collect();
        self.run_with(inputs, table, arenas, run)
    }

    fn run_with(
        &self,
        inputs: &mut [Input<'_>],
        table: &[i64],
        sizes: Arenas,
        run: Run<'_>,
    ) -> Result<Ran, EngineError> {
        // Kept until all steps are enqueued.
        let mut copies = Vec::new();
        let pointers = self.input_pointers(run.call, inputs, &mut copies)?;
        let mut results: SmallVec<[UninitTensor; 4]> = SmallVec::new();
        for result in &self.results {
            let shape: SmallVec<[usize; 8]> = table[result.dims.clone()].iter().map(|&dim| dim as usize).collect();
            let memory = UninitTensor::new(result.dtype, &shape, &result.device);
            let no_memory = |source| {
                let of = Some(MemoryOf::Result(result.op.clone()));
                self.driver_error(run.call, &result.device, of, source)
            };
            results.push(memory.map_err(no_memory)?);
        }
        let mut blocks: SmallVec<[Block; 1]> = SmallVec::new();
        let mut slots = SmallVec::new();
        for (index, (arena, (starts, bytes))) in (0..).zip(self.arenas.iter().zip(sizes)) {
            let block = arena.device.allocate(bytes as usize);
            blocks.push(block.map_err(|source| self.no_arena(run.call, index, table, source))?);
            slots.push(starts);
        }
        let frame = Frame {
            inputs: pointers,
            results: results.iter_mut().map(UninitTensor::as_mut_ptr).collect(),
            arenas: blocks.iter().map(Block::as_ptr).collect(),
            slots,
            table,
            stream: run.stream,
            trace: run.trace,
            call: run.call,
        };
        let captured = match (run.capture, run.pool) {
            (Some((device, gpu)), _) => {
                let failed = |source| self.driver_error(run.call, device, None, source);
                gpu.begin_capture(run.stream).map_err(failed)?;
                let steps = self.steps_in(&frame);
                // Whatever happened, the stream has to leave the capture.
                let captured = gpu.end_capture(run.stream);
                steps?;
                Some(captured.map_err(failed)?)
            }
            (None, Some(pool)) => {
                with_pool(pool, || self.steps_in(&frame))?;
                None
            }
            (None, None) => {
                self.steps_in(&frame)?;
                None
            }
        };
        // SAFETY: every result is written whole by the steps: kernels write all of their results, or are given zeros. What is
        // captured is not read before it has run.
        let results = results.into_iter().map(|result| unsafe { result.assume_init() }).collect();
        Ok(Ran { results, blocks, captured })
    }

    fn steps_in(&self, frame: &Frame<'_>) -> Result<(), EngineError> {
        let _range = self.labels.as_ref().and_then(Labels::model);
        for (index, step) in self.steps.iter().enumerate() {
            let args = &self.args[step.args.clone()];
            let mut tensors: SmallVec<[TensorArg<'_>; 16]> = SmallVec::new();
            let mut is_empty = true;
            for arg in args {
                let tensor = self.tensor(arg, frame);
                is_empty &= !arg.written || tensor.dims.contains(&0);
                tensors.push(tensor);
            }
            if is_empty {
                continue;
            }
            if let Some(trace) = frame.trace {
                let dims = tensors.iter().flat_map(|tensor| tensor.dims).copied().collect();
                trace.borrow_mut().push(Launch { op: step.name, location: step.location, dims });
            }
            let _range = self.labels.as_ref().and_then(|labels| labels.step(index));
            match &step.action {
                // SAFETY: the compiler made the arguments for this signature; inputs were checked, sizes were computed
                // from theirs, and memory that is written is this execution's own: its results, its arena, and buffers
                // that it borrows mutably and that no other handle shares.
                Action::Kernel(kernel, constants) => unsafe { kernel.launch_beside(&tensors, &[], constants.as_ref()) },
                // SAFETY: as above; the planner shares memory between operands of a region only as it allows.
                Action::Region(region) => unsafe { region.launch(&tensors) },
                // SAFETY: as above; what is inside has no memory and is not asked for any.
                Action::Fused(fused, constants) => unsafe { fused.launch(&tensors, constants.as_ref()) },
                // SAFETY: as above; the dims are equal, and a copy is never made within one buffer.
                Action::Copy => unsafe { copy_strided(&tensors[0], &tensors[1], args[0].element_size as usize) },
                Action::Sizes { at, rank } => {
                    let sizes = &frame.table[*at as usize..][..*rank as usize];
                    // SAFETY: as above: an `int64` vector of that many elements.
                    unsafe { tensors[0].ptr.cast::<i64>().copy_from_nonoverlapping(sizes.as_ptr(), sizes.len()) };
                }
                Action::GpuKernel(kernel) => {
                    // SAFETY: as above, in memory of the GPU. It is used in the order of one stream, and given back in the
                    // same order.
                    let launched = unsafe { kernel.launch_on(&tensors, frame.stream) };
                    launched.map_err(|source| self.gpu_error(frame, step, source))?;
                }
                Action::GpuCopy(copy) => {
                    // SAFETY: as above; the dims are equal, and a copy is never made within one buffer.
                    let launched = unsafe { copy.launch(&tensors[0], &tensors[1], frame.stream) };
                    launched.map_err(|source| self.gpu_error(frame, step, source))?;
                }
                Action::Transfer { to, from } => {
                    let bytes = tensors[1].dims.iter().product::<i64>() as usize * args[1].element_size as usize;
                    // SAFETY: as above; both are in row-major order, with the same dims.
                    let moved = unsafe { transfer((to, tensors[0].ptr), (from, tensors[1].ptr), bytes, frame.stream) };
                    moved.map_err(|source| self.gpu_error(frame, step, source))?;
                }
            }
        }
        Ok(())
    }

    /// That there is no memory for an arena, with the op whose value is the largest there.
    #[cold]
    fn no_arena(&self, call: &'static str, arena: u32, table: &[i64], source: DriverError) -> EngineError {
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
    fn gpu_error(&self, frame: &Frame<'_>, step: &PlannedStep, source: DriverError) -> EngineError {
        gpu_error((&self.name, frame.call), (step.name, step.location), step.device, source)
    }

    #[cold]
    pub(super) fn driver_error(
        &self,
        call: &'static str,
        device: &Device,
        of: Option<MemoryOf>,
        source: DriverError,
    ) -> EngineError {
        driver_error((&self.name, call), device.into(), of, source)
    }

    #[inline]
    fn tensor<'a>(&self, arg: &Arg, frame: &Frame<'a>) -> TensorArg<'a> {
        let base = match arg.memory {
            Memory::Input(i) => frame.inputs[i as usize],
            Memory::Constant(i) => self.constants[i as usize].data_ptr().cast_mut(),
            Memory::Output(i) => frame.results[i as usize],
            Memory::Arena(arena, bytes) => frame.arenas[arena as usize].wrapping_offset(bytes as isize),
            Memory::Slot(arena, i) => {
                let start = frame.slots[arena as usize][i as usize];
                frame.arenas[arena as usize].wrapping_offset(start as isize)
            }
            Memory::Nowhere => std::ptr::null_mut(),
        };
        let (table, rank) = (frame.table, arg.rank as usize);
        let offset = table[arg.offset as usize].wrapping_mul(i64::from(arg.element_size));
        TensorArg {
            // Of a value without elements the offset may lie outside, and nothing is read there.
            ptr: base.wrapping_offset(offset as isize),
            dims: &table[arg.dims as usize..][..rank],
            strides: &table[arg.strides as usize..][..rank],
        }
    }

    /// Where each slot of an arena begins, and its whole size.
    fn place_slots(&self, arena: &PlannedArena, bound: &[i64]) -> Result<(Slots, i64), EngineError> {
        let mut offsets = SmallVec::new();
        let mut end = Some(arena.bytes);
        let mut largest = 0;
        for slot in &arena.slots {
            let mut size = 0;
            for bytes in slot {
                let bytes = bytes.eval(bound);
                size = size.max(bytes.map_err(|source| EngineError::Size { model: self.name.clone(), source })?);
            }
            largest = largest.max(size);
            offsets.push(end.unwrap_or(0));
            end = end.zip(aligned(size)).and_then(|(end, size)| end.checked_add(size));
        }
        match end {
            Some(end) => Ok((offsets, end)),
            None => Err(EngineError::ArenaSize { model: self.name.clone(), largest: largest.into() }),
        }
    }

    #[inline]
    pub(super) fn check_inputs(&self, inputs: &[Input<'_>]) -> Result<(), EngineError> {
        if inputs.len() != self.inputs.len() {
            let (model, signature) = (self.name.clone(), self.signature.clone());
            return Err(EngineError::InputCount {
                model,
                expected: self.inputs.len(),
                actual: inputs.len(),
                signature,
            });
        }
        for (index, ((input, spec), device)) in inputs.iter().zip(&self.inputs).zip(&self.devices).enumerate() {
            let tensor = input.tensor();
            let wrong_device = tensor.device() != device;
            if wrong_device || tensor.dtype() != spec.dtype() {
                let (input, actual) = (self.input(index), Box::new(tensor.into()));
                return Err(match wrong_device {
                    true => EngineError::InputDevice { input, actual },
                    false => EngineError::InputDType { input, actual },
                });
            }
            if spec.is_buffer() && matches!(input, Input::Tensor(_)) {
                return Err(EngineError::InputNotMutable { input: self.input(index) });
            }
        }
        Ok(())
    }

    /// Checks the inputs' shapes and binds the symbols.
    #[inline]
    fn bind(&self, inputs: &[Input<'_>], bound: &mut [i64]) -> Result<(), EngineError> {
        let shapes = inputs.iter().map(|input| input.tensor().shape());
        self.sizes.matcher.bind(shapes, bound).map_err(|source| self.bind_error(inputs, source))
    }

    #[cold]
    fn bind_error(&self, inputs: &[Input<'_>], source: BindError) -> EngineError {
        match source {
            BindError::Rank { input: index, .. }
            | BindError::Static { input: index, .. }
            | BindError::Symbol { input: index, .. }
            | BindError::Expression { input: index, .. }
            | BindError::Dim { input: index, .. } => {
                let (input, actual) = (self.input(index), Box::new(inputs[index].tensor().into()));
                EngineError::InputShape { input, actual, source: source.into() }
            }
            BindError::Count { expected, actual } => {
                let (model, signature) = (self.name.clone(), self.signature.clone());
                EngineError::InputCount { model, expected, actual, signature }
            }
        }
    }

    /// Where the inputs lie. Tensors that are not contiguous are copied, and the copies added to `copies`.
    #[inline]
    fn input_pointers(
        &self,
        call: &'static str,
        inputs: &mut [Input<'_>],
        copies: &mut Vec<Tensor>,
    ) -> Result<Pointers, EngineError> {
        let mut pointers = Pointers::new();
        for (index, input) in inputs.iter_mut().enumerate() {
            if let Some(buffer) = self.buffer(index, input)? {
                pointers.push(buffer);
                continue;
            }
            let mut tensor = input.tensor();
            if !tensor.is_contiguous() {
                copies.push(self.copy_of_input(call, index, tensor)?);
                tensor = &copies[copies.len() - 1];
            }
            pointers.push(tensor.data_ptr().cast_mut());
        }
        Ok(pointers)
    }

    /// Where an input lies that the plan changes: such a one has to be contiguous and writable.
    #[inline]
    fn buffer(&self, index: usize, input: &mut Input<'_>) -> Result<Option<*mut u8>, EngineError> {
        let Input::Buffer(buffer) = input else { return Ok(None) };
        if !self.inputs[index].is_buffer() {
            return Ok(None);
        }
        if !buffer.is_contiguous() {
            let actual = Box::new((&**buffer).into());
            return Err(EngineError::InputNotContiguous { input: self.input(index), actual });
        }
        let pointer = buffer.data_ptr_mut();
        pointer.map(Some).map_err(|source| EngineError::InputBuffer { input: self.input(index), source })
    }

    /// Checks the inputs that the plan changes.
    pub(super) fn check_buffers(&self, inputs: &mut [Input<'_>]) -> Result<(), EngineError> {
        inputs.iter_mut().enumerate().try_for_each(|(index, input)| self.buffer(index, input).map(drop))
    }

    /// A copy of an input, in row-major order: on the stream that the steps run on.
    #[cold]
    pub(super) fn copy_of_input(
        &self,
        call: &'static str,
        index: usize,
        tensor: &Tensor,
    ) -> Result<Tensor, EngineError> {
        tensor.copy_on(&tensor.device().default_stream()).map_err(|source| {
            let of = Some(MemoryOf::InputCopy(self.input(index)));
            self.driver_error(call, tensor.device(), of, source)
        })
    }
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
