//! [`Schedule`]: the plan under construction. Its steps run in order; what they read and write are views of buffers whose
//! sizes may be symbolic.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::view::{Layout, View};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::{Dim, GraphData, Shape};
use crate::kernel::BoundKernel;
use crate::kernel::abi::{Access, KernelKind};
use crate::kernel::ir::Place;
use crate::plan::fusion::{Fused, Region};
use crate::plan::sizes::Check;

/// A buffer of the schedule; prints as `b3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BufferId(pub u32);

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// Where a buffer's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// The input of this position.
    Input(u32),
    /// The constant of this position in [`Schedule::constants`].
    Constant(u32),
    /// The result of this position.
    Output(u32),
    /// Intermediate memory that the planner has not placed yet.
    Arena,
    /// None: it is made and used part by part, within one step.
    Inside,
    /// Intermediate memory at this byte of its device's arena.
    At(i64),
    /// Intermediate memory of a size that is only known when the model executes, in a slot of its device's arena.
    Slot(u32),
}

/// A piece of memory.
pub(crate) struct Buffer {
    pub home: Home,
    /// The device whose memory it is.
    pub device: DeviceRef,
    pub dtype: DType,
    /// The number of elements.
    pub elements: Dim,
}

/// The operands of a step: of most two inputs and a result.
pub(crate) type Operands = SmallVec<[Operand; 3]>;

/// What a step reads or writes.
#[derive(Clone)]
pub(crate) struct Operand {
    pub buffer: BufferId,
    pub view: View,
}

/// What a step does.
pub(crate) enum Work {
    /// Runs a kernel; the operands are those of its signature.
    Kernel(BoundKernel),
    /// Runs elementwise kernels tile by tile; the operands are those in memory.
    Region(Region),
    /// Runs a kernel with regions beside its programs; the kernel's operands come first, then those of the regions.
    Fused(Box<Fused>),
    /// Copies the second operand to the first.
    Copy,
    /// Copies the second operand, which is in row-major order, to the first, on another device.
    Transfer,
    /// Writes sizes, as `int64`, to its one operand.
    Sizes(Shape),
    /// Reads sizes from its one operand, and begins the stage of that number, in which the names have them.
    Bind(u32),
    /// Runs one of two regions. The operands are the results, the predicate, and the regions' inputs.
    Cond(Box<[Compiled; 2]>, RegionOperands),
    /// Runs the condition and the body. The operands are the results, as much memory again for the values of every other
    /// round, and the initial values, which come first among the regions' inputs.
    While(Box<[Compiled; 2]>, RegionOperands),
    /// Nothing, but no step is put together with one behind it.
    Fence,
    /// Prints the label, and its operand if it has one.
    Print(Arc<str>),
}

/// A region: the graph that the passes made of it, and its schedule.
pub(crate) struct Compiled {
    pub graph: GraphData,
    pub schedule: Schedule,
}

/// What the operands of a step with regions are.
#[derive(Clone, Copy)]
pub(crate) struct RegionOperands {
    /// So many are written: the results, and of a loop the memory beside them.
    pub written: usize,
    /// The number of results.
    pub results: usize,
    /// Those from here on are the regions' inputs.
    pub inputs: usize,
    /// Whether regions change inputs.
    pub changes: bool,
}

/// One step.
pub(crate) struct Step {
    pub work: Work,
    pub operands: Operands,
    /// Where it runs; of a transfer where it goes.
    pub device: DeviceRef,
    /// The line that added the op it came from.
    pub location: &'static Location<'static>,
    /// Parameters of its kernel that are computed at each execution: their numbers, and what they are.
    pub params: SmallVec<[(u32, Dim); 1]>,
}

