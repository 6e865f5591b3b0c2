//! The row cache: rows that several loops of lane code read are copied to shared memory first, by `cp.async`.
//!
//! It exists so that such a row is read from global memory once, by vectorized accesses where it is aligned.
//!
//! Cached rows lie after all else in the shared memory of a block, in as much of it as the launch gives. Longer rows
//! are read from the operand each time.

use std::collections::HashMap;

use super::super::BLOCK_SIZE;
use super::super::analysis::hazards::WRITE;
use super::super::convert::Memory;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Operand, Reg, Special, Symbol, mem};
use super::super::memory::Place;
use super::super::memory::shared_tile::VECTOR_BYTES;
use super::super::memory::vectorize::is_fixed;
use crate::kernel::abi::Access;
use crate::kernel::ir::{Block, Inst, Kernel, Op, Value};

/// A row of an operand.
#[derive(Debug)]
pub(in crate::kernel::ptx) struct Row {
    operand: u32,
    /// The row's coordinates, all but the last one of its elements.
    at: Vec<Value>,
    /// The instruction of the program before which it is copied, by index.
    before: usize,
}

/// The rows of a kernel.
#[derive(Debug, Default)]
pub(in crate::kernel::ptx) struct RowCache {
    rows: Vec<Row>,
    /// The row that a load reads.
    loads: HashMap<Value, usize>,
}

/// A load by lanes from their place in a row.
struct Read<'k> {
    load: Value,
    operand: u32,
    at: &'k [Value],
    /// The index of the loop.
    lane: Value,
    /// The instruction of the program that it is in.
    inst: usize,
}

impl RowCache {
    /// The rows that are worth to be kept.
    pub fn find(kernel: &Kernel) -> RowCache {
        let mut reads = Vec::new();
        let mut defs: HashMap<Value, (usize, &Inst)> = HashMap::new();
        for (i, inst) in kernel.body.insts.iter().enumerate() {
            defs.extend(inst.results.iter().map(|&v| (v, (i, inst))));
            let one = std::slice::from_ref(inst);
            find_reads(kernel, one, None, i, &mut reads);
        }
        let same = |a: &Value, b: &Value| {
            let op = |v: &Value| defs.get(v).map(|(_, inst)| &inst.op).filter(|op| is_fixed(op));
            a == b || op(a).is_some_and(|x| Some(x) == op(b) && kernel.ty(*a) == kernel.ty(*b))
        };
        let mut groups: Vec<Vec<&Read>> = Vec::new();
        for read in &reads {
            let is_row = |group: &&mut Vec<&Read>| {
                let first = group[0];
                first.operand == read.operand && first.at.iter().zip(read.at).all(|(a, b)| same(a, b))
            };
            match groups.iter_mut().find(is_row) {
                Some(group) => group.push(read),
                None => groups.push(vec![read]),
            }
        }
        let known = |read: &Read| read.at.iter().all(|v| defs.get(v).is_some_and(|(i, _)| *i < read.inst));
        groups.retain(|group| known(group[0]) && group.iter().any(|read| read.lane != group[0].lane));
        let mut found = RowCache::default();
        for (i, group) in groups.into_iter().enumerate() {
            let first = group[0];
            let at = first.at.to_vec();
            found.rows.push(Row { operand: first.operand, at, before: first.inst });
            found.loads.extend(group.iter().map(|read| (read.load, i)));
        }
        found
    }

    /// The operand of each.
    pub fn operands(&self) -> Vec<u32> {
        self.rows.iter().map(|row| row.operand).collect()
    }

    /// The row that a load reads, if it is cached.
    pub fn of(&self, load: Value) -> Option<usize> {
        self.loads.get(&load).copied()
    }
}

