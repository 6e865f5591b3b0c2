//! Which operands of a kernel are packed, and the room for their tiles.
//!
//! A kernel says nothing about packing. That an operand is read by `dot` alone, as tiles of one shape, follows from its
//! IR, and so do the axes of the grid along which programs read the same tiles: where there are several such programs,
//! packing once serves them all. The IR is recorded once for each compiled form, the first time that it is launched.

use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::cpu::tile_bytes;
use super::ir::{self, Block, Inst, Op, Type, Value};
use super::table::{Instance, KernelDef, Level, Pack, PackForm, RawTensor};
use super::{TensorArg, machine};
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
    /// Whether every `dot` that reads the operand takes both its operands from memory.
    paired: bool,
}

/// The uses of a kernel's operands.
pub(super) struct Uses(SmallVec<[Use; 2]>);

/// The uses in a compiled form of a kernel.
pub(super) fn uses(def: &'static KernelDef, instance: &'static Instance, record: impl FnOnce() -> String) -> Arc<Uses> {
    static KNOWN: Mutex<Option<HashMap<usize, Arc<Uses>>>> = Mutex::new(None);
    let key = std::ptr::from_ref(instance) as usize;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let find = || ir::parse(&record()).map_or(Uses(SmallVec::new()), |kernel| find(&kernel, def));
    known.entry(key).or_insert_with(|| Arc::new(find())).clone()
}

/// Finds the operands that only `dot` reads.
fn find(kernel: &ir::Kernel, def: &KernelDef) -> Uses {
    let mut finder = Finder { made: HashMap::new(), dots: Vec::new(), other: Vec::new() };
    finder.block(&kernel.body);
    let mut found: SmallVec<[Use; 2]> = SmallVec::new();
    let mut refused = finder.other.clone();
    for (value, left, paired) in &finder.dots {
        let Some(Op::TileLoad { operand, batch, origin, transpose }) = finder.op(*value) else { continue };
        let Type::Tile(_, rows, columns) = kernel.ty(*value) else { continue };
        let (rows, columns) = (rows as usize, columns as usize);
        let axes = batch.iter().chain(origin).fold(0, |axes, v| axes | finder.axes(*v));
        let new = Use {
            operand: *operand as usize,
            left: *left,
            tile: if *transpose { [columns, rows] } else { [rows, columns] },
            transposed: *transpose,
            axes,
            paired: *paired,
        };
        match found.iter().find(|u| u.operand == new.operand) {
            Some(old) if *old != new => refused.push(new.operand),
            Some(_) => {}
            None => found.push(new),
        }
    }
    let written = |operand: usize| def.operands.as_slice()[operand].access != super::table::Access::In;
    found.retain(|u| !refused.contains(&u.operand) && !written(u.operand));
    Uses(found)
}

/// Walks a kernel's IR.
struct Finder<'a> {
    /// What made each value; of the index of a loop, the loop.
    made: HashMap<Value, &'a Inst>,
    /// The operands of each `dot`: the value, whether it is the left one, and whether both come from memory.
    dots: Vec<(Value, bool, bool)>,
    /// Operands that something else reads as well.
    other: Vec<usize>,
}

