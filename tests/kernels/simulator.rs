//! The engine that runs a kernel's PTX in the simulator.
//!
//! Memory on the simulated device holds exactly what operands describe, so that any access outside is a fault, as is
//! reading what was not written and writing an input.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use max::dtype::DType;
use max::kernel::abi::{Access, GpuTile, KernelDef, KernelKind, ParamBits, extents};
use max::kernel::ir;
use max::kernel::ptx::{self, Float32MatmulPrecision, Options, Slot, Target};
use ptx_sim::{Arg, DevicePtr, Launch, Memory, Stats, WarpOrder};

use crate::case::{Case, Problem};
use crate::engine::Engine;
use crate::number::Num;
use crate::tensor::Tensor;

/// The targets that PTX is written for.
pub const TARGETS: [Target; 3] = [
    Target { sm: 80, arch_specific: false },
    Target { sm: 90, arch_specific: true },
    Target { sm: 100, arch_specific: false },
];

/// By how much more products of tf32 are wrong than those of `f32`: factors are rounded by up to 2^-11 of themselves, products so
/// by 2^-10, which is 2^14 halves of an `f32`'s last place.
pub const TF32_ERROR: f64 = 16384.0;

/// The most elements or programs that go through more than one block.
const BLOCKS: i64 = 3;

/// Bytes of shared memory that a block can have on every target.
const SHARED_BYTES: u32 = 163 << 10;

/// PTX that was read by the simulator.
pub struct Compiled {
    written: ptx::Module,
    parsed: ptx_sim::Module,
}

type Key = (&'static str, Vec<u8>, Option<Vec<ParamBits>>);

/// How the PTX of a kernel is written.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub options: Options,
    /// Whether parameters are arguments of the launch, and not constants in the code.
    pub symbolic: bool,
    pub tiles: Tiles,
}

/// Which of a kernel's tile sizes it is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// Those that are best for the target where dims are large.
    Best,
    /// Those for every GPU, also where the target has its own.
    General,
    /// The ones of this number among those that are for small dims. They are right for all.
    Small(usize),
}

/// The most tile sizes for small dims that a kernel has for one combination of dtypes.
const SMALL: usize = 4;

