//! Blocks and statements.

use syn::spanned::Spanned;
use syn::{Ident, Pat as SynPat};

use super::literal::Literal;
use super::scope::{Binding, Local, LocalKind, Scope};
use super::{Block, Expr, Pat, Stmt};
use crate::ctxt::Ctxt;
use crate::signature::types::{Ty, TypeScope};

/// What the parser needs to know of the signature.
pub struct BodyInput<'a> {
    /// The kernel's own name, to find recursion.
    pub name: &'a Ident,
    /// The arguments, in order.
    pub args: Vec<(&'a Ident, LocalKind)>,
    /// Arguments that could not be read.
    pub unread: &'a [Ident],
    /// Whether the whole body runs per element.
    pub lane: bool,
    /// Whether the body is printed in a module inside the author's.
    pub in_module: bool,
}

/// Reads a body. Returns it with the arguments as the body refers to them.
pub fn parse(cx: &Ctxt, types: &TypeScope, input: &BodyInput, block: &syn::Block) -> (Vec<Local>, Block) {
    let BodyInput { name, lane, in_module, .. } = *input;
    let mut parser = Parser { cx, types, name, lane, in_module, scope: Scope::default() };
    parser.scope.enter();
    let args = input.args.iter().map(|(ident, kind)| parser.scope.define(ident, *kind)).collect();
    for ident in input.unread {
        parser.scope.define(ident, LocalKind::Unknown);
    }
    let mut body = parser.block(block);
    super::defaults::set_defaults(&mut body);
    (args, body)
}

/// Reads syntax into the tree, with the names in scope at hand.
pub(super) struct Parser<'a> {
    pub cx: &'a Ctxt,
    pub types: &'a TypeScope,
    pub name: &'a Ident,
    pub lane: bool,
    pub in_module: bool,
    pub scope: Scope,
}

