//! The fusion pass: walks the steps once. Where it can, it fuses elementwise steps with a program kernel, as its prologue
//! and epilogue ([`super::epilogue_fusion`]), and else with each other ([`super::elementwise_fusion`]).

use super::super::schedule::{Schedule, Step};
use super::elementwise_fusion::{alone, run_end};
use super::epilogue_fusion;

pub(in crate::compiler) fn fuse(schedule: &mut Schedule) {
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut schedule.steps).into_iter().map(Some).collect();
    let mut last_use = vec![0; schedule.buffers.len()];
    for (index, step) in steps.iter().enumerate() {
        step.iter().flat_map(|step| &step.operands).for_each(|operand| last_use[operand.buffer.index()] = index);
    }
    schedule.steps.reserve(steps.len());
    let mut first = 0;
    while first < steps.len() {
        let mut last = run_end(&steps, first);
        if let Some((step, end)) = epilogue_fusion::fuse(schedule, &steps, first..last, &last_use) {
            schedule.steps.push(step);
            first = end;
            continue;
        }
        let region = loop {
            let fused: Vec<&Step> = steps[first..last].iter().flatten().collect();
            match alone(schedule, &fused, last, &last_use) {
                Some(step) => break Some(step),
                None if last > first + 1 => last -= 1,
                None => break None,
            }
        };
        schedule.steps.extend(region.or_else(|| steps[first].take()));
        first = last;
    }
}
