//! What `#[kernel]` rewrites literals, variables, comparisons and control flow into. Authors do not write these.

use std::mem::MaybeUninit;

use super::lanes::Item;
use super::symbols;
use super::target::Target;
use super::tensors::ProgramId;
use super::tile::{DotLeft, DotRight, Tile};
use super::value::prim::op;
use super::value::scalar::{Any, Float, Number, Scalar};
use super::value::{Str, Val};

/// The machine, as kernels hand it on to the functions that they call. rustc's message names this type where one of them is an
/// ordinary function, which does not take it.
pub struct OnlyForKernelFunctions<M>(pub M);

/// A program whose arguments have been read: the closure, which is inlined, since an attribute needs an argument to stand before.
#[doc(hidden)]
#[inline(always)]
pub fn program<M: Target>(program: impl Fn(M)) -> impl Fn(M) {
    program
}

/// An integer literal.
#[inline(always)]
#[track_caller]
pub fn int<M: Target, T: Scalar>(v: i128) -> Val<M, T> {
    Val(M::int::<T>(v))
}

/// A literal with a point or an exponent.
#[inline(always)]
#[track_caller]
pub fn float<M: Target, T: Float>(v: f64) -> Val<M, T> {
    Val(M::float::<T>(v))
}

/// `true` or `false`.
#[inline(always)]
#[track_caller]
pub fn boolean<M: Target>(v: bool) -> Val<M, bool> {
    Val(M::int::<bool>(v as i128))
}

/// What a literal on the left of an operator takes its type from.
pub trait Like<M: Target> {
    /// The dtype.
    type T: Any;
}
impl<M: Target, T: Any> Like<M> for Val<M, T> {
    type T = T;
}
impl<M: Target> Like<M> for ProgramId<M> {
    type T = i64;
}
impl<M: Target, T: Any, const R: usize, const C: usize> Like<M> for Tile<M, T, R, C> {
    type T = T;
}

/// An integer literal of the dtype of `like`.
#[inline(always)]
#[track_caller]
pub fn int_like<M: Target, L: Like<M>>(v: i128, _like: &L) -> Val<M, L::T>
where
    L::T: Scalar,
{
    Val(M::int::<L::T>(v))
}

/// A float literal of the dtype of `like`.
#[inline(always)]
#[track_caller]
pub fn float_like<M: Target, L: Like<M>>(v: f64, _like: &L) -> Val<M, L::T>
where
    L::T: Float,
{
    Val(M::float::<L::T>(v))
}

/// A Rust constant that a kernel may name.
#[diagnostic::on_unimplemented(
    message = "a kernel cannot use a constant of type `{Self}`",
    note = "constants are integers, floats and bools"
)]
pub trait Constant {
    /// As a literal of dtype `T`.
    #[doc(hidden)]
    fn literal<M: Target, T: Scalar>(self) -> Val<M, T>;
}

macro_rules! constants {
    ($($t:ty: $f:ident as $as:ty),*) => { $(
        impl Constant for $t {
            #[inline(always)]
            #[track_caller]
            fn literal<M: Target, T: Scalar>(self) -> Val<M, T> {
                Val(M::$f::<T>(self as $as))
            }
        }
    )* };
}
constants!(bool: int as i128, i8: int as i128, i16: int as i128, i32: int as i128, i64: int as i128, isize: int as i128,
    u8: int as i128, u16: int as i128, u32: int as i128, u64: int as i128, usize: int as i128, f32: float as f64, f64: float as f64);

/// A Rust constant.
#[inline(always)]
#[track_caller]
pub fn constant<M: Target, T: Scalar>(c: impl Constant) -> Val<M, T> {
    c.literal()
}

/// A Rust constant of the dtype of `like`.
#[inline(always)]
#[track_caller]
pub fn constant_like<M: Target, L: Like<M>>(c: impl Constant, _like: &L) -> Val<M, L::T>
where
    L::T: Scalar,
{
    c.literal()
}

/// A tile constant as a number.
#[inline(always)]
#[track_caller]
pub fn tile_const<M: Target>(n: usize) -> Val<M, i64> {
    Val(M::int::<i64>(symbols::tile_size(n) as i128))
}

/// Whether tile constants are numbers when a kernel is compiled for a target, not symbols.
#[must_use]
pub const fn has_tile_sizes<M: Target>() -> bool {
    M::HAS_TILE_SIZES
}

