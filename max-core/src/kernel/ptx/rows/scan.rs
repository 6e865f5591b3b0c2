//! Block-wide prefix scans of lane code.
//!
//! A thread takes several neighbouring indices at a time, as in other loops of [`rows`](super). It scans its own; the
//! threads of a warp scan their totals by shuffles, and the warps theirs through shared memory. Each thread then
//! applies its exclusive prefix, and the total is carried to the next round.
//!
//! The order depends on the length and on the code alone. So where rows are not aligned, a thread has the same
//! neighbours, and gets them from the other lanes of its warp
//! ([`warp_transpose`](super::super::memory::warp_transpose)).

use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg};
use super::super::memory::vectorize::Elements;
use super::super::{BLOCK_SIZE, WARPS};
use super::LaneCode;
use crate::kernel::ir::{Inst, Op};

impl Gen<'_> {
    pub fn scan(&mut self, inst: &Inst) {
        let Op::Scan { len, index, init, item, lhs, rhs, combine, prefix, emit } = &inst.op else {
            return;
        };
        let join = |g: &mut Self, left: &[Reg], right: &[Reg]| g.combine(lhs, rhs, combine, left, right);
        let identity: Vec<Reg> = init.iter().map(|&v| self.get(v)).collect();
        let carry: Vec<Reg> = identity.iter().map(|&r| self.copy(r)).collect();
        let (len, thread) = (self.get(*len), self.fixed(Fixed::Thread64));
        let (lane, warp) = (self.fixed(Fixed::Lane), self.fixed(Fixed::Warp));

        let code = LaneCode { index: *index, own: prefix, blocks: vec![item, combine, emit] };
        let (read, written) = (code.at_index(item), code.at_index(emit));
        let width = self.width_of_lanes(read.iter().chain(&written), &code.blocks);
        let take = |accesses| if width == 1 { Vec::new() } else { accesses };
        let [read, written] = [read, written].map(|accesses| self.rows_at_index(take(accesses), *index, width));

        let base = self.zero(Class::B64);
        self.element_loop(base, BLOCK_SIZE * width, len, |g| {
            // What came up to each of this thread's elements, from its first one on.
            let mut touched = g.no_touches();
            touched.add_block(item, true);
            touched.add_block(combine, true);
            g.before(touched);
            let first = g.reg(Class::B64);
            emit!(g, "mad.lo.s64", first, thread, width, base);
            let elements = Elements { of_warps: true, ..g.elements(first, len, width, None) };
            let total: Vec<Reg> = identity.iter().map(|&r| g.copy(r)).collect();
            let mut own: Vec<Vec<Reg>> = Vec::new();
            let raw = g.load_rows(&read, &elements);
            let valid = g.op2(Class::Pred, "setp.lt.s64", first, len);
            g.each_if(valid, &elements, |g, v, at| {
                g.set(*index, at);
                g.take_element(&read, &raw, v, at);
                g.lane_code(|g| g.block(item));
                let mut upto: Vec<Reg> = item.yields.iter().map(|&v| g.get(v)).collect();
                if v > 0 {
                    upto = join(g, &total, &upto);
                }
                // All are read before any is replaced, as one may be another's old value.
                own.push(upto.iter().map(|&r| g.copy(r)).collect());
                // They are read where the same elements exist.
                own[v].iter().for_each(|&r| g.leave_undefined(r));
                total.iter().zip(&own[v]).for_each(|(&to, &from)| g.mov(to, from));
            });
            g.store_rows(&read, &elements, &raw);

            let in_warp = g.scan_lanes(total, lane, 32, join);
            let writer = g.op2(Class::Pred, "setp.eq.u32", lane, 31);
            let warps = g.exchange(&in_warp, writer);
            let slot = g.op2(Class::B32, "and.b32", lane, WARPS - 1);
            let totals = g.scan_lanes(warps, slot, WARPS, join);

            // What comes before this warp: the carry, and the warps to its left; and before this thread.
            let left = g.op2(Class::B32, "sub.u32", warp, 1);
            let left = g.op2(Class::B32, "and.b32", left, WARPS - 1);
            let others: Vec<Reg> = totals.iter().map(|&r| g.shuffle_by("idx", r, left, 31)).collect();
            let before = g.behind(&carry, &others, warp, join);
            let others: Vec<Reg> = in_warp.iter().map(|&r| g.shuffle("up", r, 1, 0)).collect();
            let before = g.behind(&before, &others, lane, join);

            let mut touched = g.no_touches();
            touched.add_block(combine, true);
            touched.add_block(emit, true);
            g.before(touched);
            let raw = g.load_rows(&written, &elements);
            g.each_if(valid, &elements, |g, v, at| {
                let inclusive = join(g, &before, &own[v]);
                prefix.iter().zip(inclusive).for_each(|(&v, r)| g.set(v, r));
                g.set(*index, at);
                g.take_element(&written, &raw, v, at);
                g.lane_code(|g| g.block(emit));
            });
            g.store_rows(&written, &elements, &raw);

            let total: Vec<Reg> = totals.iter().map(|&r| g.shuffle("idx", r, WARPS - 1, 31)).collect();
            let next = join(g, &carry, &total);
            let next: Vec<Reg> = next.into_iter().map(|r| g.copy(r)).collect();
            carry.iter().zip(next).for_each(|(&to, from)| g.mov(to, from));
        });
    }

    /// What came up to the first of several: what came before all of them, and for each but the first one what came
    /// from there.
    fn behind(
        &mut self,
        all: &[Reg],
        others: &[Reg],
        position: Reg,
        join: impl Fn(&mut Self, &[Reg], &[Reg]) -> Vec<Reg>,
    ) -> Vec<Reg> {
        let joined = join(self, all, others);
        let is_first = self.op2(Class::Pred, "setp.eq.u32", position, 0);
        all.iter().zip(joined).map(|(&all, joined)| self.select(is_first, all, joined)).collect()
    }

    /// Runs code for each of a thread's elements that exists, if the first one does.
    fn each_if(&mut self, exists: Reg, elements: &Elements, body: impl FnMut(&mut Self, usize, Reg)) {
        let skip = self.label();
        emit!(self, @!exists, "bra", skip);
        self.each_of(elements, body);
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
