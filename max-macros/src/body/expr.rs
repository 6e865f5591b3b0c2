//! Expressions.

use std::cell::Cell;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Ident, UnOp};

use super::literal::Literal;
use super::parse::Parser;
use super::scope::{Binding, Local, LocalKind};
use super::{Expr, GenericArg};
use crate::dtype::Bound;
use crate::methods::Method;
use crate::signature::types::{DtypeOf, DtypeUse, Ty, const_argument, is_constant_name};

/// Functions of the language, with the number of their arguments.
const BUILTINS: [(&str, usize); 6] =
    [("dot", 3), ("dot_scaled", 4), ("select", 3), ("lanes", 1), ("ceildiv", 2), ("print", 2)];

/// Constants of dtypes, and the functions that give them.
const DTYPE_CONSTS: [(&str, &str); 11] = [
    ("INFINITY", "infinity"),
    ("NEG_INFINITY", "neg_infinity"),
    ("NAN", "nan"),
    ("MAX", "max_value"),
    ("MIN", "min_value"),
    ("EPSILON", "epsilon"),
    ("MIN_POSITIVE", "min_positive"),
    ("ZERO", "zero"),
    ("ONE", "one"),
    ("LOWEST", "lowest"),
    ("HIGHEST", "highest"),
];

/// Those of them that only floats have.
const FLOAT_CONSTS: [&str; 5] = ["INFINITY", "NEG_INFINITY", "NAN", "EPSILON", "MIN_POSITIVE"];

