//! [`InferenceSession`]: devices, threads and kernels for the models that it loads.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::sync::Arc;

use super::affinity;
use super::model::Model;
use super::profiling::GpuProfiling;
use crate::compiler::{Context, Schedule, compile, explain, flatten};
use crate::driver::{Device, DeviceRef};
use crate::graph::weights::WeightsRegistry;
use crate::graph::{Graph, GraphData};
use crate::kernel::ptx::Float32MatmulPrecision;
use crate::kernel::{CodeOptions, Form, GpuDebug, KernelLibrary, SharedTiles, form};
use crate::plan::error::EngineError;

/// Devices, threads and kernels for the models that it loads. Cheap to clone.
///
/// ```
/// # extern crate max_core as max;
/// use max::{driver::{DeviceRef, Tensor}, dtype::DType, engine::InferenceSession, graph::{Graph, TensorType}};
///
/// let ty = TensorType::new(DType::I32, ("n",), DeviceRef::CPU);
/// let graph = Graph::build("twice", [ty], |_, inputs| {
///     max::graph::ops::concat([&inputs[0], &inputs[0]], 0)
/// })?;
/// let model = InferenceSession::new().load(&graph)?;
/// let outputs = model.execute(&Tensor::arange(0i32, 3, 1)?)?;
/// assert_eq!(outputs[0].to_vec::<i32>()?, [0, 1, 2, 0, 1, 2]);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone)]
pub struct InferenceSession {
    devices: Vec<Device>,
    library: KernelLibrary,
    pool: Option<Arc<rayon_core::ThreadPool>>,
    reference: bool,
    profiling: Option<GpuProfiling>,
    debug: Option<GpuDebug>,
    float32_matmul_precision: Option<Float32MatmulPrecision>,
    check_indices: Option<bool>,
    packed: Arc<SharedTiles>,
}

impl Default for InferenceSession {
    fn default() -> Self {
        InferenceSession::new()
    }
}

// A session does not change once it is made; its threads outlive panics of what they are given.
impl UnwindSafe for InferenceSession {}
impl RefUnwindSafe for InferenceSession {}

impl InferenceSession {
    /// A session on the host, with the kernels linked into the program and rayon's global threads.
    pub fn new() -> InferenceSession {
        InferenceSession::with_devices([Device::cpu()])
    }

    /// A session on these devices and the host.
    pub fn with_devices(devices: impl IntoIterator<Item = Device>) -> InferenceSession {
        let mut devices: Vec<Device> = devices.into_iter().collect();
        if !devices.contains(&Device::cpu()) {
            devices.push(Device::cpu());
        }
        let library = KernelLibrary::linked();
        InferenceSession {
            devices,
            library,
            pool: None,
            reference: false,
            profiling: None,
            debug: None,
            float32_matmul_precision: None,
            check_indices: None,
            packed: Arc::default(),
        }
    }

