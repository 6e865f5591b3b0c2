//! Hooks that see what layers take and give, for printing and for [comparing](super::activations) activations.

use std::cell::RefCell;
use std::rc::Rc;

use super::Module;
use crate::Result;
use crate::tensor::Tensor;

pub(super) type Hook = Rc<dyn Fn(&dyn Module, &Tensor, &Tensor) -> Option<Tensor>>;

thread_local! {
    static HOOKS: RefCell<Vec<Hook>> = const { RefCell::new(Vec::new()) };
}

/// Adds a function that is called after each layer of this thread that runs by [`Forward::call`](super::Forward::call), with the
/// layer, its input and its output. What it returns takes the output's place.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, Linear, add_layer_hook, clear_hooks};
/// use max::tensor::Tensor;
///
/// add_layer_hook(|layer, input, output| {
///     println!("{}: {:?} -> {:?}", layer.type_name(), input, output);
///     Some(output * 0.0)
/// });
/// let y = Linear::new(2, 2)?.call(&Tensor::ones([1, 2])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0]);
/// clear_hooks();
/// # Ok::<(), max::Error>(())
/// ```
pub fn add_layer_hook(hook: impl Fn(&dyn Module, &Tensor, &Tensor) -> Option<Tensor> + 'static) {
    HOOKS.with_borrow_mut(|hooks| hooks.push(Rc::new(hook)));
}

/// Removes all hooks of this thread.
pub fn clear_hooks() {
    HOOKS.with_borrow_mut(Vec::clear);
}

/// Runs `body` with a hook more, which is removed then.
pub(super) fn with<R>(hook: Hook, body: impl FnOnce() -> R) -> R {
    struct Added(Hook);

    impl Drop for Added {
        fn drop(&mut self) {
            HOOKS.with_borrow_mut(|hooks| hooks.retain(|hook| !Rc::ptr_eq(hook, &self.0)));
        }
    }

    let added = Added(hook);
    HOOKS.with_borrow_mut(|hooks| hooks.push(added.0.clone()));
    body()
}

/// The output, as the hooks leave it.
pub(super) fn run(layer: &dyn Module, input: &Tensor, mut output: Tensor) -> Result<Tensor> {
    let count = HOOKS.with_borrow(Vec::len);
    for index in 0..count {
        // A hook may run layers itself, and add or clear hooks.
        let Some(hook) = HOOKS.with_borrow(|hooks| hooks.get(index).cloned()) else { break };
        if let Some(other) = hook(layer, input, &output) {
            output = other;
        }
    }
    Ok(output)
}
