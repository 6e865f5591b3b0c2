//! Lane code: loops that a block's threads share, and what they make together.
//!
//! A thread takes several neighbouring indices at a time if the body reads or writes rows at its index: as many as make 16 bytes
//! there ([`units`](super::units)). Rows that do not lie in units are accessed one element at a time, and so is what the body
//! touches elsewhere.
//!
//! A fold goes in three steps. Each thread folds its own indices; the threads of a warp combine theirs by shuffles, the
//! right half into the left one, until lane 0 has all; the warps' results go through shared memory, where every warp
//! combines them in the same way. The tree depends on nothing but the length: not on how rows lie, and not on the launch.
//!
//! A scan takes one index per thread at a time, and carries the total to the next round.

use super::emitter::{Class, Fixed, Gen, Reg, loops_in_lanes};
use super::hazard::{READ, WRITE};
use super::units::{Element, Line, is_fixed};
use super::{BLOCK_SIZE, WARPS, memory::guard};
use crate::kernel::ir::{Block, Inst, Loc, Op, Value};

/// Bytes of shared memory for each warp's value of one accumulator.
const SLOT: u32 = 8;

/// A load or store of a loop's body at the loop's index of a row, the same one for all indices.
struct Access<'k> {
    operand: u32,
    row: &'k [Value],
    /// What is loaded, if it is no store.
    load: Option<Value>,
    loc: Loc,
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

/// The accesses of a loop's body that a thread can make for several indices at once: loads before all else, if the body does
/// not write to the operand, and stores behind it, if they alone touch it. A body with loops takes long enough to be spread
/// over as many threads as there are.
fn at_index<'k>(index: Value, acc: &[Value], body: &'k Block) -> Vec<Access<'k>> {
    if loops_in_lanes(&body.insts, true) {
        return Vec::new();
    }
    let mut all = Vec::new();
    accessed(body, &mut all);
    let count = |operand: u32, is_write: bool| all.iter().filter(|a| **a == (operand, is_write)).count();
    let varies = |v: &Value| {
        let made = body.insts.iter().any(|inst| inst.results.contains(v) && !is_fixed(&inst.op));
        made || *v == index || acc.contains(v)
    };
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
        (*last == index && !row.iter().any(varies)).then_some(Access { operand, row, load, loc: inst.loc })
    };
    body.insts.iter().filter_map(access).collect()
}

