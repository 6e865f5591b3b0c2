//! [`Tree`]: how modules print.

use std::fmt;

use super::{Member, Module, walk};

/// A module to be printed: its parts and plain fields, and of each part how many parameters it has, and bytes.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Linear, ModuleExt};
///
/// assert_eq!(
///     Linear::new(3, 2)?.tree().to_string(),
///     "Linear: 8 parameters, 32 bytes\n  weight: float32[2, 3]\n  bias: float32[2]\n"
/// );
/// # Ok::<(), max::Error>(())
/// ```
pub struct Tree<'a>(&'a dyn Module);

impl<'a> Tree<'a> {
    pub(super) fn new(module: &'a dyn Module) -> Tree<'a> {
        Tree(module)
    }
}

/// The elements of all parameters, and the bytes of them and of all buffers.
fn size(module: &dyn Module) -> (u64, u64) {
    let (mut elements, mut bytes) = (0, 0);
    walk(module, "", &mut |_, member| {
        if let Member::Parameter(tensor) | Member::Buffer(tensor) = member {
            let count =
                tensor.num_elements().as_static().and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
            bytes += count * tensor.dtype().size_in_bytes() as u64;
            if let Member::Parameter(_) = member {
                elements += count;
            }
        }
    });
    (elements, bytes)
}

fn write(f: &mut fmt::Formatter<'_>, name: &str, module: &dyn Module, depth: usize) -> fmt::Result {
    let (elements, bytes) = size(module);
    let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
    writeln!(f, "{:1$}{name}{2}: {elements} parameters, {bytes} bytes", "", 2 * depth, module.type_name())?;
    let mut result = Ok(());
    module.visit(&mut |name, member| {
        if result.is_err() {
            return;
        }
        let indent = 2 * (depth + 1);
        result = match member {
            Member::Parameter(tensor) => writeln!(f, "{:indent$}{name}: {}", "", tensor.ty()),
            Member::Buffer(tensor) => writeln!(f, "{:indent$}{name}: buffer {}", "", tensor.ty()),
            Member::Encoding(None) | Member::InputOrder(None) => Ok(()),
            Member::InputOrder(Some(order)) => writeln!(f, "{:indent$}{name}: {}", "", order.ty()),
            Member::Encoding(Some(encoding)) => writeln!(f, "{:indent$}{name}: {encoding}", ""),
            Member::Attribute(value) => writeln!(f, "{:indent$}{name}: {value:?}", ""),
            Member::Module(part) => write(f, name, part, depth + 1),
        };
    });
    result
}

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, "", self.0, 0)
    }
}

impl fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
