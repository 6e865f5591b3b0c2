//! Vectorized access: a thread that takes several neighbouring elements makes one load or store of them, up to 128-bit ones.
//!
//! It exists to use the full width of memory transactions. Elements that are not contiguous and aligned are accessed
//! one by one. A thread takes as many as make 16 bytes of the widest dtype, or fewer if their code would be long.

use super::super::convert::Memory;
use super::super::emitter::Gen;
use super::super::machine::{Class, Guard, Label, Operand, Reg, mem, mem_at, one_or_vector, vector_of};
use super::shared_tile::VECTOR_BYTES;
use crate::kernel::ir::{Block, Op};

/// The most elements that a thread takes at a time, and the most instructions that these may be.
const MAX_ELEMENTS: u32 = 8;
const MAX_INSTRUCTIONS: u32 = 256;

/// The elements that a thread takes at a time. Indices, and what follows from them, are made where they are needed, one
/// after the other: all of them at once would take many registers.
pub(in crate::kernel::ptx) struct Elements {
    /// The index of the first.
    pub first: Reg,
    /// From each to the next (`None`: 1).
    pub apart: Option<Reg>,
    /// The first index that does not exist.
    pub count: Reg,
    /// How many they are.
    pub width: u32,
    /// Whether all of them exist, and are neighbours.
    pub whole: Reg,
    /// Whether all threads of a warp have neighbours at a time, one thread those behind another's, that exist or not:
    /// where there are no vectors, they then access neighbours side by side.
    pub of_warps: bool,
}

/// Elements of an operand, one for each index of a loop.
#[derive(Clone, Copy)]
pub(in crate::kernel::ptx) struct Line {
    pub operand: u32,
    /// The address of the first one.
    pub first: Reg,
    /// From each one to the next, in elements.
    pub stride: Reg,
    /// Whether it is the operand's axis the other way round: neighbours are those whose stride is -1.
    pub falls: bool,
    /// Where the first one is along the operand's axis (`None`: at its start), and how long that is, if the loop may
    /// have indices beyond it.
    pub len: Option<(Option<Reg>, Reg)>,
    /// Whether there are any (`None`: there are).
    pub there: Option<Reg>,
    /// Whether neighbours can be accessed as one, from a multiple of their number on (`None`: they can).
    pub vectors: Option<Reg>,
    /// Where they begin in shared memory, and whether they are kept there.
    pub cached: Option<(Reg, Reg)>,
}

/// An element of a line, as it lies in memory, or a register for it.
#[derive(Clone, Copy)]
pub(in crate::kernel::ptx) struct Element {
    pub line: Line,
    pub index: Reg,
    pub raw: Reg,
}

/// The instructions of blocks that compute.
fn instructions(blocks: &[&Block]) -> u32 {
    let is_one = |op: &Op| !(is_fixed(op) || matches!(op, Op::Load { .. } | Op::Store { .. } | Op::Bitcast(_)));
    let inner = |op: &Op| op.blocks().iter().map(|(inner, _)| instructions(&[inner])).sum::<u32>();
    let all = blocks.iter().flat_map(|block| &block.insts);
    all.map(|inst| u32::from(is_one(&inst.op)) + inner(&inst.op)).sum()
}

/// Whether an instruction gives the same wherever it stands in a program.
pub(in crate::kernel::ptx) fn is_fixed(op: &Op) -> bool {
    matches!(op, Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. })
}

