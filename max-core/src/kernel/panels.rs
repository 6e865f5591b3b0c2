//! Which operands of a kernel are packed, and the room for their tiles.
//!
//! A kernel says nothing about packing. That an operand is read by `dot` alone, as tiles of one shape, follows from its
//! IR, and so do the axes of the grid along which programs read the same tiles: where there are several such programs,
//! packing once serves them all. Constants are packed once for all launches. The IR is recorded once for each compiled form, the first time that it is bound.

use std::collections::HashMap;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::TensorArg;
use super::cpu::{LINE, fits, has_unit, is_packed_as_bf16, is_packed_in_pairs, reads_in_place, tile_bytes};
use super::ir::{self, Block, Inst, Makers, Op, Type, Value};
use super::table::{Instance, KernelDef, Level, Pack, PackForm, PackRoom, RawTensor};
use crate::driver::{Device, allocator};
use crate::dtype::DType;

/// How a kernel's `dot`s read an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    operand: usize,
    left: bool,
    /// Rows and columns of the tiles, as they lie in the operand.
    tile: [usize; 2],
    /// Whether the product takes their transpose.
    transposed: bool,
    /// The grid axes that decide which tiles a program reads, a bit each.
    axes: u8,
    /// The columns of the product, on which the form of packed tiles depends.
    columns: usize,
    /// Whether every `dot` that reads the operand takes both its operands from memory.
    paired: bool,
    /// Whether every `dot` that reads the operand can be one of blocks: of bytes or of `f32` in memory, or of values of `bf16`,
    /// however the left ones came about.
    in_blocks: bool,
}

/// The uses of a kernel's operands.
#[derive(Default)]
pub(super) struct Uses(SmallVec<[Use; 2]>);

/// The uses in a compiled form of a kernel.
pub(super) fn uses(def: &'static KernelDef, instance: &'static Instance, record: impl FnOnce() -> String) -> Arc<Uses> {
    static KNOWN: Mutex<Option<HashMap<usize, Arc<Uses>>>> = Mutex::new(None);
    let key = std::ptr::from_ref(instance) as usize;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let find = || ir::parse(&record()).map_or_else(|_| Uses::default(), |kernel| find(&kernel, def));
    known.entry(key).or_insert_with(|| Arc::new(find())).clone()
}

