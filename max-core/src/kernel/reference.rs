//! [`Reference`]: the slow form of a kernel, for debugging and for checking the fast ones.
//!
//! It runs one element at a time, in ordinary Rust: a debugger steps through the kernel's own lines. A value carries
//! its dtype and prints as a number. Every access is checked. One instantiation of a kernel serves all dtypes.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{Write, stdout};
use std::ops::Range;
use std::panic::Location;

use super::abi::{Binding, KernelDef, KernelKind, LaunchArgs};
use super::cpu::report_out_of_memory;
use super::ir::{self, AtomicOp, ReduceOp};
use super::lang::op::{self, BinaryFn, CmpFn, UnaryFn};
use super::lang::symbols::{self, Symbols};
use super::lang::{Any, Item, LaneItem, Lanes, Outs, Prim, Recomputed, Target, Val, compute_dtype, general};
use crate::dtype::limits::{epsilon, limit_bits, min_positive};
use crate::dtype::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};

/// One program instance, or one element, in reference form.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    args: *const LaunchArgs,
    pid: [i64; 3],
    element: i64,
    kind: KernelKind,
}

/// A number and its compute dtype.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RefVal {
    dtype: DType,
    bits: u64,
}

/// Evaluates `$e` with `$p` as the compute type of `$dtype`: `f32` of all floats but `f64`.
macro_rules! with_prim {
    ($dtype:expr, $p:ident => $e:expr) => {
        match $dtype {
            DType::Bool => {
                type $p = bool;
                $e
            }
            DType::I8 => {
                type $p = i8;
                $e
            }
            DType::I16 => {
                type $p = i16;
                $e
            }
            DType::I32 => {
                type $p = i32;
                $e
            }
            DType::I64 => {
                type $p = i64;
                $e
            }
            DType::U8 => {
                type $p = u8;
                $e
            }
            DType::U16 => {
                type $p = u16;
                $e
            }
            DType::U32 => {
                type $p = u32;
                $e
            }
            DType::U64 => {
                type $p = u64;
                $e
            }
            DType::F64 => {
                type $p = f64;
                $e
            }
            _ => {
                type $p = f32;
                $e
            }
        }
    };
}

/// Evaluates `$e` with `$t` as the dtype `$dtype`.
macro_rules! with_scalar {
    ($dtype:expr, $t:ident => $e:expr) => {
        match $dtype {
            DType::Bool => {
                type $t = bool;
                $e
            }
            DType::I8 => {
                type $t = i8;
                $e
            }
            DType::I16 => {
                type $t = i16;
                $e
            }
            DType::I32 => {
                type $t = i32;
                $e
            }
            DType::I64 => {
                type $t = i64;
                $e
            }
            DType::U8 => {
                type $t = u8;
                $e
            }
            DType::U16 => {
                type $t = u16;
                $e
            }
            DType::U32 => {
                type $t = u32;
                $e
            }
            DType::U64 => {
                type $t = u64;
                $e
            }
            DType::F16 => {
                type $t = f16;
                $e
            }
            DType::BF16 => {
                type $t = bf16;
                $e
            }
            DType::F32 => {
                type $t = f32;
                $e
            }
            DType::F64 => {
                type $t = f64;
                $e
            }
            DType::F8E4M3FN => {
                type $t = F8E4M3;
                $e
            }
            DType::F8E4M3FNUZ => {
                type $t = F8E4M3FNUZ;
                $e
            }
            DType::F8E5M2 => {
                type $t = F8E5M2;
                $e
            }
            DType::F8E5M2FNUZ => {
                type $t = F8E5M2FNUZ;
                $e
            }
        }
    };
}

/// The bits of a number in memory.
fn bits_of<E: Copy>(mem: E) -> u64 {
    let mut bits = [0_u8; 8];
    // SAFETY: numbers are of at most 8 bytes.
    unsafe { bits.as_mut_ptr().cast::<E>().write_unaligned(mem) };
    u64::from_le_bytes(bits)
}

