//! Packing by the launcher: which operands of a kernel's `dot`s are packed, and the memory of their packed panels.
//!
//! It exists because a kernel says nothing about packing: one body serves all targets. The IR tells that an operand is
//! read by `dot` alone, as tiles of one shape, and along which grid axes programs read the same tiles. Where several
//! do, packing once serves them all. Constants are packed once for all launches. The IR is recorded once for each
//! compiled form, the first time that it is bound.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use smallvec::SmallVec;

use super::super::abi::{Instance, KernelDef, Level, Pack, PackForm, PackRoom, RawTensor};
use super::super::arg::{TensorArg, num_elements};
use super::super::cpu::{
    Dot, LINE, has_matrix_unit, is_packed_in_pairs, is_skinny, reads_in_place, rhs_stays_in_cache, tile_bytes, widens,
};
use super::super::ir;
use super::super::ir::{Block, DefUse, Inst, Op, Type, Value};
use crate::driver::{Device, Tensor, allocator};
use crate::dtype::DType;
use crate::steps;

/// How a kernel's `dot`s read an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    operand: usize,
    lhs: bool,
    /// Rows and columns of the tiles, as they lie in the operand.
    tile: [usize; 2],
    /// Whether the GEMM takes their transpose.
    transposed: bool,
    /// The grid axes that decide which tiles a program reads, a bit each.
    axes: u8,
    /// The rows of the GEMM, and its columns, on which the form of packed tiles depends; and what it adds in.
    rows: usize,
    columns: usize,
    accumulator: DType,
    /// Whether every `dot` that reads the operand takes both its operands from memory.
    paired: bool,
    /// Whether every `dot` that reads the operand can be one of blocks: of bytes or of `f32` in memory, or of values of
    /// `bf16`, however the left ones came about.
    in_blocks: bool,
}

/// What a kernel's GEMMs take.
#[derive(Default)]
pub(in crate::kernel) struct Uses {
    /// The operands that may be packed.
    packed: SmallVec<[Use; 2]>,
    /// Whether there is a GEMM at all.
    pub multiplies: bool,
}

/// The uses in a compiled form of a kernel.
///
/// # Errors
/// When what the kernel recorded is not IR: a kernel whose IR cannot be read must not silently run unpacked.
pub(in crate::kernel) fn uses(
    def: &'static KernelDef,
    instance: &'static Instance,
    record: impl FnOnce() -> Result<ir::Kernel, ir::ParseError>,
) -> Result<Arc<Uses>, ir::ParseError> {
    type Known = HashMap<usize, Arc<OnceLock<Result<Arc<Uses>, ir::ParseError>>>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let key = std::ptr::from_ref(instance) as usize;
    // Only who asks for the same form waits for its IR.
    let known =
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().entry(key).or_default().clone();
    known.get_or_init(|| Ok(Arc::new(find(&record()?, def, instance)))).clone()
}