/// Finds the operands that only `dot` reads.
fn find(kernel: &ir::Kernel, def: &KernelDef) -> Uses {
    let makers = Makers::of(kernel);
    let mut finder = Finder { makers, loops: HashMap::new(), dots: Vec::new(), other: Vec::new() };
    finder.block(&kernel.body);
    let mut found: SmallVec<[Use; 2]> = SmallVec::new();
    let mut refused = finder.other.clone();
    for (value, left, pair, sum) in &finder.dots {
        let Type::Tile(added, sum_rows, sums) = kernel.ty(*sum) else { continue };
        let Some(Op::TileLoad { operand, batch, origin, transpose }) = finder.op(*value) else { continue };
        let Type::Tile(_, rows, columns) = kernel.ty(*value) else { continue };
        let paired = pair.iter().all(|v| finder.loads(*v).is_some());
        let all = |is: fn(DType) -> bool| pair.iter().all(|v| finder.makers.dtype_of_elements(*v).is_some_and(is));
        let of_floats = all(|dtype| dtype == DType::F32) && added == DType::F32;
        let line = if all(is_packed_as_bf16) || of_floats { 32 } else { 64 };
        let of_blocks = all(is_packed_as_bf16) || paired && (all(is_packed_in_pairs) || of_floats);
        let is_whole = [(sum_rows, 32), (sums, 32), (if *left { columns } else { rows }, line)];
        let in_blocks = of_blocks && is_whole.iter().all(|(n, unit)| n.is_multiple_of(*unit));
        let (rows, columns) = (rows as usize, columns as usize);
        let axes = batch.iter().chain(origin).fold(0, |axes, v| axes | finder.axes(*v));
        let new = Use {
            operand: *operand as usize,
            left: *left,
            tile: if *transpose { [columns, rows] } else { [rows, columns] },
            transposed: *transpose,
            axes,
            columns: sums as usize,
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
    let written = |operand: usize| def.operands.as_slice()[operand].access != super::table::Access::In;
    found.retain(|u| !refused.contains(&u.operand) && !written(u.operand));
    Uses(found)
}

/// Walks a kernel's IR.
struct Finder<'a> {
    makers: Makers<'a>,
    /// The loop whose index a value is.
    loops: HashMap<Value, &'a Inst>,
    /// The operands of each `dot`: the value, whether it is the left one, both, and what they are added to.
    dots: Vec<(Value, bool, [Value; 2], Value)>,
    /// Operands that something else reads as well.
    other: Vec<usize>,
}

impl<'a> Finder<'a> {
    fn block(&mut self, block: &'a Block) {
        for inst in &block.insts {
            if let Op::For { index, .. } = &inst.op {
                self.loops.insert(*index, inst);
            }
            match &inst.op {
                Op::Dot(a, b, acc) => {
                    self.dots.extend([(*a, true, [*a, *b], *acc), (*b, false, [*a, *b], *acc)]);
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
        self.makers.get(value).or_else(|| self.loops.get(&value).copied()).map(|inst| &inst.op)
    }

    /// The operand whose tile a value is.
    fn loads(&self, value: Value) -> Option<usize> {
        match self.op(value) {
            Some(Op::TileLoad { operand, .. }) => Some(*operand as usize),
            _ => None,
        }
    }

    /// The grid axes that a value depends on.
    fn axes(&self, value: Value) -> u8 {
        match self.op(value) {
            Some(Op::ProgramId(axis)) => 1 << axis,
            // Where a loop ends decides which tiles are read, not which of them are the same.
            Some(Op::For { lo, step, .. }) => self.axes(*lo) | self.axes(*step),
            Some(Op::Const(_) | Op::Param(_) | Op::NumPrograms(_) | Op::Dim { .. }) => 0,
            Some(op @ (Op::Unary(..) | Op::Binary(..) | Op::Select(..) | Op::Cast(_) | Op::Cmp(..))) => {
                op.uses().into_iter().fold(0, |axes, v| axes | self.axes(v))
            }
            // Not known: as if every program read other tiles.
            _ => 0b111,
        }
    }
}

/// The packed tiles of one launch.
pub(super) struct Packs {
    packs: SmallVec<[Placed; 2]>,
    /// The order of the grid's axes, slowest first, in which consecutive programs read the same right operand.
    pub order: [u32; 3],
    _room: Option<allocator::Block>,
}

/// An operand's pack, and how many tiles it has.
#[derive(Clone, Copy)]
struct Placed {
    operand: usize,
    slots: usize,
    pack: Pack,
}

impl Packs {
    /// Tells the operands where their packed tiles are.
    pub fn give(&self, raw: &mut [RawTensor]) {
        for placed in &self.packs {
            if let Some(raw) = raw.get_mut(placed.operand) {
                raw.pack = &placed.pack;
            }
        }
    }
}

/// The packed tiles of a kernel's constant operands, kept between launches. Each is packed by whoever needs it first.
pub(crate) struct Constants {
    /// Which operands never change.
    constant: SmallVec<[bool; 8]>,
    /// By compiled form, operand and form of the tiles.
    tiles: Box<[OnceLock<Option<Box<Tiles>>>]>,
}

/// The packed tiles of one constant operand.
struct Tiles {
    ptr: *const u8,
    dims: SmallVec<[i64; 4]>,
    strides: SmallVec<[i64; 4]>,
    placed: Placed,
    _room: allocator::Block,
}

// SAFETY: tiles are written by whoever claims them and read once they are said to be packed, as in a launch on several
// threads; the operand itself is only compared.
unsafe impl Send for Tiles {}
// SAFETY: as above.
unsafe impl Sync for Tiles {}

impl Constants {
    /// For operands of which those may be packed that never change; `None` where there are none.
    pub(super) fn new<'a>(
        constant: impl IntoIterator<Item = bool>,
        forms: usize,
        mut uses: impl Iterator<Item = &'a Uses>,
    ) -> Option<Constants> {
        let constant: SmallVec<[bool; 8]> = constant.into_iter().collect();
        let is_constant = |u: &Use| constant.get(u.operand) == Some(&true);
        uses.any(|uses| uses.0.iter().any(is_constant)).then(|| {
            let tiles = (0..forms * constant.len() * PackForm::COUNT).map(|_| OnceLock::new()).collect();
            Constants { constant, tiles }
        })
    }

    fn has(&self, operand: usize) -> bool {
        self.constant.get(operand) == Some(&true)
    }

    /// The tiles of an operand in some forms, with the room that they have had since they were first asked for. `None` where
    /// there is no memory, and for another part of the constant than then.
    fn tiles(&self, variant: u32, forms: &[PackForm], placed: Placed, tensor: &TensorArg<'_>) -> Option<Placed> {
        let form = forms.first().map_or(0, |form| *form as usize);
        let index = (variant as usize * self.constant.len() + placed.operand) * PackForm::COUNT + form;
        let make = || {
            let mut packs = [placed];
            let room = place(&mut packs)?;
            let (dims, strides) = (tensor.dims.into(), tensor.strides.into());
            Some(Box::new(Tiles { ptr: tensor.ptr, dims, strides, placed: packs[0], _room: room }))
        };
        let tiles = self.tiles.get(index)?.get_or_init(make).as_deref()?;
        let same = tiles.ptr == tensor.ptr && *tiles.dims == *tensor.dims && *tiles.strides == *tensor.strides;
        same.then_some(tiles.placed)
    }
}

/// What a launch knows of its operands.
pub(super) struct Operands<'a> {
    pub tensors: &'a [TensorArg<'a>],
    pub dtypes: &'a dyn Fn(usize) -> DType,
    pub grid: [i64; 3],
    pub constants: Option<&'a Constants>,
}

impl Use {
    /// Whether packing the operand saves more than it costs: that depends on how many programs read the same tiles.
    fn pays(&self, x: &Operands<'_>, form: PackForm, avx512: bool) -> bool {
        let readers = (0..3).filter(|axis| self.axes >> axis & 1 == 0).map(|axis| x.grid[axis].max(1)).product::<i64>();
        let is_half = (x.dtypes)(self.operand).size_in_bytes() == 2;
        let constant = x.constants.is_some_and(|constants| constants.has(self.operand));
        match self.serves_in_place(x, form, avx512) {
            // Packing a constant costs nothing in the long run, but a packed half takes twice the memory to read.
            _ if constant => readers >= if is_half { 2 } else { 1 },
            true => !self.left && readers >= 3,
            false => readers >= 2,
        }
    }

    /// Whether the operand is multiplied where it lies about as well as packed.
    fn serves_in_place(&self, x: &Operands<'_>, form: PackForm, avx512: bool) -> bool {
        // A single tile is worth packing for all columns (`linear_bf16_64x4096x4096` is 10 % slower without).
        const MANY: i64 = 8;
        let Some(t) = x.tensors.get(self.operand).filter(|_| !self.transposed) else { return false };
        let dtype = (x.dtypes)(self.operand);
        let (size, tall) = (dtype.size_in_bytes(), self.tile[0] as i64);
        match (form, t.dims, t.strides) {
            // Left blocks that are whole, all but maybe those of the last one of many tiles.
            (PackForm::Blocks, [.., m, depth], _) if self.left => {
                let [rows, line] = [32, (64 / size) as i64];
                let is_whole = depth % line == 0 && (m % rows == 0 && *m > tall || *m >= MANY * tall);
                is_whole && reads_in_place(dtype, t.ptr, t.strides, self.tile[0])
            }
            // Rows of what is multiplied as it is; those of a right operand have to stay in the cache.
            (PackForm::Panels, [.., depth, _], [.., row, 1]) if size >= 4 => {
                let depth = Ord::clamp(*depth, 0, tall) as usize;
                self.left || fits(avx512, depth, row.unsigned_abs() as usize * size)
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
        let slots = usize::try_from(matrices.iter().product::<i64>() * tiles[0] * tiles[1]).ok()?;
        // The axis of the depth: columns of the left operand, rows of the right one, or the other way round.
        let axis = usize::from(self.left != self.transposed);
        let all = usize::try_from([*rows, *columns][axis]).ok()?.checked_next_multiple_of(LINE)?;
        let depth = Ord::min(self.tile[axis], all);
        let dtype = (x.dtypes)(self.operand);
        let mut pack = Pack { tile, tiles, depth, rooms: [PackRoom::NONE; PackForm::COUNT] };
        for form in forms {
            let depth = if *form == PackForm::Blocks { depth } else { self.tile[axis] };
            pack.rooms[*form as usize].slot_bytes =
                tile_bytes(*form, avx512, self.left, [self.tile[1 - axis], self.columns], depth, dtype);
        }
        Some(Placed { operand: self.operand, slots, pack })
    }
}

/// Whether the operands are those of one product of `f32` for which packing their parts, for AMX, costs less than it saves: about
/// 0.5 ns for each element, or reading half as much again of a constant that is packed once, and 5 ps for each multiplication,
/// of which the first serve nothing: small operands are in the cache, where vectors are at their best (Xeon with AMX, 2026-11-23).
/// Operands whose parts would take up more than a GiB are multiplied without.
fn pays_in_parts(uses: &[Use], x: &Operands<'_>) -> bool {
    const PACKED: usize = 96;
    const READ: usize = 32;
    const FIRST: usize = 20_000_000;
    /// Of six bytes each.
    const MOST: usize = (1 << 30) / 6;
    let [a, b] = uses else { return false };
    let (left, right) = if a.left { (a, b) } else { (b, a) };
    let of_floats = |u: &Use| u.in_blocks && (x.dtypes)(u.operand) == DType::F32;
    if !left.left || right.left || !of_floats(left) || !of_floats(right) || !has_unit(DType::F32) {
        return false;
    }
    // Its elements, and how many rows (columns) of the result it has.
    let sizes = |u: &Use| {
        let dims = x.tensors.get(u.operand)?.dims;
        let across = dims.iter().rev().nth(usize::from(u.left != u.transposed))?;
        Some((dims.iter().product::<i64>() as usize, *across as usize))
    };
    let (Some((left_size, m)), Some((right_size, n))) = (sizes(left), sizes(right)) else { return false };
    let cost = |u: &Use, size: usize| {
        let constant = x.constants.is_some_and(|constants| constants.has(u.operand));
        size.saturating_mul(if constant { READ } else { PACKED })
    };
    let saved = Ord::max(left_size.saturating_mul(n), right_size.saturating_mul(m)).saturating_sub(FIRST);
    saved > cost(left, left_size).saturating_add(cost(right, right_size))
        && left_size.saturating_add(right_size) <= MOST
}

/// Makes room for the tiles of operands that several programs read. `None` where there is nothing to pack, and where
/// there is no memory for it: kernels then pack for themselves.
pub(super) fn room(uses: &Uses, instance: &Instance, x: &Operands<'_>) -> Option<Packs> {
    let avx512 = instance.level == Level::V4;
    let dtype = |u: &&Use| (x.dtypes)(u.operand);
    // Integers that nothing multiplies packed are multiplied where they are.
    let in_pairs = |u: &&Use| is_packed_in_pairs(dtype(u)) && u.paired && instance.level >= Level::V3;
    let parts = avx512 && pays_in_parts(&uses.0, x);
    let form = |u: &&Use| {
        let by_unit = if dtype(u) == DType::F32 { parts } else { has_unit(dtype(u)) };
        if avx512 && u.in_blocks && by_unit { PackForm::Blocks } else { PackForm::Panels }
    };
    let is_packed = |u: &&Use| parts || u.pays(x, form(u), avx512) && (dtype(u).is_float() || in_pairs(u));
    let shared: SmallVec<[&Use; 2]> = uses.0.iter().filter(is_packed).collect();
    if shared.is_empty() {
        return None;
    }
    let mut packs = SmallVec::new();
    let mut kept: SmallVec<[Placed; 2]> = SmallVec::new();
    for u in &shared {
        // What has values that its parts have not is multiplied as it is.
        let also = parts && u.pays(x, PackForm::Panels, avx512);
        let forms = [form(u), PackForm::Panels];
        let forms = if also { &forms[..] } else { &forms[..1] };
        let (tensor, placed) = (x.tensors.get(u.operand)?, u.tiles(x, forms, avx512)?);
        match x.constants.filter(|constants| constants.has(u.operand)) {
            Some(constants) => kept.extend(constants.tiles(instance.variant, forms, placed, tensor)),
            None => packs.push(placed),
        }
    }
    let room = place(&mut packs);
    if room.is_none() {
        packs.clear();
    }
    packs.extend(kept);
    let right = shared.iter().find(|u| !u.left).map_or(0b111, |u| u.axes);
    let mut order = [0, 1, 2];
    order.sort_by_key(|axis| right >> axis & 1 == 0);
    Some(Packs { packs, order, _room: room })
}

/// Gives packs their room: the states of all tiles, then the tiles. `None` where there are none.
fn place(packs: &mut [Placed]) -> Option<allocator::Block> {
    let sizes = |placed: &Placed| placed.pack.rooms.map(|room| (placed.slots, room.slot_bytes));
    let rooms: SmallVec<[(usize, usize); 4]> = packs.iter().flat_map(sizes).filter(|(_, bytes)| *bytes > 0).collect();
    let states = rooms.iter().map(|(slots, _)| *slots).sum::<usize>();
    let head = states.checked_mul(size_of::<AtomicU16>())?.next_multiple_of(64);
    let add = |bytes: usize, room: &(usize, usize)| bytes.checked_add(room.0.checked_mul(room.1)?);
    let bytes = rooms.iter().try_fold(head, add).filter(|bytes| *bytes > head)?;
    let block = Device::cpu().allocate(bytes).ok()?;
    // SAFETY: the block begins with a state of each tile, which begins as 0.
    unsafe { std::ptr::write_bytes(block.as_ptr(), 0, head) };
    let (mut state, mut at) = (block.as_ptr().cast::<AtomicU16>(), block.as_ptr().wrapping_add(head));
    for Placed { slots, pack, .. } in packs {
        for room in pack.rooms.iter_mut().filter(|room| room.slot_bytes > 0) {
            (room.states, room.room) = (state, at);
            state = state.wrapping_add(*slots);
            at = at.wrapping_add(*slots * room.slot_bytes);
        }
    }
    Some(block)
}