/// The number in memory of such bits, all of which are values of its type.
fn of_bits<E: Copy>(bits: u64) -> E {
    let bytes = bits.to_le_bytes();
    // SAFETY: as above.
    unsafe { bytes.as_ptr().cast::<E>().read_unaligned() }
}

impl fmt::Debug for RefVal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_prim!(self.dtype, P => write!(f, "{:?}_{}", P::of_bits(self.bits), self.dtype.short_name()))
    }
}

impl<T: Any> fmt::Debug for Val<Reference, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl RefVal {
    fn of<P: Prim>(p: P) -> Self {
        RefVal { dtype: P::DTYPE, bits: p.bits() }
    }
    fn i64(self) -> i64 {
        self.bits as i64
    }
    fn bool(self) -> bool {
        self.bits & 1 != 0
    }
    fn zero(dtype: DType) -> Self {
        RefVal { dtype: compute_dtype(dtype), bits: 0 }
    }
    fn of_int(dtype: DType, v: i128) -> Self {
        with_prim!(dtype, P => RefVal::of(P::from_i128(v)))
    }
    fn of_float(dtype: DType, v: f64) -> Self {
        with_prim!(dtype, P => RefVal::of(P::from_f64(v)))
    }
    fn fma(self, b: RefVal, c: RefVal) -> Self {
        with_prim!(self.dtype, P => RefVal::of(P::of_bits(self.bits).fma(P::of_bits(b.bits), P::of_bits(c.bits))))
    }
    fn cast(self, from: DType, to: DType) -> Self {
        if from == to {
            return self;
        }
        let c = with_prim!(self.dtype, P => {
            let p = P::of_bits(self.bits);
            with_prim!(to, Q => RefVal::of(<Q as Prim>::cast_from(p)))
        });
        if compute_dtype(to) == to {
            return c;
        }
        with_scalar!(to, S => RefVal::of(S::widen(S::narrow(<S as Any>::Compute::of_bits(c.bits)))))
    }
    fn bitcast(self, from: DType, to: DType) -> Self {
        let memory = with_scalar!(from, S => bits_of(S::narrow(<S as Any>::Compute::of_bits(self.bits))));
        with_scalar!(to, S => RefVal::of(S::widen(of_bits::<<S as Any>::Mem>(memory))))
    }
    fn show(self) -> String {
        match self.dtype {
            DType::F32 => general(f32::from_bits(self.bits as u32).into(), 7),
            DType::F64 => general(f64::from_bits(self.bits), 15),
            DType::Bool => u8::from(self.bool()).to_string(),
            dtype => with_prim!(dtype, P => format!("{:?}", P::of_bits(self.bits))),
        }
    }
}

/// A part of an operand.
#[derive(Clone, Copy, Debug)]
pub struct RefTensor<const R: usize> {
    ptr: *mut u8,
    dtype: DType,
    dims: [i64; R],
    strides: [i64; R],
    /// Of the last dimension, `count` indices from `lo` on are inside, counted modulo 2^64; none of a part that is outside.
    lo: i64,
    count: i64,
    pad: RefVal,
}

impl<const R: usize> RefTensor<R> {
    fn element(&self, index: [i64; R]) -> Option<*mut u8> {
        let mut offset = 0i64;
        for (d, i) in index.into_iter().enumerate() {
            let (lo, count) = if d + 1 == R { (self.lo, self.count) } else { (0, self.dims[d]) };
            if i.wrapping_sub(lo) as u64 >= count as u64 {
                return None;
            }
            offset = offset.wrapping_add(i.wrapping_mul(self.strides[d]));
        }
        Some(self.ptr.wrapping_offset(offset.wrapping_mul(self.dtype.size_in_bytes() as i64) as isize))
    }

