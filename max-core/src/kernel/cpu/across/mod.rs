//! [`Across`]: the target that runs neighbouring programs side by side, one a vector lane.
//!
//! A scalar is an array with the value of each program, and lane code walks the programs' rows element by element. LLVM
//! vectorizes that whatever the length of a row, where [`Cpu`](super::Cpu) fills vectors only with long ones. Rows are
//! transposed on their way: an operand's elements of one index lie side by side.
//!
//! Control flow is the same for all programs of a group. `#[kernel]` compiles bodies of which it can tell that; their
//! rows are whole rows of rank-2 operands at `program_id(0)`, and parts of them at places that do not depend on the
//! program.

mod launch;
#[cfg(target_arch = "x86_64")]
mod permute;
mod transpose;

use std::cell::Cell;
use std::panic::Location;

pub(in crate::kernel) use launch::programs_together;
pub use launch::run_rows;
use launch::{Group, LANES, MAX_ROW};

use super::isa::{Aligned, V3};
use super::tensor::{CpuTensor, narrow, widen, widen_one};
use super::{AtomicOp, ReduceOp, scratch};
use crate::dtype::DType;
use crate::dtype::limits::{epsilon, limit_bits, min_positive};
use crate::kernel::abi::LaunchArgs;
use crate::kernel::ir;
use crate::kernel::lang::op::{BinaryFn, CmpFn, UnaryFn};
use crate::kernel::lang::{Any, Item, LaneItem, Lanes, Outs, Prim, Sealed, Target, Val};

/// What `f` gives for each program.
macro_rules! each {
    (|$l:ident| $value:expr) => {{
        let mut $l = 0;
        let mut all = [$value; LANES];
        $l += 1;
        while $l < LANES {
            all[$l] = $value;
            $l += 1;
        }
        all
    }};
}

/// A group of neighbouring programs.
#[derive(Clone, Copy)]
pub struct Across {
    args: *const LaunchArgs,
    group: *const Group,
}

/// A scalar of each program.
type Each<T> = [<T as Any>::Compute; LANES];

/// What programs have outside of an operand that is not padded.
static ZEROS: Aligned<[u64; LANES]> = Aligned([0; LANES]);

/// A part of an operand. Of what is read by rows, all programs' elements of an index lie side by side, in memory of the
/// group; anything else is the first program's part, and those of its neighbours are `lane` elements apart.
pub struct AcrossTensor<T: Any, const R: usize> {
    x: CpuTensor<T, R>,
    lane: i64,
    /// Room for a row of each program.
    room: *mut T::Mem,
    /// What each program has outside.
    pads: *const T::Mem,
    /// How many programs there are.
    count: usize,
    /// Whether the kernel is compiled for AVX-512.
    avx512: bool,
}

impl<T: Any, const R: usize> Clone for AcrossTensor<T, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Any, const R: usize> Copy for AcrossTensor<T, R> {}

impl<T: Any, const R: usize> AcrossTensor<T, R> {
    /// A pointer to a program's element.
    #[inline(always)]
    fn element(&self, index: &[[i64; LANES]; R], program: usize) -> Option<*mut T::Mem> {
        let mut own = [0; R];
        let mut d = 0;
        while d < R {
            own[d] = index[d][program];
            d += 1;
        }
        let p = self.x.element(own)?;
        Some(p.wrapping_offset(self.lane.wrapping_mul(program as i64) as isize))
    }

    /// The part at an index of a dimension, which the programs may differ in by equal steps.
    #[inline(always)]
    fn select<const S: usize>(self, axis: usize, i: [i64; LANES]) -> AcrossTensor<T, S> {
        let step = i[1].wrapping_sub(i[0]).wrapping_mul(self.x.strides[axis]);
        AcrossTensor {
            x: self.x.select(axis, i[0]),
            lane: self.lane.wrapping_add(step),
            room: self.room,
            pads: self.pads,
            count: self.count,
            avx512: self.avx512,
        }
    }
}

