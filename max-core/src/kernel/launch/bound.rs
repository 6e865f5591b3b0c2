//! A kernel specialized to dtypes and parameters, ready to run: [`BoundKernel`].
//!
//! Binding picks the compiled form for the machine's level once, so that launches look nothing up.

use std::cell::OnceCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::abi::{
    Binding, Condition, GpuTile, GridAxis, GridValues, Instance, KernelDef, KernelKind, LaunchArgs, ParamBits,
    ParamKind, PartDim, RawTensor, hash_str,
};
use super::super::arg::TensorArg;
use super::super::cpu_features::Form;
use super::super::error::KernelError;
use super::super::ir::Kernel;
use super::super::record::Recording;
use super::super::threads::cost::Cost;
use super::super::tuning::TILE_FORM;
use super::super::{ir, ptx};
use super::packing;
use super::packing::{Constants, Operands, Packs, SharedTiles, Uses};
use super::stack;
use crate::driver::Tensor;
use crate::dtype::DType;

/// A parameter's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamArg<'a> {
    /// An integer.
    Int(i64),
    /// An integer that each launch gives.
    Dynamic,
    /// A truth value.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
    /// A string.
    String(&'a str),
    /// A dtype, for the generic of that name.
    DType(DType),
}

/// The code that runs.
#[derive(Clone)]
pub(in crate::kernel) enum Code {
    /// A compiled form, and which of its operands can be packed.
    Instance(&'static Instance, Arc<Uses>),
    Reference,
}

/// A kernel bound to dtypes and parameters.
#[derive(Clone)]
pub struct BoundKernel {
    def: &'static KernelDef,
    code: Code,
    /// The same for other tile constants, by the number of their condition.
    variants: SmallVec<[Code; 2]>,
    /// The dtype that the code is for, of each generic: of those that are only moved, one of the same size.
    dtypes: SmallVec<[u8; 4]>,
    /// The dtype that was given for each generic.
    given: SmallVec<[DType; 4]>,
    params: SmallVec<[ParamBits; 4]>,
    /// Whether launches give some of the parameters.
    is_dynamic: bool,
    /// The bytes of the tiles that a program holds, in whatever code; 0 where any stack has room for them.
    tile_bytes: u64,
    multiplies: bool,
    /// What its launches took: of an elementwise kernel an element, of programs that multiply one of these, and of others a byte.
    cost: Cost,
}

impl KernelDef {
    /// Whether the programs of a launch write all elements of a result; what they do not is 0. `tile` are the launch's
    /// tile constants.
    pub(crate) fn writes_all(
        &self,
        operand: usize,
        tensors: &[TensorArg<'_>],
        tile: impl Fn() -> &'static [u64],
    ) -> bool {
        let (def, grid) = (&self.operands.as_slice()[operand], self.grid.as_slice());
        let size = |tile_index: i32, size: u64| match usize::try_from(tile_index) {
            Ok(i) => tile().get(i).copied().unwrap_or(0),
            Err(_) => size,
        };
        let dim = |operand: usize, dim: u32| tensors.get(operand)?.dims.get(dim as usize).copied();
        let mut seen = [false; 3];
        let mut is_covered = |part: &PartDim| {
            let Some(extent) = dim(operand, part.dim) else { return false };
            let Ok(axis) = usize::try_from(part.axis) else {
                return size(part.tile, part.size) >= extent.max(0) as u64;
            };
            let (Some(seen), Some(of)) = (seen.get_mut(axis), grid.get(axis)) else { return false };
            // Along two dimensions that one id divides, the programs are on a diagonal.
            if std::mem::replace(seen, true) {
                return extent <= 1;
            }
            match usize::try_from(of.operand) {
                // What an expression comes to, parameters decide.
                Err(_) => of.as_constant().is_some_and(|programs| {
                    size(part.tile, part.size).saturating_mul(programs) >= extent.max(0) as u64
                }),
                Ok(other) => dim(other, of.dim).is_some_and(|n| {
                    let programs = (n.max(0) as u64).div_ceil(size(of.tile, of.size).max(1));
                    programs.saturating_mul(size(part.tile, part.size)) >= extent.max(0) as u64
                }),
            }
        };
        !def.zero_init && def.written.as_slice().iter().all(&mut is_covered)
    }

    /// Binds the kernel: `operands` are the dtypes of its operands in the order of its signature, `param` looks
    /// parameters up by name.
    ///
    /// # Errors
    /// When the dtypes do not fit the signature, when the kernel was not compiled for them, or when a parameter is
    /// missing or of another kind.
    pub fn bind<'p>(
        &'static self,
        operands: &[DType],
        param: impl Fn(&str) -> Option<ParamArg<'p>>,
        form: Form,
    ) -> Result<BoundKernel, KernelError> {
        let (dtypes, given): (SmallVec<[u8; 4]>, _) = self.bind_dtypes(operands, &param)?.into_iter().unzip();
        if !self.optimized && form != Form::Reference {
            warn_unoptimized(self.krate.as_str());
        }
        let (mut params, mut is_dynamic) = (SmallVec::new(), false);
        for def in self.params.as_slice() {
            let name = def.name.as_str();
            let bits = match (param(name), def.kind) {
                (Some(ParamArg::Int(v)), ParamKind::Int) => {
                    if let Some(range) = def.int_range_without(v) {
                        return Err(self.misfit(format!("parameter `{name}` is {v}, not one of {range}")));
                    }
                    v as u64
                }
                (Some(ParamArg::Dynamic), ParamKind::Int) => {
                    is_dynamic = true;
                    0
                }
                (Some(ParamArg::Int(v)), ParamKind::Float) => (v as f64).to_bits(),
                (Some(ParamArg::Bool(v)), ParamKind::Bool) => v as u64,
                (Some(ParamArg::Float(v)), ParamKind::Float) => {
                    if let Some(range) = def.float_range_without(v) {
                        return Err(self.misfit(format!("parameter `{name}` is {v:e}, not one of {range}")));
                    }
                    v.to_bits()
                }
                (Some(ParamArg::String(v)), ParamKind::String) => {
                    let choices = def.choices.as_slice();
                    if !choices.is_empty() && !choices.iter().any(|c| c.as_str() == v) {
                        let known: Vec<&str> = choices.iter().map(|c| c.as_str()).collect();
                        return Err(self.misfit(format!("parameter `{name}` is {v:?}, not one of {known:?}")));
                    }
                    hash_str(v)
                }
                (None, _) if def.has_default => def.default,
                (None, _) => return Err(self.misfit(format!("parameter `{name}` is missing"))),
                (Some(v), kind) => return Err(self.misfit(format!("parameter `{name}` must be {kind:?}, got {v:?}"))),
            };
            params.push(bits);
        }
        let instances = || self.instances.as_slice().iter().filter(|i| i.dtypes.as_slice() == dtypes.as_slice());
        let instance = match form {
            Form::Reference => None,
            Form::Compiled(level) => instances().filter(|i| i.level <= level && i.variant == 0).max_by_key(|i| i.level),
        };
        let mut variants: SmallVec<[&'static Instance; 2]> =
            instances().filter(|i| i.variant > 0 && instance.is_some_and(|chosen| chosen.level == i.level)).collect();
        variants.sort_by_key(|i| i.variant);
        let mut tile_bytes = 0;
        let mut compiled = |instance| {
            let (uses, bytes) = self.uses(instance)?;
            tile_bytes = bytes.max(tile_bytes);
            Ok(Code::Instance(instance, uses))
        };
        let code = instance.map_or(Ok(Code::Reference), &mut compiled)?;
        let variants = variants.into_iter().map(compiled).collect::<Result<_, KernelError>>()?;
        let multiplies = match &code {
            Code::Instance(_, uses) => uses.multiplies,
            // Its programs run one after the other, but on a GPU they are the same as ever.
            Code::Reference => {
                instances().next().and_then(|i| self.uses(i).ok()).is_some_and(|(uses, _)| uses.multiplies)
            }
        };
        let cost = Cost::default();
        Ok(BoundKernel { def: self, code, variants, dtypes, given, params, is_dynamic, tile_bytes, multiplies, cost })
    }

    /// What a compiled form's GEMMs take, and the bytes of the tiles that its programs hold.
    fn uses(&'static self, instance: &'static Instance) -> Result<(Arc<Uses>, u64), KernelError> {
        if !self.may_hold_tiles {
            return Ok((Arc::default(), 0));
        }
        // Once for both, and only where it is not known.
        let recording = OnceCell::new();
        let codes = instance.dtypes.as_slice();
        let dtypes = || codes.iter().filter_map(|code| DType::from_code(*code)).collect::<Vec<_>>();
        let new = || Recording::of(|| self.ir_text_with(&dtypes(), instance.tile.as_slice(), None));
        let bytes = stack::tile_bytes(self, instance, || recording.get_or_init(new).tile_bytes())?;
        if self.kind == KernelKind::Elementwise {
            return Ok((Arc::default(), bytes));
        }
        let uses =
            packing::uses(self, instance, || recording.into_inner().unwrap_or_else(new).kernel()).map_err(|error| {
                self.misfit(format!("what it recorded is not IR: {error}; rebuild the crate that defines it"))
            })?;
        Ok((uses, bytes))
    }

    /// The dtype code of each generic.
    fn bind_dtypes<'p>(
        &'static self,
        operands: &[DType],
        param: &impl Fn(&str) -> Option<ParamArg<'p>>,
    ) -> Result<SmallVec<[(u8, DType); 4]>, KernelError> {
        let expected = self.operands.as_slice();
        if operands.len() != expected.len() {
            return Err(self.misfit(format!("it has {} operands, got {}", expected.len(), operands.len())));
        }
        let generics = self.generics.as_slice();
        let mut bound: SmallVec<[Option<DType>; 4]> = SmallVec::new();
        for generic in generics {
            bound.push(match param(generic.name.as_str()) {
                Some(ParamArg::DType(dtype)) => Some(dtype),
                _ => None,
            });
        }
        for (operand, &dtype) in expected.iter().zip(operands) {
            let known = match usize::try_from(operand.dtype.generic) {
                Ok(i) => bound.get_mut(i).map(|slot| *slot.get_or_insert(dtype)),
                Err(_) => DType::from_code(operand.dtype.fixed),
            };
            if known != Some(dtype) {
                let known = known.map_or("nothing", |d| d.name());
                return Err(self.misfit(format!("operand `{}` must be {known}, got {dtype}", operand.name.as_str())));
            }
        }
        let mut codes = SmallVec::new();
        for (generic, dtype) in generics.iter().zip(bound) {
            let name = generic.name.as_str();
            let Some(dtype) = dtype else {
                return Err(
                    self.misfit(format!("nothing says what `{name}` is; give a parameter of that name, a dtype"))
                );
            };
            let Some(code) = generic.code(dtype) else {
                let (kernel, signature) = (self.name.as_str(), self.signature.as_str());
                return Err(KernelError::Instance { kernel, generic: name, dtype, signature });
            };
            codes.push((code, dtype));
        }
        Ok(codes)
    }

