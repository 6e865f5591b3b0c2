//! [`Record`]: the target that computes nothing and builds IR.
//!
//! A value is a name of an IR value; each operation appends an instruction at the line of the kernel that asked for
//! it. One instantiation serves all dtypes and tile sizes, which are bound while it runs.

mod part;
mod recorder;
mod recording;

use std::ffi::c_void;
use std::panic::Location;

use super::abi::{Access, Binding, DTypeRef, GridAxis, GridOp, GridTerm, KernelDef, KernelKind};
use super::ir::{self, AtomicOp, Builder, Loc, Op, ReduceOp, Type, Value};
use super::lang::op::{BinaryFn, CmpFn, UnaryFn};
use super::lang::symbols::{self, Symbols, tile_size};
use super::lang::{Any, Item, LaneItem, Lanes, Outs, Prim, Recomputed, Target, Val, compute_dtype};
use crate::dtype::DType;
use crate::dtype::limits::{epsilon, limit_bits, min_positive};
pub use part::RecTensor;
use recorder::{
    Recorder, at, bytes_so_far, close, decided, effect, fresh, give, give_at, open, push, push_tile, recorded, scalar,
    set_bytes, set_yields,
};
pub(super) use recording::Recording;

/// The target that records.
#[derive(Clone, Copy, Debug)]
pub struct Record;

/// Records what `f` does, and the values it gives.
fn block<R: Item<Record>>(f: impl FnOnce() -> R) -> ir::Block {
    open();
    close(values(f()))
}

fn values<R: Item<Record>>(r: R) -> Vec<Value> {
    let mut out = Vec::new();
    r.values(&mut out);
    out
}

fn tile_type<T: Any>(rows: usize, columns: usize) -> Type {
    Type::Tile(compute_dtype(T::dtype()), tile_size(rows), tile_size(columns))
}

type View = (RecTensor, [Value; 2], bool);

/// A product of computed tiles.
#[track_caller]
fn dot_of_tiles<T: Any, U: Any, A: Any>(a: Value, b: Value, acc: Value, [r, k, c]: [usize; 3]) -> Op {
    Op::Dot(factor::<T, U, A>(a, r, k), factor::<U, T, A>(b, k, c), acc)
}

/// A product of tiles in memory, or of a tile and one in memory.
#[track_caller]
fn dot<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(a: Value, b: View, acc: Value) -> Op {
    let a = factor::<T, U, A>(a, R, K);
    let b = factor::<U, T, A>(load_view::<U>(b, K, C), K, C);
    Op::Dot(a, b, acc)
}

/// A factor of dtype `T` in the dtype of the sums, where it has another and the product is not one of bytes.
#[track_caller]
fn factor<T: Any, Other: Any, A: Any>(tile: Value, rows: usize, columns: usize) -> Value {
    let bytes = |dtype| matches!(dtype, DType::I8 | DType::U8);
    let (from, sum) = (compute_dtype(T::dtype()), compute_dtype(A::dtype()));
    if from == sum || (sum == DType::I32 && bytes(from) && bytes(compute_dtype(Other::dtype()))) {
        return tile;
    }
    push(Op::TileCast(tile), tile_type::<A>(rows, columns))
}

#[track_caller]
fn load_view<T: Any>(of: View, rows: usize, columns: usize) -> Value {
    push(view(of), tile_type::<T>(rows, columns))
}

/// Reads a tile.
fn view((x, origin, transpose): View) -> Op {
    Op::TileLoad { operand: x.operand, batch: x.batch(), origin, transpose }
}

impl Target for Record {
    type Val<T: Any> = Value;
    type Var<T: Any> = Value;
    type In<T: Any, const R: usize> = RecTensor;
    type Out<T: Any, const R: usize> = RecTensor;
    type At = Value;
    type Block<T: Any, const N: usize> = Value;
    type Tile<T: Any, const R: usize, const C: usize> = Value;
    type TileVar<T: Any, const R: usize, const C: usize> = Value;
    type Shown = Value;

