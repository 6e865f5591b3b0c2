//! Reads the text form that [`text`](super::text) prints.
//!
//! `parse(&kernel.to_string())` gives the kernel again: the same instructions, values and places. White space is free,
//! and `//` starts a comment. Nothing but the form is checked here: [`verify`](super::verify()) has the rules.

mod lex;

use std::cell::Cell;

use self::lex::Token;
use super::text::{access_name, constant_bits, param_type_name};
use super::{
    AtomicOp, BinaryOp, Block, Builder, CmpOp, Kernel, Loc, Op, Operand, Param, ParamType, ReduceOp, Type, UnaryOp,
};
use super::{Value, ValueDef};
use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, GridOp, GridTerm, KernelKind, ParamKind};

/// A text that is not IR.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: expected {expected}, found {found}")]
#[non_exhaustive]
pub struct ParseError {
    /// Line of the text, 1-based.
    pub line: u32,
    /// Column, 1-based, in characters.
    pub column: u32,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

/// Reads one kernel.
///
/// # Errors
/// The first place where the text is not IR.
pub fn parse(text: &str) -> Result<Kernel, ParseError> {
    Parser::new(text, false).kernel()
}

/// Reads one kernel; where it names no source files, `file` becomes its one file and the instructions get their own
/// places in `text`. So errors about IR written by hand name its lines.
///
/// # Errors
/// The first place where the text is not IR.
pub fn parse_file(file: &str, text: &str) -> Result<Kernel, ParseError> {
    let mut kernel = Parser::new(text, true).kernel()?;
    if kernel.files.is_empty() {
        kernel.files.push(file.to_owned());
    }
    Ok(kernel)
}

/// Blocks nest no deeper than this.
const MAX_DEPTH: u32 = 200;
/// Values are numbered below this.
const MAX_VALUES: usize = 1 << 22;
/// Those below the highest number take room, whether they are defined or not. So much is given to any text,
const FIRST_VALUES: usize = 1 << 10;
/// and so much for each value that it names: numbers of what was removed from a kernel are not used again.
const VALUES_EACH: usize = 32;
/// A kernel has no more operands than this, nor more parameters: instructions look them up by name.
const MAX_OPERANDS: usize = 1024;

/// The most terms of a grid's expression.
const MAX_TERMS: usize = 256;

struct Parser<'a> {
    text: &'a str,
    /// Where the present token starts.
    start: usize,
    /// Where the next token is looked for.
    next: usize,
    /// How far lines and columns were counted, and those there.
    counted: Cell<(usize, u32, u32)>,
    token: Token<'a>,
    /// Whether instructions take their places from the text.
    own_places: bool,
    depth: u32,
    /// Values of this text are numbered below this.
    limit: usize,
    builder: Builder,
}

