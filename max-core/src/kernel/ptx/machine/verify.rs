//! The verifier of the machine-level IR.
//!
//! | of | what holds |
//! | --- | --- |
//! | an opcode | it is in the [table](super::isa), and the target and the version of PTX have it |
//! | its operands | there are as many as in the table, and each is of the kind that is there |
//! | its guard | it is a predicate; what all threads of a warp execute together, and a call, have none |
//! | a label | it stands at one block; branches go to labels that stand somewhere |
//! | a register | it is assigned on every way to where it is read |
//!
//! An assignment under a guard is one for what is read under the same guard, and together with another under the
//! opposite guard it is one for all. `implicit_def` assigns what is left open on purpose.

use std::collections::HashMap;

use super::cfg::Cfg;
use super::isa::{CALL_VPRINTF, IMPLICIT_DEF, Role};
use super::{Block, Class, Function, Guard, Inst, Operand, Reg};

/// What a function is for.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::ptx) struct Environment {
    pub sm: u32,
    /// Whether it has what is special to that architecture.
    pub arch_specific: bool,
    /// The version of PTX, 78 for 7.8.
    pub ptx_version: u32,
}

/// What a block does to registers.
#[derive(Default)]
struct Summary {
    /// Those that it reads before it assigns them, and where.
    reads: Vec<(Reg, Inst)>,
    assigns: Vec<Reg>,
}

/// The registers that are assigned so far in a block, always or under a guard.
#[derive(Default)]
struct Assigned {
    /// For each register by its index, in which block it was last assigned, counted from 1.
    in_block: Vec<u32>,
    guarded: HashMap<Reg, Guard>,
}

impl Function {
    /// Checks the function.
    ///
    /// # Errors
    /// Says what does not hold, and of which instruction.
    pub fn verify(&self, environment: Environment) -> Result<(), String> {
        let placed = self.verify_labels()?;
        for &inst in self.blocks.iter().flat_map(|block| &block.insts) {
            self.verify_inst(inst, environment, &placed).map_err(|fault| self.of_inst(&fault, inst))?;
        }
        self.verify_registers()
    }

    fn of_inst(&self, fault: &str, inst: Inst) -> String {
        let mut text = String::new();
        self.print_inst(&mut text, inst);
        format!("{fault}: `{}`", text.trim())
    }

    /// Which labels stand somewhere.
    fn verify_labels(&self) -> Result<Vec<bool>, String> {
        let mut placed = vec![false; self.labels as usize + 1];
        for label in self.blocks.iter().filter_map(|block| block.label) {
            if std::mem::replace(&mut placed[label.0 as usize], true) {
                return Err(format!("label {} stands twice", label.0));
            }
        }
        Ok(placed)
    }

    fn verify_inst(&self, inst: Inst, environment: Environment, placed: &[bool]) -> Result<(), String> {
        let opcode = self.opcode(inst);
        let row = opcode.instruction().ok_or("an opcode that is not in the table")?;
        let (sm, ptx_version) = opcode.since();
        let arch = !row.arch_specific || environment.arch_specific && environment.sm == row.sm;
        if sm > environment.sm || !arch {
            return Err("the target does not have it".to_owned());
        }
        if ptx_version > environment.ptx_version {
            return Err(format!("PTX {ptx_version} has it, but not {}", environment.ptx_version));
        }
        match inst.guard {
            Some(_) if row.convergent => return Err("a guard where a warp's threads go together".to_owned()),
            Some(_) if row.name == CALL_VPRINTF => return Err("a guard of a call, which is several lines".to_owned()),
            Some(guard) if guard.predicate.class != Class::Pred => {
                return Err("a guard that is no predicate".to_owned());
            }
            Some(_) | None => {}
        }
        let operands = self.operands(inst);
        if operands.len() > row.operands.len() || operands.len() + row.optional < row.operands.len() {
            return Err(format!("{} operands", operands.len()));
        }
        for (i, (operand, role)) in operands.iter().zip(row.operands).enumerate() {
            if !opcode.takes(role.kind(), operand) {
                return Err(format!("operand {i} is no {:?}", role.kind()));
            }
            if let Operand::Label(label) = operand
                && !placed[label.0 as usize]
            {
                return Err("a branch to nowhere".to_owned());
            }
        }
        Ok(())
    }

    /// The index of a register among all.
    fn index(&self, reg: Reg) -> usize {
        let before =
            Class::ALL.iter().take_while(|class| **class != reg.class).map(|class| self.count(*class) as usize);
        before.sum::<usize>() + reg.number as usize - 1
    }

