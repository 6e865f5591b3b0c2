//! Parts of bodies that are taken apart and put together.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::Ident;

use super::super::{Expr, GenericArg, Local, Pat, Stmt};
use crate::signature::types::Ty;

/// The tile constant that says how many columns a program takes.
pub const COLUMNS: &str = "__COLUMNS";

/// Methods of numbers, which closures may call.
const NUMBERS: &str = "abs abs_diff acos atanh cast ceil clamp convert cos div_euclid erf exp exp2 floor fract is_finite is_infinite is_nan \
                       ln log log1p max min mul_add powf powi rem_euclid recip round round_ties_even rsqrt saturating_add saturating_sub \
                       sigmoid sign sin sqrt tanh trunc";

/// An expression of numbers with other parts; `None` if it is anything else.
pub fn rebuilt(expr: &Expr, part: &mut impl FnMut(&Expr) -> Option<Expr>) -> Option<Expr> {
    let mut boxed = |e: &Expr| part(e).map(Box::new);
    Some(match expr {
        Expr::Literal(_) | Expr::Bool(..) | Expr::Path(_) | Expr::DtypeConst { .. } => expr.clone(),
        Expr::Unary { op, value, span } => Expr::Unary { op: op.clone(), value: boxed(value)?, span: *span },
        Expr::Binary { op, left, right, span } => {
            Expr::Binary { op: op.clone(), left: boxed(left)?, right: boxed(right)?, span: *span }
        }
        Expr::Compare { function, left, right, span } => {
            Expr::Compare { function, left: boxed(left)?, right: boxed(right)?, span: *span }
        }
        Expr::StrEq { value, text, negated, span } => {
            Expr::StrEq { value: boxed(value)?, text: text.clone(), negated: *negated, span: *span }
        }
        Expr::Cast { value, dtype, span } => Expr::Cast { value: boxed(value)?, dtype: dtype.clone(), span: *span },
        Expr::Paren(value, span) => Expr::Paren(boxed(value)?, *span),
        Expr::Field { base, index } => Expr::Field { base: boxed(base)?, index: index.clone() },
        Expr::Tuple(items, span) => Expr::Tuple(items.iter().map(part).collect::<Option<_>>()?, *span),
        Expr::Builtin { function, args } if function == "select" => {
            Expr::Builtin { function: function.clone(), args: args.iter().map(part).collect::<Option<_>>()? }
        }
        Expr::Call { path, turbofish, args } => Expr::Call {
            path: path.clone(),
            turbofish: turbofish.clone(),
            args: args.iter().map(part).collect::<Option<_>>()?,
        },
        Expr::TypeCall { ty: ty @ Ty::Scalar(_), method, turbofish, args } => Expr::TypeCall {
            ty: ty.clone(),
            method: method.clone(),
            turbofish: turbofish.clone(),
            args: args.iter().map(part).collect::<Option<_>>()?,
        },
        Expr::Method { receiver, method, turbofish, args, checked }
            if NUMBERS.split_whitespace().any(|name| method == name) =>
        {
            Expr::Method {
                receiver: Box::new(part(receiver)?),
                method: method.clone(),
                turbofish: turbofish.clone(),
                args: args.iter().map(part).collect::<Option<_>>()?,
                checked: checked.clone(),
            }
        }
        _ => return None,
    })
}

/// All variables of an expression of numbers.
pub fn locals(expr: &Expr, found: &mut Vec<Local>) {
    if let Expr::Local(local) = expr {
        found.push(local.clone());
    }
    expr.children().into_iter().for_each(|child| locals(child, found));
    for block in expr.blocks() {
        block.exprs().for_each(|expr| locals(expr, found));
    }
}

/// The ids of the variables that a pattern defines.
pub fn names(pat: &Pat) -> HashSet<usize> {
    match pat {
        Pat::Value(local) | Pat::Var(local) => HashSet::from([local.id]),
        Pat::Wild(_) => HashSet::new(),
        Pat::Tuple(items, _) | Pat::Array(items, _) => items.iter().flat_map(names).collect(),
        Pat::Typed(pat, _) => names(pat),
    }
}

/// A pattern whose variables have names of their own.
pub fn renamed_pat(pat: &Pat) -> Option<Pat> {
    Some(match pat {
        Pat::Value(local) => Pat::Value(renamed(local)),
        Pat::Wild(span) => Pat::Wild(*span),
        Pat::Tuple(items, span) => Pat::Tuple(items.iter().map(renamed_pat).collect::<Option<_>>()?, *span),
        Pat::Typed(pat, ty) => Pat::Typed(Box::new(renamed_pat(pat)?), ty.clone()),
        Pat::Var(_) | Pat::Array(..) => return None,
    })
}

/// A pattern without the variables that are not needed.
pub fn pruned(pat: &Pat, needed: &HashSet<usize>) -> Pat {
    match pat {
        Pat::Value(local) if !needed.contains(&local.id) => Pat::Wild(local.ident.span()),
        Pat::Tuple(items, span) => Pat::Tuple(items.iter().map(|item| pruned(item, needed)).collect(), *span),
        other => other.clone(),
    }
}

/// A variable by a name that no other one has: what is written once may stand where others of its name are in scope.
pub fn renamed(local: &Local) -> Local {
    if local.id > usize::MAX / 2 {
        return local.clone();
    }
    let ident = Ident::new(&format!("__{}_{}", local.ident, local.id), local.ident.span());
    Local { ident, ..local.clone() }
}

pub fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

pub fn is(expr: &Expr, operand: &Local) -> bool {
    matches!(expr.unparenthesized(), Expr::Local(local) if local.id == operand.id)
}

pub fn bind(pat: Pat, init: Expr) -> Stmt {
    Stmt::Let { pat, ty: None, init, span: Span::call_site() }
}

pub fn closure(inputs: Vec<Pat>, value: Expr) -> Expr {
    Expr::Closure { moves: None, inputs, value: Box::new(value), span: Span::call_site() }
}

pub fn method(receiver: Expr, name: &str, args: Vec<Expr>, at: Span) -> Expr {
    let method = Ident::new(name, at);
    Expr::Method { receiver: Box::new(receiver), method, turbofish: Vec::new(), args, checked: false.into() }
}

/// A method with a size.
pub fn sized(receiver: Expr, name: &str, size: TokenStream, args: Vec<Expr>, at: Span) -> Expr {
    let (method, turbofish) = (Ident::new(name, at), vec![GenericArg::Const(size)]);
    Expr::Method { receiver: Box::new(receiver), method, turbofish, args, checked: false.into() }
}

/// The tile constant, as a size.
pub fn columns_const(at: Span) -> TokenStream {
    Ident::new(COLUMNS, Span::call_site().located_at(at)).into_token_stream()
}
