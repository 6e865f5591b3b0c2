//! The tile IR: what a kernel becomes when it is recorded, and what PTX is written from.
//!
//! A [`Kernel`] is a typed SSA program with structured control flow. Values live in one arena ([`Kernel::values`]),
//! instructions in nested [`Block`]s. There are three kinds of code, one inside the other:
//!
//! * **Program code**, the kernel's body: run once by each program instance; its values are uniform over the instance.
//! * **Lane code**, the bodies of [`Op::Lanes`], [`Op::Fold`], [`Op::Scan`] and [`Op::TileMap`]: run once for each
//!   index, in any order, in parallel. Lane code holds no lane or tile operation itself.
//! * The body of an **elementwise** kernel ([`KernelKind::Elementwise`]) is lane code: its operands' elements are the
//!   values [`Kernel::elements`], its results the values that the body yields.
//!
//! Scopes: a value is visible after its instruction in the same block and in blocks nested there. Variables
//! ([`Op::Var`]) are the one mutable thing: assigned in program code or, if declared in lane code, in that lane code.
//!
//! Scalar types are the *compute* dtypes: `bool`, the integers, `f32` and `f64`. Half and 8-bit floats live in
//! memory only: [`Op::Load`] widens them to `f32`, [`Op::Store`] rounds to nearest even, and [`Op::Round`] rounds a
//! value to such a dtype and back.
//!
//! Bounds are part of the meaning: a load outside the operand gives its pad value, a store or atomic outside does
//! nothing. An index is the full list of coordinates, one `i64` a dimension.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod builder;
mod coverage;
mod def_use;
mod inline;
pub mod ops;
pub mod parse;
pub mod text;
pub mod verify;
mod visit;

pub use builder::Builder;
pub(crate) use coverage::covers_if_one;
pub(crate) use def_use::{DefUse, assigned_in};
pub(crate) use inline::{Chain, Place, Side, fuse};
pub use ops::{AtomicOp, BinaryOp, CmpOp, ReduceOp, UnaryOp};
pub use parse::{ParseError, parse, parse_file};
pub use verify::{VerifyError, VerifyErrors, compute_dtype, verify};

use std::fmt;

use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, GridTerm, KernelKind, ParamKind};

/// A value of a kernel; prints as `%7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One number of a compute dtype; prints as `f32`.
    Scalar(DType),
    /// A variable that holds a `Scalar`; prints as `var<f32>`.
    Var(DType),
    /// A tile of compute dtype and static shape; prints as `tile<f32, 8x32>`.
    Tile(DType, u32, u32),
    /// A variable that holds a `Tile`; prints as `var<f32, 8x32>`.
    TileVar(DType, u32, u32),
}

/// Where in the kernel's source an instruction comes from: line and column, 1-based; 0 where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loc {
    /// Index into [`Kernel::files`].
    pub file: u32,
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueDef {
    /// Its type.
    pub ty: Type,
    /// Where it was made.
    pub loc: Loc,
}

/// A tensor operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its name in the signature.
    pub name: String,
    /// Read, written, or both.
    pub access: Access,
    /// Its dtype in memory.
    pub dtype: DType,
    /// Its rank; 0 for an elementwise operand, which has any.
    pub rank: u32,
}

/// A parameter that is not bound to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the signature.
    pub name: String,
    /// What it is.
    pub ty: ParamType,
}

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamType {
    /// One of the kernel's signature; a string is its 64-bit hash, as `u64`.
    Of(ParamKind),
    /// A scalar of a compute dtype, but `bool`, which is a kind.
    Scalar(DType),
}

impl ParamType {
    /// The dtype of its value.
    pub fn dtype(self) -> DType {
        match self {
            ParamType::Of(ParamKind::Int) => DType::I64,
            ParamType::Of(ParamKind::Bool) => DType::Bool,
            ParamType::Of(ParamKind::String) => DType::U64,
            ParamType::Of(ParamKind::Float) => DType::F64,
            ParamType::Scalar(dtype) => dtype,
        }
    }
}

/// A recorded kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The op's name.
    pub name: String,
    /// Elementwise or program.
    pub kind: KernelKind,
    /// Source files that [`Loc`]s name.
    pub files: Vec<String>,
    /// The tensor operands.
    pub operands: Vec<Operand>,
    /// The parameters; those that were bound when recording appear as constants in the body and are unused here.
    pub params: Vec<Param>,
    /// Extents of the grid, for a program kernel.
    pub grid: Vec<GridAxis>,
    /// The terms of extents that are expressions.
    pub grid_terms: Vec<GridTerm>,
    /// Of an elementwise kernel: the element of each `In` and `InOut` operand, in operand order.
    pub elements: Vec<Value>,
    /// All values.
    pub values: Vec<ValueDef>,
    /// The code; of an elementwise kernel it yields the element of each `Out` and `InOut` operand, in operand order.
    pub body: Block,
}