    /// Each register is assigned before it is read: a forward data-flow analysis of the registers that blocks read from
    /// others.
    fn verify_registers(&self) -> Result<(), String> {
        let all: u32 = Class::ALL.iter().map(|class| self.count(*class)).sum();
        let mut assigned = Assigned { in_block: vec![0; all as usize], guarded: HashMap::new() };
        let blocks = (1..).zip(&self.blocks);
        let summaries: Vec<Summary> = blocks.map(|(i, block)| self.summary(i, block, &mut assigned)).collect();
        // Most registers are local to their block: the others are numbered.
        let mut numbers = vec![u32::MAX; all as usize];
        let mut count = 0;
        for (reg, _) in summaries.iter().flat_map(|summary| &summary.reads) {
            let number = &mut numbers[self.index(*reg)];
            if *number == u32::MAX {
                *number = count;
                count += 1;
            }
        }
        let bit = |reg: Reg| {
            let number = numbers[self.index(reg)];
            (number != u32::MAX).then_some((number as usize / 64, 1_u64 << (number % 64)))
        };
        let (cfg, words) = (Cfg::of(self), (count as usize).div_ceil(64));
        // What is assigned at a block's end; all, before that is known.
        let mut ends = vec![u64::MAX; words * self.blocks.len()];
        let mut start = vec![0; words];
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &cfg.order {
                self.meet(&cfg, block, &ends, &mut start);
                summaries[block].assigns.iter().filter_map(|reg| bit(*reg)).for_each(|(word, bit)| start[word] |= bit);
                let end = &mut ends[words * block..words * (block + 1)];
                if *end != *start {
                    changed = true;
                    end.copy_from_slice(&start);
                }
            }
        }
        for &block in &cfg.order {
            self.meet(&cfg, block, &ends, &mut start);
            let is_missing = |reg: Reg| bit(reg).is_some_and(|(word, bit)| start[word] & bit == 0);
            if let Some((reg, inst)) = summaries[block].reads.iter().find(|(reg, _)| is_missing(*reg)) {
                return Err(self.of_inst(&format!("{reg} is not assigned on every way to where it is read"), *inst));
            }
        }
        Ok(())
    }

    /// What is assigned where a block starts: what is at the ends of all blocks that lead there.
    fn meet(&self, cfg: &Cfg, block: usize, ends: &[u64], start: &mut [u64]) {
        let from = cfg.predecessors[block].iter().filter(|from| cfg.is_reached(**from));
        start.fill(if block == 0 { 0 } else { u64::MAX });
        for from in from {
            let end = &ends[start.len() * from..start.len() * (from + 1)];
            start.iter_mut().zip(end).for_each(|(start, end)| *start &= end);
        }
    }

    fn summary(&self, block_number: u32, block: &Block, assigned: &mut Assigned) -> Summary {
        let mut summary = Summary::default();
        assigned.guarded.clear();
        for &inst in &block.insts {
            let roles = self.opcode(inst).instruction().map_or(&[][..], |row| row.operands);
            let operands = self.operands(inst).iter().zip(roles);
            let mut read = |reg: Reg, guard: Option<Guard>| {
                let here = assigned.in_block[self.index(reg)] == block_number;
                let under_guard = guard.is_some() && assigned.guarded.get(&reg).copied() == guard;
                if !here && !under_guard {
                    summary.reads.push((reg, inst));
                }
            };
            inst.guard.into_iter().for_each(|guard| read(guard.predicate, None));
            for (operand, role) in operands.clone() {
                if !matches!(role, Role::Def(_)) || matches!(operand, Operand::Address(..)) {
                    operand.regs().for_each(|reg| read(reg, inst.guard));
                }
            }
            for (operand, _) in operands.filter(|(_, role)| matches!(role, Role::Def(_) | Role::Update(_))) {
                for reg in operand.regs() {
                    let place = self.index(reg);
                    if reg.class == Class::Pred {
                        assigned.guarded.retain(|_, guard| guard.predicate != reg);
                    }
                    let is_whole = inst.guard.is_none_or(|guard| {
                        let opposite = Guard { negated: !guard.negated, ..guard };
                        assigned.guarded.get(&reg) == Some(&opposite)
                    });
                    match inst.guard {
                        Some(guard) if !is_whole => {
                            assigned.guarded.insert(reg, guard);
                        }
                        Some(_) | None => {
                            assigned.in_block[place] = block_number;
                            summary.assigns.push(reg);
                        }
                    }
                }
            }
        }
        summary
    }
}

impl Inst {
    /// Whether it has no text.
    pub(super) fn is_pseudo(self, function: &Function) -> bool {
        function.opcode(self).text() == IMPLICIT_DEF
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Special, mem, vector_of};
    use super::*;
    use crate::kernel::ir::Loc;

    const HOPPER: Environment = Environment { sm: 90, arch_specific: true, ptx_version: 80 };
    const AMPERE: Environment = Environment { sm: 80, arch_specific: false, ptx_version: 70 };

    /// Appends an instruction.
    fn push<const N: usize>(f: &mut Function, opcode: &str, guard: Option<Guard>, operands: [Operand; N]) {
        f.push(opcode, guard, operands, Loc::default());
    }

