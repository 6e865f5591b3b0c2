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

/// Some of the steps.
type Group<'a> = SmallVec<[&'a Step; WINDOW]>;

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
    let (mut order, mut taken) = (Vec::with_capacity(steps.len()), vec![false; steps.len()]);
    for first in 0..steps.len() {
        if taken[first] {
            continue;
        }
        let mut group: Group<'_> = SmallVec::from_iter([&steps[first]]);
        order.push(first);
        if !matches!(steps[first].work, Work::Kernel(_)) {
            continue;
        }
        let mut skipped: Group<'_> = SmallVec::new();
        for index in first + 1..steps.len().min(first + 1 + WINDOW) {
            let next = &steps[index];
            if taken[index] {
                continue;
            }
            if is_barrier(next) {
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
fn goes_on(group: &[&Step], next: &Step) -> bool {
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
fn is_apart(step: &Step, next: &Step, group: &[&Step]) -> bool {
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
