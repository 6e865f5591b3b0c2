//! The graph compiler: named passes that turn a graph into a plan.
//!
//! ```text
//! graph ──weights──fold──cse──dce──▶ graph ──lower──▶ draft ──fuse──in_place──memory──▶ draft ──▶ plan
//! ```
//!
//! Every pass stands in [`PASSES`] with its name and a line on what it does. `MAX_DUMP=lower,memory` (or `all`) prints what
//! those passes were given and what they made of it.

mod beside;
mod columns;
mod cse;
mod dce;
pub(crate) mod draft;
mod fold;
mod fuse;
mod lower;
pub(crate) mod memory;
mod rewrite;
#[cfg(test)]
mod tests;
mod view;
mod weights;

use draft::Draft;
pub(crate) use view::View;

use crate::driver::DeviceRef;
use crate::engine::error::{EngineError, OpRef};
use crate::graph::weights::WeightsRegistry;
use crate::graph::{GraphData, KernelCall, Node};
use crate::kernel::table::KernelDef;
use crate::kernel::{CodeOptions, Form, KernelLibrary, Twin};

/// What passes know besides the graph.
pub(crate) struct Context<'a> {
    /// The session's kernels; those of the graph's own library are looked up first.
    pub library: &'a KernelLibrary,
    /// The form of kernels that will run.
    pub form: Form,
    /// The session's devices.
    pub devices: &'a [DeviceRef],
    /// How the code of kernels on GPUs is written.
    pub code: CodeOptions,
    /// The number of threads that will execute kernels; who asks may start them.
    pub threads: &'a dyn Fn() -> usize,
    /// Where weights are found by name.
    pub weights: &'a dyn WeightsRegistry,
}

impl Context<'_> {
    /// An op, for messages.
    pub fn op(&self, graph: &GraphData, node: &Node) -> OpRef {
        OpRef { model: graph.name.clone(), op: node.op.to_string().into(), location: node.location }
    }

    /// Where the kernel that an op names is looked up.
    fn library_of(&self, graph: &GraphData, call: &KernelCall) -> KernelLibrary {
        let own = graph.kernel_library();
        if own.contains(&call.name) { own } else { self.library.clone() }
    }

    /// The kernel that an op names.
    pub fn kernel(&self, graph: &GraphData, node: &Node, call: &KernelCall) -> Result<&'static KernelDef, EngineError> {
        self.library_of(graph, call)
            .get(&call.name)
            .map_err(|source| EngineError::Kernel { op: self.op(graph, node), source: source.into() })
    }

    /// The twin of the kernel that an op names.
    pub fn twin(&self, graph: &GraphData, call: &KernelCall, twin: Twin) -> Option<&'static KernelDef> {
        let library = self.library_of(graph, call);
        library.twin(library.get(&call.name).ok()?, twin)
    }

    /// Checks that the session has an op's device.
    pub fn check_device(&self, graph: &GraphData, node: &Node) -> Result<(), EngineError> {
        let types = node.results().map(|id| graph.ty(id).device());
        match [node.device].into_iter().chain(types).find(|device| !self.devices.contains(device)) {
            None => Ok(()),
            Some(device) => {
                let (op, available) = (self.op(graph, node), self.devices.to_vec());
                Err(EngineError::Device { op, device, available })
            }
        }
    }
}

type Outcome<T = ()> = Result<T, EngineError>;

/// What a pass is a function of.
enum Run {
    /// From graph to graph.
    Graph(fn(&mut GraphData, &Context<'_>) -> Outcome),
    /// From graph to draft.
    Lower(fn(&GraphData, &Context<'_>) -> Outcome<Draft>),
    /// From draft to draft.
    Draft(fn(&mut Draft)),
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
    /// Makes constants of the weights that the graph declares.
    weights: Graph(weights::find);
    /// Computes what depends on small constants alone.
    fold: Graph(fold::fold);
    /// Computes equal values once.
    cse: Graph(cse::share);
    /// Removes what no output and no side effect needs.
    dce: Graph(dce::remove_dead);
    /// Finds kernels, resolves views, and adds copies where kernels need them.
    lower: Lower(lower::lower);
    /// Joins elementwise steps that can run tile by tile.
    fuse: Draft(fuse::fuse);
    /// Lets elementwise results take the place of operands that are not needed any more.
    in_place: Draft(memory::take_over);
    /// Places intermediate values in one arena.
    memory: Draft(memory::place);
}

/// Runs all passes.
pub(crate) fn compile(graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Draft), EngineError> {
    run(PASSES, graph, context)
}

/// Runs the passes behind `after`.
fn compile_after(after: &str, graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Draft), EngineError> {
    let first = PASSES.iter().position(|pass| pass.name == after).map_or(0, |i| i + 1);
    run(&PASSES[first..], graph, context)
}

fn run(passes: &[Pass], mut graph: GraphData, context: &Context<'_>) -> Result<(GraphData, Draft), EngineError> {
    let dump = std::env::var("MAX_DUMP").unwrap_or_default();
    let mut draft = None;
    for pass in passes {
        let shown = dump.split(',').any(|name| name == pass.name || name == "all");
        let print = |when: &str, graph: &GraphData, draft: &Option<Draft>| {
            if shown {
                let text = draft.as_ref().map_or_else(|| graph.to_string(), Draft::to_string);
                eprintln!("--- {} {when} `{}`:{}\n{text}", graph.name, pass.name, pass.about);
            }
        };
        print("before", &graph, &draft);
        match pass.run {
            Run::Graph(run) => run(&mut graph, context)?,
            Run::Lower(run) => draft = Some(run(&graph, context)?),
            Run::Draft(run) => draft.iter_mut().for_each(run),
        }
        print("after", &graph, &draft);
    }
    Ok((graph, draft.unwrap_or_default()))
}