/// Finds the operands that only `dot` reads.
fn find(kernel: &ir::Kernel, def: &KernelDef, instance: &Instance) -> Uses {
    let defs = DefUse::of(kernel);
    let mut finder = Finder { defs, axes: HashMap::new(), dots: Vec::new(), other: Vec::new() };
    finder.block(&kernel.body);
    let multiplies = !finder.dots.is_empty();
    // Other forms multiply tiles where they lie.
    if instance.level < Level::V3 || def.tile_names.as_slice().is_empty() {
        return Uses { multiplies, ..Uses::default() };
    }
    let mut found: SmallVec<[Use; 2]> = SmallVec::new();
    let mut refused = finder.other.clone();
    for (value, lhs, pair, sum) in &finder.dots {
        let Type::Tile(added, sum_rows, sums) = kernel.ty(*sum) else { continue };
        let Some(Op::TileLoad { operand, batch, origin, transpose }) = finder.op(*value) else { continue };
        let Type::Tile(_, rows, columns) = kernel.ty(*value) else { continue };
        let paired = pair.iter().all(|v| finder.loads(*v).is_some());
        let of = |value: Value| finder.defs.dtype_of_elements(value);
        let steps = if *lhs { columns } else { rows };
        let dot = |(lhs, rhs)| Dot {
            lhs,
            rhs,
            accumulator: added,
            lhs_in_memory: paired,
            shape: [sum_rows as usize, sums as usize, steps as usize],
        };
        let in_blocks = of(pair[0]).zip(of(pair[1])).is_some_and(|dtypes| dot(dtypes).has_blocks());
        let (rows, columns) = (rows as usize, columns as usize);
        let axes = batch.iter().chain(origin).fold(0, |axes, v| axes | finder.axes(*v));
        let new = Use {
            operand: *operand as usize,
            lhs: *lhs,
            tile: if *transpose { [columns, rows] } else { [rows, columns] },
            transposed: *transpose,
            axes,
            rows: sum_rows as usize,
            columns: sums as usize,
            accumulator: added,
            paired,
            in_blocks,
        };
        match found.iter_mut().find(|u| u.operand == new.operand) {
            Some(old) => {
                (old.paired, old.in_blocks) = (old.paired && new.paired, old.in_blocks && new.in_blocks);
                if (Use { paired: old.paired, in_blocks: old.in_blocks, ..new }) != *old {
                    refused.push(new.operand);
                }
            }
            None => found.push(new),
        }
    }
    let written = |operand: usize| def.operands.as_slice()[operand].access != super::super::abi::Access::In;
    found.retain(|u| !refused.contains(&u.operand) && !written(u.operand));
    Uses { packed: found, multiplies }
}

/// Walks a kernel's IR.
struct Finder<'a> {
    defs: DefUse<'a>,
    /// The grid axes that each value depends on, as far as the walk came: a value stands behind what it is made of.
    axes: HashMap<Value, u8>,
    /// The operands of each `dot`: the value, whether it is the left one, both, and what they are added to.
    dots: Vec<(Value, bool, [Value; 2], Value)>,
    /// Operands that something else reads as well.
    other: Vec<usize>,
}

impl<'a> Finder<'a> {
    fn block(&mut self, block: &'a Block) {
        for inst in &block.insts {
            self.add_axes(inst);
            match &inst.op {
                Op::Dot(a, b, acc) => {
                    self.dots.extend([(*a, true, [*a, *b], *acc), (*b, false, [*a, *b], *acc)]);
                    // What is multiplied with a computed right operand is read as it lies.
                    if !self.is_in_memory(*b) {
                        self.read(*a);
                    }
                    self.read(*acc);
                }
                Op::Load { operand, .. } => self.other.push(*operand as usize),
                op => op.uses().into_iter().for_each(|v| self.read(v)),
            }
            inst.op.blocks().into_iter().for_each(|(block, _)| self.block(block));
        }
        block.yields.iter().for_each(|v| self.read(*v));
    }

    /// A value is used by something that is no `dot`.
    fn read(&mut self, value: Value) {
        self.other.extend(self.loads(value));
    }

    fn op(&self, value: Value) -> Option<&'a Op> {
        self.defs.get(value).map(|inst| &inst.op)
    }

    /// Whether a value is a tile of an operand, converted or not.
    fn is_in_memory(&self, mut value: Value) -> bool {
        while let Some(Op::TileCast(of) | Op::TileRound(_, of)) = self.op(value) {
            steps::count(1);
            value = *of;
        }
        self.loads(value).is_some()
    }

    /// The operand whose tile a value is.
    fn loads(&self, value: Value) -> Option<usize> {
        match self.op(value) {
            Some(Op::TileLoad { operand, .. }) => Some(*operand as usize),
            _ => None,
        }
    }

    /// The grid axes that a value depends on. What is not known counts as if every program read other tiles.
    fn axes(&self, value: Value) -> u8 {
        self.axes.get(&value).copied().unwrap_or(0b111)
    }

    /// Notes the axes of an instruction's results, or of its index.
    fn add_axes(&mut self, inst: &Inst) {
        let of = |values: &[Value]| {
            steps::count(values.len());
            values.iter().fold(0, |axes, v| axes | self.axes(*v))
        };
        let axes = match &inst.op {
            // Where a loop ends decides which tiles are read, not which of them are the same.
            Op::For { index, lo, step, .. } => {
                let axes = of(&[*lo, *step]);
                self.axes.insert(*index, axes);
                return;
            }
            Op::ProgramId(axis) => 1_u8.checked_shl(*axis).unwrap_or(0b111),
            Op::Const(_) | Op::Param(_) | Op::NumPrograms(_) | Op::Dim { .. } => 0,
            op @ (Op::Unary(..) | Op::Binary(..) | Op::Select(..) | Op::Cast(_) | Op::Cmp(..)) => of(&op.uses()),
            _ => return,
        };
        self.axes.extend(inst.results.iter().map(|result| (*result, axes)));
    }
}

