//! The PTX back end: lowers the tile IR to PTX.
//!
//! [`write()`] verifies a kernel and gives one module with one entry. The text depends on nothing but the kernel and the
//! target: the same input gives the same bytes.
//!
//! # Passes
//!
//! 1. `analysis` plans: tensor cores, layouts, shared memory, pipelines. It sees nothing but the tile IR.
//! 2. `Gen` lowers the kernel to the machine-level IR (`machine`), once for each plan that is tried: instructions of
//!    virtual registers in basic blocks, with marks of what is touched and where a barrier may stand.
//! 3. A data-flow analysis makes barriers of the marks that need one (`machine::barriers`).
//! 4. The verifier checks the code (`machine::verify`).
//! 5. One printer writes it (`machine::print`).
//!
//! What passes have to know of a GPU stands in one table (`target`), as do the instructions (`machine::isa`).
//!
//! # Calling convention
//!
//! Every parameter of the entry but tensor maps has 8 bytes; [`Module::params`] lists them in order, [`Slot`] says what each holds.
//! Strides are in elements, and any integer (0 to broadcast). Pointers are to global memory, aligned to the element;
//! the 8-bit atomics also touch the aligned 4 bytes around an element.
//!
//! * **Elementwise:** for each operand its pointer and the stride between consecutive elements; each of the kernel's
//!   parameters ([`ParamBits`](crate::kernel::abi::ParamBits)); the number of elements.
//! * **Program:** for each operand its pointer, its dims, its strides; each of the kernel's parameters; three grid
//!   extents, 1 for axes that the kernel does not have; where the device copies tiles itself, whether it can, and 128 bytes
//!   for each tensor map.
//!
//! A launch has one-dimensional blocks of [`Module::block_size`] threads, [`Module::dynamic_shared_bytes`] bytes of dynamic
//! shared memory, and a one-dimensional grid of any size above 0: blocks take elements, or program instances in
//! row-major order, until none is left; but where they multiply tiles, eight rows of the grid's last two axes go through their
//! columns together.
//!
//! # How code maps to threads
//!
//! A block runs one program instance at a time.
//!
//! * All its threads run program code, with the same values. The first thread makes the stores there, and the loads that
//!   only these need (`leader_loads`).
//! * Lane code is divided among the threads: of `W` neighbours that a thread takes at a time, thread `t` has those from
//!   `t * W`, `(t + 256) * W`, … on (`rows`).
//! * Reductions go through warp shuffles and shared memory in a fixed tree, and all threads get the result.
//! * A row that several loops read is cached in shared memory first (`row_cache`).
//! * Tiles are distributed over the threads' registers (`layout`).
//! * Where operations touch the same memory or reuse shared memory, a barrier is placed between them (`hazards`).
//!
//! # GEMM of tiles
//!
//! Before any code is lowered, `plan` selects an instruction for each `dot`:
//!
//! | operands | instruction |
//! | --- | --- |
//! | half precision, or exact in it | `mma.sync` (`mma`); on sm_90a `wgmma`, of operands in shared memory |
//! | 8-bit integers; from sm_89 on 8-bit floats | `mma.sync` on bytes (`int8`), if both operands stay in shared memory; on sm_90a `wgmma` |
//! | other tiles of 8-bit floats | as `f16`, which has all their values |
//! | `f32`, where [`Float32MatmulPrecision::High`] allows it | tensor cores, rounded to tf32 (`tf32`) |
//! | all others | fused multiply-adds of each thread's own elements, as exact as on a CPU |
//!
//! Elements are exact in half precision if they are loaded from such an operand, rounded to it, or converted from bytes.
//! Tensor cores also need a shape that divides. All tiles of the accumulators' shape then have the MMA register layout.
//!
//! * **Shared memory.** An operand that only such `dot`s read, and that is loaded from an operand which the kernel does not
//!   write, has no registers: `cp.async` copies it to a swizzled tile in shared memory (`shared_tile`). Operands of `f32`
//!   and `f64` that threads multiply are copied in the same way.
//! * **Pipelining.** Where a loop's index tells which tile comes next, the loop is a multistage pipeline (`pipeline`).
//! * **Computed operands** lie in registers in runs of 16 bytes, for vectorized access to memory and to shared memory.
//! * **Warp specialization.** On sm_90a, TMA copies the tiles of such a loop (`tma`), and a producer warp beside the 256
//!   threads does nothing but issue the copies (`warp_specialization`).
//! * **K-major and MN-major.** `wgmma` takes half precision in either order, other dtypes if both operands are K-major
//!   (`dot(a, b.t())`).
//!
//! Products in tensor cores are exact; in which order they are accumulated is the device's choice. Where there is one value
//! for each row of such accumulators, as in attention, each thread has that of its own rows.
//!
//! # What the instructions promise
//!
//! Rounding is always written out (`add.rn.f32`), subnormals are kept (no `.ftz`), a product and a sum are fused only by
//! [`Op::Fma`](crate::kernel::ir::Op::Fma) and inside of [`Op::Dot`](crate::kernel::ir::Op::Dot). No access is made
//! outside the bounds of an operand.