type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn new(text: &'a str, own_places: bool) -> Self {
        let builder = Builder::new(Kernel::new("", KernelKind::Program));
        let counted = Cell::new((0, 1, 1));
        // Not in comments, so that what is printed has the same limit.
        let code = text.lines().filter_map(|line| line.split("//").next());
        let named: usize = code.map(|code| code.bytes().filter(|byte| *byte == b'%').count()).sum();
        let limit = Ord::min(named.saturating_mul(VALUES_EACH).saturating_add(FIRST_VALUES), MAX_VALUES);
        let token = Token::End;
        let mut parser = Parser { text, start: 0, next: 0, counted, token, own_places, depth: 0, limit, builder };
        parser.advance();
        parser
    }

    fn comma_list<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if !self.is_punct(close) && !self.is_punct(';') {
            items.push(item(self)?);
            while self.eat(',') {
                items.push(item(self)?);
            }
        }
        Ok(items)
    }

    fn parenthesized<T>(&mut self, item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.punct('(')?;
        let items = self.comma_list(')', item)?;
        self.punct(')')?;
        Ok(items)
    }

    fn dtype(&mut self) -> Parsed<DType> {
        self.word("a dtype", |w| DType::ALL.into_iter().find(|d| d.short_name() == w))
    }

    fn ty(&mut self) -> Parsed<Type> {
        let tile = |p: &mut Self, make: fn(DType, u32, u32) -> Type, dtype| {
            // `8x32` is one word.
            let (r, c) = p.word("a tile's shape, such as `8x32`", |w| {
                let (r, c) = w.split_once('x')?;
                Some((r.parse().ok()?, c.parse().ok()?))
            })?;
            p.punct('>')?;
            Ok(make(dtype, r, c))
        };
        if self.eat_word("tile") {
            self.punct('<')?;
            let dtype = self.dtype()?;
            self.punct(',')?;
            tile(self, Type::Tile, dtype)
        } else if self.eat_word("var") {
            self.punct('<')?;
            let dtype = self.dtype()?;
            if self.eat('>') {
                return Ok(Type::Var(dtype));
            }
            self.punct(',')?;
            tile(self, Type::TileVar, dtype)
        } else {
            self.dtype().map(Type::Scalar)
        }
    }

    fn value(&mut self) -> Parsed<Value> {
        let Token::Value(digits) = self.token else { return self.fail("a value, such as `%7`") };
        match digits.parse::<u32>() {
            Ok(number) if (number as usize) < self.limit => {
                self.advance();
                Ok(Value(number))
            }
            _ if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) => {
                self.fail(format!("a value below `%{}`", self.limit))
            }
            _ => self.fail("a value, such as `%7`"),
        }
    }

    fn value_after(&mut self, c: char) -> Parsed<Value> {
        self.punct(c)?;
        self.value()
    }

    /// `%7: f32`, where a value is defined.
    fn typed(&mut self) -> Parsed<Value> {
        let value = self.value()?;
        self.punct(':')?;
        let ty = self.ty()?;
        let values = &mut self.builder.kernel_mut().values;
        let unknown = ValueDef { ty: Type::Scalar(DType::Bool), loc: Loc::default() };
        if values.len() <= value.0 as usize {
            values.resize(value.0 as usize + 1, unknown);
        }
        values[value.0 as usize].ty = ty;
        Ok(value)
    }

    /// `|%1: i64; %2: f32|`: as many groups as asked for.
    fn bars<const N: usize>(&mut self) -> Parsed<[Vec<Value>; N]> {
        self.punct('|')?;
        let mut groups = [const { Vec::new() }; N];
        for (i, group) in groups.iter_mut().enumerate() {
            if i > 0 {
                self.punct(';')?;
            }
            *group = self.comma_list('|', Self::typed)?;
        }
        self.punct('|')?;
        Ok(groups)
    }

    fn one(&self, values: &[Value]) -> Parsed<Value> {
        match values {
            [value] => Ok(*value),
            [] | [..] => self.fail("one index between the bars before this"),
        }
    }

    fn kernel(mut self) -> Parsed<Kernel> {
        self.keyword("kernel")?;
        let name = self.quoted()?;
        let kind = self.word("`elementwise` or `program`", |w| match w {
            "elementwise" => Some(KernelKind::Elementwise),
            "program" => Some(KernelKind::Program),
            _ => None,
        })?;
        *self.builder.kernel_mut() = Kernel::new(name, kind);
        // The grid names operands that come after it: read it again once they are known.
        let grid_at = (self.start, self.next, self.token);
        if self.eat_word("grid") {
            self.parenthesized(Self::grid_axis)?;
        }
        let operands = self.parenthesized(Self::operand_def)?;
        self.at_most(&operands)?;
        self.builder.kernel_mut().operands = operands;
        let after_operands = (self.start, self.next, self.token);
        (self.start, self.next, self.token) = grid_at;
        if self.eat_word("grid") {
            self.builder.kernel_mut().grid_terms.clear();
            let grid = self.parenthesized(Self::grid_axis)?;
            self.builder.kernel_mut().grid = grid;
        }
        (self.start, self.next, self.token) = after_operands;
        if self.eat_word("params") {
            let params = self.parenthesized(|p| {
                let name = p.name()?;
                p.punct(':')?;
                let kinds = [ParamKind::Int, ParamKind::Bool, ParamKind::String, ParamKind::Float].map(ParamType::Of);
                let known = || kinds.into_iter().chain(DType::ALL.into_iter().map(ParamType::Scalar));
                let ty = p.word("a parameter's kind", |w| known().find(|&ty| param_type_name(ty) == w))?;
                Ok(Param { name, ty })
            })?;
            self.at_most(&params)?;
            self.builder.kernel_mut().params = params;
        }
        if self.eat_word("files") {
            let files = self.parenthesized(Self::quoted)?;
            self.own_places = false;
            self.builder.kernel_mut().files = files;
        }
        if self.is_punct('|') {
            let [elements] = self.bars()?;
            self.builder.kernel_mut().elements = elements;
        }
        self.punct('{')?;
        let yields = self.block_rest()?;
        match self.token {
            Token::End => Ok(self.builder.finish(yields)),
            Token::Word(_) | Token::Value(_) | Token::Quoted(_) | Token::Punct(_) => self.fail("the end of the text"),
        }
    }

    /// After a list of operands or parameters.
    fn at_most<T>(&self, list: &[T]) -> Parsed<()> {
        if list.len() <= MAX_OPERANDS { Ok(()) } else { self.fail(format!("at most {MAX_OPERANDS} of them")) }
    }

    fn operand_def(&mut self) -> Parsed<Operand> {
        let accesses = [Access::In, Access::Out, Access::InOut];
        let access = self.word("`in`, `out` or `inout`", |w| accesses.into_iter().find(|&a| access_name(a) == w))?;
        let name = self.name()?;
        self.punct(':')?;
        let dtype = self.dtype()?;
        let mut rank = 0;
        if self.eat('[') {
            rank = self.number()?;
            self.punct(']')?;
        }
        Ok(Operand { name, access, dtype, rank })
    }

    fn grid_axis(&mut self) -> Parsed<GridAxis> {
        if let Token::Word(word) = self.token
            && let Ok(size) = word.parse()
        {
            self.advance();
            return Ok(GridAxis::constant(size));
        }
        if self.is_punct('[') {
            return self.grid_expression();
        }
        // Before the operands are known, any name is as good.
        let known = !self.builder.kernel().operands.is_empty();
        let operand = if known || self.is_punct('#') { self.operand()? as i32 } else { self.name().map(|_| 0)? };
        self.punct('.')?;
        let dim = self.number()?;
        let size = if self.eat('/') { self.number()? } else { 1 };
        let tile = if self.eat_word("tile") { self.number()? } else { -1 };
        Ok(GridAxis { operand, dim, tile, size })
    }

    /// `[x.0, param 1, 4, mul, ceildiv]`, in postfix order.
    fn grid_expression(&mut self) -> Parsed<GridAxis> {
        self.punct('[')?;
        let mut terms = Vec::new();
        while !self.eat(']') {
            if !terms.is_empty() {
                self.punct(',')?;
            }
            if terms.len() == MAX_TERMS {
                return self.fail(format!("at most {MAX_TERMS} terms"));
            }
            terms.push(self.grid_term()?);
        }
        let all = &mut self.builder.kernel_mut().grid_terms;
        let first = all.len() as u32;
        all.extend(&terms);
        Ok(GridAxis { operand: GridAxis::EXPRESSION, dim: first, tile: -1, size: terms.len() as u64 })
    }

    fn grid_term(&mut self) -> Parsed<GridTerm> {
        if let Token::Word(word) = self.token {
            let op = GridOp::ALL.into_iter().find(|op| op.name() == word);
            if let Ok(value) = word.parse() {
                self.advance();
                return Ok(GridTerm { op: GridOp::Number, index: 0, value });
            }
            if let Some(op) = op.filter(|op| op.takes() == 2 || matches!(op, GridOp::Param | GridOp::Tile)) {
                self.advance();
                // An operand may have the same name.
                if !self.is_punct('.') {
                    let index = if op.takes() == 2 { 0 } else { self.number()? };
                    return Ok(GridTerm { op, index, value: 0 });
                }
                let index = self.builder.kernel().operands.iter().position(|operand| operand.name == word);
                self.punct('.')?;
                return Ok(GridTerm { op: GridOp::Dim, index: index.unwrap_or(0) as u32, value: self.number()? });
            }
        }
        let known = !self.builder.kernel().operands.is_empty();
        let index = if known || self.is_punct('#') { self.operand()? } else { self.name().map(|_| 0)? };
        self.punct('.')?;
        Ok(GridTerm { op: GridOp::Dim, index, value: self.number()? })
    }

    /// An index as a name or `#3`.
    fn reference(&mut self, expected: &str, find: impl FnOnce(&Kernel, &str) -> Option<usize>) -> Parsed<u32> {
        if self.eat('#') {
            return self.number();
        }
        let at = (self.start, self.next, self.token);
        let name = self.name()?;
        match find(self.builder.kernel(), &name) {
            Some(index) => Ok(index as u32),
            None => {
                (self.start, self.next, self.token) = at;
                self.fail(expected)
            }
        }
    }

    fn operand(&mut self) -> Parsed<u32> {
        self.reference("an operand", |k, name| k.operands.iter().position(|o| o.name == name))
    }

    /// The rest of a block after `{`: its instructions go to the builder, its yields are returned.
    fn block_rest(&mut self) -> Parsed<Vec<Value>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(format!("blocks nested at most {MAX_DEPTH} deep"));
        }
        let mut yields = Vec::new();
        loop {
            if self.eat_word("yield") {
                yields = self.comma_list('}', Self::value)?;
                self.punct('}')?;
                break;
            }
            if self.eat('}') {
                break;
            }
            self.inst()?;
        }
        self.depth -= 1;
        Ok(yields)
    }

    fn block(&mut self) -> Parsed<Block> {
        self.punct('{')?;
        self.builder.open_block();
        let yields = self.block_rest()?;
        Ok(self.builder.close_block(yields))
    }

    /// `@12:5`, or the place where the instruction stands in the text.
    fn loc(&mut self, (line, column): (u32, u32)) -> Parsed<Loc> {
        if !self.eat('@') {
            return Ok(if self.own_places { Loc { file: 0, line, column } } else { Loc::default() });
        }
        let mut loc = Loc { file: 0, line: self.number()?, column: 0 };
        if self.eat('/') {
            loc.file = loc.line;
            loc.line = self.number()?;
        }
        self.punct(':')?;
        loc.column = self.number()?;
        Ok(loc)
    }

    fn inst(&mut self) -> Parsed<()> {
        let place = if self.own_places { self.place() } else { (0, 0) };
        let mut results = Vec::new();
        if let Token::Value(_) = self.token {
            results = self.comma_list('=', Self::typed)?;
            self.punct('=')?;
        }
        let at = (self.start, self.next, self.token);
        let Token::Word(word) = self.token else {
            return self.fail("an instruction");
        };
        self.advance();
        let (op, loc) = if let Some(structured) = self.structured(word, place)? {
            structured
        } else if let Some(op) = self.op(word, &results)? {
            (op, self.loc(place)?)
        } else {
            (self.start, self.next, self.token) = at;
            return self.fail("an instruction");
        };
        self.set_locs(&results, &op, loc);
        self.builder.push_into(op, results, loc);
        Ok(())
    }

    /// Values have the place of the instruction that defines them.
    fn set_locs(&mut self, results: &[Value], op: &Op, loc: Loc) {
        let values = &mut self.builder.kernel_mut().values;
        let mut set = |list: &[Value]| list.iter().for_each(|v| values[v.0 as usize].loc = loc);
        set(results);
        op.blocks().iter().for_each(|(_, params)| set(params));
    }

    /// An instruction with blocks after its first word; `None` where the word names none. Each has a function of its own: nested ones
    /// lie on the stack together, which unoptimized code has little room for.
    fn structured(&mut self, word: &str, place: (u32, u32)) -> Parsed<Option<(Op, Loc)>> {
        match word {
            "if" => self.branch(place),
            "while" => self.while_loop(place),
            "for" => self.for_loop(place),
            "lanes" => self.lanes(place),
            "fold" => self.fold(place),
            "scan" => self.scan(place),
            "tile_map" => self.tile_map(place),
            _ => return Ok(None),
        }
        .map(Some)
    }

    fn branch(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let condition = self.value()?;
        let loc = self.loc(place)?;
        let then = self.block()?;
        let otherwise = if self.eat_word("else") { self.block()? } else { Block::default() };
        Ok((Op::If { condition, then, otherwise }, loc))
    }

    fn while_loop(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let loc = self.loc(place)?;
        let condition = self.block()?;
        self.keyword("do")?;
        Ok((Op::While { condition, body: self.block()? }, loc))
    }

    fn for_loop(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let lo = self.value()?;
        self.keyword("to")?;
        let hi = self.value()?;
        self.keyword("step")?;
        let step = self.value()?;
        let index = self.index()?;
        let loc = self.loc(place)?;
        Ok((Op::For { lo, hi, step, index, body: self.block()? }, loc))
    }

    fn lanes(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let len = self.value()?;
        let index = self.index()?;
        let loc = self.loc(place)?;
        Ok((Op::Lanes { len, index, body: self.block()? }, loc))
    }

    fn fold(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let len = self.value()?;
        let init = self.parenthesized(Self::value)?;
        let [index, acc] = self.bars()?;
        let index = self.one(&index)?;
        let loc = self.loc(place)?;
        let body = self.block()?;
        let (lhs, rhs, combine) = self.combine()?;
        Ok((Op::Fold { len, index, init, acc, body, lhs, rhs, combine }, loc))
    }

    fn scan(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let len = self.value()?;
        let init = self.parenthesized(Self::value)?;
        let index = self.index()?;
        let loc = self.loc(place)?;
        let item = self.block()?;
        let (lhs, rhs, combine) = self.combine()?;
        self.keyword("emit")?;
        let [prefix] = self.bars()?;
        Ok((Op::Scan { len, index, init, item, lhs, rhs, combine, prefix, emit: self.block()? }, loc))
    }

    fn tile_map(&mut self, place: (u32, u32)) -> Parsed<(Op, Loc)> {
        let inputs = self.parenthesized(Self::value)?;
        let [position, elements] = self.bars()?;
        let [row, column] = position[..] else {
            return self.fail("two coordinates before `;`");
        };
        let loc = self.loc(place)?;
        Ok((Op::TileMap { inputs, position: [row, column], elements, body: self.block()? }, loc))
    }

    /// One value between bars.
    fn index(&mut self) -> Parsed<Value> {
        let [index] = self.bars()?;
        self.one(&index)
    }

    /// An instruction without blocks after its first word; `None` where the word names none.
    fn op(&mut self, word: &str, results: &[Value]) -> Parsed<Option<Op>> {
        if let Some(op) = UnaryOp::from_name(word) {
            return Ok(Some(Op::Unary(op, self.value()?)));
        }
        if let Some(op) = BinaryOp::from_name(word) {
            return Ok(Some(Op::Binary(op, self.value()?, self.value_after(',')?)));
        }
        if let Some(op) = CmpOp::from_name(word) {
            return Ok(Some(Op::Cmp(op, self.value()?, self.value_after(',')?)));
        }
        Ok(Some(match word {
            "const" => Op::Const(self.constant(results)?),
            "param" => {
                Op::Param(self.reference("a parameter", |k, name| k.params.iter().position(|p| p.name == name))?)
            }
            "program_id" => Op::ProgramId(self.number()?),
            "num_programs" => Op::NumPrograms(self.number()?),
            "dim" => {
                let operand = self.operand()?;
                self.punct('.')?;
                Op::Dim { operand, axis: self.number()? }
            }
            "select" => Op::Select(self.value()?, self.value_after(',')?, self.value_after(',')?),
            "fma" => Op::Fma(self.value()?, self.value_after(',')?, self.value_after(',')?),
            "cast" => Op::Cast(self.value()?),
            "bitcast" => Op::Bitcast(self.value()?),
            "round" => Op::Round(self.dtype()?, self.value()?),
            "from_bits" => Op::FromBits(self.dtype()?, self.value()?),
            "to_bits" => Op::ToBits(self.dtype()?, self.value()?),
            "load" => {
                let (operand, index) = self.element()?;
                let pad = if self.eat_word("pad") { Some(self.value()?) } else { None };
                Op::Load { operand, index, pad }
            }
            "store" | "scatter" => {
                let (operand, index) = self.element()?;
                Op::Store { operand, index, value: self.value_after('=')?, scatter: word == "scatter" }
            }
            "atomic" => {
                let op = self.word("an atomic operation", AtomicOp::from_name)?;
                let (operand, index) = self.element()?;
                Op::Atomic { op, operand, index, value: self.value_after('=')? }
            }
            "print" => Op::Print { label: self.quoted()?, values: self.parenthesized(Self::value)? },
            "var" => Op::Var(self.value()?),
            "get" => Op::Get(self.value()?),
            "set" => Op::Set(self.value()?, self.value_after('=')?),
            "tile_full" => Op::TileFull(self.value()?),
            "tile_load" => {
                let (operand, batch, origin) = self.tile_place()?;
                Op::TileLoad { operand, batch, origin, transpose: self.eat_word("transposed") }
            }
            "tile_store" => {
                let (operand, batch, origin) = self.tile_place()?;
                Op::TileStore { operand, batch, origin, value: self.value_after('=')? }
            }
            "tile_reduce" => Op::TileReduce(self.word("a reduction", ReduceOp::from_name)?, self.value()?),
            "tile_element" => Op::TileElement(self.value()?, [self.value_after(',')?, self.value_after(',')?]),
            "dot" => Op::Dot(self.value()?, self.value_after(',')?, self.value_after(',')?),
            "tile_cast" => Op::TileCast(self.value()?),
            "tile_round" => Op::TileRound(self.dtype()?, self.value()?),
            _ => return Ok(None),
        }))
    }

    fn combine(&mut self) -> Parsed<(Vec<Value>, Vec<Value>, Block)> {
        self.keyword("combine")?;
        let [lhs, rhs] = self.bars()?;
        Ok((lhs, rhs, self.block()?))
    }

    fn constant(&mut self, results: &[Value]) -> Parsed<u64> {
        if self.eat_word("bits") {
            return self
                .word("hexadecimal bits, such as `0x7f`", |w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
        }
        let ty = results.first().map(|&v| self.builder.ty(v));
        let Some(Type::Scalar(dtype)) = ty else {
            return self.fail("`bits` of a constant that is no scalar");
        };
        self.word(&format!("a constant of dtype {}", dtype.short_name()), |w| constant_bits(dtype, w))
    }

    fn element(&mut self) -> Parsed<(u32, Vec<Value>)> {
        let operand = self.operand()?;
        self.punct('[')?;
        let index = self.comma_list(']', Self::value)?;
        self.punct(']')?;
        Ok((operand, index))
    }

    fn tile_place(&mut self) -> Parsed<(u32, Vec<Value>, [Value; 2])> {
        let (operand, index) = self.element()?;
        match index[..] {
            [ref batch @ .., row, column] => Ok((operand, batch.to_vec(), [row, column])),
            [] | [_] => self.fail("at least two coordinates before this"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    #[test]
    fn lines_are_counted_once() {
        for separator in ["\n", " "] {
            let steps = |count: usize| {
                let insts: String = (0..count).map(|i| format!("%{i}: i64 = const 1{separator}")).collect();
                let text = format!("kernel \"k\" program grid(1) () {{\n{insts}}}\n");
                steps::of(|| {
                    let kernel = parse_file("k.ir", &text).unwrap();
                    let last = kernel.body.insts.last().unwrap().loc;
                    assert_eq!(last.line, if separator == "\n" { count as u32 + 1 } else { 2 });
                    assert_eq!(last.column > 1, separator != "\n");
                })
            };
            let [few, many] = [1000, 8000].map(steps);
            assert!(many < few * 9, "{few} steps, then {many}");
        }
    }

    #[test]
    fn limits_are_named() {
        let operands: Vec<String> = (0..=MAX_OPERANDS).map(|i| format!("in x{i}: f32")).collect();
        let deep = "if %0 { ".repeat(MAX_DEPTH as usize + 1);
        for (text, limit) in [
            (format!("kernel \"k\" elementwise ({})", operands.join(", ")), "at most 1024 of them"),
            (
                format!("kernel \"k\" program grid(1) () {{ %0: bool = const true {deep}"),
                "blocks nested at most 200 deep",
            ),
            ("kernel \"k\" program grid(1) () { %1056: i64 = const 1 }".to_owned(), "a value below `%1056`"),
            ("kernel \"k\" program grid(1) () { // %0\n %1056: i64 = const 1 }".to_owned(), "a value below `%1056`"),
            (
                format!("kernel \"k\" program grid(1) () {{ yield {} %4194304 }}", "%0, ".repeat(1 << 17)),
                "a value below `%4194304`",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert_eq!(error.expected, limit);
        }
        let kernel = parse("kernel \"k\" program grid(1) () { %1055: i64 = const 1 }").unwrap();
        assert_eq!(parse(&kernel.to_string()).unwrap().to_string(), kernel.to_string());
    }
}
