//! Names in scope while a body is read.

use std::collections::HashMap;

use syn::Ident;

use super::literal::Literal;

/// A use, or the definition, of a variable of the kernel.
#[derive(Clone)]
pub struct Local {
    /// The author's token.
    pub ident: Ident,
    /// The same for every use of one variable.
    pub id: usize,
    /// What it is.
    pub kind: LocalKind,
}

/// What a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// Never assigned after its definition.
    Value,
    /// Declared with `mut`.
    Var,
    /// An `x: &mut T` argument.
    InOut,
    /// A tensor argument, of that index among the arguments.
    Tensor(usize),
    /// A tensor argument that may be absent, of that index among the arguments.
    Optional(usize),
    /// A `&str` parameter.
    Str,
    /// Something whose definition was reported: its uses are not.
    Unknown,
}

/// What a name stands for.
#[derive(Clone)]
pub enum Binding {
    /// A variable, and how many closures enclose its definition.
    Local { id: usize, kind: LocalKind, depth: usize },
    /// A literal that is substituted.
    Literal(Literal),
}

/// The names in scope, innermost last.
#[derive(Default)]
pub struct Scope {
    frames: Vec<HashMap<String, Binding>>,
    next: usize,
    /// How many closures enclose the current place.
    pub depth: usize,
}

impl Scope {
    /// What `name` stands for.
    pub fn find(&self, name: &Ident) -> Option<&Binding> {
        let name = name.to_string();
        self.frames.iter().rev().find_map(|frame| frame.get(&name))
    }

    /// Opens a block.
    pub fn enter(&mut self) {
        self.frames.push(HashMap::new());
    }

    /// Closes a block.
    pub fn leave(&mut self) {
        self.frames.pop();
    }

    /// Defines a variable.
    pub fn define(&mut self, ident: &Ident, kind: LocalKind) -> Local {
        let id = self.next;
        self.next += 1;
        self.bind(ident, Binding::Local { id, kind, depth: self.depth });
        Local { ident: ident.clone(), id, kind }
    }

    /// Defines a name that stands for a literal.
    pub fn define_literal(&mut self, ident: &Ident, literal: Literal) {
        self.bind(ident, Binding::Literal(literal));
    }

    fn bind(&mut self, ident: &Ident, binding: Binding) {
        if self.frames.is_empty() {
            self.enter();
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(ident.to_string(), binding);
        }
    }
}
