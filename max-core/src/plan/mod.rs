//! [`Plan`]: a model that is ready to execute. The compiler writes it, and the engine executes it.
//!
//! It is a flat list of steps over places in memory, and one table of the sizes that they use. [`EngineError`] stands here
//! too, because loading and executing share it.

pub(crate) mod error;
pub(crate) mod fusion;
pub(crate) mod metadata;
pub(crate) mod shape_classes;
pub(crate) mod sizes;

use std::ffi::CString;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::driver::allocator::ALIGNMENT;
use crate::driver::{Device, DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::DimExpr;
use crate::graph::ops::kernel_facts::Indices;
use crate::kernel::gpu::GpuCopy;
use crate::kernel::{BoundKernel, Constants, GpuKernel};

use error::{InputRef, OpRef};
use fusion::{Fused, Region};
use metadata::TensorSpec;
use shape_classes::ShapeClasses;
use sizes::Sizes;

/// Which memory an argument lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
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
pub(crate) struct Arg {
    pub memory: Memory,
    pub offset: u32,
    pub dims: u32,
    pub strides: u32,
    pub rank: u32,
    pub element_size: u32,
    pub written: bool,
}

/// What a planned step does.
pub(crate) enum Action {
    /// Runs a kernel, with the packed tiles of its constant operands.
    Kernel(BoundKernel, Option<Constants>),
    Region(Region),
    Fused(Box<Fused>, Option<Constants>),
    /// Copies the second argument to the first.
    Copy,
    GpuKernel(Box<GpuKernel>),
    GpuCopy(Box<GpuCopy>),
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
    /// Reads so many sizes from the one argument, and begins a stage.
    Bind {
        stage: u32,
        count: usize,
        device: Device,
    },
    Regions(Box<Regions>),
    /// Nothing.
    Fence,
    /// Prints the one argument, or only the label.
    Print {
        label: Arc<str>,
        dtype: Option<DType>,
        device: Device,
    },
}

/// Two regions: the branches of a `cond`, whose predicate stands before their inputs, or the condition and the body of a
/// loop.
pub(crate) struct Regions {
    pub plans: Vec<RegionPlan>,
    pub is_loop: bool,
    /// So many arguments are written: the results, and of a loop the memory beside them.
    pub written: usize,
    pub results: usize,
    /// The arguments from here on are the regions' inputs; of a loop, the initial values come first.
    pub inputs: usize,
    /// The device of each argument.
    pub devices: Vec<Device>,
}

/// A region, ready to execute.
pub(crate) struct RegionPlan {
    pub plan: Plan,
    /// The numbers of names that have a size around it, there and in it.
    pub inherited: Vec<(u32, u32)>,
}

impl Action {
    /// The kernel that it runs; of a region, the last one.
    pub fn kernel(&self) -> Option<&'static str> {
        match self {
            Action::Kernel(kernel, _) => Some(kernel.def().name.as_str()),
            Action::Region(region) => region.kernels.last().map(|inner| inner.kernel.def().name.as_str()),
            Action::Fused(fused, _) => Some(fused.program.def().name.as_str()),
            _ => None,
        }
    }

    /// The kernel over a grid that it runs on the host, and its parameters.
    pub fn program(&self) -> Option<(&'static str, &[u64])> {
        let kernel = match self {
            Action::Kernel(kernel, _) => kernel,
            Action::Fused(fused, _) => &fused.program,
            _ => return None,
        };
        Some((kernel.def().name.as_str(), kernel.params()))
    }

    /// Whether it is done although it writes nothing, or nothing of what it writes has elements.
    pub fn is_control(&self) -> bool {
        matches!(self, Action::Bind { .. } | Action::Regions(_) | Action::Print { .. })
    }
}

/// A step and its arguments, a range of [`Plan::args`].
pub(crate) struct PlannedStep {
    pub action: Action,
    pub args: Range<usize>,
    /// The op that it came from, and its line.
    pub name: &'static str,
    pub location: &'static Location<'static>,
    pub device: DeviceRef,
    /// Parameters that the table of sizes gives: their numbers, and the entries.
    pub params: SmallVec<[(u32, u32); 1]>,
    /// Indices that are checked before it is executed.
    pub indices: Option<Indices>,
}

/// Intermediate memory on one device.
pub(crate) struct PlannedArena {
    pub device: Device,
    /// When it is allocated.
    pub stage: u32,
    /// Bytes whose place is known.
    pub bytes: i64,
    /// The sizes of the buffers in each slot behind them.
    pub slots: Vec<SmallVec<[DimExpr; 2]>>,
}

/// A result: the op that it is of, its dtype, its device and the place of its sizes.
pub(crate) struct PlannedOutput {
    pub op: OpRef,
    pub dtype: DType,
    pub device: Device,
    /// When it is allocated.
    pub stage: u32,
    pub dims: Range<usize>,
}

/// A model ready to execute.
pub(crate) struct Plan {
    pub name: Arc<str>,
    pub signature: Arc<str>,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub results: Vec<PlannedOutput>,
    pub sizes: Sizes,
    /// The sizes of executions on inputs of the same shapes.
    pub classes: ShapeClasses,
    pub constants: Vec<Tensor>,
    pub steps: Vec<PlannedStep>,
    pub args: Vec<Arg>,
    pub arenas: Vec<PlannedArena>,
    /// The device of each input.
    pub devices: Vec<Device>,
    /// Whether anything runs or lies elsewhere than on the host.
    pub uses_gpus: bool,
    /// The names that profilers get to see.
    pub labels: Option<Labels>,
}

/// The names of a model's ranges, for profilers.
pub(crate) struct Labels {
    /// The model's, if there is a range around each execution.
    pub model: Option<CString>,
    /// Of each step that has one.
    pub steps: Vec<Option<CString>>,
}

impl Plan {
    /// An input, for messages.
    #[cold]
    pub fn input(&self, index: usize) -> Box<InputRef> {
        let spec = &self.inputs[index];
        Box::new(InputRef { model: self.name.clone(), index, name: spec.name.clone(), ty: spec.ty.clone() })
    }
}

/// The size rounded up to whole alignment units, unless that overflows.
pub(crate) fn aligned(bytes: i64) -> Option<i64> {
    let mask = ALIGNMENT as i64 - 1;
    bytes.checked_add(mask).map(|bytes| bytes & !mask)
}
