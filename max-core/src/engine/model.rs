//! [`Model`]: a loaded graph, ready to execute.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use smallvec::SmallVec;

use super::execution::capture::{Captures, capture};
use super::inputs::{Input, Inputs, IntoInputs};
use super::limits::ExecuteOptions;
use super::profile::Profile;
use crate::driver::{Device, Tensor};
use crate::plan::Plan;
use crate::plan::error::EngineError;
use crate::plan::metadata::TensorSpec;

/// A loaded graph, ready to execute. Made by [`InferenceSession::load`](super::InferenceSession::load).
///
/// A clone is the same model. Any number of threads may execute one model at the same time, each with its own inputs.
#[derive(Clone)]
pub struct Model(Arc<Loaded>);

// A panic changes nothing in a model: executions have memory of their own, and captures stand behind a lock.
impl UnwindSafe for Model {}
impl RefUnwindSafe for Model {}

struct Loaded {
    plan: Plan,
    devices: Vec<Device>,
    pool: Option<Arc<rayon_core::ThreadPool>>,
    captures: Captures,
}

impl Model {
    pub(super) fn new(plan: Plan, devices: Vec<Device>, pool: Option<Arc<rayon_core::ThreadPool>>) -> Model {
        Model(Arc::new(Loaded { plan, devices, pool, captures: Captures::default() }))
    }

