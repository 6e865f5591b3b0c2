//! `if`, `for` and `while`.

use proc_macro2::Span;
use syn::Pat as SynPat;
use syn::spanned::Spanned;

use super::parse::Parser;
use super::scope::{Local, LocalKind};
use super::{Block, Expr, Pat, Stmt};

impl Parser<'_> {
    pub fn if_(&mut self, expr: &syn::ExprIf) -> Expr {
        let given = self.given(&expr.cond);
        let (condition, then) = match given {
            Some((local, pat)) => {
                self.scope.enter();
                let given = pat.and_then(|pat| self.name_given(&local, pat, expr.if_token.span()));
                let mut then = self.block(&expr.then_branch);
                self.scope.leave();
                then.stmts.splice(0..0, given);
                (Box::new(Expr::IsGiven(local)), then)
            }
            None => (Box::new(self.condition(&expr.cond)), self.block(&expr.then_branch)),
        };
        let otherwise = match &expr.else_branch {
            None => None,
            Some((_, branch)) => match &**branch {
                syn::Expr::Block(block) => Some(self.block(&block.block)),
                other => {
                    let tail = Some(Box::new(self.expr(other)));
                    Some(Block { stmts: Vec::new(), tail })
                }
            },
        };
        // What an absent operand has in its place is not read.
        let asks = matches!(*condition, Expr::IsGiven(_));
        let pure = !asks && !then.has_effects() && otherwise.as_ref().is_some_and(|b| !b.has_effects());
        Expr::If { condition, then, otherwise, lane: self.in_lane() && pure, span: expr.if_token.span() }
    }

    pub fn while_(&mut self, expr: &syn::ExprWhile) -> Expr {
        self.no_label(&expr.label);
        let condition = Box::new(self.condition(&expr.cond));
        let body = self.loop_body(&expr.body);
        Expr::While { condition, body, span: expr.while_token.span() }
    }

    pub fn for_(&mut self, expr: &syn::ExprForLoop) -> Expr {
        self.no_label(&expr.label);
        let (lo, hi, step) = self.range(&expr.expr);
        self.scope.enter();
        let pat = self.pattern(&expr.pat);
        let body = self.loop_body(&expr.body);
        self.scope.leave();
        Expr::For {
            pat,
            lo: Box::new(lo),
            hi: Box::new(hi),
            step: step.map(Box::new),
            body,
            span: expr.for_token.span(),
        }
    }

    /// The block of a loop, which gives no value: `i += 1` may lack its semicolon.
    fn loop_body(&mut self, block: &syn::Block) -> Block {
        self.block(block)
    }

    /// `let Some(x) = x`, where `x` is an operand that may be absent: it, and the pattern of what it is if not.
    fn given<'e>(&self, condition: &'e syn::Expr) -> Option<(Local, Option<&'e SynPat>)> {
        let syn::Expr::Let(condition) = condition else { return None };
        let local = self.optional(&condition.expr)?;
        let some = match &*condition.pat {
            SynPat::TupleStruct(some) if some.path.is_ident("Some") && some.elems.len() == 1 => some.elems.first(),
            _ => None,
        };
        if some.is_none() {
            let name = &local.ident;
            self.cx.error(
                &condition.pat,
                format!("`{name}` is taken apart as `if let Some({name}) = {name} {{ … }} else {{ … }}`"),
            );
        }
        Some((local, some))
    }

    /// Gives an operand that is there the name of a pattern.
    fn name_given(&mut self, local: &Local, pat: &SynPat, span: Span) -> Option<Stmt> {
        let LocalKind::Optional(arg) = local.kind else { return None };
        let SynPat::Ident(ident) = pat else {
            if !matches!(pat, SynPat::Wild(_)) {
                self.cx.error(pat, "an operand is given a name: `Some(x)`");
            }
            return None;
        };
        if ident.by_ref.is_some() || ident.mutability.is_some() || ident.subpat.is_some() {
            self.cx.error(pat, "an operand is given a name: `Some(x)`");
        }
        let pat = Pat::Value(self.scope.define(&ident.ident, LocalKind::Tensor(arg)));
        Some(Stmt::Let { pat, ty: None, init: Expr::Given(local.clone()), span })
    }

    fn condition(&mut self, expr: &syn::Expr) -> Expr {
        if let syn::Expr::Let(condition) = expr {
            self.cx.error(condition, "there is no `let` in a kernel's conditions: it has no enums to take apart");
            return Expr::Error;
        }
        self.expr(expr)
    }

    pub fn no_label(&self, label: &Option<syn::Label>) {
        if let Some(label) = label {
            self.cx.error(label, "loops have no labels in a kernel: no `break` or `continue` leaves them");
        }
    }

    /// What a `for` counts through: start, end and step.
    fn range(&mut self, expr: &syn::Expr) -> (Expr, Expr, Option<Expr>) {
        let error = (Expr::Error, Expr::Error, None);
        match expr {
            syn::Expr::Group(group) => self.range(&group.expr),
            syn::Expr::Paren(paren) => self.range(&paren.expr),
            syn::Expr::Range(range) => {
                if let syn::RangeLimits::Closed(token) = &range.limits {
                    self.cx.error(token, "a kernel's ranges exclude their end: write `a..b + 1`");
                    return error;
                }
                let (Some(lo), Some(hi)) = (&range.start, &range.end) else {
                    self.cx.error(range, "a loop has a start and an end: write `0..n`");
                    return error;
                };
                (self.expr(lo), self.expr(hi), None)
            }
            syn::Expr::Call(call) if is_range_call(call) => match call.args.iter().collect::<Vec<_>>()[..] {
                [lo, hi] => (self.expr(lo), self.expr(hi), None),
                [lo, hi, step] => {
                    let (lo, hi) = (self.expr(lo), self.expr(hi));
                    (lo, hi, Some(self.expr(step)))
                }
                _ => {
                    self.cx.error(call, "write `range(start, end)` or `range(start, end, step)`");
                    error
                }
            },
            syn::Expr::MethodCall(call) if call.method == "step_by" && call.args.len() == 1 => {
                let (lo, hi, step) = self.range(&call.receiver);
                if step.is_some() {
                    self.cx.error(&call.method, "the range has a step already");
                }
                let step = call.args.first().map(|step| self.expr(step));
                (lo, hi, step)
            }
            syn::Expr::MethodCall(call) if call.method == "rev" => {
                self.cx.error(&call.method, "a kernel's loops count upwards: use `n - 1 - i` in the body");
                error
            }
            _ => {
                self.cx.error(
                    expr,
                    "a `for` counts through a range: write `for i in 0..n` or `for i in range(0, n, step)`; \
                     elements are visited by `map`, `fold` and `for_each`",
                );
                error
            }
        }
    }
}

fn is_range_call(call: &syn::ExprCall) -> bool {
    matches!(&*call.func, syn::Expr::Path(path) if path.path.is_ident("range"))
}
