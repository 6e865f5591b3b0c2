//! The control-flow graph of a function: edges, reverse postorder, and natural loops.

use super::isa::Control;
use super::{Function, Operand};

/// The edges between a function's blocks, which are named by their index.
pub(in crate::kernel::ptx) struct Cfg {
    pub successors: Vec<Vec<usize>>,
    pub predecessors: Vec<Vec<usize>>,
    /// The blocks that can be reached, in reverse postorder.
    pub order: Vec<usize>,
    /// Each block's place in that order; none for those that cannot be reached.
    place: Vec<Option<usize>>,
}

/// A natural loop.
pub(in crate::kernel::ptx) struct Loop {
    pub head: usize,
    /// Its blocks, the head among them.
    pub blocks: Vec<usize>,
}

impl Cfg {
    pub fn of(function: &Function) -> Cfg {
        let count = function.blocks.len();
        let mut at_label = vec![None; function.labels as usize + 1];
        for (i, block) in function.blocks.iter().enumerate() {
            if let Some(label) = block.label {
                at_label[label.0 as usize] = Some(i);
            }
        }
        let mut successors = vec![Vec::new(); count];
        let mut predecessors = vec![Vec::new(); count];
        for (i, block) in function.blocks.iter().enumerate() {
            let last = block.insts.last().map(|&inst| (inst, function.opcode(inst).control()));
            let goes_on = last.is_none_or(|(inst, control)| control == Control::Next || inst.guard.is_some());
            let target = last.filter(|(_, control)| *control == Control::Branch).and_then(|(inst, _)| {
                let Some(Operand::Label(label)) = function.operands(inst).first() else { return None };
                at_label[label.0 as usize]
            });
            for to in goes_on.then_some(i + 1).filter(|next| *next < count).into_iter().chain(target) {
                successors[i].push(to);
                predecessors[to].push(i);
            }
        }
        let mut cfg = Cfg { successors, predecessors, order: Vec::with_capacity(count), place: vec![None; count] };
        cfg.sort();
        cfg
    }

    /// Finds the order, by a depth-first search without recursion: kernels may have many thousand blocks.
    fn sort(&mut self) {
        let mut seen = vec![false; self.successors.len()];
        let mut path = vec![(0, 0)];
        seen[0] = true;
        while let Some((block, next)) = path.last_mut() {
            // What goes on without a branch is searched last, so that it comes first.
            match self.successors[*block].iter().rev().nth(*next) {
                Some(&to) => {
                    *next += 1;
                    if !std::mem::replace(&mut seen[to], true) {
                        path.push((to, 0));
                    }
                }
                None => {
                    self.order.push(*block);
                    path.pop();
                }
            }
        }
        self.order.reverse();
        for (place, &block) in self.order.iter().enumerate() {
            self.place[block] = Some(place);
        }
    }

    /// Whether a block can be reached.
    pub fn is_reached(&self, block: usize) -> bool {
        self.place[block].is_some()
    }

    /// Whether an edge leads back to the head of a loop.
    pub fn goes_back(&self, from: usize, to: usize) -> bool {
        self.place[from] >= self.place[to]
    }

    /// The natural loops, those with one head as one.
    pub fn loops(&self) -> Vec<Loop> {
        let mut loops = Vec::new();
        let mut seen_for = vec![usize::MAX; self.successors.len()];
        for &head in &self.order {
            let is_back = |from: &usize| self.is_reached(*from) && self.goes_back(*from, head);
            let mut pending: Vec<usize> = self.predecessors[head].iter().copied().filter(is_back).collect();
            if pending.is_empty() {
                continue;
            }
            seen_for[head] = head;
            let mut blocks = vec![head];
            while let Some(block) = pending.pop() {
                if std::mem::replace(&mut seen_for[block], head) != head {
                    blocks.push(block);
                    pending.extend(self.predecessors[block].iter().filter(|from| self.is_reached(**from)));
                }
            }
            loops.push(Loop { head, blocks });
        }
        loops
    }
}
