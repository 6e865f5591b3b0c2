//! The kernel ABI: the kernel table, which `#[kernel]` emits for each kernel, and the host reads.
//!
//! Everything here is `repr(C)` and made of plain data and `extern "C"` functions, so that a kernel linked into the
//! program and one loaded from a dynamic library, built by another compiler, look the same. A change to any of these
//! types must raise [`TABLE_VERSION`]: a host refuses a library with another version, another layout of the
//! types, or values that cannot be.

pub(crate) mod check;
mod grid;
pub(crate) mod layout;

use std::marker::PhantomData;
use std::sync::atomic::AtomicU16;

use crate::dtype::DType;

pub(crate) use grid::GridValues;
pub use grid::{GridAxis, GridOp, GridTerm, MAX_DEPTH, MAX_EXTENT, extents, misshapen};

/// Version of the layout of this table. An extension with another version is refused.
pub const TABLE_VERSION: u32 = 12;

/// A `&'static str` with a fixed layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    ptr: *const u8,
    len: usize,
}

// SAFETY: a `Str` is made from a `&'static str` alone, which is `Send` and `Sync`.
unsafe impl Send for Str {}
// SAFETY: as above.
unsafe impl Sync for Str {}

impl Str {
    /// Wraps a static string.
    pub const fn new(s: &'static str) -> Self {
        Str { ptr: s.as_ptr(), len: s.len() }
    }

    /// The string.
    pub const fn as_str(self) -> &'static str {
        // SAFETY: the fields are private and come from a `&'static str`.
        unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(self.ptr, self.len)) }
    }
}

/// A `&'static [T]` with a fixed layout.
#[repr(C)]
pub struct List<T: 'static> {
    ptr: *const T,
    len: usize,
    of: PhantomData<&'static [T]>,
}

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for List<T> {}

// SAFETY: a `List` is made from a `&'static [T]` alone.
unsafe impl<T: Sync> Send for List<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for List<T> {}

impl<T> List<T> {
    /// Wraps a static slice.
    pub const fn new(items: &'static [T]) -> Self {
        List { ptr: items.as_ptr(), len: items.len(), of: PhantomData }
    }

    /// The items.
    pub const fn as_slice(&self) -> &'static [T] {
        // SAFETY: the fields are private and come from a `&'static [T]`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// How a kernel walks its operands.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// A function of scalars, applied to every element of operands of one shape (after broadcasting).
    Elementwise = 0,
    /// A grid of program instances, each of which owns a part of every output.
    Program = 1,
}

/// What a kernel does with an operand.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    In = 0,
    /// A result: written, never read.
    Out = 1,
    /// Read and written in place (`&mut` in the kernel's signature).
    InOut = 2,
}

/// The dtype of an operand: fixed, or the binding of one of the kernel's generics.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DTypeRef {
    /// Index into [`KernelDef::generics`], or -1 for a fixed dtype.
    pub generic: i32,
    /// The fixed dtype's code; 0 where `generic` is not -1.
    pub fixed: u8,
}

impl DTypeRef {
    /// A dtype written out in the signature.
    pub const fn fixed(dtype: DType) -> Self {
        DTypeRef { generic: -1, fixed: dtype as u8 }
    }

    /// The generic of index `i`.
    pub const fn generic(i: i32) -> Self {
        DTypeRef { generic: i, fixed: 0 }
    }
}

/// One tensor operand of a kernel, in the order of the signature (results of an elementwise kernel come last).
///
/// One that may be absent has a bool parameter of its name, which says whether a launch has it (see
/// [`KernelDef::given_param`]). A launch without it has a tensor of one element in its place.
#[repr(C)]
pub struct OperandDef {
    /// The name in the signature; `out`, or `out0`, `out1`, … for the results of an elementwise kernel.
    pub name: Str,
    /// Read, written, or both.
    pub access: Access,
    /// Its dtype.
    pub dtype: DTypeRef,
    /// Its rank; -1 for an elementwise operand, which takes any.
    pub rank: i32,
    /// Whether the launcher must fill it with zeros first, because the kernel may leave elements unwritten.
    pub zero_init: bool,
    /// The part of it that every program writes whole, if not `zero_init`: a block along each of these dimensions, everything
    /// along the others. The launcher must fill it with zeros first where the grid's programs do not make up all of it.
    pub written: List<PartDim>,
    /// The part of it that is all that a program touches: a block along each of these dimensions, everything along the
    /// others. Empty where that is not known, and for elementwise operands.
    pub part: List<PartDim>,
}