#![deny(clippy::wildcard_enum_match_arm)]

/// Appends an instruction: `emit!(g, "add.s32", d, a, b)`. `@p` before the opcode is its guard, `@!p` a negated one, and
/// `when p` one that may be `None`.
macro_rules! emit {
    ($g:expr, @!$guard:expr, $opcode:expr $(, $operand:expr)* $(,)?) => {
        emit!($g, Some($crate::kernel::ptx::machine::Guard::unless($guard)); $opcode $(, $operand)*)
    };
    ($g:expr, @$guard:expr, $opcode:expr $(, $operand:expr)* $(,)?) => {
        emit!($g, Some($crate::kernel::ptx::machine::Guard::when($guard)); $opcode $(, $operand)*)
    };
    ($g:expr, when $guard:expr, $opcode:expr $(, $operand:expr)* $(,)?) => {
        emit!($g, $guard.map($crate::kernel::ptx::machine::Guard::when); $opcode $(, $operand)*)
    };
    ($g:expr, $guard:expr; $opcode:expr $(, $operand:expr)*) => {
        $g.emit($opcode, $guard, [$(Into::<$crate::kernel::ptx::machine::Operand>::into($operand)),*])
    };
    ($g:expr, $opcode:expr $(, $operand:expr)* $(,)?) => { emit!($g, None; $opcode $(, $operand)*) };
}

mod analysis;
mod convert;
mod elementwise;
mod emitter;
mod float8;
#[cfg(test)]
mod inlined;
mod loops;
mod machine;
mod memory;
mod mma;
mod print;
mod program;
mod rows;
mod scalar;
mod target;
mod tile;
mod warp_specialization;

use std::rc::Rc;

use crate::kernel::abi::{GridAxis, GridTerm, KernelKind};
use crate::kernel::ir::{self, Kernel};
use analysis::plan::{Effort, Plan};
use emitter::Gen;
pub(crate) use tile::has_room;

/// The largest dimension that an operand of a launch may have: so far from the largest index that loops over it by
/// constant steps do not come to that.
pub const LARGEST_DIM: i64 = 1 << 62;

/// Threads in a block that compute.
pub const BLOCK_SIZE: u32 = 256;
/// Warps of them.
const WARPS: u32 = BLOCK_SIZE / 32;

/// The GPU that PTX is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The compute capability, 80 for 8.0.
    pub sm: u32,
    /// Whether to use what is special to that architecture (`sm_90a`); the code then runs on no later one.
    pub arch_specific: bool,
}

impl Target {
    /// The oldest compute capability that there is code for.
    pub const MIN_SM: u32 = 80;
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}{}", self.sm, if self.arch_specific { "a" } else { "" })
    }
}

/// The version of PTX that has `dot`s of 8-bit floats, and by warpgroups those of signed bytes with others.
const FLOAT8_MMA: u32 = 84;

