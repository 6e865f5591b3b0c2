//! From statements to a [`Program`]: names become rows, modifiers become
//! functions. Whatever is not understood is an error.

mod arithmetic;
mod control;
mod convert;
mod mbarrier;
mod memory;
mod tensor;
mod warpgroup;

use std::collections::HashMap;

use crate::ops::softfloat::Round;
use crate::parse::error::ParseError;
use crate::parse::syntax::{EntryText, Instruction, Literal, Operand, Space, Statement, Variable};
use crate::program::{Instr, Layout, Op, Pred, PredSrc, Program, Range, Reg, Special};
use crate::types::{Class, Ty};

/// An error without its line; the caller knows the line.
type Decoded<T> = Result<T, String>;

#[derive(Clone, Copy, Debug)]
enum Symbol {
    Reg(Reg, Ty),
    Pred(Pred),
    /// A variable at a fixed address of its space.
    Var(Space, u64),
    /// What a call passes, at a fixed address of local memory.
    Argument(u64),
    /// A module variable whose address is known at launch: its index.
    Global(Space, usize),
}

struct Decoder {
    scopes: Vec<HashMap<String, Symbol>>,
    labels: HashMap<String, u32>,
    constants: HashMap<u64, Reg>,
    specials: HashMap<Special, Reg>,
    globals: HashMap<usize, Reg>,
    kinds: HashMap<String, u16>,
    sink: Option<Reg>,
    program: Program,
}

/// Decodes one entry of a module; `lines` is the module's text.
pub(crate) fn entry(text: &EntryText, module: &[Variable], lines: &[&str]) -> Result<Program, ParseError> {
    let fail = |line: u32, message: String| {
        ParseError::new(line, lines.get(line as usize - 1).copied().unwrap_or(""), message)
    };
    let mut decoder = Decoder {
        scopes: vec![HashMap::new()],
        labels: HashMap::new(),
        constants: HashMap::new(),
        specials: HashMap::new(),
        globals: HashMap::new(),
        kinds: HashMap::new(),
        sink: None,
        program: Program {
            instrs: Vec::new(),
            kinds: Vec::new(),
            rows: 0,
            row_names: Vec::new(),
            constants: Vec::new(),
            specials: Vec::new(),
            globals: Vec::new(),
            pred_names: Vec::new(),
            shared: Layout::new(),
            dynamic: None,
            local: Layout::new(),
            params: Layout::new(),
            param_types: Vec::new(),
            granule: 8,
            uses_copy_async: false,
            uses_async_proxy: false,
            orders_blocks: false,
            wgmma_rows: Vec::new(),
            max_threads: text.max_threads,
            min_blocks: text.min_blocks,
            max_registers: text.max_registers,
        },
    };
    decoder.variables(text, module, &fail)?;
    let mut index = 0;
    for statement in &text.body {
        match statement {
            Statement::Label(name, line) if decoder.labels.contains_key(name) => {
                return Err(fail(*line, format!("the label `{name}` is declared twice")));
            }
            Statement::Label(name, _) => {
                decoder.labels.insert(name.clone(), index);
            }
            Statement::Instruction(_) => index += 1,
            _ => {}
        }
    }
    for statement in &text.body {
        match statement {
            Statement::Label(..) => {}
            Statement::Open => decoder.scopes.push(HashMap::new()),
            Statement::Close => {
                decoder.scopes.pop();
            }
            Statement::Registers(ty, names, line) => {
                for name in names {
                    decoder.register(name, *ty).map_err(|m| fail(*line, m))?;
                }
            }
            Statement::Variable(v) => decoder.declare(v).map_err(|m| fail(v.line, m))?,
            Statement::Instruction(i) => {
                let instr = decoder.instruction(i).map_err(|m| fail(i.line, m))?;
                decoder.program.instrs.push(instr);
            }
        }
    }
    let last = text.body.iter().rev().find_map(|s| match s {
        Statement::Instruction(i) => Some(i.line),
        _ => None,
    });
    // Falling off the end returns.
    let (op, line) = (Op::Exit, last.unwrap_or(text.line));
    let kind = decoder.kind("(end)");
    decoder.program.instrs.push(Instr { op, guard: None, line, kind });
    Ok(decoder.program)
}

