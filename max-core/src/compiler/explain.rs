//! What became of a graph's ops: each step of the plan, the kernels in it, and why the next step is another one.

use std::fmt::{self, Write};

use super::passes::elementwise_fusion::{dims, fusable};
use super::schedule::{Schedule, Step, Work};
use crate::plan::fusion::Region;

/// The steps of a schedule, a line each, with what stands between neighbours.
pub(crate) fn explain(schedule: &Schedule) -> Result<String, fmt::Error> {
    let mut text = String::new();
    write(schedule, "", &mut text)?;
    Ok(text)
}

fn write(schedule: &Schedule, indent: &str, text: &mut String) -> fmt::Result {
    for (number, step) in schedule.steps.iter().enumerate() {
        let place = format!("{}:{}", step.location.file(), step.location.line());
        writeln!(text, "{indent}{number}: {} on {}, {place}", step.name(), step.device)?;
        let mut region = |when: &str, region: &Region| {
            let names: Vec<&str> = region.kernels.iter().map(|k| k.kernel.def().name.as_str()).collect();
            writeln!(text, "{indent}   {when}{}", names.join(", "))
        };
        match &step.work {
            Work::Region(kernels) => region("one step of: ", kernels)?,
            Work::Fused(fused) => {
                for (side, before) in fused.sides() {
                    region(if before { "before each program: " } else { "after each program: " }, &side.region)?;
                }
            }
            Work::Cond(regions, _) | Work::While(regions, _) => {
                for inner in regions.iter() {
                    writeln!(text, "{indent}   {}:", inner.graph.name)?;
                    write(&inner.schedule, &format!("{indent}     "), text)?;
                }
            }
            _ => {}
        }
        if let Some(next) = schedule.steps.get(number + 1) {
            writeln!(text, "{indent}   then another step: {}", apart(step, next))?;
        }
    }
    Ok(())
}

/// Why two neighbours are two steps.
fn apart(step: &Step, next: &Step) -> String {
    let is_elementwise = |step: &Step| fusable(step).is_some() || matches!(step.work, Work::Region(_));
    if step.device != next.device {
        return format!("`{}` is on {}, `{}` on {}", step.name(), step.device, next.name(), next.device);
    }
    for step in [step, next] {
        if !step.params.is_empty() {
            return format!("`{}` has a parameter that is computed at each execution", step.name());
        }
        if matches!(step.work, Work::Copy | Work::Transfer | Work::Sizes(_)) {
            return format!("`{}` copies what no kernel can read or write in place", step.name());
        }
        if !matches!(step.work, Work::Kernel(_) | Work::Region(_) | Work::Fused(_)) {
            return format!("`{}` is done by the host", step.name());
        }
    }
    match (is_elementwise(step), is_elementwise(next)) {
        (true, true) if dims(step) != dims(next) => "their results have other dims".to_owned(),
        (true, true) => {
            "one changes a buffer, reads the other's result in another order, or there is no room".to_owned()
        }
        (false, false) => format!("neither `{}` nor `{}` is elementwise", step.name(), next.name()),
        _ => "the program kernel's parts are not those of the elementwise step".to_owned(),
    }
}
