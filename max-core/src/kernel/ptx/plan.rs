//! What is decided of a kernel's tiles before any code is written: which products go to the tensor cores, how tiles
//! lie in registers for that, which tiles are copied from an operand straight to shared memory, and which loops do so ahead;
//! and which rows are kept there.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::boxes::{BARRIER, has_boxes, map_of};
use super::first::for_first;
use super::home::{PATTERN, SharedTile, UNIT};
use super::layout::{Kind, Layout};
use super::roles::Producer;
use super::rows::Rows;
use super::{BLOCK_SIZE, BYTE_PRODUCTS, Float32MatmulPrecision, Options, Slot};
use crate::dtype::DType;
use crate::kernel::ir::{Block, Inst, Kernel, Makers, Op, Type, Value, assigned_in};
use crate::kernel::table::Access;

/// A tile that lives in shared memory, where products read it: it has no registers. Its elements are those that tensor cores
/// read, or floats that threads do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// The tile.
    pub value: Value,
    /// Its index in [`Plan::homes`].
    pub index: usize,
    /// The operand that it is loaded from, and how many axes that has.
    pub operand: u32,
    pub rank: u32,
    /// Where it begins in shared memory, in bytes; if a loop reads it ahead, from the beginning of a stage.
    pub offset: u32,
    /// Whether a loop reads it ahead.
    pub ahead: bool,
    /// Whether it lies where operations have their shared memory: a number that those have which do so at the same time.
    pub brief: Option<u32>,
    /// How it lies there: as in the operand, so the other way round if it is loaded transposed.
    pub tile: SharedTile,
    pub transposed: bool,
    /// Whether its elements are rounded to tf32 once they are there, for warpgroups.
    pub rounds: bool,
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
    /// The products of warpgroups whose sums stay in the registers of a variable while the loop runs.
    pub in_place: Vec<InPlace>,
    /// Where its stages have barriers in shared memory, in bytes, if the device copies its tiles: one each, and where warps have
    /// roles, behind those another one each.
    pub barriers: Option<u32>,
}

/// A product that tensor cores make of bytes, which lie in shared memory as they do in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteProduct {
    /// The dtypes of both factors: integers, or 8-bit floats.
    pub dtypes: [DType; 2],
    /// Whether the elements of a column of the right factor lie side by side.
    pub right_along: bool,
}

impl ByteProduct {
    /// Whether its factors are 8-bit floats.
    pub fn of_floats(&self) -> bool {
        self.dtypes[0].is_float8()
    }
}

/// A product that adds to a variable, which nothing else in its loop touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct InPlace {
    pub product: Value,
    /// What the variable is read as.
    pub before: Value,
}

impl Ahead {
    /// How many steps' products may be under way when a step begins.
    pub fn products_under_way(&self) -> u32 {
        u32::from(!self.in_place.is_empty() && self.stages > 2)
    }
}

/// How much shared memory a plan may use for speed. Less of it is tried where the target has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// Products stage their factors while they run.
    Least,
    /// Tiles and rows live in shared memory.
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

/// The most stages of a loop, and of one whose products are under way while the next step begins.
const MOST_STAGES: u32 = 4;
const MOST_STAGES_IN_PLACE: u32 = 6;

/// The most bytes that two stages take of factors that threads multiply.
const WIDE_STAGES_BYTES: u32 = 80 << 10;

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
    /// The dtype of the factors of the products that tensor cores make, by the product; they take `f32` rounded to tf32.
    products: HashMap<Value, DType>,
    /// Those of them that warpgroups make.
    of_warpgroups: HashSet<Value>,
    /// The parameters by which the device copies tiles.
    pub maps: Vec<Slot>,
    /// A warp of its own that asks for the tiles of a loop.
    pub producer: Option<Producer>,
    /// The alignment of tiles in shared memory, in bytes.
    pub alignment: u32,
    /// Those that they make of bytes.
    byte_products: HashMap<Value, ByteProduct>,
    /// The most registers of a thread that a product and its factors take; `None` without products.
    pub product_registers: Option<usize>,
    /// Rows that are kept in shared memory.
    pub rows: Rows,
    /// Loads of program code that only the first thread needs.
    pub for_first: HashSet<Value>,
    /// Bytes of shared memory that homes and rows take.
    pub shared_bytes: u32,
    /// Bytes behind those that brief homes share with operations.
    pub brief_bytes: u32,
}