impl Decoder {
    fn variables(
        &mut self,
        text: &EntryText,
        module: &[Variable],
        fail: &dyn Fn(u32, String) -> ParseError,
    ) -> Result<(), ParseError> {
        for param in &text.params {
            let address = self.program.params.place(&param.name, param.bytes, param.align);
            self.program.param_types.push((param.ty, param.bytes));
            self.define(&param.name, Symbol::Var(Space::Param, address)).map_err(|m| fail(param.line, m))?;
        }
        for (index, variable) in module.iter().enumerate() {
            match variable.space {
                Space::Shared if !variable.external => {
                    self.declare(variable).map_err(|m| fail(variable.line, m))?;
                }
                Space::Shared => {}
                space => {
                    self.define(&variable.name, Symbol::Global(space, index)).map_err(|m| fail(variable.line, m))?
                }
            }
        }
        for statement in &text.body {
            if let Statement::Variable(v) = statement
                && v.space == Space::Shared
                && v.init.is_some()
            {
                return Err(fail(v.line, "a shared variable has no initial value".into()));
            }
        }
        // Shared variables of the body are placed before dynamic memory.
        let mut layout = self.program.shared.clone();
        for statement in &text.body {
            if let Statement::Variable(v) = statement
                && v.space == Space::Shared
            {
                layout.place(&v.name, v.bytes, v.align);
            }
        }
        let dynamic: Vec<_> = module.iter().filter(|v| v.space == Space::Shared && v.external).collect();
        if let Some(first) = dynamic.first() {
            let align = dynamic.iter().map(|v| v.align).max().unwrap_or(1);
            let start = layout.place(&first.name, 0, align);
            self.program.shared.ranges.push(Range { name: first.name.clone(), start, end: start });
            self.program.dynamic = Some(self.program.shared.ranges.len() - 1);
            for variable in dynamic {
                self.define(&variable.name, Symbol::Var(Space::Shared, start)).map_err(|m| fail(variable.line, m))?;
            }
        }
        Ok(())
    }

    fn declare(&mut self, v: &Variable) -> Decoded<()> {
        let layout = match v.space {
            Space::Shared => &mut self.program.shared,
            _ => &mut self.program.local,
        };
        let address = layout.place(&v.name, v.bytes, v.align);
        let symbol = if v.space == Space::Param { Symbol::Argument(address) } else { Symbol::Var(v.space, address) };
        self.define(&v.name, symbol)
    }

    fn define(&mut self, name: &str, symbol: Symbol) -> Decoded<()> {
        let scope = self.scopes.last_mut().ok_or("no scope")?;
        match scope.insert(name.to_owned(), symbol) {
            Some(_) => Err(format!("`{name}` is declared twice")),
            None => Ok(()),
        }
    }

    fn register(&mut self, name: &str, ty: Ty) -> Decoded<()> {
        let symbol = match ty {
            Ty::Pred => {
                self.program.pred_names.push(name.to_owned());
                let index = self.program.pred_names.len() - 1;
                Symbol::Pred(Pred::try_from(index).map_err(|_| "too many predicates")?)
            }
            Ty::B8 | Ty::U8 | Ty::S8 | Ty::B128 => {
                return Err(format!("a register of type {ty:?} is not simulated"));
            }
            _ => Symbol::Reg(self.row(name), ty),
        };
        self.define(name, symbol)
    }

    fn row(&mut self, name: &str) -> Reg {
        self.program.row_names.push(name.to_owned());
        self.program.rows += 1;
        self.program.rows as Reg - 1
    }

    fn kind(&mut self, name: &str) -> u16 {
        if let Some(kind) = self.kinds.get(name) {
            return *kind;
        }
        let kind = self.program.kinds.len() as u16;
        self.program.kinds.push(name.to_owned());
        self.kinds.insert(name.to_owned(), kind);
        kind
    }

    fn constant(&mut self, value: u64) -> Reg {
        if let Some(row) = self.constants.get(&value) {
            return *row;
        }
        let row = self.row(&format!("{value:#x}"));
        self.program.constants.push((row, value));
        self.constants.insert(value, row);
        row
    }