impl Step {
    /// What it does with an operand.
    pub fn access(&self, operand: usize) -> Access {
        let of = |kernel: &BoundKernel| kernel.def().operands.as_slice().get(operand).map(|o| o.access);
        let written = |region: &Region, operand: usize| match region.written.get(operand) {
            Some(true) => Access::Out,
            _ => Access::In,
        };
        match &self.work {
            Work::Cond(_, operands) | Work::While(_, operands) if operand < operands.written => Access::Out,
            Work::Cond(regions, operands) | Work::While(regions, operands) => {
                let input = operand.checked_sub(operands.inputs).and_then(|i| regions[1].graph.inputs.get(i));
                let is_buffer = input.is_some_and(|id| regions[1].graph.ty(*id).is_buffer());
                if is_buffer && operands.changes { Access::InOut } else { Access::In }
            }
            Work::Bind(_) | Work::Print(_) | Work::Fence => Access::In,
            Work::Kernel(kernel) => of(kernel).unwrap_or(Access::In),
            Work::Region(region) => written(region, operand),
            Work::Fused(fused) => match fused.sides().find(|(side, _)| side.operands.contains(&operand)) {
                Some((side, _)) => written(&side.region, operand - side.operands.start),
                None => of(&fused.program).unwrap_or(Access::In),
            },
            Work::Copy | Work::Transfer | Work::Sizes(_) if operand == 0 => Access::Out,
            Work::Copy | Work::Transfer | Work::Sizes(_) => Access::In,
        }
    }

    /// Whether each element of the results depends on the elements at the same place alone.
    pub fn is_elementwise(&self) -> bool {
        match &self.work {
            Work::Kernel(kernel) => kernel.def().kind == KernelKind::Elementwise,
            Work::Region(_) => true,
            _ => false,
        }
    }

    /// When, within the step, an operand is written first or read last.
    pub fn moment(&self, operand: usize) -> usize {
        let Work::Region(region) = &self.work else { return 0 };
        let place = Place::Memory(operand);
        let mut touched = region.kernels.iter().enumerate().filter(|(_, kernel)| kernel.places.contains(&place));
        let moment = if self.access(operand) == Access::In { touched.next_back() } else { touched.next() };
        moment.map_or(0, |(index, _)| index)
    }

    /// The op's name; of a region that of its first kernel, of a kernel with regions beside it the kernel's.
    pub fn name(&self) -> &'static str {
        match &self.work {
            Work::Kernel(kernel) => kernel.def().name.as_str(),
            Work::Region(region) => region.kernels.first().map_or("region", |k| k.kernel.def().name.as_str()),
            Work::Fused(fused) => fused.program.def().name.as_str(),
            Work::Copy => "copy",
            Work::Transfer => "transfer_to",
            Work::Sizes(_) => "shape_to_tensor",
            Work::Bind(_) => "bind_dims",
            Work::Cond(..) => "cond",
            Work::While(..) => "while_loop",
            Work::Print(_) => "print",
            Work::Fence => "fence",
        }
    }
}

/// A schedule: the steps in their order, and the buffers that they use. The plan is made of it.
#[derive(Default)]
pub(crate) struct Schedule {
    pub buffers: Vec<Buffer>,
    pub constants: Vec<Tensor>,
    pub steps: Vec<Step>,
    pub checks: Vec<Check>,
    /// The stage in which each name has its size, of those that a step binds; others have theirs from the start.
    pub stages: HashMap<Arc<str>, u32>,
    /// How many stages follow the first.
    pub last_stage: u32,
    /// The intermediate memory of each device that has some.
    pub arenas: Vec<Arena>,
    /// Whether indices on the host are checked: they then have to be in memory.
    pub check_indices: bool,
}

/// Intermediate memory of one device.
pub(crate) struct Arena {
    pub device: DeviceRef,
    /// When it is allocated.
    pub stage: u32,
    /// Bytes with a known place.
    pub bytes: i64,
    /// The sizes, in bytes, of the buffers that share each slot, behind those bytes.
    pub slots: Vec<SmallVec<[Dim; 2]>>,
}

