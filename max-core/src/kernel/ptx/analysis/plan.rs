//! The plan of a kernel, made before any code is written: tensor cores, layouts, shared memory, pipelining.
//!
//! It decides which `dot`s run on tensor cores, the register layouts that this implies, which tiles are copied straight
//! to shared memory, which loops are pipelined, and which rows are cached.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::memory::shared_tile::{SWIZZLE_ATOM, SmemLayout, VECTOR_BYTES};
use super::super::memory::tma::{BARRIER, fits_tma, map_of};
use super::super::rows::row_cache::RowCache;
use super::super::warp_specialization::Producer;
use super::super::{BLOCK_SIZE, FLOAT8_MMA, Float32MatmulPrecision, Options, Slot};
use super::layout::{Kind, Layout};
use super::leader_loads::leader_loads;
use super::sliced_k::SlicedK;
use crate::dtype::DType;
use crate::kernel::abi::Access;
use crate::kernel::ir::{Block, DefUse, Inst, Kernel, Op, Type, Value, assigned_in};

/// A tile in shared memory, where `dot`s read it: it has no registers. Its elements are those that tensor cores read,
/// or floats that threads multiply.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::ptx) struct SmemTile {
    /// The tile.
    pub value: Value,
    /// Its index in [`Plan::smem_tiles`].
    pub index: usize,
    /// The operand that it is loaded from, and how many axes that has.
    pub operand: u32,
    pub rank: u32,
    /// Its offset in shared memory, in bytes; of a pipelined loop's tile, from the start of a stage.
    pub offset: u32,
    /// Whether a loop pipelines it.
    pub pipeline: bool,
    /// The alias group: tiles of one group share memory with the scratch of operations, and are never live at the same
    /// time.
    pub alias_group: Option<u32>,
    /// Its swizzled layout: as in the operand, so transposed if it is loaded transposed.
    pub tile: SmemLayout,
    pub transposed: bool,
    /// Whether its elements are rounded to tf32 once they are there, for warpgroups.
    pub rounds: bool,
}

/// A multistage pipelined loop.
#[derive(Clone, Debug)]
pub(in crate::kernel::ptx) struct Pipeline {
    /// Its tiles, as indices of [`Plan::smem_tiles`].
    pub smem_tiles: Vec<usize>,
    /// The instructions of the body that load the tiles and compute their coordinates, in order, by index.
    pub insts: Vec<usize>,
    /// Where the first stage begins in shared memory, in bytes.
    pub offset: u32,
    /// Bytes of a stage: the tiles of one step.
    pub stage_bytes: u32,
    /// How many stages there are.
    pub stages: u32,
    /// The `wgmma`s whose accumulators stay in the registers of a variable while the loop runs.
    pub in_place: Vec<InPlace>,
    /// The sliced `dot`s whose partial sums stay in registers while the loop runs, and are added to a variable behind it.
    pub partial: Vec<InPlace>,
    /// The offset of its stages' `mbarrier`s in shared memory, in bytes, if TMA copies its tiles: one each, and with
    /// warp specialization another one each after these.
    pub barriers: Option<u32>,
}

/// A `dot` that tensor cores make of bytes, which lie in shared memory as they do in memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::ptx) struct ByteDot {
    /// The dtypes of both operands: integers, or 8-bit floats.
    pub dtypes: [DType; 2],
    /// Whether the right operand is K-major: the elements of a column lie side by side.
    pub rhs_is_k_major: bool,
}

impl ByteDot {
    /// Whether its operands are 8-bit floats.
    pub fn of_floats(&self) -> bool {
        self.dtypes[0].is_float8()
    }
}

/// A `dot` that adds to a variable, which nothing else in its loop touches.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::ptx) struct InPlace {
    pub dot: Value,
    /// What the variable is read as.
    pub before: Value,
}

impl Pipeline {
    /// How many steps' `dot`s may be in flight when a step begins.
    pub fn wgmmas_in_flight(&self) -> u32 {
        u32::from(!self.in_place.is_empty() && self.stages > 2)
    }
}

/// How much shared memory a plan may use for speed. Less is tried where the target has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::kernel::ptx) enum Effort {
    /// Each `dot` stages its operands while it runs.
    Least,
    /// Tiles and rows live in shared memory.
    SharedMemory,
    /// Loops read one step ahead.
    TwoStages,
    /// Loops read several steps ahead.
    Most,
}

impl Effort {
    /// Those to try, in order.
    pub const ALL: [Effort; 4] = [Effort::Most, Effort::TwoStages, Effort::SharedMemory, Effort::Least];
}

/// Bytes that the stages of a loop take if there are more than two: two blocks are to fit on a processor.
const STAGES_BYTES: u32 = 64 << 10;

/// The most stages of a loop, and of one whose `dot`s are in flight while the next step begins.
const MAX_STAGES: u32 = 4;
const MAX_STAGES_IN_FLIGHT: u32 = 6;