    fn misfit(&self, problem: String) -> KernelError {
        KernelError::Binding { kernel: self.name.as_str(), problem, signature: self.signature.as_str() }
    }

    /// The IR of the kernel in text form, for these dtypes (one a generic), with the GPU's tile sizes. Parameters stay
    /// symbolic where `params` is `None`.
    pub fn ir_text(&self, dtypes: &[DType], params: Option<&[ParamBits]>) -> String {
        self.ir_text_with(dtypes, self.gpu_tile.as_slice(), params)
    }

    /// The tile sizes beside the general ones that the kernel has for a GPU and these dtypes (one a generic), in the order in
    /// which a launch tries them.
    pub fn tiles_on(&self, target: ptx::Target, dtypes: &[DType]) -> impl Iterator<Item = &'static GpuTile> {
        let fits = move |tile: &&GpuTile, dtypes: &[DType]| {
            let of = usize::try_from(tile.generic).ok().map(|i| dtypes.get(i).is_some_and(|d| tile.has(*d)));
            (tile.sm == 0 || target.arch_specific && target.sm == tile.sm) && of.unwrap_or(true)
        };
        self.gpu_tiles.as_slice().iter().filter(move |tile| fits(tile, dtypes))
    }

    /// The IR of the kernel with each of these tile sizes of which a thread has room for all that an operation takes. None if
    /// it has none but the general ones.
    ///
    /// `change` makes of the kernel what runs, of which that must hold.
    pub(crate) fn ir_on<E>(
        &self,
        target: ptx::Target,
        dtypes: &[DType],
        params: Option<&[ParamBits]>,
        change: impl Fn(&str) -> Result<Kernel, E>,
    ) -> impl Iterator<Item = (&'static GpuTile, Result<Kernel, E>)> {
        let kernel = move |tile: &'static GpuTile| (tile, change(&self.ir_text_of(tile, dtypes, params)));
        let kernels = self.tiles_on(target, dtypes).map(kernel);
        kernels.filter(|(_, kernel)| kernel.as_ref().map_or(true, ptx::has_room))
    }