    #[inline(never)]
    fn load(&self, index: [i64; R]) -> RefVal {
        match self.element(index) {
            // SAFETY: the element is inside the operand, which whoever runs the kernel vouches for.
            Some(p) => with_scalar!(self.dtype, T => RefVal::of(T::widen(unsafe { *p.cast::<<T as Any>::Mem>() }))),
            None => self.pad,
        }
    }

    #[inline(never)]
    fn store(&self, index: [i64; R], v: RefVal) {
        if let Some(p) = self.element(index) {
            with_scalar!(self.dtype, T => {
                let m = T::narrow(<T as Any>::Compute::of_bits(v.bits));
                // SAFETY: as in `load`.
                unsafe { *p.cast::<<T as Any>::Mem>() = m }
            })
        }
    }

    fn select<const S: usize>(self, axis: usize, i: i64) -> RefTensor<S> {
        let from = |d: usize| if d < axis { d } else { d + 1 };
        let dims = std::array::from_fn(|d| self.dims[from(d)]);
        let strides = std::array::from_fn(|d| self.strides[from(d)]);
        // Along the last dimension, bounds know whether this part is outside itself.
        let (inside, lo, count) = if axis + 1 == R {
            let inside = (i.wrapping_sub(self.lo) as u64) < self.count as u64;
            (inside, 0, dims.last().copied().unwrap_or(1))
        } else {
            ((i as u64) < self.dims[axis] as u64, self.lo, self.count)
        };
        let step = i.wrapping_mul(self.strides[axis]).wrapping_mul(self.dtype.size_in_bytes() as i64);
        RefTensor {
            ptr: self.ptr.wrapping_offset(if inside { step as isize } else { 0 }),
            dtype: self.dtype,
            dims,
            strides,
            lo,
            count: if inside { count } else { 0 },
            pad: self.pad,
        }
    }
}

impl RefTensor<1> {
    fn reverse(self) -> Self {
        let (n, stride) = (self.dims[0], self.strides[0]);
        let step = (n - 1).wrapping_mul(stride).wrapping_mul(self.dtype.size_in_bytes() as i64);
        RefTensor {
            ptr: self.ptr.wrapping_offset(step as isize),
            strides: [stride.wrapping_neg()],
            lo: n.wrapping_sub(self.lo).wrapping_sub(self.count),
            ..self
        }
    }

    /// A slice of an output, where nothing outside of it is inside.
    fn owned(self) -> Self {
        let end = Ord::min(self.lo.checked_add(self.count).unwrap_or(i64::MAX), self.dims[0]);
        let lo = Ord::max(self.lo, 0);
        RefTensor { lo, count: Ord::max(end.saturating_sub(lo), 0), ..self }
    }

    fn slice(self, lo: i64, n: i64) -> Self {
        let step = lo.wrapping_mul(self.strides[0]).wrapping_mul(self.dtype.size_in_bytes() as i64);
        RefTensor {
            ptr: self.ptr.wrapping_offset(step as isize),
            dims: [Ord::max(n, 0)],
            lo: self.lo.wrapping_sub(lo),
            ..self
        }
    }
}

/// A tile: a place in this thread's list of them, emptied when the program instance ends.
#[derive(Clone, Copy, Debug)]
pub struct RefTile(usize);

#[derive(Clone)]
struct TileData {
    rows: usize,
    columns: usize,
    dtype: DType,
    values: Vec<u64>,
}

thread_local! {
    static TILES: RefCell<Vec<TileData>> = const { RefCell::new(Vec::new()) };
}

impl TileData {
    fn keep(self) -> RefTile {
        TILES.with_borrow_mut(|tiles| {
            tiles.push(self);
            RefTile(tiles.len() - 1)
        })
    }
    #[inline]
    fn at(&self, i: usize, j: usize) -> RefVal {
        // A dimension of 1 is broadcast.
        let (i, j) = (if self.rows == 1 { 0 } else { i }, if self.columns == 1 { 0 } else { j });
        RefVal { dtype: self.dtype, bits: self.values[i * self.columns + j] }
    }
}

