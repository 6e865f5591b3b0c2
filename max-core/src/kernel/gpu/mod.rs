//! Kernels on a GPU: [`GpuKernel`] is a [`BoundKernel`] whose PTX is loaded there.
//!
//! PTX is written when a kernel is bound to a device, for what that device and its driver know, with the kernel's
//! parameters as constants. The loaded code is kept for as long as the process runs, for each device, kernel, dtypes and
//! parameters, so that binding again costs a look-up.
//!
//! Elementwise kernels have two forms: over elements that one stride walks in every operand (dense or broadcast operands
//! become that when axes are merged), and over the rows of several axes. Copies have a third one, for transposes.

mod once_per_key;
mod strided;

use std::sync::Arc;

use smallvec::SmallVec;

use super::abi::{
    Access, Condition, GpuTile, GridAxis, GridTerm, KernelDef, KernelKind, OperandDef, ParamBits, extents,
};
use super::arg::{TensorArg, collapse, num_elements};
use super::ir::{self, Kernel};
use super::launch::bound::BoundKernel;
use super::ptx::{self, Float32MatmulPrecision, PtxError, Slot};
use crate::driver::backend::{
    CodeObject, Gpu, GpuFunction, MIN_COMPUTE_CAPABILITY, StreamHandle, TargetDesc, TensorMap,
};
use crate::driver::launch_journal::Site;
use crate::driver::{CudaError, Device, DeviceRef, DeviceStream, DriverError, StridedCopy};
use crate::dtype::DType;
use once_per_key::OncePerKey;

/// Why a kernel cannot run on a GPU.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no PTX for it.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// What the kernel recorded is not IR.
    #[error("kernel `{kernel}`: {source}")]
    Ir {
        /// The kernel.
        kernel: &'static str,
        /// The mistake in the text.
        source: Box<ir::ParseError>,
    },
    /// The device cannot load or launch it.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// What kernels on a GPU carry for the sake of finding mistakes; see
/// [`InferenceSession::gpu_debug`](crate::engine::InferenceSession::gpu_debug).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GpuDebug {
    /// The lines of the kernels' Rust source, for profilers (Nsight Compute), debuggers (cuda-gdb) and `compute-sanitizer`. The
    /// code is the same.
    pub lines: bool,
    /// Whether reads and writes outside of an operand are reported, as [`print`](super::lang::builtins::print) prints: the line,
    /// the operand, the index and its dims. They are no errors, reads without a pad value give 0 and writes do nothing, but
    /// often mistakes. What tiles reach outside is not reported.
    pub bounds: bool,
}

/// Whether an environment variable asks for something.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

impl GpuDebug {
    /// What `MAX_GPU_LINES=1` and `MAX_GPU_BOUNDS=1` ask for.
    pub fn of_environment() -> GpuDebug {
        GpuDebug { lines: is_set("MAX_GPU_LINES"), bounds: is_set("MAX_GPU_BOUNDS") }
    }
}

impl Float32MatmulPrecision {
    /// What `MAX_GPU_TF32=1` asks for.
    pub fn of_environment() -> Float32MatmulPrecision {
        if is_set("MAX_GPU_TF32") { Float32MatmulPrecision::High } else { Float32MatmulPrecision::Highest }
    }
}

/// How the code of kernels on GPUs is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CodeOptions {
    pub debug: GpuDebug,
    pub float32_matmul_precision: Float32MatmulPrecision,
}

impl CodeOptions {
    /// What environment variables ask for.
    pub fn of_environment() -> CodeOptions {
        let float32_matmul_precision = Float32MatmulPrecision::of_environment();
        CodeOptions { debug: GpuDebug::of_environment(), float32_matmul_precision }
    }

    fn of(self, gpu: &dyn Gpu) -> ptx::Options {
        let CodeOptions { debug, float32_matmul_precision } = self;
        let target = target_of(gpu);
        let TargetDesc { isa_version: ptx_version, shared_bytes, .. } = gpu.target();
        let (annotate, bounds) = (debug.lines, debug.bounds);
        ptx::Options { target, annotate, bounds, float32_matmul_precision, ptx_version, shared_bytes }
    }
}

