//! The body of a kernel as a tree of the language's own constructs.
//!
//! [`parse`] makes it from Rust's syntax: names are resolved, literals are folded, and what the language lacks has been
//! reported. What follows (grid inference, printing) matches without a catch-all and reports nothing about syntax.

mod across;
mod columns;
mod constant;
mod control;
mod defaults;
mod expr;
mod literal;
mod parse;
mod pattern;
mod scope;
mod transposed;

pub use self::across::runs_across;
pub use self::columns::{COLUMNS, Columns, columns};
pub use self::constant::Decided;
pub use self::literal::{Literal, LiteralClass};
pub use self::parse::{BodyInput, parse};
pub use self::scope::{Local, LocalKind};
pub use self::transposed::transposed;

use std::cell::Cell;

use proc_macro2::{Span, TokenStream};
use syn::Ident;

use crate::methods::Method;
use crate::signature::types::{DtypeUse, Ty};

/// `{ .. }`
#[derive(Clone, Default)]
pub struct Block {
    /// The statements.
    pub stmts: Vec<Stmt>,
    /// The value, if the last expression has no semicolon.
    pub tail: Option<Box<Expr>>,
}

/// A statement. Bodies are small and short-lived: boxing a field would cost more than it saves.
#[allow(clippy::large_enum_variant)]
#[derive(Clone)]
pub enum Stmt {
    /// `let pat: ty = init;`
    Let { pat: Pat, ty: Option<Ty>, init: Expr, span: Span },
    /// `x = value;`, with compound assignments already expanded.
    Assign { target: Local, value: Expr, span: Span },
    /// `(a, b) = value;`; `None` stands for `_`.
    AssignTuple { targets: Vec<Option<Local>>, value: Expr, span: Span },
    /// An expression for its effect; `semi` says whether a semicolon followed.
    Expr { expr: Expr, semi: bool },
}

/// A pattern.
#[derive(Clone)]
pub enum Pat {
    /// `x`
    Value(Local),
    /// `mut x`
    Var(Local),
    /// `_`
    Wild(Span),
    /// `(a, b)`
    Tuple(Vec<Pat>, Span),
    /// `[m, n]`, of program ids.
    Array(Vec<Pat>, Span),
    /// `x: T`, in a closure.
    Typed(Box<Pat>, Ty),
}

