//! Operand types of blocked GEMM, and the sizes of VNNI/AMX packed blocks of each.
//!
//! Packing, launching and multiplying share these, so that they agree on the layout.

use crate::dtype::DType;
use crate::kernel::cpu_features;
use crate::kernel::cpu_features::MatrixUnit;

/// Bytes of a line of K: of a row of a tile register.
pub(crate) const LINE: usize = 64;
/// The `bf16` splits of an `f32` (bf16x3).
pub(in crate::kernel::cpu) const SPLITS: usize = 3;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::cpu) enum OperandTypes {
    /// `bf16` by `bf16`, added in `f32`. 8-bit floats are packed as `bf16`, which has all their values.
    Bf16,
    /// `f32` by `f32`, as split-bf16.
    SplitF32,
    /// Integers of 8 bits, added in `i32`: whether the left and the right ones are signed.
    Int8(bool, bool),
}

impl OperandTypes {
    /// Of operands of these dtypes, accumulated in `sum`.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn of(lhs: DType, rhs: DType, sum: DType) -> Option<OperandTypes> {
        match (lhs, rhs, sum) {
            (lhs, rhs, DType::F32) if is_packed_as_bf16(lhs) && is_packed_as_bf16(rhs) => Some(OperandTypes::Bf16),
            (DType::F32, DType::F32, DType::F32) => Some(OperandTypes::SplitF32),
            (DType::I8 | DType::U8, DType::I8 | DType::U8, DType::I32) => {
                Some(OperandTypes::Int8(matches!(lhs, DType::I8), matches!(rhs, DType::I8)))
            }
            _ => None,
        }
    }

    /// Those of which an operand of that dtype is one.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn of_operand(dtype: DType) -> OperandTypes {
        match dtype {
            DType::F32 => OperandTypes::SplitF32,
            dtype if is_packed_as_bf16(dtype) => OperandTypes::Bf16,
            dtype => OperandTypes::Int8(matches!(dtype, DType::I8), matches!(dtype, DType::I8)),
        }
    }

    /// The elements in a line.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn per_line(self) -> usize {
        match self {
            OperandTypes::Bf16 | OperandTypes::SplitF32 => LINE / 2,
            OperandTypes::Int8(..) => LINE,
        }
    }

    /// The words of so many steps of K, of which a line has 16.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn words(self, depth: usize) -> usize {
        depth.div_ceil(self.per_line() / 16)
    }

    /// The blocks of 16 rows or columns and a line of K: one for each split.
    #[inline(always)]
    const fn splits(self) -> usize {
        match self {
            OperandTypes::SplitF32 => SPLITS,
            OperandTypes::Bf16 | OperandTypes::Int8(..) => 1,
        }
    }

    /// The bytes of a packed tile.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn tile_bytes(self, across: usize, depth: usize) -> usize {
        across.div_ceil(16) * self.group_bytes(depth)
    }

    /// The bytes of 16 rows or columns of a packed tile.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn group_bytes(self, depth: usize) -> usize {
        depth.div_ceil(self.per_line()) * self.line_bytes()
    }

    /// The bytes of a line of K of these.
    #[inline(always)]
    pub(in crate::kernel::cpu) const fn line_bytes(self) -> usize {
        self.splits() * 16 * LINE
    }

    /// The matrix unit for them on this machine.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn unit(self) -> Option<MatrixUnit> {
        match self {
            OperandTypes::Bf16 => cpu_features::matrix_units().bf16,
            OperandTypes::SplitF32 => cpu_features::matrix_units().bf16.filter(|unit| *unit == MatrixUnit::Amx),
            OperandTypes::Int8(..) => cpu_features::matrix_units().int8,
        }
    }
}

/// Whether this machine has a matrix unit for operands of that dtype.
pub(crate) fn has_matrix_unit(dtype: DType) -> bool {
    OperandTypes::of_operand(dtype).unit().is_some()
}

/// Whether operands of that dtype are packed as `bf16`.
#[inline(always)]
pub(in crate::kernel::cpu) const fn is_packed_as_bf16(dtype: DType) -> bool {
    matches!(dtype, DType::BF16) || dtype.is_float8()
}
