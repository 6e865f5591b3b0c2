//! Lane code: loops whose indices a block's threads share, and block-wide reductions.
//!
//! A thread takes several neighbouring indices at a time if the body reads or writes rows at its index: as many as make
//! a vectorized access of 16 bytes ([`vectorize`](super::memory::vectorize)). Where rows are not aligned, neighbouring
//! threads take neighbours instead (coalesced access), if the order does not matter or the length alone decides it.
//! What the body touches elsewhere is accessed one element at a time.
//!
//! A fold has three steps: each thread folds its own indices; the threads of a warp combine theirs by shuffles, in a
//! tree by halves; the warps' results go through shared memory, where every warp combines them in the same way. The
//! tree depends on the length and on the code alone, not on the layout of rows or on the launch.
//!
//! Prefix scans stand in [`scan`].

pub(super) mod row_cache;
pub(super) mod scan;

use super::analysis::hazards::{READ, WRITE};
use super::emitter::{Fixed, Gen, loops_in_lanes};
use super::machine::{Class, Operand, Reg, mem_at, vector_of};
use super::memory::vectorize::{Element, Elements, Line, is_fixed};
use super::{BLOCK_SIZE, WARPS};
use crate::kernel::ir::{BinaryOp, Block, Inst, Loc, Op, Value};

/// Bytes of shared memory for each warp's value of one accumulator.
const SLOT: u32 = 8;

/// A load or store of a loop's code at the loop's index of a row, the same one for all indices, or so far from it.
pub(super) struct Access<'k> {
    operand: u32,
    /// The coordinates, and the instructions of the code that make them.
    at: &'k [Value],
    made_by: Vec<&'k Inst>,
    along: Along,
    /// What is loaded, if it is no store.
    load: Option<Value>,
    loc: Loc,
}

/// What is accessed, and the row that it is in.
pub(super) type Rowwise<'k> = Vec<(Access<'k>, Line)>;

/// How the last coordinate of an access follows the index of a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    /// It is the index.
    Index,
    /// It is the index and something that is the same for all.
    Rising,
    /// It is something that is the same for all, less the index.
    Falling,
}

/// The operands that a block accesses, and whether it writes there.
fn accessed(block: &Block, found: &mut Vec<(u32, bool)>) {
    for Inst { op, .. } in &block.insts {
        if let Op::Load { operand, .. } = op {
            found.push((*operand, false));
        } else if let Op::Store { operand, .. } | Op::Atomic { operand, .. } = op {
            found.push((*operand, true));
        }
        op.blocks().into_iter().for_each(|(inner, _)| accessed(inner, found));
    }
}

/// The code of one loop of lanes.
pub(super) struct LaneCode<'k> {
    pub index: Value,
    /// Values that each round of the loop has for itself, beside the index.
    pub own: &'k [Value],
    /// All of the loop's blocks.
    pub blocks: Vec<&'k Block>,
}

impl<'k> LaneCode<'k> {
    /// The accesses of one of the blocks that a thread can make for several indices at once: loads before all else, if
    /// the loop does not write to the operand, and stores behind it, if they alone touch it. Code with loops takes long
    /// enough to be spread over as many threads as there are.
    pub fn at_index(&self, block: &'k Block) -> Vec<Access<'k>> {
        if self.blocks.iter().any(|block| loops_in_lanes(&block.insts, true)) {
            return Vec::new();
        }
        let mut all = Vec::new();
        self.blocks.iter().for_each(|block| accessed(block, &mut all));
        let count = |operand: u32, is_write: bool| all.iter().filter(|a| **a == (operand, is_write)).count();
        let access = |inst: &'k Inst| {
            let (operand, at, load) = if let Op::Load { operand, index, .. } = &inst.op
                && count(*operand, true) == 0
            {
                (*operand, index, Some(inst.results[0]))
            } else if let Op::Store { operand, index, scatter: false, .. } = &inst.op
                && [count(*operand, true), count(*operand, false)] == [1, 0]
            {
                (*operand, index, None)
            } else {
                return None;
            };
            let (last, row) = at.split_last()?;
            let along = self.along(*last, block).filter(|_| row.iter().all(|v| self.is_same(*v, block)))?;
            Some(Access { operand, at, made_by: defs(at, block), along, load, loc: inst.loc })
        };
        block.insts.iter().filter_map(access).collect()
    }

    /// Whether a value is the same for all indices.
    fn is_same(&self, value: Value, block: &Block) -> bool {
        let made = block.insts.iter().any(|inst| inst.results.contains(&value) && !is_fixed(&inst.op));
        !made && value != self.index && !self.own.contains(&value)
    }

