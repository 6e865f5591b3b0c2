//! Elementwise kernels: a loop over elements that all threads of all blocks share.
//!
//! A thread takes several elements at a time, as many as make 16 bytes of the operand with the largest ones, or fewer if
//! the code for them would be long. Where all operands are contiguous and aligned, or one element for all, these are
//! neighbours that are read and written as one; otherwise they are a block's width apart, so that neighbouring threads
//! still access neighbours.

use super::Slot;
use super::convert::Memory;
use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::UNIT;
use super::memory::Place;
use crate::kernel::ir::Block;
use crate::kernel::table::Access;

/// The most elements that a thread takes at a time, and the most instructions that these may be.
const MOST_ELEMENTS: u32 = 8;
const MOST_INSTRUCTIONS: u32 = 256;

/// The elements that a thread takes at a time.
struct Elements {
    /// The index of each.
    indices: Vec<Reg>,
    /// Whether each one exists.
    inside: Vec<Reg>,
    /// Whether all of them do, and are neighbours.
    units: Reg,
}

fn instructions(block: &Block) -> u32 {
    let one = |op: &crate::kernel::ir::Op| 1 + op.blocks().iter().map(|(inner, _)| instructions(inner)).sum::<u32>();
    block.insts.iter().map(|inst| one(&inst.op)).sum()
}

