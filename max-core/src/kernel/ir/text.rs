//! Prints the IR. [`parse`](super::parse::parse) reads what is printed here back, exactly.
//!
//! ```text
//! kernel "scale_rows" program grid(y.0) (out y: f32[2], in x: f32[2]) params(factor: float) files("scale.rs") {
//!   %0: i64 = program_id 0 @3:15
//!   %1: i64 = dim x.1 @4:5
//!   %2: f64 = param factor @4:5
//!   %3: f32 = cast %2 @4:5
//!   lanes %1 |%4: i64| @4:5 {
//!     %5: f32 = load x[%0, %4] @4:20
//!     %6: f32 = mul %5, %3 @4:22
//!     store y[%0, %4] = %6 @4:5
//!   }
//! }
//! ```
//!
//! An instruction ends with its place in the source, `@line:column`, or `@file/line:column` outside the first file; the
//! places of values are those of the instructions that define them. Parameters of a block stand between bars. Numbers
//! print as Rust writes them, floats with as many digits as tell them apart; `nan` is the NaN with only the first bit of
//! its fraction set, and what has no other form prints as `bits 0x7f800001`.

use std::fmt::{self, Display, Formatter, Write};

use super::{Block, Inst, Kernel, Loc, Op, ParamType, Type, Value};
use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, GridOp, GridTerm, KernelKind, ParamKind};

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Type::Scalar(d) => f.write_str(d.short_name()),
            Type::Var(d) => write!(f, "var<{}>", d.short_name()),
            Type::Tile(d, r, c) => write!(f, "tile<{}, {r}x{c}>", d.short_name()),
            Type::TileVar(d, r, c) => write!(f, "var<{}, {r}x{c}>", d.short_name()),
        }
    }
}

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("kernel ")?;
        quoted(f, &self.name)?;
        f.write_str(match self.kind {
            KernelKind::Elementwise => " elementwise",
            KernelKind::Program => " program",
        })?;
        if !self.grid.is_empty() {
            f.write_str(" grid(")?;
            list(f, &self.grid, |f, axis| self.grid_axis(f, axis))?;
            f.write_char(')')?;
        }
        f.write_str(" (")?;
        list(f, &self.operands, |f, operand| {
            f.write_str(access_name(operand.access))?;
            f.write_char(' ')?;
            name(f, &operand.name)?;
            write!(f, ": {}", operand.dtype.short_name())?;
            match operand.rank {
                0 => Ok(()),
                rank => write!(f, "[{rank}]"),
            }
        })?;
        f.write_char(')')?;
        if !self.params.is_empty() {
            f.write_str(" params(")?;
            list(f, &self.params, |f, param| {
                name(f, &param.name)?;
                write!(f, ": {}", param_type_name(param.ty))
            })?;
            f.write_char(')')?;
        }
        if !self.files.is_empty() {
            f.write_str(" files(")?;
            list(f, &self.files, |f, file| quoted(f, file))?;
            f.write_char(')')?;
        }
        if !self.elements.is_empty() {
            f.write_char(' ')?;
            self.bars(f, &[&self.elements])?;
        }
        f.write_char(' ')?;
        self.block(f, &self.body, 0)?;
        f.write_char('\n')
    }
}

/// The word for an operand's access.
pub(super) fn access_name(access: Access) -> &'static str {
    match access {
        Access::In => "in",
        Access::Out => "out",
        Access::InOut => "inout",
    }
}

/// The word for what a parameter is.
pub(super) fn param_type_name(ty: ParamType) -> &'static str {
    match ty {
        ParamType::Of(ParamKind::Int) => "int",
        ParamType::Of(ParamKind::Bool) => "bool",
        ParamType::Of(ParamKind::String) => "string",
        ParamType::Of(ParamKind::Float) => "float",
        ParamType::Scalar(dtype) => dtype.short_name(),
    }
}