impl RefTile {
    fn data(self) -> TileData {
        TILES.with_borrow(|tiles| tiles[self.0].clone())
    }
}

fn tile(dtype: DType, rows: usize, columns: usize, mut f: impl FnMut(usize, usize) -> RefVal) -> RefTile {
    let (rows, columns) = (symbols::tile_size(rows) as usize, symbols::tile_size(columns) as usize);
    let values = (0..rows * columns).map(|k| f(k / columns, k % columns).bits).collect();
    TileData { rows, columns, dtype: compute_dtype(dtype), values }.keep()
}

impl Reference {
    /// # Safety
    /// The kernel that runs has an operand of that index, dtype and rank.
    unsafe fn tensor<T: Any, const R: usize>(self, operand: u32) -> RefTensor<R> {
        // SAFETY: whoever runs an instance vouches for its arguments, and the caller for `operand`, `T` and `R`.
        let raw = unsafe { *(*self.args).tensors.add(operand as usize) };
        // SAFETY: a tensor operand has as many dims and strides as its rank.
        let dims: [i64; R] = std::array::from_fn(|d| unsafe { *raw.dims.add(d) });
        // SAFETY: as above.
        let strides = std::array::from_fn(|d| unsafe { *raw.strides.add(d) });
        let count = dims.last().copied().unwrap_or(1);
        RefTensor { ptr: raw.ptr, dtype: T::dtype(), dims, strides, lo: 0, count, pad: RefVal::zero(T::dtype()) }
    }
}

type View = (RefTensor<2>, [RefVal; 2], bool);

impl Target for Reference {
    type Val<T: Any> = RefVal;
    type Var<T: Any> = Cell<RefVal>;
    type In<T: Any, const R: usize> = RefTensor<R>;
    type Out<T: Any, const R: usize> = RefTensor<R>;
    type At = i64;
    type Block<T: Any, const N: usize> = [RefVal; N];
    type Tile<T: Any, const R: usize, const C: usize> = RefTile;
    type TileVar<T: Any, const R: usize, const C: usize> = Cell<RefTile>;
    type Shown = String;

    fn int<T: Any>(v: i128) -> RefVal {
        RefVal::of_int(T::dtype(), v)
    }
    fn float<T: Any>(v: f64) -> RefVal {
        RefVal::of_float(T::dtype(), v)
    }
    fn limit<T: Any>(largest: bool) -> RefVal {
        RefVal { dtype: compute_dtype(T::dtype()), bits: limit_bits(T::dtype(), largest) }
    }
    fn epsilon<T: Any>() -> RefVal {
        Self::float::<T>(epsilon(T::dtype()))
    }
    fn min_positive<T: Any>() -> RefVal {
        Self::float::<T>(min_positive(T::dtype()))
    }
    unsafe fn param<T: Any>(self, index: u32) -> RefVal {
        // SAFETY: whoever runs an instance vouches for its arguments.
        RefVal { dtype: compute_dtype(T::dtype()), bits: unsafe { *(*self.args).params.add(index as usize) } }
    }
    // Operations tell dtypes apart when they run. Inlined, those cases would be most of the code of a crate of kernels.
    #[inline(never)]
    fn unary<T: Any, O: UnaryFn>(a: RefVal) -> RefVal {
        with_prim!(a.dtype, P => RefVal::of(O::apply(P::of_bits(a.bits))))
    }
    #[inline(never)]
    fn binary<T: Any, O: BinaryFn>(a: RefVal, b: RefVal) -> RefVal {
        with_prim!(a.dtype, P => RefVal::of(O::apply(P::of_bits(a.bits), P::of_bits(b.bits))))
    }
    #[inline(never)]
    fn cmp<T: Any, O: CmpFn>(a: RefVal, b: RefVal) -> RefVal {
        RefVal::of(with_prim!(a.dtype, P => O::apply(P::of_bits(a.bits), P::of_bits(b.bits))))
    }
    fn select<T: Any>(c: RefVal, a: RefVal, b: RefVal) -> RefVal {
        if c.bool() { a } else { b }
    }
    fn fma<T: Any>(a: RefVal, b: RefVal, c: RefVal) -> RefVal {
        a.fma(b, c)
    }
    fn cast<T: Any, U: Any>(a: RefVal) -> RefVal {
        a.cast(T::dtype(), U::dtype())
    }
    fn bitcast<T: Any, U: Any>(a: RefVal) -> RefVal {
        a.bitcast(T::dtype(), U::dtype())
    }
    fn wide<T: Any>() -> bool {
        T::dtype() == DType::F64
    }
    fn rename<T: Any, U: Any>(a: RefVal) -> RefVal {
        a
    }

