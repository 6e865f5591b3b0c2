//! Elementwise kernels: a grid-stride loop over elements.
//!
//! A thread takes several elements at a time by vectorized access ([`vectorize`](super::memory::vectorize)). Where all
//! operands are contiguous and aligned, or broadcast, these are neighbours. Otherwise they are a block's width apart,
//! so that accesses of neighbouring threads stay coalesced.
//!
//! Code that takes less time than its loads is unrolled: two steps of the loop load before either computes.

use super::Slot;
use super::emitter::{Fixed, Gen};
use super::machine::{Class, Reg, Special};
use super::memory::Place;
use super::memory::vectorize::Line;
use crate::kernel::abi::Access;
use crate::kernel::ir::{Block, Inst, Op};

impl Gen<'_> {
    pub fn elementwise(&mut self) {
        self.in_lanes = true;
        let operands = 0..self.kernel.operands.len() as u32;
        let width = self.elements_at_once(operands, &[&self.kernel.body]);
        let count = self.fixed(Fixed::Slot(Slot::Count));
        let thread = self.fixed(Fixed::Thread);
        let block = self.op1(Class::B32, "mov.u32", Special::Block);
        let threads = self.op1(Class::B32, "mov.u32", Special::Threads);
        let blocks = self.op1(Class::B32, "mov.u32", Special::Blocks);
        if width == 1 {
            let first = self.op2(Class::B64, "mul.wide.u32", block, threads);
            let thread = self.op1(Class::B64, "cvt.u64.u32", thread);
            let index = self.op2(Class::B64, "add.s64", first, thread);
            let step = self.op2(Class::B64, "mul.wide.u32", blocks, threads);
            return self.element_loop(index, step, count, |g| g.one_element(index));
        }
        let vectors = self.all_vectorizable(width);
        let per_block = self.op2(Class::B32, "mul.lo.u32", threads, width);
        let first = self.op2(Class::B64, "mul.wide.u32", block, per_block);
        let step = self.op2(Class::B64, "mul.wide.u32", blocks, per_block);
        let apart = self.op1(Class::B64, "cvt.u64.u32", threads);
        let apart = self.selp(Class::B64, 1, apart, vectors);
        let neighbours = self.op2(Class::B32, "mul.lo.u32", thread, width);
        let own = self.selp(Class::B32, neighbours, thread, vectors);
        let own = self.op1(Class::B64, "cvt.u64.u32", own);
        let index = self.op2(Class::B64, "add.s64", first, own);
        if is_cheap(&self.kernel.body) && self.reads().len() <= UNROLLED_READS {
            self.two_steps(index, step, count, vectors, width);
        }
        self.element_loop(index, step, count, |g| g.several_elements(index, apart, count, vectors, width));
    }

    /// Two steps of the loop at a time, as long as there are whole vectors for both; `index` is then that of the first step that
    /// is left.
    fn two_steps(&mut self, index: Reg, step: Reg, count: Reg, vectors: Reg, width: u32) {
        let (head, end) = (self.label(), self.label());
        let (reads, writes) = (self.reads(), self.writes());
        emit!(self, @!vectors, "bra", end);
        self.place_label(head);
        let second = self.op2(Class::B64, "add.s64", index, step);
        let last = self.op2(Class::B64, "add.s64", second, width - 1);
        let over = self.op2(Class::Pred, "setp.ge.s64", last, count);
        emit!(self, @over, "bra", end);
        let place = |g: &mut Self, (at, operand): (Reg, u32)| {
            let line = g.operand_line(operand);
            (line, g.element_address(&line, at))
        };
        let of = |operands: &[u32]| -> Vec<(Reg, u32)> {
            [index, second].iter().flat_map(|at| operands.iter().map(|operand| (*at, *operand))).collect()
        };
        let sources: Vec<(Line, Reg)> = of(&reads).into_iter().map(|of| place(self, of)).collect();
        let packed: Vec<Vec<Reg>> = sources.iter().map(|(line, _)| self.packed(line.operand, width)).collect();
        let asked = sources.iter().zip(&packed);
        let ones: Vec<_> = asked.map(|((line, at), packed)| self.ask_whole(line, *at, packed, width)).collect();
        for (((line, _), packed), one) in sources.iter().zip(&packed).zip(ones) {
            self.spread(line.operand, one, packed, width);
        }
        let raw: Vec<Vec<Reg>> =
            sources.iter().zip(&packed).map(|((line, _), packed)| self.unpack(line, packed, width)).collect();
        let places: Vec<(Line, Reg)> = of(&writes).into_iter().map(|of| place(self, of)).collect();
        for (number, places) in (0..).zip(places.chunks(writes.len().max(1))) {
            let of_step = &raw[number * reads.len()..][..reads.len()];
            let results: Vec<Vec<Reg>> = places
                .iter()
                .map(|(line, _)| (0..width).map(|_| self.reg(self.raw_of(line.operand).0)).collect())
                .collect();
            for v in 0..width as usize {
                self.one_result(&reads, of_step, &writes, &results, v);
            }
            places.iter().zip(&results).for_each(|((line, at), raw)| self.store_vector(line, *at, raw));
        }
        emit!(self, "add.s64", index, second, step);
        emit!(self, "bra", head);
        self.place_label(end);
    }

    /// Computes the results of one of a thread's elements, by its number, from what was read.
    fn one_result(&mut self, reads: &[u32], raw: &[Vec<Reg>], writes: &[u32], results: &[Vec<Reg>], v: usize) {
        let kernel = self.kernel;
        for ((&operand, raw), &element) in reads.iter().zip(raw).zip(&kernel.elements) {
            let value = self.decode(self.memory_dtype(operand), raw[v]);
            self.set(element, value);
        }
        self.block(&kernel.body);
        for ((&operand, to), &result) in writes.iter().zip(results).zip(&kernel.body.yields) {
            let raw = self.encode(self.memory_dtype(operand), self.get(result));
            self.mov(to[v], raw);
        }
    }

    fn operands(&self, wanted: fn(Access) -> bool) -> Vec<u32> {
        (0..).zip(&self.kernel.operands).filter(|(_, o)| wanted(o.access)).map(|(i, _)| i).collect()
    }

    /// The operands that are read, in the order of the kernel's elements.
    fn reads(&self) -> Vec<u32> {
        self.operands(|access| matches!(access, Access::In | Access::InOut))
    }

    /// The operands that are written, in the order of what the kernel yields.
    fn writes(&self) -> Vec<u32> {
        self.operands(|access| matches!(access, Access::Out | Access::InOut))
    }

    fn one_element(&mut self, index: Reg) {
        let kernel = self.kernel;
        let place = |g: &mut Self, o| {
            let line = g.operand_line(o);
            Place { address: g.element_address(&line, index), inside: None }
        };
        let places: Vec<Place> = (0..kernel.operands.len() as u32).map(|o| place(self, o)).collect();
        for (operand, &element) in self.reads().into_iter().zip(&kernel.elements) {
            let value = self.load_at(operand, places[operand as usize]);
            self.set(element, value);
        }
        self.block(&kernel.body);
        for (operand, &result) in self.writes().into_iter().zip(&kernel.body.yields) {
            let value = self.get(result);
            self.store_at(operand, places[operand as usize], value, false);
        }
    }

    /// An operand's elements.
    fn operand_line(&mut self, operand: u32) -> Line {
        let (first, stride) = (self.pointer(operand), self.stride(operand, 0));
        Line { operand, first, stride, falls: false, len: None, there: None, vectors: None, cached: None }
    }

    /// Whether all operands are made of vectors that a thread takes at a time.
    fn all_vectorizable(&mut self, width: u32) -> Reg {
        let mut all = None;
        let kernel = self.kernel;
        for (operand, o) in (0..).zip(&kernel.operands) {
            let line = self.operand_line(operand);
            let vectors = self.line_is_vectorizable(&line, width, o.access == Access::In);
            all = self.both(all, Some(vectors));
        }
        // A kernel without operands has nothing to do.
        all.unwrap_or_else(|| {
            let zero = self.zero(Class::B64);
            self.op2(Class::Pred, "setp.ne.s64", zero, 0)
        })
    }

    fn several_elements(&mut self, index: Reg, apart: Reg, count: Reg, vectors: Reg, width: u32) {
        let elements = self.elements(index, count, width, Some((apart, vectors)));
        let (kernel, reads, writes) = (self.kernel, self.reads(), self.writes());
        let guarded = !is_cheap(&kernel.body);
        let exist = guarded.then(|| self.immediate(Class::B32, width));
        let packed: Vec<Vec<Reg>> = reads.iter().map(|&operand| self.packed(operand, width)).collect();
        let place = |g: &mut Self, &operand: &u32| {
            let line = g.operand_line(operand);
            (line, g.element_address(&line, index))
        };
        let sources: Vec<(Line, Reg)> = reads.iter().map(|operand| place(self, operand)).collect();
        let (one_by_one, loaded) = (self.label(), self.label());
        emit!(self, @!elements.whole, "bra", one_by_one);
        let asked = sources.iter().zip(&packed);
        let ones: Vec<_> = asked.map(|((line, at), packed)| self.ask_whole(line, *at, packed, width)).collect();
        for (((line, _), packed), one) in sources.iter().zip(&packed).zip(ones) {
            self.spread(line.operand, one, packed, width);
        }
        emit!(self, "bra", loaded);
        self.place_label(one_by_one);
        for ((line, at), packed) in sources.iter().zip(&packed) {
            self.load_apart(line, &elements, *at, packed);
        }
        if let Some(exist) = exist {
            self.count_elements(exist, &elements);
        }
        self.place_label(loaded);
        let raw: Vec<Vec<Reg>> =
            sources.iter().zip(&packed).map(|((line, _), packed)| self.unpack(line, packed, width)).collect();
        let results: Vec<Vec<Reg>> = writes.iter().map(|&operand| self.raw_elements(operand, &elements)).collect();
        for v in 0..width as usize {
            let skip = self.label();
            if let Some(exist) = exist.filter(|_| v > 0) {
                // Where there are few elements, whole warps have no second one.
                let there = self.op2(Class::Pred, "setp.gt.u32", exist, v);
                emit!(self, @!there, "bra", skip);
            }
            self.one_result(&reads, &raw, &writes, &results, v);
            self.place_label(skip);
        }
        let places: Vec<(Line, Reg)> = writes.iter().map(|operand| place(self, operand)).collect();
        let (one_by_one, stored) = (self.label(), self.label());
        emit!(self, @!elements.whole, "bra", one_by_one);
        places.iter().zip(&results).for_each(|((line, at), raw)| self.store_vector(line, *at, raw));
        emit!(self, "bra", stored);
        self.place_label(one_by_one);
        places.iter().zip(&results).for_each(|((line, at), raw)| self.store_apart(line, &elements, *at, raw));
        self.place_label(stored);
    }
}

/// The most instructions of an element that are run for one that does not exist too: to skip them takes as many.
const CHEAP: usize = 12;

/// The most operands of code that is unrolled: more have enough loads on their way, and too many registers.
const UNROLLED_READS: usize = 3;

/// Whether code may be run for elements that do not exist, and is not worth skipping.
fn is_cheap(body: &Block) -> bool {
    let plain = |inst: &Inst| inst.op.blocks().is_empty() && !matches!(inst.op, Op::Print { .. });
    body.insts.len() <= CHEAP && body.insts.iter().all(plain)
}