impl Gen<'_> {
    /// Writes the body of a loop, by `each`, for each index that this thread takes. What is folded into `acc` goes there in an
    /// order that depends on nothing but the length.
    fn lane_loop(&mut self, len: Reg, index: Value, acc: &[Value], body: &Block, each: impl Fn(&mut Self)) {
        let thread = self.fixed(Fixed::Thread64);
        let accesses = at_index(index, acc, body);
        let width = match accesses.is_empty() {
            true => 1,
            false => self.elements_at_once(accesses.iter().map(|access| access.operand), body),
        };
        if width == 1 {
            let at = self.copy(thread);
            return self.element_loop(at, BLOCK_SIZE, len, |g| {
                g.set(index, at);
                g.lane_code(each);
            });
        }
        self.takes_units = true;
        let mut lines: Vec<Line> = accesses.iter().map(|access| self.line_of_row(access, body, width)).collect();
        let at = self.op2(Class::B64, "mul.lo.s64", thread, width);
        let mut apart = None;
        if acc.is_empty() {
            // Any thread may take any index: where there are no units, neighbours go to neighbouring threads.
            let mut all = None;
            for line in &mut lines {
                all = self.both(all, line.units.take());
            }
            apart = all.map(|units| {
                emit!(self, "selp.b64 {at}, {at}, {thread}, {units};");
                (self.selp(Class::B64, 1, BLOCK_SIZE, units), units)
            });
        }
        self.element_loop(at, BLOCK_SIZE * width, len, |g| {
            let elements = g.elements(at, len, width, apart);
            let around = g.at(Loc::default());
            let raw = |(access, line): (&Access, &Line)| {
                g.at(access.loc);
                match access.load {
                    Some(_) => g.load_elements(line, &elements),
                    None => g.raw_elements(access.operand, width),
                }
            };
            let raw: Vec<Vec<Reg>> = accesses.iter().zip(&lines).map(raw).collect();
            g.at(around);
            g.each_of(&elements, |g, v, at| {
                g.set(index, at);
                for ((access, &line), raw) in accesses.iter().zip(&lines).zip(&raw) {
                    let element = Element { line, index: at, raw: raw[v] };
                    match access.load {
                        Some(load) => g.loaded.insert(load, element),
                        None => g.to_store.insert(access.operand, element),
                    };
                }
                g.lane_code(&each);
            });
            g.loaded.clear();
            g.to_store.clear();
            for ((access, line), raw) in accesses.iter().zip(&lines).zip(&raw) {
                if access.load.is_none() {
                    g.at(access.loc);
                    g.store_elements(line, &elements, raw);
                }
            }
            g.at(around);
        });
    }

    /// The row that an access of a loop's body is to.
    fn line_of_row(&mut self, access: &Access, body: &Block, width: u32) -> Line {
        let is_coordinate = |inst: &&Inst| inst.results.iter().any(|result| access.row.contains(result));
        body.insts.iter().filter(is_coordinate).for_each(|inst| self.inst(inst));
        let row: Vec<Reg> = access.row.iter().map(|&v| self.get(v)).collect();
        let (operand, axis) = (access.operand, row.len() as u32);
        let (offset, there) = self.offset(operand, &row, 0, None, None);
        let (first, len) = (self.address(operand, offset), Some(self.dim(operand, axis)));
        let kept = access.load.and_then(|load| self.plan.rows.of(load)).and_then(|row| self.kept.get(&row).copied());
        let line = Line { operand, first, stride: self.stride(operand, axis), len, there, units: None, kept };
        let units = self.line_in_units(&line, width, access.load.is_some());
        Line { units: Some(units), ..line }
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
        self.before(&touched);
        let len = self.get(len);
        self.lane_loop(len, index, &[], body, |g| g.block(body));
    }

    /// `combine(left, right)`.
    fn combine(&mut self, lhs: &[Value], rhs: &[Value], combine: &Block, left: &[Reg], right: &[Reg]) -> Vec<Reg> {
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
        self.before(&touched);
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
        self.before(&touched);

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
        self.hazards.join(&touched);
    }

    /// One thread of each warp gives its values; each thread gets those of the warp that its lane counts to, modulo the
    /// number of warps.
    fn exchange(&mut self, values: &[Reg], writer: Reg) -> Vec<Reg> {
        let mut writes = self.no_touches();
        writes.touch_shared(WRITE);
        self.before(&writes);
        self.need_shared(u64::from(SLOT * WARPS) * values.len() as u64);
        let (shared, warp, lane) = (self.fixed(Fixed::Shared), self.fixed(Fixed::Warp), self.fixed(Fixed::Lane));
        let mine = self.reg(Class::B32);
        emit!(self, "mad.lo.u32 {mine}, {warp}, {SLOT}, {shared};");
        for (i, &value) in (0..).zip(values) {
            self.store_shared(mine, i * SLOT * WARPS, value, Some(writer));
        }
        self.bar();
        let slot = self.op2(Class::B32, "and.b32", lane, WARPS - 1);
        let theirs = self.reg(Class::B32);
        emit!(self, "mad.lo.u32 {theirs}, {slot}, {SLOT}, {shared};");
        self.hazards.touch_shared(READ);
        let read = |(i, value): (u32, &Reg)| self.load_shared(value.class, theirs, i * SLOT * WARPS);
        (0..).zip(values).map(read).collect()
    }

    /// Writes a register to shared memory.
    pub fn store_shared(&mut self, address: Reg, offset: u32, value: Reg, condition: Option<Reg>) {
        let value = match value.class {
            Class::Pred => self.selp(Class::B32, 1, 0, value),
            Class::B16 | Class::B32 | Class::B64 | Class::F32 | Class::F64 => value,
        };
        emit!(self, "{}st.shared.{} [{address}+{offset}], {value};", guard(condition), value.class.ty());
    }

    pub fn load_shared(&mut self, class: Class, address: Reg, offset: u32) -> Reg {
        match class {
            Class::Pred => {
                let word = self.load_shared(Class::B32, address, offset);
                self.op2(Class::Pred, "setp.ne.u32", word, 0)
            }
            Class::B16 | Class::B32 | Class::B64 | Class::F32 | Class::F64 => {
                let value = self.reg(class);
                emit!(self, "ld.shared.{} {value}, [{address}+{offset}];", class.ty());
                value
            }
        }
    }

    /// Another lane's value; all lanes of the warp take part.
    pub fn shuffle(&mut self, mode: &str, value: Reg, lane: u32, clamp: u32) -> Reg {
        self.shuffle_by(mode, value, lane.to_string(), clamp)
    }

    fn shuffle_by(&mut self, mode: &str, value: Reg, lane: String, clamp: u32) -> Reg {
        match value.class {
            Class::Pred => {
                let word = self.selp(Class::B32, 1, 0, value);
                let word = self.shuffle_by(mode, word, lane, clamp);
                self.op2(Class::Pred, "setp.ne.u32", word, 0)
            }
            Class::B64 | Class::F64 => {
                let halves = [self.reg(Class::B32), self.reg(Class::B32)];
                emit!(self, "mov.b64 {{{}, {}}}, {value};", halves[0], halves[1]);
                let [low, high] = halves.map(|half| self.shuffle_by(mode, half, lane.clone(), clamp));
                let whole = self.reg(value.class);
                emit!(self, "mov.b64 {whole}, {{{low}, {high}}};");
                whole
            }
            Class::F32 => {
                let word = self.op1(Class::B32, "mov.b32", value);
                let word = self.shuffle_by(mode, word, lane, clamp);
                self.op1(Class::F32, "mov.b32", word)
            }
            Class::B16 | Class::B32 => {
                let d = self.reg(value.class);
                emit!(self, "shfl.sync.{mode}.b32 {d}, {value}, {lane}, {clamp}, 0xffffffff;");
                d
            }
        }
    }

    pub fn scan(&mut self, inst: &Inst) {
        let Op::Scan { len, index, init, item, lhs, rhs, combine, prefix, emit } = &inst.op else {
            return;
        };
        let join = |g: &mut Self, left: &[Reg], right: &[Reg]| g.combine(lhs, rhs, combine, left, right);
        let identity: Vec<Reg> = init.iter().map(|&v| self.get(v)).collect();
        let carry: Vec<Reg> = identity.iter().map(|&r| self.copy(r)).collect();
        let (len, thread) = (self.get(*len), self.fixed(Fixed::Thread64));
        let (lane, warp) = (self.fixed(Fixed::Lane), self.fixed(Fixed::Warp));
        let base = self.zero(Class::B64);

        let mut all = self.no_touches();
        all.add(inst, false);
        let this = self.begin_loop(all);
        let at_head = self.hazards.clone();
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", base, len);
        emit!(self, "@{done} bra {end};");
        let i = self.op2(Class::B64, "add.s64", base, thread);
        self.set(*index, i);
        let valid = self.op2(Class::Pred, "setp.lt.s64", i, len);

        let mut touched = self.no_touches();
        touched.add_block(item, true);
        touched.add_block(combine, true);
        self.before(&touched);
        let own: Vec<Reg> = identity.iter().map(|&r| self.copy(r)).collect();
        self.when(valid, |g| {
            g.block(item);
            let items: Vec<Reg> = item.yields.iter().map(|&v| g.get(v)).collect();
            own.iter().zip(items).for_each(|(&to, from)| g.mov(to, from));
        });
        let in_warp = self.scan_lanes(own, lane, 32, join);
        let writer = self.op2(Class::Pred, "setp.eq.u32", lane, 31);
        let warps = self.exchange(&in_warp, writer);
        let slot = self.op2(Class::B32, "and.b32", lane, WARPS - 1);
        let totals = self.scan_lanes(warps, slot, WARPS, join);

        // What comes before this warp: the carry, and the warps to its left.
        let left = self.op2(Class::B32, "sub.u32", warp, 1);
        let left = self.op2(Class::B32, "and.b32", left, WARPS - 1);
        let before: Vec<Reg> = totals.iter().map(|&r| self.shuffle_by("idx", r, left.to_string(), 31)).collect();
        let after_others = join(self, &carry, &before);
        let is_first = self.op2(Class::Pred, "setp.eq.u32", warp, 0);
        let before: Vec<Reg> =
            carry.iter().zip(after_others).map(|(&carry, other)| self.select(is_first, carry, other)).collect();
        let inclusive = join(self, &before, &in_warp);
        prefix.iter().zip(inclusive).for_each(|(&v, r)| self.set(v, r));
        let mut touched = self.no_touches();
        touched.add_block(emit, true);
        self.before(&touched);
        self.when(valid, |g| g.block(emit));

        let total: Vec<Reg> = totals.iter().map(|&r| self.shuffle("idx", r, WARPS - 1, 31)).collect();
        let next = join(self, &carry, &total);
        let next: Vec<Reg> = next.into_iter().map(|r| self.copy(r)).collect();
        carry.iter().zip(next).for_each(|(&to, from)| self.mov(to, from));
        self.leave_loop(this);
        emit!(self, "add.s64 {base}, {base}, {BLOCK_SIZE};");
        emit!(self, "bra {head};");
        self.place_label(end);
        self.hazards.join(&at_head);
    }

    /// Lane code for the threads for which a condition holds.
    fn when(&mut self, condition: Reg, body: impl FnOnce(&mut Self)) {
        let skip = self.label();
        emit!(self, "@!{condition} bra {skip};");
        self.lane_code(body);
        self.place_label(skip);
    }

    /// An inclusive scan over lanes: `position` is a lane's place among `count`.
    fn scan_lanes(
        &mut self,
        mut values: Vec<Reg>,
        position: Reg,
        count: u32,
        join: impl Fn(&mut Self, &[Reg], &[Reg]) -> Vec<Reg>,
    ) -> Vec<Reg> {
        let mut distance = 1;
        while distance < count {
            let left: Vec<Reg> = values.iter().map(|&r| self.shuffle("up", r, distance, 0)).collect();
            let joined = join(self, &left, &values);
            let has_left = self.op2(Class::Pred, "setp.ge.u32", position, distance);
            values = joined.into_iter().zip(values).map(|(j, own)| self.select(has_left, j, own)).collect();
            distance *= 2;
        }
        values
    }
}