impl OperandDef {
    /// Whether a program may leave elements of its part of a result unwritten.
    pub fn leaves_out(&self) -> bool {
        self.zero_init || self.written.as_slice().iter().any(|part| part.axis < 0)
    }
}

/// A dimension along which each program has a block of its own, at its program id.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartDim {
    /// The grid axis of the program id; -1 where all programs have the first block.
    pub axis: i32,
    /// The dimension.
    pub dim: u32,
    /// The tile constant (an index into [`Instance::tile`]) that is the size of a block, or -1 for `size` itself.
    pub tile: i32,
    /// The size of a block.
    pub size: u64,
}

/// A dtype generic of a kernel and the dtypes it was compiled for.
#[repr(C)]
pub struct GenericDef {
    /// Its name, such as `T`.
    pub name: Str,
    /// The codes of the dtypes it ranges over.
    pub dtypes: List<u8>,
    /// Whether elements are only moved: any dtype binds, as the unsigned integer of its size.
    pub by_size: bool,
}

impl GenericDef {
    /// The code that stands in [`Instance::dtypes`] when this generic is bound to `dtype`; `None` if it cannot be.
    pub fn code(&self, dtype: DType) -> Option<u8> {
        let code = if self.by_size {
            match dtype.size_in_bytes() {
                1 => DType::U8,
                2 => DType::U16,
                4 => DType::U32,
                _ => DType::U64,
            }
        } else {
            dtype
        } as u8;
        self.dtypes.as_slice().contains(&code).then_some(code)
    }
}

/// The kind of a parameter.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// An integer.
    Int = 0,
    /// A boolean.
    Bool = 1,
    /// A string; inside the kernel it can only be compared with literals.
    String = 2,
    /// A floating-point number.
    Float = 3,
}

/// A parameter of a kernel: a value fixed when the graph is built, the same for every element.
///
/// A dtype parameter is not listed here: it is the [`GenericDef`] of that name.
#[repr(C)]
pub struct ParamDef {
    /// Its name in the signature.
    pub name: Str,
    /// Its kind.
    pub kind: ParamKind,
    /// The code of its dtype, if it is a number.
    pub dtype: u8,
    /// Whether it may be left out.
    pub has_default: bool,
    /// The bits of the default (see [`ParamBits`]); 0 where there is none.
    pub default: u64,
    /// The default in text, as written in the attribute.
    pub default_text: Str,
    /// The values that a string parameter may take; empty for any.
    pub choices: List<Str>,
}

impl ParamDef {
    /// The range of its dtype in text, if that is one of integers without `value`.
    pub fn int_range_without(&self, value: i64) -> Option<String> {
        let dtype = DType::from_code(self.dtype)?;
        let bits = dtype.size_in_bytes() * 8;
        let (min, max) = match dtype {
            _ if dtype.is_unsigned_integral() => (0, (1_i128 << bits) - 1),
            _ if dtype.is_signed_integral() => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
            _ => return None,
        };
        (!(min..=max).contains(&value.into())).then(|| format!("{min} to {max}"))
    }

    /// The range of its dtype in text, if that is one of floats without `value`: a number that would become infinite.
    pub fn float_range_without(&self, value: f64) -> Option<String> {
        let lost = self.dtype == DType::F32.code() && value.is_finite() && (value as f32).is_infinite();
        lost.then(|| format!("{:e} to {:e}", f32::MIN, f32::MAX))
    }
}

/// A parameter's value as a kernel instance takes it: an integer in two's complement, a bool as 0 or 1, a float as
/// the bits of an `f64`, a string as [`hash_str`] of it.
pub type ParamBits = u64;