    /// What is wrong with code that begins with a thread's index in a register, and whether that is 0.
    fn fault(environment: Environment, code: impl FnOnce(&mut Function, Reg, Reg)) -> Option<String> {
        let mut f = Function::new();
        let (thread, is_first) = (f.reg(Class::B32), f.reg(Class::Pred));
        push(&mut f, "mov.u32", None, [thread.into(), Special::Thread.into()]);
        push(&mut f, "setp.eq.u32", None, [is_first.into(), thread.into(), Operand::Int(0)]);
        code(&mut f, thread, is_first);
        push(&mut f, "ret", None, []);
        f.verify(environment).err()
    }

    #[track_caller]
    fn assert_fault(expected: &str, code: impl FnOnce(&mut Function, Reg, Reg)) {
        let fault = fault(HOPPER, code).unwrap_or_default();
        assert!(fault.starts_with(expected), "`{fault}` is not about `{expected}`");
    }

    #[test]
    fn a_register_is_assigned_on_every_way() {
        let partly = |guarded: bool, both: bool| {
            fault(HOPPER, move |f, thread, is_first| {
                let (sum, skip) = (f.reg(Class::B32), f.label());
                match guarded {
                    true => {
                        push(f, "add.u32", Some(Guard::when(is_first)), [sum.into(), thread.into(), Operand::Int(1)]);
                        if both {
                            push(f, "mov.b32", Some(Guard::unless(is_first)), [sum.into(), Operand::Int(0)]);
                        }
                    }
                    false => {
                        if both {
                            push(f, "mov.b32", None, [sum.into(), Operand::Int(0)]);
                        }
                        push(f, "bra", Some(Guard::when(is_first)), [skip.into()]);
                        push(f, "add.u32", None, [sum.into(), thread.into(), Operand::Int(1)]);
                        f.place_label(skip);
                    }
                }
                push(f, "mov.b32", None, [thread.into(), sum.into()]);
            })
        };
        for guarded in [false, true] {
            assert_eq!(partly(guarded, true), None);
            let fault = partly(guarded, false).unwrap_or_default();
            assert_eq!(fault, "%r2 is not assigned on every way to where it is read: `mov.b32 %r1, %r2;`");
        }
    }

    #[test]
    fn what_a_loop_assigns_is_not_assigned_before_it() {
        assert_fault("%r2 is not assigned", |f, thread, is_first| {
            let (sum, head) = (f.reg(Class::B32), f.label());
            f.place_label(head);
            push(f, "add.u32", None, [thread.into(), thread.into(), sum.into()]);
            push(f, "mov.b32", None, [sum.into(), thread.into()]);
            push(f, "bra", Some(Guard::when(is_first)), [head.into()]);
        });
    }

    #[test]
    fn operands_are_of_their_kinds() {
        assert_fault("operand 2 is no Typed", |f, thread, is_first| {
            push(f, "add.u32", None, [thread.into(), thread.into(), is_first.into()]);
        });
        assert_fault("operand 1 is no Address", |f, thread, _| {
            push(f, "ld.global.b32", None, [thread.into(), mem(thread)]);
        });
        assert_fault("operand 0 is no Typed", |f, thread, _| {
            push(f, "ld.shared.v2.b32", None, [vector_of(&[thread; 4]), mem(thread)]);
        });
        assert_fault("2 operands", |f, thread, _| push(f, "add.u32", None, [thread.into(), thread.into()]));
        assert_fault("an opcode that is not in the table", |f, thread, _| {
            push(f, "popc.b32", None, [thread.into(), thread.into()]);
        });
    }

    #[test]
    fn warps_go_together_without_a_guard() {
        assert_fault("a guard where a warp's threads go together", |f, _, is_first| {
            push(f, "bar.sync", Some(Guard::when(is_first)), [Operand::Int(0)]);
        });
        assert_fault("a guard of a call", |f, _, is_first| {
            let place = f.reg(Class::B64);
            push(f, "mov.b64", None, [place.into(), Operand::Int(0)]);
            push(f, "call.vprintf", Some(Guard::when(is_first)), [place.into(), place.into()]);
        });
    }

    #[test]
    fn labels_stand_once() {
        assert_fault("label 1 stands twice", |f, _, _| {
            let label = f.label();
            f.place_label(label);
            f.place_label(label);
        });
        assert_fault("a branch to nowhere", |f, _, _| {
            let label = f.label();
            push(f, "bra", None, [label.into()]);
        });
    }

    #[test]
    fn targets_have_the_instructions() {
        let fence = |environment| fault(environment, |f, _, _| push(f, "wgmma.fence.sync.aligned", None, []));
        assert_eq!(fence(HOPPER), None);
        for environment in [AMPERE, Environment { arch_specific: false, ..HOPPER }] {
            assert_eq!(fence(environment).as_deref(), Some("the target does not have it: `wgmma.fence.sync.aligned;`"));
        }
        let fault = fence(Environment { ptx_version: 78, ..HOPPER }).unwrap_or_default();
        assert!(fault.starts_with("PTX 80 has it, but not 78"), "{fault}");
    }
}