/// The most bytes that two stages take of operands that threads multiply.
const WIDE_STAGES_BYTES: u32 = 80 << 10;

/// The decisions for a kernel.
#[derive(Debug)]
pub(in crate::kernel::ptx) struct Plan {
    /// How many operands the kernel has.
    pub operands: usize,
    pub smem_tiles: Vec<SmemTile>,
    by_value: HashMap<Value, usize>,
    /// Loops that are pipelined, by their index.
    loops: HashMap<Value, Pipeline>,
    pub(super) layouts: HashMap<(u32, u32), Layout>,
    /// The dtype of the operands of the `dot`s that tensor cores make, by the `dot`; they take `f32` rounded to tf32.
    dots: HashMap<Value, DType>,
    /// Those of them that run as `wgmma`.
    by_wgmma: HashSet<Value>,
    /// The tensor map parameters, for TMA.
    pub maps: Vec<Slot>,
    /// The producer of a warp-specialized loop.
    pub producer: Option<Producer>,
    /// The alignment of tiles in shared memory, in bytes.
    pub alignment: u32,
    /// Those of 8-bit operands.
    byte_dots: HashMap<Value, ByteDot>,
    /// Those of few rows, whose K threads divide.
    sliced: HashMap<Value, SlicedK>,
    /// The most registers of a thread that a `dot` and its operands take; `None` without `dot`s.
    pub dot_registers: Option<usize>,
    /// Transposed tiles that are loaded along their columns, and exchanged through shared memory.
    pub exchanged: HashSet<Value>,
    /// Rows that are cached in shared memory.
    pub rows: RowCache,
    /// Loads of program code that only the first thread needs.
    pub leader_loads: HashSet<Value>,
    /// Bytes of shared memory that tiles and cached rows take.
    pub shared_bytes: u32,
    /// Bytes of scratch that aliasing tiles share with operations.
    pub aliased_bytes: u32,
}

/// The instructions that make values, and what takes those.
pub(super) struct Uses<'k> {
    pub defs: DefUse<'k>,
    /// The `dot`s of which a value is an operand.
    pub dot_operand_of: HashMap<Value, Vec<Value>>,
    /// Values with other uses.
    pub others: HashMap<Value, u32>,
    pub dots: Vec<&'k Inst>,
    loads: Vec<&'k Inst>,
}