/// The hash by which kernels compare string parameters (FNV-1a, 64 bits, public domain).
pub const fn hash_str(s: &str) -> u64 {
    let bytes = s.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Machine levels that CPU instances are compiled for, in ascending order.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What the compiler assumes by default on this architecture.
    Portable = 0,
    /// x86-64-v2: SSE4.2, no fused multiply-add.
    V2 = 2,
    /// x86-64-v3: AVX2, FMA, F16C.
    V3 = 3,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    V4 = 4,
}

/// One compiled form of a kernel: for one binding of its generics, at one level.
#[repr(C)]
pub struct Instance {
    /// The level it needs.
    pub level: Level,
    /// The dtype code bound to each generic.
    pub dtypes: List<u8>,
    /// The value of each tile constant.
    pub tile: List<u64>,
    /// 0, or `i + 1` for the tile constants that [`KernelDef::variants`]`[i]` has the conditions of.
    pub variant: u32,
    /// The code.
    pub run: RunFn,
}

/// A condition of other tile constants: that a dimension of an operand is at most `max`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Index of the operand.
    pub operand: u32,
    /// The dimension.
    pub dim: u32,
    /// Its largest extent.
    pub max: u64,
}

impl Condition {
    /// Whether it holds, given the dims of operands.
    pub fn holds(&self, dim: impl Fn(usize, usize) -> Option<i64>) -> bool {
        let extent = dim(self.operand as usize, self.dim as usize);
        extent.is_some_and(|extent| u64::try_from(extent).unwrap_or(0) <= self.max)
    }
}

/// When a kernel takes other tile constants on the CPU.
#[repr(C)]
pub struct Variant {
    /// What holds of the dims of a launch that takes them.
    pub conditions: List<Condition>,
}

impl Variant {
    /// Whether all conditions hold, given the dims of operands.
    pub fn holds(&self, dim: impl Fn(usize, usize) -> Option<i64>) -> bool {
        self.conditions.as_slice().iter().all(|condition| condition.holds(&dim))
    }
}

/// Values of the tile constants for one kind of GPU or all, for some dtypes, and for some dims.
#[repr(C)]
pub struct GpuTile {
    /// The compute capability of the GPU, 90 for 9.0, in code that uses what is special to it; 0 for every GPU.
    pub sm: u32,
    /// Index into [`KernelDef::generics`] of the one that must have one of these dtypes, or -1 for any.
    pub generic: i32,
    /// The codes of the dtypes.
    pub dtypes: List<u8>,
    /// What holds of the dims of a launch that takes them.
    pub conditions: List<Condition>,
    /// The value of each tile constant.
    pub tile: List<u64>,
}

impl GpuTile {
    /// Whether a dtype is among those that it is for.
    pub fn has(&self, dtype: DType) -> bool {
        self.dtypes.as_slice().contains(&(dtype as u8))
    }
}

/// A tensor operand as an instance sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawTensor {
    /// The first element.
    pub ptr: *mut u8,
    /// Its dims, `rank` of them (one, for an elementwise run).
    pub dims: *const i64,
    /// Its strides in elements, `rank` of them.
    pub strides: *const i64,
    /// Room for its packed tiles, or null.
    pub pack: *const Pack,
}

/// How packed tiles lie in memory.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackForm {
    /// In panels as wide as the register block of the level, in the dtype of computation.
    Panels = 0,
    /// In blocks of 16 rows of 64 bytes, the tiles of AMX, in the dtype in memory; of `f32`, of its parts of `bf16`.
    Blocks = 1,
}

impl PackForm {
    /// How many there are.
    pub const COUNT: usize = 2;
}

/// Room for the tiles of an operand that is only read as an operand of `dot`, each packed by whoever needs it first.
///
/// Tiles are counted along the leading dimensions, then by rows and by columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    /// Rows and columns of a tile.
    pub tile: [i64; 2],
    /// How many tiles there are along the rows and along the columns.
    pub tiles: [i64; 2],
    /// The steps of the depth that a tile in [`PackForm::Blocks`] has room for: no more than the operand has, but for the last line.
    pub depth: usize,
    /// The room for each [`PackForm`]. Where there are two, the second one is for tiles that have values which the first has not.
    pub rooms: [PackRoom; PackForm::COUNT],
}