/// An expression.
#[derive(Clone)]
pub enum Expr {
    /// A number, or an expression of numbers.
    Literal(Literal),
    /// `true`, `false`
    Bool(bool, Span),
    /// A variable of the kernel, or an argument.
    Local(Local),
    /// `x.is_some()`, of an operand that may be absent.
    IsGiven(Local),
    /// Such an operand, where it is there.
    Given(Local),
    /// A tile constant as a number.
    TileConst(Ident),
    /// Another path, which rustc resolves.
    Path(syn::Path),
    /// `T::MAX`
    DtypeConst { dtype: DtypeUse, method: &'static str, name: Ident },
    /// `-a`, `!a`
    Unary { op: TokenStream, value: Box<Expr>, span: Span },
    /// `a + b`, and the logical operators.
    Binary { op: TokenStream, left: Box<Expr>, right: Box<Expr>, span: Span },
    /// `a < b`
    Compare { function: &'static str, left: Box<Expr>, right: Box<Expr>, span: Span },
    /// `mode == "tanh"`
    StrEq { value: Box<Expr>, text: syn::LitStr, negated: bool, span: Span },
    /// `a as T`
    Cast { value: Box<Expr>, dtype: DtypeUse, span: Span },
    /// A function of the language: `dot(a, b, acc)`.
    Builtin { function: Ident, args: Vec<Expr> },
    /// `program_id(0)`, `num_programs(0)`
    ProgramId { function: Ident, axis: syn::LitInt },
    /// `program_id()`, taken apart into so many axes.
    ProgramIds { function: Ident, count: usize },
    /// Another kernel function.
    Call { path: syn::Path, turbofish: Vec<GenericArg>, args: Vec<Expr> },
    /// `Tile::<f32, 8, 8>::zeros()`, `T::max(a, b)`
    TypeCall { ty: Ty, method: Ident, turbofish: Vec<GenericArg>, args: Vec<Expr> },
    /// `a.max(b)`; `checked` says that it is an access to an output, and that the program's own part was found to be what it touches.
    Method { receiver: Box<Expr>, method: Ident, turbofish: Vec<GenericArg>, args: Vec<Expr>, checked: Cell<bool> },
    /// An argument that stays as it is: the label of `print`.
    Raw(TokenStream),
    /// `|a, b| value`
    Closure { moves: Option<syn::Token![move]>, inputs: Vec<Pat>, value: Box<Expr>, span: Span },
    /// `if c { .. } else { .. }`; `lane` says that both sides may be computed.
    If { condition: Box<Expr>, then: Block, otherwise: Option<Block>, lane: bool, span: Span },
    /// `for i in range(lo, hi, step) { .. }`
    For { pat: Pat, lo: Box<Expr>, hi: Box<Expr>, step: Option<Box<Expr>>, body: Block, span: Span },
    /// `while c { .. }`
    While { condition: Box<Expr>, body: Block, span: Span },
    /// `{ .. }`
    Block(Block, Span),
    /// `(a, b)`, `()`
    Tuple(Vec<Expr>, Span),
    /// `[i, j]`, an index
    Array(Vec<Expr>, Span),
    /// `(a)`
    Paren(Box<Expr>, Span),
    /// `t.0`
    Field { base: Box<Expr>, index: syn::Index },
    /// Something that was reported.
    Error,
}

/// A generic argument of a call.
#[derive(Clone)]
pub enum GenericArg {
    /// A dtype.
    Dtype(DtypeUse),
    /// A tile type.
    Type(Ty),
    /// A size.
    Const(TokenStream),
}

impl Pat {
    /// The names it defines.
    pub fn names(&self) -> Vec<Ident> {
        match self {
            Pat::Value(local) | Pat::Var(local) => vec![local.ident.clone()],
            Pat::Wild(_) => Vec::new(),
            Pat::Tuple(items, _) | Pat::Array(items, _) => items.iter().flat_map(Pat::names).collect(),
            Pat::Typed(pat, _) => pat.names(),
        }
    }
}

impl Block {
    /// The expressions that stand directly in the block.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let stmts = self.stmts.iter().map(|stmt| match stmt {
            Stmt::Let { init: value, .. }
            | Stmt::Assign { value, .. }
            | Stmt::AssignTuple { value, .. }
            | Stmt::Expr { expr: value, .. } => value,
        });
        stmts.chain(self.tail.as_deref())
    }

    /// Whether the block assigns, loops or writes, so that it must not run when it is not asked for.
    pub fn has_effects(&self) -> bool {
        let assigns = self.stmts.iter().any(|s| matches!(s, Stmt::Assign { .. } | Stmt::AssignTuple { .. }));
        assigns || self.exprs().any(Expr::has_effects)
    }

    /// Whether something is printed.
    pub fn prints(&self) -> bool {
        self.exprs().any(Expr::prints)
    }

    /// Whether it may be that tiles are held: what other functions do is not known here.
    pub fn may_hold_tiles(&self) -> bool {
        self.exprs().any(Expr::may_hold_tiles)
    }
}

/// Methods that write.
const EFFECTS: [&str; 7] =
    ["scatter", "set", "write", "write_scan", "write_exclusive_scan", "write_any_scan", "for_each"];

