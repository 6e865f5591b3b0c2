//! What products of blocks multiply, and how many bytes it takes up packed.

use crate::dtype::DType;
use crate::kernel::machine::{self, Unit};

/// Bytes of a line of the depth: of a row of a tile register.
pub(crate) const LINE: usize = 64;
/// The values of `bf16` that a `f32` is taken as the sum of.
pub(super) const PARTS: usize = 3;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factors {
    /// `bf16` by `bf16`, added in `f32`. 8-bit floats are packed as `bf16`, which has all their values.
    Halves,
    /// `f32` by `f32`, each as parts of `bf16`.
    Floats,
    /// Integers of 8 bits, added in `i32`: whether the left and the right ones are signed.
    Bytes(bool, bool),
}

impl Factors {
    /// Of operands of these dtypes, whose products are added in `sum`.
    #[inline(always)]
    pub(super) const fn of(left: DType, right: DType, sum: DType) -> Option<Factors> {
        match (left, right, sum) {
            (left, right, DType::F32) if is_packed_as_bf16(left) && is_packed_as_bf16(right) => Some(Factors::Halves),
            (DType::F32, DType::F32, DType::F32) => Some(Factors::Floats),
            (DType::I8 | DType::U8, DType::I8 | DType::U8, DType::I32) => {
                Some(Factors::Bytes(matches!(left, DType::I8), matches!(right, DType::I8)))
            }
            _ => None,
        }
    }

    /// Those of which an operand of that dtype is one.
    #[inline(always)]
    pub(super) const fn of_operand(dtype: DType) -> Factors {
        match dtype {
            DType::F32 => Factors::Floats,
            dtype if is_packed_as_bf16(dtype) => Factors::Halves,
            dtype => Factors::Bytes(matches!(dtype, DType::I8), matches!(dtype, DType::I8)),
        }
    }

    /// The elements in a line.
    #[inline(always)]
    pub(super) const fn per_line(self) -> usize {
        match self {
            Factors::Halves | Factors::Floats => LINE / 2,
            Factors::Bytes(..) => LINE,
        }
    }

    /// The blocks of 16 rows or columns and a line of the depth: of the parts of its elements.
    #[inline(always)]
    const fn parts(self) -> usize {
        match self {
            Factors::Floats => PARTS,
            Factors::Halves | Factors::Bytes(..) => 1,
        }
    }

    /// The bytes of a packed tile.
    #[inline(always)]
    pub(super) const fn tile_bytes(self, across: usize, depth: usize) -> usize {
        across.div_ceil(16) * self.group_bytes(depth)
    }

    /// The bytes of 16 rows or columns of a packed tile.
    #[inline(always)]
    pub(super) const fn group_bytes(self, depth: usize) -> usize {
        depth.div_ceil(self.per_line()) * self.line_bytes()
    }

    /// The bytes of a line of the depth of these.
    #[inline(always)]
    pub(super) const fn line_bytes(self) -> usize {
        self.parts() * 16 * LINE
    }

    /// What multiplies them on this machine.
    #[inline(always)]
    pub(super) fn unit(self) -> Option<Unit> {
        match self {
            Factors::Halves => machine::units().halves,
            Factors::Floats => machine::units().halves.filter(|unit| *unit == Unit::Amx),
            Factors::Bytes(..) => machine::units().bytes,
        }
    }
}

/// Whether this machine has what multiplies operands of that dtype in blocks.
pub(crate) fn has_unit(dtype: DType) -> bool {
    Factors::of_operand(dtype).unit().is_some()
}

/// Whether products of that dtype are those of `bf16`.
#[inline(always)]
pub(crate) const fn is_packed_as_bf16(dtype: DType) -> bool {
    matches!(dtype, DType::BF16) || dtype.is_float8()
}