    #[track_caller]
    fn int<T: Any>(v: i128) -> Value {
        let bits = literal_bits(T::dtype(), Literal::Int(v));
        scalar(Op::Const(bits), T::dtype())
    }
    #[track_caller]
    fn float<T: Any>(v: f64) -> Value {
        let bits = literal_bits(T::dtype(), Literal::Float(v));
        scalar(Op::Const(bits), T::dtype())
    }
    #[track_caller]
    fn limit<T: Any>(largest: bool) -> Value {
        scalar(Op::Const(limit_bits(T::dtype(), largest)), T::dtype())
    }
    #[track_caller]
    fn epsilon<T: Any>() -> Value {
        Self::float::<T>(epsilon(T::dtype()))
    }
    #[track_caller]
    fn min_positive<T: Any>() -> Value {
        Self::float::<T>(min_positive(T::dtype()))
    }
    #[track_caller]
    unsafe fn param<T: Any>(self, index: u32) -> Value {
        match symbols::param(index) {
            Some(bits) => scalar(Op::Const(bits), T::dtype()),
            None => scalar(Op::Param(index), T::dtype()),
        }
    }
    #[track_caller]
    fn unary<T: Any, O: UnaryFn>(a: Value) -> Value {
        scalar(Op::Unary(O::OP, a), T::dtype())
    }
    #[track_caller]
    fn exp2_approx(a: Value) -> Value {
        scalar(Op::Unary(ir::UnaryOp::Exp2Approx, a), DType::F32)
    }
    #[track_caller]
    fn binary<T: Any, O: BinaryFn>(a: Value, b: Value) -> Value {
        scalar(Op::Binary(O::OP, a, b), T::dtype())
    }
    #[track_caller]
    fn cmp<T: Any, O: CmpFn>(a: Value, b: Value) -> Value {
        scalar(Op::Cmp(O::OP, a, b), DType::Bool)
    }
    #[track_caller]
    fn select<T: Any>(c: Value, a: Value, b: Value) -> Value {
        scalar(Op::Select(c, a, b), T::dtype())
    }
    #[track_caller]
    fn fma<T: Any>(a: Value, b: Value, c: Value) -> Value {
        if matches!(compute_dtype(T::dtype()), DType::F32 | DType::F64) {
            return scalar(Op::Fma(a, b, c), T::dtype());
        }
        let product = scalar(Op::Binary(ir::BinaryOp::Mul, a, b), T::dtype());
        scalar(Op::Binary(ir::BinaryOp::Add, product, c), T::dtype())
    }
    #[track_caller]
    fn cast<T: Any, U: Any>(a: Value) -> Value {
        let (from, to) = (compute_dtype(T::dtype()), compute_dtype(U::dtype()));
        let c = if from == to { a } else { scalar(Op::Cast(a), to) };
        if to == U::dtype() || T::dtype() == U::dtype() { c } else { scalar(Op::Round(U::dtype(), c), to) }
    }
    #[track_caller]
    fn bitcast<T: Any, U: Any>(a: Value) -> Value {
        let (from, to) = (T::dtype(), U::dtype());
        // Small floats are `f32` while they are computed with.
        let bits = match (compute_dtype(from) == from, compute_dtype(to) == to) {
            (true, true) => return scalar(Op::Bitcast(a), to),
            (false, false) if from == to => return a,
            (false, false) if from.size_in_bytes() == 1 => scalar(Op::ToBits(from, a), DType::U8),
            (false, false) => scalar(Op::ToBits(from, a), DType::U16),
            (false, true) => return scalar(Op::ToBits(from, a), to),
            (true, false) => a,
        };
        scalar(Op::FromBits(to, bits), to)
    }
    fn wide<T: Any>() -> bool {
        T::dtype() == DType::F64
    }
    fn rename<T: Any, U: Any>(a: Value) -> Value {
        a
    }

