//! The graph compiler: named passes that turn a graph into a plan.
//!
//! ```text
//! graph ──inline──weights──fold──cse──dce──composites──merge_matmul──▶ graph ──lower──▶ schedule
//! schedule ──hoist──fuse──in_place──memory──▶ schedule ──▶ plan
//! ```
//!
//! Every pass stands in [`PASSES`] with its name and a line on what it does. `MAX_DUMP=lower,memory` (or `all`) prints what
//! those passes were given and what they made of it.

mod context;
mod destinations;
mod explain;
mod inline;
mod lower;
mod memory;
mod partition;
pub(crate) mod passes;
mod schedule;
#[cfg(test)]
mod tests;
mod view;
mod weights;

use std::sync::LazyLock;

use context::Outcome;
pub(crate) use schedule::Schedule;

pub(crate) use context::Context;
pub(crate) use explain::explain;
pub(crate) use passes::flatten::flatten;

use crate::graph::GraphData;
use crate::plan::error::EngineError;

/// What a pass is a function of.
enum Run {
    /// From graph to graph.
    Graph(fn(&mut GraphData, &Context<'_>) -> Outcome),
    /// From graph to schedule.
    Lower(fn(&GraphData, &Context<'_>) -> Outcome<Schedule>),
    /// From schedule to schedule.
    Schedule(fn(&mut Schedule)),
}

struct Pass {
    name: &'static str,
    about: &'static str,
    run: Run,
}

macro_rules! passes {
    ($(#[doc = $about:literal] $name:ident: $kind:ident($run:path);)+) => {
        /// All passes, in order.
        const PASSES: &[Pass] = &[$(
            Pass { name: stringify!($name), about: $about, run: Run::$kind($run) },
        )+];
    };
}

passes! {
    /// Puts the nodes of subgraphs in the place of their calls.
    inline: Graph(inline::inline);
    /// Makes constants of the weights that the graph declares.
    weights: Graph(weights::find);
    /// Computes what depends on small constants alone.
    fold: Graph(fold_constants);
    /// Computes equal values once.
    cse: Graph(passes::cse::share);
    /// Removes what no output and no side effect needs.
    dce: Graph(passes::dce::remove_dead);
    /// Makes one kernel of ops that are attention, softmax or a norm together.
    composites: Graph(passes::composites::find);
    /// Makes one matrix product of several with the same left operand.
    merge_matmul: Graph(passes::merge_matmul::merge);
    /// Finds kernels, resolves views, and adds copies where kernels need them.
    lower: Lower(lower_graph);
    /// Moves elementwise steps up to what they read, over steps that are independent of both.
    hoist: Schedule(passes::hoist::hoist);
    /// Joins elementwise steps that can run tile by tile.
    fuse: Schedule(passes::fusion::fuse);
    /// Lets elementwise results take the place of operands that are not needed any more.
    in_place: Schedule(memory::take_over);
    /// Places intermediate values in one arena.
    memory: Schedule(memory::place);
}

/// Runs all passes.
pub(crate) fn compile(graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Schedule), EngineError> {
    run(PASSES, graph, context)
}

/// Lowers a graph, and compiles its regions.
fn lower_graph(graph: &GraphData, context: &Context<'_>) -> Outcome<Schedule> {
    lower::lower(graph, context, &|region| compile(region, context))
}

/// Runs the passes behind `after`.
fn compile_after(after: &str, graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Schedule), EngineError> {
    let first = PASSES.iter().position(|pass| pass.name == after).map_or(0, |i| i + 1);
    run(&PASSES[first..], graph, context)
}

/// Folds constants, which the passes behind this one lower, and the engine computes.
fn fold_constants(graph: &mut GraphData, context: &Context<'_>) -> Outcome {
    passes::fold::fold(graph, context, |part| {
        let (part, schedule) = compile_after("fold", part, context)?;
        (context.execute)(&flatten(&part, schedule, context)?)
    })
}

fn run(passes: &[Pass], mut graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Schedule), EngineError> {
    // Asked for once: every load compiles, and folding constants does within it.
    static DUMP: LazyLock<Vec<String>> = LazyLock::new(|| {
        let names = std::env::var("MAX_DUMP").unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    });
    let dump = &**DUMP;
    let is_known = |name: &str| name == "all" || PASSES.iter().any(|pass| pass.name == name);
    if let Some(name) = dump.iter().find(|name| !is_known(name)) {
        let passes = PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(", ");
        return Err(EngineError::Dump { name: name.clone(), passes });
    }
    let mut schedule = None;
    for pass in passes {
        let shown = dump.iter().any(|name| name == pass.name || name == "all");
        let print = |when: &str, graph: &GraphData, schedule: &Option<Schedule>| {
            if shown {
                let text = schedule.as_ref().map_or_else(|| graph.to_string(), Schedule::to_string);
                eprintln!("--- {} {when} `{}`:{}\n{text}", graph.name, pass.name, pass.about);
            }
        };
        let _span = tracing::trace_span!("pass", name = pass.name).entered();
        print("before", &graph, &schedule);
        match pass.run {
            Run::Graph(run) => run(&mut graph, context)?,
            Run::Lower(run) => schedule = Some(run(&graph, context)?),
            Run::Schedule(run) => schedule.iter_mut().for_each(run),
        }
        print("after", &graph, &schedule);
    }
    Ok((graph, schedule.unwrap_or_default()))
}