/// The same branch, as a closure that is called once, which is then its body: of one that could be called again, `FnOnce` calls a function
/// around it, which is not inlined where it calls others with vectors of a level.
#[inline(always)]
pub const fn branch<R, F: FnOnce() -> R>(f: F) -> F {
    f
}

/// What a variable can hold: a [`Val`] or a [`Tile`].
pub trait Variable<M: Target>: Copy {
    /// The target's variable.
    type Var;
    /// A new one.
    fn var(self) -> Self::Var;
    /// Its value.
    fn get(v: &Self::Var) -> Self;
    /// Assigns it.
    fn set(v: &Self::Var, x: Self);
}

impl<M: Target, T: Any> Variable<M> for Val<M, T> {
    type Var = M::Var<T>;
    #[inline(always)]
    #[track_caller]
    fn var(self) -> M::Var<T> {
        M::var(self.0)
    }
    #[inline(always)]
    #[track_caller]
    fn get(v: &M::Var<T>) -> Self {
        Val(M::get(v))
    }
    #[inline(always)]
    #[track_caller]
    fn set(v: &M::Var<T>, x: Self) {
        M::set(v, x.0)
    }
}

impl<M: Target, T: Any, const R: usize, const C: usize> Variable<M> for Tile<M, T, R, C> {
    type Var = M::TileVar<T, R, C>;
    #[inline(always)]
    #[track_caller]
    fn var(self) -> M::TileVar<T, R, C> {
        M::tile_var(self.0)
    }
    #[inline(always)]
    #[track_caller]
    fn get(v: &M::TileVar<T, R, C>) -> Self {
        Tile(M::tile_get(v))
    }
    #[inline(always)]
    #[track_caller]
    fn set(v: &M::TileVar<T, R, C>, x: Self) {
        M::tile_set(v, x.0)
    }
}

/// A `let mut`.
#[repr(transparent)]
pub struct Var<M: Target, X: Variable<M>>(pub(super) X::Var);

/// Where a variable that holds a tile begins to exist.
pub struct Place<V>(MaybeUninit<V>);

impl<V> Place<V> {
    /// An empty one.
    #[inline(always)]
    #[allow(clippy::new_without_default, reason = "what stands in a kernel's code is one call")]
    pub fn new() -> Self {
        Place(MaybeUninit::uninit())
    }
}

impl<M: Target, T: Any, const R: usize, const C: usize> Place<Var<M, Tile<M, T, R, C>>> {
    /// `let mut x = Tile::zeros();`, without a copy of the tile.
    #[inline(always)]
    #[track_caller]
    pub fn zeros(&mut self) -> &Var<M, Tile<M, T, R, C>> {
        // SAFETY: a `Var` is what it holds, in memory as well, and that is written.
        unsafe {
            M::tile_zeros::<T, R, C>(&mut *(&raw mut self.0).cast());
            self.0.assume_init_ref()
        }
    }
}

/// A new variable.
#[inline(always)]
#[track_caller]
pub fn var<M: Target, X: Variable<M>>(x: X) -> Var<M, X> {
    Var(x.var())
}

impl<M: Target, X: Variable<M>> Var<M, X> {
    /// The value.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self) -> X {
        X::get(&self.0)
    }

    /// Assigns it.
    #[inline(always)]
    #[track_caller]
    pub fn assign(&self, x: X) {
        X::set(&self.0, x)
    }
}

/// `acc = dot(a, b, acc)`, without a copy of the tile.
#[inline(always)]
#[track_caller]
pub fn dot_assign<M: Target, A: Number, const R: usize, const K: usize, const C: usize>(
    _: M,
    a: &impl DotLeft<M, R, K>,
    b: impl DotRight<M, K, C>,
    acc: &Var<M, Tile<M, A, R, C>>,
) {
    b.after_assign(a, &acc.0);
}

/// `acc = dot(a, b, acc)` where `a` is a variable, without a copy of either tile.
#[inline(always)]
#[track_caller]
pub fn dot_var_assign<M: Target, T: Number, A: Number, const R: usize, const K: usize, const C: usize>(
    _: M,
    a: &Var<M, Tile<M, T, R, K>>,
    b: impl DotRight<M, K, C>,
    acc: &Var<M, Tile<M, A, R, C>>,
) {
    b.after_var_assign(&a.0, &acc.0);
}