    #[track_caller]
    fn var<T: Any>(v: Value) -> Value {
        push(Op::Var(v), Type::Var(compute_dtype(T::dtype())))
    }
    #[track_caller]
    fn get<T: Any>(v: &Value) -> Value {
        scalar(Op::Get(*v), T::dtype())
    }
    #[track_caller]
    fn set<T: Any>(v: &Value, x: Value) {
        effect(Op::Set(*v, x));
    }
    #[track_caller]
    fn if_<R: Item<Self>>(c: Value, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        // Of code that depends on a tile's sizes, one half is for other tiles.
        if let Some(holds) = decided(c) {
            return if holds { then() } else { otherwise() };
        }
        let (then, otherwise) = (block(then), block(otherwise));
        let result = R::fresh();
        give(Op::If { condition: c, then, otherwise }, values(result));
        result
    }
    #[track_caller]
    unsafe fn if_param<R: Item<Self>>(self, index: u32, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        match symbols::param(index) {
            Some(0) => otherwise(),
            Some(_) => then(),
            None => Self::if_(scalar(Op::Param(index), DType::Bool), then, otherwise),
        }
    }
    #[track_caller]
    fn while_(condition: impl Fn() -> Val<Self, bool>, body: impl Fn()) {
        let (condition, body) = (block(condition), block(body));
        effect(Op::While { condition, body });
    }
    #[track_caller]
    fn for_range(lo: Value, hi: Value, step: Value, body: impl Fn(Val<Self, i64>)) {
        let index = fresh(Type::Scalar(DType::I64));
        let body = block(|| body(Val(index)));
        effect(Op::For { lo, hi, step, index, body });
    }

    fn print(self, label: &'static str, values: Vec<Value>, place: &'static Location<'static>) {
        give_at(Op::Print { label: label.to_owned(), values }, Vec::new(), at(place));
    }
    fn show<T: Any>(v: Value) -> Value {
        v
    }

    #[track_caller]
    fn program_id(self, axis: u32) -> Value {
        scalar(Op::ProgramId(axis), DType::I64)
    }
    #[track_caller]
    fn num_programs(self, axis: u32) -> Value {
        scalar(Op::NumPrograms(axis), DType::I64)
    }
    unsafe fn input<T: Any, const R: usize>(self, operand: u32) -> RecTensor {
        RecTensor::whole(operand, R)
    }
    unsafe fn output<T: Any, const R: usize>(self, operand: u32) -> RecTensor {
        RecTensor::whole(operand, R)
    }
    #[track_caller]
    fn dim_in<T: Any, const R: usize>(x: RecTensor, axis: usize) -> Value {
        x.dim(axis)
    }
    #[track_caller]
    fn dim_out<T: Any, const R: usize>(x: RecTensor, axis: usize) -> Value {
        x.dim(axis)
    }
    fn select_in<T: Any, const R: usize, const S: usize>(x: RecTensor, i: Value) -> RecTensor {
        x.select(0, i)
    }
    fn select_out<T: Any, const R: usize, const S: usize>(x: RecTensor, i: Value) -> RecTensor {
        x.select(0, i)
    }
    fn column_in<T: Any>(x: RecTensor, j: Value) -> RecTensor {
        x.select(1, j)
    }
    fn column_out<T: Any>(x: RecTensor, j: Value) -> RecTensor {
        x.select(1, j)
    }
    #[track_caller]
    fn slice_in<T: Any>(x: RecTensor, lo: Value, n: Value) -> RecTensor {
        x.slice(lo, n)
    }
    #[track_caller]
    fn slice_out<T: Any>(x: RecTensor, lo: Value, n: Value) -> RecTensor {
        x.own_slice(lo, n)
    }
    #[track_caller]
    fn reverse_in<T: Any>(x: RecTensor) -> RecTensor {
        x.reversed()
    }
    #[track_caller]
    fn reverse_out<T: Any>(x: RecTensor) -> RecTensor {
        x.reversed()
    }
    fn pad<T: Any, const R: usize>(x: RecTensor, v: Value) -> RecTensor {
        let mut x = x;
        x.pad = Some(v);
        x
    }
    #[track_caller]
    fn load<T: Any, const R: usize>(x: RecTensor, index: [Value; R]) -> Value {
        x.load(&index, T::dtype())
    }
    #[track_caller]
    fn store<T: Any, const R: usize>(x: RecTensor, index: [Value; R], v: Value) {
        let index = x.own_index(&index);
        effect(Op::Store { operand: x.operand, index, value: v, scatter: false });
    }
    #[track_caller]
    fn scatter<T: Any, const R: usize>(x: RecTensor, index: [Value; R], v: Value) {
        x.store(&index, v, true);
    }
    #[track_caller]
    fn atomic<T: Any, const R: usize>(op: AtomicOp, x: RecTensor, index: [Value; R], v: Value) {
        let index = x.index(&index);
        effect(Op::Atomic { op, operand: x.operand, index, value: v });
    }
    fn read<T: Any>(x: RecTensor) -> RecTensor {
        x
    }

