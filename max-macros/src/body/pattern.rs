//! Patterns and closures.

use syn::Pat as SynPat;
use syn::spanned::Spanned;

use super::parse::Parser;
use super::scope::LocalKind;
use super::{Expr, Pat};
use crate::signature::types::Ty;

impl Parser<'_> {
    /// Reads a pattern and defines its names.
    pub fn pattern(&mut self, pat: &SynPat) -> Pat {
        match pat {
            SynPat::Ident(ident) => {
                if let Some(by_ref) = &ident.by_ref {
                    self.cx.error(by_ref, "there are no references in a kernel: remove `ref`");
                }
                if let Some((at, _)) = &ident.subpat {
                    self.cx.error(at, "a kernel's patterns are names, tuples and `_`");
                }
                if ident.mutability.is_some() {
                    Pat::Var(self.scope.define(&ident.ident, LocalKind::Var))
                } else {
                    Pat::Value(self.scope.define(&ident.ident, LocalKind::Value))
                }
            }
            SynPat::Wild(wild) => Pat::Wild(wild.span()),
            SynPat::Paren(paren) => self.pattern(&paren.pat),
            SynPat::Tuple(tuple) => Pat::Tuple(tuple.elems.iter().map(|p| self.pattern(p)).collect(), tuple.span()),
            SynPat::Slice(slice) => Pat::Array(slice.elems.iter().map(|p| self.pattern(p)).collect(), slice.span()),
            SynPat::Type(typed) => {
                let pat = self.pattern(&typed.pat);
                match Ty::parse(self.cx, self.types, &typed.ty) {
                    Some(ty) => Pat::Typed(Box::new(pat), ty),
                    None => pat,
                }
            }
            SynPat::Reference(reference) => {
                self.cx.error(reference, "there are no references in a kernel: remove the `&`");
                self.pattern(&reference.pat)
            }
            _ => {
                self.cx.error(pat, "a kernel's patterns are names, tuples and `_`");
                Pat::Wild(pat.span())
            }
        }
    }

    /// Reads a closure that stands as a method's argument.
    pub fn closure(&mut self, closure: &syn::ExprClosure) -> Expr {
        if let Some(token) = &closure.asyncness {
            self.cx.error(token, "a kernel has no async code");
        }
        self.scope.depth += 1;
        self.scope.enter();
        let inputs = closure.inputs.iter().map(|p| self.pattern(p)).collect();
        if let syn::ReturnType::Type(_, ty) = &closure.output {
            self.cx.error(ty, "leave the closure's return type to inference, or write `as` at its value");
        }
        let value = match &*closure.body {
            // `|v| x = v` is an assignment, which only a block contains.
            body @ (syn::Expr::Assign(_) | syn::Expr::Binary(_)) => {
                let stmt = syn::Stmt::Expr(body.clone(), None);
                let block = syn::Block { brace_token: syn::token::Brace(body.span()), stmts: vec![stmt] };
                let mut block = self.block(&block);
                match (block.stmts.is_empty(), block.tail.take()) {
                    (true, Some(tail)) => *tail,
                    (_, tail) => Expr::Block(super::Block { tail, ..block }, body.span()),
                }
            }
            body => self.expr(body),
        };
        self.scope.leave();
        self.scope.depth -= 1;
        Expr::Closure { moves: closure.capture, inputs, value: Box::new(value), span: closure.inputs_begin.span() }
    }
}