    fn var<T: Any>(v: RefVal) -> Cell<RefVal> {
        Cell::new(v)
    }
    fn get<T: Any>(v: &Cell<RefVal>) -> RefVal {
        v.get()
    }
    fn set<T: Any>(v: &Cell<RefVal>, x: RefVal) {
        v.set(x);
    }
    fn if_<R: Item<Self>>(c: RefVal, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        if c.bool() { then() } else { otherwise() }
    }
    fn while_(condition: impl Fn() -> Val<Self, bool>, body: impl Fn()) {
        while condition().0.bool() {
            body();
        }
    }
    fn for_range(lo: RefVal, hi: RefVal, step: RefVal, body: impl Fn(Val<Self, i64>)) {
        let mut i = lo.i64();
        while i < hi.i64() {
            body(Val(RefVal::of(i)));
            i = i.saturating_add(Ord::max(step.i64(), 1));
        }
    }

    fn print(self, label: &'static str, values: Vec<String>, place: &'static Location<'static>) {
        let ids = match (self.kind, self.pid) {
            (KernelKind::Program, [i, j, k]) => format!(" ({i}, {j}, {k})"),
            (KernelKind::Elementwise, _) => String::new(),
        };
        let values: String = values.iter().flat_map(|v| [" ", v]).collect();
        // Nobody may be there to read it: that is no reason to stop.
        let _ = writeln!(stdout(), "{}:{}{ids}: {label}{values}", place.file(), place.line());
    }
    fn show<T: Any>(v: RefVal) -> String {
        v.show()
    }