impl Parser<'_> {
    pub fn expr(&mut self, expr: &syn::Expr) -> Expr {
        match expr {
            syn::Expr::Group(group) => self.expr(&group.expr),
            syn::Expr::Paren(paren) => match self.expr(&paren.expr) {
                literal @ (Expr::Literal(_) | Expr::Bool(..)) => literal,
                other => Expr::Paren(Box::new(other), paren.span()),
            },
            syn::Expr::Lit(lit) => self.lit(&lit.lit),
            syn::Expr::Path(path) => self.path(path),
            syn::Expr::Unary(unary) => self.unary(unary),
            syn::Expr::Binary(binary) => self.binary(binary),
            syn::Expr::Cast(cast) => match Ty::parse(self.cx, self.types, &cast.ty) {
                Some(Ty::Scalar(dtype)) => self.cast(&cast.expr, dtype, cast.as_token.span),
                Some(_) => self.error(&cast.ty, "`as` converts to a dtype, such as f32 or a generic of the kernel"),
                None => Expr::Error,
            },
            syn::Expr::Call(call) => self.call(call),
            syn::Expr::MethodCall(call) => self.method(call),
            syn::Expr::If(expr) => self.if_(expr),
            syn::Expr::ForLoop(expr) => self.for_(expr),
            syn::Expr::While(expr) => self.while_(expr),
            syn::Expr::Block(block) => {
                self.no_label(&block.label);
                Expr::Block(self.block(&block.block), block.span())
            }
            syn::Expr::Tuple(tuple) => Expr::Tuple(tuple.elems.iter().map(|e| self.expr(e)).collect(), tuple.span()),
            syn::Expr::Closure(closure) => {
                self.cx.error(closure, "a closure is an argument of a method, such as `x.map(|v| v + 1.0)`");
                self.closure(closure)
            }
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Unnamed(index) => {
                    Expr::Field { base: Box::new(self.expr(&field.base)), index: index.clone() }
                }
                syn::Member::Named(name) => match self.expr(&field.base) {
                    Expr::Error | Expr::Local(Local { kind: LocalKind::Unknown, .. }) => Expr::Error,
                    _ => self.error(name, "there are no structs in a kernel: use tuples, `t.0`"),
                },
            },
            syn::Expr::Assign(_) => self.error(expr, "an assignment is a statement of its own: `x = value;`"),
            other => self.rejected(other),
        }
    }

    fn error(&self, node: impl ToTokens, message: &str) -> Expr {
        self.cx.error(node, message);
        Expr::Error
    }

    /// What the language lacks, each with what to write instead.
    fn rejected(&self, expr: &syn::Expr) -> Expr {
        match expr {
            syn::Expr::Break(e) => self.error(
                e.break_token,
                "there is no `break` in a kernel: loop with `while` and put the condition there",
            ),
            syn::Expr::Continue(e) => {
                self.error(e.continue_token, "there is no `continue` in a kernel: put the rest of the body in an `if`")
            }
            syn::Expr::Return(e) => self.error(
                e.return_token,
                "there is no `return` in a kernel: its value is the last expression, without a semicolon; choose with `if … else …`",
            ),
            syn::Expr::Try(e) => self.error(e.question_token, "there is no `?` in a kernel: its operations cannot fail"),
            syn::Expr::Match(e) => self.error(e.match_token, "there is no `match` in a kernel: write `if … else if … else …`"),
            syn::Expr::Loop(e) => self.error(e.loop_token, "there is no `loop` in a kernel: write `while condition { … }`"),
            syn::Expr::Reference(e) => {
                self.error(e.and_token, "there are no references in a kernel: values are copied, leave out the `&`")
            }
            syn::Expr::RawAddr(e) => self.error(e, "there are no pointers in a kernel: use the methods of tensors"),
            syn::Expr::Index(e) => self.error(e, "there is no indexing in a kernel: write `.at(i)`, or `.at([i, j])`"),
            syn::Expr::Array(e) => self.error(e, "there are no arrays in a kernel: use a tuple, or a tile"),
            syn::Expr::Repeat(e) => self.error(e, "there are no arrays in a kernel: use a tile, `Tile::<f32, 8, 8>::zeros()`"),
            syn::Expr::Struct(e) => self.error(e, "there are no structs in a kernel: use a tuple"),
            syn::Expr::Macro(e) => {
                self.no_macro(&e.mac);
                Expr::Error
            }
            syn::Expr::Unsafe(e) => self.error(e.unsafe_token, "there is no `unsafe` in a kernel: it has no pointers to guard"),
            syn::Expr::Await(e) => self.error(e.await_token, "a kernel has no async code"),
            syn::Expr::Async(e) => self.error(e.async_token, "a kernel has no async code"),
            syn::Expr::Const(e) => self.error(e.const_token, "move the constant out of the kernel: `const NAME: f64 = …;`"),
            syn::Expr::Range(e) => self.error(e, "a range stands in a `for`: `for i in 0..n`"),
            syn::Expr::Let(e) => self.error(e, "there is no `let` in a kernel's conditions: it has no enums to take apart"),
            syn::Expr::Infer(e) => self.error(e, "`_` is not a value"),
            other => self.error(other, "the kernel language has no such expression"),
        }
    }

    fn lit(&mut self, lit: &syn::Lit) -> Expr {
        match lit {
            syn::Lit::Int(int) => Literal::int(self.cx, int).map_or(Expr::Error, Expr::Literal),
            syn::Lit::Float(float) => Literal::float(self.cx, float).map_or(Expr::Error, Expr::Literal),
            syn::Lit::Bool(value) => Expr::Bool(value.value, value.span),
            syn::Lit::Str(text) => self
                .error(text, "a string is only compared with a parameter: `#[param] mode: &str`, `mode == \"tanh\"`"),
            other => self.error(other, "a kernel's literals are numbers, `true` and `false`"),
        }
    }

    fn path(&mut self, expr: &syn::ExprPath) -> Expr {
        let path = &expr.path;
        if let Some(ident) = path.get_ident() {
            match self.scope.find(ident) {
                Some(Binding::Local { kind: LocalKind::Optional(_), .. }) => {
                    let text = format!(
                        "`{ident}` may be absent: write `if let Some({ident}) = {ident} {{ … }} else {{ … }}`, or ask \
                         `{ident}.is_some()`"
                    );
                    return self.error(ident, &text);
                }
                Some(Binding::Local { id, kind, .. }) => {
                    return Expr::Local(Local { ident: ident.clone(), id: *id, kind: *kind });
                }
                Some(Binding::Literal(literal)) => return Expr::Literal(literal.at(ident.span())),
                None => {}
            }
            if self.types.constant(ident).is_some() {
                return Expr::TileConst(ident.clone());
            }
        }
        if let Some((dtype, name)) = self.dtype_path(path) {
            if let Some((_, method)) = DTYPE_CONSTS.iter().find(|(n, _)| name == n) {
                self.only_floats(&dtype, name);
                return Expr::DtypeConst { dtype, method, name: name.clone() };
            }
            if is_constant_name(name) {
                let known: Vec<&str> = DTYPE_CONSTS.iter().map(|(n, _)| *n).collect();
                let message = format!("kernels have no `{}::{name}`: there are {}", dtype.ident, known.join(", "));
                return self.error(name, &message);
            }
        }
        let last = path.segments.last().map(|s| &s.ident);
        if last.is_some_and(is_constant_name) {
            return Expr::Literal(Literal::constant(&self.outer(path), path.span()));
        }
        Expr::Path(self.outer(path))
    }

    /// Reports `T::INFINITY` where `T` ranges over integers.
    fn only_floats(&self, dtype: &DtypeUse, name: &Ident) {
        if !FLOAT_CONSTS.contains(&name.to_string().as_str()) {
            return;
        }
        let ident = &dtype.ident;
        match dtype.of {
            DtypeOf::Fixed(fixed) if !fixed.is_float() => {
                self.cx.error(name, format!("`{ident}` has no `{name}`: it is not a floating-point dtype"));
            }
            DtypeOf::Generic(i) => {
                if let Some(generic) = self.types.generics.get(i).filter(|g| g.bound.0 != Bound::Float) {
                    let bound = generic.bound.0.name();
                    self.cx.error(
                        name,
                        format!("`{ident}: {bound}` has no `{name}`: bound it by `Float`, or use `{ident}::MAX` or `{ident}::MIN`"),
                    );
                }
            }
            DtypeOf::Fixed(_) => {}
        }
    }

    /// `T::name`, where `T` is a dtype.
    fn dtype_path<'p>(&self, path: &'p syn::Path) -> Option<(DtypeUse, &'p Ident)> {
        let mut segments = path.segments.iter();
        let (first, second, None) = (segments.next()?, segments.next()?, segments.next()) else { return None };
        Some((self.types.dtype(&first.ident)?, &second.ident))
    }

    fn unary(&mut self, unary: &syn::ExprUnary) -> Expr {
        let span = unary.op.span();
        if let UnOp::Deref(_) = unary.op {
            return match self.expr(&unary.expr) {
                Expr::Local(local @ Local { kind: LocalKind::InOut | LocalKind::Unknown, .. }) => Expr::Local(local),
                Expr::Error => Expr::Error,
                _ => self.error(unary, "there are no references in a kernel: remove the `*`"),
            };
        }
        match (self.expr(&unary.expr), &unary.op) {
            (Expr::Literal(literal), UnOp::Neg(_)) => Expr::Literal(literal.negated(span)),
            (Expr::Bool(value, at), UnOp::Not(_)) => Expr::Bool(!value, at),
            (value, op) => Expr::Unary { op: op.to_token_stream(), value: Box::new(value), span },
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary) -> Expr {
        let span = binary.op.span();
        if compound(&binary.op).is_some() {
            return self.error(binary, "an assignment is a statement of its own: `x += value;`");
        }
        if let Some(compared) = self.compare_str(binary) {
            return compared;
        }
        let (left, right) = (self.expr(&binary.left), self.expr(&binary.right));
        let function = match binary.op {
            BinOp::Lt(_) => "lt",
            BinOp::Le(_) => "le",
            BinOp::Gt(_) => "gt",
            BinOp::Ge(_) => "ge",
            BinOp::Eq(_) => "eq",
            BinOp::Ne(_) => "ne",
            _ => "",
        };
        if !function.is_empty() {
            return Expr::Compare { function, left: Box::new(left), right: Box::new(right), span };
        }
        let op = match binary.op {
            BinOp::And(_) => quote_spanned!(span=> &),
            BinOp::Or(_) => quote_spanned!(span=> |),
            op => op.to_token_stream(),
        };
        if let (Expr::Literal(a), Expr::Literal(b)) = (&left, &right)
            && let Some(folded) = a.combine(&op, b, span)
        {
            return Expr::Literal(folded);
        }
        Expr::Binary { op, left: Box::new(left), right: Box::new(right), span }
    }

    /// `mode == "tanh"`
    fn compare_str(&mut self, binary: &syn::ExprBinary) -> Option<Expr> {
        let negated = match binary.op {
            BinOp::Eq(_) => false,
            BinOp::Ne(_) => true,
            _ => return None,
        };
        let (value, text) = match (string(&binary.left), string(&binary.right)) {
            (None, Some(text)) => (&binary.left, text),
            (Some(text), None) => (&binary.right, text),
            _ => return None,
        };
        let value = self.expr(value);
        Some(Expr::StrEq { value: Box::new(value), text: text.clone(), negated, span: binary.op.span() })
    }

    fn cast(&mut self, value: &syn::Expr, dtype: DtypeUse, span: Span) -> Expr {
        let value = Box::new(self.expr(value));
        Expr::Cast { value, dtype, span }
    }

    /// `program_id()` or `num_programs()`, taken apart into `count` axes.
    pub fn program_ids(&mut self, call: &syn::ExprCall, count: usize) -> Option<Expr> {
        let function = self.program_function(call)?;
        if !(1..=3).contains(&count) {
            self.cx.error(call, "a grid has 1 to 3 axes");
            return Some(Expr::Error);
        }
        Some(Expr::ProgramIds { function, count })
    }

    fn program_function(&self, call: &syn::ExprCall) -> Option<Ident> {
        let syn::Expr::Path(path) = &*call.func else { return None };
        let ident = path.path.get_ident()?;
        let known = (ident == "program_id" || ident == "num_programs") && self.scope.find(ident).is_none();
        known.then(|| ident.clone())
    }

    fn call(&mut self, call: &syn::ExprCall) -> Expr {
        let func = match &*call.func {
            syn::Expr::Group(group) => &*group.expr,
            other => other,
        };
        let syn::Expr::Path(func) = func else {
            return self.error(&call.func, "only kernel functions are called: name one");
        };
        if let Some(function) = self.program_function(call) {
            return self.program_id(call, function);
        }
        let path = &func.path;
        if let Some(ident) = path.get_ident() {
            let name = ident.to_string();
            if let Some(binding) = self.scope.find(ident) {
                if let Binding::Local { kind: LocalKind::Unknown, .. } = binding {
                    return Expr::Error;
                }
                return self.error(ident, "a variable cannot be called: write a kernel function");
            }
            if ident == self.name {
                return self.error(ident, "a kernel cannot call itself: write a loop");
            }
            if name == "range" {
                return self.error(call, "a range stands in a `for`: `for i in range(0, n, step)`");
            }
            if let Some((_, count)) = BUILTINS.iter().find(|(n, _)| *n == name) {
                return self.builtin(call, ident, *count);
            }
        }
        let args = |this: &mut Self| call.args.iter().map(|a| this.argument(a)).collect::<Vec<_>>();
        let mut path = path.clone();
        let Some(last) = path.segments.last_mut() else { return Expr::Error };
        let turbofish = self.turbofish(&last.arguments);
        last.arguments = syn::PathArguments::None;
        let method = last.ident.clone();
        if let (Some("std" | "core" | "alloc"), true) =
            (path.segments.first().map(|s| s.ident.to_string()).as_deref(), path.segments.len() > 1)
        {
            return self.error(
                &call.func,
                "the standard library's functions are no kernels: write a method, such as `x.max(y)`, or a function marked `#[kernel]`",
            );
        }
        if let Some((dtype, name)) = self.dtype_path(&path) {
            if let ("from" | "from_i64" | "from_f64", [value]) =
                (name.to_string().as_str(), &call.args.iter().collect::<Vec<_>>()[..])
            {
                let value = Box::new(self.expr(value));
                // A number is one of the dtype at once.
                if let Expr::Literal(_) = *value {
                    return Expr::Cast { value, dtype, span: name.span() };
                }
                let method = Ident::new("convert", name.span());
                let turbofish = vec![GenericArg::Dtype(dtype)];
                return Expr::Method { receiver: value, method, turbofish, args: Vec::new(), checked: Cell::default() };
            }
            return Expr::TypeCall { ty: Ty::Scalar(dtype), method, turbofish, args: args(self) };
        }
        // `Tile::<f32, 8, 8>::zeros()`
        let tile = func.path.segments.iter().rev().nth(1).filter(|s| s.ident == "Tile" || s.ident == "ScaledTile");
        if let Some(tile) = tile {
            if let syn::PathArguments::None = tile.arguments {
                let usage = match tile.ident == "Tile" {
                    true => "write the tile's dtype and sizes: `Tile::<f32, 8, 16>::zeros()`",
                    false => "write the tile's sizes: `ScaledTile::<64, 256, 8>::from_rows(|r| (words, scales))`",
                };
                return self.error(tile, usage);
            }
            let tokens = tile.to_token_stream();
            let ty = syn::parse2(tokens).ok().and_then(|ty| Ty::parse(self.cx, self.types, &ty));
            let Some(ty) = ty else { return Expr::Error };
            return Expr::TypeCall { ty, method, turbofish, args: args(self) };
        }
        if method.to_string().starts_with(char::is_uppercase) {
            return self.error(&call.func, "there are no structs or enums in a kernel: use a tuple");
        }
        if path.segments.iter().rev().nth(1).is_some_and(|s| s.ident.to_string().starts_with(char::is_uppercase)) {
            return self.error(&call.func, "kernels call kernel functions, and the functions of dtypes and tiles");
        }
        Expr::Call { path: self.outer(&path), turbofish, args: args(self) }
    }

    fn program_id(&mut self, call: &syn::ExprCall, function: Ident) -> Expr {
        let hint = format!("name the axis: `{function}(0)`, `{function}(1)` or `{function}(2)`");
        match call.args.iter().collect::<Vec<_>>()[..] {
            [syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(axis), .. })] => {
                if !matches!(axis.base10_parse::<u32>(), Ok(0..=2)) {
                    return self.error(axis, &format!("a grid has at most 3 axes: {hint}"));
                }
                Expr::ProgramId { function, axis: axis.clone() }
            }
            [] => self.error(call, &format!("{hint}; or take all of them: `let [m, n] = {function}();`")),
            _ => self.error(&call.args, &hint),
        }
    }

    fn builtin(&mut self, call: &syn::ExprCall, function: &Ident, count: usize) -> Expr {
        if call.args.len() != count {
            let usage = match function.to_string().as_str() {
                "dot" => "dot(a, b, acc)",
                "dot_scaled" => "dot_scaled(a, b, scale, acc)",
                "select" => "select(condition, a, b)",
                "lanes" => "lanes(n)",
                "print" => "print(\"label\", value)",
                _ => "ceildiv(a, b)",
            };
            return self.error(call, &format!("`{function}` takes {count} arguments: `{usage}`"));
        }
        if (function == "dot" || function == "dot_scaled") && self.scope.depth > 0 {
            let message =
                format!("`{function}` multiplies tiles, and this closure runs once per element: use it outside");
            return self.error(function, &message);
        }
        let mut given = call.args.iter();
        let mut args = Vec::with_capacity(count);
        if function == "print" {
            args.push(match given.next() {
                Some(label) if string(label).is_some() => Expr::Raw(label.to_token_stream()),
                label => self.error(label, "the label is a string literal: `print(\"label\", value)`"),
            });
        }
        args.extend(given.map(|a| self.argument(a)));
        Expr::Builtin { function: function.clone(), args }
    }

    /// An argument of a call: closures and index lists may stand here.
    fn argument(&mut self, arg: &syn::Expr) -> Expr {
        match arg {
            // An expression that a `macro_rules!` was given.
            syn::Expr::Group(group) => self.argument(&group.expr),
            syn::Expr::Closure(closure) => self.closure(closure),
            syn::Expr::Array(array) => Expr::Array(array.elems.iter().map(|e| self.expr(e)).collect(), array.span()),
            other => self.expr(other),
        }
    }

    /// The operand that may be absent which `expr` names.
    pub fn optional(&self, expr: &syn::Expr) -> Option<Local> {
        let syn::Expr::Path(path) = expr else { return None };
        let ident = path.path.get_ident()?;
        match self.scope.find(ident)? {
            Binding::Local { id, kind: kind @ LocalKind::Optional(_), .. } => {
                Some(Local { ident: ident.clone(), id: *id, kind: *kind })
            }
            _ => None,
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) -> Expr {
        let method = &call.method;
        if call.args.is_empty()
            && let Some(local) = self.optional(&call.receiver)
        {
            match method.to_string().as_str() {
                "is_some" => return Expr::IsGiven(local),
                "is_none" => {
                    let (op, value) = (quote::quote_spanned!(method.span()=> !), Box::new(Expr::IsGiven(local)));
                    return Expr::Unary { op, value, span: method.span() };
                }
                _ => {}
            }
        }
        let name = method.to_string();
        self.check_lane_method(call, &name);
        if name == "clone" && call.args.is_empty() {
            return self.error(method, "values are copied in a kernel: remove `.clone()`");
        }
        let receiver = Box::new(self.expr(&call.receiver));
        if let Expr::Literal(Literal { dtype: None, span, .. }) = &*receiver {
            self.cx.error_at(
                *span,
                format!("the dtype of this number is open: write `1.0_f32.{name}(…)`, or `x.{name}(1.0)`"),
            );
        }
        let turbofish = call.turbofish.as_ref().map_or_else(Vec::new, |t| self.generic_args(t));
        // What is known when the kernel is compiled: a dimension, which is compared with the rank, and exponents.
        let literal = match &*name {
            "dim" => Some("the dimension is a literal: `x.dim(0)`"),
            // Of other exponents there is another function.
            "powi" => call.args.iter().any(is_integer_literal).then_some("the exponent is one number: `x.powi(2)`"),
            "pow" => Some("the exponent is a literal: `x.pow(2)`; floats have `powf` for others"),
            _ => None,
        };
        if let Some(wrong) = literal {
            let (turbofish, args) = match call.args.iter().collect::<Vec<_>>()[..] {
                [value] if is_integer_literal(value) => (vec![GenericArg::Const(value.to_token_stream())], Vec::new()),
                _ => (turbofish, vec![self.error(&call.args, wrong)]),
            };
            return Expr::Method { receiver, method: method.clone(), turbofish, args, checked: Cell::default() };
        }
        let mut args: Vec<Expr> = call.args.iter().map(|arg| self.method_argument(&name, arg)).collect();
        if name == "at" && args.len() > 1 {
            // One argument for every rank: `x.at(i, j)` is `x.at((i, j))`.
            args = vec![Expr::Tuple(args, call.args.span())];
        }
        let method = match &*name {
            "powi" => Ident::new("powi_by", method.span()),
            _ => method.clone(),
        };
        Expr::Method { receiver, method, turbofish, args, checked: Cell::default() }
    }

    fn method_argument(&mut self, method: &str, arg: &syn::Expr) -> Expr {
        let value = self.argument(arg);
        if let Expr::Path(path) = &value {
            let path = path.to_token_stream().to_string();
            if matches!(method, "map" | "zip_map" | "for_each") {
                return self
                    .error(arg, &format!("write the argument of the kernel function: `.{method}(|v| {path}(v))`"));
            }
            if matches!(method, "fold" | "scan") {
                return self.error(arg, &format!("write the arguments of the kernel function: `|a, v| {path}(a, v)`"));
            }
        }
        value
    }

    /// Reports methods of rows and tiles inside a closure.
    fn check_lane_method(&mut self, call: &syn::ExprMethodCall, name: &str) {
        let needs_all = match Method::of(&name) {
            Some(Method::Writes | Method::Joins) => true,
            Some(Method::Reduces) => !matches!(name, "max" | "min") || call.args.is_empty(),
            Some(Method::Reorders) | None => false,
        };
        if needs_all && self.scope.depth > 0 {
            self.cx.error(
                &call.method,
                format!("`{name}` works on a whole row or tile, and this closure runs once per element: compute it before, in a `let`"),
            );
        }
    }

    fn turbofish(&mut self, args: &syn::PathArguments) -> Vec<GenericArg> {
        match args {
            syn::PathArguments::AngleBracketed(args) => self.generic_args(args),
            syn::PathArguments::None | syn::PathArguments::Parenthesized(_) => Vec::new(),
        }
    }

    fn generic_args(&mut self, args: &syn::AngleBracketedGenericArguments) -> Vec<GenericArg> {
        args.args.iter().filter_map(|arg| self.generic_arg(arg)).collect()
    }

    fn generic_arg(&mut self, arg: &syn::GenericArgument) -> Option<GenericArg> {
        if let syn::GenericArgument::Type(syn::Type::Path(path)) = arg
            && let Some(ident) = path.path.get_ident()
        {
            if let Some(dtype) = self.types.dtype(ident) {
                return Some(GenericArg::Dtype(dtype));
            }
            if self.types.constant(ident).is_none() && !is_constant_name(ident) {
                return self.generic_type(&syn::Type::Path(path.clone()));
            }
        }
        match arg {
            syn::GenericArgument::Type(ty @ (syn::Type::Tuple(_) | syn::Type::Infer(_))) => self.generic_type(ty),
            syn::GenericArgument::Type(syn::Type::Path(path))
                if path.path.segments.last().is_some_and(|s| s.ident == "Tile" || s.ident == "ScaledTile") =>
            {
                self.generic_type(&syn::Type::Path(path.clone()))
            }
            arg => const_argument(self.cx, self.types, arg).map(GenericArg::Const),
        }
    }

    fn generic_type(&mut self, ty: &syn::Type) -> Option<GenericArg> {
        Ty::parse(self.cx, self.types, ty).map(|ty| match ty {
            Ty::Scalar(dtype) => GenericArg::Dtype(dtype),
            ty => GenericArg::Type(ty),
        })
    }
}