    /// As [`ir_text`](Self::ir_text), with some of the kernel's [own sizes](Self::tiles_on).
    pub fn ir_text_of(&self, tile: &GpuTile, dtypes: &[DType], params: Option<&[ParamBits]>) -> String {
        self.ir_text_with(dtypes, tile.tile.as_slice(), params)
    }

    /// The dims for which tile sizes are, as `a.dim(0) <= 8`.
    pub fn conditions_of(&self, tile: &GpuTile) -> String {
        let condition = |c: &Condition| {
            let operand = self.operands.as_slice().get(c.operand as usize).map_or("", |operand| operand.name.as_str());
            format!("{operand}.dim({}) <= {}", c.dim, c.max)
        };
        tile.conditions.as_slice().iter().map(condition).collect::<Vec<_>>().join(" and ")
    }

    /// As [`ir_text`](Self::ir_text), with the tile sizes that are best for a GPU where there are enough programs, and no
    /// dimension is small.
    ///
    /// # Errors
    /// When what the kernel recorded with these is not IR.
    pub fn ir_text_on(
        &self,
        target: ptx::Target,
        dtypes: &[DType],
        params: Option<&[ParamBits]>,
    ) -> Result<String, ir::ParseError> {
        let mut all = self.ir_on(target, dtypes, params, ir::parse);
        let special =
            all.find(|(tile, _)| tile.conditions.as_slice().is_empty()).map(|(_, kernel)| kernel).transpose()?;
        Ok(special.map_or_else(|| self.ir_text(dtypes, params), |kernel| kernel.to_string()))
    }