/// What [`Expr::children`] and [`Expr::children_mut`] are.
macro_rules! children {
    ($expr:expr, $iter:ident, $option:ident $(, $mutable:tt)?) => {
        match $expr {
            Expr::Literal(_)
            | Expr::Bool(..)
            | Expr::Local(_)
            | Expr::IsGiven(_)
            | Expr::Given(_)
            | Expr::TileConst(_)
            | Expr::Path(_)
            | Expr::DtypeConst { .. }
            | Expr::ProgramId { .. }
            | Expr::ProgramIds { .. }
            | Expr::Raw(_)
            | Expr::Block(..)
            | Expr::Error => Vec::new(),
            Expr::Unary { value, .. }
            | Expr::StrEq { value, .. }
            | Expr::Cast { value, .. }
            | Expr::Closure { value, .. }
            | Expr::Paren(value, _)
            | Expr::Field { base: value, .. } => vec![value],
            Expr::Binary { left, right, .. } | Expr::Compare { left, right, .. } => vec![left, right],
            Expr::Builtin { args, .. }
            | Expr::Call { args, .. }
            | Expr::TypeCall { args, .. }
            | Expr::Tuple(args, _)
            | Expr::Array(args, _) => args.$iter().collect(),
            Expr::Method { receiver, args, .. } => std::iter::once(&$($mutable)? **receiver).chain(args).collect(),
            Expr::If { condition, .. } | Expr::While { condition, .. } => vec![condition],
            Expr::For { lo, hi, step, .. } => {
                [Some(lo), Some(hi), step.$option()].into_iter().flatten().map(|e| &$($mutable)? **e).collect()
            }
        }
    };
}

/// What [`Expr::blocks`] and [`Expr::blocks_mut`] are.
macro_rules! blocks {
    ($expr:expr) => {
        match $expr {
            Expr::Block(block, _) | Expr::For { body: block, .. } | Expr::While { body: block, .. } => vec![block],
            Expr::If { then, otherwise, .. } => std::iter::once(then).chain(otherwise).collect(),
            _ => Vec::new(),
        }
    };
}

impl Expr {
    fn has_effects(&self) -> bool {
        match self {
            Expr::For { .. } | Expr::While { .. } => true,
            Expr::Method { method, .. } if is_effect(method) => true,
            Expr::Builtin { function, .. } if function == "print" => true,
            Expr::Block(block, _) => block.has_effects(),
            Expr::If { condition, then, otherwise, .. } => {
                condition.has_effects() || then.has_effects() || otherwise.as_ref().is_some_and(Block::has_effects)
            }
            other => other.children().into_iter().any(Expr::has_effects),
        }
    }

    fn prints(&self) -> bool {
        let here = matches!(self, Expr::Builtin { function, .. } if function == "print");
        here || self.children().into_iter().any(Expr::prints) || self.blocks().into_iter().any(Block::prints)
    }

    fn may_hold_tiles(&self) -> bool {
        let here = match self {
            Expr::Call { .. } | Expr::TypeCall { ty: Ty::Tile { .. }, .. } => true,
            Expr::Builtin { function, .. } => function == "dot" || function == "dot_scaled",
            Expr::Method { method, .. } | Expr::TypeCall { method, .. } => Method::may_make_tiles(method),
            _ => false,
        };
        here || self.children().into_iter().any(Expr::may_hold_tiles)
            || self.blocks().into_iter().any(Block::may_hold_tiles)
    }

    /// The expressions that this one is made of, except those inside blocks.
    pub fn children(&self) -> Vec<&Expr> {
        children!(self, iter, as_ref)
    }

    /// The same, to be changed.
    pub fn children_mut(&mut self) -> Vec<&mut Expr> {
        children!(self, iter_mut, as_mut, mut)
    }

    /// The blocks directly inside.
    pub fn blocks(&self) -> Vec<&Block> {
        blocks!(self)
    }

    /// The same, to be changed.
    pub fn blocks_mut(&mut self) -> Vec<&mut Block> {
        blocks!(self)
    }

    /// Where it stands, for a message.
    pub fn span(&self) -> Span {
        match self.unparenthesized() {
            Expr::Local(local) => local.ident.span(),
            Expr::Method { method, .. } => method.span(),
            _ => Span::call_site(),
        }
    }

    /// The expression inside parentheses.
    pub fn unparenthesized(&self) -> &Expr {
        match self {
            Expr::Paren(inner, _) => inner.unparenthesized(),
            other => other,
        }
    }
}

/// Whether a method writes.
pub fn is_effect(method: &Ident) -> bool {
    let name = method.to_string();
    name.starts_with("atomic_") || EFFECTS.contains(&name.as_str())
}