impl Kernel {
    /// The first line of an instruction, as the text form has it (without the blocks inside).
    pub fn inst_text(&self, inst: &Inst) -> String {
        struct Head<'a>(&'a Kernel, &'a Inst);
        impl Display for Head<'_> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                self.0.head(f, self.1)
            }
        }
        Head(self, inst).to_string()
    }

    fn grid_axis(&self, f: &mut Formatter<'_>, axis: &GridAxis) -> fmt::Result {
        if let Some(terms) = axis.terms(&self.grid_terms) {
            f.write_char('[')?;
            list(f, terms, |f, term| self.grid_term(f, term))?;
            return f.write_char(']');
        }
        let Ok(operand) = u32::try_from(axis.operand) else {
            return write!(f, "{}", axis.size);
        };
        self.operand(f, operand)?;
        write!(f, ".{}", axis.dim)?;
        if axis.size != 1 || axis.tile >= 0 {
            write!(f, " / {}", axis.size)?;
        }
        if axis.tile >= 0 {
            write!(f, " tile {}", axis.tile)?;
        }
        Ok(())
    }

    fn grid_term(&self, f: &mut Formatter<'_>, term: &GridTerm) -> fmt::Result {
        match term.op {
            GridOp::Number => write!(f, "{}", term.value),
            GridOp::Dim => {
                self.operand(f, term.index)?;
                write!(f, ".{}", term.value)
            }
            op @ (GridOp::Param | GridOp::Tile) => write!(f, "{} {}", op.name(), term.index),
            op @ (GridOp::Add | GridOp::Sub | GridOp::Mul | GridOp::Div | GridOp::Min | GridOp::Max) => {
                f.write_str(op.name())
            }
        }
    }

    /// An operand by name, or `#3` where there is none of that index.
    fn operand(&self, f: &mut Formatter<'_>, index: u32) -> fmt::Result {
        match self.operands.get(index as usize) {
            Some(operand) => name(f, &operand.name),
            None => write!(f, "#{index}"),
        }
    }

    /// Block parameters with their types: `|%1: i64; %2: f32, %3: f32|`, one group after the other.
    fn bars(&self, f: &mut Formatter<'_>, groups: &[&[Value]]) -> fmt::Result {
        f.write_char('|')?;
        for (i, group) in groups.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            list(f, group, |f, &v| self.typed(f, v))?;
        }
        f.write_char('|')
    }

    fn typed(&self, f: &mut Formatter<'_>, value: Value) -> fmt::Result {
        match self.values.get(value.0 as usize) {
            Some(def) => write!(f, "{value}: {}", def.ty),
            None => write!(f, "{value}: ?"),
        }
    }

    fn loc(&self, f: &mut Formatter<'_>, loc: Loc) -> fmt::Result {
        if loc == Loc::default() {
            return Ok(());
        }
        f.write_str(" @")?;
        if loc.file != 0 {
            write!(f, "{}/", loc.file)?;
        }
        write!(f, "{}:{}", loc.line, loc.column)
    }

    fn block(&self, f: &mut Formatter<'_>, block: &Block, indent: usize) -> fmt::Result {
        if block.insts.is_empty() && block.yields.is_empty() {
            return f.write_str("{}");
        }
        f.write_str("{\n")?;
        for inst in &block.insts {
            write!(f, "{:1$}", "", 2 * indent + 2)?;
            self.head(f, inst)?;
            self.tail(f, inst, indent + 1)?;
            f.write_char('\n')?;
        }
        if !block.yields.is_empty() {
            write!(f, "{:1$}yield ", "", 2 * indent + 2)?;
            values(f, &block.yields)?;
            f.write_char('\n')?;
        }
        write!(f, "{:1$}}}", "", 2 * indent)
    }

    /// The blocks of an instruction, after its head.
    fn tail(&self, f: &mut Formatter<'_>, inst: &Inst, indent: usize) -> fmt::Result {
        let blocks: &[(&str, &[&[Value]], &Block)] = match &inst.op {
            Op::If { then, otherwise, .. } if *otherwise == Block::default() => &[("", &[], then)],
            Op::If { then, otherwise, .. } => &[("", &[], then), ("else", &[], otherwise)],
            Op::While { condition, body } => &[("", &[], condition), ("do", &[], body)],
            Op::For { body, .. } | Op::Lanes { body, .. } | Op::TileMap { body, .. } => &[("", &[], body)],
            Op::Fold { body, lhs, rhs, combine, .. } => &[("", &[], body), ("combine", &[lhs, rhs], combine)],
            Op::Scan { item, lhs, rhs, combine, prefix, emit, .. } => {
                &[("", &[], item), ("combine", &[lhs, rhs], combine), ("emit", &[prefix], emit)]
            }
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => &[],
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => &[],
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) | Op::FromBits(..) | Op::ToBits(..) | Op::Print { .. } => &[],
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::Var(_) | Op::Get(_) | Op::Set(..) => &[],
            Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileReduce(..) | Op::Dot(..) => &[],
            Op::TileElement(..) => &[],
            Op::TileCast(_) | Op::TileRound(..) => &[],
        };
        for (word, params, block) in blocks {
            f.write_char(' ')?;
            if !word.is_empty() {
                write!(f, "{word} ")?;
            }
            if !params.is_empty() {
                self.bars(f, params)?;
                f.write_char(' ')?;
            }
            self.block(f, block, indent)?;
        }
        Ok(())
    }

    /// An instruction up to its first block.
    fn head(&self, f: &mut Formatter<'_>, inst: &Inst) -> fmt::Result {
        if !inst.results.is_empty() {
            list(f, &inst.results, |f, &v| self.typed(f, v))?;
            f.write_str(" = ")?;
        }
        match &inst.op {
            Op::Const(bits) => {
                let ty = inst.results.first().and_then(|v| self.values.get(v.0 as usize)).map(|def| def.ty);
                f.write_str("const ")?;
                constant(f, ty, *bits)?;
            }
            Op::Param(index) => {
                f.write_str("param ")?;
                match self.params.get(*index as usize) {
                    Some(param) => name(f, &param.name)?,
                    None => write!(f, "#{index}")?,
                }
            }
            Op::ProgramId(axis) => write!(f, "program_id {axis}")?,
            Op::NumPrograms(axis) => write!(f, "num_programs {axis}")?,
            Op::Dim { operand, axis } => {
                f.write_str("dim ")?;
                self.operand(f, *operand)?;
                write!(f, ".{axis}")?;
            }
            Op::Unary(op, a) => write!(f, "{} {a}", op.name())?,
            Op::Binary(op, a, b) => write!(f, "{} {a}, {b}", op.name())?,
            Op::Cmp(op, a, b) => write!(f, "{} {a}, {b}", op.name())?,
            Op::Select(c, a, b) => write!(f, "select {c}, {a}, {b}")?,
            Op::Fma(a, b, c) => write!(f, "fma {a}, {b}, {c}")?,
            Op::Cast(a) => write!(f, "cast {a}")?,
            Op::Bitcast(a) => write!(f, "bitcast {a}")?,
            Op::Round(dtype, a) => write!(f, "round {} {a}", dtype.short_name())?,
            Op::FromBits(dtype, a) => write!(f, "from_bits {} {a}", dtype.short_name())?,
            Op::ToBits(dtype, a) => write!(f, "to_bits {} {a}", dtype.short_name())?,
            Op::Load { operand, index, pad } => {
                f.write_str("load ")?;
                self.element(f, *operand, index)?;
                if let Some(pad) = pad {
                    write!(f, " pad {pad}")?;
                }
            }
            Op::Store { operand, index, value, scatter } => {
                f.write_str(if *scatter { "scatter " } else { "store " })?;
                self.element(f, *operand, index)?;
                write!(f, " = {value}")?;
            }
            Op::Atomic { op, operand, index, value } => {
                write!(f, "atomic {} ", op.name())?;
                self.element(f, *operand, index)?;
                write!(f, " = {value}")?;
            }
            Op::Print { label, values: printed } => {
                f.write_str("print ")?;
                quoted(f, label)?;
                f.write_str(" (")?;
                values(f, printed)?;
                f.write_char(')')?;
            }
            Op::Var(a) => write!(f, "var {a}")?,
            Op::Get(a) => write!(f, "get {a}")?,
            Op::Set(variable, value) => write!(f, "set {variable} = {value}")?,
            Op::If { condition, .. } => write!(f, "if {condition}")?,
            Op::While { .. } => f.write_str("while")?,
            Op::For { lo, hi, step, index, .. } => {
                write!(f, "for {lo} to {hi} step {step} ")?;
                self.bars(f, &[&[*index]])?;
            }
            Op::Lanes { len, index, .. } => {
                write!(f, "lanes {len} ")?;
                self.bars(f, &[&[*index]])?;
            }
            Op::Fold { len, index, init, acc, .. } => {
                write!(f, "fold {len} (")?;
                values(f, init)?;
                f.write_str(") ")?;
                self.bars(f, &[&[*index], acc])?;
            }
            Op::Scan { len, index, init, .. } => {
                write!(f, "scan {len} (")?;
                values(f, init)?;
                f.write_str(") ")?;
                self.bars(f, &[&[*index]])?;
            }
            Op::TileFull(a) => write!(f, "tile_full {a}")?,
            Op::TileLoad { operand, batch, origin, transpose } => {
                f.write_str("tile_load ")?;
                self.element(f, *operand, &[batch.as_slice(), origin].concat())?;
                if *transpose {
                    f.write_str(" transposed")?;
                }
            }
            Op::TileStore { operand, batch, origin, value } => {
                f.write_str("tile_store ")?;
                self.element(f, *operand, &[batch.as_slice(), origin].concat())?;
                write!(f, " = {value}")?;
            }
            Op::TileMap { inputs, position, elements, .. } => {
                f.write_str("tile_map (")?;
                values(f, inputs)?;
                f.write_str(") ")?;
                self.bars(f, &[position, elements])?;
            }
            Op::TileReduce(op, a) => write!(f, "tile_reduce {} {a}", op.name())?,
            Op::TileElement(a, [i, j]) => write!(f, "tile_element {a}, {i}, {j}")?,
            Op::Dot(a, b, acc) => write!(f, "dot {a}, {b}, {acc}")?,
            Op::TileCast(a) => write!(f, "tile_cast {a}")?,
            Op::TileRound(dtype, a) => write!(f, "tile_round {} {a}", dtype.short_name())?,
        }
        self.loc(f, inst.loc)
    }

    fn element(&self, f: &mut Formatter<'_>, operand: u32, index: &[Value]) -> fmt::Result {
        self.operand(f, operand)?;
        f.write_char('[')?;
        values(f, index)?;
        f.write_char(']')
    }
}