    /// As [`ir_text`](Self::ir_text), with other tile sizes.
    fn ir_text_with(&self, dtypes: &[DType], tile: &[u64], params: Option<&[ParamBits]>) -> String {
        unsafe extern "C" fn sink(out: *mut std::ffi::c_void, bytes: *const u8, len: usize) {
            // SAFETY: `out` is the vector below, and `bytes` are valid during the call.
            unsafe { (*out.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, len)) };
        }
        // One code for each generic, whatever was given.
        let codes: Vec<u8> =
            (0..self.generics.as_slice().len()).map(|i| dtypes.get(i).copied().unwrap_or(DType::F32) as u8).collect();
        let mut bits = params.map(<[u64]>::to_vec);
        if let Some(bits) = &mut bits {
            bits.resize(self.params.as_slice().len(), 0);
        }
        let binding = Binding {
            dtypes: codes.as_ptr(),
            tile: tile.as_ptr(),
            params: bits.as_ref().map_or(std::ptr::null(), |b| b.as_ptr()),
        };
        let mut text = Vec::new();
        // SAFETY: the binding holds as many values as the definition declares.
        unsafe { (self.record)(&binding, std::ptr::from_mut(&mut text).cast(), sink) };
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Sets integer parameters, by their numbers.
pub(in crate::kernel) fn set_params(
    def: &'static KernelDef,
    params: &mut [ParamBits],
    values: impl IntoIterator<Item = (u32, i64)>,
) -> Result<(), KernelError> {
    for (number, value) in values {
        let (Some(param), Some(bits)) = (def.params.as_slice().get(number as usize), params.get_mut(number as usize))
        else {
            continue;
        };
        if let Some(range) = param.int_range_without(value) {
            return Err(def.misfit(format!("parameter `{}` is {value}, not one of {range}", param.name.as_str())));
        }
        *bits = value as u64;
    }
    Ok(())
}

/// Says, once a process, that kernels were built as for debugging: they are correct, and many times slower.
fn warn_unoptimized(krate: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        eprintln!(
            "max: the kernels of crate `{krate}` were built without optimization and are many times slower; build with \
             --release, or put this into the workspace's Cargo.toml:\n\n    [profile.dev.package.{krate}]\n    \
             opt-level = 3\n    debug-assertions = false\n"
        );
    });
}

