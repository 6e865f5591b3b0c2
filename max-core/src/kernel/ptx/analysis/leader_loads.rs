//! Leader loads: predicated loads of the storing thread, of what no other thread needs.
//!
//! The first thread makes all stores of program code. Where a loaded value reaches nothing but these stores, as in
//! read-modify-write of a result, no other thread has to load it or wait for the stores.

use std::collections::{HashMap, HashSet};

use super::plan::is_pure;
use crate::kernel::ir::{Block, Inst, Kernel, Op, Value};

/// What values are made of, and which of them every thread needs.
#[derive(Default)]
struct Uses {
    made_of: HashMap<Value, Vec<Value>>,
    needed: Vec<Value>,
    loads: Vec<Value>,
}

impl Uses {
    /// Adds program code.
    fn add(&mut self, block: &Block) {
        for Inst { op, results, .. } in &block.insts {
            if let Op::Load { .. } = op {
                self.loads.extend(results);
            }
            if let Op::Store { .. } | Op::Atomic { .. } = op {
                continue;
            }
            if let Op::If { condition, then, otherwise } = op {
                self.needed.push(*condition);
                for inner in [then, otherwise] {
                    self.add(inner);
                    let yields = inner.yields.iter().zip(results);
                    yields.for_each(|(&from, &to)| self.made_of.entry(to).or_default().push(from));
                }
            } else if let Op::For { body, .. } = op {
                self.needed.extend(op.uses());
                self.add(body);
            } else if is_pure(op, &HashSet::new()) && !matches!(op, Op::Get(_)) {
                results.iter().for_each(|&result| self.made_of.entry(result).or_default().extend(op.uses()));
            } else {
                self.needed.extend(op.uses());
                op.blocks().into_iter().for_each(|(inner, _)| self.all_need(inner));
            }
        }
    }

    /// Adds other code, which all threads run.
    fn all_need(&mut self, block: &Block) {
        self.needed.extend(&block.yields);
        for inst in &block.insts {
            self.needed.extend(inst.op.uses());
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.all_need(inner));
        }
    }
}

/// The loads of a kernel's program code that only the first thread needs.
pub(in crate::kernel::ptx) fn leader_loads(kernel: &Kernel) -> HashSet<Value> {
    let mut uses = Uses::default();
    uses.add(&kernel.body);
    let mut needed = HashSet::new();
    while let Some(value) = uses.needed.pop() {
        if needed.insert(value) {
            uses.needed.extend(uses.made_of.get(&value).into_iter().flatten());
        }
    }
    uses.loads.into_iter().filter(|load| !needed.contains(load)).collect()
}