/// The operator of a compound assignment.
pub(super) fn compound(op: &BinOp) -> Option<TokenStream> {
    let span = op.span();
    Some(match op {
        BinOp::AddAssign(_) => quote_spanned!(span=> +),
        BinOp::SubAssign(_) => quote_spanned!(span=> -),
        BinOp::MulAssign(_) => quote_spanned!(span=> *),
        BinOp::DivAssign(_) => quote_spanned!(span=> /),
        BinOp::RemAssign(_) => quote_spanned!(span=> %),
        BinOp::BitAndAssign(_) => quote_spanned!(span=> &),
        BinOp::BitOrAssign(_) => quote_spanned!(span=> |),
        BinOp::BitXorAssign(_) => quote_spanned!(span=> ^),
        BinOp::ShlAssign(_) => quote_spanned!(span=> <<),
        BinOp::ShrAssign(_) => quote_spanned!(span=> >>),
        _ => return None,
    })
}

/// Whether this is an integer as it is written: `2`, `-1`.
fn is_integer_literal(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Lit(lit) => matches!(lit.lit, syn::Lit::Int(_)),
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => is_integer_literal(expr),
        _ => false,
    }
}

fn string(expr: &syn::Expr) -> Option<&syn::LitStr> {
    match expr {
        syn::Expr::Group(group) => string(&group.expr),
        syn::Expr::Paren(paren) => string(&paren.expr),
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text),
        _ => None,
    }
}