impl Gen<'_> {
    pub fn elementwise(&mut self) {
        self.in_lanes = true;
        let width = self.elements_at_once();
        let count = self.fixed(Fixed::Slot(Slot::Count));
        let thread = self.fixed(Fixed::Thread);
        let block = self.op1(Class::B32, "mov.u32", "%ctaid.x");
        let threads = self.op1(Class::B32, "mov.u32", "%ntid.x");
        let blocks = self.op1(Class::B32, "mov.u32", "%nctaid.x");
        if width == 1 {
            let first = self.op2(Class::B64, "mul.wide.u32", block, threads);
            let thread = self.op1(Class::B64, "cvt.u64.u32", thread);
            let index = self.op2(Class::B64, "add.s64", first, thread);
            let step = self.op2(Class::B64, "mul.wide.u32", blocks, threads);
            return self.element_loop(index, step, count, |g| g.one_element(index));
        }
        let units = self.all_in_units(width);
        let per_block = self.op2(Class::B32, "mul.lo.u32", threads, width);
        let first = self.op2(Class::B64, "mul.wide.u32", block, per_block);
        let step = self.op2(Class::B64, "mul.wide.u32", blocks, per_block);
        let apart = self.op1(Class::B64, "cvt.u64.u32", threads);
        let apart = self.selp(Class::B64, 1, apart, units);
        let neighbours = self.op2(Class::B32, "mul.lo.u32", thread, width);
        let own = self.selp(Class::B32, neighbours, thread, units);
        let own = self.op1(Class::B64, "cvt.u64.u32", own);
        let index = self.op2(Class::B64, "add.s64", first, own);
        self.element_loop(index, step, count, |g| g.several_elements(index, apart, count, units, width));
    }

    fn element_loop(&mut self, index: Reg, step: Reg, count: Reg, body: impl FnOnce(&mut Self)) {
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", index, count);
        emit!(self, "@{done} bra {end};");
        body(self);
        emit!(self, "add.s64 {index}, {index}, {step};");
        emit!(self, "bra {head};");
        self.place_label(end);
    }

    /// How many elements a thread takes at a time.
    fn elements_at_once(&self) -> u32 {
        let sizes = || self.kernel.operands.iter().map(|o| o.dtype.size_in_bytes() as u32);
        let (least, most) = (sizes().min().unwrap_or(UNIT), sizes().max().unwrap_or(UNIT));
        let mut width = (UNIT / most).min(MOST_ELEMENTS);
        while width > 1 && instructions(&self.kernel.body) * width > MOST_INSTRUCTIONS {
            width /= 2;
        }
        if width * least < 4 { 1 } else { width }
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
        let place = |g: &mut Self, o| Place { address: g.element_address(o, index), inside: None };
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

    /// Whether each operand is contiguous and aligned to what a thread takes at a time, or read and one element for all.
    fn all_in_units(&mut self, width: u32) -> Reg {
        let mut all = None;
        let kernel = self.kernel;
        for (operand, o) in (0..).zip(&kernel.operands) {
            let bytes = width * o.dtype.size_in_bytes() as u32;
            let (pointer, stride) = (self.pointer(operand), self.stride(operand, 0));
            let low = self.op2(Class::B64, "and.b64", pointer, bytes - 1);
            let aligned = self.op2(Class::Pred, "setp.eq.s64", low, 0);
            let contiguous = self.op2(Class::Pred, "setp.eq.s64", stride, 1);
            let mut units = self.op2(Class::Pred, "and.pred", aligned, contiguous);
            if o.access == Access::In {
                let one = self.op2(Class::Pred, "setp.eq.s64", stride, 0);
                units = self.op2(Class::Pred, "or.pred", units, one);
            }
            all = self.both(all, Some(units));
        }
        // A kernel without operands has nothing to do.
        all.unwrap_or_else(|| {
            let zero = self.zero(Class::B64);
            self.op2(Class::Pred, "setp.ne.s64", zero, 0)
        })
    }

    fn several_elements(&mut self, index: Reg, apart: Reg, count: Reg, units: Reg, width: u32) {
        let mut indices = vec![index];
        for v in 1..width as usize {
            indices.push(self.op2(Class::B64, "add.s64", indices[v - 1], apart));
        }
        let inside: Vec<Reg> = indices.iter().map(|&i| self.op2(Class::Pred, "setp.lt.s64", i, count)).collect();
        let units = self.op2(Class::Pred, "and.pred", units, inside[width as usize - 1]);
        let elements = Elements { indices, inside, units };
        let (kernel, reads) = (self.kernel, self.reads());
        let loaded: Vec<Vec<Reg>> = reads.iter().map(|&o| self.load_elements(o, &elements)).collect();
        let writes = self.writes();
        let results: Vec<Vec<Reg>> = writes
            .iter()
            .map(|&o| {
                let (class, _) = self.raw_of(o);
                (0..width).map(|_| self.reg(class)).collect()
            })
            .collect();
        for v in 0..width as usize {
            // Where there are few elements, whole warps have no second one.
            let skip = (v > 0).then(|| self.label());
            if let Some(skip) = skip {
                emit!(self, "@!{} bra {skip};", elements.inside[v]);
            }
            for ((&operand, raw), &element) in reads.iter().zip(&loaded).zip(&kernel.elements) {
                let value = self.decode(self.memory_dtype(operand), raw[v]);
                self.set(element, value);
            }
            self.block(&kernel.body);
            for ((&operand, to), &result) in writes.iter().zip(&results).zip(&kernel.body.yields) {
                let raw = self.encode(self.memory_dtype(operand), self.get(result));
                self.mov(to[v], raw);
            }
            if let Some(skip) = skip {
                self.place_label(skip);
            }
        }
        for (&operand, raw) in writes.iter().zip(&results) {
            self.store_elements(operand, &elements, raw);
        }
    }

    /// Reads a thread's elements of an operand, as they lie there.
    fn load_elements(&mut self, operand: u32, elements: &Elements) -> Vec<Reg> {
        let (class, ty) = self.raw_of(operand);
        let raw: Vec<Reg> = elements.indices.iter().map(|_| self.zero(class)).collect();
        let (one_by_one, end) = (self.label(), self.label());
        emit!(self, "@!{} bra {one_by_one};", elements.units);
        let address = self.element_address(operand, elements.indices[0]);
        let stride = self.stride(operand, 0);
        let all_one = self.op2(Class::Pred, "setp.eq.s64", stride, 0);
        let neighbours = self.label();
        emit!(self, "@!{all_one} bra {neighbours};");
        emit!(self, "ld.global.{ty} {}, [{address}];", raw[0]);
        raw[1..].iter().for_each(|&r| self.mov(r, raw[0]));
        emit!(self, "bra {end};");
        self.place_label(neighbours);
        self.load_unit(operand, address, &raw);
        emit!(self, "bra {end};");
        self.place_label(one_by_one);
        for ((&index, &inside), raw) in elements.indices.iter().zip(&elements.inside).zip(&raw) {
            let address = self.element_address(operand, index);
            emit!(self, "@{inside} ld.global.{ty} {raw}, [{address}];");
        }
        self.place_label(end);
        raw
    }

    fn store_elements(&mut self, operand: u32, elements: &Elements, raw: &[Reg]) {
        let (_, ty) = self.raw_of(operand);
        let (one_by_one, end) = (self.label(), self.label());
        emit!(self, "@!{} bra {one_by_one};", elements.units);
        let address = self.element_address(operand, elements.indices[0]);
        self.store_unit(operand, address, raw);
        emit!(self, "bra {end};");
        self.place_label(one_by_one);
        for ((&index, &inside), raw) in elements.indices.iter().zip(&elements.inside).zip(raw) {
            let address = self.element_address(operand, index);
            emit!(self, "@{inside} st.global.{ty} [{address}], {raw};");
        }
        self.place_label(end);
    }

    /// Reads neighbours as one.
    fn load_unit(&mut self, operand: u32, address: Reg, raw: &[Reg]) {
        let (class, ty) = self.raw_of(operand);
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        if size >= 4 {
            return emit!(self, "ld.global{}.{ty} {}, [{address}];", vector(raw), listed(raw));
        }
        let per_word = (4 / size) as usize;
        let words: Vec<Reg> = raw.chunks(per_word).map(|_| self.reg(Class::B32)).collect();
        emit!(self, "ld.global{}.b32 {}, [{address}];", vector(&words), listed(&words));
        for (word, parts) in words.iter().zip(raw.chunks(per_word)) {
            if class == Class::B16 {
                emit!(self, "mov.b32 {}, {word};", listed(parts));
                continue;
            }
            let sign = if ty.starts_with('s') { "s32" } else { "u32" };
            for (i, part) in (0..).zip(parts) {
                emit!(self, "bfe.{sign} {part}, {word}, {}, {};", 8 * size * i, 8 * size);
            }
        }
    }

    /// Writes neighbours as one.
    fn store_unit(&mut self, operand: u32, address: Reg, raw: &[Reg]) {
        let (class, ty) = self.raw_of(operand);
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        if size >= 4 {
            return emit!(self, "st.global{}.{ty} [{address}], {};", vector(raw), listed(raw));
        }
        let word = |g: &mut Self, parts: &[Reg]| {
            let word = g.reg(Class::B32);
            if class == Class::B16 {
                emit!(g, "mov.b32 {word}, {};", listed(parts));
                return word;
            }
            g.mov(word, parts[0]);
            for (i, part) in (1..).zip(&parts[1..]) {
                emit!(g, "bfi.b32 {word}, {part}, {word}, {}, {};", 8 * size * i, 32 - 8 * size * i);
            }
            word
        };
        let words: Vec<Reg> = raw.chunks((4 / size) as usize).map(|parts| word(self, parts)).collect();
        emit!(self, "st.global{}.b32 [{address}], {};", vector(&words), listed(&words));
    }

    /// The class of a register that holds an element as it lies in memory, and its type in `ld` and `st`.
    fn raw_of(&self, operand: u32) -> (Class, &'static str) {
        let dtype = self.memory_dtype(operand);
        Memory::of(dtype).raw(dtype)
    }

    fn element_address(&mut self, operand: u32, index: Reg) -> Reg {
        let stride = self.stride(operand, 0);
        let offset = self.op2(Class::B64, "mul.lo.s64", index, stride);
        self.address(operand, Some(offset))
    }
}

/// The modifier of an access to so many registers.
fn vector(regs: &[Reg]) -> &'static str {
    match regs.len() {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}

fn listed(regs: &[Reg]) -> String {
    let names: Vec<String> = regs.iter().map(Reg::to_string).collect();
    if names.len() == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}
