//! What the symbolic dtypes, tile sizes and parameters of a kernel stand for on this thread, while it is recorded or
//! run in reference form.

use std::cell::RefCell;

use crate::dtype::DType;
use crate::kernel::abi::{Binding, KernelDef, ParamBits};

/// Tile constants in code instantiated once for all sizes are `SYM_TILE + index`.
const SYM_TILE: usize = 1 << 40;

/// The stand-in for the tile constant of index `i`.
pub const fn sym_tile(i: usize) -> usize {
    SYM_TILE + i
}

/// The binding in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    pub dtypes: Vec<DType>,
    pub tile: Vec<u64>,
    /// `None` leaves parameters symbolic.
    pub params: Option<Vec<ParamBits>>,
}

thread_local! {
    static CURRENT: RefCell<Vec<Symbols>> = const { RefCell::new(Vec::new()) };
}

impl Symbols {
    /// Reads a binding for `def`.
    ///
    /// # Safety
    /// The pointers must hold as many values as `def` declares generics, tile constants and parameters.
    pub unsafe fn read(def: &KernelDef, binding: &Binding) -> Self {
        let list = |ptr: *const u64, n: usize| {
            // SAFETY: by the contract above; an empty list may have any pointer.
            (0..n).map(|i| unsafe { *ptr.add(i) }).collect::<Vec<_>>()
        };
        let dtypes = (0..def.generics.as_slice().len())
            // SAFETY: by the contract above.
            .map(|i| DType::from_code(unsafe { *binding.dtypes.add(i) }).unwrap_or(DType::F32))
            .collect();
        let params = (!binding.params.is_null()).then(|| list(binding.params, def.params.as_slice().len()));
        Symbols { dtypes, tile: list(binding.tile, def.tile_names.as_slice().len()), params }
    }

    /// Runs `f` with this binding in force on this thread.
    pub fn scope(self, f: &mut dyn FnMut()) {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(|stack| stack.pop());
            }
        }
        CURRENT.with_borrow_mut(|stack| stack.push(self));
        let _restore = Restore;
        f();
    }
}

fn with<R>(f: impl FnOnce(&Symbols) -> Option<R>) -> Option<R> {
    CURRENT.with_borrow(|stack| stack.last().and_then(f))
}

/// The dtype bound to generic `i`; `f32` outside a [`Symbols::scope`].
pub(crate) fn dtype(i: usize) -> DType {
    with(|s| s.dtypes.get(i).copied()).unwrap_or(DType::F32)
}

/// The size that a const generic stands for: itself, or the bound tile constant.
#[inline(always)]
pub(crate) fn tile_size(size: usize) -> u32 {
    if size < SYM_TILE { size as u32 } else { bound_tile(size - SYM_TILE) }
}

#[inline(never)]
fn bound_tile(i: usize) -> u32 {
    with(|s| s.tile.get(i).copied()).unwrap_or(0) as u32
}

/// The bits of parameter `i`, if parameters are bound.
pub(crate) fn param(i: u32) -> Option<ParamBits> {
    with(|s| s.params.as_ref().and_then(|p| p.get(i as usize).copied()))
}