/// The instructions that make values, and what takes those.
struct Uses<'k> {
    makers: Makers<'k>,
    /// The products of which a value is a factor.
    factor_of: HashMap<Value, Vec<Value>>,
    /// Values with other uses.
    others: HashMap<Value, u32>,
    products: Vec<&'k Inst>,
    loads: Vec<&'k Inst>,
}

impl<'k> Uses<'k> {
    fn of(kernel: &'k Kernel) -> Self {
        let makers = Makers::of(kernel);
        let mut uses =
            Uses { makers, factor_of: HashMap::new(), others: HashMap::new(), products: Vec::new(), loads: Vec::new() };
        uses.add_block(&kernel.body);
        uses
    }

    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
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

    /// Whether a tile is loaded transposed, or computed from one of its shape that is.
    fn is_of_transposed(&self, kernel: &Kernel, tile: Value) -> bool {
        let Some(inst) = self.makers.get(tile) else { return false };
        if let Op::TileLoad { transpose, .. } = inst.op {
            return transpose;
        }
        let alike = |v: &Value| shape(kernel, *v) == shape(kernel, tile);
        inst.op.uses().into_iter().filter(alike).any(|v| self.is_of_transposed(kernel, v))
    }

    /// Whether warpgroups can make a product of factors of these dtypes, which is decided here alone. They read halves however these
    /// lie; other factors only where the elements of a sum follow each other, as do those of a left factor that is loaded as it
    /// lies and of a right one that is loaded transposed. 8-bit floats they would add up with too few bits
    /// ([`warpgroup`](super::warpgroup)).
    fn suits_warpgroups(&self, kernel: &Kernel, product: &Inst, dtypes: [DType; 2], options: Options) -> bool {
        let Op::Dot(a, b, _) = product.op else { return false };
        let along = || !self.is_of_transposed(kernel, a) && self.is_of_transposed(kernel, b);
        let all = |of: &[DType]| dtypes.iter().all(|dtype| of.contains(dtype));
        let integers = all(&[DType::I8, DType::U8]) && (dtypes[0] == dtypes[1] || options.ptx_version >= BYTE_PRODUCTS);
        let suits = all(&[DType::F16, DType::BF16]) || ((all(&[DType::F32]) || integers) && along());
        suits && options.target.has_warpgroups()
    }

    /// Whether a half dtype has all elements of a tile: it has those of 8-bit floats and integers.
    fn fits(&self, value: Value, half: DType) -> bool {
        let of = self.makers.dtype_of_elements(value);
        of.is_some_and(|dtype| dtype == half || dtype.is_float8()) || self.makers.are_of_bytes(value)
    }

    /// The dtype of the factors of a product as tensor cores take them, if they can make it; `tf32` says whether they may
    /// round those of `f32`.
    fn tensor_core(&self, kernel: &Kernel, product: &Inst, tf32: bool) -> Option<DType> {
        let Op::Dot(a, b, _) = product.op else { return None };
        let ((rows, columns), (_, inner)) = (shape(kernel, product.results[0]), shape(kernel, a));
        Layout::fragments(rows, columns).filter(|_| inner > 0)?;
        let half = [DType::F16, DType::BF16].into_iter().find(|&half| self.fits(a, half) && self.fits(b, half));
        let floats = [a, b].iter().all(|&v| matches!(kernel.ty(v), Type::Tile(DType::F32, ..)));
        let tf32 = (tf32 && floats && inner.is_multiple_of(8)).then_some(DType::F32);
        half.filter(|_| inner.is_multiple_of(16)).or(tf32)
    }
}