    fn special(&mut self, name: &str, special: Special) -> Reg {
        if let Some(row) = self.specials.get(&special) {
            return *row;
        }
        let row = self.row(name);
        self.program.specials.push((row, special));
        self.specials.insert(special, row);
        row
    }

    fn global(&mut self, name: &str, index: usize) -> Reg {
        if let Some(row) = self.globals.get(&index) {
            return *row;
        }
        let row = self.row(name);
        self.program.globals.push((row, index));
        self.globals.insert(index, row);
        row
    }

    fn lookup(&self, name: &str) -> Decoded<Symbol> {
        self.scopes.iter().rev().find_map(|s| s.get(name).copied()).ok_or_else(|| format!("`{name}` is not declared"))
    }

    /// A destination; `fits` says which register types it may have.
    fn dst_where(&mut self, op: &Operand, fits: impl Fn(Ty) -> bool) -> Decoded<(Reg, Ty)> {
        match op {
            Operand::Name(name) => match self.lookup(name)? {
                Symbol::Reg(row, ty) if fits(ty) => Ok((row, ty)),
                Symbol::Reg(_, ty) => Err(format!("`{name}` of type {ty:?} does not fit here")),
                _ => Err(format!("`{name}` is no register")),
            },
            Operand::Sink => {
                let row = match self.sink {
                    Some(row) => row,
                    None => self.row("_"),
                };
                self.sink = Some(row);
                Ok((row, Ty::B64))
            }
            other => Err(format!("a destination is a register, not {other:?}")),
        }
    }

    /// A destination of just the type's width and a class that fits.
    fn dst(&mut self, op: &Operand, ty: Ty) -> Decoded<Reg> {
        Ok(self.dst_where(op, |r| fits(r, ty))?.0)
    }

    fn src(&mut self, op: &Operand, ty: Ty) -> Decoded<Reg> {
        self.src_where(op, ty, |r| fits(r, ty))
    }

    fn src_where(&mut self, op: &Operand, ty: Ty, ok: impl Fn(Ty) -> bool) -> Decoded<Reg> {
        match op {
            Operand::Literal(value) => {
                let bits = literal(*value, ty)?;
                Ok(self.constant(bits))
            }
            Operand::Name(name) if name.starts_with('%') && self.lookup(name).is_err() => {
                let Some((special, special_ty)) = special_register(name) else {
                    return Err(format!("`{name}` is not declared"));
                };
                // ISA: %tid and its kin are 32 bits; a wider move is not legal.
                if !ok(special_ty) {
                    return Err(format!("`{name}` of type {special_ty:?} does not fit here"));
                }
                Ok(self.special(name, special))
            }
            Operand::Name(name) => match self.lookup(name)? {
                Symbol::Reg(row, reg) if ok(reg) => Ok(row),
                Symbol::Reg(_, reg) => Err(format!("`{name}` of type {reg:?} does not fit an operand of type {ty:?}")),
                Symbol::Pred(_) => Err(format!("`{name}` is a predicate, not a {ty:?}")),
                Symbol::Var(..) | Symbol::Argument(_) | Symbol::Global(..) => {
                    Err(format!("`{name}` is a variable: take its address by `mov`"))
                }
            },
            other => Err(format!("{other:?} is no source operand")),
        }
    }

    fn pred_dst(&self, op: &Operand) -> Decoded<Option<Pred>> {
        match op {
            Operand::Sink => Ok(None),
            Operand::Name(name) => match self.lookup(name)? {
                Symbol::Pred(p) => Ok(Some(p)),
                _ => Err(format!("`{name}` is no predicate register")),
            },
            other => Err(format!("{other:?} is no predicate register")),
        }
    }

    fn pred_reg(&self, op: &Operand) -> Decoded<Pred> {
        self.pred_dst(op)?.ok_or_else(|| "a predicate register is needed, not `_`".into())
    }

    fn pred_src(&self, op: &Operand) -> Decoded<PredSrc> {
        match op {
            Operand::Not(inner) => {
                let p = self.pred_src(inner)?;
                Ok(PredSrc { negated: !p.negated, ..p })
            }
            Operand::Literal(Literal::Int(v)) => Ok(PredSrc { index: None, negated: *v == 0 }),
            other => Ok(PredSrc { index: Some(self.pred_reg(other)?), negated: false }),
        }
    }