impl Gen<'_> {
    /// How many elements of some operands a thread takes at a time, for each of which it runs blocks.
    pub fn elements_at_once(&self, operands: impl Iterator<Item = u32> + Clone, blocks: &[&Block]) -> u32 {
        let sizes = || operands.clone().map(|operand| self.memory_dtype(operand).size_in_bytes() as u32);
        let (least, most) = (sizes().min().unwrap_or(VECTOR_BYTES), sizes().max().unwrap_or(VECTOR_BYTES));
        let mut width = (VECTOR_BYTES / most).min(MAX_ELEMENTS);
        while width > 1 && instructions(blocks) * width > MAX_INSTRUCTIONS {
            width /= 2;
        }
        if width * least < 4 { 1 } else { width }
    }

    /// Whether each `width` elements from a multiple of that on can be accessed as one, or are one element that is
    /// read.
    pub fn line_is_vectorizable(&mut self, line: &Line, width: u32, is_read: bool) -> Reg {
        let bytes = width * self.memory_dtype(line.operand).size_in_bytes() as u32;
        // Of elements that fall, a vector ends behind its first one.
        let edge = match line.falls {
            false => line.first,
            true => self.op2(Class::B64, "add.s64", line.first, bytes / width),
        };
        let low = self.op2(Class::B64, "and.b64", edge, bytes - 1);
        let aligned = self.op2(Class::Pred, "setp.eq.s64", low, 0);
        let contiguous = self.op2(Class::Pred, "setp.eq.s64", line.stride, if line.falls { -1 } else { 1 });
        let vectors = self.op2(Class::Pred, "and.pred", aligned, contiguous);
        if !is_read {
            return vectors;
        }
        let one = self.op2(Class::Pred, "setp.eq.s64", line.stride, 0);
        self.op2(Class::Pred, "or.pred", vectors, one)
    }

    /// A loop from an index on, as long as that is below `count`.
    pub fn element_loop(&mut self, index: Reg, step: impl Into<Operand>, count: Reg, body: impl FnOnce(&mut Self)) {
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", index, count);
        emit!(self, @done, "bra", end);
        body(self);
        emit!(self, "add.s64", index, index, step);
        emit!(self, "bra", head);
        self.place_label(end);
    }

    /// The elements from an index on, of which there are `count`: neighbours, or `apart` from each other and neighbours
    /// if that condition holds.
    pub fn elements(&mut self, first: Reg, count: Reg, width: u32, apart: Option<(Reg, Reg)>) -> Elements {
        let last = self.op2(Class::B64, "add.s64", first, width - 1);
        let inside = self.op2(Class::Pred, "setp.lt.s64", last, count);
        let whole = self.both(Some(inside), apart.map(|(_, neighbours)| neighbours)).unwrap_or(inside);
        Elements { first, apart: apart.map(|(apart, _)| apart), count, width, whole, of_warps: false }
    }

    /// Runs code for each of a thread's elements that exists, with its number and index.
    pub fn each_of(&mut self, elements: &Elements, mut body: impl FnMut(&mut Self, usize, Reg)) {
        body(self, 0, elements.first);
        let mut index = elements.first;
        for v in 1..elements.width as usize {
            index = self.next(elements, index);
            // Where there are few elements, whole warps have no second one.
            let (inside, skip) = (self.op2(Class::Pred, "setp.lt.s64", index, elements.count), self.label());
            emit!(self, @!inside, "bra", skip);
            body(self, v, index);
            self.place_label(skip);
        }
    }

    /// Counts the elements that exist, which are the first ones.
    pub fn count_elements(&mut self, to: Reg, elements: &Elements) {
        emit!(self, "mov.b32", to, 0);
        let mut index = elements.first;
        for v in 0..elements.width {
            if v > 0 {
                index = self.next(elements, index);
            }
            let inside = self.op2(Class::Pred, "setp.lt.s64", index, elements.count);
            emit!(self, @inside, "mov.b32", to, v + 1);
        }
    }

    /// The index behind another one.
    fn next(&mut self, elements: &Elements, index: Reg) -> Reg {
        match elements.apart {
            Some(apart) => self.op2(Class::B64, "add.s64", index, apart),
            None => self.op2(Class::B64, "add.s64", index, 1),
        }
    }

    /// Does something for each of a thread's elements, as [`one_by_one`](Self::one_by_one), where they lie in the
    /// operand.
    pub fn each_apart(&mut self, line: &Line, elements: &Elements, access: impl FnMut(&mut Self, usize, Reg, Reg)) {
        let size = self.memory_dtype(line.operand).size_in_bytes();
        let address = self.element_address(line, elements.first);
        let stride = self.op2(Class::B64, "mul.lo.s64", line.stride, size);
        self.one_by_one(line, elements, address, stride, access);
    }

    /// Writes an access of all threads of a warp to elements that are not in vectors, by `access`, which goes on at
    /// `end`.
    fn unvectorized(&mut self, line: &Line, elements: &Elements, end: Label, access: impl FnOnce(&mut Self)) {
        let Some(vectors) = line.vectors.filter(|_| elements.of_warps) else { return };
        let is_vectorizable = self.label();
        emit!(self, @vectors, "bra", is_vectorizable);
        access(self);
        emit!(self, "bra", end);
        self.place_label(is_vectorizable);
    }

    /// Does something for each of a thread's elements: with its number, its address, and whether it exists and is in
    /// the line. The first one is at `address`, and from an index to the next it is so many bytes.
    fn one_by_one(
        &mut self,
        line: &Line,
        elements: &Elements,
        mut address: Reg,
        stride: impl Into<Operand>,
        mut access: impl FnMut(&mut Self, usize, Reg, Reg),
    ) {
        let bits = if address.class == Class::B64 { "s64" } else { "u32" };
        let step: Operand = match elements.apart {
            None => stride.into(),
            Some(apart) if address.class == Class::B64 => self.op2(Class::B64, "mul.lo.s64", apart, stride).into(),
            Some(apart) => {
                let apart = self.op1(Class::B32, "cvt.u32.u64", apart);
                self.op2(Class::B32, "mul.lo.u32", apart, stride).into()
            }
        };
        let mut index = elements.first;
        for v in 0..elements.width as usize {
            if v > 0 {
                index = self.next(elements, index);
                address = self.op2(address.class, &format!("add.{bits}"), address, step.clone());
            }
            let inside = self.op2(Class::Pred, "setp.lt.s64", index, elements.count);
            let here = self.in_line(line, index);
            let exists = self.both(Some(inside), here).unwrap_or(inside);
            access(self, v, address, exists);
        }
    }

    /// Whether a line has the element of an index (`None`: it has).
    pub fn in_line(&mut self, line: &Line, index: Reg) -> Option<Reg> {
        let below = line.len.map(|(from, len)| match from {
            None => self.op2(Class::Pred, "setp.lt.s64", index, len),
            Some(from) => {
                let at = self.op2(Class::B64, if line.falls { "sub.s64" } else { "add.s64" }, from, index);
                self.op2(Class::Pred, "setp.lt.u64", at, len)
            }
        });
        self.both(line.there, below)
    }

    /// Begins an access to a thread's elements of a line as one, if they are there: gives where to go on if they are
    /// not.
    fn as_one(&mut self, line: &Line, elements: &Elements, vectors: Option<Reg>) -> Label {
        let one_by_one = self.label();
        let mut whole = elements.whole;
        if line.len.is_some() || line.there.is_some() {
            let last = self.op2(Class::B64, "add.s64", elements.first, elements.width - 1);
            let here = self.in_line(line, last);
            whole = self.both(Some(whole), here).unwrap_or(whole);
        }
        if let Some((Some(_), _)) = line.len {
            let here = self.in_line(line, elements.first);
            whole = self.both(Some(whole), here).unwrap_or(whole);
        }
        whole = self.both(Some(whole), vectors).unwrap_or(whole);
        emit!(self, @!whole, "bra", one_by_one);
        one_by_one
    }

    /// Reads a thread's elements of a line; 0 for those that it does not have. They come as one load brings them, to be
    /// [unpacked](Self::unpack) once all loads are on their way: whoever looks at them waits.
    pub fn load_elements(&mut self, line: &Line, elements: &Elements) -> Vec<Reg> {
        let (_, ty) = self.raw_of(line.operand);
        let size = self.memory_dtype(line.operand).size_in_bytes();
        let packed = self.packed(line.operand, elements.width);
        let end = self.label();
        if let Some((start, fits)) = line.cached {
            let not_cached = self.label();
            emit!(self, @!fits, "bra", not_cached);
            let address = self.cached_address(line.operand, start, elements.first);
            let one_by_one = self.as_one(line, elements, None);
            self.load_vector(None, "shared", line, address, (&packed, elements.width));
            emit!(self, "bra", end);
            self.place_label(one_by_one);
            let raw = self.zeros(line.operand, elements.width);
            self.one_by_one(line, elements, address, size, |g, v, address, exists| {
                emit!(g, @exists, format!("ld.shared.{ty}"), raw[v], mem(address));
            });
            self.pack_elements(line, &raw, &packed);
            emit!(self, "bra", end);
            self.place_label(not_cached);
        }
        self.unvectorized(line, elements, end, |g| {
            let raw = g.zeros(line.operand, elements.width);
            g.load_coalesced(line, elements, &raw);
            g.pack_elements(line, &raw, &packed);
        });
        let address = self.element_address(line, elements.first);
        let one_by_one = self.as_one(line, elements, line.vectors);
        self.load_whole(line, address, &packed, elements.width);
        emit!(self, "bra", end);
        self.place_label(one_by_one);
        self.load_apart(line, elements, address, &packed);
        self.place_label(end);
        packed
    }

    /// Reads neighbours that all exist as one, or of a stride of 0 the one element that they are: by conditions instead
    /// of branches, so that loads of several operands are on their way together.
    fn load_whole(&mut self, line: &Line, address: Reg, packed: &[Reg], width: u32) {
        let one = self.ask_whole(line, address, packed, width);
        self.spread(line.operand, one, packed, width);
    }

    /// As [`load_whole`](Self::load_whole), but for the one element of a stride of 0: gives it, and whether it is that.
    pub fn ask_whole(&mut self, line: &Line, address: Reg, packed: &[Reg], width: u32) -> (Reg, Reg) {
        let (class, ty) = self.raw_of(line.operand);
        let (one, is_one) = (self.reg(class), self.op2(Class::Pred, "setp.eq.s64", line.stride, 0));
        emit!(self, @is_one, format!("ld.global.{ty}"), one, mem(address));
        self.load_vector(Some(Guard::unless(is_one)), "global", line, address, (packed, width));
        (one, is_one)
    }

    /// Makes all elements that one, under a condition.
    pub fn spread(&mut self, operand: u32, (one, when): (Reg, Reg), packed: &[Reg], width: u32) {
        if packed.len() as u32 == width {
            return packed.iter().for_each(|to| emit!(self, @when, format!("mov.{}", to.class.ty()), to, one));
        }
        if one.class == Class::B16 {
            return packed.iter().for_each(|to| emit!(self, @when, "mov.b32", to, vector_of(&[one, one])));
        }
        let bits = 8 * self.memory_dtype(operand).size_in_bytes() as u32;
        let (first, rest) = (packed[0], &packed[1..]);
        emit!(self, @when, "and.b32", first, one, (1u32 << bits) - 1);
        let ones: u32 = (0..32 / bits).map(|i| 1 << (bits * i)).sum();
        emit!(self, @when, "mul.lo.u32", first, first, ones);
        rest.iter().for_each(|to| emit!(self, @when, "mov.b32", to, first));
    }

    /// Reads a thread's elements of a line one by one; 0 for those that it does not have.
    pub fn load_apart(&mut self, line: &Line, elements: &Elements, address: Reg, packed: &[Reg]) {
        let (_, ty) = self.raw_of(line.operand);
        let raw = self.zeros(line.operand, elements.width);
        let stride = self.op2(Class::B64, "mul.lo.s64", line.stride, self.memory_dtype(line.operand).size_in_bytes());
        self.one_by_one(line, elements, address, stride, |g, v, address, exists| {
            emit!(g, @exists, format!("ld.global.{ty}"), raw[v], mem(address));
        });
        self.pack_elements(line, &raw, packed);
    }

    /// Registers for elements as one load brings them: words of several small ones, or one of each.
    pub fn packed(&mut self, operand: u32, width: u32) -> Vec<Reg> {
        let (class, _) = self.raw_of(operand);
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        match size < 4 && width > 1 {
            true => (0..width * size / 4).map(|_| self.reg(Class::B32)).collect(),
            false => (0..width).map(|_| self.reg(class)).collect(),
        }
    }

    fn zeros(&mut self, operand: u32, width: u32) -> Vec<Reg> {
        let (class, _) = self.raw_of(operand);
        (0..width).map(|_| self.zero(class)).collect()
    }

    /// Puts elements of a line where one load would have brought them.
    fn pack_elements(&mut self, line: &Line, raw: &[Reg], packed: &[Reg]) {
        if packed.len() == raw.len() {
            return packed.iter().zip(raw).for_each(|(&to, &from)| self.mov(to, from));
        }
        let raw = in_memory_order(line, raw);
        for (&word, parts) in packed.iter().zip(raw.chunks(raw.len() / packed.len())) {
            self.join_parts(line.operand, word, parts);
        }
    }

    /// The elements of a line that a load has brought.
    pub fn unpack(&mut self, line: &Line, packed: &[Reg], width: u32) -> Vec<Reg> {
        if packed.len() as u32 == width {
            return packed.to_vec();
        }
        let raw: Vec<Reg> = (0..width).map(|_| self.reg(self.raw_of(line.operand).0)).collect();
        for (&word, parts) in packed.iter().zip(raw.chunks(width as usize / packed.len())) {
            self.part_word(line.operand, word, parts);
        }
        in_memory_order(line, &raw)
    }

    /// Writes a thread's elements of a line, but for those that it does not have.
    pub fn store_elements(&mut self, line: &Line, elements: &Elements, raw: &[Reg]) {
        let end = self.label();
        self.unvectorized(line, elements, end, |g| g.store_coalesced(line, elements, raw));
        let address = self.element_address(line, elements.first);
        let one_by_one = self.as_one(line, elements, line.vectors);
        self.store_vector(line, address, raw);
        emit!(self, "bra", end);
        self.place_label(one_by_one);
        self.store_apart(line, elements, address, raw);
        self.place_label(end);
    }

    /// Registers for a thread's elements of an operand, as they lie in memory.
    pub fn raw_elements(&mut self, operand: u32, elements: &Elements) -> Vec<Reg> {
        let (class, _) = self.raw_of(operand);
        // Those that do not exist have no value; where lanes exchange, they are exchanged too.
        let one = |_| if elements.of_warps { self.zero(class) } else { self.undefined(class) };
        (0..elements.width).map(one).collect()
    }

    /// Where the neighbours from a line's element on begin in memory: there are so many.
    fn first_in_memory(&mut self, line: &Line, address: Reg, width: u32) -> Reg {
        if !line.falls {
            return address;
        }
        let bytes = (width as usize - 1) * self.memory_dtype(line.operand).size_in_bytes();
        self.op2(Class::B64, "sub.s64", address, bytes)
    }

    /// Reads neighbours as one, as [`packed`](Self::packed) has registers for them.
    fn load_vector(
        &mut self,
        guard: Option<Guard>,
        space: &str,
        line: &Line,
        address: Reg,
        (packed, width): (&[Reg], u32),
    ) {
        let (_, ty) = self.raw_of(line.operand);
        let address = self.first_in_memory(line, address, width);
        let (ty, regs) =
            if width as usize == packed.len() { (ty, in_memory_order(line, packed)) } else { ("b32", packed.to_vec()) };
        self.emit(format!("ld.{space}{}.{ty}", vector_suffix(&regs)), guard, [one_or_vector(&regs), mem(address)]);
    }

    /// Reads neighbours of an operand, as they lie in memory, as one of up to 16 bytes, from so many bytes behind an
    /// address on. Where a condition does not hold, registers that are 0 stay so.
    pub fn load_neighbours(
        &mut self,
        space: &str,
        operand: u32,
        (at, offset): (Reg, u32),
        raw: &[Reg],
        when: Option<Reg>,
    ) {
        let (_, ty) = self.raw_of(operand);
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        let from = if offset > 0 { mem_at(at, offset) } else { mem(at) };
        if size >= 4 || raw.len() == 1 {
            let opcode = format!("ld.{space}{}.{ty}", vector_suffix(raw));
            return emit!(self, when when, opcode, one_or_vector(raw), from);
        }
        let per_word = (4 / size) as usize;
        let word = |_| if when.is_some() { self.zero(Class::B32) } else { self.reg(Class::B32) };
        let words: Vec<Reg> = raw.chunks(per_word).map(word).collect();
        let opcode = format!("ld.{space}{}.b32", vector_suffix(&words));
        emit!(self, when when, opcode, one_or_vector(&words), from);
        for (&word, parts) in words.iter().zip(raw.chunks(per_word)) {
            self.part_word(operand, word, parts);
        }
    }

    /// Takes small elements out of a word.
    fn part_word(&mut self, operand: u32, word: Reg, parts: &[Reg]) {
        let (class, ty) = self.raw_of(operand);
        if class == Class::B16 {
            return emit!(self, "mov.b32", one_or_vector(parts), word);
        }
        let bits = 8 * self.memory_dtype(operand).size_in_bytes() as u32;
        let sign = if ty.starts_with('s') { "s32" } else { "u32" };
        for (i, part) in (0..).zip(parts) {
            emit!(self, format!("bfe.{sign}"), part, word, bits * i, bits);
        }
    }

    /// Puts small elements into a word.
    fn join_parts(&mut self, operand: u32, word: Reg, parts: &[Reg]) {
        let (class, _) = self.raw_of(operand);
        if class == Class::B16 {
            return emit!(self, "mov.b32", word, one_or_vector(parts));
        }
        let bits = 8 * self.memory_dtype(operand).size_in_bytes() as u32;
        self.mov(word, parts[0]);
        for (i, part) in (1..).zip(&parts[1..]) {
            emit!(self, "bfi.b32", word, part, word, bits * i, 32 - bits * i);
        }
    }

    /// Writes neighbours as one.
    pub fn store_vector(&mut self, line: &Line, address: Reg, raw: &[Reg]) {
        let (_, ty) = self.raw_of(line.operand);
        let address = self.first_in_memory(line, address, raw.len() as u32);
        let raw = in_memory_order(line, raw);
        let size = self.memory_dtype(line.operand).size_in_bytes();
        if size >= 4 {
            return emit!(self, format!("st.global{}.{ty}", vector_suffix(&raw)), mem(address), one_or_vector(&raw));
        }
        let word = |parts: &[Reg]| {
            let word = self.reg(Class::B32);
            self.join_parts(line.operand, word, parts);
            word
        };
        let words: Vec<Reg> = raw.chunks(4 / size).map(word).collect();
        emit!(self, format!("st.global{}.b32", vector_suffix(&words)), mem(address), one_or_vector(&words));
    }

    /// Writes a thread's elements of a line one by one, but for those that it does not have.
    pub fn store_apart(&mut self, line: &Line, elements: &Elements, address: Reg, raw: &[Reg]) {
        let (_, ty) = self.raw_of(line.operand);
        let stride = self.op2(Class::B64, "mul.lo.s64", line.stride, self.memory_dtype(line.operand).size_in_bytes());
        self.one_by_one(line, elements, address, stride, |g, v, address, exists| {
            emit!(g, @exists, format!("st.global.{ty}"), mem(address), raw[v]);
        });
    }

    /// The class of a register that holds an element as it lies in memory, and its type in `ld` and `st`.
    pub fn raw_of(&self, operand: u32) -> (Class, &'static str) {
        let dtype = self.memory_dtype(operand);
        Memory::of(dtype).raw(dtype)
    }

    /// The address of a line's element.
    pub fn element_address(&mut self, line: &Line, index: Reg) -> Reg {
        let size = self.memory_dtype(line.operand).size_in_bytes();
        // The bytes from one to the next stay the same in a loop over indices.
        let bytes = self.op2(Class::B64, "mul.lo.s64", line.stride, size);
        let address = self.reg(Class::B64);
        emit!(self, "mad.lo.s64", address, index, bytes, line.first);
        address
    }
}

/// A line's elements in the order in which they lie in memory, and the other way round.
fn in_memory_order(line: &Line, raw: &[Reg]) -> Vec<Reg> {
    if line.falls { raw.iter().rev().copied().collect() } else { raw.to_vec() }
}

/// The modifier of an access to so many registers.
pub(in crate::kernel::ptx) fn vector_suffix(regs: &[Reg]) -> &'static str {
    match regs.len() {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}