impl<'k> Uses<'k> {
    fn of(kernel: &'k Kernel) -> Self {
        let defs = DefUse::of(kernel);
        let mut uses =
            Uses { defs, dot_operand_of: HashMap::new(), others: HashMap::new(), dots: Vec::new(), loads: Vec::new() };
        uses.add_block(&kernel.body);
        uses
    }

    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
            if let Op::Dot(a, b, acc) = &inst.op {
                self.dots.push(inst);
                [a, b].into_iter().for_each(|&v| self.dot_operand_of.entry(v).or_default().push(inst.results[0]));
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

    /// Whether a tile is loaded transposed, or computed from one of its shape that is.
    pub fn is_of_transposed(&self, kernel: &Kernel, tile: Value) -> bool {
        let Some(inst) = self.defs.get(tile) else { return false };
        if let Op::TileLoad { transpose, .. } = inst.op {
            return transpose;
        }
        let alike = |v: &Value| shape(kernel, *v) == shape(kernel, tile);
        inst.op.uses().into_iter().filter(alike).any(|v| self.is_of_transposed(kernel, v))
    }

    /// Whether warpgroups can make a `dot` of operands of these dtypes, which is decided here alone. They read half
    /// precision K-major or MN-major; other operands only where the elements of a sum follow each other, as do those of
    /// a left operand that is loaded as it lies and of a right one that is loaded transposed.
    fn suits_wgmma(&self, kernel: &Kernel, dot: &Inst, dtypes: [DType; 2], options: Options) -> bool {
        let Op::Dot(a, b, _) = dot.op else { return false };
        let along = || !self.is_of_transposed(kernel, a) && self.is_of_transposed(kernel, b);
        let all = |of: &[DType]| dtypes.iter().all(|dtype| of.contains(dtype));
        let integers = all(&[DType::I8, DType::U8]) && (dtypes[0] == dtypes[1] || options.ptx_version >= FLOAT8_MMA);
        let floats8 = all(&[DType::F8E4M3FN, DType::F8E5M2]) && options.multiplies_float8();
        let suits = all(&[DType::F16, DType::BF16]) || ((all(&[DType::F32]) || integers || floats8) && along());
        suits && options.target.features().wgmma
    }

    /// Whether a half-precision dtype has all elements of a tile: it has those of 8-bit floats and integers.
    fn fits(&self, value: Value, half: DType) -> bool {
        let of = self.defs.dtype_of_elements(value);
        of.is_some_and(|dtype| dtype == half || dtype.is_float8()) || self.defs.are_of_bytes(value)
    }

    /// The dtype of the operands of a `dot` as tensor cores take them, if they can make it; `tf32` says whether they
    /// may round those of `f32`.
    fn tensor_core(&self, kernel: &Kernel, dot: &Inst, tf32: bool) -> Option<DType> {
        let Op::Dot(a, b, _) = dot.op else { return None };
        let ((rows, columns), (_, inner)) = (shape(kernel, dot.results[0]), shape(kernel, a));
        Layout::fragments(rows, columns).filter(|_| inner > 0)?;
        let half = [DType::F16, DType::BF16].into_iter().find(|&half| self.fits(a, half) && self.fits(b, half));
        let floats = [a, b].iter().all(|&v| matches!(kernel.ty(v), Type::Tile(DType::F32, ..)));
        let tf32 = (tf32 && floats && inner.is_multiple_of(8)).then_some(DType::F32);
        half.filter(|_| inner.is_multiple_of(16)).or(tf32)
    }
}

impl Uses<'_> {
    /// A `dot` of bytes and how its accumulators lie, if its operands can live in shared memory as they are: loaded for
    /// this `dot` alone, from operands that are not written.
    fn byte_dot(&self, kernel: &Kernel, dot: &Inst, options: Options) -> Option<(ByteDot, Layout)> {
        let Op::Dot(a, b, _) = dot.op else { return None };
        let dot_operand = |dot_operand: Value| {
            let Op::TileLoad { operand, transpose, .. } = &self.defs.get(dot_operand)?.op else { return None };
            let operand = &kernel.operands[*operand as usize];
            let alone = self.dot_operand_of.get(&dot_operand)?.len() == 1 && !self.others.contains_key(&dot_operand);
            (alone && operand.access == Access::In).then_some((operand.dtype, *transpose))
        };
        let ((left, left_down), (right, rhs_is_k_major)) = (dot_operand(a)?, dot_operand(b)?);
        let both = |is: fn(DType) -> bool| is(left) && is(right);
        let integers = both(|dtype| matches!(dtype, DType::I8 | DType::U8));
        let floats = options.multiplies_float8() && both(|dtype| matches!(dtype, DType::F8E4M3FN | DType::F8E5M2));
        let ((rows, columns), (_, inner)) = (shape(kernel, dot.results[0]), shape(kernel, a));
        let divides = inner > 0 && inner.is_multiple_of(32) && !left_down;
        let layout = match rhs_is_k_major {
            true => laid_out(rows, columns, self.suits_wgmma(kernel, dot, [left, right], options)),
            false => Layout::quads(rows, columns),
        };
        let dot = ByteDot { dtypes: [left, right], rhs_is_k_major };
        layout.filter(|_| divides && (integers || floats)).map(|layout| (dot, layout))
    }
}

/// The register layout of tensor core accumulators, possibly of `wgmma`.
fn laid_out(rows: u32, columns: u32, by_warpgroups: bool) -> Option<Layout> {
    let by_wgmma = if by_warpgroups { Layout::warpgroups(rows, columns) } else { None };
    by_wgmma.or_else(|| Layout::fragments(rows, columns))
}

pub(super) fn shape(kernel: &Kernel, tile: Value) -> (u32, u32) {
    match kernel.ty(tile) {
        Type::Tile(_, r, c) | Type::TileVar(_, r, c) => (r, c),
        Type::Scalar(_) | Type::Var(_) => (1, 1),
    }
}