    fn instruction(&mut self, i: &Instruction) -> Decoded<Instr> {
        let mut words = Words { rest: i.modifiers.iter().map(String::as_str).collect() };
        let guard = match &i.guard {
            Some((name, negated)) => {
                let p = self.pred_reg(&Operand::Name(name.clone()))?;
                Some(PredSrc { index: Some(p), negated: *negated })
            }
            None => None,
        };
        let full = std::iter::once(i.opcode.as_str())
            .chain(i.modifiers.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(".");
        let ops = &i.operands;
        let op = match i.opcode.as_str() {
            "ld" | "ldu" | "st" | "atom" | "red" | "cvta" | "isspacep" | "prefetch" | "prefetchu" | "cp" => {
                self.memory(&i.opcode, &mut words, ops)
            }
            "bra" | "exit" | "ret" | "trap" | "bar" | "barrier" | "membar" | "fence" | "shfl" | "vote" | "match"
            | "redux" | "activemask" | "elect" | "nanosleep" | "griddepcontrol" | "call" => {
                self.control(&i.opcode, &mut words, ops)
            }
            "mma" | "ldmatrix" | "stmatrix" | "movmatrix" => self.tensor(&i.opcode, &mut words, ops),
            "mbarrier" => self.mbarrier(&mut words, ops),
            "wgmma" => self.warpgroup(&mut words, ops),
            "setmaxnreg" => self.set_max_registers(&mut words, ops),
            "cvt" => self.cvt(&mut words, ops),
            "mov" => self.mov(&mut words, ops),
            _ => self.arithmetic(&i.opcode, &mut words, ops),
        }
        .map_err(|m| format!("{full}: {m}"))?;
        if let Some(word) = words.rest.first() {
            return Err(format!("{full}: the modifier `.{word}` is not simulated here"));
        }
        let kind = self.kind(&full);
        Ok(Instr { op, guard, line: i.line, kind })
    }

    fn mov(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let ty = words.ty()?;
        let [d, a] = operands(ops)?;
        if ty == Ty::Pred {
            let (p, a) = (self.pred_reg(d)?, self.pred_src(a)?);
            return Ok(Op::PredLogic { table: 0b1100, p, a, b: a });
        }
        match (d, a) {
            (Operand::Vector(parts), a) => {
                let part = part_type(ty, parts.len())?;
                let a = self.src(a, ty)?;
                let parts: Vec<Reg> = parts.iter().map(|p| self.dst(p, part)).collect::<Decoded<_>>()?;
                return Ok(Op::Unpack { parts: parts.into(), a, bits: 8 * part.bytes() });
            }
            (d, Operand::Vector(parts)) => {
                let part = part_type(ty, parts.len())?;
                let d = self.dst(d, ty)?;
                let parts: Vec<Reg> = parts.iter().map(|p| self.src(p, part)).collect::<Decoded<_>>()?;
                return Ok(Op::Pack { d, parts: parts.into(), bits: 8 * part.bytes() });
            }
            _ => {}
        }
        let d = self.dst(d, ty)?;
        let (name, offset) = match a {
            Operand::Offset(name, offset) => (name, *offset),
            Operand::Name(name) => (name, 0),
            _ => {
                return Ok(Op::Mov { d, a: self.src(a, ty)? });
            }
        };
        if name == "%clock" || name == "%clock64" || name == "%globaltimer" {
            return Ok(Op::Clock { d, wide: ty.bytes() == 8 });
        }
        match self.lookup(name) {
            Ok(Symbol::Var(_, address)) => {
                let a = self.constant(address.wrapping_add(offset as u64));
                Ok(Op::Mov { d, a })
            }
            Ok(Symbol::Global(_, index)) => {
                let a = self.global(name, index);
                let b = self.constant(offset as u64);
                let f = crate::ops::integer::binary("add", Ty::U64).ok_or("no addition")?;
                Ok(Op::Bin { f, m: Default::default(), d, a, b })
            }
            _ => Ok(Op::Mov { d, a: self.src(a, ty)? }),
        }
    }
}

/// The type of each part of a packed value.
fn part_type(ty: Ty, parts: usize) -> Decoded<Ty> {
    match ty.bytes() as usize / parts {
        2 if ty.bytes() as usize == 2 * parts => Ok(Ty::B16),
        4 if ty.bytes() as usize == 4 * parts => Ok(Ty::B32),
        _ => Err(format!("{ty:?} has no {parts} parts that are simulated")),
    }
}

/// Whether a register of type `reg` may be an operand of type `ty`: the same
/// width, and no float where an integer is meant or the reverse.
fn fits(reg: Ty, ty: Ty) -> bool {
    if reg.bytes() != ty.bytes() {
        return false;
    }
    match (reg.class(), ty.class()) {
        (Class::Float, Class::Unsigned | Class::Signed) => false,
        (Class::Unsigned | Class::Signed, Class::Float) => false,
        (Class::Float, Class::Float) => true,
        _ => true,
    }
}

/// The bits of a literal as an operand of a type.
fn literal(value: Literal, ty: Ty) -> Decoded<u64> {
    let mask = if ty.bytes() >= 8 { u64::MAX } else { (1 << (8 * ty.bytes())) - 1 };
    match (value, ty) {
        (Literal::Int(_), Ty::F32 | Ty::F64 | Ty::F16) => Err("an integer literal for a float operand".into()),
        (Literal::Int(v), _) => Ok(v & mask),
        (Literal::F32(v), Ty::F32 | Ty::B32) => Ok(u64::from(v)),
        (Literal::F32(v), Ty::F64) => Ok(f64::from(f32::from_bits(v)).to_bits()),
        (Literal::F64(v), Ty::F32) => Ok(u64::from((v as f32).to_bits())),
        (Literal::F64(v), Ty::F64 | Ty::B64) => Ok(v.to_bits()),
        _ => Err(format!("a float literal for an operand of type {ty:?}")),
    }
}

fn special_register(name: &str) -> Option<(Special, Ty)> {
    let axis = |suffix: &str| match suffix {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((base, suffix)) = name.split_once('.') {
        let axis = axis(suffix)?;
        let special = match base {
            "%tid" => Special::Tid(axis),
            "%ntid" => Special::Ntid(axis),
            "%ctaid" => Special::Ctaid(axis),
            "%nctaid" => Special::Nctaid(axis),
            _ => return None,
        };
        return Some((special, Ty::U32));
    }
    let special = match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::MaskEq,
        "%lanemask_lt" => Special::MaskLt,
        "%lanemask_le" => Special::MaskLe,
        "%lanemask_gt" => Special::MaskGt,
        "%lanemask_ge" => Special::MaskGe,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%smid" => Special::Zero,
        _ => return None,
    };
    Some((special, Ty::U32))
}

/// Exactly `N` operands.
fn operands<const N: usize>(ops: &[Operand]) -> Decoded<&[Operand; N]> {
    ops.try_into().map_err(|_| format!("{N} operands are needed, {} are given", ops.len()))
}

/// The modifiers of an instruction that nothing has used yet.
struct Words<'a> {
    rest: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// Takes `word` if it is there.
    fn flag(&mut self, word: &str) -> bool {
        let at = self.rest.iter().position(|w| *w == word);
        if let Some(at) = at {
            self.rest.remove(at);
        }
        at.is_some()
    }

    /// Takes the first of `words` that is there.
    fn choice(&mut self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().copied().find(|w| self.flag(w))
    }

    fn need(&mut self, words: &[&'static str]) -> Decoded<&'static str> {
        self.choice(words).ok_or_else(|| format!("one of .{} is needed", words.join(", .")))
    }

    /// Takes the first word that names a type.
    fn ty(&mut self) -> Decoded<Ty> {
        let at = self.rest.iter().position(|w| Ty::named(w).is_some());
        at.and_then(|at| Ty::named(self.rest.remove(at))).ok_or_else(|| "no type is given".into())
    }

    /// Takes a floating rounding mode.
    fn round(&mut self) -> Option<Round> {
        Some(match self.choice(&["rn", "rz", "rm", "rp"])? {
            "rn" => Round::Near,
            "rz" => Round::Zero,
            "rm" => Round::Down,
            _ => Round::Up,
        })
    }
}
