//! What is decided of a kernel's tiles before any code is written: which products go to the tensor cores, how tiles
//! lie in registers for that, which tiles are copied from an operand straight to shared memory, and which loops do so ahead.

use std::collections::{HashMap, HashSet};

use super::home::SharedTile;
use super::layout::Layout;
use crate::dtype::DType;
use crate::kernel::ir::{Block, Inst, Kernel, Op, Type, Value};
use crate::kernel::table::Access;

/// A tile that lives in shared memory, where products read it: it has no registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// The tile.
    pub value: Value,
    /// Its index in [`Plan::homes`].
    pub index: usize,
    /// Where it begins in shared memory, in bytes; if a loop reads it ahead, from the beginning of a stage.
    pub offset: u32,
    /// Whether a loop reads it ahead.
    pub ahead: bool,
    /// How it lies there: as in the operand, so the other way round if it is loaded transposed.
    pub tile: SharedTile,
    pub transposed: bool,
}

/// A loop that reads tiles ahead.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// The tiles, as indices of homes.
    pub homes: Vec<usize>,
    /// The instructions of the body that ask for them and that compute where they are, in order, by index.
    pub insts: Vec<usize>,
    /// Where the first stage begins in shared memory, in bytes.
    pub offset: u32,
    /// Bytes of a stage: the tiles of one step.
    pub stage_bytes: u32,
    /// How many stages there are.
    pub stages: u32,
}

/// How much shared memory a plan may use for speed. Less of it is tried where the target has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// Products stage their factors while they run.
    Least,
    /// Tiles live in shared memory.
    Homes,
    /// Loops read one step ahead.
    TwoStages,
    /// Loops read several steps ahead.
    Most,
}

impl Effort {
    /// Those to try, in order.
    pub const ALL: [Effort; 4] = [Effort::Most, Effort::TwoStages, Effort::Homes, Effort::Least];
}

/// Bytes that the stages of a loop take if there are more than two: two blocks are to fit on a processor.
const STAGES_BYTES: u32 = 64 << 10;

/// The decisions for a kernel.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many operands the kernel has.
    pub operands: usize,
    pub homes: Vec<Home>,
    by_value: HashMap<Value, usize>,
    /// Loops that read ahead, by their index.
    loops: HashMap<Value, Ahead>,
    layouts: HashMap<(u32, u32), Layout>,
    /// The dtype of the factors of the products that tensor cores make, by the product.
    products: HashMap<Value, DType>,
    /// Bytes of shared memory that homes take.
    pub shared_bytes: u32,
}

/// An instruction that defines a value, and what takes that value.
#[derive(Default)]
struct Uses<'k> {
    makers: HashMap<Value, &'k Inst>,
    /// The products of which a value is a factor.
    factor_of: HashMap<Value, Vec<Value>>,
    /// Values with other uses.
    others: HashMap<Value, u32>,
    products: Vec<&'k Inst>,
    loads: Vec<&'k Inst>,
}

impl<'k> Uses<'k> {
    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
            self.makers.extend(inst.results.iter().map(|&v| (v, inst)));
            if let Op::Dot(a, b, acc) = &inst.op {
                self.products.push(inst);
                [a, b].into_iter().for_each(|&v| self.factor_of.entry(v).or_default().push(inst.results[0]));
                *self.others.entry(*acc).or_default() += 1;
            } else {
                inst.op.uses().into_iter().for_each(|v| *self.others.entry(v).or_default() += 1);
            }
            if let Op::TileLoad { .. } = &inst.op {
                self.loads.push(inst);
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.add_block(inner));
        }
        block.yields.iter().for_each(|&v| *self.others.entry(v).or_default() += 1);
    }

    /// The half dtype of which all elements of a tile are values.
    fn half(&self, kernel: &Kernel, value: Value) -> Option<DType> {
        let op = &self.makers.get(&value)?.op;
        let dtype = if let Op::TileLoad { operand, .. } = op {
            kernel.operands[*operand as usize].dtype
        } else if let Op::TileRound(dtype, _) = op {
            *dtype
        } else if let Op::TileCast(from) = op
            && kernel.ty(*from) == kernel.ty(value)
        {
            self.half(kernel, *from)?
        } else {
            return None;
        };
        matches!(dtype, DType::F16 | DType::BF16).then_some(dtype)
    }
}

fn shape(kernel: &Kernel, tile: Value) -> (u32, u32) {
    match kernel.ty(tile) {
        Type::Tile(_, r, c) | Type::TileVar(_, r, c) => (r, c),
        Type::Scalar(_) | Type::Var(_) => (1, 1),
    }
}