    fn program_id(self, axis: u32) -> RefVal {
        RefVal::of(self.pid.get(axis as usize).copied().unwrap_or(0))
    }
    fn num_programs(self, axis: u32) -> RefVal {
        // SAFETY: whoever runs an instance vouches for its arguments.
        RefVal::of(unsafe { (*self.args).grid }.get(axis as usize).copied().unwrap_or(1))
    }
    unsafe fn input<T: Any, const R: usize>(self, operand: u32) -> RefTensor<R> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor::<T, R>(operand) }
    }
    unsafe fn output<T: Any, const R: usize>(self, operand: u32) -> RefTensor<R> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor::<T, R>(operand) }
    }
    fn dim_in<T: Any, const R: usize>(x: RefTensor<R>, axis: usize) -> RefVal {
        RefVal::of(x.dims.get(axis).copied().unwrap_or(1))
    }
    fn dim_out<T: Any, const R: usize>(x: RefTensor<R>, axis: usize) -> RefVal {
        RefVal::of(x.dims.get(axis).copied().unwrap_or(1))
    }
    fn select_in<T: Any, const R: usize, const S: usize>(x: RefTensor<R>, i: RefVal) -> RefTensor<S> {
        x.select(0, i.i64())
    }
    fn select_out<T: Any, const R: usize, const S: usize>(x: RefTensor<R>, i: RefVal) -> RefTensor<S> {
        x.select(0, i.i64())
    }
    fn column_in<T: Any>(x: RefTensor<2>, j: RefVal) -> RefTensor<1> {
        x.select(1, j.i64())
    }
    fn column_out<T: Any>(x: RefTensor<2>, j: RefVal) -> RefTensor<1> {
        x.select(1, j.i64())
    }
    fn slice_in<T: Any>(x: RefTensor<1>, lo: RefVal, n: RefVal) -> RefTensor<1> {
        x.slice(lo.i64(), n.i64())
    }
    fn slice_out<T: Any>(x: RefTensor<1>, lo: RefVal, n: RefVal) -> RefTensor<1> {
        x.slice(lo.i64(), n.i64()).owned()
    }
    fn reverse_in<T: Any>(x: RefTensor<1>) -> RefTensor<1> {
        x.reverse()
    }
    fn reverse_out<T: Any>(x: RefTensor<1>) -> RefTensor<1> {
        x.reverse()
    }
    fn pad<T: Any, const R: usize>(x: RefTensor<R>, v: RefVal) -> RefTensor<R> {
        RefTensor { pad: v, ..x }
    }
    fn load<T: Any, const R: usize>(x: RefTensor<R>, index: [RefVal; R]) -> RefVal {
        x.load(index.map(RefVal::i64))
    }
    fn store<T: Any, const R: usize>(x: RefTensor<R>, index: [RefVal; R], v: RefVal) {
        x.store(index.map(RefVal::i64), v);
    }
    fn scatter<T: Any, const R: usize>(x: RefTensor<R>, index: [RefVal; R], v: RefVal) {
        x.store(index.map(RefVal::i64), v);
    }
    fn atomic<T: Any, const R: usize>(op: AtomicOp, x: RefTensor<R>, index: [RefVal; R], v: RefVal) {
        // The reference form runs on one thread.
        let index = index.map(RefVal::i64);
        let old = x.load(index);
        let new = match op {
            AtomicOp::Add => Self::binary::<T, op::Add>(old, v),
            AtomicOp::Min => Self::binary::<T, op::Min>(old, v),
            AtomicOp::Max => Self::binary::<T, op::Max>(old, v),
            AtomicOp::And => Self::binary::<T, op::And>(old, v),
            AtomicOp::Or => Self::binary::<T, op::Or>(old, v),
            AtomicOp::Xor => Self::binary::<T, op::Xor>(old, v),
        };
        x.store(index, new);
    }
    fn read<T: Any>(x: RefTensor<1>) -> RefTensor<1> {
        x
    }

    fn block<T: Any, const N: usize>(x: RefTensor<1>, at: i64) -> [RefVal; N] {
        std::array::from_fn(|j| x.load([at.wrapping_add(j as i64)]))
    }
    fn block_lane<T: Any, const N: usize>(b: &[RefVal; N], j: usize) -> RefVal {
        b[j]
    }
    fn blank<T: Any, const N: usize>() -> [RefVal; N] {
        [RefVal::zero(T::dtype()); N]
    }
    fn set_lane<T: Any, const N: usize>(b: &mut [RefVal; N], j: usize, v: RefVal) {
        b[j] = v;
    }
    fn store_block<T: Any, const N: usize>(x: RefTensor<1>, at: i64, b: &[RefVal; N]) {
        for (j, v) in b.iter().enumerate() {
            x.store([at.wrapping_add(j as i64)], *v);
        }
    }
    fn at_index(i: RefVal) -> i64 {
        i.i64()
    }
    fn index_lane(at: i64, j: usize) -> RefVal {
        RefVal::of(at.wrapping_add(j as i64))
    }
    fn for_each<L: Lanes<Self>>(lanes: L, f: impl Fn(L::Item)) {
        for i in 0..lanes.len().0.i64() {
            f(lanes.lane(&lanes.block::<1>(i), 0));
        }
    }
    fn fold<L: Lanes<Self>, A: LaneItem<Self>>(
        lanes: L,
        init: A,
        f: impl Fn(A, L::Item) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> A {
        let mut acc = init;
        for i in 0..lanes.len().0.i64() {
            acc = f(acc, lanes.lane(&lanes.block::<1>(i), 0));
        }
        combine(acc, init)
    }
    fn materialize<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(lanes: L) -> impl Lanes<Self, Item = Val<Self, T>> {
        let len = lanes.len();
        // Nothing is kept; but a row that no memory holds is as little a row here.
        let items = usize::try_from(len.0.i64()).unwrap_or(0);
        let fits = Vec::<u64>::new().try_reserve_exact(items).is_ok();
        if !fits {
            report_out_of_memory(items.saturating_mul(size_of::<u64>()));
        }
        Recomputed { lanes, len: if fits { len } else { Val(RefVal::of(0_i64)) } }
    }
    fn write<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(out: RefTensor<1>, lanes: L) {
        for i in 0..out.dims[0] {
            out.store([i], lanes.lane(&lanes.block::<1>(i), 0).0);
        }
    }
    fn scan<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(
        out: RefTensor<1>,
        lanes: L,
        init: Val<Self, T>,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        let mut acc = init;
        for i in 0..out.dims[0] {
            acc = combine(acc, lanes.lane(&lanes.block::<1>(i), 0));
            out.store([i], acc.0);
        }
    }
    unsafe fn element_in<T: Any>(self, operand: u32) -> RefTensor<1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor::<T, 1>(operand) }
    }
    unsafe fn element_out<T: Any>(self, operand: u32) -> RefTensor<1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor::<T, 1>(operand) }
    }
    fn elementwise<O: Outs<Self>, L: Lanes<Self, Item = O::Items>>(self, outs: O, lanes: L) {
        let mut blocks = O::blank::<1>();
        O::set_lane(&mut blocks, 0, lanes.lane(&lanes.block::<1>(self.element), 0));
        outs.store(self.element, &blocks);
    }

    fn tile_full<T: Any, const R: usize, const C: usize>(v: RefVal) -> RefTile {
        tile(T::dtype(), R, C, |_, _| v)
    }
    fn tile_load<T: Any, const R: usize, const C: usize>(
        x: RefTensor<2>,
        origin: [RefVal; 2],
        transpose: bool,
    ) -> RefTile {
        let [r, c] = origin.map(RefVal::i64);
        tile(T::dtype(), R, C, |i, j| {
            let (i, j) = if transpose { (j, i) } else { (i, j) };
            x.load([r.wrapping_add(i as i64), c.wrapping_add(j as i64)])
        })
    }
    fn tile_store<T: Any, const R: usize, const C: usize>(x: RefTensor<2>, origin: [RefVal; 2], v: RefTile) {
        let ([r, c], data) = (origin.map(RefVal::i64), v.data());
        for i in 0..data.rows {
            for j in 0..data.columns {
                x.store([r.wrapping_add(i as i64), c.wrapping_add(j as i64)], data.at(i, j));
            }
        }
    }
    fn tile_map<T: Any, U: Any, const R: usize, const C: usize>(
        a: RefTile,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, U>,
    ) -> RefTile {
        let data = a.data();
        tile(U::dtype(), R, C, |i, j| f(Val(RefVal::of(i as i64)), Val(RefVal::of(j as i64)), Val(data.at(i, j))).0)
    }
    fn tile_zip<T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        a: RefTile,
        b: RefTile,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, V>,
    ) -> RefTile {
        let (a, b) = (a.data(), b.data());
        tile(V::dtype(), R, C, |i, j| f(Val(a.at(i, j)), Val(b.at(i, j))).0)
    }
    fn tile_reduce<T: Any, const R: usize, const C: usize>(op: ReduceOp, a: RefTile) -> RefTile {
        let data = a.data();
        tile(T::dtype(), R, 1, |i, _| {
            let first = data.at(i, 0);
            (1..data.columns).fold(first, |acc, j| match op {
                ReduceOp::Sum => Self::binary::<T, op::Add>(acc, data.at(i, j)),
                ReduceOp::Max => Self::binary::<T, op::Max>(acc, data.at(i, j)),
                ReduceOp::Min => Self::binary::<T, op::Min>(acc, data.at(i, j)),
            })
        })
    }
    fn tile_element<T: Any, const R: usize, const C: usize>(a: RefTile, index: [RefVal; 2]) -> RefVal {
        let (data, [i, j]) = (a.data(), index.map(RefVal::i64));
        let inside = (i as u64) < data.rows as u64 && (j as u64) < data.columns as u64;
        if inside { data.at(i as usize, j as usize) } else { RefVal::zero(T::dtype()) }
    }
    fn tile_cast<T: Any, U: Any, const R: usize, const C: usize>(a: RefTile) -> RefTile {
        let data = a.data();
        tile(U::dtype(), R, C, |i, j| Self::cast::<T, U>(data.at(i, j)))
    }
    fn dot_views<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: View,
        b: View,
        acc: RefTile,
    ) -> RefTile {
        let a = Self::tile_load::<T, R, K>(a.0, a.1, a.2);
        Self::dot_tile_view::<T, U, A, R, K, C>(a, b, acc)
    }
    fn dot_tile_view<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: RefTile,
        b: View,
        acc: RefTile,
    ) -> RefTile {
        let b = Self::tile_load::<U, K, C>(b.0, b.1, b.2);
        Self::dot_tiles::<T, U, A, R, K, C>(a, b, acc)
    }
    fn dot_tiles<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: RefTile,
        b: RefTile,
        acc: RefTile,
    ) -> RefTile {
        let (a, b, acc) = (a.data(), b.data(), acc.data());
        tile(A::dtype(), R, C, |i, j| {
            (0..a.columns).fold(acc.at(i, j), |sum, k| {
                Self::fma::<A>(Self::cast::<T, A>(a.at(i, k)), Self::cast::<U, A>(b.at(k, j)), sum)
            })
        })
    }
    fn tile_var<T: Any, const R: usize, const C: usize>(v: RefTile) -> Cell<RefTile> {
        Cell::new(v)
    }
    fn tile_get<T: Any, const R: usize, const C: usize>(v: &Cell<RefTile>) -> RefTile {
        v.get()
    }
    fn tile_set<T: Any, const R: usize, const C: usize>(v: &Cell<RefTile>, x: RefTile) {
        v.set(x);
    }

    fn push_value<T: Any>(_: RefVal, _: &mut Vec<ir::Value>) {}
    fn fresh<T: Any>() -> RefVal {
        RefVal::zero(T::dtype())
    }
    fn push_tile<T: Any, const R: usize, const C: usize>(_: RefTile, _: &mut Vec<ir::Value>) {}
    fn fresh_tile<T: Any, const R: usize, const C: usize>() -> RefTile {
        tile(T::dtype(), R, C, |_, _| RefVal::zero(T::dtype()))
    }
}

/// What a kernel table's reference function does: runs `program` for each of `first..last`.
///
/// # Safety
/// As for [`ReferenceFn`](super::abi::ReferenceFn).
pub unsafe fn run_reference(
    def: &KernelDef,
    binding: *const Binding,
    args: *const LaunchArgs,
    first: i64,
    last: i64,
    program: impl Fn(Reference),
) {
    // SAFETY: the caller's promise is the same.
    unsafe { run_each(def, binding, args, first..last, &program) }
}

/// # Safety
/// As for [`run_reference`].
unsafe fn run_each(
    def: &KernelDef,
    binding: *const Binding,
    args: *const LaunchArgs,
    programs: Range<i64>,
    program: &dyn Fn(Reference),
) {
    // SAFETY: by the contract above.
    let (symbols, launch) = unsafe { (Symbols::read(def, &*binding), *args) };
    symbols.scope(&mut || {
        for i in programs.clone() {
            let pid = launch.program_ids(launch.coordinates(i));
            program(Reference { args, pid, element: i, kind: def.kind });
            TILES.with_borrow_mut(Vec::clear);
        }
    });
}
