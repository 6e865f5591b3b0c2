//! Captures: executions recorded as graphs of a GPU's API, to be run again at the cost of one launch.
//!
//! A captured graph names the memory that it uses, so a capture has memory of its own: for inputs, into which those of each
//! replay are copied, for results, which are copied out, and for what lies between. All of it lives as long as the capture.
//!
//! Buffers, such as a KV cache, may be most of a device's memory, so they are not copied: the graph names the caller's. A
//! replay with a buffer at another address captures anew.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::execute::Ran;
use super::run::{Launch, Run};
use crate::driver::allocator::Block;
use crate::driver::backend::{CapturedWork, StreamHandle};
use crate::driver::launch_journal::Site;
use crate::driver::{Device, DeviceRef, DeviceStream, Tensor};
use crate::engine::inputs::Input;
use crate::plan::error::{EngineError, MemoryOf, OpRef};
use crate::plan::metadata::TensorSpec;
use crate::plan::{Action, Plan, PlannedOutput};

/// A captured execution.
pub(in crate::engine) struct Capture {
    // First, so that it goes before the memory that it uses.
    work: Box<dyn CapturedWork>,
    /// The inputs that the captured launches read, and the results that they write.
    memory: Mutex<CaptureMemory>,
    trace: Vec<Launch>,
    /// What the launches are for.
    sites: Vec<Site>,
    _blocks: SmallVec<[Block; 1]>,
}

struct CaptureMemory {
    inputs: Vec<CapturedInput>,
    results: Vec<Tensor>,
}

/// An input as the captured launches name it.
enum CapturedInput {
    /// Memory of the capture's own.
    Copy(Tensor),
    /// A buffer of the caller's, which is contiguous. It is not kept: what is passed to a replay says whether it is there.
    Buffer { address: usize, shape: Box<[usize]> },
}

impl CapturedInput {
    fn shape(&self) -> &[usize] {
        match self {
            CapturedInput::Copy(tensor) => tensor.shape(),
            CapturedInput::Buffer { shape, .. } => shape,
        }
    }

    /// Whether the launches serve for an input, once it is copied where that is due.
    fn serves(&self, input: &Input<'_>) -> bool {
        match self {
            CapturedInput::Copy(_) => true,
            CapturedInput::Buffer { address, .. } => *address == input.tensor().data_ptr() as usize,
        }
    }
}

/// The captures of a model, by key.
#[derive(Default)]
pub(in crate::engine) struct Captures(Mutex<BTreeMap<u64, Arc<Capture>>>);

/// The device of a plan that can be captured: that of its inputs.
fn device(plan: &Plan) -> Result<Device, EngineError> {
    let first = plan.devices.first().copied();
    first.ok_or_else(|| EngineError::CaptureWithoutInputs { model: plan.name.clone() })
}

/// The one GPU on which everything of a plan is, or what stands in the way.
fn only_gpu(plan: &Plan) -> Result<Device, EngineError> {
    let device = device(plan)?;
    let op = |name: &str, location| OpRef { model: plan.name.clone(), op: name.into(), location };
    for step in &plan.steps {
        let reason = match &step.action {
            Action::GpuKernel(_) | Action::GpuCopy(_) if step.device == (&device).into() => continue,
            Action::GpuKernel(_) | Action::GpuCopy(_) => "a capture is of one GPU",
            Action::Transfer { .. } => "a transfer between devices waits for them",
            Action::Fence => continue,
            Action::Regions(_) => "the host reads its predicate, and decides what runs",
            Action::Bind { .. } => "the host reads sizes that depend on data",
            Action::Print { .. } => "the host reads what it prints",
            Action::Kernel(..) | Action::Region(_) | Action::Fused(..) | Action::Copy | Action::Sizes { .. } => {
                "it runs on the host"
            }
        };
        return Err(EngineError::CaptureUnsafe { op: op(step.name, step.location), device: step.device, reason });
    }
    let inputs = plan.inputs.iter().zip(&plan.devices);
    let results = plan.outputs.iter().zip(plan.results.iter().map(|result| &result.device));
    if let Some((spec, other)) = inputs.chain(results).find(|(_, other)| **other != device || other.is_host()) {
        let (model, name) = (plan.name.clone(), spec.name.clone());
        return Err(EngineError::CaptureDevice { model, name, device: other.into() });
    }
    Ok(device)
}

