//! The extents of a kernel's grid: constants, dimensions of operands, and expressions of these, of parameters and of tile constants.

use super::ParamBits;

/// The extent of one grid axis: a constant, a dimension of an operand divided by a tile size and rounded up, or an expression.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridAxis {
    /// Index of the operand; [`CONSTANT`](Self::CONSTANT) for the extent `size`, [`EXPRESSION`](Self::EXPRESSION) for `size` terms.
    pub operand: i32,
    /// The dimension of that operand; of an expression, its first term.
    pub dim: u32,
    /// The tile constant (an index into [`Instance::tile`](super::Instance::tile)) that divides it, or -1 for `size` itself.
    pub tile: i32,
    /// The divisor, the extent of a constant, or how many terms an expression has.
    pub size: u64,
}

/// A step of an expression in postfix order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridTerm {
    /// What it does.
    pub op: GridOp,
    /// The operand, the parameter or the tile constant.
    pub index: u32,
    /// The number, or the dimension of the operand.
    pub value: i64,
}

/// What a term of a grid's expression does.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridOp {
    /// A number.
    Number = 0,
    /// A dimension of an operand.
    Dim = 1,
    /// A parameter, an integer.
    Param = 2,
    /// A tile constant.
    Tile = 3,
    /// The sum of the two values before.
    Add = 4,
    /// Their difference.
    Sub = 5,
    /// Their product.
    Mul = 6,
    /// Their quotient, rounded up; 0 where the divisor is 0.
    Div = 7,
    /// The smaller one.
    Min = 8,
    /// The larger one.
    Max = 9,
}

impl GridOp {
    /// All of them.
    pub const ALL: [GridOp; 10] = [
        GridOp::Number,
        GridOp::Dim,
        GridOp::Param,
        GridOp::Tile,
        GridOp::Add,
        GridOp::Sub,
        GridOp::Mul,
        GridOp::Div,
        GridOp::Min,
        GridOp::Max,
    ];

    /// How many values before it it takes.
    pub const fn takes(self) -> usize {
        if (self as u32) < GridOp::Add as u32 { 0 } else { 2 }
    }

    /// Its name in the text form of IR.
    pub const fn name(self) -> &'static str {
        match self {
            GridOp::Number => "number",
            GridOp::Dim => "dim",
            GridOp::Param => "param",
            GridOp::Tile => "tile",
            GridOp::Add => "add",
            GridOp::Sub => "sub",
            GridOp::Mul => "mul",
            GridOp::Div => "ceildiv",
            GridOp::Min => "min",
            GridOp::Max => "max",
        }
    }
}

/// The most values that an expression holds at a time.
pub const MAX_DEPTH: usize = 16;

/// The most programs along an axis whose extent is an expression.
pub const MAX_EXTENT: i64 = i32::MAX as i64;

/// What extents are computed from.
pub(crate) struct GridValues<'a, D> {
    /// The terms of expressions.
    pub terms: &'a [GridTerm],
    /// The tile constants.
    pub tile: &'a [u64],
    /// The parameters.
    pub params: &'a [ParamBits],
    /// The dimension of an operand.
    pub dim: D,
}

impl GridAxis {
    /// [`operand`](Self::operand) of a constant.
    pub const CONSTANT: i32 = -1;
    /// [`operand`](Self::operand) of an expression.
    pub const EXPRESSION: i32 = -2;

    /// A constant extent.
    pub const fn constant(size: u64) -> GridAxis {
        GridAxis { operand: Self::CONSTANT, dim: 0, tile: -1, size }
    }

    /// How much of the dimension a program takes where the tile constants are these; `None` where the extent is no dimension.
    pub(crate) fn block(&self, tile: &[u64]) -> Option<u64> {
        let constant = usize::try_from(self.tile).ok().and_then(|i| tile.get(i).copied());
        (self.operand >= 0).then(|| constant.unwrap_or(self.size).max(1))
    }

    /// The extent, if it is a constant.
    pub(crate) fn as_constant(&self) -> Option<u64> {
        (self.operand == Self::CONSTANT).then_some(self.size)
    }

    /// The terms of an expression; `None` of other axes.
    pub fn terms<'a>(&self, all: &'a [GridTerm]) -> Option<&'a [GridTerm]> {
        let first = self.dim as usize;
        let of = || all.get(first..first.checked_add(usize::try_from(self.size).ok()?)?);
        if self.operand == Self::EXPRESSION { of() } else { None }
    }

    /// How many programs there are along the axis.
    ///
    /// # Errors
    /// The value of an expression that is more than [`MAX_EXTENT`], which is [`i64::MAX`] where it is beyond all integers.
    pub(crate) fn extent(&self, of: &GridValues<'_, impl Fn(usize, usize) -> Option<i64>>) -> Result<i64, i64> {
        if let Some(terms) = self.terms(of.terms) {
            let value = evaluate(terms, of).unwrap_or(i64::MAX);
            return if value > MAX_EXTENT { Err(value) } else { Ok(value.max(0)) };
        }
        let Some(block) = self.block(of.tile) else { return Ok(self.size as i64) };
        let dim = usize::try_from(self.operand).ok().and_then(|operand| (of.dim)(operand, self.dim as usize));
        Ok((dim.unwrap_or(1).max(0) as u64).div_ceil(block) as i64)
    }
}