/// The most bytes of packed tiles of a right operand that stay in a core's L2: half of that of recent servers (1 to 2 MiB).
const RHS_IN_CACHE: usize = 512 << 10;

/// The packed tiles of one launch.
pub(in crate::kernel) struct Packs {
    packs: SmallVec<[Placed; 2]>,
    /// The order of the grid's axes, slowest first: that in which consecutive programs read the same tile of the right operand, or where
    /// all of that stays in L2, of the left one.
    pub order: [u32; 3],
    /// Whether a matrix unit multiplies some of them.
    pub by_unit: bool,
    _room: Option<Room>,
}

/// An operand's pack, and how many tiles it has.
#[derive(Clone, Copy)]
struct Placed {
    operand: usize,
    slots: usize,
    pack: Pack,
}

impl Placed {
    /// The bytes of its tiles.
    fn bytes(&self) -> Option<usize> {
        self.pack.rooms.iter().try_fold(0_usize, |all, room| all.checked_add(self.slots.checked_mul(room.slot_bytes)?))
    }
}

impl Packs {
    /// Tells the operands where their packed tiles are.
    pub fn attach(&self, raw: &mut [RawTensor]) {
        for placed in &self.packs {
            if let Some(raw) = raw.get_mut(placed.operand) {
                raw.pack = &placed.pack;
            }
        }
    }
}

/// The packed tiles of a kernel's constant operands, kept between launches. Each is packed by whoever needs it first.
pub(crate) struct Constants {
    /// The operands that never change.
    constant: SmallVec<[Option<Tensor>; 8]>,
    /// By compiled form, operand and form of the tiles.
    tiles: Box<[OnceLock<Option<Arc<Tiles>>>]>,
    /// Where others look for the same tiles.
    shared: Arc<SharedTiles>,
}

/// The packed tiles of one constant operand.
struct Tiles {
    ptr: *const u8,
    dims: SmallVec<[i64; 4]>,
    strides: SmallVec<[i64; 4]>,
    placed: Placed,
    _room: Room,
    _share: Share,
    /// The constant, so that no other one comes to lie where it lies.
    _constant: Tensor,
}

/// The packed tiles of the models of a session: what multiplies by the same constant in the same form has one copy of its tiles.
/// They are freed with the last model that has them.
pub(crate) struct SharedTiles {
    known: Mutex<HashMap<TilesKey, Weak<Tiles>>>,
    /// The bytes that tiles may have together, and those that they have.
    limit: usize,
    taken: Arc<AtomicUsize>,
}

impl Default for SharedTiles {
    fn default() -> Self {
        SharedTiles::with_limit(usize::MAX)
    }
}

/// A part of the bytes that tiles may have together, until it is dropped.
struct Share {
    bytes: usize,
    taken: Arc<AtomicUsize>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Relaxed);
    }
}

/// What packed tiles depend on beside the constant: forms of a kernel that differ in nothing of this have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TileForm {
    operand: usize,
    level: Level,
    dtype: DType,
    lhs: bool,
    transposed: bool,
    tile: [usize; 2],
    columns: usize,
    accumulator: DType,
}