/// How exactly `dot`s of `f32` tiles are made, as PyTorch's `set_float32_matmul_precision` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Float32MatmulPrecision {
    /// By fused multiply-adds: each product is exact, and the sum is rounded once for each.
    #[default]
    Highest,
    /// By the tensor cores where they can: operands are rounded to the 11 significant bits of tf32, to the nearest one,
    /// ties away from zero. Their range is that of `f32`, but those within 2^-12 of its largest number become infinite.
    /// Products of the rounded operands are exact, and the accumulators are of `f32`.
    High,
}

/// How PTX is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The GPU.
    pub target: Target,
    /// Whether `.file` and `.loc` say which line of the kernel's source an instruction is for: profilers, debuggers and
    /// the errors of a driver then name it. The code is the same.
    pub annotate: bool,
    /// Whether an access outside of an operand is reported, by printing its line, the operand, the index and the dims.
    /// Reading with a pad value, and tiles, are meant to reach outside.
    pub bounds: bool,
    /// How exact `dot`s of `f32` tiles are.
    pub float32_matmul_precision: Float32MatmulPrecision,
    /// The newest version of PTX that may be used, 84 for 8.4, if that is one which knows the target: what needs a
    /// later one is written otherwise.
    pub ptx_version: u32,
    /// The most shared memory that a block may have, in bytes, where the GPU has less than others of its kind.
    pub shared_bytes: u32,
}

impl Options {
    /// The plain form for a target.
    pub const fn new(target: Target) -> Options {
        let float32_matmul_precision = Float32MatmulPrecision::Highest;
        let (ptx_version, shared_bytes) = (u32::MAX, target.features().shared_bytes);
        Options { target, annotate: false, bounds: false, float32_matmul_precision, ptx_version, shared_bytes }
    }

    /// Whether tensor cores multiply 8-bit floats.
    fn multiplies_float8(&self) -> bool {
        self.target.features().float8_mma && self.ptx_version >= FLOAT8_MMA
    }
}

/// What one parameter of the entry holds, in 8 bytes if nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// The address of an operand's first element.
    Pointer {
        /// Index of the operand.
        operand: u32,
    },
    /// The extent of an operand's dimension.
    Dim {
        /// Index of the operand.
        operand: u32,
        /// The dimension.
        axis: u32,
    },
    /// The stride of an operand's dimension, in elements; of an elementwise kernel that between consecutive elements.
    Stride {
        /// Index of the operand.
        operand: u32,
        /// The dimension; 0 of an elementwise kernel.
        axis: u32,
    },
    /// The bits of a parameter of the kernel.
    Param {
        /// Its index in [`Kernel::params`].
        index: u32,
    },
    /// The number of elements of an elementwise launch.
    Count,
    /// A tensor map of an operand, of 128 bytes: its axes with the last one first, in boxes of so many columns and rows
    /// and of one element along all other axes.
    TensorMap {
        /// Index of the operand.
        operand: u32,
        /// Elements of a box along the operand's last axis.
        columns: u32,
        /// Elements along the one before it.
        rows: u32,
        /// Bytes of the pattern in which vectors of 16 bytes change places in shared memory.
        swizzle: u32,
    },
    /// Whether the launch has all tensor maps: 1, or 0 if an operand has none; the maps are then not looked at. An
    /// operand has one if its address is a multiple of 16, its last axis has the stride 1, all others have positive
    /// strides that are multiples of 16 bytes, and each axis has from 1 to 2^30 elements.
    Mapped,
    /// The number of program instances along a grid axis.
    Grid {
        /// The axis.
        axis: u32,
    },
}

impl Slot {
    /// Bytes of the parameter.
    pub fn bytes(self) -> usize {
        match self {
            Slot::TensorMap { .. } => 128,
            Slot::Pointer { .. } | Slot::Dim { .. } | Slot::Stride { .. } | Slot::Param { .. } => 8,
            Slot::Count | Slot::Mapped | Slot::Grid { .. } => 8,
        }
    }
}

