//! The types that each operation demands of its values.

use super::{Fault, Verifier, compute_dtype};
use crate::dtype::DType;
use crate::kernel::abi::Access;
use crate::kernel::ir::{AtomicOp, BinaryOp, Inst, Op, Operand, Type, UnaryOp, Value};

const BOOL: Type = Type::Scalar(DType::Bool);
const I64: Type = Type::Scalar(DType::I64);
const F32: Type = Type::Scalar(DType::F32);

fn is_number(d: DType) -> bool {
    d.is_integral() || d.is_float()
}

fn is_bits(d: DType) -> bool {
    d.is_integral() || d == DType::Bool
}

/// The dtypes that a unary operation is for, with their name in messages.
fn unary_domain(op: UnaryOp) -> (&'static str, fn(DType) -> bool) {
    match op {
        UnaryOp::Neg | UnaryOp::Abs => ("a number", is_number),
        UnaryOp::Not => ("an integer or bool", is_bits),
        UnaryOp::Sqrt | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::RoundEven => {
            ("a float", DType::is_float)
        }
        UnaryOp::Exp2Approx => ("float32", |dtype| dtype == DType::F32),
    }
}

/// The dtypes that a binary operation is for.
fn binary_domain(op: BinaryOp) -> (&'static str, fn(DType) -> bool) {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => ("a number", is_number),
        BinaryOp::Min | BinaryOp::Max => ("a number", is_number),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => ("an integer or bool", is_bits),
        BinaryOp::Shl | BinaryOp::Shr => ("an integer", DType::is_integral),
        BinaryOp::Dot4 => ("int32", |dtype| dtype == DType::I32),
    }
}

/// Whether memory of a dtype has an atomic operation.
fn has_atomic(op: AtomicOp, dtype: DType) -> bool {
    match op {
        AtomicOp::Add | AtomicOp::Min | AtomicOp::Max => is_number(dtype),
        AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => is_bits(dtype),
    }
}

impl<'a> Verifier<'a> {
    /// Demands that a value has a type. Values that are not the kernel's are reported elsewhere.
    fn expect(&mut self, value: Value, expected: Type) {
        if let Some(found) = self.ty(value)
            && found != expected
        {
            self.fault(Fault::WrongType { value, expected: expected.to_string(), found });
        }
    }

    pub(super) fn expect_all(&mut self, what: &'static str, values: &[Value], types: &[Type]) {
        if values.len() != types.len() {
            return self.fault(Fault::WrongCount { what, expected: types.len(), found: values.len() });
        }
        values.iter().zip(types).for_each(|(&v, &ty)| self.expect(v, ty));
    }

    fn wrong(&mut self, value: Value, expected: &str) {
        if let Some(found) = self.ty(value) {
            self.fault(Fault::WrongType { value, expected: expected.to_owned(), found });
        }
    }

    /// Demands a scalar and gives its dtype.
    fn scalar(&mut self, value: Value, expected: &str, holds: fn(DType) -> bool) -> Option<DType> {
        match self.ty(value)? {
            Type::Scalar(d) if holds(d) => Some(d),
            Type::Scalar(_) | Type::Var(_) | Type::Tile(..) | Type::TileVar(..) => {
                self.wrong(value, expected);
                None
            }
        }
    }

    /// Demands a tile and gives its dtype and shape.
    fn tile(&mut self, value: Value) -> Option<(DType, u32, u32)> {
        match self.ty(value)? {
            Type::Tile(d, r, c) => Some((d, r, c)),
            Type::Scalar(_) | Type::Var(_) | Type::TileVar(..) => {
                self.wrong(value, "a tile");
                None
            }
        }
    }

    fn results(&mut self, inst: &Inst, types: &[Type]) {
        self.expect_all("results", &inst.results, types);
    }

    /// The one result of an instruction.
    fn result(&mut self, inst: &Inst) -> Option<Value> {
        if let [result] = inst.results[..] {
            return Some(result);
        }
        self.fault(Fault::WrongCount { what: "results", expected: 1, found: inst.results.len() });
        None
    }