impl BoundKernel {
    /// The kernel.
    pub fn def(&self) -> &'static KernelDef {
        self.def
    }

    /// The dtype code bound to each generic.
    pub(in crate::kernel) fn dtype_codes(&self) -> &[u8] {
        &self.dtypes
    }

    /// The dtype that was given for each generic.
    pub(in crate::kernel) fn given_dtypes(&self) -> &[DType] {
        &self.given
    }

    /// The kernel with other values of integer parameters, by their numbers.
    ///
    /// # Errors
    /// When a parameter's dtype does not have the value.
    pub(crate) fn with_params(&self, values: impl IntoIterator<Item = (u32, i64)>) -> Result<BoundKernel, KernelError> {
        let mut kernel = self.clone();
        set_params(self.def, &mut kernel.params, values)?;
        Ok(kernel)
    }

    /// Those of its parameters that are known before a launch: none if some are not.
    pub(in crate::kernel) fn known_params(&self) -> Option<&[ParamBits]> {
        (!self.is_dynamic).then_some(&self.params[..])
    }

    /// The bits of its parameters, in the order of the definition.
    pub fn params(&self) -> &[ParamBits] {
        &self.params
    }

    pub(in crate::kernel) fn size_of(&self, dtype: super::super::abi::DTypeRef) -> usize {
        self.dtype(dtype).size_in_bytes()
    }

    fn dtype(&self, dtype: super::super::abi::DTypeRef) -> DType {
        let code = usize::try_from(dtype.generic).map_or(dtype.fixed, |i| self.dtypes.get(i).copied().unwrap_or(0));
        DType::from_code(code).unwrap_or(DType::U8)
    }

    /// The code for operands of these dims.
    pub(in crate::kernel) fn code(&self, tensors: &[TensorArg<'_>]) -> &Code {
        let dim = |operand: usize, dim: usize| tensors.get(operand)?.dims.get(dim).copied();
        let holds = |code: &&Code| {
            let Code::Instance(instance, _) = code else { return false };
            let variant = self.def.variants.as_slice().get(instance.variant as usize - 1);
            variant.is_some_and(|variant| variant.holds(dim))
        };
        let chosen = match TILE_FORM.get() {
            0 => self.variants.iter().find(holds),
            form => self.variants.get(form.wrapping_sub(2)),
        };
        chosen.unwrap_or(&self.code)
    }

    /// The tile constants of that code.
    pub(in crate::kernel) fn tile(&self, code: &Code) -> &'static [u64] {
        match code {
            Code::Instance(instance, _) => instance.tile.as_slice(),
            // They mean nothing to the reference form but how it walks the grid; the GPU's serve.
            Code::Reference => self.def.gpu_tile.as_slice(),
        }
    }

    /// How much of its dimension a program takes along an axis of the grid, where operands are not so small that other
    /// tile constants are chosen; `None` where that is no dimension.
    pub(crate) fn block(&self, axis: &GridAxis, on_cpu: bool) -> Option<u64> {
        axis.block(if on_cpu { self.tile(&self.code) } else { self.def.gpu_tile.as_slice() })
    }

    /// Where the packed tiles of operands are kept that never change, those that `constant` has; `None` if none of them is
    /// packed. `shared` are those that others have.
    pub(crate) fn constants(
        &self,
        constant: impl IntoIterator<Item = Option<Tensor>>,
        shared: &Arc<SharedTiles>,
    ) -> Option<Constants> {
        let codes = std::iter::once(&self.code).chain(&self.variants);
        let uses = codes.filter_map(|code| if let Code::Instance(_, uses) = code { Some(&**uses) } else { None });
        Constants::new(constant, 1 + self.def.variants.as_slice().len(), uses, shared)
    }

    /// Room for the operands that several programs of the grid read in `dot`.
    pub(in crate::kernel) fn packs(
        &self,
        tensors: &[TensorArg<'_>],
        code: &Code,
        grid: [i64; 3],
        constants: Option<&Constants>,
    ) -> Option<Packs> {
        let Code::Instance(instance, uses) = code else { return None };
        let dtypes = &|operand: usize| self.dtype(self.def.operands.as_slice()[operand].dtype);
        packing::room(uses, instance, &Operands { tensors, dtypes, grid, constants })
    }

    /// The extents of the grid.
    ///
    /// # Errors
    /// When an expression comes to too many programs.
    pub(in crate::kernel) fn grid(&self, tensors: &[TensorArg<'_>], code: &Code) -> Result<[i64; 3], KernelError> {
        let values = GridValues {
            terms: self.def.grid_terms.as_slice(),
            tile: self.tile(code),
            params: &self.params,
            dim: |operand: usize, dim: usize| tensors.get(operand)?.dims.get(dim).copied(),
        };
        let enormous = |(axis, extent)| KernelError::Grid { kernel: self.def.name.as_str(), axis, extent };
        values.extents(self.def.grid.as_slice()).map_err(enormous)
    }

    /// Runs a range of program instances or elements on this thread.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub(crate) unsafe fn run(&self, raw: &[RawTensor], stream: bool, first: i64, last: i64) {
        let args =
            LaunchArgs { tensors: raw.as_ptr(), params: self.params.as_ptr(), grid: [1; 3], order: [0, 1, 2], stream };
        // SAFETY: by the contract above.
        unsafe { self.run_programs(&self.code, &args, first, last) }
    }

    /// As [`run`](Self::run), with all arguments of a launch.
    ///
    /// # Safety
    /// As there.
    pub(in crate::kernel) unsafe fn run_programs(&self, code: &Code, args: &LaunchArgs, first: i64, last: i64) {
        match code {
            // SAFETY: the instance was compiled for these dtypes and a level that the machine has.
            Code::Instance(instance, _) => unsafe { (instance.run)(args, first, last) },
            Code::Reference => {
                let binding = Binding {
                    dtypes: self.dtypes.as_ptr(),
                    tile: self.tile(code).as_ptr(),
                    params: self.params.as_ptr(),
                };
                // SAFETY: by the contract above.
                unsafe { (self.def.reference)(&binding, args, first, last) };
            }
        }
    }

    /// Whether programs must run one after the other, on one thread.
    pub(crate) fn serial(&self) -> bool {
        // The reference form's atomics are plain.
        matches!(self.code, Code::Reference)
    }

    /// The bytes of the tiles that a program holds, if these need a stack of their own.
    pub(in crate::kernel) fn large_tiles(&self) -> Option<u64> {
        Some(self.tile_bytes).filter(|bytes| *bytes > 0)
    }

    /// Whether programs multiply tiles, as the kernel's IR says: they compute much more than they read, and share what
    /// they read.
    pub(crate) fn multiplies(&self) -> bool {
        self.multiplies
    }

    /// What its launches took.
    pub(in crate::kernel) fn cost(&self) -> &Cost {
        &self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::abi::{Contract, GenericDef, KernelKind, Level, List, RunFn, Str, TABLE_VERSION};
    use crate::kernel::{Kernel, kernel};

    /// A tile constant, and no product.
    #[kernel(op = "bound_blocks", tile(N = 64), dtypes(T = [f32]))]
    fn blocks<T: Number>(y: Out<T, 1>, x: In<T, 2>) {
        let part = program_id(0);
        y.block::<N>(part).write(x.columns::<N>(part).sum());
    }

    #[kernel(op = "bound_product", tile(B = 8), dtypes(T = [f32]))]
    fn product<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
        let [m, n] = program_id();
        let acc = dot(a.tile::<B, B>(m, 0), b.tile::<B, B>(0, n), Tile::<T, B, B>::zeros());
        c.tile::<B, B>(m, n).write(acc);
    }

    /// A GEMM whose tiles have sizes of their own.
    #[kernel(op = "bound_fixed_product", dtypes(T = [f32]))]
    fn fixed_product<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
        let [m, n] = program_id();
        let acc = dot(a.tile::<8, 8>(m, 0), b.tile::<8, 8>(0, n), Tile::<T, 8, 8>::zeros());
        c.tile::<8, 8>(m, n).write(acc);
    }

    #[test]
    fn kernels_multiply_that_have_products() {
        let forms = [Form::Reference, Form::Compiled(Level::Portable), Form::Compiled(Level::V3)];
        for (def, multiplies) in [(blocks::def(), false), (product::def(), true), (fixed_product::def(), true)] {
            let dtypes = vec![DType::F32; def.operands.as_slice().len()];
            for form in forms {
                assert_eq!(
                    def.bind(&dtypes, |_| None, form).unwrap().multiplies(),
                    multiplies,
                    "{}",
                    def.name.as_str()
                );
            }
        }
    }

    unsafe extern "C" fn record_nonsense(
        _: *const Binding,
        out: *mut std::ffi::c_void,
        sink: unsafe extern "C" fn(*mut std::ffi::c_void, *const u8, usize),
    ) {
        let text = b"kernel \"nonsense\" program {";
        // SAFETY: the bytes are valid during the call, and `out` is what the sink was given with.
        unsafe { sink(out, text.as_ptr(), text.len()) };
    }

    unsafe extern "C" fn reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}
    unsafe extern "C" fn run(_: *const LaunchArgs, _: i64, _: i64) {}

    #[test]
    fn what_is_no_ir_is_refused_when_it_is_bound() {
        const F32: &[u8] = &[DType::F32 as u8];
        static INSTANCES: [Instance; 1] = [Instance {
            level: Level::Portable,
            dtypes: List::new(F32),
            tile: List::new(&[8]),
            variant: 0,
            run: run as RunFn,
        }];
        static GENERICS: [GenericDef; 1] = [GenericDef { name: Str::new("T"), dtypes: List::new(F32), by_size: false }];
        static NAMES: [Str; 1] = [Str::new("B")];
        static DEF: KernelDef = KernelDef {
            version: TABLE_VERSION,
            kind: KernelKind::Program,
            name: Str::new("nonsense"),
            krate: Str::new("my_ops"),
            file: Str::new("lib.rs"),
            line: 1,
            doc: Str::new(""),
            signature: Str::new("fn nonsense<T: Float>()"),
            optimized: true,
            operands: List::new(&[]),
            generics: List::new(&GENERICS),
            params: List::new(&[]),
            may_hold_tiles: true,
            tile_names: List::new(&NAMES),
            gpu_tile: List::new(&[8]),
            gpu_tiles: List::new(&[]),
            variants: List::new(&[]),
            grid: List::new(&[]),
            grid_terms: List::new(&[]),
            nondeterministic: false,
            columns: None,
            transposed: None,
            instances: List::new(&INSTANCES),
            record: record_nonsense,
            reference,
            // SAFETY: nothing runs it.
            contract: unsafe { Contract::upheld() },
        };
        let dtype = |name: &str| (name == "T").then_some(ParamArg::DType(DType::F32));
        for _ in 0..2 {
            let bound = DEF.bind(&[], dtype, Form::Compiled(Level::Portable)).map(drop);
            let error = bound.unwrap_err().to_string();
            let expected = "kernel `nonsense`: what it recorded is not IR: 1:27: expected ";
            assert!(error.starts_with(expected), "{error}");
            assert!(error.contains("rebuild the crate that defines it\n  kernel: fn nonsense<T: Float>()"), "{error}");
        }
        assert!(DEF.bind(&[], dtype, Form::Reference).is_ok());
    }
}