/// What tiles depend on: how they are packed, the form, and where the constant lies and how.
#[derive(PartialEq, Eq, Hash)]
struct TilesKey {
    tile: TileForm,
    form: usize,
    ptr: usize,
    dims: SmallVec<[i64; 4]>,
    strides: SmallVec<[i64; 4]>,
}

impl SharedTiles {
    /// Tiles that have at most so many bytes together.
    pub fn with_limit(bytes: usize) -> Self {
        SharedTiles { known: Mutex::default(), limit: bytes, taken: Arc::default() }
    }

    /// So many bytes, unless there would be too many then.
    fn take(&self, bytes: usize) -> Option<Share> {
        let add = |taken: usize| taken.checked_add(bytes).filter(|all| *all <= self.limit);
        self.taken.fetch_update(Relaxed, Relaxed, add).ok()?;
        Some(Share { bytes, taken: self.taken.clone() })
    }

    /// The tiles of that key, which `make` makes if nobody has them.
    fn find(&self, key: TilesKey, make: impl FnOnce() -> Option<Arc<Tiles>>) -> Option<Arc<Tiles>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tiles) = known.get(&key).and_then(Weak::upgrade) {
            return Some(tiles);
        }
        // Keys whose tiles are gone would only become more.
        if known.len() == known.capacity() {
            known.retain(|_, tiles| tiles.strong_count() > 0);
        }
        let tiles = make()?;
        known.insert(key, Arc::downgrade(&tiles));
        Some(tiles)
    }
}

// SAFETY: tiles are written by whoever claims them and read once they are said to be packed, as in a launch on several
// threads; the operand itself is only compared.
unsafe impl Send for Tiles {}
// SAFETY: as above.
unsafe impl Sync for Tiles {}

impl Constants {
    /// For operands of which those may be packed that never change; `None` where there are none.
    pub(in crate::kernel) fn new<'a>(
        constant: impl IntoIterator<Item = Option<Tensor>>,
        forms: usize,
        mut uses: impl Iterator<Item = &'a Uses>,
        shared: &Arc<SharedTiles>,
    ) -> Option<Constants> {
        let constant: SmallVec<[Option<Tensor>; 8]> = constant.into_iter().collect();
        let is_constant = |u: &Use| constant.get(u.operand).is_some_and(Option::is_some);
        uses.any(|uses| uses.packed.iter().any(is_constant)).then(|| {
            let tiles = (0..forms * constant.len() * PackForm::COUNT).map(|_| OnceLock::new()).collect();
            Constants { constant, tiles, shared: shared.clone() }
        })
    }

    /// Whether tiles as large as the constants would be kept: if not, there is nothing to pack ahead.
    pub fn have_room(&self) -> bool {
        let bytes = self.constant.iter().flatten().map(Tensor::num_bytes).fold(0, usize::saturating_add);
        self.shared.take(bytes).is_some()
    }

    /// Whether any of their tiles are kept.
    pub fn are_packed(&self) -> bool {
        self.tiles.iter().any(|tiles| matches!(tiles.get(), Some(Some(_))))
    }

    fn has(&self, operand: usize) -> bool {
        self.constant.get(operand).is_some_and(Option::is_some)
    }

    /// The packed tiles of an operand in some forms, with the memory that they have had since they were first asked
    /// for. `None` where there is no memory, and for another part of the constant than then.
    fn tiles(
        &self,
        (instance, tile): (&Instance, TileForm),
        forms: &[PackForm],
        placed: Placed,
        tensor: &TensorArg<'_>,
    ) -> Option<Placed> {
        let form = forms.first().map_or(0, |form| *form as usize);
        let operand = placed.operand;
        let index = (instance.variant as usize * self.constant.len() + operand) * PackForm::COUNT + form;
        let make = || {
            let mut packs = [placed];
            let share = self.shared.take(placed.bytes()?)?;
            let room = place(&mut packs)?;
            let (dims, strides) = (tensor.dims.into(), tensor.strides.into());
            let constant = self.constant.get(operand)?.clone()?;
            Some(Arc::new(Tiles {
                ptr: tensor.ptr,
                dims,
                strides,
                placed: packs[0],
                _room: room,
                _share: share,
                _constant: constant,
            }))
        };
        let find = || {
            let (dims, strides) = (tensor.dims.into(), tensor.strides.into());
            let ptr = tensor.ptr as usize;
            // Two forms together have room of their own.
            let form = form + PackForm::COUNT * usize::from(forms.len() > 1);
            self.shared.find(TilesKey { tile, form, ptr, dims, strides }, make)
        };
        let tiles = self.tiles.get(index)?.get_or_init(find).as_deref()?;
        let same = tiles.ptr == tensor.ptr && *tiles.dims == *tensor.dims && *tiles.strides == *tensor.strides;
        same.then_some(tiles.placed)
    }
}