impl<T: Any, const R: usize> AcrossTensor<T, R> {
    /// The same vector with all programs' elements of an index side by side. Of other ranks: what it was.
    #[inline(always)]
    fn side_by_side(self) -> Self {
        if R != 1 {
            return self;
        }
        let n = self.x.dims[0];
        let fits = n <= MAX_ROW as i64;
        if fits && self.x.count > 0 {
            // SAFETY: the vector is inside its operand, and so are those of the other programs, which `run_rows` has seen
            // to; there is room for them.
            unsafe {
                transpose::read(
                    self.room,
                    (self.x.ptr.cast_const(), self.lane as isize, self.x.strides[0] as isize),
                    (n as usize, self.count),
                    self.avx512,
                );
            }
        }
        self.as_read(if fits { self.x.count } else { 0 })
    }

    /// What [`side_by_side`](Self::side_by_side) gave before.
    #[inline(always)]
    fn as_read(self, count: i64) -> Self {
        let mut x = self.x;
        (x.ptr, x.strides[0], x.count) = (self.room, LANES as i64, count);
        AcrossTensor { x, lane: 1, ..self }
    }
}

impl<T: Any> AcrossTensor<T, 1> {
    /// All programs' elements of an index.
    #[inline(always)]
    fn elements(&self, i: i64) -> Each<T> {
        let p = self.x.ptr.wrapping_offset(i.wrapping_mul(self.x.strides[0]) as isize);
        // No branch, which would keep LLVM from vectors.
        let p = if self.x.holds(i, 1) { p.cast_const() } else { self.pads };
        // SAFETY: vectors that are read have the elements of all programs side by side.
        unsafe { widen::<V3, T, LANES>(&p.cast::<[T::Mem; LANES]>().read_unaligned()) }
    }

    /// Writes the elements that are inside, each given by its index.
    #[inline(always)]
    fn write(self, mut element: impl FnMut(i64) -> Each<T>) {
        let n = match self.x.lo.checked_add(self.x.count) {
            Some(end) if end < self.x.dims[0] => end,
            _ => self.x.dims[0],
        };
        let n = if n < MAX_ROW as i64 { n } else { MAX_ROW as i64 };
        let mut i = 0;
        while i < n {
            let mem = narrow::<V3, T, LANES>(&element(i));
            // SAFETY: there is room for so many elements of all programs.
            unsafe { self.room.add(i as usize * LANES).cast::<[T::Mem; LANES]>().write_unaligned(mem) };
            i += 1;
        }
        let from = if self.x.lo > 0 { self.x.lo } else { 0 };
        if from < n {
            // SAFETY: these elements are inside the operand, in the parts of the group's programs.
            unsafe {
                transpose::write(
                    (
                        self.x.ptr.wrapping_offset(from.wrapping_mul(self.x.strides[0]) as isize),
                        self.lane as isize,
                        self.x.strides[0] as isize,
                    ),
                    self.room.add(from as usize * LANES),
                    ((n - from) as usize, self.count),
                    self.avx512,
                );
            }
        }
    }
}

/// A materialized row of each program.
#[derive(Clone, Copy)]
struct CachedRows<T: Any> {
    ptr: *mut T::Compute,
    n: i64,
}

impl<T: Any> Sealed for CachedRows<T> {}

