//! Operands that may be absent: `Option<In<…>>` in a kernel's signature.
//!
//! A launch without one has a tensor of one element in its place, and a bool parameter says that it is absent. The CPU's
//! code branches on it; PTX is made for one of both where parameters are known.

use super::lanes::Item;
use super::target::Target;
use super::tensors::In;
use super::value::Val;
use super::value::scalar::Any;

/// A tensor of rank `R` that a kernel reads, if it is there. `#[kernel]` takes it apart: `if let Some(x) = x { … }`.
pub struct Optional<M: Target, T: Any, const R: usize> {
    m: M,
    /// The parameter that says whether it is there.
    param: u32,
    x: In<M, T, R>,
}

impl<M: Target, T: Any, const R: usize> Clone for Optional<M, T, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any, const R: usize> Copy for Optional<M, T, R> {}

impl<M: Target, T: Any, const R: usize> Optional<M, T, R> {
    /// The operand of index `operand`, which is there if the bool parameter of index `param` says so.
    ///
    /// # Safety
    /// As for [`Target::input`] and [`Target::param`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn operand(m: M, operand: u32, param: u32) -> Self {
        // SAFETY: the caller's promise is the same.
        Optional { m, param, x: In(unsafe { m.input(operand) }) }
    }
}

/// `x.is_some()`
#[inline(always)]
#[track_caller]
pub fn is_given<M: Target, T: Any, const R: usize>(x: Optional<M, T, R>) -> Val<M, bool> {
    // SAFETY: whoever made the operand vouched for its parameter.
    Val(unsafe { x.m.param::<bool>(x.param) })
}

/// What `if let Some(x) = x` names: the operand, or what is in its place.
#[inline(always)]
pub fn given<M: Target, T: Any, const R: usize>(x: Optional<M, T, R>) -> In<M, T, R> {
    x.x
}

/// `if let Some(x) = x { .. } else { .. }`
#[inline(always)]
#[track_caller]
pub fn if_given<M: Target, T: Any, const R: usize, X: Item<M>>(
    x: Optional<M, T, R>,
    then: impl FnOnce() -> X,
    otherwise: impl FnOnce() -> X,
) -> X {
    // SAFETY: whoever made the operand vouched for its parameter.
    unsafe { x.m.if_param(x.param, then, otherwise) }
}
