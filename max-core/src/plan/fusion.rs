//! Fused steps: [`Region`], several elementwise kernels in one step, and [`Fused`], a program kernel with regions as its
//! prologue and epilogue.
//!
//! The compiler makes them. The engine runs them on the host, tile by tile; for a GPU their IR becomes one kernel.

use std::ops::Range;

use smallvec::SmallVec;

use crate::driver::Device;
use crate::dtype::DType;
use crate::kernel::abi::Access;
use crate::kernel::ir::{self, Chain, Operand, Place};
use crate::kernel::{BoundKernel, CodeOptions, Cost, GpuError, GpuKernel};

/// Values inside a region that may be alive at the same time.
pub(crate) const MAX_SCRATCH: usize = 6;
/// Operands of a region that lie in memory.
pub(crate) const MAX_OPERANDS: usize = 10;

/// A kernel of a region.
#[derive(Clone)]
pub(crate) struct RegionKernel {
    pub kernel: BoundKernel,
    /// Its operands, in the order of its signature.
    pub places: SmallVec<[Place; 4]>,
    /// Whether large results may bypass the cache: they go to memory, and no other kernel of the region reads them.
    pub may_stream: bool,
}

/// Several elementwise kernels over operands of the same dims.
#[derive(Clone)]
pub(crate) struct Region {
    pub kernels: Vec<RegionKernel>,
    /// What each operand's elements are, whatever else its memory is used for.
    pub dtypes: SmallVec<[DType; 8]>,
    /// Whether each operand is written.
    pub written: SmallVec<[bool; 8]>,
    /// Beside the programs of a kernel: the operand in memory that gets a copy of the part if that lies elsewhere, for
    /// others to read.
    pub copy: Option<usize>,
    /// What an element of all kernels took where they ran by themselves.
    pub cost: Cost,
}

impl Region {
    /// The kernels one after the other, as the GPU has them.
    pub fn chain(&self) -> Result<Chain, GpuError> {
        let operand = |(i, (dtype, written)): (usize, (&DType, &bool))| {
            let (letter, access) = if *written { ("y", Access::Out) } else { ("x", Access::In) };
            Operand { name: format!("{letter}{i}"), access, dtype: *dtype, rank: 0 }
        };
        let kernel = |k: &RegionKernel| Ok((k.kernel.recorded()?, k.places.to_vec()));
        let kernels = self.kernels.iter().map(kernel).collect::<Result<_, GpuError>>()?;
        Ok(Chain { kernels, operands: self.dtypes.iter().zip(&self.written).enumerate().map(operand).collect() })
    }

    /// All kernels as one, loaded on a GPU; `rank` as for [`BoundKernel::on_gpu`].
    pub fn on_gpu(&self, device: (&Device, CodeOptions), rank: usize) -> Result<GpuKernel, GpuError> {
        let name = self.kernels.first().map_or("region", |k| k.kernel.def().name.as_str());
        let chain = self.chain()?;
        GpuKernel::elementwise(name, chain.alone(name), chain.params().collect(), device, rank)
    }
}

/// A region beside the programs of a kernel.
#[derive(Clone)]
pub(crate) struct Side {
    pub region: Region,
    /// The operand of the kernel that it writes or reads.
    pub operand: usize,
    /// The size of that operand's elements.
    pub element_size: usize,
    /// The region's operands among those of the step.
    pub operands: Range<usize>,
}

/// A program kernel with regions beside its programs. The step's first operands are the kernel's.
#[derive(Clone)]
pub(crate) struct Fused {
    pub program: BoundKernel,
    pub before: Option<Side>,
    pub after: Option<Side>,
}

impl Fused {
    /// The regions, and whether each runs before the program.
    pub fn sides(&self) -> impl Iterator<Item = (&Side, bool)> {
        self.before.iter().map(|side| (side, true)).chain(self.after.iter().map(|side| (side, false)))
    }

    /// All of it as one kernel, loaded on a GPU; the step's operands are views of equal dims wherever they stand for each
    /// other.
    pub fn on_gpu(&self, device: (&Device, CodeOptions)) -> Result<GpuKernel, GpuError> {
        let side = |side: &Side| -> Result<ir::Side, GpuError> {
            Ok(ir::Side { chain: side.region.chain()?, operand: side.operand as u32 })
        };
        let before = self.before.as_ref().map(side).transpose()?;
        let after = self.after.as_ref().map(side).transpose()?;
        let keep = self.after.as_ref().is_some_and(|side| side.region.copy.is_some());
        let fused = |program| ir::fuse(program, before.clone(), after.clone(), keep);
        let params = [&before, &after].into_iter().flatten().flat_map(|side| side.chain.params());
        self.program.on_gpu_as(fused, self.after.as_ref().map(|side| side.operand), params, device)
    }
}