impl<T: Any> Lanes<Across> for CachedRows<T> {
    type Item = Val<Across, T>;
    type Block<const N: usize> = [Each<T>; N];
    #[inline(always)]
    fn len(self) -> Val<Across, i64> {
        Val([self.n; LANES])
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    #[inline(always)]
    fn block<const N: usize>(self, at: i64) -> [Each<T>; N] {
        let zeros = [T::Compute::default(); LANES];
        each_of(
            #[inline(always)]
            |j| {
                let i = at.wrapping_add(j);
                let p = self.ptr.wrapping_offset(i.wrapping_mul(LANES as i64) as isize).cast_const();
                let p = if (i as u64) < self.n as u64 { p } else { zeros.as_ptr() };
                // SAFETY: the elements were written, or are zeros.
                unsafe { p.cast::<Each<T>>().read_unaligned() }
            },
        )
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &[Each<T>; N], j: usize) -> Val<Across, T> {
        Val(b[j])
    }
}

/// An array of what `f` gives for each index. Not `from_fn`, which may be compiled apart and called.
#[inline(always)]
fn each_of<X: Copy, const N: usize>(f: impl Fn(i64) -> X) -> [X; N] {
    let mut all = [f(0); N];
    let mut j = 1;
    while j < N {
        all[j] = f(j as i64);
        j += 1;
    }
    all
}

impl Across {
    /// The tensor of index `operand`, and room for a row of each program.
    ///
    /// # Safety
    /// The kernel that runs has an operand of that index, dtype and rank.
    #[inline(always)]
    unsafe fn tensor<T: Any, const R: usize>(self, operand: u32) -> AcrossTensor<T, R> {
        // SAFETY: whoever runs an instance vouches for its arguments, and the caller for `operand`, `T` and `R`.
        let (x, group) = unsafe { (CpuTensor::new(&*(*self.args).tensors.add(operand as usize), false), &*self.group) };
        AcrossTensor {
            x,
            lane: 0,
            room: group.room(operand as usize).cast(),
            pads: ZEROS.0.as_ptr().cast(),
            count: group.count,
            avx512: group.avx512,
        }
    }
}

impl Target for Across {
    type Val<T: Any> = Each<T>;
    type Var<T: Any> = Cell<Each<T>>;
    type In<T: Any, const R: usize> = AcrossTensor<T, R>;
    type Out<T: Any, const R: usize> = AcrossTensor<T, R>;
    type At = i64;
    type Block<T: Any, const N: usize> = [Each<T>; N];
    // No body with tiles is compiled for this target.
    type Tile<T: Any, const R: usize, const C: usize> = ();
    type TileVar<T: Any, const R: usize, const C: usize> = ();
    type Shown = ();

    #[inline(always)]
    fn int<T: Any>(v: i128) -> Each<T> {
        [T::Compute::from_i128(v); LANES]
    }
    #[inline(always)]
    fn float<T: Any>(v: f64) -> Each<T> {
        [T::Compute::from_f64(v); LANES]
    }
    #[inline(always)]
    fn limit<T: Any>(largest: bool) -> Each<T> {
        [T::Compute::of_bits(limit_bits(T::dtype(), largest)); LANES]
    }
    #[inline(always)]
    fn epsilon<T: Any>() -> Each<T> {
        [T::Compute::from_f64(epsilon(T::dtype())); LANES]
    }
    #[inline(always)]
    fn min_positive<T: Any>() -> Each<T> {
        [T::Compute::from_f64(min_positive(T::dtype())); LANES]
    }
    #[inline(always)]
    unsafe fn param<T: Any>(self, index: u32) -> Each<T> {
        // SAFETY: whoever runs an instance vouches for its arguments.
        [T::Compute::of_bits(unsafe { *(*self.args).params.add(index as usize) }); LANES]
    }
    #[inline(always)]
    fn unary<T: Any, O: UnaryFn>(a: Each<T>) -> Each<T> {
        each!(|l| O::apply(a[l]))
    }
    #[inline(always)]
    fn binary<T: Any, O: BinaryFn>(a: Each<T>, b: Each<T>) -> Each<T> {
        each!(|l| O::apply(a[l], b[l]))
    }
    #[inline(always)]
    fn cmp<T: Any, O: CmpFn>(a: Each<T>, b: Each<T>) -> [bool; LANES] {
        each!(|l| O::apply(a[l], b[l]))
    }
    #[inline(always)]
    fn select<T: Any>(c: [bool; LANES], a: Each<T>, b: Each<T>) -> Each<T> {
        each!(|l| if c[l] { a[l] } else { b[l] })
    }
    #[inline(always)]
    fn fma<T: Any>(a: Each<T>, b: Each<T>, c: Each<T>) -> Each<T> {
        each!(|l| a[l].fma(b[l], c[l]))
    }
    #[inline(always)]
    fn cast<T: Any, U: Any>(a: Each<T>) -> Each<U> {
        let c = each!(|l| U::Compute::cast_from(a[l]));
        // A small float is rounded to its dtype, unless it was one already.
        if U::dtype() != U::Compute::DTYPE && T::dtype() != U::dtype() {
            widen::<V3, U, LANES>(&narrow::<V3, U, LANES>(&c))
        } else {
            c
        }
    }
    #[inline(always)]
    fn bitcast<T: Any, U: Any>(a: Each<T>) -> Each<U> {
        const { assert!(size_of::<T::Mem>() == size_of::<U::Mem>(), "the bits of another size") }
        each!(|l| {
            let mem = T::narrow(a[l]);
            // SAFETY: both are numbers of one size, for which all bits are values.
            let mem = unsafe { std::mem::transmute_copy::<T::Mem, U::Mem>(&mem) };
            widen_one::<V3, U>(mem)
        })
    }
    #[inline(always)]
    fn wide<T: Any>() -> bool {
        matches!(<T::Compute as Prim>::DTYPE, DType::F64)
    }
    #[inline(always)]
    fn rename<T: Any, U: Any>(a: Each<T>) -> Each<U> {
        each!(|l| U::Compute::of_bits(a[l].bits()))
    }

