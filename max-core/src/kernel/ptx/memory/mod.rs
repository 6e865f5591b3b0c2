//! Loads, stores, and the addresses of elements.

pub(super) mod atomic;
pub(super) mod pipeline;
pub(super) mod shared_tile;
pub(super) mod tile_io;
pub(super) mod tma;
pub(super) mod vectorize;
pub(super) mod warp_transpose;

use self::vectorize::Element;
use super::Slot;
use super::convert::Memory;
use super::emitter::{Fixed, Gen};
use super::machine::{Class, Reg, mem, mem_at, vector_of};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// An element's address, and whether it is inside of the operand's bounds (`None`: it always is).
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub address: Reg,
    pub inside: Option<Reg>,
}

impl Gen<'_> {
    pub fn pointer(&mut self, operand: u32) -> Reg {
        self.fixed(Fixed::Slot(Slot::Pointer { operand }))
    }

    pub fn dim(&mut self, operand: u32, axis: u32) -> Reg {
        self.fixed(Fixed::Slot(Slot::Dim { operand, axis }))
    }

    pub fn stride(&mut self, operand: u32, axis: u32) -> Reg {
        self.fixed(Fixed::Slot(Slot::Stride { operand, axis }))
    }

    pub fn memory_dtype(&self, operand: u32) -> DType {
        self.kernel.operands[operand as usize].dtype
    }

    /// Both of two conditions, where `None` always holds.
    pub fn both(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.op2(Class::Pred, "and.pred", a, b)),
            (a, None) => a,
            (None, b) => b,
        }
    }

    /// Whether `0 <= coordinate < dim`: one unsigned comparison, as dims are not negative.
    pub fn in_dim(&mut self, coordinate: Reg, operand: u32, axis: u32) -> Reg {
        let dim = self.dim(operand, axis);
        self.op2(Class::Pred, "setp.lt.u64", coordinate, dim)
    }

    /// The offset in elements of coordinates along `axis`, `axis + 1`, …, added to `offset`; and their bounds.
    pub fn offset(
        &mut self,
        operand: u32,
        coordinates: &[Reg],
        axis: u32,
        mut offset: Option<Reg>,
        mut inside: Option<Reg>,
    ) -> (Option<Reg>, Option<Reg>) {
        for (axis, &coordinate) in (axis..).zip(coordinates) {
            let stride = self.stride(operand, axis);
            offset = self.offset_along(stride, coordinate, offset);
            let here = self.in_dim(coordinate, operand, axis);
            inside = self.both(inside, Some(here));
        }
        (offset, inside)
    }

    /// The offset in elements of a coordinate along one axis, added to another.
    pub fn offset_along(&mut self, stride: Reg, coordinate: Reg, offset: Option<Reg>) -> Option<Reg> {
        let Some(offset) = offset else { return Some(self.op2(Class::B64, "mul.lo.s64", coordinate, stride)) };
        let sum = self.reg(Class::B64);
        emit!(self, "mad.lo.s64", sum, coordinate, stride, offset);
        Some(sum)
    }

    /// The address at an offset in elements.
    pub fn address(&mut self, operand: u32, offset: Option<Reg>) -> Reg {
        let pointer = self.pointer(operand);
        let Some(offset) = offset else { return pointer };
        let size = self.memory_dtype(operand).size_in_bytes();
        let address = self.reg(Class::B64);
        emit!(self, "mad.lo.s64", address, offset, size, pointer);
        address
    }

    fn place(&mut self, operand: u32, index: &[Value]) -> Place {
        let coordinates: Vec<Reg> = index.iter().map(|&v| self.get(v)).collect();
        let (offset, inside) = self.offset(operand, &coordinates, 0, None, None);
        Place { address: self.address(operand, offset), inside }
    }

    /// Where an instruction writes: in program code, the first thread does it.
    pub fn write_place(&mut self, operand: u32, index: &[Value]) -> Place {
        let place = self.place(operand, index);
        self.check_bounds("written", operand, index, place.inside);
        if self.in_lanes {
            return place;
        }
        let first = self.fixed(Fixed::Leader);
        Place { inside: self.both(Some(first), place.inside), ..place }
    }

    pub fn load(&mut self, result: Value, operand: u32, index: &[Value], pad: Option<Value>) -> Reg {
        let dtype = self.memory_dtype(operand);
        let (raw, inside) = match self.loaded.get(&result).copied() {
            Some(Element { line, index, raw }) => {
                let is_asked = pad.is_some() || self.options.bounds;
                (raw, is_asked.then(|| self.in_line(&line, index)).flatten())
            }
            None => {
                let place = self.place(operand, index);
                let first = self.plan.leader_loads.contains(&result).then(|| self.fixed(Fixed::Leader));
                let here = Place { inside: self.both(first, place.inside), ..place };
                let row = self.plan.rows.of(result).zip(index.last());
                let cached = row.and_then(|(row, &lane)| self.load_cached(row, operand, self.get(lane), here));
                (cached.unwrap_or_else(|| self.load_raw(operand, here)), place.inside)
            }
        };
        if pad.is_none() {
            self.check_bounds("read", operand, index, inside);
        }
        let value = self.decode(dtype, raw);
        match (pad, inside) {
            (Some(pad), Some(inside)) => {
                let pad = self.get(pad);
                self.select(inside, value, pad)
            }
            (None, _) | (_, None) => value,
        }
    }

    /// Reads an element; 0 outside of the bounds.
    pub fn load_at(&mut self, operand: u32, place: Place) -> Reg {
        let raw = self.load_raw(operand, place);
        self.decode(self.memory_dtype(operand), raw)
    }

    /// Reads an element as it lies in memory; 0 outside of the bounds.
    pub fn load_raw(&mut self, operand: u32, place: Place) -> Reg {
        let dtype = self.memory_dtype(operand);
        let (class, ty) = Memory::of(dtype).raw(dtype);
        let address = place.address;
        let raw = match place.inside {
            None => self.reg(class),
            // 0 in memory is the value 0 in every dtype.
            Some(_) => self.immediate(class, class.zero()),
        };
        emit!(self, when place.inside, format!("ld.global.{ty}"), raw, mem(address));
        raw
    }

    pub fn store(&mut self, operand: u32, index: &[Value], value: Value, scatter: bool) {
        if let Some(Element { line, index: at, raw }) = self.to_store.get(&operand).copied() {
            let inside = self.options.bounds.then(|| self.in_line(&line, at)).flatten();
            self.check_bounds("written", operand, index, inside);
            let encoded = self.encode(self.memory_dtype(operand), self.get(value));
            return self.mov(raw, encoded);
        }
        let place = self.write_place(operand, index);
        let value = self.get(value);
        self.store_at(operand, place, value, scatter);
    }

    /// Writes an element; nothing outside of the bounds. A `relaxed` store may meet those of other blocks.
    pub fn store_at(&mut self, operand: u32, place: Place, value: Reg, relaxed: bool) {
        let dtype = self.memory_dtype(operand);
        let (_, ty) = Memory::of(dtype).raw(dtype);
        let raw = self.encode(dtype, value);
        let order = if relaxed { "relaxed.gpu.global" } else { "global" };
        emit!(self, when place.inside, format!("st.{order}.{ty}"), mem(place.address), raw);
    }

    /// Writes two or four neighbours so many bytes from a place, where they are aligned as a whole; nothing outside of
    /// the bounds.
    pub fn store_together(&mut self, operand: u32, place: Place, offset: u32, values: &[Reg]) {
        let dtype = self.memory_dtype(operand);
        let (_, ty) = Memory::of(dtype).raw(dtype);
        let values: Vec<Reg> = values.iter().map(|&v| self.encode(dtype, v)).collect();
        let (opcode, address) = (format!("st.global.v{}.{ty}", values.len()), place.address);
        emit!(self, when place.inside, opcode, mem_at(address, offset), vector_of(&values));
    }
}