/// `if c { .. } else { .. }`
#[inline(always)]
#[track_caller]
pub fn if_<M: Target, R: Item<M>>(_: M, c: Val<M, bool>, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    M::if_(c.0, then, otherwise)
}

/// `if` whose branches have no effect: both are evaluated, one is taken.
#[inline(always)]
#[track_caller]
pub fn if_pure<M: Target, R: Item<M>>(c: Val<M, bool>, then: R, otherwise: R) -> R {
    R::select(c, then, otherwise)
}

/// `while c { .. }`
#[inline(always)]
#[track_caller]
pub fn while_<M: Target>(_: M, c: impl Fn() -> Val<M, bool>, body: impl Fn()) {
    M::while_(c, body)
}

/// `for i in lo..hi { .. }`
#[inline(always)]
#[track_caller]
pub fn for_range<M: Target>(_: M, lo: Val<M, i64>, hi: Val<M, i64>, step: Val<M, i64>, body: impl Fn(Val<M, i64>)) {
    M::for_range(lo.0, hi.0, step.0, body)
}

/// What can be compared.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be compared with `{B}`",
    note = "compare numbers of one dtype; cast with `as`"
)]
pub trait Compare<M: Target, B> {
    /// The dtype.
    type T: Any;
    /// Both sides as numbers.
    fn sides(self, b: B) -> (Val<M, Self::T>, Val<M, Self::T>);
}

impl<M: Target, T: Scalar> Compare<M, Val<M, T>> for Val<M, T> {
    type T = T;
    #[inline(always)]
    fn sides(self, b: Val<M, T>) -> (Val<M, T>, Val<M, T>) {
        (self, b)
    }
}

impl<M: Target> Compare<M, Val<M, i64>> for ProgramId<M> {
    type T = i64;
    #[inline(always)]
    fn sides(self, b: Val<M, i64>) -> (Val<M, i64>, Val<M, i64>) {
        (self.0, b)
    }
}

macro_rules! comparisons {
    ($($name:ident $op:ident $text:literal),*) => { $(
        #[doc = concat!("`a ", $text, " b`")]
        #[inline(always)]
        #[track_caller]
        pub fn $name<M: Target, A: Compare<M, B>, B>(a: A, b: B) -> Val<M, bool> {
            let (a, b) = a.sides(b);
            Val(M::cmp::<A::T, op::$op>(a.0, b.0))
        }
    )* };
}
comparisons!(lt Lt "<", le Le "<=", gt Gt ">", ge Ge ">=", eq Eq "==", ne Ne "!=");

/// `s == "literal"`
#[inline(always)]
#[track_caller]
pub fn str_eq<M: Target>(s: Str<M>, hash: u64) -> Val<M, bool> {
    eq(s.0, int(hash as i128))
}

/// An integer parameter.
///
/// # Safety
/// The kernel that runs has one at that index, of this kind.
#[inline(always)]
#[track_caller]
pub unsafe fn param_int<M: Target, T: Scalar>(m: M, index: u32) -> Val<M, T> {
    // SAFETY: the caller's promise is the same.
    Val::<M, i64>(unsafe { m.param::<i64>(index) }).cast()
}

/// A bool parameter.
///
/// # Safety
/// The kernel that runs has one at that index, of this kind.
#[inline(always)]
#[track_caller]
pub unsafe fn param_bool<M: Target>(m: M, index: u32) -> Val<M, bool> {
    // SAFETY: the caller's promise is the same.
    Val(unsafe { m.param::<bool>(index) })
}

/// A float parameter.
///
/// # Safety
/// The kernel that runs has one at that index, of this kind.
#[inline(always)]
#[track_caller]
pub unsafe fn param_float<M: Target, T: Scalar>(m: M, index: u32) -> Val<M, T> {
    // SAFETY: the caller's promise is the same.
    Val::<M, f64>(unsafe { m.param::<f64>(index) }).cast()
}

/// A string parameter.
///
/// # Safety
/// The kernel that runs has one at that index, of this kind.
#[inline(always)]
#[track_caller]
pub unsafe fn param_str<M: Target>(m: M, index: u32) -> Str<M> {
    // SAFETY: the caller's promise is the same.
    Str(Val(unsafe { m.param::<u64>(index) }))
}