/// What a launch knows of its operands.
pub(in crate::kernel) struct Operands<'a> {
    pub tensors: &'a [TensorArg<'a>],
    pub dtypes: &'a dyn Fn(usize) -> DType,
    pub grid: [i64; 3],
    pub constants: Option<&'a Constants>,
}

impl Use {
    /// Whether packing the operand saves more than it costs: that depends on how many programs read the same tiles.
    fn is_profitable(&self, x: &Operands<'_>, form: PackForm, avx512: bool) -> bool {
        /// Rows of the result up to which a right operand that is good in place is not packed, however many programs make them: two tiles.
        const IN_PLACE_ROWS: i64 = 256;
        let readers = (0..3).filter(|axis| self.axes >> axis & 1 == 0).map(|axis| x.grid[axis]);
        let readers = readers.fold(1_i64, |readers, programs| readers.saturating_mul(programs.max(1)));
        let is_row_major = || x.tensors.get(self.operand).is_some_and(|t| t.strides.last() == Some(&1));
        let dtype = (x.dtypes)(self.operand);
        let is_few = is_skinny(self.rows, self.tile[0]) && readers == 1 && !self.lhs && !self.transposed;
        // Few rows read it once, as well where it lies, if it is not converted.
        if is_few && (dtype == self.accumulator || widens(dtype, self.accumulator)) && is_row_major() {
            return false;
        }
        let is_half = dtype.size_in_bytes() == 2;
        let constant = x.constants.is_some_and(|constants| constants.has(self.operand));
        match self.is_good_in_place(x, form, avx512) {
            // Packing a constant costs nothing in the long run, but a packed half takes twice the memory to read.
            _ if constant => readers >= if is_half { 2 } else { 1 },
            true => !self.lhs && readers >= 3 && readers.saturating_mul(self.rows as i64) > IN_PLACE_ROWS,
            false => readers >= 2,
        }
    }

    fn tile_form(&self, level: Level, dtype: DType) -> TileForm {
        let Use { operand, lhs, transposed, tile, columns, accumulator, .. } = *self;
        TileForm { operand, level, dtype, lhs, transposed, tile, columns, accumulator }
    }

    /// Whether the operand is multiplied where it lies about as well as packed.
    fn is_good_in_place(&self, x: &Operands<'_>, form: PackForm, avx512: bool) -> bool {
        // A single tile is worth packing for all columns (`linear_bf16_64x4096x4096` is 10 % slower without).
        const MANY: i64 = 8;
        let Some(t) = x.tensors.get(self.operand).filter(|_| !self.transposed) else { return false };
        let dtype = (x.dtypes)(self.operand);
        let (size, tall) = (dtype.size_in_bytes(), self.tile[0] as i64);
        match (form, t.dims, t.strides) {
            // Left blocks that are whole, all but maybe those of the last one of many tiles.
            (PackForm::Blocks, [.., m, depth], _) if self.lhs => {
                let [rows, line] = [32, (64 / size) as i64];
                let is_whole = depth % line == 0 && (m % rows == 0 && *m > tall || *m >= MANY * tall);
                is_whole && reads_in_place(dtype, t.ptr, t.strides, self.tile[0])
            }
            // Rows of what is multiplied as it is; those of a right operand have to stay in the cache.
            (PackForm::Panels, [.., depth, _], [.., row, 1]) if size >= 4 => {
                let depth = Ord::clamp(*depth, 0, tall) as usize;
                self.lhs || rhs_stays_in_cache(avx512, depth, (row.unsigned_abs() as usize).saturating_mul(size))
            }
            _ => false,
        }
    }