fn list<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    mut item: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, it) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        item(f, it)?;
    }
    Ok(())
}

fn values(f: &mut Formatter<'_>, items: &[Value]) -> fmt::Result {
    list(f, items, |f, v| write!(f, "{v}"))
}

/// Whether a name stands in the text form without quotes.
pub(super) fn is_identifier(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && s.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

fn name(f: &mut Formatter<'_>, s: &str) -> fmt::Result {
    if is_identifier(s) { f.write_str(s) } else { quoted(f, s) }
}

fn quoted(f: &mut Formatter<'_>, s: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in s.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

/// A constant of type `ty`; [`constant_bits`] of the text gives the bits again.
fn constant(f: &mut Formatter<'_>, ty: Option<Type>, bits: u64) -> fmt::Result {
    if let Some(Type::Scalar(dtype)) = ty {
        let text = plain_constant(dtype, bits);
        if constant_bits(dtype, &text) == Some(bits) {
            return f.write_str(&text);
        }
    }
    write!(f, "bits {bits:#x}")
}

fn plain_constant(dtype: DType, bits: u64) -> String {
    match dtype {
        DType::F32 => float_text(f32::from_bits(bits as u32)),
        DType::F64 => float_text(f64::from_bits(bits)),
        DType::Bool => (bits != 0).to_string(),
        DType::I8 => (bits as i8).to_string(),
        DType::I16 => (bits as i16).to_string(),
        DType::I32 => (bits as i32).to_string(),
        DType::I64 => (bits as i64).to_string(),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => bits.to_string(),
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F16 | DType::BF16 => {
            String::new()
        }
    }
}

fn float_text(x: impl fmt::Debug) -> String {
    // Rust writes the sign of no NaN, and `NaN` for all of them.
    format!("{x:?}").to_lowercase()
}

/// The bits of the plain form of a constant; `None` where the text is not one of that dtype.
pub(super) fn constant_bits(dtype: DType, text: &str) -> Option<u64> {
    fn float<T: std::str::FromStr>(text: &str, nan: u64, bits: impl Fn(T) -> u64) -> Option<u64> {
        if text == "nan" { Some(nan) } else { text.parse().ok().map(bits) }
    }
    match dtype {
        DType::F32 => float(text, 0x7fc0_0000, |x: f32| x.to_bits().into()),
        DType::F64 => float(text, 0x7ff8_0000_0000_0000, f64::to_bits),
        DType::Bool => text.parse::<bool>().ok().map(u64::from),
        DType::I8 => text.parse::<i8>().ok().map(|x| x as u8 as u64),
        DType::I16 => text.parse::<i16>().ok().map(|x| x as u16 as u64),
        DType::I32 => text.parse::<i32>().ok().map(|x| x as u32 as u64),
        DType::I64 => text.parse::<i64>().ok().map(|x| x as u64),
        DType::U8 => text.parse::<u8>().ok().map(u64::from),
        DType::U16 => text.parse::<u16>().ok().map(u64::from),
        DType::U32 => text.parse::<u32>().ok().map(u64::from),
        DType::U64 => text.parse().ok(),
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F16 | DType::BF16 => None,
    }
}