impl Plan {
    pub fn new(kernel: &Kernel, effort: Effort, options: Options) -> Plan {
        let tf32 = options.float32_matmul_precision == Float32MatmulPrecision::High;
        let uses = Uses::of(kernel);
        let mut plan = Plan {
            operands: kernel.operands.len(),
            smem_tiles: Vec::new(),
            by_value: HashMap::new(),
            loops: HashMap::new(),
            layouts: HashMap::new(),
            dots: HashMap::new(),
            by_wgmma: HashSet::new(),
            maps: Vec::new(),
            producer: None,
            alignment: 1,
            byte_dots: HashMap::new(),
            sliced: HashMap::new(),
            dot_registers: None,
            exchanged: HashSet::new(),
            rows: RowCache::default(),
            leader_loads: leader_loads(kernel),
            shared_bytes: 0,
            aliased_bytes: 0,
        };
        let mut accumulators: BTreeMap<u32, (Vec<u32>, bool)> = BTreeMap::new();
        for inst in &uses.dots {
            let of_bytes = effort >= Effort::SharedMemory && uses.byte_dot(kernel, inst, options).is_some();
            let Some(dtype) = uses.tensor_core(kernel, inst, tf32).filter(|_| !of_bytes) else { continue };
            let (rows, columns) = shape(kernel, inst.results[0]);
            plan.dots.insert(inst.results[0], dtype);
            let (same_rows, by_warpgroups) = accumulators.entry(rows).or_default();
            if !same_rows.contains(&columns) {
                same_rows.push(columns);
            }
            *by_warpgroups |= uses.suits_wgmma(kernel, inst, [dtype; 2], options);
        }
        for (rows, (columns, by_warpgroups)) in accumulators {
            plan.lay_out(kernel, rows, &columns, by_warpgroups);
        }
        for inst in uses.dots.iter().filter(|_| effort >= Effort::SharedMemory) {
            let shape = shape(kernel, inst.results[0]);
            if let Some((dot, layout)) = uses.byte_dot(kernel, inst, options)
                && *plan.layouts.entry(shape).or_insert(layout) == layout
            {
                plan.byte_dots.insert(inst.results[0], dot);
            }
        }
        for inst in &uses.dots {
            let (dot, (rows, columns)) = (inst.results[0], shape(kernel, inst.results[0]));
            if let Some(dtypes) = plan.dot_operand_dtypes(dot)
                && plan.layout(rows, columns).by_wgmma()
                && uses.suits_wgmma(kernel, inst, dtypes, options)
            {
                plan.by_wgmma.insert(dot);
                plan.alignment = SWIZZLE_ATOM;
            }
        }
        if effort >= Effort::SharedMemory {
            let is_free = |dot: Value| !plan.dots.contains_key(&dot) && !plan.byte_dots.contains_key(&dot);
            plan.sliced = uses.sliced_k(kernel, is_free);
        }
        for inst in uses.loads.iter().filter(|_| effort >= Effort::SharedMemory) {
            let Op::TileLoad { operand, transpose, .. } = &inst.op else { continue };
            let (value, from, operand) = (inst.results[0], *operand, &kernel.operands[*operand as usize]);
            let Some(dots) = uses.dot_operand_of.get(&value) else { continue };
            let tensor = |dot: &Value| plan.dots.contains_key(dot) || plan.byte_dots.contains_key(dot);
            let as_it_is = |dot: &Value| plan.dots.get(dot).is_none_or(|&dtype| dtype == operand.dtype);
            let fragments = dots.iter().all(|dot| tensor(dot) && as_it_is(dot));
            let wide = matches!(operand.dtype, DType::F32 | DType::F64);
            let sliced = dots.iter().all(|dot| plan.sliced.contains_key(dot));
            // What a kernel writes may have changed between the load and the `dot`.
            let lives = operand.access == Access::In
                && !uses.others.contains_key(&value)
                && (fragments || sliced || (wide && !dots.iter().any(tensor)));
            let (r, c) = shape(kernel, value);
            let (rows, columns) = if *transpose { (c, r) } else { (r, c) };
            let size = operand.dtype.size_in_bytes() as u32;
            if lives && (columns * size).is_multiple_of(VECTOR_BYTES) {
                let mut tile = match sliced {
                    true => SmemLayout::in_order(rows, columns, size),
                    false => SmemLayout::new(rows, columns, size, fragments),
                };
                let rounds = |dot: &Value| plan.by_wgmma.contains(dot) && operand.dtype == DType::F32;
                let rounds = dots.iter().any(rounds);
                for dot in dots.iter().filter(|dot| plan.by_wgmma.contains(dot)) {
                    let sides = uses.defs.get(*dot).map(|inst| inst.op.uses());
                    let sides = sides.iter().flatten().take(2).enumerate();
                    for (side, _) in sides.filter(|(_, dot_operand)| **dot_operand == value) {
                        tile = plan.in_panels(kernel, *dot, side == 1, tile, *transpose);
                    }
                }
                let index = plan.smem_tiles.len();
                plan.by_value.insert(value, index);
                plan.smem_tiles.push(SmemTile {
                    value,
                    index,
                    operand: from,
                    rank: operand.rank,
                    offset: 0,
                    pipeline: false,
                    alias_group: None,
                    tile,
                    transposed: *transpose,
                    rounds,
                });
            }
        }
        plan.lay_out_dot_operands(kernel, &uses);
        plan.lay_out_fma(kernel, &uses);
        if uses.dots.is_empty() && effort >= Effort::SharedMemory {
            plan.exchange_transposed(kernel, &uses.loads);
        }
        if effort >= Effort::TwoStages {
            plan.find_pipelines(kernel, &kernel.body, effort, options);
        } else if effort == Effort::SharedMemory {
            plan.alias_inner_tiles(&kernel.body);
        }
        plan.alias_with_scratch(&kernel.body, true);
        for smem_tile in
            plan.smem_tiles.iter_mut().filter(|smem_tile| !smem_tile.pipeline && smem_tile.alias_group.is_none())
        {
            smem_tile.offset = plan.shared_bytes;
            plan.shared_bytes += smem_tile.tile.bytes().next_multiple_of(plan.alignment);
        }
        if effort >= Effort::SharedMemory {
            plan.rows = RowCache::find(kernel);
        }
        let mut ends: HashMap<u32, u32> = HashMap::new();
        for smem_tile in plan.smem_tiles.iter_mut().filter(|smem_tile| !smem_tile.pipeline) {
            let Some(group) = smem_tile.alias_group else { continue };
            let end = ends.entry(group).or_insert(plan.shared_bytes);
            smem_tile.offset = *end;
            *end += smem_tile.tile.bytes().next_multiple_of(plan.alignment);
        }
        plan.aliased_bytes = ends.into_values().max().map_or(0, |end| end - plan.shared_bytes);
        let registers = |v: &Value| {
            let (rows, columns) = shape(kernel, *v);
            if plan.smem_tile(*v).is_some() { 0 } else { plan.layout(rows, columns).registers() }
        };
        let of = |inst: &&Inst| inst.op.uses().iter().map(registers).sum::<usize>() + plan.dot_scratch(kernel, inst);
        plan.dot_registers = uses.dots.iter().map(of).max();
        plan
    }