impl<'a> Finder<'a> {
    fn block(&mut self, block: &'a Block) {
        for inst in &block.insts {
            self.made.extend(inst.results.iter().map(|v| (*v, inst)));
            if let Op::For { index, .. } = &inst.op {
                self.made.insert(*index, inst);
            }
            match &inst.op {
                Op::Dot(a, b, acc) => {
                    let paired = self.loads(*a).is_some() && self.loads(*b).is_some();
                    self.dots.extend([(*a, true, paired), (*b, false, paired)]);
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
        self.made.get(&value).map(|inst| &inst.op)
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

/// The room for one launch's packed tiles.
pub(super) struct Packs {
    packs: SmallVec<[(usize, Pack); 2]>,
    /// The order of the grid's axes, slowest first, in which consecutive programs read the same right operand.
    pub order: [u32; 3],
    _room: allocator::Block,
}

impl Packs {
    /// Tells the operands where their packed tiles are.
    pub fn give(&self, raw: &mut [RawTensor]) {
        for (operand, pack) in &self.packs {
            if let Some(raw) = raw.get_mut(*operand) {
                raw.pack = pack;
            }
        }
    }
}

/// Makes room for the tiles of operands that at least two programs read. `None` where there is nothing to pack, and
/// where there is no memory for it: kernels then pack for themselves.
pub(super) fn room(
    uses: &Uses,
    level: Level,
    dtype: impl Fn(usize) -> DType,
    tensors: &[TensorArg<'_>],
    grid: [i64; 3],
) -> Option<Packs> {
    let avx512 = level == Level::V4;
    if level < Level::V3 || uses.0.is_empty() {
        return None;
    }
    let readers =
        |u: &Use| (0..3).filter(|axis| u.axes >> axis & 1 == 0).map(|axis| grid[axis].max(1)).product::<i64>();
    // What lies as the loops walk it, in whole cache lines, is worth packing for several readers only.
    let worth = |u: &&Use| {
        let size = dtype(u.operand).size_in_bytes();
        let in_lines = |t: &TensorArg<'_>| match *t.strides {
            [.., row, 1] => u.left || row * size as i64 % 64 == 0,
            _ => false,
        };
        let in_place = !u.transposed && size >= 4 && tensors.get(u.operand).is_some_and(in_lines);
        readers(u) > if in_place { 2 } else { 1 }
    };
    let shared: SmallVec<[&Use; 2]> = uses.0.iter().filter(worth).collect();
    // AMX takes both operands packed.
    let halves = shared.len() == 2 && shared.iter().all(|u| u.paired && dtype(u.operand) == DType::BF16);
    let whole = shared.iter().all(|u| u.tile.iter().all(|n| n % 32 == 0));
    let form = if halves && whole && avx512 && machine::amx() { PackForm::Amx } else { PackForm::Panels };
    let mut packs: SmallVec<[(usize, Pack); 2]> = SmallVec::new();
    let (mut states, mut bytes) = (0, 0);
    for u in &shared {
        let tensor = tensors.get(u.operand)?;
        let [.., rows, columns] = *tensor.dims else { return None };
        let count = |n: i64, by: usize| n.div_euclid(by as i64) + i64::from(n.rem_euclid(by as i64) != 0);
        let tiles = [count(rows, u.tile[0]), count(columns, u.tile[1])];
        let matrices: i64 = tensor.dims[..tensor.dims.len() - 2].iter().product();
        let slots = usize::try_from(matrices * tiles[0] * tiles[1]).ok()?;
        // The axis of the depth: columns of the left operand, rows of the right one, or the other way round.
        let depth = u.tile[usize::from(u.left != u.transposed)];
        let across = u.tile[usize::from(u.left == u.transposed)];
        let size = if dtype(u.operand) == DType::F64 { 8 } else { 4 };
        let slot_bytes = tile_bytes(form, avx512, u.left, across, depth, size);
        let tile = u.tile.map(|n| n as i64);
        let pack = Pack { form, slot_bytes, tile, tiles, room: std::ptr::null_mut(), states: std::ptr::null() };
        packs.push((u.operand, pack));
        states += slots;
        bytes += slots.checked_mul(slot_bytes)?;
    }
    if bytes == 0 {
        return None;
    }
    let head = states.next_multiple_of(64);
    let block = Device::cpu().allocate(head.checked_add(bytes)?).ok()?;
    // SAFETY: the block has room for a state of each tile, which begins as 0, and for the tiles behind them.
    unsafe { std::ptr::write_bytes(block.as_ptr(), 0, head) };
    let (mut state, mut place) = (0, head);
    for ((_, pack), u) in packs.iter_mut().zip(&shared) {
        let tensor = tensors.get(u.operand)?;
        let matrices: i64 = tensor.dims[..tensor.dims.len() - 2].iter().product();
        let slots = (matrices * pack.tiles[0] * pack.tiles[1]) as usize;
        pack.room = block.as_ptr().wrapping_add(place);
        pack.states = block.as_ptr().wrapping_add(state).cast::<AtomicU8>();
        state += slots;
        place += slots * pack.slot_bytes;
    }
    let right = shared.iter().find(|u| !u.left).map_or(0b111, |u| u.axes);
    let mut order = [0, 1, 2];
    order.sort_by_key(|axis| right >> axis & 1 == 0);
    Some(Packs { packs, order, _room: block })
}