    /// The operand's tiles in some forms, which have no room yet.
    fn tiles(&self, x: &Operands<'_>, forms: &[PackForm], avx512: bool) -> Option<Placed> {
        let [matrices @ .., rows, columns] = x.tensors.get(self.operand)?.dims else { return None };
        let tile = self.tile.map(|n| n as i64);
        let count = |n: i64, by: i64| n.div_euclid(by) + i64::from(n.rem_euclid(by) != 0);
        let tiles = [count(*rows, tile[0]), count(*columns, tile[1])];
        let slots = matrices.iter().chain(&tiles).try_fold(1_i64, |slots, n| slots.checked_mul(*n))?;
        let slots = usize::try_from(slots).ok()?;
        // The K axis: columns of the left operand, rows of the right one, or the other way round.
        let axis = usize::from(self.lhs != self.transposed);
        let all = usize::try_from([*rows, *columns][axis]).ok()?.checked_next_multiple_of(LINE)?;
        let depth = Ord::min(self.tile[axis], all);
        let dtype = (x.dtypes)(self.operand);
        let mut pack = Pack { tile, tiles, depth, rooms: [PackRoom::NONE; PackForm::COUNT] };
        for form in forms {
            let depth = if *form == PackForm::Blocks { depth } else { self.tile[axis] };
            pack.rooms[*form as usize].slot_bytes =
                tile_bytes(*form, avx512, self.lhs, [self.tile[1 - axis], self.columns], depth, dtype);
        }
        Some(Placed { operand: self.operand, slots, pack })
    }
}

/// Whether split-bf16 on AMX pays off for a single `f32` GEMM: packing the splits must cost less than it saves. Packing
/// takes about 0.5 ns an element; a constant that is packed once is read at half again the bytes. A multiply-add saves
/// 5 ps, but for the first `OVERHEAD`: small operands are in cache, where vectors are at their best (Xeon with AMX,
/// 2026-11-23). Operands whose splits would take more than a GiB stay in `f32`.
fn split_bf16_is_profitable(uses: &[Use], x: &Operands<'_>) -> bool {
    const PACK_COST: usize = 96;
    const READ_COST: usize = 32;
    const OVERHEAD: usize = 20_000_000;
    /// Of six bytes each.
    const MAX_ELEMENTS: usize = (1 << 30) / 6;
    let [a, b] = uses else { return false };
    let (lhs, rhs) = if a.lhs { (a, b) } else { (b, a) };
    let of_floats = |u: &Use| u.in_blocks && (x.dtypes)(u.operand) == DType::F32;
    if !lhs.lhs || rhs.lhs || !of_floats(lhs) || !of_floats(rhs) || !has_matrix_unit(DType::F32) {
        return false;
    }
    // Its elements, and how many rows (columns) of the result it has.
    let sizes = |u: &Use| {
        let dims = x.tensors.get(u.operand)?.dims;
        let across = dims.iter().rev().nth(usize::from(u.lhs != u.transposed))?;
        Some((num_elements(dims), *across as usize))
    };
    let (Some((lhs_size, m)), Some((rhs_size, n))) = (sizes(lhs), sizes(rhs)) else { return false };
    let cost = |u: &Use, size: usize| {
        let constant = x.constants.is_some_and(|constants| constants.has(u.operand));
        size.saturating_mul(if constant { READ_COST } else { PACK_COST })
    };
    let saved = Ord::max(lhs_size.saturating_mul(n), rhs_size.saturating_mul(m)).saturating_sub(OVERHEAD);
    saved > cost(lhs, lhs_size).saturating_add(cost(rhs, rhs_size)) && lhs_size.saturating_add(rhs_size) <= MAX_ELEMENTS
}

