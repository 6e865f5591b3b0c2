//! [`Recorder`]: the IR that kernel code on this thread appends to. Nothing here is generic over kernels, so that it is compiled once.

use std::cell::RefCell;
use std::panic::Location;

use crate::dtype::DType;
use crate::kernel::ir::{self, Builder, Loc, Op, Type, Value};
use crate::kernel::lang::compute_dtype;

/// What is recorded on this thread.
pub(super) struct Recorder {
    pub(super) builder: Builder,
    /// Of an elementwise kernel: the element of each operand that is read.
    pub(super) elements: Vec<Option<Value>>,
    pub(super) yields: Vec<Value>,
    /// Bytes of the tiles that a CPU holds: not of those that are read from memory while they are multiplied, and of a variable
    /// that is changed in place only once.
    pub(super) tile_bytes: u64,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Calls `f` with the recorder of this thread.
///
/// # Panics
/// Outside a recording, where no kernel code runs on this target.
fn with<R>(f: impl FnOnce(&mut Recorder) -> R) -> R {
    RECORDER.with_borrow_mut(|recorder| match recorder {
        Some(recorder) => f(recorder),
        None => unreachable!("kernel code is recorded by `record_kernel` alone"),
    })
}

/// The element of an operand of an elementwise kernel.
pub(super) fn element(operand: u32) -> Option<Value> {
    with(|r| r.elements.get(operand as usize).copied().flatten())
}

/// What `f` records.
pub(super) fn recorded(recorder: Recorder, f: impl FnOnce()) -> Option<Recorder> {
    RECORDER.set(Some(recorder));
    f();
    RECORDER.take()
}

#[track_caller]
fn here() -> Loc {
    at(Location::caller())
}

pub(super) fn at(at: &Location<'_>) -> Loc {
    with(|r| {
        let files = &mut r.builder.kernel_mut().files;
        let file = files.iter().position(|f| f == at.file()).unwrap_or_else(|| {
            files.push(at.file().to_string());
            files.len() - 1
        });
        Loc { file: file as u32, line: at.line(), column: at.column() }
    })
}

/// Appends an instruction with one result.
#[track_caller]
pub(super) fn push(op: Op, ty: Type) -> Value {
    let loc = here();
    with(|r| r.builder.push(op, &[ty], loc)[0])
}

/// Appends an instruction without a result.
#[track_caller]
pub(super) fn effect(op: Op) {
    give(op, Vec::new());
}

/// Appends an instruction that gives values.
#[track_caller]
pub(super) fn give(op: Op, results: Vec<Value>) {
    give_at(op, results, here());
}

/// The same at another line.
pub(super) fn give_at(op: Op, results: Vec<Value>, loc: Loc) {
    with(|r| r.builder.push_into(op, results, loc));
}

/// Which way a condition that does not depend on data goes.
pub(super) fn decided(condition: Value) -> Option<bool> {
    with(|r| r.builder.decided(condition))
}

/// Sets the bytes of tiles.
pub(super) fn set_bytes(bytes: u64) {
    with(|r| r.tile_bytes = bytes);
}

pub(super) fn set_yields(yields: Vec<Value>) {
    with(|r| r.yields = yields);
}

#[track_caller]
pub(super) fn scalar(op: Op, dtype: DType) -> Value {
    push(op, Type::Scalar(compute_dtype(dtype)))
}

#[track_caller]
pub(super) fn fresh(ty: Type) -> Value {
    let loc = here();
    with(|r| r.builder.value(ty, loc))
}

#[track_caller]
pub(super) fn const_i64(v: i64) -> Value {
    scalar(Op::Const(v as u64), DType::I64)
}

pub(super) fn open() {
    with(|r| r.builder.open_block());
}

pub(super) fn close(yields: Vec<Value>) -> ir::Block {
    with(|r| r.builder.close_block(yields))
}

/// Appends an instruction whose result is a tile that a CPU holds.
#[track_caller]
pub(super) fn push_tile(op: Op, ty: Type) -> Value {
    if let Type::Tile(dtype, rows, columns) | Type::TileVar(dtype, rows, columns) = ty {
        let bytes = u64::from(rows).saturating_mul(columns.into()).saturating_mul(dtype.size_in_bytes() as u64);
        with(|r| r.tile_bytes = r.tile_bytes.saturating_add(bytes));
    }
    push(op, ty)
}

/// The bytes of such tiles so far.
pub(super) fn bytes_so_far() -> u64 {
    with(|r| r.tile_bytes)
}