/// Room for packed tiles of one form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PackRoom {
    /// Bytes from a packed tile to the next, a multiple of 64; 0 for a form that tiles are not packed in.
    pub slot_bytes: usize,
    /// Where the tiles are; null for such a form.
    pub room: *mut u8,
    /// For each tile, how much of it is packed; 0 at the start.
    pub states: *const AtomicU16,
}

impl PackRoom {
    /// That of a form that tiles are not packed in.
    pub const NONE: PackRoom = PackRoom { slot_bytes: 0, room: std::ptr::null_mut(), states: std::ptr::null() };
}

/// The arguments of one launch, shared by all its program instances.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchArgs {
    /// The operands, in the order of [`KernelDef::operands`].
    pub tensors: *const RawTensor,
    /// The parameters, in the order of [`KernelDef::params`].
    pub params: *const ParamBits,
    /// Number of program instances along each axis.
    pub grid: [i64; 3],
    /// The axes in the order in which programs are counted, slowest first.
    pub order: [u32; 3],
    /// Whether stores should bypass the cache. Whoever runs instances orders such stores before what follows.
    pub stream: bool,
}

impl LaunchArgs {
    /// The coordinates of the program number `index` along the axes in their order.
    #[inline(always)]
    pub fn coordinates(&self, index: i64) -> [i64; 3] {
        let [_, n1, n2] = self.extents();
        [index / n2 / n1, index / n2 % n1, index % n2]
    }

    /// The extents of the grid along the axes in their order, of which none counts as less than 1.
    #[inline(always)]
    pub fn extents(&self) -> [i64; 3] {
        let n = [self.grid[self.axis(0)], self.grid[self.axis(1)], self.grid[self.axis(2)]];
        [if n[0] < 1 { 1 } else { n[0] }, if n[1] < 1 { 1 } else { n[1] }, if n[2] < 1 { 1 } else { n[2] }]
    }

    /// The ids of the program at these coordinates.
    ///
    /// There and back along the fastest axis: threads that begin side by side need other tiles at first.
    #[inline(always)]
    pub fn program_ids(&self, at: [i64; 3]) -> [i64; 3] {
        let last = if at[1] % 2 == 1 { self.extents()[2] - 1 - at[2] } else { at[2] };
        let mut ids = [0; 3];
        (ids[self.axis(0)], ids[self.axis(1)], ids[self.axis(2)]) = (at[0], at[1], last);
        ids
    }

    /// The ids of the program number `index`, what they change by from one program to the next, and how many programs there are from it
    /// on up to the end of the fastest axis that has several.
    #[inline(always)]
    pub fn run_from(&self, index: i64) -> ([i64; 3], [i64; 3], i64) {
        let (at, n) = (self.coordinates(index), self.extents());
        let mut step = [0; 3];
        let place = if n[2] > 1 {
            2
        } else if n[1] > 1 {
            1
        } else {
            0
        };
        step[self.axis(place)] = if place == 2 && at[1] % 2 == 1 { -1 } else { 1 };
        (self.program_ids(at), step, n[place] - at[place])
    }

    /// The axis that comes at this place in their order.
    #[inline(always)]
    fn axis(&self, place: usize) -> usize {
        let axis = self.order[place];
        if axis < 3 { axis as usize } else { 0 }
    }
}

/// Runs the program instances (or, of an elementwise kernel, the elements) `first..last`, counted over the grid in the
/// order of the launch.
///
/// # Safety
/// The tensors and parameters must be those that the kernel's definition declares, valid for the launch, and no other
/// thread may write what is read here, nor touch what is written, other than through this launch's other instances.
pub type RunFn = unsafe extern "C" fn(args: *const LaunchArgs, first: i64, last: i64);

/// What generics, tile constants and parameters are bound to while a kernel is recorded or run in reference form.
#[repr(C)]
pub struct Binding {
    /// The dtype code of each generic.
    pub dtypes: *const u8,
    /// The value of each tile constant.
    pub tile: *const u64,
    /// The bits of each parameter, or null to leave parameters symbolic.
    pub params: *const ParamBits,
}

/// Records the kernel and writes the text form of its IR into `sink(context, bytes, len)`.
pub type RecordFn = unsafe extern "C" fn(
    binding: *const Binding,
    context: *mut std::ffi::c_void,
    sink: unsafe extern "C" fn(*mut std::ffi::c_void, *const u8, usize),
);