/// Makes room for the tiles of operands that several programs read. `None` where there is nothing to pack, and where
/// there is no memory for it: kernels then pack for themselves.
pub(in crate::kernel) fn room(uses: &Uses, instance: &Instance, x: &Operands<'_>) -> Option<Packs> {
    let avx512 = instance.level == Level::V4;
    let dtype = |u: &&Use| (x.dtypes)(u.operand);
    // Integers that nothing multiplies packed are multiplied where they are.
    let in_pairs = |u: &&Use| is_packed_in_pairs(dtype(u)) && u.paired && instance.level >= Level::V3;
    let split_bf16 = avx512 && split_bf16_is_profitable(&uses.packed, x);
    let form = |u: &&Use| {
        let by_unit = if dtype(u) == DType::F32 { split_bf16 } else { has_matrix_unit(dtype(u)) };
        if avx512 && u.in_blocks && by_unit { PackForm::Blocks } else { PackForm::Panels }
    };
    let is_packed =
        |u: &&Use| split_bf16 || u.is_profitable(x, form(u), avx512) && (dtype(u).is_float() || in_pairs(u));
    let shared: SmallVec<[&Use; 2]> = uses.packed.iter().filter(is_packed).collect();
    if shared.is_empty() {
        return None;
    }
    let mut packs = SmallVec::new();
    let mut constant_packs: SmallVec<[Placed; 2]> = SmallVec::new();
    for u in &shared {
        // What has values that its splits have not is multiplied as it is.
        let also = split_bf16 && u.is_profitable(x, PackForm::Panels, avx512);
        let forms = [form(u), PackForm::Panels];
        let forms = if also { &forms[..] } else { &forms[..1] };
        let (tensor, placed) = (x.tensors.get(u.operand)?, u.tiles(x, forms, avx512)?);
        let constants = x.constants.filter(|constants| constants.has(u.operand));
        // What is not kept is packed for this launch.
        let tile = u.tile_form(instance.level, dtype(u));
        match constants.and_then(|constants| constants.tiles((instance, tile), forms, placed, tensor)) {
            Some(tiles) => constant_packs.push(tiles),
            None => packs.push(placed),
        }
    }
    let room = place(&mut packs);
    if room.is_none() {
        packs.clear();
    }
    packs.extend(constant_packs);
    let of_rhs = |placed: &&Placed| shared.iter().any(|u| !u.lhs && u.operand == placed.operand);
    let rhs_bytes = packs.iter().filter(of_rhs).filter_map(Placed::bytes).fold(0, usize::saturating_add);
    let outer = shared.iter().find(|u| u.lhs == (rhs_bytes <= RHS_IN_CACHE));
    let mut order = [0, 1, 2];
    order.sort_by_key(|axis| outer.is_some_and(|u| u.axes >> axis & 1 == 0));
    let by_unit = shared.iter().any(|u| form(u) == PackForm::Blocks);
    Some(Packs { packs, order, by_unit, _room: room })
}

/// Memory of packs. States lie apart from tiles: what is never packed then touches no page of a block for tiles, and sizes of tiles
/// that are powers of two stay that.
struct Room {
    _states: allocator::Block,
    _tiles: allocator::Block,
}