impl Kernel {
    /// A kernel without operands, parameters or code: a header to fill in.
    pub fn new(name: impl Into<String>, kind: KernelKind) -> Self {
        Kernel {
            name: name.into(),
            kind,
            files: Vec::new(),
            operands: Vec::new(),
            params: Vec::new(),
            grid: Vec::new(),
            grid_terms: Vec::new(),
            elements: Vec::new(),
            values: Vec::new(),
            body: Block::default(),
        }
    }

    /// The type of one of the kernel's values.
    ///
    /// # Panics
    /// If the value is not the kernel's own.
    pub fn ty(&self, value: Value) -> Type {
        self.values[value.0 as usize].ty
    }
}

/// A sequence of instructions, and the values it hands to the instruction that holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The instructions, in order.
    pub insts: Vec<Inst>,
    /// What it yields.
    pub yields: Vec<Value>,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// The values it defines.
    pub results: Vec<Value>,
    /// Where it comes from.
    pub loc: Loc,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A constant of the result's dtype, as the bits of that dtype zero-extended to 64 (`f32`: `to_bits`).
    Const(u64),
    /// The parameter of that index, of its dtype ([`ParamType::dtype`]); its bits are those of the value, zero-extended
    /// to 64.
    Param(u32),
    /// Index of this program instance along a grid axis; `i64`.
    ProgramId(u32),
    /// Number of program instances along a grid axis; `i64`.
    NumPrograms(u32),
    /// Extent of a dimension of an operand; `i64`.
    Dim {
        /// Index of the operand.
        operand: u32,
        /// The dimension.
        axis: u32,
    },
    /// One operand, same type.
    Unary(UnaryOp, Value),
    /// Two operands of one type, same type (the shift count has the shifted type).
    Binary(BinaryOp, Value, Value),
    /// Two operands of one type; `bool`.
    Cmp(CmpOp, Value, Value),
    /// `condition ? a : b`; both are evaluated.
    Select(Value, Value, Value),
    /// `a * b + c` with one rounding (floats).
    Fma(Value, Value, Value),
    /// Converts to the result's dtype as Rust's `as` does: to an integer by truncation, saturating, NaN to 0;
    /// integers wrap; to `bool`: `x != 0`.
    Cast(Value),
    /// Reinterprets the bits; both dtypes have one size.
    Bitcast(Value),
    /// Rounds an `f32` to a 16- or 8-bit float dtype and back.
    Round(DType, Value),
    /// The `f32` of a 16- or 8-bit float dtype whose bits an integer of that size has.
    FromBits(DType, Value),
    /// The bits of an `f32` rounded to a 16- or 8-bit float dtype, as an integer of that size.
    ToBits(DType, Value),
    /// Reads one element, widened to its compute dtype; outside the bounds: `pad`, or 0.
    Load {
        /// Index of the operand (`In` or `InOut`).
        operand: u32,
        /// One `i64` a dimension.
        index: Vec<Value>,
        /// The value outside the bounds.
        pad: Option<Value>,
    },
    /// Writes one element, rounded to the operand's dtype; outside the bounds: nothing.
    Store {
        /// Index of the operand (`Out` or `InOut`).
        operand: u32,
        /// One `i64` a dimension.
        index: Vec<Value>,
        /// A scalar of the operand's compute dtype.
        value: Value,
        /// Whether other instances may write the same element (a scatter): a relaxed atomic store.
        scatter: bool,
    },
    /// Read-modify-write of one element; outside the bounds: nothing. No result.
    Atomic {
        /// What it does.
        op: AtomicOp,
        /// Index of the operand (`Out` or `InOut`).
        operand: u32,
        /// One `i64` a dimension.
        index: Vec<Value>,
        /// The right operand.
        value: Value,
    },
    /// Prints a line for a person: the place in the source, the program's ids, the label, the values. Program code
    /// prints it once, lane code once for each index. No result.
    Print {
        /// What stands before the values.
        label: String,
        /// Scalars.
        values: Vec<Value>,
    },
    /// A variable with its first value.
    Var(Value),
    /// A variable's present value.
    Get(Value),
    /// Assigns a variable: `(variable, value)`.
    Set(Value, Value),
    /// Runs one of two blocks; its results are what that block yields.
    If {
        /// A `bool`.
        condition: Value,
        /// Run if true.
        then: Block,
        /// Run if false.
        otherwise: Block,
    },
    /// Runs `body` as long as `condition` yields true (one `bool`).
    While {
        /// Yields the condition.
        condition: Block,
        /// The body; yields nothing.
        body: Block,
    },
    /// Runs `body` for `index` = `lo`, `lo + step`, … below `hi`; a step below 1 counts as 1, and an index that would
    /// wrap ends the loop.
    For {
        /// First index, `i64`.
        lo: Value,
        /// End, `i64`.
        hi: Value,
        /// Step, `i64`.
        step: Value,
        /// The index in `body`.
        index: Value,
        /// The body; yields nothing.
        body: Block,
    },
    /// Runs lane code for each `index` in `0..len`, in parallel.
    Lanes {
        /// Number of lanes, `i64`.
        len: Value,
        /// The lane's index, `i64`.
        index: Value,
        /// Lane code; yields nothing.
        body: Block,
    },
    /// Reduces over `0..len`: each of an unspecified number of partial accumulators starts at `init` and is replaced
    /// by what `body` yields for each index it sees; partial accumulators are then combined in a fixed tree.
    Fold {
        /// Number of lanes, `i64`.
        len: Value,
        /// The lane's index, `i64`.
        index: Value,
        /// Identity of the combination, program code values.
        init: Vec<Value>,
        /// The accumulators in `body`.
        acc: Vec<Value>,
        /// Lane code; yields the new accumulators.
        body: Block,
        /// The two sides in `combine`.
        lhs: Vec<Value>,
        /// The right side.
        rhs: Vec<Value>,
        /// Lane code; yields the combination.
        combine: Block,
    },
    /// Inclusive prefix scan over `0..len` by an associative combination.
    Scan {
        /// Number of lanes, `i64`.
        len: Value,
        /// The lane's index, `i64`, in `item` and `emit`.
        index: Value,
        /// Identity of the combination.
        init: Vec<Value>,
        /// Lane code; yields the item at `index`.
        item: Block,
        /// The left (earlier) side in `combine`.
        lhs: Vec<Value>,
        /// The right (later) side.
        rhs: Vec<Value>,
        /// Lane code; yields the combination.
        combine: Block,
        /// The prefix up to and including `index`, in `emit`.
        prefix: Vec<Value>,
        /// Lane code that stores the prefix; yields nothing.
        emit: Block,
    },
    /// Every element the given scalar (program code).
    TileFull(Value),
    /// Reads a tile of an operand's last two dimensions; outside the bounds: 0.
    TileLoad {
        /// Index of the operand.
        operand: u32,
        /// Coordinates of the leading dimensions.
        batch: Vec<Value>,
        /// First row and column, `i64`.
        origin: [Value; 2],
        /// Whether the result is the transpose of what is read there.
        transpose: bool,
    },
    /// Writes a tile, rounded to the operand's dtype; outside the bounds: nothing.
    TileStore {
        /// Index of the operand.
        operand: u32,
        /// Coordinates of the leading dimensions.
        batch: Vec<Value>,
        /// First row and column, `i64`.
        origin: [Value; 2],
        /// The tile.
        value: Value,
    },
    /// Applies lane code to each position of tiles. An input of shape `Rx1`, `1xC` or `1x1` is broadcast.
    TileMap {
        /// The tiles.
        inputs: Vec<Value>,
        /// Row and column of the position, `i64`, in `body`.
        position: [Value; 2],
        /// The element of each input in `body`.
        elements: Vec<Value>,
        /// Lane code; yields one scalar.
        body: Block,
    },
    /// Reduces each row of a tile; the result has one column.
    TileReduce(ReduceOp, Value),
    /// One element of a tile, by its row and column (`i64`): a scalar of program code; 0 outside of the tile.
    TileElement(Value, [Value; 2]),
    /// `a · b + acc` of tiles: `RxK`, `KxC` and `RxC`; it accumulates in `f32`, `f64` or `i32`, the dtype of `acc`.
    Dot(Value, Value, Value),
    /// Converts a tile's dtype as [`Op::Cast`] does.
    TileCast(Value),
    /// Rounds each element of an `f32` tile as [`Op::Round`] does.
    TileRound(DType, Value),
}