impl Schedule {
    pub fn buffer(&mut self, home: Home, device: DeviceRef, dtype: DType, elements: Dim) -> BufferId {
        self.buffers.push(Buffer { home, device, dtype, elements });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// A constant, given on the host, for use on a device.
    pub fn constant(&mut self, tensor: Tensor, device: DeviceRef) -> BufferId {
        let (dtype, elements) = (tensor.dtype(), Dim::from(tensor.num_elements()));
        self.constants.push(tensor);
        self.buffer(Home::Constant(self.constants.len() as u32 - 1), device, dtype, elements)
    }

    /// The device whose memory an operand lies in.
    pub fn device(&self, operand: &Operand) -> DeviceRef {
        self.buffers[operand.buffer.index()].device
    }

    /// The bits of the one element of a constant that an operand repeats, if it does: the first bytes are those in memory.
    pub fn element(&self, operand: &Operand) -> Option<u64> {
        let Home::Constant(position) = self.home(operand) else { return None };
        let (constant, Layout { offset, dims, strides }) = (&self.constants[position as usize], &*operand.view);
        let is_repeated = dims.iter().zip(strides).all(|(dim, stride)| *dim == 1 || *stride == 0);
        let (offset, size) = (usize::try_from(offset.as_static()?).ok()?, constant.element_size());
        let is_inside = is_repeated && (offset + 1) * size <= constant.num_bytes();
        let mut bytes = [0; 8];
        is_inside.then(|| {
            // SAFETY: constants are contiguous and on the host; an element, of at most eight bytes, lies inside.
            unsafe {
                constant.data_ptr().wrapping_add(offset * size).copy_to_nonoverlapping(bytes.as_mut_ptr(), size);
            }
            u64::from_ne_bytes(bytes)
        })
    }

    /// The stage in which a dim has its value.
    pub fn stage(&self, dim: &Dim) -> u32 {
        if self.stages.is_empty() || dim.is_static() {
            return 0;
        }
        dim.parameters().iter().filter_map(|name| self.stages.get(name.name())).copied().max().unwrap_or(0)
    }

    pub fn home(&self, operand: &Operand) -> Home {
        self.buffers[operand.buffer.index()].home
    }
}

impl fmt::Display for Schedule {
    /// One line a step: what it writes, its name, what it reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {{")?;
        for (id, buffer) in self.buffers.iter().enumerate() {
            write!(f, "  b{id}: {} {} in {:?}", buffer.elements, buffer.dtype, buffer.home)?;
            writeln!(f, "{}", if buffer.device.is_cpu() { String::new() } else { format!(" on {}", buffer.device) })?;
        }
        for step in &self.steps {
            let list = |written: bool| -> Vec<String> {
                let of = |&(i, _): &(usize, &Operand)| (step.access(i) != Access::In) == written;
                step.operands.iter().enumerate().filter(of).map(|(_, o)| format!("{}{}", o.buffer, o.view)).collect()
            };
            writeln!(f, "  {} = {}({})", list(true).join(", "), step.name(), list(false).join(", "))?;
            let mut region = |place: &str, region: &Region| {
                let mut kernels = region.kernels.iter();
                kernels.try_for_each(|k| writeln!(f, "    {place}{}{:?}", k.kernel.def().name.as_str(), k.places))
            };
            match &step.work {
                Work::Region(kernels) => region("", kernels)?,
                Work::Fused(fused) => {
                    for (side, before) in fused.sides() {
                        region(if before { "before: " } else { "after: " }, &side.region)?;
                    }
                }
                Work::Cond(regions, _) | Work::While(regions, _) => {
                    for compiled in regions.iter() {
                        let text = format!("{} {}", compiled.graph.name, compiled.schedule);
                        text.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
                    }
                }
                _ => {}
            }
        }
        for arena in &self.arenas {
            writeln!(f, "  arena of {}: {} bytes, {} slots", arena.device, arena.bytes, arena.slots.len())?;
        }
        writeln!(f, "}}")
    }
}
