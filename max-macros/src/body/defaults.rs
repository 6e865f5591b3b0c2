//! Dtypes of numbers that meet nothing but numbers.
//!
//! In `let mut i = 0; while i < 10 { i += 1; }` nothing says what `i` is, and rustc would not take `i32` as it does in
//! Rust, since the literal may be of any dtype. Such numbers are `i64`, as sizes and indices are, and `f32` if one of
//! them has a point.
//!
//! This is unification on the tree with two kinds of types: open (a variable of a union-find) and typed (by whatever rustc
//! will find). When in doubt, a number is typed, and rustc decides.

use std::collections::HashMap;
use std::slice;

use super::literal::{Literal, LiteralClass};
use super::scope::{Local, LocalKind};
use super::{Block, Expr, Pat, Stmt};
use crate::dtype::Dtype;
use crate::signature::types::Ty;

/// Gives dtypes to the numbers of `body` that have none.
pub fn set_defaults(body: &mut Block) {
    let mut solver = Solver::default();
    let tail = solver.block(body);
    solver.typed(tail);
    let Solver { mut classes, literals, .. } = solver;
    for (class, literal) in literals {
        let Class { typed, float, int, .. } = classes.root(class);
        let name = if float { "f32" } else { "i64" };
        if !typed && (float || int) {
            literal.dtype = Dtype::find(name);
        }
    }
}

/// What is known of an expression's type.
#[derive(Clone, Copy)]
enum Term {
    /// rustc finds it.
    Typed,
    /// That of a class of numbers.
    Open(usize),
}

#[derive(Clone, Copy, Default)]
struct Class {
    /// The class it was merged into.
    parent: Option<usize>,
    /// Whether something typed belongs to it.
    typed: bool,
    /// Whether a literal with a point belongs to it.
    float: bool,
    /// Whether an integer literal belongs to it.
    int: bool,
}

#[derive(Default)]
struct Classes(Vec<Class>);

impl Classes {
    fn index(&self, mut class: usize) -> usize {
        while let Some(parent) = self.0.get(class).and_then(|c| c.parent) {
            class = parent;
        }
        class
    }

    fn root(&mut self, class: usize) -> Class {
        self.0.get(self.index(class)).copied().unwrap_or_default()
    }

    fn merge(&mut self, a: usize, b: usize) {
        let (a, b) = (self.index(a), self.index(b));
        if a == b {
            return;
        }
        let Some(from) = self.0.get(b).copied() else { return };
        if let Some(into) = self.0.get_mut(a) {
            into.typed |= from.typed;
            into.float |= from.float;
            into.int |= from.int;
        }
        if let Some(merged) = self.0.get_mut(b) {
            merged.parent = Some(a);
        }
    }
}

#[derive(Default)]
struct Solver<'a> {
    classes: Classes,
    /// The classes of variables.
    locals: HashMap<usize, usize>,
    literals: Vec<(usize, &'a mut Literal)>,
}

impl<'a> Solver<'a> {
    fn open(&mut self, class: Class) -> usize {
        self.classes.0.push(class);
        self.classes.0.len() - 1
    }

    /// rustc decides what `term` is.
    fn typed(&mut self, term: Term) {
        if let Term::Open(class) = term {
            let root = self.classes.index(class);
            if let Some(class) = self.classes.0.get_mut(root) {
                class.typed = true;
            }
        }
    }

    /// Both sides of an operator have one dtype.
    fn unify(&mut self, a: Term, b: Term) -> Term {
        match (a, b) {
            (Term::Open(x), Term::Open(y)) => {
                self.classes.merge(x, y);
                a
            }
            (open, Term::Typed) | (Term::Typed, open) => {
                self.typed(open);
                Term::Typed
            }
        }
    }

    fn block(&mut self, block: &'a mut Block) -> Term {
        for stmt in &mut block.stmts {
            self.stmt(stmt);
        }
        block.tail.as_mut().map_or(Term::Typed, |tail| self.expr(tail))
    }

    fn stmt(&mut self, stmt: &'a mut Stmt) {
        match stmt {
            Stmt::Let { pat, ty, init, .. } => match (pat, ty, arity(init)) {
                (Pat::Tuple(pats, _), None, Some(n)) if n == pats.len() => {
                    if let Expr::Tuple(values, _) = init {
                        for (pat, value) in pats.iter().zip(values) {
                            let term = self.expr(value);
                            self.bind(pat, term);
                        }
                    }
                }
                (pat, ty, _) => {
                    let term = self.expr(init);
                    match ty {
                        None | Some(Ty::Infer(_)) => self.bind(pat, term),
                        Some(_) => self.typed(term),
                    }
                }
            },
            Stmt::Assign { target, value, .. } => {
                let term = self.expr(value);
                let target = self.local(target);
                self.unify(target, term);
            }
            Stmt::AssignTuple { targets, value, .. } => {
                if arity(value) != Some(targets.len()) {
                    let term = self.expr(value);
                    self.typed(term);
                    for target in targets.iter().flatten() {
                        let target = self.local(target);
                        self.typed(target);
                    }
                    return;
                }
                let Expr::Tuple(values, _) = value else { return };
                for (target, value) in targets.iter().zip(values) {
                    let term = self.expr(value);
                    if let Some(target) = target {
                        let target = self.local(target);
                        self.unify(target, term);
                    }
                }
            }
            Stmt::Expr { expr, .. } => {
                self.expr(expr);
            }
        }
    }