    fn any_scalar(&mut self, value: Value) -> Option<DType> {
        self.scalar(value, "a scalar", |_| true)
    }

    fn all_i64(&mut self, values: &[Value]) {
        values.iter().for_each(|&v| self.expect(v, I64));
    }

    fn operand(&mut self, index: u32) -> Option<&'a Operand> {
        let kernel = self.kernel;
        let operand = kernel.operands.get(index as usize);
        if operand.is_none() {
            self.fault(Fault::NoSuch { what: "operand", index, count: kernel.operands.len() });
        }
        operand
    }

    /// Demands that an operand has a dimension.
    pub(super) fn axis(&mut self, operand: u32, axis: u32) {
        if let Some(o) = self.operand(operand)
            && axis >= o.rank
        {
            self.fault(Fault::NoSuch { what: "dim of that operand", index: axis, count: o.rank as usize });
        }
    }

    /// An operand that is read (or written) with one coordinate for each dimension.
    fn access(&mut self, operand: u32, coordinates: &[Value], write: bool) -> Option<&'a Operand> {
        self.all_i64(coordinates);
        let o = self.operand(operand)?;
        if write && o.access == Access::In {
            self.fault(Fault::WrongAccess { operand: o.name.clone(), access: o.access, verb: "written" });
        }
        if coordinates.len() != o.rank as usize {
            let (expected, found) = (o.rank as usize, coordinates.len());
            self.fault(Fault::WrongCount { what: "coordinates", expected, found });
        }
        Some(o)
    }

    /// An operand whose last two dims a tile is taken of.
    fn tile_access(&mut self, operand: u32, batch: &[Value], origin: [Value; 2], write: bool) -> Option<DType> {
        if let Some(o) = self.kernel.operands.get(operand as usize)
            && o.rank < 2
        {
            self.fault(Fault::TileRank { operand: o.name.clone(), rank: o.rank });
            return None;
        }
        let o = self.access(operand, &[batch, &origin].concat(), write)?;
        Some(compute_dtype(o.dtype))
    }

    fn round_dtype(&mut self, dtype: DType) {
        if compute_dtype(dtype) == dtype {
            self.fault(Fault::RoundDType { dtype });
        }
    }

    /// An integer that has the bits of a small float.
    fn bits_of(&mut self, dtype: DType, value: Value) {
        if let Some(integer) = self.scalar(value, "an integer", DType::is_integral)
            && integer.size_in_bytes() != dtype.size_in_bytes()
        {
            self.wrong(value, &format!("an integer of {} bytes", dtype.size_in_bytes()));
        }
    }

    fn grid_axis(&mut self, index: u32) {
        let count = self.kernel.grid.len();
        if index as usize >= count && count > 0 {
            self.fault(Fault::NoSuch { what: "grid axis", index, count });
        }
    }

    /// Checks an instruction's operands, block parameters and results; what its blocks yield is
    /// [`Verifier::block_yields`].
    pub(super) fn types(&mut self, inst: &Inst) {
        match &inst.op {
            Op::Const(bits) => {
                let Some(result) = self.result(inst) else {
                    return;
                };
                if let Some(dtype) = self.any_scalar(result) {
                    let width = if dtype == DType::Bool { 1 } else { 8 * dtype.size_in_bytes() as u32 };
                    if bits.checked_shr(width).unwrap_or(0) != 0 {
                        self.fault(Fault::ConstantTooWide { bits: *bits, dtype });
                    }
                }
            }
            Op::Param(index) => match self.kernel.params.get(*index as usize) {
                Some(param) => {
                    self.results(inst, &[Type::Scalar(param.ty.dtype())]);
                }
                None => {
                    let count = self.kernel.params.len();
                    self.fault(Fault::NoSuch { what: "parameter", index: *index, count });
                }
            },
            Op::ProgramId(axis) | Op::NumPrograms(axis) => {
                self.grid_axis(*axis);
                self.results(inst, &[I64]);
            }
            Op::Dim { operand, axis } => {
                self.axis(*operand, *axis);
                self.results(inst, &[I64]);
            }
            Op::Unary(op, a) => {
                let (expected, holds) = unary_domain(*op);
                if let Some(dtype) = self.scalar(*a, expected, holds) {
                    self.results(inst, &[Type::Scalar(dtype)]);
                }
            }
            Op::Binary(op, a, b) => {
                let (expected, holds) = binary_domain(*op);
                if let Some(dtype) = self.scalar(*a, expected, holds) {
                    self.expect(*b, Type::Scalar(dtype));
                    self.results(inst, &[Type::Scalar(dtype)]);
                }
            }
            Op::Cmp(_, a, b) => {
                if let Some(dtype) = self.any_scalar(*a) {
                    self.expect(*b, Type::Scalar(dtype));
                }
                self.results(inst, &[BOOL]);
            }
            Op::Select(condition, a, b) => {
                self.expect(*condition, BOOL);
                if let Some(dtype) = self.any_scalar(*a) {
                    self.expect(*b, Type::Scalar(dtype));
                    self.results(inst, &[Type::Scalar(dtype)]);
                }
            }
            Op::Fma(a, b, c) => {
                if let Some(dtype) = self.scalar(*a, "a float", DType::is_float) {
                    self.expect(*b, Type::Scalar(dtype));
                    self.expect(*c, Type::Scalar(dtype));
                    self.results(inst, &[Type::Scalar(dtype)]);
                }
            }
            Op::Cast(a) => {
                self.any_scalar(*a);
                if let Some(result) = self.result(inst) {
                    self.any_scalar(result);
                }
            }
            Op::Bitcast(a) => {
                let from = self.scalar(*a, "a number", is_number);
                let Some(result) = self.result(inst) else {
                    return;
                };
                let to = self.scalar(result, "a number", is_number);
                if let (Some(from), Some(to)) = (from, to)
                    && from.size_in_bytes() != to.size_in_bytes()
                {
                    self.wrong(result, &format!("a number of {} bytes", from.size_in_bytes()));
                }
            }
            Op::FromBits(dtype, a) => {
                self.round_dtype(*dtype);
                self.bits_of(*dtype, *a);
                self.results(inst, &[F32]);
            }
            Op::ToBits(dtype, a) => {
                self.round_dtype(*dtype);
                self.expect(*a, F32);
                if let Some(result) = self.result(inst) {
                    self.bits_of(*dtype, result);
                }
            }
            Op::Round(dtype, a) => {
                self.round_dtype(*dtype);
                self.expect(*a, F32);
                self.results(inst, &[F32]);
            }
            Op::Load { operand, index, pad } => {
                if let Some(o) = self.access(*operand, index, false) {
                    let ty = Type::Scalar(compute_dtype(o.dtype));
                    pad.iter().for_each(|&pad| self.expect(pad, ty));
                    self.results(inst, &[ty]);
                }
            }
            Op::Store { operand, index, value, .. } => {
                if let Some(o) = self.access(*operand, index, true) {
                    self.expect(*value, Type::Scalar(compute_dtype(o.dtype)));
                }
                self.results(inst, &[]);
            }
            Op::Atomic { op, operand, index, value } => {
                if let Some(o) = self.access(*operand, index, true) {
                    self.expect(*value, Type::Scalar(compute_dtype(o.dtype)));
                    if !has_atomic(*op, o.dtype) {
                        let (operand, dtype) = (o.name.clone(), o.dtype);
                        self.fault(Fault::NoSuchAtomic { operand, dtype, op: op.name() });
                    }
                }
                self.results(inst, &[]);
            }
            Op::Var(a) => match self.ty(*a) {
                Some(Type::Scalar(d)) => self.results(inst, &[Type::Var(d)]),
                Some(Type::Tile(d, r, c)) => self.results(inst, &[Type::TileVar(d, r, c)]),
                Some(Type::Var(_) | Type::TileVar(..)) => self.wrong(*a, "a scalar or a tile"),
                None => {}
            },
            Op::Get(a) => {
                if let Some(held) = self.held(*a) {
                    self.results(inst, &[held]);
                }
            }
            Op::Set(variable, value) => {
                if let Some(held) = self.held(*variable) {
                    self.expect(*value, held);
                }
                self.results(inst, &[]);
            }
            Op::If { condition, .. } => {
                self.expect(*condition, BOOL);
                for &result in &inst.results {
                    if let Some(Type::Var(_) | Type::TileVar(..)) = self.ty(result) {
                        self.wrong(result, "a scalar or a tile");
                    }
                }
            }
            Op::While { .. } => self.results(inst, &[]),
            Op::For { lo, hi, step, index, .. } => {
                self.all_i64(&[*lo, *hi, *step, *index]);
                self.results(inst, &[]);
            }
            Op::Lanes { len, index, .. } => {
                self.all_i64(&[*len, *index]);
                self.results(inst, &[]);
            }
            Op::Fold { len, index, init, acc, lhs, rhs, .. } => {
                self.all_i64(&[*len, *index]);
                let types = self.scalars(init);
                self.expect_all("accumulators", acc, &types);
                self.expect_all("left sides", lhs, &types);
                self.expect_all("right sides", rhs, &types);
                self.results(inst, &types);
            }
            Op::Scan { len, index, init, lhs, rhs, prefix, .. } => {
                self.all_i64(&[*len, *index]);
                let types = self.scalars(init);
                self.expect_all("left sides", lhs, &types);
                self.expect_all("right sides", rhs, &types);
                self.expect_all("prefixes", prefix, &types);
                self.results(inst, &[]);
            }
            Op::Print { values, .. } => {
                self.scalars(values);
                self.results(inst, &[]);
            }
            Op::TileFull(a) => {
                let dtype = self.any_scalar(*a);
                if let Some(result) = self.result(inst)
                    && let Some((d, r, c)) = self.tile(result)
                    && let Some(dtype) = dtype
                    && d != dtype
                {
                    self.expect(result, Type::Tile(dtype, r, c));
                }
            }
            Op::TileLoad { operand, batch, origin, .. } => {
                let dtype = self.tile_access(*operand, batch, *origin, false);
                if let Some(result) = self.result(inst)
                    && let Some((_, r, c)) = self.tile(result)
                    && let Some(dtype) = dtype
                {
                    self.expect(result, Type::Tile(dtype, r, c));
                }
            }
            Op::TileStore { operand, batch, origin, value } => {
                let dtype = self.tile_access(*operand, batch, *origin, true);
                if let Some((_, r, c)) = self.tile(*value)
                    && let Some(dtype) = dtype
                {
                    self.expect(*value, Type::Tile(dtype, r, c));
                }
                self.results(inst, &[]);
            }
            Op::TileMap { inputs, position, elements, .. } => {
                self.all_i64(position);
                let Some(result) = self.result(inst) else {
                    return;
                };
                let Some((_, rows, columns)) = self.tile(result) else {
                    return;
                };
                let mut types = Vec::new();
                for &input in inputs {
                    let Some((d, r, c)) = self.tile(input) else {
                        return;
                    };
                    types.push(Type::Scalar(d));
                    if (r != 1 && r != rows) || (c != 1 && c != columns) {
                        self.wrong(input, &format!("a tile that broadcasts to {rows}x{columns}"));
                    }
                }
                self.expect_all("elements", elements, &types);
            }
            Op::TileReduce(_, a) => {
                if let Some((d, r, _)) = self.tile(*a) {
                    if !is_number(d) {
                        self.wrong(*a, "a tile of numbers");
                    }
                    self.results(inst, &[Type::Tile(d, r, 1)]);
                }
            }
            Op::TileElement(a, index) => {
                self.all_i64(index);
                if let Some((d, ..)) = self.tile(*a) {
                    self.results(inst, &[Type::Scalar(d)]);
                }
            }
            Op::Dot(a, b, acc) => self.dot(inst, *a, *b, *acc),
            Op::TileCast(a) => {
                if let Some((_, r, c)) = self.tile(*a)
                    && let Some(result) = self.result(inst)
                    && let Some((d, ..)) = self.tile(result)
                {
                    self.expect(result, Type::Tile(d, r, c));
                }
            }
            Op::TileRound(dtype, a) => {
                self.round_dtype(*dtype);
                if let Some((_, r, c)) = self.tile(*a) {
                    self.expect(*a, Type::Tile(DType::F32, r, c));
                    self.results(inst, &[Type::Tile(DType::F32, r, c)]);
                }
            }
        }
    }

    fn dot(&mut self, inst: &Inst, a: Value, b: Value, acc: Value) {
        let (Some((_, rows, inner)), Some((_, _, columns))) = (self.tile(a), self.tile(b)) else {
            return;
        };
        let Some((sum, ..)) = self.tile(acc) else {
            return;
        };
        self.expect(acc, Type::Tile(sum, rows, columns));
        self.results(inst, &[Type::Tile(sum, rows, columns)]);
        for (side, r, c) in [(a, rows, inner), (b, inner, columns)] {
            let Some((d, ..)) = self.tile(side) else {
                return;
            };
            if !matches!(sum, DType::F32 | DType::F64 | DType::I32) {
                return self.wrong(acc, "a tile of f32, f64 or i32");
            }
            let narrow = sum == DType::I32 && matches!(d, DType::I8 | DType::U8);
            let factor = if narrow { d } else { sum };
            self.expect(side, Type::Tile(factor, r, c));
        }
    }

    /// The type that a variable holds.
    fn held(&mut self, variable: Value) -> Option<Type> {
        match self.ty(variable)? {
            Type::Var(d) => Some(Type::Scalar(d)),
            Type::TileVar(d, r, c) => Some(Type::Tile(d, r, c)),
            Type::Scalar(_) | Type::Tile(..) => {
                self.wrong(variable, "a variable");
                None
            }
        }
    }

    /// Demands scalars and gives their types.
    fn scalars(&mut self, values: &[Value]) -> Vec<Type> {
        values.iter().filter_map(|&v| self.any_scalar(v).map(Type::Scalar)).collect()
    }

    fn types_of(&self, values: &[Value]) -> Vec<Type> {
        values.iter().filter_map(|&v| self.ty(v)).collect()
    }

    /// The types that each block of an instruction yields.
    pub(super) fn block_yields(&self, inst: &Inst) -> Vec<Vec<Type>> {
        match &inst.op {
            Op::If { .. } => vec![self.types_of(&inst.results); 2],
            Op::While { .. } => vec![vec![BOOL], vec![]],
            Op::Fold { init, .. } => vec![self.types_of(init); 2],
            Op::Scan { init, .. } => vec![self.types_of(init), self.types_of(init), vec![]],
            Op::TileMap { .. } => {
                let element = |v: &Value| match self.ty(*v)? {
                    Type::Tile(d, ..) => Some(Type::Scalar(d)),
                    Type::Scalar(_) | Type::Var(_) | Type::TileVar(..) => None,
                };
                vec![inst.results.iter().filter_map(element).collect()]
            }
            Op::For { .. } | Op::Lanes { .. } => vec![vec![]],
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => vec![],
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => vec![],
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) => vec![],
            Op::FromBits(..) | Op::ToBits(..) | Op::Print { .. } => vec![],
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Get(_) | Op::Set(..) => vec![],
            Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileReduce(..) | Op::Dot(..) => vec![],
            Op::TileElement(..) | Op::TileCast(_) | Op::TileRound(..) => vec![],
        }
    }
}