impl Uses<'_> {
    /// A product of bytes and how its sums lie, if its factors can live in shared memory as they are: loaded for this product
    /// alone, from operands that are not written.
    fn byte_product(&self, kernel: &Kernel, product: &Inst, options: Options) -> Option<(ByteProduct, Layout)> {
        let Op::Dot(a, b, _) = product.op else { return None };
        let factor = |factor: Value| {
            let Op::TileLoad { operand, transpose, .. } = &self.makers.get(factor)?.op else { return None };
            let operand = &kernel.operands[*operand as usize];
            let alone = self.factor_of.get(&factor)?.len() == 1 && !self.others.contains_key(&factor);
            (alone && operand.access == Access::In).then_some((operand.dtype, *transpose))
        };
        let ((left, left_down), (right, right_along)) = (factor(a)?, factor(b)?);
        let both = |is: fn(DType) -> bool| is(left) && is(right);
        let integers = both(|dtype| matches!(dtype, DType::I8 | DType::U8));
        let floats = options.multiplies_float8() && both(|dtype| matches!(dtype, DType::F8E4M3FN | DType::F8E5M2));
        let ((rows, columns), (_, inner)) = (shape(kernel, product.results[0]), shape(kernel, a));
        let divides = inner > 0 && inner.is_multiple_of(32) && !left_down;
        let layout = match right_along {
            true => laid_out(rows, columns, self.suits_warpgroups(kernel, product, [left, right], options)),
            false => Layout::quads(rows, columns),
        };
        let product = ByteProduct { dtypes: [left, right], right_along };
        layout.filter(|_| divides && (integers || floats)).map(|layout| (product, layout))
    }
}

/// How sums of products by tensor cores lie, which may be warpgroups'.
fn laid_out(rows: u32, columns: u32, by_warpgroups: bool) -> Option<Layout> {
    let of_warpgroups = if by_warpgroups { Layout::warpgroups(rows, columns) } else { None };
    of_warpgroups.or_else(|| Layout::fragments(rows, columns))
}

