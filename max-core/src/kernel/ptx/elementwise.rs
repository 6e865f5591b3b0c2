//! Elementwise kernels: a loop over elements that all threads of all blocks share.

use super::Slot;
use super::emitter::{Class, Fixed, Gen, Reg};
use super::memory::Place;
use crate::kernel::table::Access;

impl Gen<'_> {
    pub fn elementwise(&mut self) {
        let kernel = self.kernel;
        self.in_lanes = true;
        let count = self.fixed(Fixed::Slot(Slot::Count));
        let thread = self.fixed(Fixed::Thread);
        let block = self.op1(Class::B32, "mov.u32", "%ctaid.x");
        let threads = self.op1(Class::B32, "mov.u32", "%ntid.x");
        let blocks = self.op1(Class::B32, "mov.u32", "%nctaid.x");
        let first = self.op2(Class::B64, "mul.wide.u32", block, threads);
        let thread = self.op1(Class::B64, "cvt.u64.u32", thread);
        let index = self.op2(Class::B64, "add.s64", first, thread);
        let step = self.op2(Class::B64, "mul.wide.u32", blocks, threads);
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.s64", index, count);
        emit!(self, "@{done} bra {end};");
        let places: Vec<Place> = (0..kernel.operands.len() as u32).map(|o| self.element_place(o, index)).collect();
        let reads = |access| matches!(access, Access::In | Access::InOut);
        let writes = |access| matches!(access, Access::Out | Access::InOut);
        let mut elements = kernel.elements.iter();
        for ((operand, o), &place) in (0..).zip(&kernel.operands).zip(&places) {
            if reads(o.access)
                && let Some(&element) = elements.next()
            {
                let value = self.load_at(operand, place);
                self.set(element, value);
            }
        }
        self.block(&kernel.body);
        let mut yields = kernel.body.yields.iter();
        for ((operand, o), &place) in (0..).zip(&kernel.operands).zip(&places) {
            if writes(o.access)
                && let Some(&result) = yields.next()
            {
                let value = self.get(result);
                self.store_at(operand, place, value, false);
            }
        }
        emit!(self, "add.s64 {index}, {index}, {step};");
        emit!(self, "bra {head};");
        self.place_label(end);
    }

    fn element_place(&mut self, operand: u32, index: Reg) -> Place {
        let stride = self.stride(operand, 0);
        let offset = self.op2(Class::B64, "mul.lo.s64", index, stride);
        Place { address: self.address(operand, Some(offset)), inside: None }
    }
}