/// Runs program instances (or elements) in reference form: slow, scalar, bounds-checked.
///
/// # Safety
/// As for [`RunFn`].
pub type ReferenceFn = unsafe extern "C" fn(binding: *const Binding, args: *const LaunchArgs, first: i64, last: i64);

/// Everything the host knows of one kernel.
#[repr(C)]
pub struct KernelDef {
    /// [`TABLE_VERSION`] of the crate that made it.
    pub version: u32,
    /// How it walks its operands.
    pub kind: KernelKind,
    /// The op's name, by which graphs find it.
    pub name: Str,
    /// The crate it stands in.
    pub krate: Str,
    /// The file it stands in.
    pub file: Str,
    /// Its line.
    pub line: u32,
    /// The first paragraph of its doc comment.
    pub doc: Str,
    /// The signature as it was written.
    pub signature: Str,
    /// Whether it was compiled with optimization.
    pub optimized: bool,
    /// Its tensor operands.
    pub operands: List<OperandDef>,
    /// Its dtype generics.
    pub generics: List<GenericDef>,
    /// Its parameters.
    pub params: List<ParamDef>,
    /// Whether it may be that its programs hold tiles: false only where all that the kernel calls is known, and makes none.
    pub may_hold_tiles: bool,
    /// Names of its tile constants.
    pub tile_names: List<Str>,
    /// The tile constants' values on a GPU.
    pub gpu_tile: List<u64>,
    /// Other values on some GPUs, best first.
    pub gpu_tiles: List<GpuTile>,
    /// When other tile constants are taken; the first that holds decides.
    pub variants: List<Variant>,
    /// Its grid; empty for an elementwise kernel.
    pub grid: List<GridAxis>,
    /// The terms of axes that are expressions.
    pub grid_terms: List<GridTerm>,
    /// Whether its results depend on the order of its programs, as sums of floats by atomics do.
    pub nondeterministic: bool,
    /// The same kernel for rows that are columns in memory, made of the same body: the rows `[rows, axis]` of an operand are
    /// columns of `[outer, axis, inner]` there, and `[outer, inner]` if they have one element. It has no such form itself.
    pub columns: Option<&'static KernelDef>,
    /// The same kernel for a last operand that is transposed, made of the same body. It has no such form itself.
    pub transposed: Option<&'static KernelDef>,
    /// Its compiled forms.
    pub instances: List<Instance>,
    /// Records its IR.
    pub record: RecordFn,
    /// Its reference form.
    pub reference: ReferenceFn,
    /// That all of this is true.
    pub contract: Contract,
}

impl KernelDef {
    /// The parameter that says whether an operand is there, if it may be absent.
    pub fn given_param(&self, operand: &OperandDef) -> Option<&'static ParamDef> {
        let is_its = |param: &&ParamDef| param.kind == ParamKind::Bool && param.name.as_str() == operand.name.as_str();
        self.params.as_slice().iter().find(is_its)
    }
}

/// The word of whoever makes a [`KernelDef`] that it says what its functions do: the engine takes it for that, and runs them on memory
/// of which it believes the table. It takes no room, and cannot be copied from another table.
#[repr(C)]
pub struct Contract(());

impl Contract {
    /// # Safety
    /// The functions of the table that it stands in keep to their types' contracts ([`RunFn`], [`RecordFn`], [`ReferenceFn`]) for
    /// operands, generics, parameters and a grid as the table has them. Each program writes the parts of results that
    /// [`written`](OperandDef::written) names, and touches no other part than [`part`](OperandDef::part) where that is not empty.
    /// Programs that may run at the same time do not access the same element of a result, unless atomically.
    pub const unsafe fn upheld() -> Contract {
        Contract(())
    }
}

/// The table that a dynamic library of kernels returns from `max_extension`.
#[repr(C)]
pub struct ExtensionTable {
    /// [`TABLE_VERSION`] of the library. Always the first field, in every version.
    pub version: u32,
    /// The fingerprint of the types of its table.
    pub layout: u64,
    /// The target that it was compiled for.
    pub target: [u8; layout::TARGET_BYTES],
    /// Its kernels.
    pub kernels: List<&'static KernelDef>,
}