/// Captures an execution.
pub(in crate::engine) fn capture(plan: &Plan, inputs: &mut [Input<'_>]) -> Result<Capture, EngineError> {
    let device = only_gpu(plan)?;
    plan.check_inputs(inputs)?;
    plan.check_buffers(inputs)?;
    let call = "capture";
    // Whatever a capture does not allow, such as allocating memory, is done before it begins.
    let stream = DeviceStream::new(&device).map_err(|source| plan.driver_error(call, &device, None, source))?;
    let own = |(index, (input, spec)): (usize, (&Input<'_>, &TensorSpec))| match spec.is_buffer() {
        true => {
            let (address, shape) = (input.tensor().data_ptr() as usize, input.tensor().shape().into());
            Ok(CapturedInput::Buffer { address, shape })
        }
        false => plan.copy_of_input(call, index, input.tensor()).map(CapturedInput::Copy),
    };
    let mut own = inputs.iter().zip(&plan.inputs).enumerate().map(own).collect::<Result<Vec<_>, _>>()?;
    let trace = RefCell::new(Vec::new());
    let passed = own.iter_mut().zip(inputs).map(|(own, input)| match (own, input) {
        (CapturedInput::Copy(tensor), _) => Input::Buffer(tensor),
        (CapturedInput::Buffer { .. }, Input::Buffer(tensor)) => Input::Buffer(tensor),
        // Not reached: the check of buffers refuses it.
        (CapturedInput::Buffer { .. }, Input::Tensor(tensor)) => Input::Tensor(tensor),
    });
    let mut passed: SmallVec<[Input<'_>; 16]> = passed.collect();
    let capture = device.gpu().map(|gpu| (&device, gpu));
    let run = Run { stream: stream.handle(), capture, trace: Some(&trace), ..Run::of(call) };
    let Ran { results, blocks, captured } = plan.run_on(&mut passed, run)?;
    drop(passed);
    // Not reached without: the run was told to capture.
    let work = captured.ok_or_else(|| EngineError::CaptureWithoutInputs { model: plan.name.clone() })?;
    let memory = Mutex::new(CaptureMemory { inputs: own, results });
    let trace = trace.into_inner();
    let sites = trace.iter().map(|launch| Site::of(launch.op, Some(launch.location))).collect();
    Ok(Capture { work, memory, trace, sites, _blocks: blocks })
}

impl Capture {
    fn memory(&self) -> MutexGuard<'_, CaptureMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captures {
    pub fn insert(&self, key: u64, capture: Capture) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(capture));
    }

    fn find(&self, plan: &Plan, call: &'static str, key: u64) -> Result<Arc<Capture>, EngineError> {
        let device = (&device(plan)?).into();
        let captures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        captures.get(&key).cloned().ok_or_else(|| EngineError::NotCaptured {
            model: plan.name.clone(),
            device,
            call,
            key,
            known: captures.keys().copied().collect(),
        })
    }

    /// Runs what was captured under a key, for `call`.
    pub fn replay(
        &self,
        (plan, call): (&Plan, &'static str),
        key: u64,
        inputs: &mut [Input<'_>],
    ) -> Result<Vec<Tensor>, EngineError> {
        let mut capture = self.find(plan, call, key)?;
        plan.check_inputs(inputs)?;
        check_shapes(plan, key, inputs, &capture.memory().inputs)?;
        plan.check_buffers(inputs)?;
        let elsewhere = |(own, input): (&CapturedInput, &Input<'_>)| !own.serves(input);
        if capture.memory().inputs.iter().zip(inputs.iter()).any(elsewhere) {
            self.insert(key, self::capture(plan, inputs)?);
            capture = self.find(plan, call, key)?;
        }
        let device = device(plan)?;
        let failed = |source| plan.driver_error(call, &device, None, source);
        // Held until all is enqueued: the next replay writes the same memory behind it.
        let mut memory = capture.memory();
        if memory.inputs.iter().zip(inputs.iter()).any(elsewhere) {
            // Another thread replays this key at the same time, with buffers of its own, and has captured them.
            drop(memory);
            return self.replay((plan, call), key, inputs);
        }
        // All of this is on the default stream; copies from and to other streams wait for them, and they for the copies. So do
        // the streams of buffers, for the launches.
        for (own, input) in memory.inputs.iter_mut().zip(inputs.iter()) {
            if let CapturedInput::Copy(own) = own {
                own.inplace_copy_from(input.tensor()).map_err(failed)?;
            }
        }
        let buffers = memory.inputs.iter().zip(inputs.iter());
        let buffers = buffers.filter(|(own, _)| matches!(own, CapturedInput::Buffer { .. }));
        let bound: SmallVec<[DeviceStream; 2]> =
            buffers.map(|(_, input)| input.tensor().stream()).filter(|stream| !stream.is_default()).collect();
        bound.iter().try_for_each(|stream| device.default_stream().wait_for(stream)).map_err(failed)?;
        if let Some(gpu) = device.gpu() {
            capture.sites.iter().for_each(|site| gpu.journal().note(*site));
        }
        capture.work.launch(StreamHandle::default()).map_err(failed)?;
        bound.iter().try_for_each(|stream| stream.wait_for(&device.default_stream())).map_err(failed)?;
        let copy = |(result, planned): (&Tensor, &PlannedOutput)| {
            result.copy().map_err(|source| {
                let of = Some(MemoryOf::Result(planned.op.clone()));
                plan.driver_error(call, &device, of, source)
            })
        };
        memory.results.iter().zip(&plan.results).map(copy).collect()
    }

    /// Executes the plan and compares what it launches with what was captured.
    pub fn verify(&self, plan: &Plan, key: u64, inputs: &mut [Input<'_>]) -> Result<(), EngineError> {
        let capture = self.find(plan, "debug_verify_replay", key)?;
        plan.check_inputs(inputs)?;
        check_shapes(plan, key, inputs, &capture.memory().inputs)?;
        let trace = RefCell::new(Vec::new());
        plan.run_in_order(inputs, Run { trace: Some(&trace), ..Run::of("debug_verify_replay") })?;
        compare((&plan.name, (&device(plan)?).into(), key), &trace.into_inner(), &capture.trace)
    }
}

/// The first launch of an execution of a model that is not what was captured under a key, as an error.
fn compare(
    (model, device, key): (&Arc<str>, DeviceRef, u64),
    actual: &[Launch],
    captured: &[Launch],
) -> Result<(), EngineError> {
    match difference(actual, captured) {
        None => Ok(()),
        Some((position, actual, captured)) => {
            Err(EngineError::ReplayTrace { model: model.clone(), device, key, position, actual, captured })
        }
    }
}

/// The first launch that differs, and what both sides do there.
fn difference(actual: &[Launch], captured: &[Launch]) -> Option<(usize, String, String)> {
    let position = (0..actual.len().max(captured.len())).find(|&i| actual.get(i) != captured.get(i))?;
    let text = |trace: &[Launch]| match trace.get(position) {
        Some(launch) => format!("`{}` at {} over {:?}", launch.op, launch.location, launch.dims),
        None => "nothing".to_owned(),
    };
    Some((position, text(actual), text(captured)))
}

fn check_shapes(plan: &Plan, key: u64, inputs: &[Input<'_>], captured: &[CapturedInput]) -> Result<(), EngineError> {
    for (index, (input, own)) in inputs.iter().zip(captured).enumerate() {
        let tensor = input.tensor();
        if tensor.shape() != own.shape() {
            let (input, actual) = (plan.input(index), Box::new(tensor.into()));
            return Err(EngineError::ReplayShape { input, actual, key, captured: own.shape().to_vec() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use std::panic::Location;

    #[test]
    fn traces_are_compared_launch_by_launch() {
        let launch = |op, size| Launch { op, location: Location::caller(), dims: smallvec![size, 2] };
        let captured = [launch("add", 3), launch("relu", 3)];
        assert_eq!(difference(&captured, &captured.clone()), None);
        let (position, actual, expected) = difference(&[captured[0].clone(), launch("relu", 4)], &captured).unwrap();
        assert_eq!(position, 1);
        assert!(actual.starts_with("`relu` at ") && actual.ends_with(" over [4, 2]"), "{actual}");
        assert!(expected.ends_with(" over [3, 2]"), "{expected}");
        assert_eq!(difference(&captured[..1], &captured).unwrap().1, "nothing");
        let error = compare((&"net".into(), DeviceRef::gpu(1), 7), &captured[..1], &captured).unwrap_err();
        assert!(
            matches!(error, EngineError::ReplayTrace { device: DeviceRef { .. }, key: 7, position: 1, .. }),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            format!("model `net` on gpu:1: launch 1 is nothing, but {expected} was captured under key 7")
        );
        assert!(compare((&"net".into(), DeviceRef::gpu(1), 7), &captured, &captured).is_ok());
        assert_eq!(difference(&captured, &captured[..1]).unwrap().2, "nothing");
    }
}
