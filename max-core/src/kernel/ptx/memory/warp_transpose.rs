//! Warp transposes by lane shuffles: coalesced access to rows that are not aligned for vectorized access.
//!
//! The lanes of a warp access neighbours side by side, and exchange them, so that each has its own run.
//!
//! Of a warp's elements, `W` for each lane, lane `l` accesses those at `32 v + W (l % (32 / W)) + l / (32 / W)`: for
//! each `v`, these are 32 neighbours. The bits of `v` and the upper bits of the lane then change places, by one
//! exchange between lanes that differ in one bit for each. Lane `l` then has those from `W l` on. The same takes them
//! back.

use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem};
use super::vectorize::{Elements, Line};

impl Gen<'_> {
    /// The elements that this thread accesses for its warp, coalesced, which become its own by
    /// [`swap_bits`](Self::swap_bits).
    fn coalesced(&mut self, elements: &Elements) -> Elements {
        let lane = self.fixed(Fixed::Lane);
        let upper = self.op2(Class::B32, "shr.u32", lane, (32 / elements.width).ilog2());
        let back = self.reg(Class::B64);
        emit!(self, "mul.wide.u32", back, upper, 31);
        let first = self.op2(Class::B64, "sub.s64", elements.first, back);
        let apart = Some(self.immediate(Class::B64, 32));
        Elements { first, apart, ..*elements }
    }

    /// Has the lanes of a warp exchange what each accesses for what each has of its own, or the other way round: lots
    /// of elements, among so many lanes that are so far apart.
    pub fn swap_bits(&mut self, raw: &[Reg], lot: u32, lanes: u32, apart: u32) -> Vec<Reg> {
        let lane = self.fixed(Fixed::Lane);
        // There are shuffles of 32 bits.
        let wide = |g: &mut Self, &r: &Reg| if r.class == Class::B16 { g.op1(Class::B32, "cvt.u32.u16", r) } else { r };
        let wide: Vec<Reg> = raw.iter().map(|r| wide(self, r)).collect();
        let mut lots: Vec<Vec<Reg>> = wide.chunks(lot as usize).map(<[Reg]>::to_vec).collect();
        for bit in 0..lanes.ilog2() {
            let apart = apart << bit;
            let upper = self.op2(Class::B32, "and.b32", lane, apart);
            let upper = self.op2(Class::Pred, "setp.ne.u32", upper, 0);
            self.exchange_lanes(&mut lots, 1 << bit, apart, upper);
        }
        let narrow = |(to, own): (&Reg, Reg)| match to.class {
            Class::B16 => self.op1(Class::B16, "cvt.u16.u32", own),
            Class::Pred | Class::B32 | Class::B64 | Class::F32 | Class::F64 => own,
        };
        raw.iter().zip(lots.concat()).map(narrow).collect()
    }

    /// Reads a thread's elements of a line, as they lie there, and 0 for those that it does not have; all threads of
    /// the warp take part.
    pub fn load_coalesced(&mut self, line: &Line, elements: &Elements, to: &[Reg]) {
        let (class, ty) = self.raw_of(line.operand);
        let others = self.coalesced(elements);
        let raw: Vec<Reg> = to.iter().map(|_| self.zero(class)).collect();
        self.each_apart(line, &others, |g, v, address, exists| {
            emit!(g, @exists, format!("ld.global.{ty}"), raw[v], mem(address));
        });
        let own = self.swap_bits(&raw, 1, elements.width, 32 / elements.width);
        to.iter().zip(own).for_each(|(&to, from)| self.mov(to, from));
    }

    /// Writes a thread's elements of a line, but for those that it does not have; all threads of the warp take part.
    pub fn store_coalesced(&mut self, line: &Line, elements: &Elements, raw: &[Reg]) {
        let (_, ty) = self.raw_of(line.operand);
        let others = self.coalesced(elements);
        let theirs = self.swap_bits(raw, 1, elements.width, 32 / elements.width);
        self.each_apart(line, &others, |g, v, address, exists| {
            emit!(g, @exists, format!("st.global.{ty}"), mem(address), theirs[v]);
        });
    }
}