    /// Decides how accumulators of so many rows lie: if there is one value a row too, so that threads hold that of
    /// their rows.
    fn lay_out(&mut self, kernel: &Kernel, rows: u32, columns: &[u32], warpgroups: bool) {
        let accumulators = |tile: Value| {
            let (r, c) = shape(kernel, tile);
            r == rows && columns.contains(&c)
        };
        let together = match rows_of_accumulators(kernel, &kernel.body, rows, &accumulators) {
            Some(true) => Layout::together(rows, columns),
            Some(false) | None => None,
        };
        let layouts = match together {
            Some((mut accumulators, values)) => {
                accumulators.push(values);
                accumulators
            }
            None => columns.iter().filter_map(|&c| laid_out(rows, c, warpgroups)).collect(),
        };
        self.layouts.extend(layouts.into_iter().map(|l| ((l.rows, l.columns), l)));
    }

    /// Decides how operands that are computed lie in registers: in vectors, as they are read and as tensor cores take
    /// them.
    fn lay_out_dot_operands(&mut self, kernel: &Kernel, uses: &Uses<'_>) {
        for inst in &uses.dots {
            let (Op::Dot(a, b, _), Some(dtype)) = (&inst.op, self.dots.get(&inst.results[0])) else { continue };
            let size = dtype.size_in_bytes() as u32;
            for (side, dot_operand) in [a, b].into_iter().enumerate().filter(|(_, v)| !self.by_value.contains_key(v)) {
                let ((rows, columns), down) =
                    (shape(kernel, *dot_operand), uses.is_of_transposed(kernel, *dot_operand));
                let (across, along) = if down { (columns, rows) } else { (rows, columns) };
                let mut tile = SmemLayout::new(across, along, size, true);
                if self.by_wgmma.contains(&inst.results[0]) {
                    tile = self.in_panels(kernel, inst.results[0], side == 1, tile, down);
                }
                // Threads that write vectors at a time have those of one panel.
                let threads =
                    if tile.panel() < tile.vectors() { tile.panel() } else { tile.vectors().next_power_of_two() };
                let layout = Layout::runs(rows, columns, threads, VECTOR_BYTES / size, down);
                if (along * size).is_multiple_of(VECTOR_BYTES) && threads <= BLOCK_SIZE {
                    self.layouts.entry((rows, columns)).or_insert(layout);
                }
            }
        }
    }

    /// Finds the loops to pipeline: the outermost ones, since those inside of them share their shared memory.
    fn find_pipelines(&mut self, kernel: &Kernel, block: &Block, effort: Effort, options: Options) {
        for inst in &block.insts {
            if let Op::For { index, body, .. } = &inst.op
                && let Some(mut pipeline) = self.pipeline_of(body, effort)
            {
                let mapped = self.has_wgmma()
                    && options.target.features().tma
                    && pipeline.smem_tiles.iter().all(|&smem_tile| fits_tma(&self.smem_tiles[smem_tile]));
                let mut barriers = 1;
                if mapped && let Some(producer) = self.producer_of(kernel, *index, body, &pipeline) {
                    if effort >= Effort::Most {
                        pipeline.stages =
                            (producer.stages_bytes() / pipeline.stage_bytes).clamp(2, MAX_STAGES_IN_FLIGHT);
                    }
                    self.producer = Some(producer);
                    barriers = 2;
                }
                self.shared_bytes += pipeline.stages * pipeline.stage_bytes;
                if mapped {
                    pipeline.barriers = Some(self.shared_bytes);
                    self.shared_bytes += (barriers * BARRIER * pipeline.stages).next_multiple_of(self.alignment);
                    self.add_maps(&pipeline);
                }
                self.loops.insert(*index, pipeline);
                let inner = body.insts.iter().flat_map(|inst| inst.op.blocks());
                inner.for_each(|(inner, _)| self.alias_with_scratch(inner, false));
                continue;
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.find_pipelines(kernel, inner, effort, options));
        }
    }

