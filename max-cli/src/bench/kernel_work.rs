//! The work `kernel:NAME`: one registered kernel by itself, on a default or a given shape.

use max::dtype::DType;
use max::engine::InferenceSession;
use max::kernel::KernelLibrary;
use max::kernel::abi::Access;

use super::roof::Cost;
use super::work::{Prepared, repeat};
use crate::error::{CliError, WorkError};
use crate::kernels::launch::{KernelLaunch, Named};
use crate::kernels::variant::VariantArgs;

/// A launch of a kernel, under its name as a work.
pub struct KernelWork {
    name: String,
    launch: KernelLaunch,
}

impl KernelWork {
    /// The work `name`; `text` is what follows `kernel:`.
    ///
    /// # Errors
    /// When there is no such kernel, or dtypes, parameters or shapes do not fit it.
    pub fn find(
        name: &str,
        text: &str,
        library: &KernelLibrary,
        options: &VariantArgs,
    ) -> Result<KernelWork, CliError> {
        let named = Named::read(text, library)?;
        let launch = KernelLaunch::new(name, named.def, &named.variant(name, options)?, named.shapes)?;
        Ok(KernelWork { name: format!("kernel:{}", launch.name()), launch })
    }

    /// Its whole name, with dtypes and shapes: `kernel:softmax:f32:77x1000`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The least that it needs, as far as the signature tells: every operand is moved once.
    pub fn cost(&self) -> Cost {
        let KernelLaunch { def, operands, .. } = &self.launch;
        let moved = def.operands.as_slice().iter().zip(operands).map(|(operand, (dtype, shape))| {
            let times = if operand.access == Access::InOut { 2 } else { 1 };
            times * (shape.iter().product::<usize>() * dtype.size_in_bytes()) as u64
        });
        Cost { flops: 0, bytes: moved.sum(), reads_only: false, dtype: DType::F32 }
    }

    /// Makes operands, builds a graph of the kernel alone and loads it.
    ///
    /// # Errors
    /// When the graph cannot be built or loaded, or there is no memory for the operands.
    pub fn prepare<'a>(&self, session: &InferenceSession, library: &KernelLibrary) -> Result<Prepared<'a>, WorkError> {
        let mut loaded = self.launch.load(session, library)?;
        Ok(repeat(session.devices()[0], move || loaded.execute().map(|_| ())))
    }
}