/// Loaded code.
struct Loaded {
    function: GpuFunction,
    slots: Vec<Slot>,
    grid: Vec<GridAxis>,
    grid_terms: Vec<GridTerm>,
    /// The size of each operand's elements.
    sizes: SmallVec<[usize; 8]>,
    /// The axes of each operand that have to be of size 1 for all of it to be written, where that is known.
    covers_if_one: SmallVec<[Option<Vec<u32>>; 4]>,
    /// The number of axes that it takes; 0 for one stride.
    rank: usize,
}

/// What loaded code was made of, and the number of axes that it takes.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    device: DeviceRef,
    of: Source,
    rank: usize,
    options: CodeOptions,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Source {
    /// The address of a kernel's definition, with its dtypes and parameters.
    Kernel(usize, SmallVec<[u8; 4]>, SmallVec<[ParamBits; 4]>),
    /// The text of a kernel that was put together.
    Text(Arc<str>),
    /// The element size of a copy.
    Copy(usize),
    /// The same of one by tiles, for transposes, and the number of axes.
    Transpose(usize, usize),
}

/// A kernel bound to dtypes and parameters, loaded on a GPU.
#[derive(Clone)]
pub struct GpuKernel {
    name: &'static str,
    /// What defines it, if it was not put together of others.
    def: Option<&'static KernelDef>,
    /// What launches are for.
    site: Site,
    kind: KernelKind,
    params: SmallVec<[ParamBits; 4]>,
    /// The operands that are filled with zeros first, unless all of them is written, with the size of their elements.
    zeroed: SmallVec<[(usize, usize, &'static KernelDef); 1]>,
    device: Device,
    code: Arc<Loaded>,
    /// The form of an elementwise kernel that takes several axes.
    rows: Option<Arc<Loaded>>,
    /// The forms with other tile sizes, in the order in which a launch tries them.
    special: Forms,
}

/// Loaded code with several tile sizes, each for dims of which some conditions hold.
type Forms = SmallVec<[(&'static [Condition], Arc<Loaded>); 2]>;

impl std::fmt::Debug for GpuKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuKernel({} on {})", self.name, self.device)
    }
}

/// The GPU of a device.
fn gpu_of(op: &'static str, device: &Device) -> Result<&'static dyn Gpu, DriverError> {
    device.gpu().ok_or(DriverError::NotAnAccelerator { op, device: device.into() })
}

// A GPU that is opened has a target.
const _: () = assert!(MIN_COMPUTE_CAPABILITY == ptx::Target::MIN_SM);

/// What PTX for a GPU is written for.
fn target_of(gpu: &dyn Gpu) -> ptx::Target {
    let TargetDesc { compute_capability, isa_version, .. } = gpu.target();
    let oldest = ptx::Target { sm: ptx::Target::MIN_SM, arch_specific: false };
    ptx::Target::best(compute_capability, isa_version).unwrap_or(oldest)
}

/// PTX as a device takes it.
fn code_object(module: &ptx::Module) -> CodeObject<'_> {
    let ptx::Module { text, entry, block_size, resident, shared_bytes, cached_rows, params, .. } = module;
    let words = params.iter().map(|slot| slot.bytes() / 8).collect();
    let (block_size, resident, shared_bytes) = (*block_size, *resident, *shared_bytes);
    CodeObject { text, entry, block_size, resident, shared_bytes, cached_rows, words }
}

/// The code of a kernel, from the cache or loaded now.
fn load(gpu: &dyn Gpu, key: Key, record: impl FnOnce() -> Result<Kernel, GpuError>) -> Result<Arc<Loaded>, GpuError> {
    static LOADED: OncePerKey<Key, Arc<Loaded>> = OncePerKey::new();
    let (rank, options) = (key.rank, key.options);
    LOADED.get_or_try_init(key, || {
        let mut kernel = record()?;
        if rank > 0 {
            kernel = strided::over_rows(kernel, rank);
        }
        Ok(Arc::new(load_now(gpu, &kernel, rank, options)?))
    })
}

fn load_now(gpu: &dyn Gpu, kernel: &Kernel, rank: usize, options: CodeOptions) -> Result<Loaded, GpuError> {
    let write = |options: CodeOptions| ptx::write(kernel, options.of(gpu));
    let module = write(options)?;
    let function = match gpu.load(&kernel.name, &code_object(&module)) {
        // Once more with lines, so that the error names that of the source.
        Err(refused) if is_refusal(&refused) && !options.debug.lines => {
            let debug = GpuDebug { lines: true, ..options.debug };
            let with_lines = gpu.load(&kernel.name, &code_object(&write(CodeOptions { debug, ..options })?));
            return Err(with_lines.err().filter(is_refusal).unwrap_or(refused).into());
        }
        loaded => loaded?,
    };
    let sizes = kernel.operands.iter().map(|operand| operand.dtype.size_in_bytes()).collect();
    let covers_if_one = (0..kernel.operands.len() as u32).map(|operand| ir::covers_if_one(kernel, operand)).collect();
    let ptx::Module { params: slots, grid, grid_terms, .. } = module;
    Ok(Loaded { function, slots, grid, grid_terms, sizes, covers_if_one, rank })
}

/// Whether the driver does not accept the PTX.
fn is_refusal(error: &DriverError) -> bool {
    matches!(error, DriverError::Cuda { source, .. } if matches!(**source, CudaError::Ptx { .. }))
}

/// The code of a kernel, and of an elementwise one for several axes the form for those.
fn forms(
    gpu: &dyn Gpu,
    (device, options): (&Device, CodeOptions),
    kind: KernelKind,
    rank: usize,
    of: Source,
    kernel: impl Fn() -> Result<Kernel, GpuError>,
) -> Result<(Arc<Loaded>, Option<Arc<Loaded>>), GpuError> {
    let form = |rank| load(gpu, Key { device: device.into(), of: of.clone(), rank, options }, &kernel);
    let rows = (kind == KernelKind::Elementwise && rank > 1).then(|| form(rank)).transpose()?;
    Ok((form(0)?, rows))
}

impl BoundKernel {
    /// Loads the kernel's PTX on a GPU. `rank` is the largest number of axes, after those that all operands walk through
    /// are merged, that an elementwise kernel will be launched with; 1 if operands are dense.
    ///
    /// # Errors
    /// When the device is no GPU, when there is no PTX for the kernel, or when the driver does not accept it.
    pub fn on_gpu(&self, device: &Device, rank: usize) -> Result<GpuKernel, GpuError> {
        self.on_gpu_for((device, CodeOptions::of_environment()), rank)
    }

    /// As [`on_gpu`](Self::on_gpu), with what is asked for of the code.
    pub(crate) fn on_gpu_for(&self, device: (&Device, CodeOptions), rank: usize) -> Result<GpuKernel, GpuError> {
        let def = self.def();
        let address = std::ptr::from_ref(def) as usize;
        let known = self.known_params().unwrap_or_default().into();
        let source = Source::Kernel(address, self.dtype_codes().into(), known);
        // One code serves all dtypes of a size where elements are only moved.
        let dtypes = self.dtype_codes().iter().filter_map(|code| DType::from_code(*code));
        let dtypes: SmallVec<[DType; 4]> = dtypes.collect();
        let kernel = GpuKernel::load(self, device, rank, source.clone(), || self.recorded_for(&dtypes))?;
        Ok(GpuKernel { special: self.special(device, source, &dtypes, |text| self.parse(text))?, ..kernel })
    }

    /// As [`on_gpu_for`](Self::on_gpu_for), of a kernel that `change` makes of this one and others, by [`ir::fuse`], which goes
    /// on with what all of the operand `after` is written with, and adds `params`.
    pub(crate) fn on_gpu_as(
        &self,
        change: impl Fn(Kernel) -> Kernel,
        after: Option<usize>,
        params: impl Iterator<Item = ParamBits>,
        device: (&Device, CodeOptions),
    ) -> Result<GpuKernel, GpuError> {
        let general = change(self.recorded()?);
        let source = Source::Text(general.to_string().into());
        let mut kernel = GpuKernel::load(self, device, 1, source.clone(), || Ok(general.clone()))?;
        kernel.zeroed.retain(|(operand, ..)| Some(*operand) != after);
        kernel.params.extend(params);
        let change = |text: &str| self.parse(text).map(&change);
        Ok(GpuKernel { special: self.special(device, source, self.given_dtypes(), change)?, ..kernel })
    }

    /// The forms with other tile sizes of what is otherwise made of `of`, from a cache or loaded now; none for which there is
    /// no room.
    fn special(
        &self,
        (device, options): (&Device, CodeOptions),
        of: Source,
        dtypes: &[DType],
        change: impl Fn(&str) -> Result<Kernel, GpuError>,
    ) -> Result<Forms, GpuError> {
        static SPECIAL: OncePerKey<Key, Forms> = OncePerKey::new();
        let (gpu, def) = (gpu_of("load kernel", device)?, self.def());
        if def.tiles_on(target_of(gpu), dtypes).next().is_none() {
            return Ok(Forms::new());
        }
        SPECIAL.get_or_try_init(Key { device: device.into(), of, rank: 0, options }, || {
            let load = |(tile, kernel): (&'static GpuTile, Result<Kernel, GpuError>)| {
                match kernel.and_then(|k| load_now(gpu, &k, 0, options)) {
                    // The general form is there.
                    Err(GpuError::Ptx(PtxError::SharedMemory { .. } | PtxError::TileSize { .. })) => None,
                    loaded => Some(loaded.map(|loaded| (tile.conditions.as_slice(), Arc::new(loaded)))),
                }
            };
            def.ir_on(target_of(gpu), dtypes, self.known_params(), change).filter_map(load).collect()
        })
    }

    /// The kernel's IR for the dtypes that it was bound to, with its parameters as constants.
    pub(crate) fn recorded(&self) -> Result<Kernel, GpuError> {
        self.recorded_for(self.given_dtypes())
    }

    fn recorded_for(&self, dtypes: &[DType]) -> Result<Kernel, GpuError> {
        self.parse(&self.def().ir_text(dtypes, self.known_params()))
    }

    fn parse(&self, text: &str) -> Result<Kernel, GpuError> {
        ir::parse(text).map_err(|source| GpuError::Ir { kernel: self.def().name.as_str(), source: source.into() })
    }
}

impl GpuKernel {
    /// The kernel with other values of integer parameters, by their numbers.
    ///
    /// # Errors
    /// As [`BoundKernel::with_params`].
    pub(crate) fn with_params(
        &self,
        values: impl IntoIterator<Item = (u32, i64)>,
    ) -> Result<GpuKernel, super::KernelError> {
        let mut kernel = self.clone();
        if let Some(def) = self.def {
            super::launch::bound::set_params(def, &mut kernel.params, values)?;
        }
        Ok(kernel)
    }

    fn load(
        bound: &BoundKernel,
        (device, options): (&Device, CodeOptions),
        rank: usize,
        source: Source,
        kernel: impl Fn() -> Result<Kernel, GpuError>,
    ) -> Result<GpuKernel, GpuError> {
        let (gpu, def) = (gpu_of("load kernel", device)?, bound.def());
        let (code, rows) = forms(gpu, (device, options), def.kind, rank, source, kernel)?;
        let operands = def.operands.as_slice().iter().enumerate();
        let depends = |operand: &OperandDef| operand.zero_init || !operand.written.as_slice().is_empty();
        let zeroed = operands.filter(|(_, operand)| operand.access == Access::Out && depends(operand));
        let zeroed = zeroed.map(|(i, operand)| (i, bound.size_of(operand.dtype), def)).collect();
        let (name, params) = (def.name.as_str(), bound.params().into());
        let (site, kind) = (Site::of(name, None), def.kind);
        let def = Some(def);
        Ok(GpuKernel { name, def, site, kind, params, zeroed, device: *device, code, rows, special: Forms::new() })
    }

    /// Loads an elementwise kernel with its parameters that was put together of others, named for the first of them.
    pub(crate) fn elementwise(
        name: &'static str,
        kernel: Kernel,
        params: SmallVec<[ParamBits; 4]>,
        (device, options): (&Device, CodeOptions),
        rank: usize,
    ) -> Result<GpuKernel, GpuError> {
        let gpu = gpu_of("load kernel", device)?;
        let (kind, source) = (KernelKind::Elementwise, Source::Text(kernel.to_string().into()));
        let (code, rows) = forms(gpu, (device, options), kind, rank, source, || Ok(kernel.clone()))?;
        let (site, zeroed) = (Site::of(name, None), SmallVec::new());
        let def = None;
        Ok(GpuKernel { name, def, site, kind, params, zeroed, device: *device, code, rows, special: Forms::new() })
    }

    /// As it is, launched for an op.
    pub(crate) fn at(self, site: Site) -> GpuKernel {
        GpuKernel { site, ..self }
    }

    /// Enqueues the kernel over all of its grid or elements; the call does not wait.
    ///
    /// # Errors
    /// When the driver refuses the launch, or the device is lost.
    ///
    /// # Safety
    /// As for [`BoundKernel::launch`], of memory of the kernel's device, for as long as the stream's work is not done; the
    /// stream is one of that device.
    pub unsafe fn launch(&self, tensors: &[TensorArg<'_>], stream: &DeviceStream) -> Result<(), DriverError> {
        // SAFETY: by the contract above.
        unsafe { self.launch_on(tensors, stream.handle()) }
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    pub(crate) unsafe fn launch_on(&self, tensors: &[TensorArg<'_>], stream: StreamHandle) -> Result<(), DriverError> {
        let (gpu, params) = (gpu_of("launch", &self.device)?, &self.params[..]);
        note(gpu, self.site, stream);
        for &(operand, size, def) in &self.zeroed {
            let tensor = &tensors[operand];
            let is_one = |axis: &u32| tensor.dims[*axis as usize] == 1;
            let is_whole =
                |code: &Arc<Loaded>| code.covers_if_one[operand].as_ref().is_some_and(|axes| axes.iter().all(is_one));
            let mut tiles =
                def.gpu_tiles.as_slice().iter().map(|tile| tile.tile.as_slice()).chain([def.gpu_tile.as_slice()]);
            if is_whole(&self.code) && self.special.iter().all(|(_, code)| is_whole(code))
                || tiles.all(|tile| def.writes_all(operand, tensors, || tile))
            {
                continue;
            }
            let bytes = tensor.dims.iter().product::<i64>() as usize * size;
            // SAFETY: results are contiguous and ours to write.
            unsafe { gpu.fill(tensor.ptr, 0, bytes, stream)? };
        }
        match self.kind {
            // SAFETY: by the contract above.
            KernelKind::Elementwise => unsafe {
                elementwise(gpu, &self.code, self.rows.as_deref(), tensors, params, stream)
            },
            KernelKind::Program => {
                let dim = |operand: usize, dim: usize| tensors.get(operand)?.dims.get(dim).copied();
                let grid = |code: &Loaded| {
                    let enormous = |(axis, extent)| DriverError::EnormousGrid { kernel: self.name, axis, extent };
                    extents(&code.grid, &code.grid_terms, params, dim).map_err(enormous)
                };
                // Tiles for small dims are for all launches with these; others, which are large, for where they leave few
                // multiprocessors without any.
                let mut chosen = (&self.code, grid(&self.code)?);
                for (conditions, special) in &self.special {
                    if !conditions.iter().all(|condition| condition.holds(dim)) {
                        continue;
                    }
                    let programs = grid(special)?;
                    let are_enough = num_elements(&programs).saturating_mul(2) >= special.function.blocks as usize;
                    if are_enough || !conditions.is_empty() {
                        chosen = (special, programs);
                        break;
                    }
                }
                let (code, extents) = chosen;
                let dims = |operand: usize, axis: usize| tensors[operand].dims[axis];
                let strides = |operand: usize, axis: usize| tensors[operand].strides[axis];
                // SAFETY: by the contract above.
                unsafe { run(gpu, code, tensors, (&dims, &strides), params, extents, stream) }
            }
        }
    }
}

/// Notes a launch on the default stream. (What is captured is no launch yet, and other streams are not those that a device's
/// journal is about.)
fn note(gpu: &dyn Gpu, site: Site, stream: StreamHandle) {
    if stream == StreamHandle::default() {
        gpu.journal().note(site);
    }
}

/// How tensors copy between strides on a GPU.
///
/// # Safety
/// As for [`StridedCopy`].
unsafe fn copy_strided(
    device: &Device,
    dims: &[i64],
    to: (*mut u8, &[i64]),
    from: (*const u8, &[i64]),
    element_size: usize,
    stream: &DeviceStream,
) -> Result<(), DriverError> {
    let to = TensorArg { ptr: to.0, dims, strides: to.1 };
    let from = TensorArg { ptr: from.0.cast_mut(), dims, strides: from.1 };
    let copy = GpuCopy::new(device, element_size, dims.len(), Site::of("copy", None)).map_err(|error| match error {
        GpuError::Driver(error) => error,
        // The kernel is ours, and a copy has PTX for every GPU.
        GpuError::Ptx(_) | GpuError::Ir { .. } => DriverError::NotAnAccelerator { op: "copy", device: device.into() },
    })?;
    // SAFETY: by the contract above.
    unsafe { copy.launch(&to, &from, stream.handle()) }
}

inventory::submit! { StridedCopy(copy_strided) }

/// The kernel that copies between any strides, loaded on a GPU.
#[derive(Clone)]
pub(crate) struct GpuCopy {
    device: Device,
    /// What launches are for.
    site: Site,
    element_size: usize,
    code: Arc<Loaded>,
    rows: Option<Arc<Loaded>>,
    /// The form for sides that are contiguous along different axes, and the number of axes that it takes.
    tiles: Option<(Arc<Loaded>, usize)>,
}

impl GpuCopy {
    pub fn new(device: &Device, element_size: usize, rank: usize, site: Site) -> Result<GpuCopy, GpuError> {
        let gpu = gpu_of("copy", device)?;
        let (kind, source) = (KernelKind::Elementwise, Source::Copy(element_size));
        let (code, rows) =
            forms(gpu, (device, CodeOptions::default()), kind, rank, source, || Ok(strided::copy(element_size)))?;
        let of = Source::Transpose(element_size, rank);
        let key = Key { device: device.into(), of, rank: 0, options: CodeOptions::default() };
        let tiles = (rank > 1).then(|| load(gpu, key, || Ok(strided::transpose(element_size, rank)))).transpose()?;
        Ok(GpuCopy { device: *device, site, element_size, code, rows, tiles: tiles.map(|tiles| (tiles, rank)) })
    }

    /// # Safety
    /// As for [`copy_strided`].
    pub unsafe fn launch(
        &self,
        to: &TensorArg<'_>,
        from: &TensorArg<'_>,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let gpu = gpu_of("copy", &self.device)?;
        note(gpu, self.site, stream);
        let (dims, strides) = collapse(to.dims, &[*to, *from]);
        if strides.iter().all(|strides| matches!(strides[..], [] | [1])) {
            let bytes = dims.iter().product::<i64>() as usize * self.element_size;
            // SAFETY: by the contract above: both sides are dense.
            return unsafe { gpu.copy(from.ptr, to.ptr, bytes, stream) };
        }
        if let (Some((tiles, rank)), [to_strides, from_strides]) = (&self.tiles, &strides[..])
            && let Some(order) = transposed_axes(&dims, [to_strides, from_strides]).filter(|_| dims.len() <= *rank)
        {
            // Axes of size 1 in front; what is read has the last two the other way round.
            let axis = |operand: usize, axis: usize| {
                let from_end = rank - axis;
                let from_end = if operand == 0 && from_end <= 2 { 3 - from_end } else { from_end };
                Some(order[order.len().checked_sub(from_end)?])
            };
            let dim = |operand: usize, at: usize| axis(operand, at).map_or(1, |axis| dims[axis]);
            let stride = |operand: usize, at: usize| {
                axis(operand, at).map_or(0, |axis| [from_strides, to_strides][operand][axis])
            };
            let tiles_along = |at: usize| (dim(1, at) as u64).div_ceil(strided::TILE.into()) as i64;
            let matrices = (0..rank - 2).map(|at| dim(1, at)).product();
            let grid = [matrices, tiles_along(rank - 2), tiles_along(rank - 1)];
            // SAFETY: by the contract above; the axes name the same elements.
            return unsafe { run(gpu, tiles, &[*from, *to], (&dim, &stride), &[], grid, stream) };
        }
        // SAFETY: by the contract above.
        unsafe { elementwise(gpu, &self.code, self.rows.as_deref(), &[*from, *to], &[], stream) }
    }
}

/// The least extent of an axis for which elements are copied by tiles.
const LEAST_TRANSPOSED: i64 = 8;

/// The order of axes in which the last one is contiguous where a copy writes, and the one before it where it reads, if it
/// transposes so.
fn transposed_axes(dims: &[i64], [to, from]: [&[i64]; 2]) -> Option<SmallVec<[usize; 6]>> {
    let contiguous = |strides: &[i64]| strides.iter().zip(dims).rposition(|(stride, dim)| *stride == 1 && *dim > 1);
    let (columns, rows) = (contiguous(to)?, contiguous(from)?);
    let are_long = columns != rows && [columns, rows].iter().all(|axis| dims[*axis] >= LEAST_TRANSPOSED);
    let batch = (0..dims.len()).filter(|axis| ![columns, rows].contains(axis));
    are_long.then(|| batch.chain([rows, columns]).collect())
}

/// Launches an elementwise kernel over operands of the same dims.
///
/// # Safety
/// As for [`GpuKernel::launch`].
unsafe fn elementwise(
    gpu: &dyn Gpu,
    flat: &Loaded,
    rows: Option<&Loaded>,
    tensors: &[TensorArg<'_>],
    params: &[ParamBits],
    stream: StreamHandle,
) -> Result<(), DriverError> {
    let Some(dims) = tensors.first().map(|tensor| tensor.dims) else { return Ok(()) };
    let (dims, strides) = collapse(dims, tensors);
    match rows.filter(|rows| dims.len() > 1 && dims.len() <= rows.rank) {
        Some(rows) => {
            // Axes of size 1 in front, up to those that the code takes.
            let missing = rows.rank - dims.len();
            let dim = |_: usize, axis: usize| axis.checked_sub(missing).map_or(1, |axis| dims[axis]);
            let stride =
                |operand: usize, axis: usize| axis.checked_sub(missing).map_or(0, |axis| strides[operand][axis]);
            let count: i64 = dims[..dims.len() - 1].iter().product();
            let grid = if dims.contains(&0) { [0, 1, 1] } else { [count, 1, 1] };
            // SAFETY: by the contract above; the merged axes name the same elements.
            unsafe { run(gpu, rows, tensors, (&dim, &stride), params, grid, stream) }
        }
        None => {
            // One axis at most, unless a kernel is launched with more than it was bound for: then row by row.
            let (inner, outer) = dims.split_last().map_or((1, &[][..]), |(inner, outer)| (*inner, outer));
            let stride = |operand: usize, _: usize| strides[operand].last().copied().unwrap_or(0);
            for row in 0..outer.iter().product::<i64>() {
                let mut moved: SmallVec<[TensorArg<'_>; 8]> = tensors.into();
                for (operand, tensor) in moved.iter_mut().enumerate() {
                    let (mut rest, mut offset) = (row, 0);
                    for (dim, stride) in outer.iter().zip(&strides[operand]).rev() {
                        offset += rest % dim * stride;
                        rest /= dim;
                    }
                    tensor.ptr = tensor.ptr.wrapping_offset(offset as isize * flat.sizes[operand] as isize);
                }
                let dim = |_: usize, _: usize| inner;
                // SAFETY: by the contract above: the elements of a row.
                unsafe { run(gpu, flat, &moved, (&dim, &stride), params, [inner, 1, 1], stream)? };
            }
            Ok(())
        }
    }
}

/// What a launch asks of an operand's axis.
type OfAxis<'a> = &'a dyn Fn(usize, usize) -> i64;

/// Enqueues loaded code over a grid; of the form for one stride, the first extent is the number of elements.
///
/// # Safety
/// As for [`GpuKernel::launch`].
unsafe fn run(
    gpu: &dyn Gpu,
    code: &Loaded,
    tensors: &[TensorArg<'_>],
    (dim, stride): (OfAxis<'_>, OfAxis<'_>),
    params: &[ParamBits],
    grid: [i64; 3],
    stream: StreamHandle,
) -> Result<(), DriverError> {
    let total = grid.iter().product::<i64>();
    if total <= 0 {
        return Ok(());
    }
    let rank = |operand: u32| tensors[operand as usize].dims.len();
    let maps: SmallVec<[Option<[u64; 16]>; 4]> = code
        .slots
        .iter()
        .filter_map(|slot| match *slot {
            Slot::TensorMap { operand, columns, rows, swizzle } => {
                let of_axes = (rank(operand), |axis| (dim(operand as usize, axis), stride(operand as usize, axis)));
                let size = code.sizes[operand as usize];
                let map = TensorMap::new(tensors[operand as usize].ptr, size, of_axes, [columns, rows], swizzle);
                Some(map.and_then(|map| gpu.tensor_map(&map)))
            }
            Slot::Pointer { .. } | Slot::Dim { .. } | Slot::Stride { .. } | Slot::Param { .. } => None,
            Slot::Count | Slot::Mapped | Slot::Grid { .. } => None,
        })
        .collect();
    let mut next_map = maps.iter();
    let mut args: SmallVec<[u64; 80]> = SmallVec::new();
    let mut blocks = total as u64;
    for slot in &code.slots {
        args.push(match *slot {
            Slot::Pointer { operand } => tensors[operand as usize].ptr as u64,
            Slot::Dim { operand, axis } => dim(operand as usize, axis as usize) as u64,
            Slot::Stride { operand, axis } => stride(operand as usize, axis as usize) as u64,
            Slot::Param { index } => params[index as usize],
            Slot::Count => {
                blocks = (total as u64).div_ceil(u64::from(code.function.block_size));
                total as u64
            }
            Slot::Grid { axis } => grid[axis as usize] as u64,
            Slot::Mapped => {
                let is_mapped = maps.iter().all(Option::is_some);
                gpu.note_mapped(is_mapped);
                is_mapped.into()
            }
            Slot::TensorMap { .. } => {
                args.extend(next_map.next().copied().flatten().unwrap_or_default());
                continue;
            }
        });
    }
    // Blocks take elements or programs until none is left, so that a grid of any size fits the device's limits.
    let blocks = blocks.min(u64::from(code.function.blocks)) as u32;
    let row_bytes = |&operand: &u32| {
        let (last, size) = (rank(operand).saturating_sub(1), code.sizes[operand as usize] as u64);
        (dim(operand as usize, last) as u64).saturating_mul(size)
    };
    let GpuFunction { shared_bytes, cached_rows, shared_limit, .. } = &code.function;
    let shared = ptx::shared_with_rows(*shared_bytes, cached_rows.iter().map(row_bytes), *shared_limit);
    // SAFETY: these are the parameters that the module lists; the rest is by the contract above.
    unsafe { gpu.launch(&code.function, (blocks, shared), &mut args, stream) }
}
