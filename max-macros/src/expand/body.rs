//! Prints a body: the tree becomes calls of the runtime, each at the author's tokens.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};

use super::names::{Names, machine, machine_type};
use crate::body::{Block, Decided, Expr, GenericArg, Literal, LiteralClass, Local, LocalKind, Pat, Stmt};
use crate::dtype::{Bound, Class};
use crate::signature::ast::hash_str;
use crate::signature::types::{DtypeOf, DtypeUse, Generic, Ty};

/// The name of the variable that an expression is.
fn variable(expr: &Expr) -> Option<&Ident> {
    match expr {
        Expr::Local(Local { ident, kind: LocalKind::Var, .. }) => Some(ident),
        _ => None,
    }
}

/// Prints bodies.
pub struct Printer<'a> {
    /// The runtime's names.
    pub names: &'a Names,
    /// The kernel's generics.
    pub generics: &'a [Generic],
    /// Whether atomics may be those whose results depend on the order of programs.
    pub unordered: bool,
}

impl Printer<'_> {
    /// `::max::kernel::__private`, and the machine type, at `span`.
    fn lang(&self, span: Span) -> (TokenStream, Ident) {
        (self.names.lang(span), machine_type(span))
    }

    /// The inside of a block.
    pub fn block(&self, block: &Block) -> TokenStream {
        let stmts = block.stmts.iter().map(|s| self.stmt(s));
        let tail = block.tail.as_ref().map(|e| self.expr(e));
        quote!(#(#stmts)* #tail)
    }

    /// An assignment that changes the tile in a variable where it is.
    ///
    /// ```text
    /// acc = dot(a, b, acc);   =>   lang::dot_assign(__m, &a, b, &acc);
    /// x = x.map(f);           =>   x.assign_map(f);
    /// ```
    fn in_place(&self, target: &Local, value: &Expr, span: Span) -> Option<TokenStream> {
        let is_target = |e: &Expr| variable(e).is_some_and(|ident| *ident == target.ident);
        let ident = &target.ident;
        match value {
            Expr::Builtin { function, args } => {
                let (a, b, acc) = match (&*function.to_string(), &args[..]) {
                    ("dot", [a, b, acc]) => (a, b, acc),
                    ("dot_scaled", [a, b, scale, acc]) if is_target(acc) => {
                        let (lang, m) = (self.names.lang(function.span()), machine(function.span()));
                        let [a, b, scale] = [a, b, scale].map(|operand| self.expr(operand));
                        return Some(quote_spanned!(span=> #lang::dot_scaled_assign(#m, #a, #b, #scale, &#ident);));
                    }
                    _ => return None,
                };
                if !is_target(acc) {
                    return None;
                }
                let (lang, m, b) = (self.names.lang(function.span()), machine(function.span()), self.expr(b));
                Some(match variable(a) {
                    Some(a) => quote_spanned!(span=> #lang::dot_var_assign(#m, &#a, #b, &#ident);),
                    None => {
                        let a = self.operand(a);
                        quote_spanned!(span=> #lang::dot_assign(#m, &#a, #b, &#ident);)
                    }
                })
            }
            Expr::Method { receiver, method, args, .. } if is_target(receiver) => {
                // Methods of tiles alone. What is assigned is evaluated before.
                let name = match &*method.to_string() {
                    name @ ("map" | "map_indexed" | "zip_map") => Ident::new(&format!("assign_{name}"), method.span()),
                    _ => return None,
                };
                let args = args.iter().map(|a| self.expr(a));
                Some(quote_spanned!(span=> #ident.#name(#(#args),*);))
            }
            _ => None,
        }
    }

    fn stmt(&self, stmt: &Stmt) -> TokenStream {
        match stmt {
            Stmt::Let { pat, ty, init, span } => self.let_(pat, ty.as_ref(), init, *span),
            Stmt::Assign { target, value, span } => {
                if let Some(in_place) = self.in_place(target, value, *span) {
                    return in_place;
                }
                let (target, value) = (&target.ident, self.expr(value));
                quote_spanned!(*span=> #target.assign(#value);)
            }
            Stmt::AssignTuple { targets, value, span } => {
                // (a, b) = value;   =>   { let (a0, b0) = value; a.assign(a0); b.assign(b0); }
                let value = self.expr(value);
                let parts: Vec<TokenStream> = targets
                    .iter()
                    .enumerate()
                    .map(|(i, target)| match target {
                        Some(_) => hidden(&format!("__part{i}"), *span).into_token_stream(),
                        None => quote_spanned!(*span=> _),
                    })
                    .collect();
                let assigns = targets.iter().zip(&parts).filter_map(|(target, part)| {
                    let ident = &target.as_ref()?.ident;
                    Some(quote_spanned!(*span=> #ident.assign(#part);))
                });
                quote_spanned!(*span=> { let (#(#parts,)*) = #value; #(#assigns)* })
            }
            Stmt::Expr { expr: Expr::Block(block, span), semi: false } => {
                let block = self.block(block);
                quote_spanned!(*span=> { #block })
            }
            Stmt::Expr { expr, .. } => {
                let expr = self.expr(expr);
                quote!(#expr;)
            }
        }
    }

    /// ```text
    /// let x = e;               let x = e;
    /// let mut x: f32 = e;      let x = lang::var::<Machine, lang::Val<Machine, f32>>(e);
    /// let (a, mut b) = e;      let (a, b) = e; let b = lang::var::<Machine, _>(b);
    /// ```
    fn let_(&self, pat: &Pat, ty: Option<&Ty>, init: &Expr, span: Span) -> TokenStream {
        if let (Pat::Var(local), None, Expr::TypeCall { ty: tile @ Ty::Tile { dtype: Some(_), .. }, method, args, .. }) =
            (pat, ty, init)
            && method == "zeros"
            && args.is_empty()
        {
            // let mut acc = Tile::<..>::zeros();   =>   let mut __acc = lang::Place::new(); let acc = __acc.zeros();
            let ((lang, mt), tile) = (self.lang(method.span()), self.names.ty(tile));
            let (ident, place) = (&local.ident, hidden(&format!("__place_{}", local.ident), span));
            return quote_spanned! {span=>
                let mut #place = #lang::Place::<#lang::Var<#mt, #tile>>::new();
                let #ident = #place.zeros();
            };
        }
        let init = self.expr(init);
        let ty = ty.map(|t| self.names.ty(t));
        if let Pat::Var(local) = pat {
            let (lang, m) = self.lang(local.ident.span());
            let ty = ty.unwrap_or_else(|| quote!(_));
            let ident = &local.ident;
            return quote_spanned!(span=> let #ident = #lang::var::<#m, #ty>(#init););
        }
        let ty = ty.map(|ty| quote_spanned!(span=> : #ty));
        let vars = self.vars(pat);
        let pat = self.pat(pat);
        quote_spanned!(span=> let #pat #ty = #init; #vars)
    }

    fn pat(&self, pat: &Pat) -> TokenStream {
        match pat {
            Pat::Value(local) | Pat::Var(local) => local.ident.to_token_stream(),
            Pat::Wild(span) => quote_spanned!(*span=> _),
            Pat::Tuple(items, span) => {
                let items = items.iter().map(|p| self.pat(p));
                quote_spanned!(*span=> (#(#items,)*))
            }
            Pat::Array(items, span) => {
                let items = items.iter().map(|p| self.pat(p));
                quote_spanned!(*span=> [#(#items),*])
            }
            Pat::Typed(pat, ty) => {
                let (pat, ty) = (self.pat(pat), self.names.ty(ty));
                quote!(#pat: #ty)
            }
        }
    }

    /// Definitions of the variables in a pattern that is not one itself.
    fn vars(&self, pat: &Pat) -> TokenStream {
        match pat {
            Pat::Var(local) => self.shadow(&local.ident),
            Pat::Value(_) | Pat::Wild(_) => TokenStream::new(),
            Pat::Tuple(items, _) | Pat::Array(items, _) => items.iter().map(|p| self.vars(p)).collect(),
            Pat::Typed(pat, _) => self.vars(pat),
        }
    }

    /// `let x = lang::var::<Machine, _>(x);`
    pub fn shadow(&self, ident: &Ident) -> TokenStream {
        let span = ident.span();
        let (lang, m) = self.lang(span);
        quote_spanned!(span=> let #ident = #lang::var::<#m, _>(#ident);)
    }

    /// An expression.
    pub fn expr(&self, expr: &Expr) -> TokenStream {
        match expr {
            Expr::Literal(literal) => self.literal(literal, None),
            Expr::Bool(value, span) => {
                let (lang, m) = self.lang(*span);
                quote_spanned!(*span=> #lang::boolean::<#m>(#value))
            }
            Expr::Local(local) => self.read(local),
            Expr::IsGiven(local) => {
                let (lang, ident) = (self.names.lang(local.ident.span()), &local.ident);
                quote_spanned!(ident.span()=> #lang::is_given(#ident))
            }
            Expr::Given(local) => {
                let (lang, ident) = (self.names.lang(local.ident.span()), &local.ident);
                quote_spanned!(ident.span()=> #lang::given(#ident))
            }
            Expr::TileConst(ident) => {
                let (lang, m) = self.lang(ident.span());
                quote_spanned!(ident.span()=> #lang::tile_const::<#m>(#ident))
            }
            Expr::Path(path) => path.to_token_stream(),
            Expr::DtypeConst { dtype, method, name } => {
                let (lang, m) = self.lang(dtype.ident.span());
                let dtype = self.names.dtype(dtype);
                let method = Ident::new(method, name.span());
                quote_spanned!(name.span()=> #lang::Val::<#m, #dtype>::#method())
            }
            Expr::Unary { op, value, span } => {
                let value = self.operand(value);
                quote_spanned!(*span=> #op #value)
            }
            Expr::Binary { op, left, right, span } => {
                let right_operand = self.operand(right);
                if let Expr::Literal(literal @ Literal { dtype: None, .. }) = &**left {
                    let (r, like) = self.like(literal, *span);
                    return quote_spanned!(*span=> ({ let #r = #right_operand; #like #op #r }));
                }
                let left = self.operand(left);
                quote!(#left #op #right_operand)
            }
            Expr::Compare { function, left, right, span } => {
                let (lang, m) = self.lang(*span);
                let function = Ident::new(function, *span);
                let right = self.expr(right);
                if let Expr::Literal(literal @ Literal { dtype: None, .. }) = &**left {
                    let (r, like) = self.like(literal, *span);
                    return quote_spanned!(*span=> ({ let #r = #right; #lang::#function::<#m, _, _>(#like, #r) }));
                }
                let left = self.expr(left);
                quote_spanned!(*span=> #lang::#function::<#m, _, _>(#left, #right))
            }
            Expr::StrEq { value, text, negated, span } => {
                let (lang, m) = self.lang(*span);
                let (value, hash) = (self.expr(value), hash_str(&text.value()));
                let not = negated.then(|| quote_spanned!(*span=> !));
                quote_spanned!(*span=> #not #lang::str_eq::<#m>(#value, #hash))
            }
            Expr::Cast { value, dtype, span } => self.cast(value, dtype, *span),
            Expr::Builtin { function, args } => {
                let span = function.span();
                let (lang, m) = (self.names.lang(span), machine(span));
                let args = args.iter().map(|a| self.expr(a));
                quote_spanned!(span=> #lang::builtins::#function(#m, #(#args),*))
            }
            Expr::ProgramId { function, axis } => {
                let span = function.span();
                let (lang, m) = (self.names.lang(span), machine(span));
                quote_spanned!(span=> #lang::builtins::#function(#m, #axis))
            }
            Expr::ProgramIds { function, count } => {
                let span = function.span();
                let ((lang, mt), m) = (self.lang(span), machine(span));
                let ids = (0..*count as u32).map(|axis| quote_spanned!(span=> #lang::builtins::#function(#m, #axis)));
                if function == "program_id" {
                    return quote_spanned!(span=> #lang::builtins::program_ids::<#mt, #count>(#m));
                }
                quote_spanned!(span=> [#(#ids),*])
            }
            Expr::Call { path, turbofish, args } => {
                let span = path.segments.last().map_or_else(Span::call_site, |s| s.ident.span());
                let ((lang, mt), m) = (self.lang(span), machine(span));
                let turbofish = self.turbofish(Some(mt), turbofish);
                let args = args.iter().map(|a| self.expr(a));
                quote_spanned!(span=> #path #turbofish(#lang::OnlyForKernelFunctions(#m), #(#args),*))
            }
            Expr::TypeCall { ty, method, turbofish, args } => {
                let ty = self.names.ty(ty);
                let turbofish = self.turbofish(None, turbofish);
                let args = args.iter().map(|a| self.expr(a));
                quote_spanned!(method.span()=> <#ty>::#method #turbofish(#(#args),*))
            }
            Expr::Method { receiver, method, turbofish, args, checked } => {
                if let (Some(ident), "row_max" | "row_min" | "row_sum") = (variable(receiver), &*method.to_string()) {
                    let args = args.iter().map(|a| self.expr(a));
                    return quote_spanned!(method.span()=> #ident.#method(#(#args),*));
                }
                let mut receiver = self.operand(receiver);
                if checked.get() {
                    receiver = self.unlocked(receiver, method.span());
                }
                if let ("write", [Expr::Local(Local { ident, kind: LocalKind::Var, .. })]) =
                    (&*method.to_string(), &args[..])
                {
                    // A tile is what a variable can hold and `write` takes.
                    return quote_spanned!(method.span()=> #receiver.write_var(&#ident));
                }
                let turbofish = self.turbofish(None, turbofish);
                let args = args.iter().map(|a| self.expr(a));
                if let (true, true, "atomic_add" | "atomic_max" | "atomic_min") =
                    (self.unordered, checked.get(), &*method.to_string())
                {
                    let method = Ident::new(&format!("{method}_unordered"), method.span());
                    return quote_spanned!(method.span()=> #receiver.#method(#(#args),*));
                }
                quote_spanned!(method.span()=> #receiver.#method #turbofish(#(#args),*))
            }
            Expr::Raw(tokens) => tokens.clone(),
            Expr::Closure { moves, inputs, value, span } => {
                let vars: TokenStream = inputs.iter().map(|p| self.vars(p)).collect();
                let inputs = inputs.iter().map(|p| self.pat(p));
                let value = match (&**value, vars.is_empty()) {
                    (Expr::Block(block, at), true) => {
                        let block = self.block(block);
                        quote_spanned!(*at=> { #block })
                    }
                    (value, true) => self.expr(value),
                    (value, false) => {
                        let value = self.expr(value);
                        quote!({ #vars #value })
                    }
                };
                quote_spanned!(*span=> #[inline(always)] #moves |#(#inputs),*| #value)
            }
            Expr::If { condition, then, otherwise, lane, span } => {
                let ((lang, mt), m) = (self.lang(*span), machine(*span));
                let operand = if let Expr::IsGiven(local) = &**condition { Some(&local.ident) } else { None };
                let decided = condition.decided();
                let condition = self.expr(condition);
                let then = self.block(then);
                let otherwise = otherwise.as_ref().map(|b| self.block(b));
                if let Some(x) = operand {
                    return quote_spanned!(*span=> #lang::if_given(#x, #[inline(always)] || { #then }, #[inline(always)] || { #otherwise }));
                }
                let Some(decided) = decided else {
                    if *lane {
                        return quote_spanned!(*span=> #lang::if_pure::<#mt, _>(#condition, { #then }, { #otherwise }));
                    }
                    return quote_spanned!(*span=> #lang::if_(#m, #condition, #[inline(always)] || { #then }, #[inline(always)] || { #otherwise }));
                };
                // Each branch is written once, and compiled where it is called.
                let undecided = if *lane {
                    quote_spanned!(*span=> #lang::if_pure::<#mt, _>(#condition, __then(), __otherwise()))
                } else {
                    quote_spanned!(*span=> #lang::if_(#m, #condition, __then, __otherwise))
                };
                let compiled = quote_spanned!(*span=> #lang::has_tile_sizes::<#mt>());
                let chosen = match decided {
                    Decided::Whole(constant) => quote_spanned!(*span=>
                        if const { #compiled && #constant } { __then() } else if const { #compiled } { __otherwise() } else { #undecided }
                    ),
                    Decided::Left(constant) => {
                        quote_spanned!(*span=> if const { #compiled && !#constant } { __otherwise() } else { #undecided })
                    }
                };
                quote_spanned!(*span=> ({
                    let __then = #lang::branch(#[inline(always)] || { #then });
                    let __otherwise = #lang::branch(#[inline(always)] || { #otherwise });
                    #chosen
                }))
            }
            Expr::For { pat, lo, hi, step, body, span } => {
                let ((lang, mt), m) = (self.lang(*span), machine(*span));
                let (lo, hi) = (self.count(lo), self.count(hi));
                let step = match step {
                    Some(step) => self.count(step),
                    None => quote_spanned!(*span=> #lang::int::<#mt, ::core::primitive::i64>(1)),
                };
                let (vars, pat, body) = (self.vars(pat), self.pat(pat), self.block(body));
                quote_spanned!(*span=> #lang::for_range(#m, #lo, #hi, #step, #[inline(always)] |#pat| { #vars #body }))
            }
            Expr::While { condition, body, span } => {
                let (lang, m) = (self.names.lang(*span), machine(*span));
                let (condition, body) = (self.expr(condition), self.block(body));
                quote_spanned!(*span=> #lang::while_(#m, #[inline(always)] || #condition, #[inline(always)] || { #body }))
            }
            Expr::Block(block, span) => {
                let block = self.block(block);
                quote_spanned!(*span=> ({ #block }))
            }
            Expr::Tuple(items, span) => {
                let items = items.iter().map(|e| self.expr(e));
                quote_spanned!(*span=> (#(#items,)*))
            }
            Expr::Array(items, span) => {
                // An index list takes program ids as well as numbers; one of pairs is of numbers alone.
                let items = items.iter().map(|e| match e {
                    Expr::Literal(_) => self.count(e),
                    Expr::Tuple(parts, span) => {
                        let parts = parts.iter().map(|part| self.count(part));
                        quote_spanned!(*span=> (#(#parts),*))
                    }
                    other => {
                        let (lang, m) = self.lang(*span);
                        let other = self.expr(other);
                        quote!(#lang::Index::<#m>::index(#other))
                    }
                });
                quote_spanned!(*span=> [#(#items),*])
            }
            Expr::Paren(inner, span) => {
                let inner = self.expr(inner);
                quote_spanned!(*span=> (#inner))
            }
            Expr::Field { base, index } => {
                let base = self.operand(base);
                quote!(#base.#index)
            }
            Expr::Error => quote!(::core::unreachable!()),
        }
    }

    /// A part of an output, with the right to touch its elements. Nothing of the author's stands in the `unsafe` block, whose tokens
    /// are the attribute's: the author's crate may forbid `unsafe`.
    fn unlocked(&self, part: TokenStream, span: Span) -> TokenStream {
        let (lang, place) = (self.names.lang(Span::call_site()), hidden("__part", span));
        // SAFETY (of what is printed): `grid` found that no other program touches the part, or that all do so atomically.
        quote!(({ let #place = #part; unsafe { #lang::unlocked(#place) } }))
    }

    /// An expression beside an operator: the operators printed bind differently from the author's.
    fn operand(&self, expr: &Expr) -> TokenStream {
        let tokens = self.expr(expr);
        match expr {
            Expr::Binary { span, .. } | Expr::Unary { span, .. } | Expr::StrEq { span, .. } => {
                quote_spanned!(*span=> (#tokens))
            }
            _ => tokens,
        }
    }

    fn read(&self, local: &Local) -> TokenStream {
        let ident = &local.ident;
        match local.kind {
            LocalKind::Var | LocalKind::InOut => quote_spanned!(ident.span()=> #ident.get()),
            LocalKind::Value | LocalKind::Tensor(_) | LocalKind::Optional(_) | LocalKind::Str | LocalKind::Unknown => {
                ident.to_token_stream()
            }
        }
    }

    /// A number as an `i64`: a loop's bound or an index.
    fn count(&self, expr: &Expr) -> TokenStream {
        match expr {
            Expr::Literal(literal @ Literal { dtype: None, .. }) => {
                let i64 = quote_spanned!(literal.span=> ::core::primitive::i64);
                self.literal(literal, Some(i64))
            }
            other => self.expr(other),
        }
    }

    /// `lang::float::<Machine, _>(2.0)`; `dtype` is what the place asks for.
    fn literal(&self, literal: &Literal, dtype: Option<TokenStream>) -> TokenStream {
        let span = literal.span;
        let (lang, m) = self.lang(span);
        let function = Ident::new(function(literal.class), span);
        let dtype = match (literal.dtype, dtype) {
            (Some(dtype), _) => self.names.fixed(dtype, span),
            (None, Some(dtype)) => dtype,
            (None, None) => quote_spanned!(span=> _),
        };
        let tokens = &literal.tokens;
        quote_spanned!(span=> #lang::#function::<#m, #dtype>(#tokens))
    }

    /// A literal on the left of an operator, which takes its dtype from the right side: the name of the right side,
    /// and `lang::float_like::<Machine, _>(2.0, &r)`.
    fn like(&self, literal: &Literal, span: Span) -> (Ident, TokenStream) {
        let (lang, m) = self.lang(literal.span);
        let function = Ident::new(&format!("{}_like", function(literal.class)), literal.span);
        let (r, tokens) = (hidden("__right", span), &literal.tokens);
        let like = quote_spanned!(literal.span=> #lang::#function::<#m, _>(#tokens, &#r));
        (r, like)
    }

    fn cast(&self, value: &Expr, dtype: &DtypeUse, span: Span) -> TokenStream {
        let target = self.names.dtype(dtype);
        if let Expr::Literal(literal @ Literal { dtype: None, .. }) = value {
            let tokens = &literal.tokens;
            match (literal.class, dtype.of) {
                (LiteralClass::Int | LiteralClass::Const, _) => return self.literal(literal, Some(target)),
                (LiteralClass::Float, DtypeOf::Fixed(fixed)) if fixed.is_int() => {
                    let (lang, m) = self.lang(literal.span);
                    return quote_spanned!(span=> #lang::int::<#m, #target>(#tokens as #target as i128));
                }
                (LiteralClass::Float, of) if self.is_float(of) => return self.literal(literal, Some(target)),
                (LiteralClass::Float, _) => {
                    let f64 = quote_spanned!(literal.span=> ::core::primitive::f64);
                    let literal = self.literal(literal, Some(f64));
                    return quote_spanned!(span=> #literal.cast::<#target>());
                }
            }
        }
        let value = self.operand(value);
        quote_spanned!(span=> #value.cast::<#target>())
    }

    /// Whether the dtype is one that float literals have.
    fn is_float(&self, dtype: DtypeOf) -> bool {
        match dtype {
            DtypeOf::Fixed(dtype) => dtype.class == Class::Float,
            DtypeOf::Generic(i) => self.generics.get(i).is_some_and(|g| g.bound.0 == Bound::Float),
        }
    }

    fn turbofish(&self, machine: Option<Ident>, args: &[GenericArg]) -> Option<TokenStream> {
        if args.is_empty() {
            return None;
        }
        let args = args.iter().map(|arg| match arg {
            GenericArg::Dtype(dtype) => self.names.dtype(dtype),
            GenericArg::Type(ty) => self.names.ty(ty),
            GenericArg::Const(tokens) => tokens.clone(),
        });
        let args = machine.map(|m| m.into_token_stream()).into_iter().chain(args);
        Some(quote!(::<#(#args),*>))
    }
}

/// The runtime's function for a literal.
fn function(class: LiteralClass) -> &'static str {
    match class {
        LiteralClass::Int => "int",
        LiteralClass::Float => "float",
        LiteralClass::Const => "constant",
    }
}

/// A local name that the author cannot collide with.
pub fn hidden(name: &str, span: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(span))
}
