//! The parts of `max_core::kernel` that are modelled, under the paths that they have there.

mod cpu;
mod threads;

/// Tries all orders, with so many preemptions at most.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}
