//! Lane code: loops that a block's threads share, and what they make together.
//!
//! A fold goes in three steps. Each thread folds its own indices; the threads of a warp combine theirs by shuffles, the
//! right half into the left one, until lane 0 has all; the warps' results go through shared memory, where every warp
//! combines them in the same way. The tree does not depend on the length or on the launch.
//!
//! A scan takes one index per thread at a time, and carries the total to the next round.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::hazard::{READ, WRITE};
use super::{BLOCK_SIZE, WARPS, memory::guard};
use crate::kernel::ir::{Block, Inst, Op, Value};

/// Bytes of shared memory for each warp's value of one accumulator.
const SLOT: u32 = 8;

impl Gen<'_> {
    /// Calls `body` with each index that this thread takes.
    fn lane_loop(&mut self, len: Reg, body: impl FnOnce(&mut Self, Reg)) {
        let thread = self.fixed(Fixed::Thread64);
        let index = self.copy(thread);
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", index, len);
        emit!(self, "@{done} bra {end};");
        self.lane_code(|g| body(g, index));
        emit!(self, "add.s64 {index}, {index}, {BLOCK_SIZE};");
        emit!(self, "bra {head};");
        self.place_label(end);
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
        self.lane_loop(len, |g, i| {
            g.set(index, i);
            g.block(body);
        });
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
        self.lane_loop(len, |g, i| {
            g.set(*index, i);
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