/// Finds the loads in code that is in a loop of lanes with that index, or in none.
fn find_reads<'k>(kernel: &Kernel, insts: &'k [Inst], lane: Option<Value>, at: usize, found: &mut Vec<Read<'k>>) {
    let inner = |block: &'k Block, lane, found: &mut Vec<Read<'k>>| find_reads(kernel, &block.insts, lane, at, found);
    for inst in insts {
        if let Op::Load { operand, index, .. } = &inst.op {
            if let (Some(lane), Some((last, row))) = (lane, index.split_last())
                && *last == lane
                && kernel.operands[*operand as usize].access == Access::In
            {
                found.push(Read { load: inst.results[0], operand: *operand, at: row, lane, inst: at });
            }
        } else if let Op::Lanes { index, body, .. } | Op::Fold { index, body, .. } = &inst.op {
            inner(body, Some(*index), found);
        } else if let Op::Scan { index, item, emit, .. } = &inst.op {
            inner(item, Some(*index), found);
            inner(emit, Some(*index), found);
        } else {
            inst.op.blocks().into_iter().for_each(|(block, _)| inner(block, None, found));
        }
    }
}

impl Gen<'_> {
    /// Copies the rows that are read from an instruction of the program on.
    pub fn cache_rows(&mut self, inst: usize) {
        let plan = self.plan.clone();
        let rows: Vec<(usize, &Row)> =
            plan.rows.rows.iter().enumerate().filter(|(_, row)| row.before == inst).collect();
        if rows.is_empty() {
            return;
        }
        let mut touch = self.no_touches();
        touch.touch_rows(WRITE);
        self.before(touch);
        for (i, row) in rows {
            let cached = self.cache_row(i as u32, row);
            self.cached.insert(i, cached);
        }
        emit!(self, "cp.async.wait_all");
        self.bar();
    }

    /// Copies a row, if there is room for it; where it begins in shared memory, and whether it is there.
    fn cache_row(&mut self, i: u32, row: &Row) -> (Reg, Reg) {
        let at: Vec<Reg> = row.at.iter().map(|&v| self.get(v)).collect();
        let axis = at.len() as u32;
        let (offset, inside) = self.offset(row.operand, &at, 0, None, None);
        let first = self.address(row.operand, offset);
        let (len, stride) = (self.dim(row.operand, axis), self.stride(row.operand, axis));
        let size = self.memory_dtype(row.operand).size_in_bytes() as u32;
        let (room, first_room) = self.room_for_rows();
        let (bytes, there) = (self.op2(Class::B64, "mul.lo.u64", len, size), self.op1(Class::B64, "cvt.u64.u32", room));
        let fits = self.op2(Class::Pred, "setp.le.u64", bytes, there);
        let fits = self.both(Some(fits), inside).unwrap_or(fits);
        let start = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", start, room, i, first_room);
        let (one_by_one, end) = (self.label(), self.label());
        emit!(self, @!fits, "bra", end);
        let len = self.op1(Class::B32, "cvt.u32.u64", len);
        let low = self.op2(Class::B64, "and.b64", first, VECTOR_BYTES - 1);
        let aligned = self.op2(Class::Pred, "setp.eq.s64", low, 0);
        let contiguous = self.op2(Class::Pred, "setp.eq.s64", stride, 1);
        let vectors = self.op2(Class::Pred, "and.pred", aligned, contiguous);
        emit!(self, @!vectors, "bra", one_by_one);
        let bytes = self.op2(Class::B32, "mul.lo.u32", len, size);
        self.strided_loop(VECTOR_BYTES, bytes, |g, at| {
            let left = g.op2(Class::B32, "sub.u32", bytes, at);
            let left = g.op2(Class::B32, "min.u32", left, VECTOR_BYTES);
            let wide = g.op1(Class::B64, "cvt.u64.u32", at);
            let from = g.op2(Class::B64, "add.s64", first, wide);
            let to = g.op2(Class::B32, "add.u32", start, at);
            emit!(g, "cp.async.cg.shared.global", mem(to), mem(from), VECTOR_BYTES, left);
        });
        emit!(self, "bra", end);
        self.place_label(one_by_one);
        let step = self.op2(Class::B64, "mul.lo.s64", stride, size);
        self.strided_loop(1, len, |g, at| {
            let wide = g.op1(Class::B64, "cvt.u64.u32", at);
            let (address, to) = (g.reg(Class::B64), g.reg(Class::B32));
            emit!(g, "mad.lo.s64", address, wide, step, first);
            emit!(g, "mad.lo.u32", to, at, size, start);
            let raw = g.load_raw(row.operand, Place { address, inside: None });
            emit!(g, format!("st.shared.{}", g.raw_type(row.operand)), mem(to), raw);
        });
        self.place_label(end);
        (start, fits)
    }

    /// The bytes that there are for a row, and where the first one's begin; see [`room`](Self::room).
    fn room_for_rows(&mut self) -> (Reg, Reg) {
        let new = (self.reg(Class::B32), self.reg(Class::B32));
        *self.room.get_or_insert(new)
    }

    /// Ends the prologue of a kernel that keeps rows, given the bytes of shared memory before them: these divide what is
    /// left.
    pub fn divide_room(&mut self, before: u32) {
        let Some((room, first)) = self.room else { return };
        let rows = self.plan.rows.rows.len();
        let before = Operand::from(before);
        self.emit_in_prologue("mov.u32", [room.into(), Special::DynamicSharedBytes.into()]);
        self.emit_in_prologue("sub.u32", [room.into(), room.into(), before.clone()]);
        if rows > 1 {
            self.emit_in_prologue("div.u32", [room.into(), room.into(), rows.into()]);
        }
        self.emit_in_prologue("and.b32", [room.into(), room.into(), Operand::Int(-i64::from(VECTOR_BYTES))]);
        self.emit_in_prologue("mov.u32", [first.into(), Symbol::Shared.into()]);
        self.emit_in_prologue("add.u32", [first.into(), first.into(), before]);
    }

    /// Calls `body` with each multiple of `step` below `end` that this thread takes.
    fn strided_loop(&mut self, step: u32, end: Reg, body: impl FnOnce(&mut Self, Reg)) {
        let thread = self.fixed(Fixed::Thread);
        let at = self.op2(Class::B32, "mul.lo.u32", thread, step);
        let (head, done) = (self.label(), self.label());
        self.place_label(head);
        let over = self.op2(Class::Pred, "setp.ge.u32", at, end);
        emit!(self, @over, "bra", done);
        body(self, at);
        emit!(self, "add.u32", at, at, BLOCK_SIZE * step);
        emit!(self, "bra", head);
        self.place_label(done);
    }

    /// Reads an element of a row from where it is cached, or from the operand, as it lies there; 0 outside of the
    /// bounds.
    pub fn load_cached(&mut self, row: usize, operand: u32, lane: Reg, place: Place) -> Option<Reg> {
        let &(start, fits) = self.cached.get(&row)?;
        let ty = self.raw_type(operand);
        let (class, _) = Memory::of(self.memory_dtype(operand)).raw(self.memory_dtype(operand));
        let raw = self.immediate(class, class.zero());
        let from = self.cached_address(operand, start, lane);
        let not_cached = self.op1(Class::Pred, "not.pred", fits);
        for (there, space, address) in [(fits, "shared", from), (not_cached, "global", place.address)] {
            let when = self.both(Some(there), place.inside);
            emit!(self, when when, format!("ld.{space}.{ty}"), raw, mem(address));
        }
        Some(raw)
    }

    /// Where an element of a row lies that is cached from `start` on.
    pub fn cached_address(&mut self, operand: u32, start: Reg, lane: Reg) -> Reg {
        let (lane, address) = (self.op1(Class::B32, "cvt.u32.u64", lane), self.reg(Class::B32));
        let size = self.memory_dtype(operand).size_in_bytes();
        emit!(self, "mad.lo.u32", address, lane, size, start);
        address
    }

    /// How an operand's elements lie in memory: the type in `ld` and `st`.
    fn raw_type(&self, operand: u32) -> &'static str {
        let dtype = self.memory_dtype(operand);
        Memory::of(dtype).raw(dtype).1
    }
}