/// Gives packs their room. `None` where there is none.
fn place(packs: &mut [Placed]) -> Option<Room> {
    let sizes = |placed: &Placed| placed.pack.rooms.map(|room| (placed.slots, room.slot_bytes));
    let rooms: SmallVec<[(usize, usize); 4]> = packs.iter().flat_map(sizes).filter(|(_, bytes)| *bytes > 0).collect();
    let count = rooms.iter().try_fold(0_usize, |states, (slots, _)| states.checked_add(*slots))?;
    let head = count.checked_mul(size_of::<AtomicU16>())?;
    let add = |bytes: usize, room: &(usize, usize)| bytes.checked_add(room.0.checked_mul(room.1)?);
    let bytes = rooms.iter().try_fold(0, add).filter(|bytes| *bytes > 0)?;
    let (states, tiles) = (Device::cpu().allocate(head).ok()?, Device::cpu().allocate(bytes).ok()?);
    // SAFETY: the block is of a state for each tile, which begins as 0.
    unsafe { std::ptr::write_bytes(states.as_ptr(), 0, head) };
    let (mut state, mut at) = (states.as_ptr().cast::<AtomicU16>(), tiles.as_ptr());
    for Placed { slots, pack, .. } in packs {
        for room in pack.rooms.iter_mut().filter(|room| room.slot_bytes > 0) {
            (room.states, room.room) = (state, at);
            state = state.wrapping_add(*slots);
            at = at.wrapping_add(*slots * room.slot_bytes);
        }
    }
    Some(Room { _states: states, _tiles: tiles })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_made_once_and_go_with_the_last_who_has_them() {
        let shared = SharedTiles::default();
        let constant = Tensor::full(1.0f32, [4, 4]).unwrap();
        let made = std::cell::Cell::new(0);
        let of = |operand: usize| {
            let (ptr, four): (_, SmallVec<[i64; 4]>) = (constant.data_ptr(), SmallVec::from_slice(&[4, 4]));
            let (dims, strides) = (four.clone(), four.clone());
            let dtype = DType::F32;
            let tile = TileForm {
                operand,
                level: Level::V3,
                dtype,
                lhs: false,
                transposed: false,
                tile: [4, 4],
                columns: 4,
                accumulator: dtype,
            };
            let key = TilesKey { tile, form: 0, ptr: ptr as usize, dims, strides };
            let pack = Pack { tile: [4, 4], tiles: [1, 1], depth: 4, rooms: [PackRoom::NONE; PackForm::COUNT] };
            let tiles = shared.find(key, || {
                made.set(made.get() + 1);
                let block = || Device::cpu().allocate(64).ok();
                let room = Room { _states: block()?, _tiles: block()? };
                let share = shared.take(64)?;
                let placed = Placed { operand, slots: 1, pack };
                let (dims, strides, constant) = (four.clone(), four.clone(), constant.clone());
                Some(Arc::new(Tiles { ptr, dims, strides, placed, _room: room, _share: share, _constant: constant }))
            });
            tiles.unwrap()
        };
        let (one, same, other) = (of(1), of(1), of(2));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(made.get(), 2);
        assert_eq!(shared.taken.load(Relaxed), 128);
        drop((one, same));
        assert_eq!(shared.taken.load(Relaxed), 64);
        assert_eq!(Arc::strong_count(&of(1)), 1);
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn tiles_are_not_kept_beyond_the_limit() {
        let shared = SharedTiles::with_limit(100);
        let one = shared.take(60);
        assert!(one.is_some() && shared.take(41).is_none() && shared.take(usize::MAX).is_none());
        let rest = shared.take(40);
        drop(one);
        assert!(rest.is_some() && shared.take(61).is_none() && shared.take(60).is_some());
    }

    /// A value that every instruction takes twice.
    fn doublings(count: usize) -> ir::Kernel {
        let lines: String = (0..count).map(|i| format!("%{}: i64 = add %{i}, %{i}\n", i + 1)).collect();
        let text = format!("kernel \"k\" program grid(1) () {{\n%0: i64 = program_id 1\n{lines}}}");
        ir::parse(&text).unwrap()
    }

    #[test]
    fn axes_take_steps_in_proportion_to_the_instructions() {
        let steps = |count: usize| {
            let kernel = doublings(count);
            steps::of(|| {
                let defs = DefUse::of(&kernel);
                let mut finder = Finder { defs, axes: HashMap::new(), dots: Vec::new(), other: Vec::new() };
                finder.block(&kernel.body);
                assert_eq!(finder.axes(Value(count as u32)), 0b010);
            })
        };
        // One for each instruction, and one for each value that it takes.
        assert_eq!(steps(60), 61 + 120);
    }
}