    /// Runs the model on inputs in the order of the graph's, and returns its outputs, each in memory of its own.
    ///
    /// A tensor that is not contiguous, such as a transpose, is copied first, on its device.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::{driver::{DeviceRef, Tensor}, dtype::DType, engine::InferenceSession};
    /// use max::graph::{BufferType, Graph, TensorType};
    ///
    /// let x = TensorType::new(DType::F32, ("n", 2), DeviceRef::CPU);
    /// let last = BufferType::new(DType::F32, (2, "n"), DeviceRef::CPU);
    /// let graph = Graph::build("remember", (x, last), |_, inputs| {
    ///     let previous = inputs[1].buffer()?.load()?;
    ///     inputs[1].buffer()?.store(inputs[0].tensor()?.t()?)?;
    ///     Ok(previous)
    /// })?;
    /// let model = InferenceSession::new().load(&graph)?;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let mut last = Tensor::full(0.5f32, [2, 2])?;
    /// let outputs = model.execute((&x, &mut last))?;
    /// assert_eq!(outputs[0].to_vec::<f32>()?, [0.5; 4]);
    /// assert_eq!(last.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the number of inputs, or an input's dtype, shape or device is not as declared; when one symbolic dim would
    /// get two sizes; when a buffer is not passed as `&mut`, is shared, or is not contiguous; when there is not enough
    /// memory. Then no buffer has been changed.
    pub fn execute<'a>(&self, inputs: impl IntoInputs<'a>) -> Result<Vec<Tensor>, EngineError> {
        self.run(&mut inputs.into_inputs())
    }

    /// As [`execute`](Self::execute), with a time-out, or a token by which another thread ends it.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute); [`EngineError::Stopped`] when it ended before it was done. What buffers hold then
    /// is not defined.
    pub fn execute_with<'a>(
        &self,
        inputs: impl IntoInputs<'a>,
        options: &ExecuteOptions,
    ) -> Result<Vec<Tensor>, EngineError> {
        let limits = options.limits();
        self.0.plan.run_in(&mut inputs.into_inputs(), self.0.pool.as_deref(), limits.as_ref())
    }

    /// As [`execute`](Self::execute), and how long each step took.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute).
    pub fn profile<'a>(&self, inputs: impl IntoInputs<'a>) -> Result<(Vec<Tensor>, Profile), EngineError> {
        self.0.plan.profile(&mut inputs.into_inputs(), self.0.pool.as_deref())
    }

    /// Packs the constants that matrix products read, on all threads of the session, which else the first executions do, and gives
    /// the memory of mapped files back that was packed. For models whose first answer should be as fast as the others.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::{driver::{DeviceRef, Tensor}, dtype::DType, engine::InferenceSession, graph::{Graph, TensorType}};
    ///
    /// let graph = Graph::build("same", [TensorType::new(DType::F32, ("n",), DeviceRef::CPU)], |_, x| x[0].tensor().cloned())?;
    /// let model = InferenceSession::new().load(&graph)?;
    /// model.warm_up()?;
    /// assert_eq!(model.execute(&Tensor::from_slice(&[1.0f32, 2.0], [2])?)?.len(), 1);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn warm_up(&self) -> Result<(), EngineError> {
        self.0.plan.pack(self.0.pool.as_deref())
    }

    fn run(&self, inputs: &mut [Input<'_>]) -> Result<Vec<Tensor>, EngineError> {
        self.0.plan.run_in(inputs, self.0.pool.as_deref(), None)
    }

    /// As [`execute`](Self::execute), with inputs by name in any order: `[("input0", &x)]`.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute); when a name is no input's, or is given twice; when one is missing.
    pub fn execute_named<'a, N, I>(&self, inputs: impl IntoIterator<Item = (N, I)>) -> Result<Vec<Tensor>, EngineError>
    where
        N: AsRef<str>,
        I: Into<Input<'a>>,
    {
        let plan = &self.0.plan;
        let mut slots: SmallVec<[Option<Input<'a>>; 16]> = plan.inputs.iter().map(|_| None).collect();
        for (name, input) in inputs {
            let name = name.as_ref();
            let Some(index) = plan.inputs.iter().position(|spec| *spec.name == *name) else {
                let (model, signature) = (plan.name.clone(), plan.signature.clone());
                return Err(EngineError::UnknownInput { model, name: name.to_owned(), signature });
            };
            if slots[index].replace(input.into()).is_some() {
                return Err(EngineError::DuplicateInput { input: plan.input(index) });
            }
        }
        let mut ordered = Inputs::new();
        for (index, slot) in slots.into_iter().enumerate() {
            ordered.push(slot.ok_or_else(|| EngineError::MissingInput { input: plan.input(index) })?);
        }
        self.run(&mut ordered)
    }

    /// Captures an execution with these inputs as a device graph, under a key of the caller's, and runs it once.
    ///
    /// [`replay`](Self::replay) then enqueues all launches of the model at once, which costs the host a few microseconds.
    /// A capture is of one GPU and of the inputs' shapes; it has memory of its own for inputs, results and what lies
    /// between. Another capture under the same key takes its place.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{Device, Tensor};
    /// # use max::engine::Model;
    /// # fn run(model: &Model) -> Result<(), max::Error> {
    /// let x = Tensor::full(1.0f32, [8])?.to(&Device::accelerator(0)?)?;
    /// model.capture(8, &x)?;
    /// model.debug_verify_replay(8, &x)?;
    /// let results = model.replay(8, &x)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute); when the model has no inputs; when an input, a result or a step is not on the
    /// one GPU, with the op that it comes from; when the driver cannot capture.
    pub fn capture<'a>(&self, key: u64, inputs: impl IntoInputs<'a>) -> Result<Vec<Tensor>, EngineError> {
        let (plan, inputs) = (&self.0.plan, &mut inputs.into_inputs());
        self.0.captures.insert(key, capture(plan, inputs)?);
        self.0.captures.replay((plan, "capture"), key, inputs)
    }

    /// Runs what was captured under a key, on these inputs, and returns the results, each in memory of its own.
    ///
    /// Tensors are copied into the capture's memory; buffers are used and changed where they are. A buffer at another address
    /// than at the capture has the model captured anew, which takes as long as [`capture`](Self::capture): keep buffers for as
    /// long as they are replayed.
    ///
    /// # Errors
    /// When the model has no inputs, or nothing was captured under the key; with inputs of other shapes; when an input's dtype
    /// or device is not as declared; when a buffer is not passed as `&mut`, is shared, or is not contiguous; when there is not
    /// enough memory for the results.
    pub fn replay<'a>(&self, key: u64, inputs: impl IntoInputs<'a>) -> Result<Vec<Tensor>, EngineError> {
        self.0.captures.replay((&self.0.plan, "replay"), key, &mut inputs.into_inputs())
    }

    /// Executes the model without its capture, and checks that it launches what was captured under a key: the same ops, on
    /// tensors of the same shapes, in the same order. Buffers are changed as by [`execute`](Self::execute).
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay); [`EngineError::ReplayTrace`] for the first launch that differs.
    pub fn debug_verify_replay<'a>(&self, key: u64, inputs: impl IntoInputs<'a>) -> Result<(), EngineError> {
        self.0.captures.verify(&self.0.plan, key, &mut inputs.into_inputs())
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.0.plan.name
    }

    /// Names and types of the inputs, in order.
    pub fn input_metadata(&self) -> &[TensorSpec] {
        &self.0.plan.inputs
    }

    /// Names and types of the outputs, in order.
    pub fn output_metadata(&self) -> &[TensorSpec] {
        &self.0.plan.outputs
    }

    /// The device of each input.
    pub fn input_devices(&self) -> Vec<Device> {
        self.0.plan.devices.clone()
    }

    /// The device of each output.
    pub fn output_devices(&self) -> Vec<Device> {
        self.0.plan.results.iter().map(|result| result.device).collect()
    }

    /// The devices of the session.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Inputs and outputs in one line: `relu(input0: float32[5]) -> (output0: float32[5])`.
    pub fn signature(&self) -> &str {
        &self.0.plan.signature
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.signature())
    }
}