/// A PTX module with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The PTX.
    pub text: String,
    /// The entry's name.
    pub entry: String,
    /// Threads of a block.
    pub block_size: u32,
    /// How many blocks are on a multiprocessor at a time, if the kernel is made for that: more would only begin later.
    pub resident: Option<u32>,
    /// Dynamic shared memory of a block, in bytes, without that for rows.
    pub shared_bytes: u32,
    /// The operands of the rows that a block keeps in shared memory if there is room: see
    /// [`dynamic_shared_bytes`](Self::dynamic_shared_bytes).
    pub cached_rows: Vec<u32>,
    /// The entry's parameters, in order.
    pub params: Vec<Slot>,
    /// What the extents of a program kernel's grid are, by the tile sizes that it was written with.
    pub grid: Vec<GridAxis>,
    /// The terms of extents that are expressions.
    pub grid_terms: Vec<GridTerm>,
}

impl Module {
    /// Dynamic shared memory of a block for a launch: with room for the rows that it keeps, if `limit` bytes have that,
    /// given how long the rows of an operand are in bytes.
    pub fn dynamic_shared_bytes(&self, row_bytes: impl Fn(u32) -> u64, limit: u32) -> u32 {
        shared_with_rows(self.shared_bytes, self.cached_rows.iter().map(|&operand| row_bytes(operand)), limit)
    }
}

/// Bytes of shared memory with room for rows of so many bytes each, if `limit` bytes have that; else those without.
/// Each row has as much room as the longest one.
pub(crate) fn shared_with_rows(bytes: u32, rows: impl ExactSizeIterator<Item = u64>, limit: u32) -> u32 {
    let (count, vector) = (rows.len() as u64, u64::from(memory::shared_tile::VECTOR_BYTES));
    let room = rows.max().unwrap_or(0).checked_next_multiple_of(vector).and_then(|room| room.checked_mul(count));
    let all = room.and_then(|room| room.checked_add(bytes.into())).and_then(|all| u32::try_from(all).ok());
    all.filter(|all| *all <= limit).unwrap_or(bytes)
}

/// Why there is no PTX for a kernel.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// The kernel breaks the rules of the IR.
    #[error("the kernel is not valid IR:\n{0}")]
    Invalid(#[from] ir::VerifyErrors),
    /// The GPU is too old.
    #[error("kernel `{kernel}`: no code is written for {target}; the oldest is sm_{}", Target::MIN_SM)]
    Target {
        /// The kernel's name.
        kernel: String,
        /// What was asked for.
        target: Target,
    },
    /// The entry would have more parameters than a launch can pass.
    #[error(
        "kernel `{kernel}` needs {bytes} bytes of launch parameters, but there are {limit}: give it fewer operands"
    )]
    TooManyParams {
        /// The kernel's name.
        kernel: String,
        /// Bytes needed.
        bytes: usize,
        /// Bytes that there are.
        limit: usize,
    },
    /// The code requests what a launch does not pass: a mistake of the PTX writer.
    #[error(
        "kernel `{kernel}`: its code needs {slot:?}, which is no parameter of its entry; please report this kernel"
    )]
    MissingParam {
        /// The kernel's name.
        kernel: String,
        /// What is missing.
        slot: Slot,
    },
    /// The code breaks the rules of the machine-level IR: a mistake of the PTX back end.
    #[error("kernel `{kernel}`: its code is not valid: {fault}; please report this kernel")]
    Machine {
        /// The kernel's name.
        kernel: String,
        /// Which rule, and where.
        fault: String,
    },
    /// The tiles do not fit in shared memory.
    #[error("kernel `{kernel}` needs {bytes} bytes of shared memory, but {target} has {limit}: make its tiles smaller")]
    SharedMemory {
        /// The kernel's name.
        kernel: String,
        /// Bytes needed.
        bytes: u64,
        /// Bytes that a block can have.
        limit: u32,
        /// The target.
        target: Target,
    },
    /// A tile has more elements than a block can hold in registers.
    #[error("kernel `{kernel}` has a tile of {rows}x{columns}; a tile has at most {limit} elements")]
    TileSize {
        /// The kernel's name.
        kernel: String,
        /// Rows of the tile.
        rows: u32,
        /// Its columns.
        columns: u32,
        /// The most elements.
        limit: u32,
    },
}

/// Bytes of parameters that a launch can pass on every target.
const PARAM_BYTES: usize = 4096;