    #[track_caller]
    fn block<T: Any, const N: usize>(x: RecTensor, at: Value) -> Value {
        x.load(&[at], T::dtype())
    }
    fn block_lane<T: Any, const N: usize>(b: &Value, _: usize) -> Value {
        *b
    }
    fn blank<T: Any, const N: usize>() -> Value {
        // Filled by `set_lane` before it is read.
        Value(u32::MAX)
    }
    fn set_lane<T: Any, const N: usize>(b: &mut Value, _: usize, v: Value) {
        *b = v;
    }
    #[track_caller]
    fn store_block<T: Any, const N: usize>(x: RecTensor, at: Value, b: &Value) {
        x.store(&[at], *b, false);
    }
    fn at_index(i: Value) -> Value {
        i
    }
    fn index_lane(at: Value, _: usize) -> Value {
        at
    }
    #[track_caller]
    fn for_each<L: Lanes<Self>>(lanes: L, f: impl Fn(L::Item)) {
        let (len, index) = (lanes.len().0, fresh(Type::Scalar(DType::I64)));
        let body = block(|| f(lanes.lane(&lanes.block::<1>(index), 0)));
        effect(Op::Lanes { len, index, body });
    }
    #[track_caller]
    fn fold<L: Lanes<Self>, A: LaneItem<Self>>(
        lanes: L,
        init: A,
        f: impl Fn(A, L::Item) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> A {
        let (len, index) = (lanes.len().0, fresh(Type::Scalar(DType::I64)));
        let (acc, lhs, rhs, result) = (A::fresh(), A::fresh(), A::fresh(), A::fresh());
        let body = block(|| f(acc, lanes.lane(&lanes.block::<1>(index), 0)));
        let combine = block(|| combine(lhs, rhs));
        let op = Op::Fold {
            len,
            index,
            init: values(init),
            acc: values(acc),
            body,
            lhs: values(lhs),
            rhs: values(rhs),
            combine,
        };
        give(op, values(result));
        result
    }
    fn materialize<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(lanes: L) -> impl Lanes<Self, Item = Val<Self, T>> {
        Recomputed { lanes, len: lanes.len() }
    }
    #[track_caller]
    fn write<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(out: RecTensor, lanes: L) {
        let (len, index) = (out.dim(0), fresh(Type::Scalar(DType::I64)));
        let body = block(|| {
            let v = lanes.lane(&lanes.block::<1>(index), 0);
            out.store(&[index], v.0, false);
        });
        effect(Op::Lanes { len, index, body });
    }
    #[track_caller]
    fn scan<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(
        out: RecTensor,
        lanes: L,
        init: Val<Self, T>,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        let (len, index) = (out.dim(0), fresh(Type::Scalar(DType::I64)));
        let item = block(|| lanes.lane(&lanes.block::<1>(index), 0));
        let (lhs, rhs, prefix) = (Val::<Self, T>::fresh(), Val::<Self, T>::fresh(), Val::<Self, T>::fresh());
        let combine = block(|| combine(lhs, rhs));
        let emit = block(|| out.store(&[index], prefix.0, false));
        effect(Op::Scan {
            len,
            index,
            init: values(init),
            item,
            lhs: values(lhs),
            rhs: values(rhs),
            combine,
            prefix: values(prefix),
            emit,
        });
    }
    unsafe fn element_in<T: Any>(self, operand: u32) -> RecTensor {
        RecTensor::whole(operand, 0)
    }
    unsafe fn element_out<T: Any>(self, operand: u32) -> RecTensor {
        RecTensor::whole(operand, 0)
    }
    fn elementwise<O: Outs<Self>, L: Lanes<Self, Item = O::Items>>(self, _: O, lanes: L) {
        // The position is implied; nothing in lane code of an elementwise kernel reads it.
        let at = Value(u32::MAX);
        set_yields(values(lanes.lane(&lanes.block::<1>(at), 0)));
    }

    #[track_caller]
    fn tile_full<T: Any, const R: usize, const C: usize>(v: Value) -> Value {
        push_tile(Op::TileFull(v), tile_type::<T>(R, C))
    }
    #[track_caller]
    fn tile_load<T: Any, const R: usize, const C: usize>(x: RecTensor, origin: [Value; 2], transpose: bool) -> Value {
        push_tile(view((x, origin, transpose)), tile_type::<T>(R, C))
    }
    #[track_caller]
    fn tile_store<T: Any, const R: usize, const C: usize>(x: RecTensor, origin: [Value; 2], v: Value) {
        effect(Op::TileStore { operand: x.operand, batch: x.batch(), origin, value: v });
    }
    #[track_caller]
    fn tile_map<T: Any, U: Any, const R: usize, const C: usize>(
        a: Value,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, U>,
    ) -> Value {
        let i64 = Type::Scalar(DType::I64);
        let (i, j, v) = (fresh(i64), fresh(i64), <Self as Target>::fresh::<T>());
        let body = block(|| f(Val(i), Val(j), Val(v)));
        push_tile(Op::TileMap { inputs: vec![a], position: [i, j], elements: vec![v], body }, tile_type::<U>(R, C))
    }
    #[track_caller]
    fn tile_zip<T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        a: Value,
        b: Value,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, V>,
    ) -> Value {
        let i64 = Type::Scalar(DType::I64);
        let (i, j) = (fresh(i64), fresh(i64));
        let (x, y) = (<Self as Target>::fresh::<T>(), <Self as Target>::fresh::<U>());
        let body = block(|| f(Val(x), Val(y)));
        push_tile(
            Op::TileMap { inputs: vec![a, b], position: [i, j], elements: vec![x, y], body },
            tile_type::<V>(R, C),
        )
    }
    #[track_caller]
    fn tile_map_assign<T: Any, const R: usize, const C: usize>(
        v: &Value,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, T>,
    ) {
        let (a, before) = (Self::tile_get::<T, R, C>(v), bytes_so_far());
        Self::tile_set::<T, R, C>(v, Self::tile_map::<T, T, R, C>(a, f));
        set_bytes(before);
    }
    #[track_caller]
    fn tile_zip_assign<T: Any, U: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        v: &Value,
        b: Value,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, T>,
    ) {
        let (a, before) = (Self::tile_get::<T, R, C>(v), bytes_so_far());
        Self::tile_set::<T, R, C>(v, Self::tile_zip::<T, U, T, R, C, P, Q>(a, b, f));
        set_bytes(before);
    }
    #[track_caller]
    fn tile_reduce<T: Any, const R: usize, const C: usize>(op: ReduceOp, a: Value) -> Value {
        push_tile(Op::TileReduce(op, a), tile_type::<T>(R, 1))
    }
    #[track_caller]
    fn tile_element<T: Any, const R: usize, const C: usize>(a: Value, index: [Value; 2]) -> Value {
        scalar(Op::TileElement(a, index), T::dtype())
    }
    #[track_caller]
    fn tile_cast<T: Any, U: Any, const R: usize, const C: usize>(a: Value) -> Value {
        let (from, to) = (compute_dtype(T::dtype()), compute_dtype(U::dtype()));
        let c = if from == to { a } else { push_tile(Op::TileCast(a), tile_type::<U>(R, C)) };
        if to == U::dtype() || T::dtype() == U::dtype() {
            c
        } else {
            push_tile(Op::TileRound(U::dtype(), c), tile_type::<U>(R, C))
        }
    }
    #[track_caller]
    fn dot_views<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: View,
        b: View,
        acc: Value,
    ) -> Value {
        let a = load_view::<T>(a, R, K);
        Self::dot_tile_view::<T, U, A, R, K, C>(a, b, acc)
    }
    #[track_caller]
    fn dot_views_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: View,
        b: View,
        acc: &Value,
    ) {
        let value = Self::tile_get::<A, R, C>(acc);
        let a = load_view::<T>(a, R, K);
        effect(Op::Set(*acc, push(dot::<T, U, A, R, K, C>(a, b, value), tile_type::<A>(R, C))));
    }
    #[track_caller]
    fn dot_tile_view_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &Value,
        b: View,
        acc: &Value,
    ) {
        let value = Self::tile_get::<A, R, C>(acc);
        effect(Op::Set(*acc, push(dot::<T, U, A, R, K, C>(*a, b, value), tile_type::<A>(R, C))));
    }
    #[track_caller]
    fn dot_tile_view<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: Value,
        b: View,
        acc: Value,
    ) -> Value {
        push_tile(dot::<T, U, A, R, K, C>(a, b, acc), tile_type::<A>(R, C))
    }
    #[track_caller]
    fn dot_tiles<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: Value,
        b: Value,
        acc: Value,
    ) -> Value {
        push_tile(dot_of_tiles::<T, U, A>(a, b, acc, [R, K, C]), tile_type::<A>(R, C))
    }
    #[track_caller]
    fn dot_tiles_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &Value,
        b: &Value,
        acc: &Value,
    ) {
        let value = Self::tile_get::<A, R, C>(acc);
        effect(Op::Set(*acc, push(dot_of_tiles::<T, U, A>(*a, *b, value, [R, K, C]), tile_type::<A>(R, C))));
    }
    fn tile_bytes(now: Option<u64>) -> u64 {
        let before = bytes_so_far();
        set_bytes(now.unwrap_or(before));
        before
    }
    #[track_caller]
    fn tile_var<T: Any, const R: usize, const C: usize>(v: Value) -> Value {
        push_tile(Op::Var(v), Type::TileVar(compute_dtype(T::dtype()), tile_size(R), tile_size(C)))
    }
    #[track_caller]
    fn tile_get<T: Any, const R: usize, const C: usize>(v: &Value) -> Value {
        push(Op::Get(*v), tile_type::<T>(R, C))
    }
    #[track_caller]
    fn tile_set<T: Any, const R: usize, const C: usize>(v: &Value, x: Value) {
        effect(Op::Set(*v, x));
    }

    fn push_value<T: Any>(v: Value, out: &mut Vec<Value>) {
        out.push(v);
    }
    #[track_caller]
    fn fresh<T: Any>() -> Value {
        fresh(Type::Scalar(compute_dtype(T::dtype())))
    }
    fn push_tile<T: Any, const R: usize, const C: usize>(v: Value, out: &mut Vec<Value>) {
        out.push(v);
    }
    #[track_caller]
    fn fresh_tile<T: Any, const R: usize, const C: usize>() -> Value {
        fresh(tile_type::<T>(R, C))
    }
}

