//! What the language's methods do with an operand, by its kind and by what is left of it.
//!
//! A name alone says nothing: a trait of the author's may have a method of the same name. These are the inherent methods of the
//! language's types, which rustc takes before those of any trait, so that what stands here is what is called.

use crate::signature::types::TensorKind;

/// What an operand, or a part of it, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A tensor of that rank.
    Tensor(u32),
    /// A row, a column or a block of a vector.
    Line,
    /// A tile.
    Tile,
    /// Neighbouring columns.
    Columns,
}

/// What a method does with the elements of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Tells a size.
    Size,
    /// Writes elements of the program's own.
    Store,
    /// Reads elements of the program's own.
    Load,
    /// Writes an element that any program may write, atomically.
    Shared,
}

/// What `method` leaves of an operand: `None` if it is no method that narrows one down.
pub(super) fn narrowed(kind: TensorKind, shape: Shape, method: &str) -> Option<Shape> {
    use TensorKind::{Buffer, In, Out};
    Some(match (method, shape, kind) {
        ("select", Shape::Tensor(rank @ 2..), _) => Shape::Tensor(rank - 1),
        ("row" | "column", Shape::Tensor(2), _) | ("block", Shape::Tensor(1), _) => Shape::Line,
        ("block" | "slice" | "shift" | "reverse", Shape::Line, In) => Shape::Line,
        ("slice" | "shift" | "reverse", Shape::Tensor(1), In) => Shape::Line,
        ("slice" | "reverse", Shape::Line, Out | Buffer) => Shape::Line,
        ("tile", Shape::Tensor(2), _) | ("rows", Shape::Tensor(2), Out | Buffer) => Shape::Tile,
        ("columns", Shape::Tensor(2), Out) | ("reverse", Shape::Columns, Out) => Shape::Columns,
        _ => return None,
    })
}

/// What `method` does with an output: `None` if outputs of this kind and shape have no such method.
pub(super) fn access(kind: TensorKind, shape: Shape, method: &str) -> Option<Access> {
    use TensorKind::Buffer;
    Some(match (method, shape) {
        ("dim", Shape::Tensor(_)) | ("len", Shape::Line) => Access::Size,
        ("set", Shape::Tensor(1) | Shape::Line) => Access::Store,
        ("write", Shape::Line | Shape::Tile | Shape::Columns)
        | ("write_scan" | "write_exclusive_scan" | "write_any_scan", Shape::Line | Shape::Columns) => Access::Store,
        ("at" | "read", Shape::Line) => Access::Load,
        ("at", Shape::Tensor(1)) if kind == Buffer => Access::Load,
        ("scatter" | "atomic_add" | "atomic_max" | "atomic_min" | "atomic_or", Shape::Tensor(_)) => Access::Shared,
        _ => return None,
    })
}

/// What an output is and the methods that it has, for a message.
pub(super) fn usage(kind: TensorKind, shape: Shape) -> (&'static str, &'static str) {
    let buffer = kind == TensorKind::Buffer;
    match shape {
        Shape::Tensor(1) if buffer => {
            ("a vector that is written", "`block`, `set`, `at`, `scatter`, the atomics and `dim`")
        }
        Shape::Tensor(1) => ("a vector that is written", "`block`, `set`, `scatter`, the atomics and `dim`"),
        Shape::Tensor(2) if buffer => {
            ("a matrix that is written", "`row`, `column`, `rows`, `tile`, `select`, `scatter`, the atomics and `dim`")
        }
        Shape::Tensor(2) => (
            "a matrix that is written",
            "`row`, `column`, `rows`, `columns`, `tile`, `select`, `scatter`, the atomics and `dim`",
        ),
        Shape::Tensor(_) => ("a tensor that is written", "`select`, `scatter`, the atomics and `dim`"),
        Shape::Line => (
            if buffer { "a part of a buffer" } else { "a part of an output" },
            "`write`, `write_scan`, `write_exclusive_scan`, `write_any_scan`, `set`, `at`, `read`, `slice`, `reverse` and `len`",
        ),
        Shape::Tile => ("a tile of an output", "`write`"),
        Shape::Columns => {
            ("columns of an output", "`write`, `write_scan`, `write_exclusive_scan`, `write_any_scan` and `reverse`")
        }
    }
}
