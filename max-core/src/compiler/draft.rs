//! [`Draft`]: the plan under construction. Its steps run in order; what they read and write are views of buffers whose
//! sizes may be symbolic.

use std::fmt;
use std::panic::Location;

use smallvec::SmallVec;

use super::view::View;
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::engine::fused::Fused;
use crate::engine::region::Region;
use crate::graph::{Dim, Shape, SliceAxis};
use crate::kernel::BoundKernel;
use crate::kernel::ir::Place;
use crate::kernel::table::{Access, KernelKind};

/// A buffer of the draft; prints as `b3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// The constant of this position in [`Draft::constants`].
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
}

/// One step.
pub(crate) struct Step {
    pub work: Work,
    pub operands: SmallVec<[Operand; 4]>,
    /// Where it runs; of a transfer where it goes.
    pub device: DeviceRef,
    /// The line that added the op it came from.
    pub location: &'static Location<'static>,
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
            Work::Fused(_) | Work::Copy | Work::Transfer | Work::Sizes(_) => false,
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
        }
    }
}

/// What has to hold when the model executes, in the order in which it is checked.
pub(crate) enum Check {
    /// The sizes `actual` are those of `declared`; names that are new are bound by it.
    Rebind { actual: Shape, declared: Shape, message: std::sync::Arc<str>, location: &'static Location<'static> },
    /// A slice stays inside.
    Slice {
        op: &'static str,
        shape: Shape,
        axes: SmallVec<[SliceAxis; 4]>,
        taken: Shape,
        location: &'static Location<'static>,
    },
}

/// A plan under construction.
#[derive(Default)]
pub(crate) struct Draft {
    pub buffers: Vec<Buffer>,
    pub constants: Vec<Tensor>,
    pub steps: Vec<Step>,
    pub checks: Vec<Check>,
    /// The intermediate memory of each device that has some.
    pub arenas: Vec<Arena>,
}

/// Intermediate memory of one device.
pub(crate) struct Arena {
    pub device: DeviceRef,
    /// Bytes with a known place.
    pub bytes: i64,
    /// The sizes, in bytes, of the buffers that share each slot, behind those bytes.
    pub slots: Vec<SmallVec<[Dim; 2]>>,
}

impl Draft {
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
        let (constant, View { offset, dims, strides }) = (&self.constants[position as usize], &operand.view);
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

    pub fn home(&self, operand: &Operand) -> Home {
        self.buffers[operand.buffer.index()].home
    }
}

impl fmt::Display for Draft {
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
                _ => {}
            }
        }
        for arena in &self.arenas {
            writeln!(f, "  arena of {}: {} bytes, {} slots", arena.device, arena.bytes, arena.slots.len())?;
        }
        writeln!(f, "}}")
    }
}