/// The bytes of tiles that a program of this kernel may have on the stack of whatever thread it runs on: fewer where nothing is
/// optimized, so that there are more copies of each.
pub(super) fn stack_tiles(def: &KernelDef) -> u64 {
    if def.optimized { 512 << 10 } else { 64 << 10 }
}

enum Literal {
    Int(i128),
    Float(f64),
}

/// A literal's bits in the compute type of `dtype`.
fn literal_bits(dtype: DType, literal: Literal) -> u64 {
    fn bits<P: Prim>(literal: Literal) -> u64 {
        match literal {
            Literal::Int(v) => P::from_i128(v).bits(),
            Literal::Float(v) => P::from_f64(v).bits(),
        }
    }
    match compute_dtype(dtype) {
        DType::Bool => bits::<bool>(literal),
        DType::I8 => bits::<i8>(literal),
        DType::I16 => bits::<i16>(literal),
        DType::I32 => bits::<i32>(literal),
        DType::I64 => bits::<i64>(literal),
        DType::U8 => bits::<u8>(literal),
        DType::U16 => bits::<u16>(literal),
        DType::U32 => bits::<u32>(literal),
        DType::U64 => bits::<u64>(literal),
        DType::F64 => bits::<f64>(literal),
        _ => bits::<f32>(literal),
    }
}

