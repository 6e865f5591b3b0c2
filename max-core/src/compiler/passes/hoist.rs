//! Moves elementwise steps up to what they read, over steps that have nothing to do with either, since fusion looks at
//! neighbours alone: `f(a)` and `f(b)` of two products are epilogues, also where the program computes both products first.

use smallvec::SmallVec;

use super::super::schedule::{BufferId, Draft, Step, Work};
use super::super::view::product;
use super::elementwise_fusion::{dims, fusable};
use crate::kernel::abi::Access;

/// So far behind a step others are looked for, which keeps the pass linear.
const WINDOW: usize = 16;

pub(in crate::compiler) fn hoist(draft: &mut Draft) {
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut draft.steps).into_iter().map(Some).collect();
    for first in 0..steps.len() {
        let Some(step) = steps[first].take() else { continue };
        let mut group: SmallVec<[Step; 8]> = SmallVec::from_iter([step]);
        let mut skipped: SmallVec<[usize; WINDOW]> = SmallVec::new();
        let begins = matches!(group[0].work, Work::Kernel(_));
        for index in first + 1..steps.len().min(first + 1 + WINDOW) {
            let Some(next) = &steps[index] else { continue };
            if !begins || is_barrier(next) {
                break;
            }
            let between = || skipped.iter().filter_map(|index| steps[*index].as_ref());
            match goes_on(&group, next) && between().all(|step| is_apart(step, next, &group)) {
                true => group.extend(steps[index].take()),
                false => skipped.push(index),
            }
        }
        draft.steps.extend(group);
    }
}

/// Whether no step is moved over this one.
fn is_barrier(step: &Step) -> bool {
    !matches!(step.work, Work::Kernel(_) | Work::Copy | Work::Transfer | Work::Sizes(_))
}

/// Whether a step continues what the group computes, element by element.
fn goes_on(group: &[Step], next: &Step) -> bool {
    let Some(last) = group.last().filter(|last| fusable(next).is_some() && last.device == next.device) else {
        return false;
    };
    let of_group = |buffer| group.iter().any(|step| touches(step, buffer, true));
    let mut read =
        next.operands.iter().enumerate().filter(|(i, o)| next.access(*i) == Access::In && of_group(o.buffer));
    let Some((_, read)) = read.next() else { return false };
    match fusable(last) {
        Some(_) => dims(next) == dims(last),
        None => read.view.is_whole() && dims(next).is_some_and(|dims| product(dims) == product(&read.view.dims)),
    }
}

/// Whether `next` can come before `step`, which has nothing to do with the group.
fn is_apart(step: &Step, next: &Step, group: &[Step]) -> bool {
    let operands =
        |step: &Step| step.operands.iter().map(|operand| operand.buffer).collect::<SmallVec<[BufferId; 8]>>();
    let clashes = |(i, buffer): (usize, BufferId)| {
        touches(step, buffer, true) || next.access(i) != Access::In && touches(step, buffer, false)
    };
    let of_group = |buffer: BufferId| group.iter().any(|other| touches(other, buffer, true));
    !operands(next).into_iter().enumerate().any(clashes) && !operands(step).into_iter().any(of_group)
}

/// Whether a step writes a buffer, or, without `written`, reads or writes it.
fn touches(step: &Step, buffer: BufferId, written: bool) -> bool {
    let is_of = |(i, _): (usize, _)| !written || step.access(i) != Access::In;
    step.operands.iter().enumerate().filter(|(_, operand)| operand.buffer == buffer).any(is_of)
}
