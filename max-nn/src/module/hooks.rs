//! Hooks that see what layers take and give, for printing and for [comparing](super::activations) activations.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::{Member, Module, walk};
use crate::Result;
use crate::tensor::Tensor;

pub(super) type Hook = Rc<dyn Fn(&dyn Module, &Tensor, &Tensor) -> Result<Option<Tensor>>>;

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
    HOOKS.with_borrow_mut(|hooks| hooks.push(Rc::new(move |layer, input, output| Ok(hook(layer, input, output)))));
}

/// Removes all hooks of this thread.
pub fn clear_hooks() {
    HOOKS.with_borrow_mut(Vec::clear);
}

/// Runs `body` with a function that is called after each layer of `module` that runs by
/// [`Forward::call`](super::Forward::call): with the layer's name, as in the module's state dict, its input and its output. What it
/// returns takes the output's place. The module's own name is empty.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, Linear, Sequential, with_layer_hook};
/// use max::tensor::Tensor;
///
/// let model = Sequential::new().then(Linear::new(2, 3)?).then(Linear::new(3, 1)?);
/// let doubled = |name: &str, _: &Tensor, y: &Tensor| Ok((name == "1").then(|| y * 2.0));
/// let x = Tensor::ones([1, 2])?;
/// let y = with_layer_hook(&model, doubled, || model.call(&x))?;
/// assert_eq!(y.to_vec::<f32>()?[0], 2.0 * model.call(&x)?.to_vec::<f32>()?[0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of `body` and of the function.
pub fn with_layer_hook<T>(
    module: &dyn Module,
    hook: impl Fn(&str, &Tensor, &Tensor) -> Result<Option<Tensor>> + 'static,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let address = |module: &dyn Module| (std::ptr::from_ref(module).cast::<()>() as usize, module.type_name());
    let mut names = HashMap::from([(address(module), String::new())]);
    walk(module, "", &mut |name, member| {
        if let Member::Module(part) = member {
            names.entry(address(part)).or_insert_with(|| name.to_owned());
        }
    });
    let of_module: Hook = Rc::new(move |layer, input, output| match names.get(&address(layer)) {
        Some(name) => hook(name, input, output),
        None => Ok(None),
    });
    with(of_module, body)
}

/// Runs `body` with a hook more, which is removed then.
fn with<R>(hook: Hook, body: impl FnOnce() -> R) -> R {
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
pub(crate) fn run(layer: &dyn Module, input: &Tensor, mut output: Tensor) -> Result<Tensor> {
    let count = HOOKS.with_borrow(Vec::len);
    for index in 0..count {
        // A hook may run layers itself, and add or clear hooks.
        let Some(hook) = HOOKS.with_borrow(|hooks| hooks.get(index).cloned()) else { break };
        if let Some(other) = hook(layer, input, &output)? {
            output = other;
        }
    }
    Ok(output)
}
