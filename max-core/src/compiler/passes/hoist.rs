//! Moves elementwise steps up to what they read, over steps that have nothing to do with either, since fusion looks at
//! neighbours alone: `f(a)` and `f(b)` of two products are epilogues, also where the program computes both products first.

use smallvec::SmallVec;

use super::super::schedule::{BufferId, Schedule, Step, Work};
use super::super::view::product;
use super::elementwise_fusion::{dims, fusable};
use super::rewrite::permute;
use crate::kernel::abi::Access;

/// So far behind a step others are looked for, which keeps the pass linear.
const WINDOW: usize = 16;

/// A step, and what every step behind it asks of it.
struct Candidate<'a> {
    step: &'a Step,
    is_fusable: bool,
    /// What it writes or changes.
    written: SmallVec<[BufferId; 4]>,
}

impl<'a> Candidate<'a> {
    fn new(step: &'a Step) -> Candidate<'a> {
        let written = step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) != Access::In);
        Candidate {
            step,
            is_fusable: fusable(step).is_some(),
            written: written.map(|(_, operand)| operand.buffer).collect(),
        }
    }

    fn writes(&self, buffer: BufferId) -> bool {
        self.written.contains(&buffer)
    }

    fn touches(&self, buffer: BufferId) -> bool {
        self.step.operands.iter().any(|operand| operand.buffer == buffer)
    }
}

/// Some of the steps.
type Group<'a> = SmallVec<[&'a Candidate<'a>; WINDOW]>;

pub(in crate::compiler) fn hoist(schedule: &mut Schedule) {
    let order = order(&schedule.steps);
    // Steps are large: of most graphs none is moved.
    if order.iter().enumerate().all(|(place, index)| place == *index) {
        return;
    }
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, index)| places[*index] = place);
    permute(&mut schedule.steps, places);
}

/// The steps in their new order.
fn order(steps: &[Step]) -> Vec<usize> {
    let steps: Vec<Candidate<'_>> = steps.iter().map(Candidate::new).collect();
    let (mut order, mut taken) = (Vec::with_capacity(steps.len()), vec![false; steps.len()]);
    for first in 0..steps.len() {
        if taken[first] {
            continue;
        }
        let mut group: Group<'_> = SmallVec::from_iter([&steps[first]]);
        order.push(first);
        if !matches!(steps[first].step.work, Work::Kernel(_)) {
            continue;
        }
        let mut skipped: Group<'_> = SmallVec::new();
        for index in first + 1..steps.len().min(first + 1 + WINDOW) {
            let next = &steps[index];
            if taken[index] {
                continue;
            }
            if is_barrier(next.step) {
                break;
            }
            if goes_on(&group, next) && skipped.iter().all(|step| is_apart(step, next, &group)) {
                taken[index] = true;
                order.push(index);
                group.push(next);
            } else {
                skipped.push(next);
            }
        }
    }
    order
}

/// Whether no step is moved over this one.
fn is_barrier(step: &Step) -> bool {
    !matches!(step.work, Work::Kernel(_) | Work::Copy | Work::Transfer | Work::Sizes(_))
}

/// Whether a step continues what the group computes, element by element.
fn goes_on(group: &[&Candidate<'_>], next: &Candidate<'_>) -> bool {
    let Some(last) = group.last().filter(|last| next.is_fusable && last.step.device == next.step.device) else {
        return false;
    };
    let of_group = |buffer| group.iter().any(|other| other.writes(buffer));
    let mut operands = next.step.operands.iter().enumerate();
    let Some((_, read)) = operands.find(|(i, o)| next.step.access(*i) == Access::In && of_group(o.buffer)) else {
        return false;
    };
    match last.is_fusable {
        true => dims(next.step) == dims(last.step),
        false => read.view.is_whole() && dims(next.step).is_some_and(|dims| product(dims) == product(&read.view.dims)),
    }
}

/// Whether `next` can come before `step`, which has nothing to do with the group.
fn is_apart(step: &Candidate<'_>, next: &Candidate<'_>, group: &[&Candidate<'_>]) -> bool {
    let of_group = |buffer: BufferId| group.iter().any(|other| other.writes(buffer));
    !next.step.operands.iter().any(|operand| step.writes(operand.buffer))
        && !next.written.iter().any(|buffer| step.touches(*buffer))
        && !step.step.operands.iter().any(|operand| of_group(operand.buffer))
}
