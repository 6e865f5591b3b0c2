//! The ways to run a kernel.

use max::kernel::abi::{KernelDef, Level};
use max::kernel::{Form, TensorArg};

use crate::case::Problem;
use crate::simulator::Simulator;
use crate::tensor::Tensor;

/// One way to run a kernel.
pub trait Engine: Send + Sync {
    fn name(&self) -> String;

    /// Whether the engine has a form of its own of this kernel for these dtypes.
    fn has(&self, problem: &Problem) -> bool;

    /// Whether a problem of that much work takes a reasonable time.
    fn affords(&self, problem: &Problem, work: i64) -> bool;

    /// Whether its results have the same bits as others' where nothing is reduced: whether it has a fused multiply-add.
    fn fused(&self) -> bool;

    /// By how much the error that a kernel's case allows is larger here.
    fn error(&self) -> f64 {
        1.0
    }

    /// Runs the kernel on the operands, which are the problem's own or a copy.
    fn run(&self, problem: &Problem, operands: &mut [Tensor]) -> Result<(), String>;
}

/// All engines of this machine. The first has the same bits as all that are fused.
pub fn engines() -> Vec<Box<dyn Engine>> {
    let mut all: Vec<Box<dyn Engine>> = vec![Box::new(Cpu(Form::Reference))];
    all.extend(Level::available().iter().map(|&level| Box::new(Cpu(Form::Compiled(level))) as Box<dyn Engine>));
    all.extend(Simulator::all().into_iter().map(|simulator| Box::new(simulator) as Box<dyn Engine>));
    all
}

/// The kernel on this machine, in one form.
struct Cpu(Form);

/// Whether a kernel was compiled for a level, for the dtypes of these codes.
fn compiled(def: &KernelDef, codes: &[u8], level: Level) -> bool {
    def.instances.as_slice().iter().any(|i| i.level == level && i.dtypes.as_slice() == codes)
}

impl Engine for Cpu {
    fn name(&self) -> String {
        match self.0 {
            Form::Reference => "reference".into(),
            Form::Compiled(level) => level.name().into(),
        }
    }

    fn has(&self, problem: &Problem) -> bool {
        match self.0 {
            Form::Reference => true,
            Form::Compiled(level) => compiled(problem.def, &problem.codes(), level),
        }
    }

    fn affords(&self, _: &Problem, work: i64) -> bool {
        self.0 != Form::Reference || work <= 1 << 17
    }

    fn fused(&self) -> bool {
        match self.0 {
            Form::Reference | Form::Compiled(Level::V3 | Level::V4) => true,
            Form::Compiled(Level::V2) => false,
            Form::Compiled(Level::Portable) => cfg!(target_arch = "aarch64"),
        }
    }

    fn run(&self, problem: &Problem, operands: &mut [Tensor]) -> Result<(), String> {
        let bound = problem.bind(self.0).map_err(|e| e.to_string())?;
        let args: Vec<TensorArg> = operands.iter_mut().map(Tensor::arg).collect();
        // SAFETY: each operand lies in a buffer of its own, and results have no element twice.
        unsafe { bound.launch(&args) }.map_err(|e| e.to_string())
    }
}