/// Writes a kernel as PTX.
///
/// # Errors
/// If the kernel is not valid, or needs more than the target has.
///
/// ```
/// # use max_core as max;
/// use max::kernel::{ir, ptx};
///
/// let kernel = ir::parse("kernel \"twice\" elementwise (in x: f32, out y: f32) |%0: f32| {
///     %1: f32 = add %0, %0
///     yield %1
/// }")?;
/// let target = ptx::Target { sm: 80, arch_specific: false };
/// let module = ptx::write(&kernel, ptx::Options::new(target))?;
/// assert!(module.text.contains("add.rn.f32"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(kernel: &Kernel, options: Options) -> Result<Module, PtxError> {
    ir::verify(kernel)?;
    let (name, target) = (|| kernel.name.clone(), options.target);
    if target.sm < Target::MIN_SM {
        return Err(PtxError::Target { kernel: name(), target });
    }
    tile::check_sizes(kernel)?;
    let slots = slots(kernel);
    let limit = target.features().shared_bytes.min(options.shared_bytes);
    let mut least = 0;
    for effort in Effort::ALL {
        let plan = Plan::new(kernel, effort, options);
        let params = [&slots[..], &plan.maps].concat();
        let bytes = params.iter().map(|slot| slot.bytes()).sum();
        if bytes > PARAM_BYTES {
            return Err(PtxError::TooManyParams { kernel: name(), bytes, limit: PARAM_BYTES });
        }
        let g = code(kernel, &params, options, plan)?;
        match u32::try_from(g.shared_bytes) {
            Ok(shared_bytes) if shared_bytes <= limit => {
                // Rows that are cached lie behind it, in vectors.
                let vector = if g.room.is_some() { memory::shared_tile::VECTOR_BYTES } else { 1 };
                return g.finish(shared_bytes.next_multiple_of(vector));
            }
            Ok(_) | Err(_) => least = g.shared_bytes,
        }
    }
    Err(PtxError::SharedMemory { kernel: name(), bytes: least, limit, target })
}

/// The code of a kernel, before barriers are placed.
fn code<'k>(kernel: &'k Kernel, params: &[Slot], options: Options, plan: Plan) -> Result<Gen<'k>, PtxError> {
    let mut g = Gen::new(kernel, params.to_vec(), options, Rc::new(plan));
    match kernel.kind {
        KernelKind::Elementwise => g.elementwise(),
        KernelKind::Program => g.program(),
    }
    match g.missing {
        None => Ok(g),
        Some(slot) => Err(PtxError::MissingParam { kernel: kernel.name.clone(), slot }),
    }
}

/// The parameters of a kernel's entry.
fn slots(kernel: &Kernel) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (operand, o) in (0..).zip(&kernel.operands) {
        slots.push(Slot::Pointer { operand });
        match kernel.kind {
            KernelKind::Elementwise => slots.push(Slot::Stride { operand, axis: 0 }),
            KernelKind::Program => {
                slots.extend((0..o.rank).map(|axis| Slot::Dim { operand, axis }));
                slots.extend((0..o.rank).map(|axis| Slot::Stride { operand, axis }));
            }
        }
    }
    slots.extend((0..).zip(&kernel.params).map(|(index, _)| Slot::Param { index }));
    match kernel.kind {
        KernelKind::Elementwise => slots.push(Slot::Count),
        KernelKind::Program => slots.extend((0..3).map(|axis| Slot::Grid { axis })),
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_the_entry_lacks_is_an_error() {
        let kernel = ir::parse("kernel \"twice\" elementwise (in x: f32, out y: f32) |%0: f32| {\n  yield %0\n}");
        let kernel = kernel.expect("a kernel");
        let options = Options::new(Target { sm: 80, arch_specific: false });
        let plan = || Plan::new(&kernel, Effort::ALL[0], options);
        let all = slots(&kernel);
        assert!(code(&kernel, &all, options, plan()).is_ok());
        for left_out in 0..all.len() {
            let mut some = all.clone();
            let slot = some.remove(left_out);
            let error = code(&kernel, &some, options, plan()).err();
            assert_eq!(error, Some(PtxError::MissingParam { kernel: "twice".to_owned(), slot }));
        }
    }
}