impl Parser<'_> {
    /// Whether the current place runs once per element.
    pub fn in_lane(&self) -> bool {
        self.lane || self.scope.depth > 0
    }

    pub fn block(&mut self, block: &syn::Block) -> Block {
        self.scope.enter();
        let mut parsed = Block::default();
        let last = block.stmts.len().saturating_sub(1);
        for (i, stmt) in block.stmts.iter().enumerate() {
            match stmt {
                syn::Stmt::Local(local) => {
                    let stmt = self.local(local);
                    parsed.stmts.extend(stmt);
                }
                syn::Stmt::Item(item) => {
                    self.cx.error(item, "a kernel contains no items: move this out of the function")
                }
                syn::Stmt::Macro(mac) => self.no_macro(&mac.mac),
                syn::Stmt::Expr(expr, semi) => {
                    if let Some(stmt) = self.assignment(expr) {
                        parsed.stmts.push(stmt);
                        continue;
                    }
                    let value = self.expr(expr);
                    if i == last && semi.is_none() {
                        parsed.tail = Some(Box::new(value));
                    } else {
                        parsed.stmts.push(Stmt::Expr { expr: value, semi: semi.is_some() });
                    }
                }
            }
        }
        self.scope.leave();
        parsed
    }

    /// A path of the author's, from where it is printed.
    pub fn outer(&self, path: &syn::Path) -> syn::Path {
        let mut path = path.clone();
        let first = path.segments.first().map(|s| s.ident.clone());
        match first {
            Some(first) if self.in_module && first == "self" => {
                if let Some(segment) = path.segments.first_mut() {
                    segment.ident = Ident::new("super", first.span());
                }
            }
            Some(first) if self.in_module && first == "super" => {
                path.segments.insert(0, Ident::new("super", first.span()).into());
            }
            _ => {}
        }
        path
    }

    pub fn no_macro(&self, mac: &syn::Macro) {
        let hint = match mac.path.segments.last().map(|s| s.ident.to_string()).as_deref() {
            Some("println" | "print" | "dbg" | "eprintln" | "eprint") => "write `print(\"label\", value)`",
            Some("panic" | "assert" | "assert_eq" | "debug_assert" | "unreachable" | "todo" | "unimplemented") => {
                "a kernel cannot fail: check shapes before it runs"
            }
            Some("vec") => "use a tile: `Tile::<f32, 8, 8>::zeros()`",
            _ => "write what it expands to",
        };
        self.cx.error(mac, format!("a kernel calls no macros: {hint}"));
    }

    fn local(&mut self, local: &syn::Local) -> Option<Stmt> {
        let Some(init) = &local.init else {
            self.cx.error(local, "a variable of a kernel starts with a value: write `let mut x = 0.0;`");
            for ident in self.pattern(&local.pat).names() {
                self.scope.define(&ident, LocalKind::Unknown);
            }
            return None;
        };
        if let Some((token, _)) = &init.diverge {
            self.cx.error(token, "there is no `let … else` in a kernel: it has no enums to take apart");
        }
        if let syn::Expr::Closure(closure) = init.expr.as_ref() {
            self.cx.error(
                &init.expr,
                "a closure is an argument of a method, as in `x.map(|v| v + 1.0)`: for several uses write a kernel function",
            );
            self.closure(closure);
            for ident in self.pattern(&local.pat).names() {
                self.scope.define(&ident, LocalKind::Unknown);
            }
            return None;
        }
        let (pat, ty) = match &local.pat {
            SynPat::Type(typed) => (&*typed.pat, Ty::parse(self.cx, self.types, &typed.ty)),
            pat => (pat, None),
        };
        let value = match (pat, init.expr.as_ref()) {
            // `let [m, n] = program_id();`
            (SynPat::Slice(slice), syn::Expr::Call(call)) if call.args.is_empty() => {
                self.program_ids(call, slice.elems.len()).unwrap_or_else(|| self.expr(&init.expr))
            }
            _ => self.expr(&init.expr),
        };
        if matches!(pat, SynPat::Slice(_)) && !matches!(value, Expr::ProgramIds { .. } | Expr::Error) {
            self.cx.error(pat, "only program ids are taken apart like this: `let [m, n] = program_id();`");
        }
        // The name of a bare literal stays a literal, so that it takes the type of what it meets.
        if let (SynPat::Ident(ident), None, Expr::Literal(literal @ Literal { dtype: None, .. })) = (pat, &ty, &value)
            && ident.mutability.is_none()
            && ident.by_ref.is_none()
            && ident.subpat.is_none()
        {
            self.scope.define_literal(&ident.ident, literal.clone());
            return None;
        }
        let pat = self.pattern(pat);
        if let Expr::Error = value {
            for ident in pat.names() {
                self.scope.define(&ident, LocalKind::Unknown);
            }
        }
        Some(Stmt::Let { pat, ty, init: value, span: local.span() })
    }

    /// Reads `expr` if it is an assignment.
    fn assignment(&mut self, expr: &syn::Expr) -> Option<Stmt> {
        match expr {
            syn::Expr::Group(group) => self.assignment(&group.expr),
            syn::Expr::Assign(assign) => {
                let value = self.expr(&assign.right);
                let span = assign.eq_token.span();
                if let syn::Expr::Tuple(tuple) = &*assign.left {
                    let targets = tuple
                        .elems
                        .iter()
                        .map(|target| match target {
                            syn::Expr::Infer(_) => None,
                            target => self.target(target),
                        })
                        .collect();
                    return Some(Stmt::AssignTuple { targets, value, span });
                }
                if let syn::Expr::Infer(token) = &*assign.left {
                    return Some(Stmt::Let { pat: Pat::Wild(token.span()), ty: None, init: value, span });
                }
                Some(match self.target(&assign.left) {
                    Some(target) => Stmt::Assign { target, value, span },
                    None => Stmt::Expr { expr: Expr::Error, semi: true },
                })
            }
            syn::Expr::Binary(binary) => {
                let op = super::expr::compound(&binary.op)?;
                let right = self.expr(&binary.right);
                let Some(target) = self.target(&binary.left) else {
                    return Some(Stmt::Expr { expr: Expr::Error, semi: true });
                };
                let span = binary.op.span();
                let left = Box::new(Expr::Local(target.clone()));
                let value = Expr::Binary { op, left, right: Box::new(right), span };
                Some(Stmt::Assign { target, value, span })
            }
            _ => None,
        }
    }

    /// The variable on the left of an assignment.
    fn target(&mut self, expr: &syn::Expr) -> Option<Local> {
        let (ident, deref) = match expr {
            syn::Expr::Group(group) => return self.target(&group.expr),
            syn::Expr::Paren(paren) => return self.target(&paren.expr),
            syn::Expr::Path(path) => (path.path.get_ident(), false),
            syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Deref(_), expr, .. }) => match &**expr {
                syn::Expr::Path(path) => (path.path.get_ident(), true),
                _ => (None, true),
            },
            syn::Expr::Index(index) => {
                self.cx.error(index, "elements are written by a method: `y.set(i, value)`");
                return None;
            }
            syn::Expr::Field(field) => {
                self.cx.error(field, "a part of a tuple is not assigned alone: use one variable for each part");
                return None;
            }
            _ => (None, false),
        };
        let Some(ident) = ident else {
            self.cx.error(expr, "only a variable of the kernel is assigned");
            return None;
        };
        let Some(binding) = self.scope.find(ident).cloned() else {
            self.cx.error(ident, format!("there is no variable `{ident}`: declare it with `let mut {ident} = …;`"));
            return None;
        };
        match binding {
            Binding::Local { id, kind: kind @ LocalKind::Unknown, .. } => {
                Some(Local { ident: ident.clone(), id, kind })
            }
            Binding::Local { id, kind: kind @ (LocalKind::Var | LocalKind::InOut), depth } => {
                if kind == LocalKind::InOut && !deref {
                    self.cx.error(expr, format!("`{ident}` is updated in place: write `*{ident} = …`"));
                } else if kind == LocalKind::Var && deref {
                    self.cx.error(expr, format!("`{ident}` is a plain variable: write `{ident} = …`"));
                } else if depth < self.scope.depth {
                    self.cx.error(
                        expr,
                        format!(
                            "`{ident}` is declared outside this closure, which runs once per element in no fixed order: \
                             to accumulate, use `fold`"
                        ),
                    );
                }
                Some(Local { ident: ident.clone(), id, kind })
            }
            Binding::Local { kind: LocalKind::Tensor(_), .. } => {
                self.cx
                    .error(expr, format!("a tensor is written by its methods: `{ident}.row(program_id(0)).write(…)`"));
                None
            }
            Binding::Local { .. } | Binding::Literal(_) => {
                self.cx.error(expr, format!("`{ident}` cannot be assigned twice: declare it with `let mut {ident}`"));
                None
            }
        }
    }
}