    /// What a producer does to issue the copies of a loop's tiles, if the loop does nothing but add `dot`s of these to
    /// its accumulators, and no other loop has one.
    fn producer_of(&self, kernel: &Kernel, index: Value, body: &Block, pipeline: &Pipeline) -> Option<Producer> {
        let dots = body.insts.iter().filter(|inst| matches!(inst.op, Op::Dot(..))).count();
        let alone = dots > 0 && dots == pipeline.in_place.len() && self.producer.is_none();
        let accumulators = |accumulators: &InPlace| {
            let (rows, columns) = shape(kernel, accumulators.dot);
            self.layout(rows, columns).registers() as u32
        };
        alone.then(|| Producer::find(kernel, index, pipeline, pipeline.in_place.iter().map(accumulators).sum()))?
    }

    /// Requests the maps of a loop's tiles.
    fn add_maps(&mut self, pipeline: &Pipeline) {
        if self.maps.is_empty() {
            self.maps.push(Slot::Mapped);
        }
        for &smem_tile in &pipeline.smem_tiles {
            let map = map_of(&self.smem_tiles[smem_tile]);
            if !self.maps.contains(&map) {
                self.maps.push(map);
            }
        }
    }

    /// Lets tiles that are read in a loop inside of another alias scratch.
    fn alias_inner_tiles(&mut self, block: &Block) {
        for inst in &block.insts {
            if let Op::For { body, .. } = &inst.op {
                let inner = body.insts.iter().flat_map(|inst| inst.op.blocks());
                inner.for_each(|(inner, _)| self.alias_with_scratch(inner, false));
                continue;
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.alias_inner_tiles(inner));
        }
    }

    /// Tiles that are read in a loop inside of one that is pipelined, and those that threads multiply, share the memory
    /// of operations, if none of these comes before their `dot`s.
    fn alias_with_scratch(&mut self, block: &Block, by_threads: bool) {
        let is_home = |plan: &Self, v: &Value| plan.by_value.contains_key(v);
        for (i, load) in block.insts.iter().enumerate() {
            load.op.blocks().into_iter().for_each(|(inner, _)| self.alias_with_scratch(inner, by_threads));
            let Some(&smem_tile) = load.results.first().and_then(|v| self.by_value.get(v)) else { continue };
            if self.smem_tiles[smem_tile].pipeline || (by_threads && self.smem_tiles[smem_tile].tile.swizzled) {
                continue;
            }
            // Partial sums are combined there.
            if self.smem_tiles[smem_tile].tile.in_order {
                continue;
            }
            let takes = |inst: &Inst| inst.op.uses().contains(&load.results[0]);
            let Some(last) = block.insts.iter().rposition(takes) else { continue };
            let leaves_shared = |inst: &Inst| {
                let moves = matches!(inst.op, Op::TileLoad { .. } | Op::Get(_) | Op::Set(..) | Op::Var(_));
                // Partial sums are combined in scratch memory.
                let is_sliced = inst.results.first().is_some_and(|v| self.sliced.contains_key(v));
                let of_homes =
                    matches!(&inst.op, Op::Dot(a, b, _) if is_home(self, a) && is_home(self, b) && !is_sliced);
                moves || of_homes || is_pure(&inst.op, &HashSet::new())
            };
            let inner = |inst: &Inst| inst.op.blocks().iter().any(|(inner, _)| takes_in(inner, load.results[0]));
            let alias_group = block.insts[i..=last].iter().all(leaves_shared) && !block.insts.iter().any(inner);
            // Those of other blocks are not there at the same time.
            let of_block = block.insts.iter().flat_map(|inst| &inst.results).map(|v| v.0).min();
            self.smem_tiles[smem_tile].alias_group = of_block.filter(|_| alias_group);
        }
    }

