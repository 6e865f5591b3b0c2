//! The engine: [`InferenceSession`] loads a graph, [`Model`] executes it.
//!
//! Loading runs the compiler's passes and flattens the result into a plan: steps over places in memory, and one table of
//! all sizes. Executing checks the inputs, allocates results and one arena, and walks the plan: no lock of its own, no
//! look-up by name, no allocation but the results.
//!
//! Spans of the crate `tracing`, for whoever subscribes: `load` and `execute` of a model at level DEBUG, each `pass` of the
//! compiler and each `step` of an execution, with op, kernel, line and device, at level TRACE.
//!
//! Environment: `MAX_DUMP=pass,…` prints what compiler passes make of a graph; `MAX_CPU_LEVEL` picks the form of kernels;
//! `MAX_CHECK_INDICES=1` is [`InferenceSession::check_indices`]; `MAX_ENABLE_PROFILING` is [`InferenceSession::gpu_profiling`] for a whole process,
//! `MAX_GPU_LINES=1` and `MAX_GPU_BOUNDS=1` are [`InferenceSession::gpu_debug`], and `MAX_GPU_TF32=1` is
//! [`InferenceSession::float32_matmul_precision`].

mod affinity;
mod execution;
mod fusion;
mod inputs;
mod limits;
mod model;
mod pack;
mod profile;
mod profiling;
mod session;

pub use crate::kernel::GpuDebug;
pub use crate::kernel::ptx::Float32MatmulPrecision;
pub use crate::plan::error::{ActualType, EngineError, InputRef, MemoryOf, OpRef, OperandError};
pub use crate::plan::metadata::TensorSpec;
pub use inputs::{Input, Inputs, IntoInputs};
pub use limits::{CancellationToken, ExecuteOptions};
pub use model::Model;
pub use profile::{Profile, StepTime};
pub use profiling::GpuProfiling;
pub use session::InferenceSession;