fn header(def: &KernelDef, symbols: &Symbols) -> ir::Kernel {
    let dtype = |r: DTypeRef| match usize::try_from(r.generic) {
        Ok(i) => symbols.dtypes.get(i).copied(),
        Err(_) => DType::from_code(r.fixed),
    };
    let mut kernel = ir::Kernel::new(def.name.as_str(), def.kind);
    kernel.operands = def
        .operands
        .as_slice()
        .iter()
        .map(|o| ir::Operand {
            name: o.name.as_str().to_string(),
            access: o.access,
            dtype: dtype(o.dtype).unwrap_or(DType::F32),
            rank: Ord::max(o.rank, 0) as u32,
        })
        .collect();
    kernel.params = def
        .params
        .as_slice()
        .iter()
        .map(|p| ir::Param { name: p.name.as_str().to_string(), ty: ir::ParamType::Of(p.kind) })
        .collect();
    kernel.grid = def
        .grid
        .as_slice()
        .iter()
        .map(|axis| match usize::try_from(axis.tile) {
            Ok(t) => GridAxis { tile: -1, size: symbols.tile.get(t).copied().unwrap_or(1), ..*axis },
            Err(_) => *axis,
        })
        .collect();
    kernel.grid_terms = def
        .grid_terms
        .as_slice()
        .iter()
        .map(|term| match term.op {
            GridOp::Tile => GridTerm {
                op: GridOp::Number,
                index: 0,
                value: symbols.tile.get(term.index as usize).map_or(1, |size| *size as i64),
            },
            _ => *term,
        })
        .collect();
    kernel
}