/// How many programs there are along each axis of a grid, whose tile constants are numbers.
///
/// # Errors
/// The axis whose expression comes to more than [`MAX_EXTENT`], and its value, which is [`i64::MAX`] where it is beyond all integers.
pub fn extents(
    grid: &[GridAxis],
    terms: &[GridTerm],
    params: &[ParamBits],
    dim: impl Fn(usize, usize) -> Option<i64>,
) -> Result<[i64; 3], (usize, i64)> {
    GridValues { terms, tile: &[], params, dim }.extents(grid)
}

impl<D: Fn(usize, usize) -> Option<i64>> GridValues<'_, D> {
    /// As [`extents`].
    pub(crate) fn extents(&self, grid: &[GridAxis]) -> Result<[i64; 3], (usize, i64)> {
        let mut extents = [1; 3];
        for (i, (extent, axis)) in extents.iter_mut().zip(grid).enumerate() {
            *extent = axis.extent(self).map_err(|extent| (i, extent))?;
        }
        Ok(extents)
    }
}

/// The value of an expression; `None` if it is beyond all integers.
fn evaluate(terms: &[GridTerm], of: &GridValues<'_, impl Fn(usize, usize) -> Option<i64>>) -> Option<i64> {
    let (mut values, mut count) = ([0i64; MAX_DEPTH], 0_usize);
    for term in terms {
        let index = term.index as usize;
        let value = if term.op.takes() == 2 {
            count = count.checked_sub(2)?;
            let (a, b) = (*values.get(count)?, *values.get(count + 1)?);
            match term.op {
                GridOp::Add => a.checked_add(b)?,
                GridOp::Sub => a.checked_sub(b)?,
                GridOp::Mul => a.checked_mul(b)?,
                GridOp::Min => a.min(b),
                GridOp::Max => a.max(b),
                // Rounded up where both are positive, as of dims.
                _ if b == 0 => 0,
                _ => a.checked_div(b)?.checked_add(i64::from(a % b != 0 && (a < 0) == (b < 0)))?,
            }
        } else {
            match term.op {
                GridOp::Dim => (of.dim)(index, usize::try_from(term.value).ok()?)?,
                GridOp::Param => *of.params.get(index)? as i64,
                GridOp::Tile => i64::try_from(*of.tile.get(index)?).ok()?,
                _ => term.value,
            }
        };
        *values.get_mut(count)? = value;
        count += 1;
    }
    (count == 1).then_some(values[0])
}

/// Why the terms are no expression; `None` if they are one.
pub fn misshapen(terms: &[GridTerm]) -> Option<&'static str> {
    let mut depth = 0_usize;
    for term in terms {
        match depth.checked_sub(term.op.takes()) {
            None => return Some("an operation has too few values"),
            Some(rest) => depth = rest + 1,
        }
        if depth > MAX_DEPTH {
            return Some("it holds too many values");
        }
    }
    (depth != 1).then_some("it is not one value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(op: GridOp, index: u32, value: i64) -> GridTerm {
        GridTerm { op, index, value }
    }

    fn extent(terms: &[GridTerm], dim: i64, param: i64) -> Result<i64, i64> {
        assert_eq!(misshapen(terms), None);
        let axis = GridAxis { operand: GridAxis::EXPRESSION, dim: 0, tile: -1, size: terms.len() as u64 };
        axis.extent(&GridValues { terms, tile: &[16], params: &[param as u64], dim: |_, _| Some(dim) })
    }

    #[test]
    fn expressions_are_computed() {
        let (dim, param, tile) = (term(GridOp::Dim, 0, 1), term(GridOp::Param, 0, 0), term(GridOp::Tile, 0, 0));
        let op = |op| term(op, 0, 0);
        let blocks = [dim, param, op(GridOp::Add), tile, op(GridOp::Div)];
        assert_eq!(extent(&blocks, 30, 2), Ok(2));
        assert_eq!(extent(&blocks, 30, 3), Ok(3));
        assert_eq!(extent(&blocks, 30, -40), Ok(0));
        assert_eq!(extent(&[dim, param, op(GridOp::Div)], 30, 0), Ok(0));
        assert_eq!(extent(&[dim, param, op(GridOp::Div)], -30, -4), Ok(8));
        assert_eq!(extent(&[dim, param, op(GridOp::Min)], 30, 4), Ok(4));
        assert_eq!(extent(&[dim, param, op(GridOp::Max), term(GridOp::Number, 0, 5), op(GridOp::Sub)], 30, 4), Ok(25));
    }

    #[test]
    fn enormous_extents_are_said() {
        let product = [term(GridOp::Dim, 0, 0), term(GridOp::Param, 0, 0), term(GridOp::Mul, 0, 0)];
        assert_eq!(extent(&product, 1 << 20, 1 << 20), Err(1 << 40));
        assert_eq!(extent(&product, i64::MAX, 2), Err(i64::MAX));
        let quotient = [term(GridOp::Param, 0, 0), term(GridOp::Number, 0, -1), term(GridOp::Div, 0, 0)];
        assert_eq!(extent(&quotient, 0, i64::MIN), Err(i64::MAX));
    }

    #[test]
    fn expressions_that_are_none_are_told() {
        let number = term(GridOp::Number, 0, 1);
        assert!(misshapen(&[]).is_some() && misshapen(&[number, number]).is_some());
        assert!(misshapen(&[number, term(GridOp::Add, 0, 0)]).is_some());
        assert!(misshapen(&[number; MAX_DEPTH + 1]).is_some());
    }
}