/// A kernel's tile sizes for small dims.
pub fn small(def: &'static KernelDef, target: Target, dtypes: &[DType]) -> impl Iterator<Item = &'static GpuTile> {
    def.tiles_on(target, dtypes).filter(|tile| !tile.conditions.as_slice().is_empty())
}

impl Way {
    pub const fn new(options: Options) -> Way {
        Way { options, symbolic: false, tiles: Tiles::Best }
    }

    /// One for each target, those with products of tf32 of warps and of warpgroups, one with general tiles where a target
    /// has its own, and those with tiles for small dims.
    pub fn all() -> Vec<Way> {
        let tiled = |tiles| Way { tiles, ..Way::new(Options::new(TARGETS[1])) };
        let more = [Way::new(with_tf32(TARGETS[0])), Way::new(with_tf32(TARGETS[1])), tiled(Tiles::General)];
        let plain = TARGETS.map(|target| Way::new(Options::new(target))).into_iter();
        plain.chain(more).chain((0..SMALL).map(|i| tiled(Tiles::Small(i)))).collect()
    }

    /// The kernel's IR for these dtypes.
    pub fn ir(
        &self,
        def: &'static KernelDef,
        dtypes: &[DType],
        params: Option<&[ParamBits]>,
    ) -> Result<String, String> {
        match self.tiles {
            Tiles::Best => def.ir_text_on(self.options.target, dtypes, params).map_err(|e| e.to_string()),
            Tiles::General => Ok(def.ir_text(dtypes, params)),
            Tiles::Small(i) => {
                let tile = small(def, self.options.target, dtypes).nth(i).ok_or("there are no such tile sizes")?;
                Ok(def.ir_text_of(tile, dtypes, params))
            }
        }
    }

    /// The kernel's PTX for a problem, from IR that is recorded and read back.
    pub fn write(&self, problem: &Problem) -> Result<ptx::Module, String> {
        let bits = problem.param_bits();
        // Elements that are only moved have the dtype that the kernel was compiled for.
        let dtypes: Vec<DType> = problem.codes().into_iter().filter_map(DType::from_code).collect();
        let text = self.ir(problem.def, &dtypes, (!self.symbolic).then_some(&bits[..]))?;
        let kernel = ir::parse(&text).map_err(|e| format!("{e}\n{text}"))?;
        ptx::write(&kernel, self.options).map_err(|e| e.to_string())
    }

    /// Whether it may be another for a kernel than the plainer way.
    pub fn may_differ(&self, def: &'static KernelDef, dtypes: &[DType]) -> bool {
        let multiplies_floats = def.kind == KernelKind::Program && dtypes.contains(&DType::F32);
        let has_tiles = match self.tiles {
            Tiles::Best => true,
            Tiles::General => !def.gpu_tiles.as_slice().is_empty(),
            Tiles::Small(i) => small(def, self.options.target, dtypes).nth(i).is_some(),
        };
        (!self.is_tf32() || multiplies_floats) && has_tiles
    }

    /// Whether the code for a problem is none of a plainer way.
    pub fn differs(&self, problem: &Problem, own: &ptx::Module) -> bool {
        let target = self.options.target;
        let is_best = self.tiles == Tiles::Best;
        let plain = (!is_best || self.is_tf32()).then(|| Options::new(target));
        let of_first = if self.is_tf32() { with_tf32(TARGETS[0]) } else { Options::new(TARGETS[0]) };
        let of_first = (is_best && target != TARGETS[0]).then_some(of_first);
        [plain, of_first].into_iter().flatten().all(|options| {
            let plainer = Way { options, tiles: Tiles::Best, ..*self };
            plainer.write(problem).map_or(true, |plainer| code(&plainer) != code(own))
        })
    }

    pub fn is_tf32(&self) -> bool {
        self.options.float32_matmul_precision == Float32MatmulPrecision::High
    }

    /// By how much the error that a kernel's case allows is larger.
    pub fn error(&self) -> f64 {
        if self.is_tf32() { TF32_ERROR } else { 1.0 }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |flag, text| if flag { text } else { "" };
        let (symbolic, tf32) = (said(self.symbolic, ", parameters at launch"), said(self.is_tf32(), ", tf32"));
        let tiles = match self.tiles {
            Tiles::Best => String::new(),
            Tiles::General => ", general tiles".to_owned(),
            Tiles::Small(i) => format!(", tiles {i} for small dims"),
        };
        write!(f, "PTX {}{symbolic}{tiles}{tf32}", self.options.target)
    }
}

/// PTX in the simulator.
pub struct Simulator {
    way: Way,
    compiled: Mutex<HashMap<Key, (Arc<Compiled>, bool)>>,
}

/// How PTX is written with products of `f32` by tensor cores.
pub fn with_tf32(target: Target) -> Options {
    Options { float32_matmul_precision: Float32MatmulPrecision::High, ..Options::new(target) }
}

/// The part of a module that is not its header.
fn code(module: &ptx::Module) -> &str {
    module.text.find(".visible").map_or("", |at| &module.text[at..])
}

impl Simulator {
    /// One for each way, and one more with parameters passed at launch.
    pub fn all() -> Vec<Simulator> {
        let symbolic = Way { symbolic: true, ..Way::new(Options::new(TARGETS[0])) };
        Way::all().into_iter().chain([symbolic]).map(|way| Simulator { way, compiled: Mutex::default() }).collect()
    }

    /// The code for a problem, and whether it is none of a plainer way.
    fn compiled(&self, problem: &Problem) -> Result<(Arc<Compiled>, bool), String> {
        let params = if self.way.symbolic { None } else { Some(problem.param_bits()) };
        let key = (problem.def.name.as_str(), problem.codes(), params);
        let mut all = self.compiled.lock().map_err(|e| e.to_string())?;
        if let Some(known) = all.get(&key) {
            return Ok(known.clone());
        }
        let written = self.way.write(problem)?;
        let differs = self.way.differs(problem, &written);
        let found = (Arc::new(Compiled::new(written)?), differs);
        all.insert(key, found.clone());
        Ok(found)
    }
}

impl Engine for Simulator {
    fn name(&self) -> String {
        self.way.to_string()
    }

    fn has(&self, problem: &Problem) -> bool {
        if self.way.symbolic {
            return !problem.params.is_empty();
        }
        // What cannot be written is an error of the run.
        let differs = || self.compiled(problem).map_or(true, |(_, differs)| differs);
        self.way.may_differ(problem.def, &problem.dtypes) && differs()
    }

    fn affords(&self, problem: &Problem, work: i64) -> bool {
        let launches = match problem.def.kind {
            KernelKind::Elementwise => run_count(&problem.operands).0,
            KernelKind::Program => 1,
        };
        work <= 10_000 && launches <= 50
    }

    fn fused(&self) -> bool {
        true
    }

    fn error(&self) -> f64 {
        self.way.error()
    }

    fn run(&self, problem: &Problem, operands: &mut [Tensor]) -> Result<(), String> {
        self.compiled(problem)?.0.run(problem, operands).map(|_| ())
    }
}

impl Compiled {
    pub fn new(written: ptx::Module) -> Result<Compiled, String> {
        let parsed = ptx_sim::Module::parse(&written.text).map_err(|e| e.to_string())?;
        Ok(Compiled { written, parsed })
    }

    /// Runs a problem and compares with the reference, of which `error` times as much is allowed as the case says; gives what was
    /// counted, and the results.
    pub fn check(&self, case: &Case, problem: &Problem, error: f64) -> Result<(Vec<Stats>, Vec<Vec<Num>>), String> {
        let mut operands = problem.operands.clone();
        let counts = self.run(problem, &mut operands)?;
        let outputs = operands.iter().zip(&problem.values).filter(|(_, before)| before.is_empty());
        let results: Vec<(DType, Vec<Num>)> = outputs.map(|(result, _)| (result.dtype, result.values())).collect();
        for ((dtype, got), want) in results.iter().zip(case.want(problem)) {
            let wrong = got.iter().zip(want).position(|(got, want)| !want.accepts(*dtype, *got, case.ulps * error));
            if let Some(i) = wrong {
                return Err(format!("element {i} is not what the reference says"));
            }
        }
        Ok((counts, results.into_iter().map(|(_, got)| got).collect()))
    }

    /// How many axes a program kernel's grid has.
    pub fn axes(&self) -> usize {
        self.written.grid.len()
    }

    /// The extents of a program kernel's grid.
    pub fn grid(&self, problem: &Problem) -> [i64; 3] {
        let dim = |operand: usize, dim: usize| problem.dims(operand).get(dim).copied();
        extents(&self.written.grid, &self.written.grid_terms, &problem.param_bits(), dim)
            .expect("a grid of few programs")
    }

    /// Runs a problem, and gives what was counted in each launch.
    pub fn run(&self, problem: &Problem, operands: &mut [Tensor]) -> Result<Vec<Stats>, String> {
        self.run_in(problem, operands, BLOCKS)
    }

    /// The same in so many blocks at most.
    pub fn run_in(&self, problem: &Problem, operands: &mut [Tensor], most: i64) -> Result<Vec<Stats>, String> {
        let mut counts = Vec::new();
        let mut memory = Memory::new();
        let uploads: Vec<Upload> = problem
            .def
            .operands
            .as_slice()
            .iter()
            .zip(&*operands)
            .map(|(def, tensor)| Upload::new(&mut memory, tensor, def.access, def.leaves_out()))
            .collect();
        let mut launch = |memory: &mut Memory, args: &[Arg], blocks: i64| {
            let module = &self.written;
            let mut launch = Launch::new(&module.entry, blocks.min(most) as u32, module.block_size, args);
            let row_bytes = |operand: u32| {
                let row = problem.dims(operand as usize).last().copied().unwrap_or(1);
                row as u64 * operands[operand as usize].dtype.size_in_bytes() as u64
            };
            launch.dynamic_shared = module.dynamic_shared_bytes(row_bytes, SHARED_BYTES);
            launch.step_limit = 1 << 26;
            launch.warp_order = if problem.descending_warps { WarpOrder::Descending } else { WarpOrder::Ascending };
            let stats = ptx_sim::run(&self.parsed, launch, memory).map_err(|fault| fault.to_string())?;
            counts.push(stats);
            Ok::<(), String>(())
        };
        let params = problem.param_bits();
        match problem.def.kind {
            KernelKind::Program => {
                let grid = self.grid(problem);
                let programs: i64 = grid.iter().product();
                let map_of = |slot: Slot| {
                    let Slot::TensorMap { operand, .. } = slot else { return None };
                    let (tensor, first) = (&operands[operand as usize], uploads[operand as usize].first);
                    tensor_map(slot, first, tensor.dtype.size_in_bytes(), &tensor.dims, &tensor.strides)
                };
                let is_map = |slot: &&Slot| matches!(slot, Slot::TensorMap { .. });
                let mapped = self.written.params.iter().filter(is_map).all(|&slot| map_of(slot).is_some());
                let args = self.written.params.iter().map(|slot| match *slot {
                    Slot::Mapped => Arg::I64(mapped.into()),
                    Slot::TensorMap { .. } => Arg::Bytes(map_of(*slot).unwrap_or_else(|| vec![0; 128])),
                    Slot::Pointer { operand } => Arg::Ptr(uploads[operand as usize].first),
                    Slot::Dim { operand, axis } => Arg::I64(operands[operand as usize].dims[axis as usize]),
                    Slot::Stride { operand, axis } => Arg::I64(operands[operand as usize].strides[axis as usize]),
                    Slot::Param { index } => Arg::U64(params[index as usize]),
                    Slot::Count => Arg::I64(programs),
                    Slot::Grid { axis } => Arg::I64(grid[axis as usize]),
                });
                let args: Vec<Arg> = args.collect();
                if programs > 0 {
                    launch(&mut memory, &args, programs)?;
                }
            }
            KernelKind::Elementwise => {
                for run in runs(operands) {
                    let args = self.written.params.iter().map(|slot| match *slot {
                        Slot::Pointer { operand } => {
                            let k = operand as usize;
                            let bytes = run.offsets[k] * operands[k].dtype.size_in_bytes() as i64;
                            Arg::Ptr(DevicePtr(uploads[k].first.0.wrapping_add_signed(bytes)))
                        }
                        Slot::Stride { operand, .. } => Arg::I64(run.strides[operand as usize]),
                        Slot::Param { index } => Arg::U64(params[index as usize]),
                        Slot::Dim { .. } | Slot::Grid { .. } | Slot::Count | Slot::Mapped => Arg::I64(run.count),
                        Slot::TensorMap { .. } => Arg::Bytes(vec![0; 128]),
                    });
                    let args: Vec<Arg> = args.collect();
                    launch(&mut memory, &args, (run.count as u64).div_ceil(256) as i64)?;
                }
            }
        }
        for (upload, tensor) in uploads.iter().zip(operands) {
            if tensor.len() > 0
                && upload.result
                && let Some(byte) = memory.unwritten(upload.base)
            {
                return Err(format!("byte {byte} of a result is not written"));
            }
            tensor.bytes_mut()[upload.range.clone()].copy_from_slice(memory.bytes(upload.base));
        }
        Ok(counts)
    }
}

/// The tensor map of an operand, by its address, the bytes of its elements, dims and strides; `None` if it lies otherwise
/// than a map says.
fn tensor_map(slot: Slot, first: DevicePtr, size: usize, dims: &[i64], strides: &[i64]) -> Option<Vec<u8>> {
    let Slot::TensorMap { columns, rows, swizzle, .. } = slot else { return None };
    let map = ptx_sim::TensorMap::of_tensor(first, size as u32, [dims, strides], [columns, rows], swizzle)?;
    map.encode().ok().map(Vec::from)
}

/// A tensor in device memory.
struct Upload {
    base: DevicePtr,
    /// The element at index 0.
    first: DevicePtr,
    /// The bytes of the tensor's buffer that the allocation is a copy of.
    range: Range<usize>,
    /// Whether it starts uninitialised.
    result: bool,
}

impl Upload {
    fn new(memory: &mut Memory, tensor: &Tensor, access: Access, zeroed: bool) -> Upload {
        let size = tensor.dtype.size_in_bytes();
        let (lo, hi) = tensor.places().fold((usize::MAX, 0), |(lo, hi), p| (lo.min(p), hi.max(p + size)));
        // A few elements before, as many as take the first one off its alignment.
        let before = tensor.start / size % 4 * size;
        let range = if lo < hi { lo - before..hi } else { tensor.start..tensor.start };
        let dense = range.len() == tensor.len() * size;
        let result = access == Access::Out && dense && !zeroed;
        let bytes = &tensor.bytes()[range.clone()];
        let base = match access {
            Access::Out if result => memory.alloc(bytes.len()),
            Access::Out if zeroed => {
                let mut bytes = bytes.to_vec();
                let kept = bytes.len() - tensor.len() * size;
                bytes[kept..].fill(0);
                memory.alloc_from(&bytes)
            }
            Access::Out | Access::InOut => memory.alloc_from(bytes),
            Access::In => memory.alloc_read_only(bytes),
        };
        let first = DevicePtr(base.0 + (tensor.start - range.start) as u64);
        Upload { base, first, range, result }
    }
}

/// Elements that one launch of an elementwise kernel takes: where they start and how they follow, for each operand.
struct Run {
    offsets: Vec<i64>,
    strides: Vec<i64>,
    count: i64,
}

/// Divides operands of the same dims into runs: one if all are walked without a jump, else one for each row.
fn runs(operands: &[Tensor]) -> Vec<Run> {
    let dims = &operands[0].dims;
    let (rank, (all, count)) = (dims.len(), run_count(operands));
    let strides: Vec<i64> = operands.iter().map(|t| t.strides.last().copied().unwrap_or(1)).collect();
    let offset = |t: &Tensor, mut i: i64| {
        let mut offset = 0;
        for d in (0..rank).rev() {
            offset += i % dims[d] * t.strides[d];
            i /= dims[d];
        }
        offset
    };
    (0..all)
        .map(|row| Run {
            offsets: operands.iter().map(|t| offset(t, row * count)).collect(),
            strides: strides.clone(),
            count,
        })
        .collect()
}

/// How many such runs there are, and the elements of each.
fn run_count(operands: &[Tensor]) -> (i64, i64) {
    let dims = &operands[0].dims;
    let (total, rank) = (dims.iter().product::<i64>(), dims.len());
    if total == 0 {
        return (0, 0);
    }
    let even = |t: &Tensor| (1..rank).all(|d| t.strides[d - 1] == t.strides[d] * dims[d]);
    let count = if operands.iter().all(even) { total } else { dims[rank - 1] };
    (total / count, count)
}