    /// How a value follows the index.
    fn along(&self, value: Value, block: &Block) -> Option<Along> {
        if value == self.index {
            return Some(Along::Index);
        }
        let inst = block.insts.iter().find(|inst| inst.results.contains(&value))?;
        let Op::Binary(op, a, b) = inst.op else { return None };
        let (from, to) = match [a, b].map(|v| self.is_same(v, block)) {
            [false, true] => (a, Along::Rising),
            [true, false] if op == BinaryOp::Sub => (b, Along::Falling),
            [true, false] => (b, Along::Rising),
            [true, true] | [false, false] => return None,
        };
        let before = self.along(from, block).filter(|_| matches!(op, BinaryOp::Add | BinaryOp::Sub))?;
        Some(match before {
            Along::Index | Along::Rising => to,
            Along::Falling if to == Along::Falling => Along::Rising,
            Along::Falling => Along::Falling,
        })
    }
}

/// The instructions of a block that make values.
fn defs<'k>(values: &[Value], block: &'k Block) -> Vec<&'k Inst> {
    let mut needed = values.to_vec();
    let mut found: Vec<&Inst> = Vec::new();
    for inst in block.insts.iter().rev().filter(|inst| inst.op.blocks().is_empty()) {
        if inst.results.iter().any(|result| needed.contains(result)) {
            needed.extend(inst.op.uses());
            found.push(inst);
        }
    }
    found.reverse();
    found
}