    #[inline(always)]
    fn var<T: Any>(v: Each<T>) -> Cell<Each<T>> {
        Cell::new(v)
    }
    #[inline(always)]
    fn get<T: Any>(v: &Cell<Each<T>>) -> Each<T> {
        v.get()
    }
    #[inline(always)]
    fn set<T: Any>(v: &Cell<Each<T>>, x: Each<T>) {
        v.set(x);
    }
    /// All programs take the same branch: the body is one of which that is known.
    #[inline(always)]
    fn if_<R: Item<Self>>(c: [bool; LANES], then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        if c[0] { then() } else { otherwise() }
    }
    #[inline(always)]
    fn while_(condition: impl Fn() -> Val<Self, bool>, body: impl Fn()) {
        while condition().0[0] {
            body();
        }
    }
    #[inline(always)]
    fn for_range(lo: [i64; LANES], hi: [i64; LANES], step: [i64; LANES], body: impl Fn(Val<Self, i64>)) {
        let (hi, step) = (hi[0], if step[0] < 1 { 1 } else { step[0] });
        let mut i = lo[0];
        while i < hi {
            body(Val([i; LANES]));
            i = i.saturating_add(step);
        }
    }
    /// A kernel that prints has no compiled form.
    #[inline(always)]
    fn print(self, _: &'static str, _: Vec<()>, _: &'static Location<'static>) {}
    #[inline(always)]
    fn show<T: Any>(_: Each<T>) {}

    #[inline(always)]
    fn program_id(self, axis: u32) -> [i64; LANES] {
        // SAFETY: the group outlives its programs.
        let first = unsafe { (*self.group).first };
        if axis == 0 { each!(|l| first.wrapping_add(l as i64)) } else { [0; LANES] }
    }
    #[inline(always)]
    fn num_programs(self, axis: u32) -> [i64; LANES] {
        // SAFETY: whoever runs an instance vouches for its arguments.
        [if axis < 3 { unsafe { (*self.args).grid[axis as usize] } } else { 1 }; LANES]
    }
    #[inline(always)]
    unsafe fn input<T: Any, const R: usize>(self, operand: u32) -> AcrossTensor<T, R> {
        // SAFETY: the caller's promise is the same.
        let x = unsafe { self.tensor::<T, R>(operand) };
        // A vector is the same for all groups of a run.
        // SAFETY: the group outlives its programs.
        if R == 1 && unsafe { (*self.group).has_read(operand) } { x.as_read(x.x.count) } else { x.side_by_side() }
    }
    #[inline(always)]
    unsafe fn output<T: Any, const R: usize>(self, operand: u32) -> AcrossTensor<T, R> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    fn dim_in<T: Any, const R: usize>(x: AcrossTensor<T, R>, axis: usize) -> [i64; LANES] {
        [if axis < R { x.x.dims[axis] } else { 1 }; LANES]
    }
    #[inline(always)]
    fn dim_out<T: Any, const R: usize>(x: AcrossTensor<T, R>, axis: usize) -> [i64; LANES] {
        [if axis < R { x.x.dims[axis] } else { 1 }; LANES]
    }
    #[inline(always)]
    fn select_in<T: Any, const R: usize, const S: usize>(x: AcrossTensor<T, R>, i: [i64; LANES]) -> AcrossTensor<T, S> {
        x.select::<S>(0, i).side_by_side()
    }
    #[inline(always)]
    fn select_out<T: Any, const R: usize, const S: usize>(
        x: AcrossTensor<T, R>,
        i: [i64; LANES],
    ) -> AcrossTensor<T, S> {
        x.select(0, i)
    }
    #[inline(always)]
    fn column_in<T: Any>(x: AcrossTensor<T, 2>, j: [i64; LANES]) -> AcrossTensor<T, 1> {
        x.select::<1>(1, j).side_by_side()
    }
    #[inline(always)]
    fn column_out<T: Any>(x: AcrossTensor<T, 2>, j: [i64; LANES]) -> AcrossTensor<T, 1> {
        x.select(1, j)
    }
    #[inline(always)]
    fn slice_in<T: Any>(x: AcrossTensor<T, 1>, lo: [i64; LANES], n: [i64; LANES]) -> AcrossTensor<T, 1> {
        AcrossTensor { x: x.x.slice(lo[0], n[0]), ..x }
    }
    #[inline(always)]
    fn slice_out<T: Any>(x: AcrossTensor<T, 1>, lo: [i64; LANES], n: [i64; LANES]) -> AcrossTensor<T, 1> {
        AcrossTensor { x: x.x.own_slice(lo[0], n[0]), ..x }
    }
    #[inline(always)]
    fn reverse_in<T: Any>(x: AcrossTensor<T, 1>) -> AcrossTensor<T, 1> {
        AcrossTensor { x: x.x.reverse(), ..x }
    }
    #[inline(always)]
    fn reverse_out<T: Any>(x: AcrossTensor<T, 1>) -> AcrossTensor<T, 1> {
        AcrossTensor { x: x.x.reverse(), ..x }
    }
    #[inline(always)]
    fn pad<T: Any, const R: usize>(mut x: AcrossTensor<T, R>, v: Each<T>) -> AcrossTensor<T, R> {
        x.x.pad = v[0];
        if v[0].bits() == 0 {
            x.pads = ZEROS.0.as_ptr().cast();
            return x;
        }
        let bytes = size_of::<[T::Mem; LANES]>();
        match scratch::allocate(bytes) {
            // SAFETY: there is room for an element of each program.
            Some(pads) => unsafe {
                pads.cast::<[T::Mem; LANES]>().write(narrow::<V3, T, LANES>(&[v[0]; LANES]));
                x.pads = pads.cast();
            },
            None => scratch::report_out_of_memory(bytes),
        }
        x
    }
    #[inline(always)]
    fn load<T: Any, const R: usize>(x: AcrossTensor<T, R>, index: [[i64; LANES]; R]) -> Each<T> {
        each!(|l| match x.element(&index, l) {
            // SAFETY: the element is inside the operand; of what is side by side, all programs have one.
            Some(p) => T::widen(unsafe { *p }),
            None => x.x.pad,
        })
    }
    #[inline(always)]
    fn store<T: Any, const R: usize>(x: AcrossTensor<T, R>, index: [[i64; LANES]; R], v: Each<T>) {
        let mut differ = 0;
        let mut l = 0;
        // Neither `==` of arrays, which is a call, nor a loop that ends at the first that differs: this one is of vectors.
        while R == 1 && l < LANES {
            differ |= index[0][l] ^ index[0][0];
            l += 1;
        }
        if R == 1 && differ == 0 && x.lane == 1 && x.count == LANES {
            if let Some(p) = x.element(&index, 0) {
                // SAFETY: the element of each program is inside the operand, in a part that is its own.
                unsafe { p.cast::<[T::Mem; LANES]>().write_unaligned(narrow::<V3, T, LANES>(&v)) };
            }
            return;
        }
        // A copy, of which alone elements are indexed: the value itself stays in registers.
        let mem = narrow::<V3, T, LANES>(&v);
        let mut l = 0;
        while l < LANES && l < x.count {
            if let Some(p) = x.element(&index, l) {
                // SAFETY: as above.
                unsafe { *p = mem[l] };
            }
            l += 1;
        }
    }
    // No body that scatters is compiled for this target.
    #[inline(always)]
    fn scatter<T: Any, const R: usize>(_: AcrossTensor<T, R>, _: [[i64; LANES]; R], _: Each<T>) {}
    #[inline(always)]
    fn atomic<T: Any, const R: usize>(_: AtomicOp, _: AcrossTensor<T, R>, _: [[i64; LANES]; R], _: Each<T>) {}
    #[inline(always)]
    fn read<T: Any>(x: AcrossTensor<T, 1>) -> AcrossTensor<T, 1> {
        x.side_by_side()
    }

    #[inline(always)]
    fn block<T: Any, const N: usize>(x: AcrossTensor<T, 1>, at: i64) -> [Each<T>; N] {
        each_of(
            #[inline(always)]
            |j| x.elements(at.wrapping_add(j)),
        )
    }
    #[inline(always)]
    fn block_lane<T: Any, const N: usize>(b: &[Each<T>; N], j: usize) -> Each<T> {
        b[j]
    }
    #[inline(always)]
    fn blank<T: Any, const N: usize>() -> [Each<T>; N] {
        [[T::Compute::default(); LANES]; N]
    }
    #[inline(always)]
    fn set_lane<T: Any, const N: usize>(b: &mut [Each<T>; N], j: usize, v: Each<T>) {
        b[j] = v;
    }
    #[inline(always)]
    fn store_block<T: Any, const N: usize>(x: AcrossTensor<T, 1>, at: i64, b: &[Each<T>; N]) {
        let mut j = 0;
        while j < N {
            Self::store(x, [[at.wrapping_add(j as i64); LANES]], b[j]);
            j += 1;
        }
    }
    #[inline(always)]
    fn at_index(i: [i64; LANES]) -> i64 {
        i[0]
    }
    #[inline(always)]
    fn index_lane(at: i64, j: usize) -> [i64; LANES] {
        [at.wrapping_add(j as i64); LANES]
    }
    #[inline(always)]
    fn for_each<A: Lanes<Self>>(lanes: A, f: impl Fn(A::Item)) {
        let n = lanes.len().0[0];
        let mut i = 0;
        while i < n {
            f(lanes.lane(&lanes.block::<1>(i), 0));
            i += 1;
        }
    }
    #[inline(always)]
    fn fold<A: Lanes<Self>, I: LaneItem<Self>>(
        lanes: A,
        init: I,
        f: impl Fn(I, A::Item) -> I,
        _: impl Fn(I, I) -> I,
    ) -> I {
        let n = lanes.len().0[0];
        let mut acc = init;
        let mut i = 0;
        while i < n {
            acc = f(acc, lanes.lane(&lanes.block::<1>(i), 0));
            i += 1;
        }
        acc
    }
    #[inline(always)]
    fn materialize<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(lanes: A) -> impl Lanes<Self, Item = Val<Self, T>> {
        let n = lanes.len().0[0];
        let bytes = (if n < 0 { 0 } else { n as usize }).saturating_mul(size_of::<Each<T>>());
        let Some(ptr) = scratch::allocate(bytes) else {
            scratch::report_out_of_memory(bytes);
            return CachedRows::<T> { ptr: std::ptr::null_mut(), n: 0 };
        };
        let cached = CachedRows::<T> { ptr: ptr.cast(), n };
        let mut i = 0;
        while i < n {
            let v = lanes.lane(&lanes.block::<1>(i), 0).0;
            // SAFETY: there is room for `n` items of all programs.
            unsafe { cached.ptr.add(i as usize * LANES).cast::<Each<T>>().write_unaligned(v) };
            i += 1;
        }
        cached
    }
    #[inline(always)]
    fn write<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(out: AcrossTensor<T, 1>, lanes: A) {
        out.write(
            #[inline(always)]
            |i| lanes.lane(&lanes.block::<1>(i), 0).0,
        );
    }
    #[inline(always)]
    fn scan<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(
        out: AcrossTensor<T, 1>,
        lanes: A,
        init: Val<Self, T>,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        let mut acc = init;
        out.write(
            #[inline(always)]
            |i| {
                acc = combine(acc, lanes.lane(&lanes.block::<1>(i), 0));
                acc.0
            },
        );
    }
    // Programs alone are compiled for this target.
    #[inline(always)]
    unsafe fn element_in<T: Any>(self, operand: u32) -> AcrossTensor<T, 1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    unsafe fn element_out<T: Any>(self, operand: u32) -> AcrossTensor<T, 1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    fn elementwise<O: Outs<Self>, A: Lanes<Self, Item = O::Items>>(self, _: O, _: A) {}

    #[inline(always)]
    fn tile_full<T: Any, const R: usize, const C: usize>(_: Each<T>) {}
    #[inline(always)]
    fn tile_load<T: Any, const R: usize, const C: usize>(_: AcrossTensor<T, 2>, _: [[i64; LANES]; 2], _: bool) {}
    #[inline(always)]
    fn tile_store<T: Any, const R: usize, const C: usize>(_: AcrossTensor<T, 2>, _: [[i64; LANES]; 2], (): ()) {}
    #[inline(always)]
    fn tile_map<T: Any, U: Any, const R: usize, const C: usize>(
        (): (),
        _: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, U>,
    ) {
    }
    #[inline(always)]
    fn tile_zip<T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        (): (),
        (): (),
        _: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, V>,
    ) {
    }
    #[inline(always)]
    fn tile_reduce<T: Any, const R: usize, const C: usize>(_: ReduceOp, (): ()) {}
    #[inline(always)]
    fn tile_element<T: Any, const R: usize, const C: usize>((): (), _: [[i64; LANES]; 2]) -> Each<T> {
        [T::Compute::default(); LANES]
    }
    #[inline(always)]
    fn tile_cast<T: Any, U: Any, const R: usize, const C: usize>((): ()) {}
    #[inline(always)]
    fn dot_views<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        _: (AcrossTensor<T, 2>, [[i64; LANES]; 2], bool),
        _: (AcrossTensor<U, 2>, [[i64; LANES]; 2], bool),
        (): (),
    ) {
    }
    #[inline(always)]
    fn dot_tile_view<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        (): (),
        _: (AcrossTensor<U, 2>, [[i64; LANES]; 2], bool),
        (): (),
    ) {
    }
    #[inline(always)]
    fn dot_tiles<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>((): (), (): (), (): ()) {}
    #[inline(always)]
    fn tile_var<T: Any, const R: usize, const C: usize>((): ()) {}
    #[inline(always)]
    fn tile_get<T: Any, const R: usize, const C: usize>((): &()) {}
    #[inline(always)]
    fn tile_set<T: Any, const R: usize, const C: usize>((): &(), (): ()) {}

    #[inline(always)]
    fn push_value<T: Any>(_: Each<T>, _: &mut Vec<ir::Value>) {}
    #[inline(always)]
    fn fresh<T: Any>() -> Each<T> {
        [T::Compute::default(); LANES]
    }
    #[inline(always)]
    fn push_tile<T: Any, const R: usize, const C: usize>((): (), _: &mut Vec<ir::Value>) {}
    #[inline(always)]
    fn fresh_tile<T: Any, const R: usize, const C: usize>() {}
}