fn shape(kernel: &Kernel, tile: Value) -> (u32, u32) {
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
            homes: Vec::new(),
            by_value: HashMap::new(),
            loops: HashMap::new(),
            layouts: HashMap::new(),
            products: HashMap::new(),
            of_warpgroups: HashSet::new(),
            maps: Vec::new(),
            producer: None,
            alignment: 1,
            byte_products: HashMap::new(),
            product_registers: None,
            rows: Rows::default(),
            for_first: for_first(kernel),
            shared_bytes: 0,
            brief_bytes: 0,
        };
        let mut sums: BTreeMap<u32, (Vec<u32>, bool)> = BTreeMap::new();
        for inst in &uses.products {
            let of_bytes = effort >= Effort::Homes && uses.byte_product(kernel, inst, options).is_some();
            let Some(dtype) = uses.tensor_core(kernel, inst, tf32).filter(|_| !of_bytes) else { continue };
            let (rows, columns) = shape(kernel, inst.results[0]);
            plan.products.insert(inst.results[0], dtype);
            let (same_rows, by_warpgroups) = sums.entry(rows).or_default();
            if !same_rows.contains(&columns) {
                same_rows.push(columns);
            }
            *by_warpgroups |= uses.suits_warpgroups(kernel, inst, [dtype; 2], options);
        }
        for (rows, (columns, by_warpgroups)) in sums {
            plan.lay_out(kernel, rows, &columns, by_warpgroups);
        }
        for inst in uses.products.iter().filter(|_| effort >= Effort::Homes) {
            let shape = shape(kernel, inst.results[0]);
            if let Some((product, layout)) = uses.byte_product(kernel, inst, options)
                && *plan.layouts.entry(shape).or_insert(layout) == layout
            {
                plan.byte_products.insert(inst.results[0], product);
            }
        }
        for inst in &uses.products {
            let (product, (rows, columns)) = (inst.results[0], shape(kernel, inst.results[0]));
            if let Some(dtypes) = plan.factor_dtypes(product)
                && plan.layout(rows, columns).of_warpgroups()
                && uses.suits_warpgroups(kernel, inst, dtypes, options)
            {
                plan.of_warpgroups.insert(product);
                plan.alignment = PATTERN;
            }
        }
        for inst in uses.loads.iter().filter(|_| effort >= Effort::Homes) {
            let Op::TileLoad { operand, transpose, .. } = &inst.op else { continue };
            let (value, from, operand) = (inst.results[0], *operand, &kernel.operands[*operand as usize]);
            let Some(products) = uses.factor_of.get(&value) else { continue };
            let tensor =
                |product: &Value| plan.products.contains_key(product) || plan.byte_products.contains_key(product);
            let as_it_is = |product: &Value| plan.products.get(product).is_none_or(|&dtype| dtype == operand.dtype);
            let fragments = products.iter().all(|product| tensor(product) && as_it_is(product));
            let wide = matches!(operand.dtype, DType::F32 | DType::F64);
            // What a kernel writes may have changed between the load and the product.
            let lives = operand.access == Access::In
                && !uses.others.contains_key(&value)
                && (fragments || (wide && !products.iter().any(tensor)));
            let (r, c) = shape(kernel, value);
            let (rows, columns) = if *transpose { (c, r) } else { (r, c) };
            let size = operand.dtype.size_in_bytes() as u32;
            if lives && (columns * size).is_multiple_of(UNIT) {
                let mut tile = SharedTile::new(rows, columns, size, fragments);
                let rounds = |product: &Value| plan.of_warpgroups.contains(product) && operand.dtype == DType::F32;
                let rounds = products.iter().any(rounds);
                for product in products.iter().filter(|product| plan.of_warpgroups.contains(product)) {
                    let sides = uses.makers.get(*product).map(|inst| inst.op.uses());
                    let sides = sides.iter().flatten().take(2).enumerate();
                    for (side, _) in sides.filter(|(_, factor)| **factor == value) {
                        tile = plan.in_panels(kernel, *product, side == 1, tile, *transpose);
                    }
                }
                let index = plan.homes.len();
                plan.by_value.insert(value, index);
                plan.homes.push(Home {
                    value,
                    index,
                    operand: from,
                    rank: operand.rank,
                    offset: 0,
                    ahead: false,
                    brief: None,
                    tile,
                    transposed: *transpose,
                    rounds,
                });
            }
        }
        plan.lay_out_factors(kernel, &uses);
        if effort >= Effort::TwoStages {
            plan.read_ahead(kernel, &kernel.body, effort);
        } else if effort == Effort::Homes {
            plan.make_inner_brief(&kernel.body);
        }
        plan.make_brief(&kernel.body, true);
        for home in plan.homes.iter_mut().filter(|home| !home.ahead && home.brief.is_none()) {
            home.offset = plan.shared_bytes;
            plan.shared_bytes += home.tile.bytes().next_multiple_of(plan.alignment);
        }
        if effort >= Effort::Homes {
            plan.rows = Rows::find(kernel);
        }
        let mut ends: HashMap<u32, u32> = HashMap::new();
        for home in plan.homes.iter_mut().filter(|home| !home.ahead) {
            let Some(group) = home.brief else { continue };
            let end = ends.entry(group).or_insert(plan.shared_bytes);
            home.offset = *end;
            *end += home.tile.bytes().next_multiple_of(plan.alignment);
        }
        plan.brief_bytes = ends.into_values().max().map_or(0, |end| end - plan.shared_bytes);
        let registers = |v: &Value| {
            let (rows, columns) = shape(kernel, *v);
            if plan.home(*v).is_some() { 0 } else { plan.layout(rows, columns).registers() }
        };
        let of = |inst: &&Inst| inst.op.uses().iter().map(registers).sum();
        plan.product_registers = uses.products.iter().map(of).max();
        plan
    }

    /// Decides how sums of so many rows lie: if there is one value a row too, so that threads hold that of their rows.
    fn lay_out(&mut self, kernel: &Kernel, rows: u32, columns: &[u32], warpgroups: bool) {
        let sums = |tile: Value| {
            let (r, c) = shape(kernel, tile);
            r == rows && columns.contains(&c)
        };
        let together = match rows_of_sums(kernel, &kernel.body, rows, &sums) {
            Some(true) => Layout::together(rows, columns),
            Some(false) | None => None,
        };
        let layouts = match together {
            Some((mut sums, values)) => {
                sums.push(values);
                sums
            }
            None => columns.iter().filter_map(|&c| laid_out(rows, c, warpgroups)).collect(),
        };
        self.layouts.extend(layouts.into_iter().map(|l| ((l.rows, l.columns), l)));
    }

    /// Decides how factors that are computed lie in registers: in units, as they are read and as tensor cores take them.
    fn lay_out_factors(&mut self, kernel: &Kernel, uses: &Uses<'_>) {
        for inst in &uses.products {
            let (Op::Dot(a, b, _), Some(dtype)) = (&inst.op, self.products.get(&inst.results[0])) else { continue };
            let size = dtype.size_in_bytes() as u32;
            for (side, factor) in [a, b].into_iter().enumerate().filter(|(_, v)| !self.by_value.contains_key(v)) {
                let ((rows, columns), down) = (shape(kernel, *factor), uses.is_of_transposed(kernel, *factor));
                let (across, along) = if down { (columns, rows) } else { (rows, columns) };
                let mut tile = SharedTile::new(across, along, size, true);
                if self.of_warpgroups.contains(&inst.results[0]) {
                    tile = self.in_panels(kernel, inst.results[0], side == 1, tile, down);
                }
                // Threads that write units at a time have those of one panel.
                let threads = if tile.panel() < tile.units() { tile.panel() } else { tile.units().next_power_of_two() };
                let layout = Layout::runs(rows, columns, threads, UNIT / size, down);
                if (along * size).is_multiple_of(UNIT) && threads <= BLOCK_SIZE {
                    self.layouts.entry((rows, columns)).or_insert(layout);
                }
            }
        }
    }

    /// Finds the loops that read ahead: the outermost ones, since those inside of them share their shared memory.
    fn read_ahead(&mut self, kernel: &Kernel, block: &Block, effort: Effort) {
        for inst in &block.insts {
            if let Op::For { index, body, .. } = &inst.op
                && let Some(mut ahead) = self.ahead_of(body, effort)
            {
                let mapped = self.has_warpgroups() && ahead.homes.iter().all(|&home| has_boxes(&self.homes[home]));
                let mut barriers = 1;
                if mapped && let Some(producer) = self.producer_of(kernel, *index, body, &ahead) {
                    if effort >= Effort::Most {
                        ahead.stages = (producer.stages_bytes() / ahead.stage_bytes).clamp(2, MOST_STAGES_IN_PLACE);
                    }
                    self.producer = Some(producer);
                    barriers = 2;
                }
                self.shared_bytes += ahead.stages * ahead.stage_bytes;
                if mapped {
                    ahead.barriers = Some(self.shared_bytes);
                    self.shared_bytes += (barriers * BARRIER * ahead.stages).next_multiple_of(self.alignment);
                    self.add_maps(&ahead);
                }
                self.loops.insert(*index, ahead);
                let inner = body.insts.iter().flat_map(|inst| inst.op.blocks());
                inner.for_each(|(inner, _)| self.make_brief(inner, false));
                continue;
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.read_ahead(kernel, inner, effort));
        }
    }

    /// What a warp of its own does to ask for a loop's tiles, if the loop does nothing but add products of these to its sums, and
    /// no other loop has one.
    fn producer_of(&self, kernel: &Kernel, index: Value, body: &Block, ahead: &Ahead) -> Option<Producer> {
        let products = body.insts.iter().filter(|inst| matches!(inst.op, Op::Dot(..))).count();
        let alone = products > 0 && products == ahead.in_place.len() && self.producer.is_none();
        let sums = |sums: &InPlace| {
            let (rows, columns) = shape(kernel, sums.product);
            self.layout(rows, columns).registers() as u32
        };
        alone.then(|| Producer::find(kernel, index, ahead, ahead.in_place.iter().map(sums).sum()))?
    }

    /// Asks for the maps of a loop's tiles.
    fn add_maps(&mut self, ahead: &Ahead) {
        if self.maps.is_empty() {
            self.maps.push(Slot::Mapped);
        }
        for &home in &ahead.homes {
            let map = map_of(&self.homes[home]);
            if !self.maps.contains(&map) {
                self.maps.push(map);
            }
        }
    }

    /// Makes tiles brief that are read in a loop inside of another.
    fn make_inner_brief(&mut self, block: &Block) {
        for inst in &block.insts {
            if let Op::For { body, .. } = &inst.op {
                let inner = body.insts.iter().flat_map(|inst| inst.op.blocks());
                inner.for_each(|(inner, _)| self.make_brief(inner, false));
                continue;
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.make_inner_brief(inner));
        }
    }

    /// Tiles that are read in a loop inside of one that reads ahead, and those that threads multiply, share the memory of
    /// operations, if none of these comes before their products.
    fn make_brief(&mut self, block: &Block, by_threads: bool) {
        let is_home = |plan: &Self, v: &Value| plan.by_value.contains_key(v);
        for (i, load) in block.insts.iter().enumerate() {
            load.op.blocks().into_iter().for_each(|(inner, _)| self.make_brief(inner, by_threads));
            let Some(&home) = load.results.first().and_then(|v| self.by_value.get(v)) else { continue };
            if self.homes[home].ahead || (by_threads && self.homes[home].tile.swizzled) {
                continue;
            }
            let takes = |inst: &Inst| inst.op.uses().contains(&load.results[0]);
            let Some(last) = block.insts.iter().rposition(takes) else { continue };
            let leaves_shared = |inst: &Inst| {
                let moves = matches!(inst.op, Op::TileLoad { .. } | Op::Get(_) | Op::Set(..) | Op::Var(_));
                let of_homes = matches!(&inst.op, Op::Dot(a, b, _) if is_home(self, a) && is_home(self, b));
                moves || of_homes || is_pure(&inst.op, &HashSet::new())
            };
            let inner = |inst: &Inst| inst.op.blocks().iter().any(|(inner, _)| takes_in(inner, load.results[0]));
            let brief = block.insts[i..=last].iter().all(leaves_shared) && !block.insts.iter().any(inner);
            // Those of other blocks are not there at the same time.
            let of_block = block.insts.iter().flat_map(|inst| &inst.results).map(|v| v.0).min();
            self.homes[home].brief = of_block.filter(|_| brief);
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
        let bytes = |plan: &Self, home: usize| plan.homes[home].tile.bytes().next_multiple_of(plan.alignment);
        let stage_bytes: u32 = homes.iter().map(|&home| bytes(self, home)).sum();
        // Factors of 4 bytes and more that take much room are better off in registers.
        let wide = homes.iter().any(|&home| !self.homes[home].tile.swizzled);
        if homes.is_empty() || (wide && 2 * stage_bytes > WIDE_STAGES_BYTES) {
            return None;
        }
        let in_place = self.in_place(body, &homes);
        let most = if in_place.is_empty() { MOST_STAGES } else { MOST_STAGES_IN_PLACE };
        let stages = if effort >= Effort::Most { (STAGES_BYTES / stage_bytes).clamp(2, most) } else { 2 };
        let mut offset = 0;
        for &home in &homes {
            (self.homes[home].offset, self.homes[home].ahead) = (offset, true);
            offset += bytes(self, home);
        }
        Some(Ahead { homes, insts, offset: self.shared_bytes, stage_bytes, stages, in_place, barriers: None })
    }

    /// The products of warpgroups in a loop's body, of tiles that it reads ahead, that do nothing but add to a variable.
    fn in_place(&self, body: &Block, homes: &[usize]) -> Vec<InPlace> {
        let is_ahead = |v: &Value| self.by_value.get(v).is_some_and(|home| homes.contains(home));
        // How many instructions take a value; any number if one of an inner block does.
        let takers = |v: Value| -> usize {
            let inner = |inst: &Inst| inst.op.blocks().iter().any(|(block, _)| takes_in(block, v));
            body.insts.iter().map(|inst| usize::from(inst.op.uses().contains(&v)) + 9 * usize::from(inner(inst))).sum()
        };
        let product = |inst: &Inst| {
            let Op::Dot(a, b, before) = inst.op else { return None };
            let product = inst.results[0];
            let variable = body.insts.iter().find_map(|inst| {
                if let Op::Get(variable) = inst.op { (inst.results[0] == before).then_some(variable) } else { None }
            })?;
            let set = body.insts.iter().any(|inst| inst.op == Op::Set(variable, product));
            let alone = takers(before) == 1 && takers(product) == 1 && takers(variable) == 2;
            let adds = set && alone && is_ahead(&a) && is_ahead(&b) && self.of_warpgroups.contains(&product);
            adds.then_some(InPlace { product, before })
        };
        body.insts.iter().filter_map(product).collect()
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

    /// Whether a warpgroup makes a product.
    pub fn of_warpgroups(&self, product: Value) -> bool {
        self.of_warpgroups.contains(&product)
    }

    /// Whether a value is a sum that stays in a variable's registers.
    pub fn stays_in_place(&self, value: Value) -> bool {
        let mut in_place = self.loops.values().flat_map(|ahead| &ahead.in_place);
        in_place.any(|sums| sums.product == value || sums.before == value)
    }

    /// Whether warpgroups make products.
    pub fn has_warpgroups(&self) -> bool {
        !self.of_warpgroups.is_empty()
    }

    /// A factor of a product as a warpgroup reads it; `transposed` if it lies the other way round.
    pub fn in_panels(
        &self,
        kernel: &Kernel,
        product: Value,
        right: bool,
        tile: SharedTile,
        transposed: bool,
    ) -> SharedTile {
        let (rows, columns) = shape(kernel, product);
        let Kind::Fragments { warp_columns, .. } = self.layout(rows, columns).kind else { return tile };
        // Where rows in shared memory are along the product's rows or columns, each warpgroup has whole panels of its own.
        let own = if right { columns / warp_columns } else { 64 };
        tile.in_panels(if transposed == right { tile.columns } else { own })
    }

    /// The dtypes of the factors of a product as tensor cores take them, if they make it.
    pub fn factor_dtypes(&self, product: Value) -> Option<[DType; 2]> {
        let of_bytes = self.byte_product(product).map(|product| product.dtypes);
        of_bytes.or_else(|| self.tensor_core(product).map(|dtype| [dtype; 2]))
    }

    /// A product, if a tensor core makes it of bytes.
    pub fn byte_product(&self, product: Value) -> Option<ByteProduct> {
        self.byte_products.get(&product).copied()
    }

    /// Whether there are products of bytes that only newer versions of PTX have.
    pub fn has_new_byte_products(&self) -> bool {
        let mixed = |product: &ByteProduct| product.dtypes[0] != product.dtypes[1];
        let is_new = |(v, product): (&Value, &ByteProduct)| {
            product.of_floats() || (mixed(product) && self.of_warpgroups.contains(v))
        };
        self.byte_products.iter().any(is_new)
    }

    /// The dtype of a product's factors, if a tensor core makes it of halves, or of `f32` rounded to tf32.
    pub fn tensor_core(&self, product: Value) -> Option<DType> {
        self.products.get(&product).copied()
    }
}

/// Whether code has tiles of one column and so many rows (`Some(true)`: yes), and these are made from sums, or from each
/// other, and used for both alone (`None`: no), so that it does not matter how many threads hold the same.
fn rows_of_sums(kernel: &Kernel, block: &Block, rows: u32, sums: &impl Fn(Value) -> bool) -> Option<bool> {
    let is_column = |v: &Value| shape(kernel, *v) == (rows, 1) && is_tile(kernel, *v);
    let mut any = false;
    for inst in &block.insts {
        let made = inst.results.iter().any(is_column);
        let used = inst.op.uses().iter().any(is_column);
        any |= made;
        let apart = match &inst.op {
            Op::TileLoad { .. } | Op::TileStore { .. } | Op::Dot(..) => made || used,
            Op::TileReduce(_, tile) => used || (made && !sums(*tile)),
            Op::TileMap { body, .. } => {
                let pure = body.insts.iter().all(|inst| is_pure(&inst.op, &HashSet::new()));
                (made || used) && !((made || sums(inst.results[0])) && pure)
            }
            Op::If { .. } | Op::While { .. } | Op::For { .. } => false,
            Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } => false,
            Op::TileFull(_) | Op::TileCast(_) | Op::TileRound(..) | Op::Var(_) | Op::Get(_) | Op::Set(..) => false,
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => false,
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => false,
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) => false,
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Print { .. } => false,
        };
        if apart {
            return None;
        }
        for (inner, _) in inst.op.blocks() {
            any |= rows_of_sums(kernel, inner, rows, sums)?;
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
pub(super) fn is_pure(op: &Op, assigned: &HashSet<Value>) -> bool {
    match op {
        Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => true,
        Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => true,
        Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) => true,
        Op::Get(variable) => !assigned.contains(variable),
        Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Set(..) | Op::Print { .. } => false,
        Op::If { .. } | Op::While { .. } | Op::For { .. } => false,
        Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } => false,
        Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileMap { .. } | Op::TileReduce(..) => false,
        Op::Dot(..) | Op::TileCast(_) | Op::TileRound(..) => false,
    }
}