/// What a kernel table's record function does: records `body` and writes the IR's text into `sink`.
///
/// # Safety
/// As for [`RecordFn`](super::abi::RecordFn).
pub unsafe fn record_kernel(
    def: &KernelDef,
    binding: *const Binding,
    context: *mut c_void,
    sink: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    body: impl FnOnce(),
) {
    let mut body = Some(body);
    let mut body = || {
        if let Some(body) = body.take() {
            body();
        }
    };
    // SAFETY: the caller's promise is the same.
    unsafe { record_body(def, binding, context, sink, &mut body) }
}

/// # Safety
/// As for [`record_kernel`].
unsafe fn record_body(
    def: &KernelDef,
    binding: *const Binding,
    context: *mut c_void,
    sink: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    body: &mut dyn FnMut(),
) {
    let is_wanted = recording::is_wanted();
    // SAFETY: by the contract above.
    let symbols = unsafe { Symbols::read(def, &*binding) };
    let mut builder = Builder::new(header(def, &symbols));
    let mut elements = Vec::new();
    if def.kind == KernelKind::Elementwise {
        for i in 0..def.operands.as_slice().len() {
            let operand = &builder.kernel().operands[i];
            let ty = Type::Scalar(compute_dtype(operand.dtype));
            let element = (operand.access != Access::Out).then(|| builder.value(ty, Loc::default()));
            builder.kernel_mut().elements.extend(element);
            elements.push(element);
        }
    }
    let Some(recorder) =
        recorded(Recorder { builder, elements, yields: Vec::new(), tile_bytes: 0 }, || symbols.scope(body))
    else {
        return;
    };
    let kernel = recorder.builder.finish(recorder.yields);
    let tile_bytes = if recorder.tile_bytes > stack_tiles(def) { recorder.tile_bytes } else { 0 };
    if is_wanted {
        return recording::hand_over(kernel, tile_bytes);
    }
    let text = recording::text(&kernel, tile_bytes);
    // SAFETY: the text is valid during the call.
    unsafe { sink(context, text.as_ptr(), text.len()) };
}