    /// How a loop with that body is pipelined: the tiles whose places are computed from the loop's index and from what
    /// the loop does not change.
    fn pipeline_of(&mut self, body: &Block, effort: Effort) -> Option<Pipeline> {
        let mut assigned = HashSet::new();
        assigned_in(body, &mut assigned);
        let mut unknown: HashSet<Value> = HashSet::new();
        let mut smem_tiles = Vec::new();
        let mut needed: HashSet<Value> = HashSet::new();
        for inst in &body.insts {
            let known = inst.op.uses().iter().all(|v| !unknown.contains(v));
            match inst.results.first().and_then(|v| self.by_value.get(v)) {
                Some(&smem_tile) if known => {
                    smem_tiles.push(smem_tile);
                    needed.insert(self.smem_tiles[smem_tile].value);
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
        let bytes =
            |plan: &Self, smem_tile: usize| plan.smem_tiles[smem_tile].tile.bytes().next_multiple_of(plan.alignment);
        let stage_bytes: u32 = smem_tiles.iter().map(|&smem_tile| bytes(self, smem_tile)).sum();
        // Operands of 4 bytes and more that take much room are better off in registers.
        let wide = smem_tiles.iter().any(|&smem_tile| !self.smem_tiles[smem_tile].tile.swizzled);
        if smem_tiles.is_empty() || (wide && 2 * stage_bytes > WIDE_STAGES_BYTES) {
            return None;
        }
        let in_place = |plan: &Self, dot: Value| plan.by_wgmma.contains(&dot) && !plan.promotes(dot);
        let in_place = self.in_place(body, &smem_tiles, in_place);
        let partial = self.in_place(body, &smem_tiles, |plan, dot| plan.sliced.contains_key(&dot));
        let most = if in_place.is_empty() { MAX_STAGES } else { MAX_STAGES_IN_FLIGHT };
        let stages = if effort >= Effort::Most { (STAGES_BYTES / stage_bytes).clamp(2, most) } else { 2 };
        let mut offset = 0;
        for &smem_tile in &smem_tiles {
            (self.smem_tiles[smem_tile].offset, self.smem_tiles[smem_tile].pipeline) = (offset, true);
            offset += bytes(self, smem_tile);
        }
        Some(Pipeline {
            smem_tiles,
            insts,
            offset: self.shared_bytes,
            stage_bytes,
            stages,
            in_place,
            partial,
            barriers: None,
        })
    }

    /// The `dot`s of a kind in a loop's body, of tiles that it pipelines, that do nothing but add to a variable.
    fn in_place(&self, body: &Block, smem_tiles: &[usize], is_kind: impl Fn(&Self, Value) -> bool) -> Vec<InPlace> {
        let is_ahead = |v: &Value| self.by_value.get(v).is_some_and(|smem_tile| smem_tiles.contains(smem_tile));
        // How many instructions take a value; any number if one of an inner block does.
        let takers = |v: Value| -> usize {
            let inner = |inst: &Inst| inst.op.blocks().iter().any(|(block, _)| takes_in(block, v));
            body.insts.iter().map(|inst| usize::from(inst.op.uses().contains(&v)) + 9 * usize::from(inner(inst))).sum()
        };
        let dot = |inst: &Inst| {
            let Op::Dot(a, b, before) = inst.op else { return None };
            let dot = inst.results[0];
            let variable = body.insts.iter().find_map(|inst| {
                if let Op::Get(variable) = inst.op { (inst.results[0] == before).then_some(variable) } else { None }
            })?;
            let set = body.insts.iter().any(|inst| inst.op == Op::Set(variable, dot));
            let alone = takers(before) == 1 && takers(dot) == 1 && takers(variable) == 2;
            let adds = set && alone && is_ahead(&a) && is_ahead(&b) && is_kind(self, dot);
            adds.then_some(InPlace { dot, before })
        };
        body.insts.iter().filter_map(dot).collect()
    }

    /// How tiles of a shape lie in registers.
    pub fn layout(&self, rows: u32, columns: u32) -> Layout {
        self.layouts.get(&(rows, columns)).copied().unwrap_or_else(|| Layout::cyclic(rows, columns))
    }

    /// Where a tile lives, if in shared memory.
    pub fn smem_tile(&self, tile: Value) -> Option<SmemTile> {
        self.by_value.get(&tile).map(|&index| self.smem_tiles[index])
    }

    /// How the loop with that index is pipelined.
    pub fn pipeline(&self, index: Value) -> Option<&Pipeline> {
        self.loops.get(&index)
    }

    /// Whether a `dot` runs as `wgmma`.
    pub fn by_wgmma(&self, dot: Value) -> bool {
        self.by_wgmma.contains(&dot)
    }

    /// Whether the sums of a `wgmma` are added to its accumulators by threads.
    pub fn promotes(&self, dot: Value) -> bool {
        self.by_wgmma(dot) && self.byte_dot(dot).is_some_and(|dot| dot.of_floats())
    }

    /// Whether a value is a sum that stays in a variable's registers.
    pub fn stays_in_place(&self, value: Value) -> bool {
        let mut in_place = self.loops.values().flat_map(|pipeline| pipeline.in_place.iter().chain(&pipeline.partial));
        in_place.any(|accumulators| accumulators.dot == value || accumulators.before == value)
    }

    /// How threads divide a `dot`, if they do.
    pub fn sliced_k(&self, dot: Value) -> Option<SlicedK> {
        self.sliced.get(&dot).copied()
    }

    /// Whether any `dot` runs as `wgmma`.
    pub fn has_wgmma(&self) -> bool {
        !self.by_wgmma.is_empty()
    }

    /// An operand of a `dot` as a warpgroup reads it; `transposed` if it lies the other way round.
    pub fn in_panels(
        &self,
        kernel: &Kernel,
        dot: Value,
        right: bool,
        tile: SmemLayout,
        transposed: bool,
    ) -> SmemLayout {
        let (rows, columns) = shape(kernel, dot);
        let Kind::Fragments { warp_columns, .. } = self.layout(rows, columns).kind else { return tile };
        // Where rows in shared memory are along the `dot`'s rows or columns, each warpgroup has whole panels of its
        // own.
        let own = if right { columns / warp_columns } else { 64 };
        tile.in_panels(if transposed == right { tile.columns } else { own })
    }

    /// The dtypes of the operands of a `dot` as tensor cores take them, if they make it.
    pub fn dot_operand_dtypes(&self, dot: Value) -> Option<[DType; 2]> {
        let of_bytes = self.byte_dot(dot).map(|dot| dot.dtypes);
        of_bytes.or_else(|| self.tensor_core(dot).map(|dtype| [dtype; 2]))
    }

    /// A `dot`, if a tensor core makes it of bytes.
    pub fn byte_dot(&self, dot: Value) -> Option<ByteDot> {
        self.byte_dots.get(&dot).copied()
    }

    /// Whether there are `dot`s of bytes that only newer versions of PTX have.
    pub fn has_new_byte_dots(&self) -> bool {
        let mixed = |dot: &ByteDot| dot.dtypes[0] != dot.dtypes[1];
        let is_new = |(v, dot): (&Value, &ByteDot)| dot.of_floats() || (mixed(dot) && self.by_wgmma.contains(v));
        self.byte_dots.iter().any(is_new)
    }

    /// The dtype of a `dot`'s operands, if a tensor core makes it of half precision, or of `f32` rounded to tf32.
    pub fn tensor_core(&self, dot: Value) -> Option<DType> {
        self.dots.get(&dot).copied()
    }
}

/// Whether code has tiles of one column and so many rows (`Some(true)`: yes), and these are made from accumulators, or
/// from each other, and used for both alone (`None`: no), so that it does not matter how many threads hold the same.
fn rows_of_accumulators(
    kernel: &Kernel,
    block: &Block,
    rows: u32,
    accumulators: &impl Fn(Value) -> bool,
) -> Option<bool> {
    let is_column = |v: &Value| shape(kernel, *v) == (rows, 1) && is_tile(kernel, *v);
    let mut any = false;
    for inst in &block.insts {
        let made = inst.results.iter().any(is_column);
        let used = inst.op.uses().iter().any(is_column);
        any |= made;
        let apart = match &inst.op {
            Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileElement(..) | Op::Dot(..) => made || used,
            Op::TileReduce(_, tile) => used || (made && !accumulators(*tile)),
            Op::TileMap { body, .. } => {
                let pure = body.insts.iter().all(|inst| is_pure(&inst.op, &HashSet::new()));
                (made || used) && !((made || accumulators(inst.results[0])) && pure)
            }
            Op::If { .. } | Op::While { .. } | Op::For { .. } => false,
            Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } => false,
            Op::TileFull(_) | Op::TileCast(_) | Op::TileRound(..) | Op::Var(_) | Op::Get(_) | Op::Set(..) => false,
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => false,
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => false,
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) | Op::FromBits(..) | Op::ToBits(..) => false,
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Print { .. } => false,
        };
        if apart {
            return None;
        }
        for (inner, _) in inst.op.blocks() {
            any |= rows_of_accumulators(kernel, inner, rows, accumulators)?;
        }
    }
    Some(any)
}

fn is_tile(kernel: &Kernel, value: Value) -> bool {
    matches!(kernel.ty(value), Type::Tile(..) | Type::TileVar(..))
}

/// Whether code takes a value.
fn takes_in(block: &Block, value: Value) -> bool {
    let takes = |inst: &Inst| {
        inst.op.uses().contains(&value) || inst.op.blocks().iter().any(|(inner, _)| takes_in(inner, value))
    };
    block.yields.contains(&value) || block.insts.iter().any(takes)
}

/// Whether an instruction gives the same whenever it runs with the same values, and does nothing else.
pub(in crate::kernel::ptx) fn is_pure(op: &Op, assigned: &HashSet<Value>) -> bool {
    match op {
        Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => true,
        Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => true,
        Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) | Op::FromBits(..) | Op::ToBits(..) => true,
        Op::Get(variable) => !assigned.contains(variable),
        Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Set(..) | Op::Print { .. } => false,
        Op::If { .. } | Op::While { .. } | Op::For { .. } => false,
        Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } => false,
        Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileMap { .. } | Op::TileReduce(..) => false,
        Op::TileElement(..) | Op::Dot(..) | Op::TileCast(_) | Op::TileRound(..) => false,
    }
}
