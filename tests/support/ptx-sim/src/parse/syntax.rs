//! The structure of PTX text: directives, declarations, labels and
//! instructions, before any instruction is understood.

use std::collections::HashMap;

use crate::parse::error::ParseError;
use crate::parse::lex::{Spanned, Token, tokens};
use crate::types::Ty;

/// A number written in the text, typed only where it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Literal {
    /// An integer, two's complement.
    Int(u64),
    /// The bits of an `0f…` literal.
    F32(u32),
    F64(f64),
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, variable, label, or special register (`%tid.x`).
    Name(String),
    Literal(Literal),
    /// A variable and an offset: `buf+16`.
    Offset(String, i64),
    /// `[name+offset]`, `[name]` or `[offset]`.
    Address(Option<String>, i64),
    /// `[name+offset, {a, b, …}]`: a tensor map and coordinates.
    Tensor(String, i64, Vec<Operand>),
    /// `{a, b, …}`
    Vector(Vec<Operand>),
    /// `(a, b, …)`, of a call.
    List(Vec<Operand>),
    /// `p|q`
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`
    Not(Box<Operand>),
    /// `_`
    Sink,
}

/// A state space in which variables are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Addresses that may point into any space.
    Generic,
    /// Device memory.
    Global,
    /// Memory of one block.
    Shared,
    /// Memory of one thread.
    Local,
    /// Kernel parameters.
    Param,
    /// Constant memory.
    Const,
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "param",
            Space::Const => "const",
        })
    }
}

/// A variable: its place, size and initial value.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub space: Space,
    pub ty: Ty,
    pub align: u32,
    /// Size in bytes; zero for `buf[]`.
    pub bytes: u64,
    pub external: bool,
    /// The initial bytes, where an initializer is written.
    pub init: Option<Vec<u8>>,
    pub line: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    /// The guard predicate and whether it is negated.
    pub guard: Option<(String, bool)>,
    pub opcode: String,
    pub modifiers: Vec<String>,
    pub operands: Vec<Operand>,
}

#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// Names with a common type; `%r<10>` is given as its ten names.
    Registers(Ty, Vec<String>, u32),
    Variable(Variable),
    Label(String, u32),
    Instruction(Instruction),
    Open,
    Close,
}

#[derive(Clone, Debug)]
pub(crate) struct EntryText {
    pub name: String,
    pub line: u32,
    pub params: Vec<Variable>,
    pub body: Vec<Statement>,
    /// `.maxntid` or `.reqntid`, and whether it is required.
    pub max_threads: Option<([u32; 3], bool)>,
    /// `.minnctapersm` and `.maxnreg`.
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleText {
    pub version: String,
    pub target: String,
    pub variables: Vec<Variable>,
    pub entries: Vec<EntryText>,
    /// The source files that `.file` numbers.
    pub files: HashMap<u64, String>,
    /// Where `.loc` stands, and which source line it says.
    pub places: Vec<SourceLine>,
}

/// A `.loc`: the code from a line of the PTX on is for a line of a source file. None ends at an entry's start.
#[derive(Clone, Debug)]
pub(crate) struct SourceLine {
    pub ptx_line: u32,
    /// The file's number, its line and its column.
    pub at: Option<(u64, u64, u64)>,
}

/// Reads the structure of a module.
pub(crate) fn parse(text: &str) -> Result<ModuleText, ParseError> {
    let mut reader =
        Reader { tokens: tokens(text)?, at: 0, lines: text.lines().collect(), last: 1, places: Vec::new() };
    reader.module()
}

struct Reader<'a> {
    tokens: Vec<Spanned>,
    at: usize,
    lines: Vec<&'a str>,
    last: u32,
    places: Vec<SourceLine>,
}

type Parsed<T> = Result<T, ParseError>;

impl Reader<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|s| &s.token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).map_or(self.last, |s| s.line)
    }

    fn fail<T>(&self, line: u32, message: impl Into<String>) -> Parsed<T> {
        let text = self.lines.get(line as usize - 1).copied().unwrap_or("");
        Err(ParseError::new(line, text, message))
    }

    fn next(&mut self) -> Parsed<Token> {
        match self.tokens.get(self.at) {
            Some(s) => {
                self.at += 1;
                self.last = s.line;
                Ok(s.token.clone())
            }
            None => self.fail(self.last, "the text ends in the middle of a statement"),
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let hit = self.peek() == Some(&Token::Punct(c));
        self.at += usize::from(hit);
        hit
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        let line = self.line();
        match self.next()? {
            Token::Punct(p) if p == c => Ok(()),
            other => self.fail(line, format!("expected `{c}`, found {other}")),
        }
    }

    fn word(&mut self) -> Parsed<String> {
        let line = self.line();
        match self.next()? {
            Token::Word(w) => Ok(w),
            other => self.fail(line, format!("expected a name, found {other}")),
        }
    }

    fn integer(&mut self) -> Parsed<u64> {
        let negative = self.eat('-');
        let line = self.line();
        match self.next()? {
            Token::Int(v) => Ok(if negative { v.wrapping_neg() } else { v }),
            other => self.fail(line, format!("expected an integer, found {other}")),
        }
    }

    fn module(&mut self) -> Parsed<ModuleText> {
        let mut module = ModuleText::default();
        let mut external = false;
        while let Some(token) = self.peek().cloned() {
            let line = self.line();
            let Token::Dot(directive) = &token else {
                return self.fail(line, format!("expected a directive, found {token}"));
            };
            match directive.as_str() {
                "version" => {
                    self.at += 1;
                    module.version = match self.next()? {
                        Token::Double(v) => format!("{v:.1}"),
                        other => return self.fail(line, format!("no version: {other}")),
                    };
                }
                "target" => {
                    self.at += 1;
                    module.target = self.word()?;
                    while self.eat(',') {
                        self.word()?;
                    }
                }
                "address_size" => {
                    self.at += 1;
                    if self.integer()? != 64 {
                        return self.fail(line, "only 64-bit addresses are simulated");
                    }
                }
                "file" => {
                    self.at += 1;
                    let index = self.integer()?;
                    match self.next()? {
                        Token::Text(name) => module.files.insert(index, name),
                        other => return self.fail(line, format!("expected a file's name, found {other}")),
                    };
                    // A time and a size may follow.
                    while self.eat(',') {
                        self.integer()?;
                    }
                }
                "pragma" => self.skip_statement()?,
                "section" => self.skip_section()?,
                "visible" | "weak" => self.at += 1,
                "extern" => {
                    external = true;
                    self.at += 1;
                }
                "func" if external => {
                    external = false;
                    self.at += 1;
                    self.declared_function()?;
                }
                "entry" => module.entries.push(self.entry()?),
                "global" | "const" | "shared" => {
                    let variables = self.variables(external)?;
                    module.variables.extend(variables);
                    external = false;
                }
                other => {
                    return self.fail(line, format!("the directive `.{other}` is not simulated"));
                }
            }
        }
        if module.version.is_empty() || module.target.is_empty() {
            return self.fail(1, "a module starts with `.version` and `.target`");
        }
        module.places = std::mem::take(&mut self.places);
        for place in &module.places {
            if place.at.is_some_and(|(file, ..)| !module.files.contains_key(&file)) {
                return self.fail(place.ptx_line, "`.loc` of a file that no `.file` names");
            }
        }
        Ok(module)
    }

    fn skip_statement(&mut self) -> Parsed<()> {
        while self.next()? != Token::Punct(';') {}
        Ok(())
    }

    fn skip_section(&mut self) -> Parsed<()> {
        while self.next()? != Token::Punct('}') {}
        Ok(())
    }

    /// `(.param .b32 r) name(.param .b64 a, …);`
    fn declared_function(&mut self) -> Parsed<()> {
        self.expect('(')?;
        self.function_param(Ty::B32)?;
        self.expect(')')?;
        let line = self.line();
        let name = self.word()?;
        if name != "vprintf" {
            return self.fail(line, format!("the function `{name}` is not simulated"));
        }
        self.expect('(')?;
        self.function_param(Ty::B64)?;
        self.expect(',')?;
        self.function_param(Ty::B64)?;
        self.expect(')')?;
        self.expect(';')
    }

    fn function_param(&mut self, ty: Ty) -> Parsed<()> {
        let line = self.line();
        match self.next()? {
            Token::Dot(d) if d == "param" => {}
            other => return self.fail(line, format!("expected `.param`, found {other}")),
        }
        let param = self.variable(Space::Param, false)?;
        if param.ty == ty { Ok(()) } else { self.fail(line, format!("the parameter must be of type {ty:?}")) }
    }

    fn entry(&mut self) -> Parsed<EntryText> {
        let line = self.line();
        self.at += 1;
        let name = self.word()?;
        let mut params = Vec::new();
        if self.eat('(') && !self.eat(')') {
            loop {
                let line = self.line();
                match self.next()? {
                    Token::Dot(d) if d == "param" => {}
                    other => return self.fail(line, format!("expected `.param`, found {other}")),
                }
                params.push(self.variable(Space::Param, false)?);
                if !self.eat(',') {
                    self.expect(')')?;
                    break;
                }
            }
        }
        let (mut max_threads, mut min_blocks, mut max_registers) = (None, None, None);
        while let Some(Token::Dot(directive)) = self.peek().cloned() {
            let line = self.line();
            self.at += 1;
            let mut numbers = vec![self.integer()? as u32];
            while self.eat(',') {
                numbers.push(self.integer()? as u32);
            }
            match directive.as_str() {
                "maxntid" | "reqntid" => {
                    numbers.resize(3, 1);
                    max_threads = Some(([numbers[0], numbers[1], numbers[2]], directive == "reqntid"));
                }
                "minnctapersm" => min_blocks = Some(numbers[0]),
                "maxnreg" => max_registers = Some(numbers[0]),
                "maxnctapersm" => {}
                other => {
                    return self.fail(line, format!("the directive `.{other}` is not simulated"));
                }
            }
        }
        self.expect('{')?;
        self.places.push(SourceLine { ptx_line: line, at: None });
        let mut body = Vec::new();
        let mut depth = 0;
        loop {
            if self.eat('}') {
                if depth == 0 {
                    break;
                }
                depth -= 1;
                body.push(Statement::Close);
            } else if self.eat('{') {
                depth += 1;
                body.push(Statement::Open);
            } else {
                self.statement(&mut body)?;
            }
        }
        Ok(EntryText { name, line, params, body, max_threads, min_blocks, max_registers })
    }

    fn statement(&mut self, body: &mut Vec<Statement>) -> Parsed<()> {
        let line = self.line();
        match self.peek().cloned() {
            Some(Token::Dot(directive)) => match directive.as_str() {
                "reg" => {
                    self.at += 1;
                    let (ty, names) = self.registers()?;
                    body.push(Statement::Registers(ty, names, line));
                }
                "shared" | "local" | "param" => {
                    let variables = self.variables(false)?;
                    body.extend(variables.into_iter().map(Statement::Variable));
                }
                "loc" => {
                    self.at += 1;
                    let at = Some((self.integer()?, self.integer()?, self.integer()?));
                    self.places.push(SourceLine { ptx_line: line, at });
                }
                "pragma" => self.skip_statement()?,
                other => {
                    return self.fail(line, format!("the directive `.{other}` is not simulated"));
                }
            },
            Some(Token::Word(name)) if self.tokens.get(self.at + 1).map(|s| &s.token) == Some(&Token::Punct(':')) => {
                self.at += 2;
                body.push(Statement::Label(name, line));
            }
            _ => {
                let instruction = self.instruction()?;
                body.push(Statement::Instruction(instruction));
            }
        }
        Ok(())
    }

    fn registers(&mut self) -> Parsed<(Ty, Vec<String>)> {
        let ty = self.ty()?;
        let mut names = Vec::new();
        loop {
            let line = self.line();
            let name = self.word()?;
            if self.eat('<') {
                let count = self.integer()?;
                self.expect('>')?;
                if count > 1 << 16 {
                    return self.fail(line, format!("{count} registers in one declaration"));
                }
                names.extend((0..count).map(|i| format!("{name}{i}")));
            } else {
                names.push(name);
            }
            if !self.eat(',') {
                self.expect(';')?;
                return Ok((ty, names));
            }
        }
    }

    fn ty(&mut self) -> Parsed<Ty> {
        let line = self.line();
        match self.next()? {
            Token::Dot(name) => match Ty::named(&name) {
                Some(ty) => Ok(ty),
                None => self.fail(line, format!("`.{name}` is no type that is simulated")),
            },
            other => self.fail(line, format!("expected a type, found {other}")),
        }
    }

    /// The variables of a `.global`, `.const`, `.shared`, `.local` or (for a call) `.param` line.
    fn variables(&mut self, external: bool) -> Parsed<Vec<Variable>> {
        let line = self.line();
        let space = match self.next()? {
            Token::Dot(d) if d == "global" => Space::Global,
            Token::Dot(d) if d == "const" => Space::Const,
            Token::Dot(d) if d == "shared" => Space::Shared,
            Token::Dot(d) if d == "local" => Space::Local,
            Token::Dot(d) if d == "param" => Space::Param,
            other => return self.fail(line, format!("no state space: {other}")),
        };
        let variable = self.variable(space, external)?;
        self.expect(';')?;
        Ok(vec![variable])
    }

    fn variable(&mut self, space: Space, external: bool) -> Parsed<Variable> {
        let line = self.line();
        let mut align = None;
        let mut ty = None;
        while let Some(Token::Dot(word)) = self.peek().cloned() {
            self.at += 1;
            match word.as_str() {
                "align" => align = Some(self.integer()? as u32),
                // `.ptr .global .align 16` on a parameter is a promise about
                // the pointer, not about the parameter.
                "ptr" => {
                    while let Some(Token::Dot(hint)) = self.peek().cloned() {
                        self.at += 1;
                        if hint == "align" {
                            self.integer()?;
                        }
                    }
                }
                name => match Ty::named(name) {
                    Some(found) => ty = Some(found),
                    None => return self.fail(line, format!("`.{name}` in a declaration")),
                },
            }
        }
        let Some(ty) = ty else {
            return self.fail(line, "a declaration without a type");
        };
        let name = self.word()?;
        let mut bytes = u64::from(ty.bytes());
        if self.eat('[') {
            bytes = if self.eat(']') {
                0
            } else {
                let count = self.integer()?;
                self.expect(']')?;
                count * bytes
            };
        }
        let init = if self.eat('=') { Some(self.initializer(ty)?) } else { None };
        if let Some(init) = &init
            && bytes == 0
        {
            bytes = init.len() as u64;
        }
        let align = align.unwrap_or(ty.bytes());
        if !align.is_power_of_two() {
            return self.fail(line, format!("an alignment of {align} is no power of two"));
        }
        Ok(Variable { name, space, ty, align, bytes, external, init, line })
    }

    fn initializer(&mut self, ty: Ty) -> Parsed<Vec<u8>> {
        let mut out = Vec::new();
        let list = self.eat('{');
        loop {
            let line = self.line();
            let Operand::Literal(value) = self.operand()? else {
                return self.fail(line, "an initializer is made of numbers");
            };
            let bits = match (value, ty) {
                (Literal::Int(v), _) => v,
                (Literal::F32(v), _) => u64::from(v),
                (Literal::F64(v), Ty::F32) => u64::from((v as f32).to_bits()),
                (Literal::F64(v), _) => v.to_bits(),
            };
            out.extend_from_slice(&bits.to_le_bytes()[..(ty.bytes() as usize).min(8)]);
            if !(list && self.eat(',')) {
                break;
            }
        }
        if list {
            self.expect('}')?;
        }
        Ok(out)
    }

    fn instruction(&mut self) -> Parsed<Instruction> {
        let line = self.line();
        let guard = if self.eat('@') {
            let negated = self.eat('!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let opcode = self.word()?;
        let mut modifiers = Vec::new();
        while let Some(Token::Dot(m)) = self.peek() {
            modifiers.push(m.clone());
            self.at += 1;
        }
        let mut operands = Vec::new();
        if !self.eat(';') {
            loop {
                operands.push(self.operand()?);
                if !self.eat(',') {
                    self.expect(';')?;
                    break;
                }
            }
        }
        Ok(Instruction { line, guard, opcode, modifiers, operands })
    }

    fn operand(&mut self) -> Parsed<Operand> {
        let first = self.simple_operand()?;
        if self.eat('|') {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self) -> Parsed<Operand> {
        let line = self.line();
        if self.eat('!') {
            return Ok(Operand::Not(Box::new(self.simple_operand()?)));
        }
        if self.eat('[') {
            let base = match self.peek() {
                Some(Token::Word(w)) => Some(w.clone()),
                _ => None,
            };
            self.at += usize::from(base.is_some());
            let offset = if base.is_none() { self.integer()? as i64 } else { self.offset()? };
            if self.eat(',') {
                let (Some(base), Operand::Vector(items)) = (base, self.simple_operand()?) else {
                    return self.fail(line, "a tensor map and its coordinates in braces are needed");
                };
                self.expect(']')?;
                return Ok(Operand::Tensor(base, offset, items));
            }
            self.expect(']')?;
            return Ok(Operand::Address(base, offset));
        }
        for (open, close) in [('{', '}'), ('(', ')')] {
            if self.eat(open) {
                let mut items = vec![self.simple_operand()?];
                while self.eat(',') {
                    items.push(self.simple_operand()?);
                }
                self.expect(close)?;
                return Ok(if open == '{' { Operand::Vector(items) } else { Operand::List(items) });
            }
        }
        let negative = self.eat('-');
        Ok(match self.next()? {
            Token::Int(v) if negative => Operand::Literal(Literal::Int(v.wrapping_neg())),
            Token::Int(v) => Operand::Literal(Literal::Int(v)),
            Token::Float(v) => Operand::Literal(Literal::F32(v ^ if negative { 1 << 31 } else { 0 })),
            Token::Double(v) => Operand::Literal(Literal::F64(if negative { -v } else { v })),
            Token::Word(w) if w == "_" && !negative => Operand::Sink,
            Token::Word(w) if w == "WARP_SZ" && !negative => Operand::Literal(Literal::Int(32)),
            Token::Word(w) if !negative => {
                if let Some(Token::Dot(part)) = self.peek().cloned() {
                    self.at += 1;
                    Operand::Name(format!("{w}.{part}"))
                } else {
                    match self.offset()? {
                        0 => Operand::Name(w),
                        offset => Operand::Offset(w, offset),
                    }
                }
            }
            other => return self.fail(line, format!("{other} is no operand")),
        })
    }

    /// `+4`, `+-4`, `-4` or nothing.
    fn offset(&mut self) -> Parsed<i64> {
        if self.eat('+') || self.peek() == Some(&Token::Punct('-')) { Ok(self.integer()? as i64) } else { Ok(0) }
    }
}