impl Gen<'_> {
    /// Writes the body of a loop, by `each`, for each index that this thread takes. What is folded into `acc` goes
    /// there in an order that depends on nothing but the length.
    fn lane_loop(&mut self, len: Reg, index: Value, acc: &[Value], body: &Block, each: impl Fn(&mut Self)) {
        let thread = self.fixed(Fixed::Thread64);
        let accesses = LaneCode { index, own: acc, blocks: vec![body] }.at_index(body);
        let width = self.width_of_lanes(accesses.iter(), &[body]);
        if width == 1 {
            let at = self.copy(thread);
            return self.element_loop(at, BLOCK_SIZE, len, |g| {
                g.set(index, at);
                g.lane_code(each);
            });
        }
        let mut rows = self.rows_at_index(accesses, index, width);
        let at = self.op2(Class::B64, "mul.lo.s64", thread, width);
        // Where threads do not take neighbours, these go to neighbouring threads.
        let neighbours = match acc.is_empty() {
            true => rows.iter_mut().fold(None, |all, (_, line)| self.both(all, line.vectors.take())),
            false => self.folds_neighbours(&rows, len, width),
        };
        let apart = neighbours.map(|neighbours| {
            emit!(self, "selp.b64", at, at, thread, neighbours);
            (self.selp(Class::B64, 1, BLOCK_SIZE, neighbours), neighbours)
        });
        self.element_loop(at, BLOCK_SIZE * width, len, |g| {
            let elements = g.elements(at, len, width, apart);
            let raw = g.load_rows(&rows, &elements);
            g.each_of(&elements, |g, v, at| {
                g.set(index, at);
                g.take_element(&rows, &raw, v, at);
                g.lane_code(&each);
            });
            g.store_rows(&rows, &elements, &raw);
        });
    }

    /// Whether the threads of a fold take neighbours: where rows consist of whole vectors, or are cached in shared
    /// memory. That depends on their length alone. Of others, few lie in vectors.
    fn folds_neighbours(&mut self, rows: &Rowwise<'_>, len: Reg, width: u32) -> Option<Reg> {
        let rest = self.op2(Class::B64, "and.b64", len, width - 1);
        let whole = self.op2(Class::Pred, "setp.eq.s64", rest, 0);
        let cached: Option<Vec<Reg>> = rows.iter().map(|(_, line)| line.cached.map(|(_, fits)| fits)).collect();
        let cached = cached.unwrap_or_default().into_iter().fold(None, |all, fits| self.both(all, Some(fits)));
        Some(cached.map_or(whole, |cached| self.op2(Class::Pred, "or.pred", whole, cached)))
    }

    /// How many indices of a loop of lanes a thread takes at a time.
    pub fn width_of_lanes<'a, 'k: 'a>(
        &self,
        accesses: impl Iterator<Item = &'a Access<'k>> + Clone,
        code: &[&Block],
    ) -> u32 {
        match accesses.clone().next() {
            None => 1,
            Some(_) => self.elements_at_once(accesses.map(|access| access.operand), code),
        }
    }

    /// The rows that accesses are to, where a thread takes so many indices at a time.
    pub fn rows_at_index<'k>(&mut self, accesses: Vec<Access<'k>>, index: Value, width: u32) -> Rowwise<'k> {
        self.vectorizes |= width > 1;
        let with_line = |access| {
            let line = self.line_of_row(&access, index, width);
            (access, line)
        };
        accesses.into_iter().map(with_line).collect()
    }

    /// Reads what a thread's elements load, and makes registers for what they store. All loads are on their way before any of
    /// them is waited for.
    pub fn load_rows(&mut self, rows: &Rowwise<'_>, elements: &Elements) -> Vec<Vec<Reg>> {
        let around = self.at(Loc::default());
        let raw = |(access, line): &(Access<'_>, Line)| {
            self.at(access.loc);
            match access.load {
                Some(_) => self.load_elements(line, elements),
                None => self.raw_elements(access.operand, elements),
            }
        };
        let loaded: Vec<Vec<Reg>> = rows.iter().map(raw).collect();
        let unpacked = |((access, line), packed): (&(Access<'_>, Line), Vec<Reg>)| match access.load {
            Some(_) => self.unpack(line, &packed, elements.width),
            None => packed,
        };
        let raw = rows.iter().zip(loaded).map(unpacked).collect();
        self.at(around);
        raw
    }

    /// Has the lane code that follows take one of a thread's elements, by its number and index.
    pub fn take_element(&mut self, rows: &Rowwise<'_>, raw: &[Vec<Reg>], number: usize, index: Reg) {
        for (&(ref access, line), raw) in rows.iter().zip(raw) {
            let element = Element { line, index, raw: raw[number] };
            match access.load {
                Some(load) => self.loaded.insert(load, element),
                None => self.to_store.insert(access.operand, element),
            };
        }
    }

    /// Writes what a thread's elements store.
    pub fn store_rows(&mut self, rows: &Rowwise<'_>, elements: &Elements, raw: &[Vec<Reg>]) {
        self.loaded.clear();
        self.to_store.clear();
        let around = self.at(Loc::default());
        for ((access, line), raw) in rows.iter().zip(raw).filter(|((access, _), _)| access.load.is_none()) {
            self.at(access.loc);
            self.store_elements(line, elements, raw);
        }
        self.at(around);
    }

    /// The row that an access of a loop's code is to.
    fn line_of_row(&mut self, access: &Access<'_>, index: Value, width: u32) -> Line {
        if access.along != Along::Index {
            // The coordinates of index 0.
            let zero = self.zero(Class::B64);
            self.set(index, zero);
        }
        access.made_by.iter().for_each(|inst| self.inst(inst));
        let (operand, axis) = (access.operand, access.at.len() as u32 - 1);
        let row: Vec<Reg> = access.at[..axis as usize].iter().map(|&v| self.get(v)).collect();
        let (mut offset, there) = self.offset(operand, &row, 0, None, None);
        let (mut stride, len) = (self.stride(operand, axis), self.dim(operand, axis));
        let from = (access.along != Along::Index).then(|| self.get(access.at[axis as usize]));
        if let Some(from) = from {
            offset = self.offset_along(stride, from, offset);
        }
        if access.along == Along::Falling {
            stride = self.op1(Class::B64, "neg.s64", stride);
        }
        let first = self.address(operand, offset);
        let cached =
            access.load.and_then(|load| self.plan.rows.of(load)).and_then(|row| self.cached.get(&row).copied());
        let falls = access.along == Along::Falling;
        let line = Line { operand, first, stride, falls, len: Some((from, len)), there, vectors: None, cached };
        let vectors = self.line_is_vectorizable(&line, width, access.load.is_some());
        Line { vectors: Some(vectors), ..line }
    }

    pub fn lane_code<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        self.in_lanes = true;
        let result = body(self);
        self.in_lanes = false;
        result
    }

    pub fn lanes(&mut self, inst: &Inst, len: Value, index: Value, body: &Block) {
        let mut touched = self.no_touches();
        touched.add(inst, false);
        self.before(touched);
        let len = self.get(len);
        self.lane_loop(len, index, &[], body, |g| g.block(body));
    }

    /// `combine(left, right)`.
    pub fn combine(&mut self, lhs: &[Value], rhs: &[Value], combine: &Block, left: &[Reg], right: &[Reg]) -> Vec<Reg> {
        lhs.iter().zip(left).chain(rhs.iter().zip(right)).for_each(|(&v, &r)| self.set(v, r));
        self.lane_code(|g| g.block(combine));
        combine.yields.iter().map(|&v| self.get(v)).collect()
    }

    pub fn fold(&mut self, inst: &Inst) {
        let Op::Fold { len, index, init, acc, body, lhs, rhs, combine } = &inst.op else {
            return;
        };
        let mut touched = self.no_touches();
        touched.add_block(body, true);
        self.before(touched);
        let partial: Vec<Reg> = init.iter().map(|&v| self.copy(self.get(v))).collect();
        let len = self.get(*len);
        self.lane_loop(len, *index, acc, body, |g| {
            acc.iter().zip(&partial).for_each(|(&v, &r)| g.set(v, r));
            g.block(body);
            // All are read before any is replaced, as one may yield another's old value.
            let new: Vec<Reg> = body.yields.iter().map(|&v| g.copy(g.get(v))).collect();
            partial.iter().zip(new).for_each(|(&to, from)| g.mov(to, from));
        });
        let mut touched = self.no_touches();
        touched.add_block(combine, true);
        self.before(touched.clone());

        let mut value = partial;
        let tree = |g: &mut Self, mut value: Vec<Reg>, widest: u32| {
            let mut distance = widest;
            while distance > 0 {
                let right: Vec<Reg> = value.iter().map(|&r| g.shuffle("down", r, distance, 31)).collect();
                value = g.combine(lhs, rhs, combine, &value, &right);
                distance /= 2;
            }
            value
        };
        value = tree(self, value, 16);
        let lane = self.fixed(Fixed::Lane);
        let writer = self.op2(Class::Pred, "setp.eq.u32", lane, 0);
        value = self.exchange(&value, writer);
        value = tree(self, value, WARPS / 2);
        let results = value.into_iter().map(|r| self.shuffle("idx", r, 0, 31)).collect::<Vec<_>>();
        inst.results.iter().zip(results).for_each(|(&v, r)| self.set(v, r));
        self.touch(touched);
    }

    /// One thread of each warp gives its values; each thread gets those of the warp that its lane counts to, modulo the
    /// number of warps.
    pub fn exchange(&mut self, values: &[Reg], writer: Reg) -> Vec<Reg> {
        let mut writes = self.no_touches();
        writes.touch_shared(WRITE);
        self.before(writes);
        self.need_shared(u64::from(SLOT * WARPS) * values.len() as u64);
        let (shared, warp, lane) = (self.fixed(Fixed::Shared), self.fixed(Fixed::Warp), self.fixed(Fixed::Lane));
        let mine = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", mine, warp, SLOT, shared);
        for (i, &value) in (0..).zip(values) {
            self.store_shared(mine, i * SLOT * WARPS, value, Some(writer));
        }
        self.bar();
        let slot = self.op2(Class::B32, "and.b32", lane, WARPS - 1);
        let theirs = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", theirs, slot, SLOT, shared);
        self.touch_shared(READ);
        let read = |(i, value): (u32, &Reg)| self.load_shared(value.class, theirs, i * SLOT * WARPS);
        (0..).zip(values).map(read).collect()
    }

    /// Writes a register to shared memory.
    pub fn store_shared(&mut self, address: Reg, offset: u32, value: Reg, condition: Option<Reg>) {
        let value = match value.class {
            Class::Pred => self.selp(Class::B32, 1, 0, value),
            Class::B16 | Class::B32 | Class::B64 | Class::F32 | Class::F64 => value,
        };
        emit!(self, when condition, format!("st.shared.{}", value.class.ty()), mem_at(address, offset), value);
    }

    pub fn load_shared(&mut self, class: Class, address: Reg, offset: u32) -> Reg {
        match class {
            Class::Pred => {
                let word = self.load_shared(Class::B32, address, offset);
                self.op2(Class::Pred, "setp.ne.u32", word, 0)
            }
            Class::B16 | Class::B32 | Class::B64 | Class::F32 | Class::F64 => {
                let value = self.reg(class);
                emit!(self, format!("ld.shared.{}", class.ty()), value, mem_at(address, offset));
                value
            }
        }
    }

    /// Another lane's value; all lanes of the warp take part.
    pub fn shuffle(&mut self, mode: &str, value: Reg, lane: u32, clamp: u32) -> Reg {
        self.shuffle_by(mode, value, lane, clamp)
    }

    pub fn shuffle_by(&mut self, mode: &str, value: Reg, lane: impl Into<Operand> + Copy, clamp: u32) -> Reg {
        match value.class {
            Class::Pred => {
                let word = self.selp(Class::B32, 1, 0, value);
                let word = self.shuffle_by(mode, word, lane, clamp);
                self.op2(Class::Pred, "setp.ne.u32", word, 0)
            }
            Class::B64 | Class::F64 => {
                let halves = [self.reg(Class::B32), self.reg(Class::B32)];
                emit!(self, "mov.b64", vector_of(&[halves[0], halves[1]]), value);
                let [low, high] = halves.map(|half| self.shuffle_by(mode, half, lane, clamp));
                let whole = self.reg(value.class);
                emit!(self, "mov.b64", whole, vector_of(&[low, high]));
                whole
            }
            Class::F32 => {
                let word = self.op1(Class::B32, "mov.b32", value);
                let word = self.shuffle_by(mode, word, lane, clamp);
                self.op1(Class::F32, "mov.b32", word)
            }
            Class::B16 | Class::B32 => {
                let d = self.reg(value.class);
                emit!(self, format!("shfl.sync.{mode}.b32"), d, value, lane, clamp, Operand::Bits(0xffff_ffff));
                d
            }
        }
    }
}