impl Plan {
    pub fn new(kernel: &Kernel, effort: Effort) -> Plan {
        let mut uses = Uses::default();
        uses.add_block(&kernel.body);
        let mut plan = Plan {
            operands: kernel.operands.len(),
            homes: Vec::new(),
            by_value: HashMap::new(),
            loops: HashMap::new(),
            layouts: HashMap::new(),
            products: HashMap::new(),
            shared_bytes: 0,
        };
        for inst in &uses.products {
            let Op::Dot(a, b, _) = inst.op else { continue };
            let result = inst.results[0];
            let ((rows, columns), (_, inner)) = (shape(kernel, result), shape(kernel, a));
            let (Some(left), Some(right)) = (uses.half(kernel, a), uses.half(kernel, b)) else { continue };
            if let Some(layout) = Layout::fragments(rows, columns)
                && left == right
                && inner > 0
                && inner.is_multiple_of(16)
            {
                plan.layouts.insert((rows, columns), layout);
                plan.products.insert(result, left);
            }
        }
        for inst in uses.loads.iter().filter(|_| effort >= Effort::Homes) {
            let Op::TileLoad { operand, transpose, .. } = &inst.op else { continue };
            let (value, operand) = (inst.results[0], &kernel.operands[*operand as usize]);
            let Some(products) = uses.factor_of.get(&value) else { continue };
            // What a kernel writes may have changed between the load and the product.
            let lives = operand.access == Access::In
                && !uses.others.contains_key(&value)
                && products.iter().all(|product| plan.products.contains_key(product));
            if lives {
                let (r, c) = shape(kernel, value);
                let (rows, columns) = if *transpose { (c, r) } else { (r, c) };
                let tile = SharedTile { rows, columns, size: operand.dtype.size_in_bytes() as u32 };
                let index = plan.homes.len();
                plan.by_value.insert(value, index);
                plan.homes.push(Home { value, index, offset: 0, ahead: false, tile, transposed: *transpose });
            }
        }
        if effort >= Effort::TwoStages {
            plan.read_ahead(&kernel.body, effort);
        }
        for home in plan.homes.iter_mut().filter(|home| !home.ahead) {
            home.offset = plan.shared_bytes;
            plan.shared_bytes += home.tile.bytes();
        }
        plan
    }

    /// Finds the loops that read ahead: the outermost ones, since those inside of them share their shared memory.
    fn read_ahead(&mut self, block: &Block, effort: Effort) {
        for inst in &block.insts {
            if let Op::For { index, body, .. } = &inst.op
                && let Some(ahead) = self.ahead_of(body, effort)
            {
                self.shared_bytes += ahead.stages * ahead.stage_bytes;
                self.loops.insert(*index, ahead);
                continue;
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.read_ahead(inner, effort));
        }
    }

    /// What a loop with that body reads ahead: the tiles whose places are computed from the loop's index and from what
    /// the loop does not change.
    fn ahead_of(&mut self, body: &Block, effort: Effort) -> Option<Ahead> {
        let mut assigned = HashSet::new();
        assigned_in(body, &mut assigned);
        let mut unknown: HashSet<Value> = HashSet::new();
        let mut homes = Vec::new();
        let mut needed: HashSet<Value> = HashSet::new();
        for inst in &body.insts {
            let known = inst.op.uses().iter().all(|v| !unknown.contains(v));
            match inst.results.first().and_then(|v| self.by_value.get(v)) {
                Some(&home) if known => {
                    homes.push(home);
                    needed.insert(self.homes[home].value);
                }
                _ if known && is_pure(&inst.op, &assigned) => {}
                _ => unknown.extend(&inst.results),
            }
        }
        let mut insts = Vec::new();
        for (i, inst) in body.insts.iter().enumerate().rev() {
            if inst.results.iter().any(|v| needed.contains(v)) {
                insts.push(i);
                needed.extend(inst.op.uses());
            }
        }
        insts.reverse();
        let stage_bytes: u32 = homes.iter().map(|&home| self.homes[home].tile.bytes()).sum();
        if homes.is_empty() {
            return None;
        }
        let stages = if effort >= Effort::Most { (STAGES_BYTES / stage_bytes).clamp(2, 4) } else { 2 };
        let mut offset = 0;
        for &home in &homes {
            let home = &mut self.homes[home];
            (home.offset, home.ahead) = (offset, true);
            offset += home.tile.bytes();
        }
        Some(Ahead { homes, insts, offset: self.shared_bytes, stage_bytes, stages })
    }

    /// How tiles of a shape lie in registers.
    pub fn layout(&self, rows: u32, columns: u32) -> Layout {
        self.layouts.get(&(rows, columns)).copied().unwrap_or_else(|| Layout::cyclic(rows, columns))
    }

    /// Where a tile lives, if in shared memory.
    pub fn home(&self, tile: Value) -> Option<Home> {
        self.by_value.get(&tile).map(|&index| self.homes[index])
    }

    /// What the loop with that index reads ahead.
    pub fn ahead(&self, index: Value) -> Option<&Ahead> {
        self.loops.get(&index)
    }

    /// The dtype of a product's factors, if a tensor core makes it.
    pub fn tensor_core(&self, product: Value) -> Option<DType> {
        self.products.get(&product).copied()
    }
}

/// The variables that code assigns.
fn assigned_in(block: &Block, found: &mut HashSet<Value>) {
    for inst in &block.insts {
        if let Op::Set(variable, _) = inst.op {
            found.insert(variable);
        }
        inst.op.blocks().into_iter().for_each(|(inner, _)| assigned_in(inner, found));
    }
}

/// Whether an instruction gives the same whenever it runs with the same values, and does nothing else.
fn is_pure(op: &Op, assigned: &HashSet<Value>) -> bool {
    match op {
        Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => true,
        Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => true,
        Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) => true,
        Op::Get(variable) => !assigned.contains(variable),
        Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Set(..) => false,
        Op::If { .. } | Op::While { .. } | Op::For { .. } => false,
        Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } => false,
        Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileMap { .. } | Op::TileReduce(..) => false,
        Op::Dot(..) | Op::TileCast(_) | Op::TileRound(..) => false,
    }
}