    fn bind(&mut self, pat: &Pat, term: Term) {
        match (pat, term) {
            (Pat::Value(local) | Pat::Var(local), Term::Open(class)) => {
                self.locals.insert(local.id, class);
            }
            (Pat::Wild(_), _) => {}
            (_, term) => self.typed(term),
        }
    }

    fn local(&self, local: &Local) -> Term {
        match local.kind {
            LocalKind::Value | LocalKind::Var => self.locals.get(&local.id).map_or(Term::Typed, |c| Term::Open(*c)),
            LocalKind::InOut | LocalKind::Tensor(_) | LocalKind::Optional(_) | LocalKind::Str | LocalKind::Unknown => {
                Term::Typed
            }
        }
    }

    fn all_typed(&mut self, exprs: impl IntoIterator<Item = &'a mut Expr>) -> Term {
        for expr in exprs {
            let term = self.expr(expr);
            self.typed(term);
        }
        Term::Typed
    }

    fn expr(&mut self, expr: &'a mut Expr) -> Term {
        match expr {
            Expr::Literal(literal) => {
                if literal.dtype.is_some() {
                    return Term::Typed;
                }
                let class = Class {
                    float: literal.class == LiteralClass::Float,
                    int: literal.class == LiteralClass::Int,
                    ..Class::default()
                };
                let class = self.open(class);
                self.literals.push((class, literal));
                Term::Open(class)
            }
            Expr::Local(local) => self.local(local),
            Expr::Bool(..)
            | Expr::IsGiven(_)
            | Expr::Given(_)
            | Expr::TileConst(_)
            | Expr::Path(_)
            | Expr::DtypeConst { .. }
            | Expr::ProgramId { .. }
            | Expr::ProgramIds { .. }
            | Expr::Raw(_)
            | Expr::Error => Term::Typed,
            Expr::Unary { value, .. } | Expr::Paren(value, _) => self.expr(value),
            Expr::Binary { left, right, .. } => {
                let (a, b) = (self.expr(left), self.expr(right));
                self.unify(a, b)
            }
            Expr::Compare { left, right, .. } => {
                let (a, b) = (self.expr(left), self.expr(right));
                self.unify(a, b);
                Term::Typed
            }
            Expr::Cast { value, .. } => {
                // A literal that is cast is printed as one of the target's dtype.
                if !matches!(**value, Expr::Literal(_)) {
                    self.expr(value);
                }
                Term::Typed
            }
            Expr::Builtin { function, args } => {
                // Those whose arguments, but for a condition, have one dtype.
                let skip = match function.to_string().as_str() {
                    "select" => 1,
                    "ceildiv" => 0,
                    "print" => {
                        // Anything is printed, also a number that is nothing else.
                        for arg in args {
                            let items = if let Expr::Tuple(items, _) = arg { items } else { slice::from_mut(arg) };
                            for item in items {
                                self.expr(item);
                            }
                        }
                        return Term::Typed;
                    }
                    _ => return self.all_typed(args),
                };
                let mut value: Option<Term> = None;
                for (i, arg) in args.iter_mut().enumerate() {
                    let term = self.expr(arg);
                    if i >= skip {
                        value = Some(value.map_or(term, |v| self.unify(v, term)));
                    }
                }
                value.unwrap_or(Term::Typed)
            }
            Expr::Call { args, .. } | Expr::TypeCall { args, .. } | Expr::Tuple(args, _) | Expr::Array(args, _) => {
                self.all_typed(args)
            }
            Expr::Method { receiver, method, args, .. } => {
                let term = self.expr(receiver);
                // Methods of numbers take and give numbers of the same dtype, but for these.
                if let (Term::Open(_), false) = (term, method == "cast" || method == "bitcast") {
                    return args.iter_mut().fold(term, |all, arg| {
                        let arg = self.expr(arg);
                        self.unify(all, arg)
                    });
                }
                self.all_typed(args)
            }
            Expr::Closure { value, .. } | Expr::Field { base: value, .. } => self.all_typed([&mut **value]),
            Expr::StrEq { value, .. } => self.all_typed([&mut **value]),
            Expr::If { condition, then, otherwise, .. } => {
                self.expr(condition);
                let then = self.block(then);
                match otherwise {
                    Some(otherwise) => {
                        let otherwise = self.block(otherwise);
                        self.unify(then, otherwise)
                    }
                    None => Term::Typed,
                }
            }
            Expr::For { lo, hi, step, body, .. } => {
                self.all_typed([Some(lo), Some(hi), step.as_mut()].into_iter().flatten().map(|e| &mut **e));
                self.block(body);
                Term::Typed
            }
            Expr::While { condition, body, .. } => {
                self.expr(condition);
                self.block(body);
                Term::Typed
            }
            Expr::Block(block, _) => self.block(block),
        }
    }
}

/// The number of parts of a tuple that is written out.
fn arity(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Tuple(values, _) => Some(values.len()),
        _ => None,
    }
}
