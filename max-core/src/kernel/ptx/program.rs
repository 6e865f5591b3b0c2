//! Program kernels: the loop over program instances, and the instructions of a block.

use super::Slot;
use super::analysis::hazards::Hazards;
use super::emitter::{Fixed, Gen};
use super::machine::barriers::Effect;
use super::machine::{Class, Reg, Special};
use super::memory::tile_io::TileAt;
use crate::dtype::DType;
use crate::kernel::ir::{Block, Inst, Loc, Op, Type, Value};

/// Rows of programs that go through their columns together where programs multiply tiles: what blocks read at a time is
/// then few rows of the left operand and few columns of the right one, which stay in the cache, and not all columns for
/// one row.
const GROUP: u32 = 8;

impl Gen<'_> {
    pub fn program(&mut self) {
        match self.plan.producer {
            Some(_) => self.warp_specialized_program(),
            None => self.instances(Self::instance),
        }
    }

    /// The loop over a block's program instances.
    pub fn instances(&mut self, body: impl FnOnce(&mut Self)) {
        let grid = [0, 1, 2].map(|axis| self.fixed(Fixed::Slot(Slot::Grid { axis })));
        let block = self.op1(Class::B32, "mov.u32", Special::Block);
        let blocks = self.op1(Class::B32, "mov.u32", Special::Blocks);
        let instance = self.op1(Class::B64, "cvt.u64.u32", block);
        let step = self.op1(Class::B64, "cvt.u64.u32", blocks);
        let inner = self.op2(Class::B64, "mul.lo.s64", grid[1], grid[2]);
        let total = self.op2(Class::B64, "mul.lo.s64", grid[0], inner);
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", instance, total);
        emit!(self, @done, "bra", end);
        let multiplies = self.plan.dot_registers.is_some();
        let zero = |g: &mut Self| g.zero(Class::B64);
        self.program_ids = match self.kernel.grid.len() {
            0 | 1 => vec![self.copy(instance), zero(self), zero(self)],
            2 => {
                let [first, second] = match multiplies {
                    true => self.in_groups(instance, grid[0], grid[1]),
                    false => self.div_rem(instance, grid[1]),
                };
                vec![first, second, zero(self)]
            }
            _ => {
                let [first, rest] = self.div_rem(instance, inner);
                let [second, third] = match multiplies {
                    true => self.in_groups(rest, grid[1], grid[2]),
                    false => self.div_rem(rest, grid[2]),
                };
                vec![first, second, third]
            }
        };
        body(self);
        emit!(self, "add.s64", instance, instance, step);
        emit!(self, "bra", head);
        self.place_label(end);
    }

    /// The row and column of the `n`-th program of so many rows and columns: those of [`GROUP`] rows one column after
    /// the other, then those of the next rows.
    fn in_groups(&mut self, n: Reg, rows: Reg, columns: Reg) -> [Reg; 2] {
        let in_group = self.op2(Class::B64, "mul.lo.s64", columns, GROUP);
        let [group, n] = self.div_rem(n, in_group);
        let first = self.op2(Class::B64, "mul.lo.s64", group, GROUP);
        let height = self.op2(Class::B64, "sub.s64", rows, first);
        let height = self.op2(Class::B64, "min.s64", height, GROUP);
        let [column, row] = self.div_rem(n, height);
        [self.op2(Class::B64, "add.s64", first, row), column]
    }

    /// One program instance.
    pub fn instance(&mut self) {
        let kernel = self.kernel;
        let around = self.at(Loc::default());
        for (i, inst) in kernel.body.insts.iter().enumerate() {
            self.at(inst.loc);
            self.cache_rows(i);
            self.inst(inst);
        }
        self.at(around);
        self.mark(Effect::InstanceEnd);
    }

    pub fn no_touches(&self) -> Hazards {
        Hazards::new(self.plan.clone())
    }

    pub fn block(&mut self, block: &Block) {
        let around = self.at(Loc::default());
        block.insts.iter().for_each(|inst| self.inst(inst));
        // What ends a loop is for the loop's sake.
        self.at(around);
    }

    fn scalar_operands<const N: usize>(&self, values: [Value; N]) -> [Reg; N] {
        values.map(|v| self.get(v))
    }

    pub fn inst(&mut self, inst: &Inst) {
        self.at(inst.loc);
        let result = match &inst.op {
            Op::Const(bits) => {
                let dtype = self.dtype(inst.results[0]);
                self.constant(dtype, *bits)
            }
            Op::Param(index) => self.param(*index, inst.results[0]),
            Op::ProgramId(axis) => self.program_ids[*axis as usize],
            Op::NumPrograms(axis) => self.fixed(Fixed::Slot(Slot::Grid { axis: *axis })),
            Op::Dim { operand, axis } => self.dim(*operand, *axis),
            Op::Unary(op, a) => self.unary(*op, self.dtype(*a), self.get(*a)),
            Op::Binary(op, a, b) => self.binary(*op, self.dtype(*a), self.get(*a), self.get(*b)),
            Op::Cmp(op, a, b) => self.cmp(*op, self.dtype(*a), self.get(*a), self.get(*b)),
            Op::Select(c, a, b) => self.select(self.get(*c), self.get(*a), self.get(*b)),
            Op::Fma(a, b, c) => {
                let [x, y, z] = self.scalar_operands([*a, *b, *c]);
                self.fma(self.dtype(*a), x, y, z)
            }
            Op::Cast(a) => self.cast(self.dtype(*a), self.dtype(inst.results[0]), self.get(*a)),
            Op::Bitcast(a) => self.bitcast(self.dtype(inst.results[0]), self.get(*a)),
            Op::Round(dtype, a) => self.round(*dtype, self.get(*a)),
            Op::FromBits(dtype, a) => self.decode_bits(*dtype, self.get(*a)),
            Op::ToBits(dtype, a) => self.encode_bits(*dtype, self.dtype(inst.results[0]), self.get(*a)),
            Op::Load { operand, index, pad } => {
                self.touch_memory(inst);
                self.load(inst.results[0], *operand, index, *pad)
            }
            Op::Store { operand, index, value, scatter } => {
                self.touch_memory(inst);
                return self.store(*operand, index, *value, *scatter);
            }
            Op::Atomic { op, operand, index, value } => {
                self.touch_memory(inst);
                return self.atomic(*op, *operand, index, *value);
            }
            Op::Get(variable) if self.plan.stays_in_place(inst.results[0]) => {
                return self.set_all(inst.results[0], self.all(*variable));
            }
            Op::Print { label, values } => return self.print(label, values),
            // A variable is mutable and its value is not: each has registers of its own.
            Op::Var(a) | Op::Get(a) => {
                let copies = self.all(*a).into_iter().map(|r| self.copy(r)).collect();
                return self.set_all(inst.results[0], copies);
            }
            Op::Set(variable, value) => {
                let (to, from) = (self.all(*variable), self.all(*value));
                let moved = to.into_iter().zip(from).filter(|(to, from)| to != from);
                return moved.for_each(|(to, from)| self.mov(to, from));
            }
            Op::If { condition, then, otherwise } => return self.if_else(inst, *condition, then, otherwise),
            Op::While { condition, body } => return self.while_loop(condition, body),
            Op::For { lo, hi, step, index, body } => return self.for_loop([*lo, *hi, *step], *index, body),
            Op::Lanes { len, index, body } => return self.lanes(inst, *len, *index, body),
            Op::Fold { .. } => return self.fold(inst),
            Op::Scan { .. } => return self.scan(inst),
            Op::TileFull(a) => return self.tile_full(inst.results[0], *a),
            // Issued before.
            Op::TileLoad { .. } if self.pipeline.contains_key(&inst.results[0]) => return,
            Op::TileLoad { operand, batch, origin, transpose } => {
                self.touch_memory(inst);
                if self.plan.smem_tile(inst.results[0]).is_some() {
                    return self.load_to_smem(inst);
                }
                let at = TileAt { operand: *operand, batch, origin: *origin, transpose: *transpose };
                return self.tile_load(inst.results[0], at);
            }
            Op::TileStore { operand, batch, origin, value } => {
                self.touch_memory(inst);
                let at = TileAt { operand: *operand, batch, origin: *origin, transpose: false };
                return self.tile_store(at, *value);
            }
            Op::TileMap { inputs, position, elements, body } => {
                return self.tile_map(inst, inputs, *position, elements, body);
            }
            Op::TileReduce(op, a) => return self.tile_reduce(inst.results[0], *op, *a),
            Op::TileElement(a, index) => return self.tile_element(inst.results[0], *a, *index),
            Op::Dot(a, b, acc) => {
                if let Some(dtypes) = self.plan.dot_operand_dtypes(inst.results[0])
                    && self.plan.by_wgmma(inst.results[0])
                {
                    return self.wgmma_dot(inst.results[0], [*a, *b], *acc, dtypes);
                }
                if let Some(dot) = self.plan.byte_dot(inst.results[0]) {
                    return self.byte_dot(inst.results[0], [*a, *b], *acc, dot);
                }
                return match self.plan.tensor_core(inst.results[0]) {
                    Some(DType::F32) => self.tf32_dot(inst.results[0], [*a, *b], *acc),
                    Some(dot_operand) => self.mma_dot(inst.results[0], [*a, *b], *acc, dot_operand),
                    None => match self.plan.sliced_k(inst.results[0]) {
                        Some(sliced) => self.sliced_dot(inst.results[0], [*a, *b], *acc, sliced),
                        None => self.dot(inst.results[0], *a, *b, *acc),
                    },
                };
            }
            Op::TileCast(a) => {
                let (from, to) = (self.dtype(*a), self.dtype(inst.results[0]));
                let cast = self.all(*a).into_iter().map(|r| self.cast(from, to, r)).collect();
                return self.set_all(inst.results[0], cast);
            }
            Op::TileRound(dtype, a) => {
                let values = self.all(*a);
                let rounded = values.chunks(2).flat_map(|pair| self.rounded(*dtype, pair)).collect();
                return self.set_all(inst.results[0], rounded);
            }
        };
        self.set(inst.results[0], result);
    }

    /// In program code, waits for what touched the same memory before.
    fn touch_memory(&mut self, inst: &Inst) {
        if !self.in_lanes {
            let mut next = self.no_touches();
            next.add(inst, false);
            self.before(next);
        }
    }

    fn param(&mut self, index: u32, result: Value) -> Reg {
        let dtype = self.dtype(result);
        let class = Class::of(dtype);
        if let Class::B16 | Class::B32 | Class::F32 = class {
            let low = self.fixed(Fixed::LowBits { param: index, class });
            return self.narrow(dtype, low);
        }
        let bits = self.fixed(Fixed::Slot(Slot::Param { index }));
        match class {
            Class::Pred => self.op2(Class::Pred, "setp.ne.s64", bits, 0),
            Class::F64 => self.op1(Class::F64, "mov.b64", bits),
            Class::B16 | Class::B32 | Class::B64 | Class::F32 => bits,
        }
    }

    /// New registers for a value.
    fn fresh(&mut self, value: Value) -> Vec<Reg> {
        let class = Class::of(self.dtype(value));
        let count = match self.kernel.ty(value) {
            Type::Scalar(_) | Type::Var(_) => 1,
            Type::Tile(..) | Type::TileVar(..) => self.layout(value).registers(),
        };
        (0..count).map(|_| self.reg(class)).collect()
    }

    fn if_else(&mut self, inst: &Inst, condition: Value, then: &Block, otherwise: &Block) {
        let (other, end) = (self.label(), self.label());
        let results: Vec<Vec<Reg>> = inst.results.iter().map(|&v| self.fresh(v)).collect();
        let condition = self.get(condition);
        emit!(self, @!condition, "bra", other);
        self.branch(then, &results);
        if *otherwise == Block::default() {
            self.place_label(other);
        } else {
            emit!(self, "bra", end);
            self.place_label(other);
            self.branch(otherwise, &results);
            self.place_label(end);
        }
        inst.results.iter().zip(results).for_each(|(&v, regs)| self.set_all(v, regs));
    }

    fn branch(&mut self, block: &Block, results: &[Vec<Reg>]) {
        self.block(block);
        for (&value, to) in block.yields.iter().zip(results) {
            let from = self.all(value);
            to.iter().zip(from).for_each(|(&to, from)| self.mov(to, from));
        }
    }

    fn while_loop(&mut self, condition: &Block, body: &Block) {
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        self.block(condition);
        let holds = self.get(condition.yields[0]);
        emit!(self, @!holds, "bra", end);
        self.block(body);
        emit!(self, "bra", head);
        self.place_label(end);
    }

    fn for_loop(&mut self, bounds: [Value; 3], index: Value, body: &Block) {
        let plan = self.plan.clone();
        if let Some(pipeline) = plan.pipeline(index) {
            return self.pipelined_loop(bounds, index, body, pipeline);
        }
        let (head, end) = (self.label(), self.label());
        let (lo, steps) = self.steps(bounds);
        let i = self.copy(lo);
        self.set(index, i);
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", i, steps.hi);
        emit!(self, @done, "bra", end);
        self.block(body);
        self.step(i, steps);
        emit!(self, "bra", head);
        self.place_label(end);
    }
}