    /// This session, executing on `num_threads` threads of its own; 0 means one for each processor.
    ///
    /// Work too small to divide stays on the thread that executes the model.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn num_threads(mut self, num_threads: usize) -> Result<InferenceSession, EngineError> {
        let pool =
            rayon_core::ThreadPoolBuilder::new().num_threads(num_threads).thread_name(|i| format!("max-{i}")).build();
        let pool = pool.map_err(|error| EngineError::Threads { num_threads, reason: error.to_string() })?;
        self.pool = Some(Arc::new(pool));
        Ok(self)
    }

    /// This session, executing on threads of its own, one on each of these processors, which they never leave.
    ///
    /// The thread that executes a model works too, and stays where it is. Two sessions with processors of their own do not disturb
    /// each other.
    ///
    /// ```no_run
    /// # use max_core::engine::{EngineError, InferenceSession};
    /// let session = InferenceSession::new().affinity(&[0, 1, 2, 3])?;
    /// # Ok::<(), EngineError>(())
    /// ```
    ///
    /// # Errors
    /// When a processor is not there or not this process's; when the threads cannot be started; on systems other than Linux.
    pub fn affinity(mut self, processors: &[usize]) -> Result<InferenceSession, EngineError> {
        let failed = |reason: String| EngineError::Threads { num_threads: processors.len(), reason };
        if processors.is_empty() {
            return Err(failed("no processors were given".to_owned()));
        }
        self.pool = Some(Arc::new(affinity::pool(processors).map_err(failed)?));
        Ok(self)
    }

    /// This session and the kernels of dynamic libraries; see [`extension!`](crate::extension).
    ///
    /// # Safety
    /// As for [`KernelLibrary::with_extension`], of each file.
    ///
    /// # Errors
    /// As [`KernelLibrary::with_extension`].
    pub unsafe fn custom_extensions<P: AsRef<Path>>(
        mut self,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<InferenceSession, EngineError> {
        for path in paths {
            let path = path.as_ref();
            // SAFETY: the caller's promise is the same.
            let library = unsafe { self.library.with_extension(path) };
            self.library =
                library.map_err(|source| EngineError::Extension { path: path.to_path_buf(), source: source.into() })?;
        }
        Ok(self)
    }

    /// This session with another kernel library.
    pub fn library(mut self, library: KernelLibrary) -> InferenceSession {
        self.library = library;
        self
    }

    /// Whether models run the kernels' reference form: scalar, bounds-checked, on one thread, for a debugger. The
    /// environment variable `MAX_CPU_LEVEL=reference` does the same for a whole process.
    pub fn reference(mut self, reference: bool) -> InferenceSession {
        self.reference = reference;
        self
    }

    /// What profilers are told of the models that are loaded from here on. Without this call, the environment variable
    /// `MAX_ENABLE_PROFILING` says it: `off`, `on` or `detailed`.
    ///
    /// Ranges are those of NVTX: `nsys profile --trace=cuda,nvtx PROGRAM` shows them above the kernels that they launched.
    pub fn gpu_profiling(mut self, mode: GpuProfiling) -> InferenceSession {
        self.profiling = Some(mode);
        self
    }

    /// What kernels on GPUs carry for the sake of finding mistakes, in the models that are loaded from here on. Without this
    /// call, environment variables say it: `MAX_GPU_LINES=1`, `MAX_GPU_BOUNDS=1`.
    pub fn gpu_debug(mut self, debug: GpuDebug) -> InferenceSession {
        self.debug = Some(debug);
        self
    }

    /// How exactly kernels on GPUs multiply matrices of `f32`, in the models that are loaded from here on: matrix products,
    /// convolutions, attention. With `High`, tensor cores make the products, of elements rounded to the
    /// 11 significant bits of tf32; see [`Float32MatmulPrecision`]. Without this call, `MAX_GPU_TF32=1` asks for that, and the
    /// default is `Highest`. Models on a CPU are always that exact.
    ///
    /// ```
    /// # use max_core as max;
    /// use max::engine::{Float32MatmulPrecision, InferenceSession};
    ///
    /// let session = InferenceSession::new().float32_matmul_precision(Float32MatmulPrecision::High);
    /// ```
    pub fn float32_matmul_precision(mut self, precision: Float32MatmulPrecision) -> InferenceSession {
        self.float32_matmul_precision = Some(precision);
        self
    }

    /// Whether an index outside of its axis is an error, [`EngineError::Index`], on the host, in the models that are loaded from
    /// here on: that of `gather`, `gather_nd`, and of every scatter. Without, what such an index names is 0 where it is read, and
    /// nothing where it is written. Without this call, `MAX_CHECK_INDICES=1` asks for it. Ops on GPUs are not checked.
    ///
    /// ```
    /// # use max_core as max;
    /// use max::engine::InferenceSession;
    ///
    /// let session = InferenceSession::new().check_indices(true);
    /// ```
    pub fn check_indices(mut self, check: bool) -> InferenceSession {
        self.check_indices = Some(check);
        self
    }

    /// The most bytes that packed constants keep, of all models that are loaded from here on together; without this call there is
    /// no limit. Matrix products by the others pack them each time, which costs some percents of a product of hundreds of rows,
    /// and more of fewer. Up to 8 rows are multiplied by constants as they lie, which then are in memory twice.
    ///
    /// ```
    /// # use max_core as max;
    /// use max::engine::InferenceSession;
    ///
    /// let session = InferenceSession::new().packed_constants_limit(64 << 20);
    /// ```
    pub fn packed_constants_limit(mut self, bytes: usize) -> InferenceSession {
        self.packed = Arc::new(SharedTiles::with_limit(bytes));
        self
    }

    /// The session's devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Compiles a graph. What is added to the graph afterwards does not change the model.
    ///
    /// Constants that matrix products read are packed by the first execution that needs them, and kept with the model: beside
    /// the constant, about as many bytes again (twice as many for half types that are multiplied as `f32`, and for
    /// 8-bit floats that are multiplied as `bf16`; four times as many for 8-bit floats that are multiplied as `f32`).
    ///
    /// # Errors
    /// The graph's first mistake, or that it has no outputs; an op on a device that the session does not have; a kernel
    /// that is unknown or does not take the dtypes, ranks or parameters that the op gives it; `MAX_ENABLE_PROFILING` has
    /// another value than those of [`GpuProfiling`].
    pub fn load(&self, graph: &Graph) -> Result<Model, EngineError> {
        self.load_with_weights(graph, &())
    }

    /// Compiles the graph of a file that [`Graph::save`] wrote, with the values of its weights.
    ///
    /// # Errors
    /// Those of [`Graph::load`] and of [`load_with_weights`](Self::load_with_weights).
    #[track_caller]
    pub fn load_file(&self, path: impl AsRef<Path>, weights: &dyn WeightsRegistry) -> Result<Model, EngineError> {
        self.load_with_weights(&Graph::load(path)?, weights)
    }

    /// As [`load`](Self::load), with the values of the weights that the graph declares by
    /// [`add_weight`](Graph::add_weight).
    ///
    /// A weight that lies on the host, in row-major order, is not copied for models that use it there: the model keeps the
    /// tensor. What else the registry has is not looked at.
    ///
    /// # Errors
    /// Those of [`load`](Self::load); [`EngineError::Weight`] for a weight that the registry does not have, has with
    /// another dtype or shape, or cannot read.
    pub fn load_with_weights(&self, graph: &Graph, weights: &dyn WeightsRegistry) -> Result<Model, EngineError> {
        self.with_compiled(graph, weights, |data, schedule, context| {
            let profiling = self.profiling.map_or_else(GpuProfiling::of_environment, Ok)?;
            let plan = flatten(data, schedule, context)?.profiled(profiling);
            Ok(Model::new(plan, self.devices.clone(), self.pool.clone()))
        })
    }

    /// What becomes of a graph's ops: the steps of the model, with their lines, the kernels in each, and why neighbours are not
    /// one step.
    ///
    /// # Errors
    /// As [`load_with_weights`](Self::load_with_weights).
    pub fn explain(&self, graph: &Graph, weights: &dyn WeightsRegistry) -> Result<String, EngineError> {
        // A string takes whatever is written.
        self.with_compiled(graph, weights, |_, schedule, _| Ok(explain(&schedule).unwrap_or_default()))
    }

    /// Runs the passes on a graph, and `then` on what they made of it.
    fn with_compiled<T>(
        &self,
        graph: &Graph,
        weights: &dyn WeightsRegistry,
        then: impl FnOnce(&GraphData, Schedule, &Context<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let data = graph.finished()?.clone();
        let _span = tracing::debug_span!("load", model = &*data.name, nodes = data.nodes.len()).entered();
        let form =
            if self.reference { Form::Reference } else { form().map_err(|source| EngineError::Form(source.into()))? };
        let devices: Vec<DeviceRef> = self.devices.iter().map(DeviceRef::from).collect();
        let asked = CodeOptions::of_environment();
        let code = CodeOptions {
            debug: self.debug.unwrap_or(asked.debug),
            float32_matmul_precision: self.float32_matmul_precision.unwrap_or(asked.float32_matmul_precision),
        };
        let threads =
            || self.pool.as_ref().map_or_else(rayon_core::current_num_threads, |pool| pool.current_num_threads());
        let context = Context {
            library: &self.library,
            form,
            devices: &devices,
            code,
            threads: &threads,
            weights,
            packed: &self.packed,
            check_indices: self.check_indices.unwrap_or_else(check_indices_of_environment),
            execute: |plan| plan.run(&mut []),
        };
        let (data, schedule) = compile(data, &context)?;
        then(&data, schedule, &context)
    }
}

/// Whether `MAX_CHECK_INDICES=1` is set.
fn check_indices_of_environment() -> bool {
    std::env::var_os("MAX_CHECK_INDICES").is_some_and(|value| value == "1")
}

impl fmt::Debug for InferenceSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.pool.as_ref().map(|pool| pool.current_num_threads());
        f.debug_struct("InferenceSession").field("devices", &self.devices).field("num_threads", &threads).finish()
    }
}
