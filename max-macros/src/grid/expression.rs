//! The axes of `grid(...)`: a number, a dimension that is divided, or an expression of dimensions, parameters and tile constants.

use syn::spanned::Spanned;
use syn::{BinOp, Expr, Ident, Lit};

use super::{Axis, Size};
use crate::ctxt::Ctxt;
use crate::signature::ast::{ParamKind, Signature};

/// A step of an expression in postfix order, as the kernel table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The name of what it does.
    pub op: &'static str,
    /// The operand, parameter or tile constant.
    pub index: u32,
    /// The number, or the dimension.
    pub value: i64,
}

/// The most values that an expression holds at a time, as in the kernel table.
const MAX_DEPTH: usize = 16;

const USAGE: &str = "an axis is made of dimensions, integer parameters, tile constants and numbers, by `+ - * /`, which rounds up, \
                     `.min(..)` and `.max(..)`: `x.dim(0) * n / 64`";

/// An axis, whose terms are added to `terms` if it is an expression.
pub(super) fn axis(cx: &Ctxt, sig: &Signature, expr: &Expr, terms: &mut Vec<Term>) -> Option<Axis> {
    let mut own = Vec::new();
    let depth = Reader { cx, sig, terms: &mut own }.expr(expr)?;
    if depth > MAX_DEPTH {
        cx.error_at(
            expr.span(),
            "this expression is too deep for a grid: compute a part of it in the graph, as a parameter",
        );
        return None;
    }
    let size = |term: &Term| match term.op {
        "Number" => u64::try_from(term.value).ok().filter(|n| *n > 0).map(Size::Fixed),
        "Tile" => Some(Size::Tile(term.index as usize)),
        _ => None,
    };
    let dim = |of: &Term, by| Axis::Dim { operand: of.index as usize, dim: of.value as u32, by };
    Some(match own[..] {
        [Term { op: "Number", value, .. }] => Axis::Fixed(value as u64),
        [of @ Term { op: "Dim", .. }] => dim(&of, Size::Fixed(1)),
        [of @ Term { op: "Dim", .. }, by, Term { op: "Div", .. }] if size(&by).is_some() => dim(&of, size(&by)?),
        _ => {
            let first = terms.len() as u32;
            terms.extend(&own);
            Axis::Expression { first, count: own.len() as u32 }
        }
    })
}

struct Reader<'a> {
    cx: &'a Ctxt,
    sig: &'a Signature<'a>,
    terms: &'a mut Vec<Term>,
}

impl Reader<'_> {
    fn fail<T>(&self, node: &dyn Spanned, message: &str) -> Option<T> {
        self.cx.error_at(node.span(), message);
        None
    }

    /// Adds a term that is a value.
    fn value(&mut self, op: &'static str, index: usize, value: i64) -> Option<usize> {
        self.terms.push(Term { op, index: index as u32, value });
        Some(1)
    }

    /// Adds the terms of an expression, and gives how many values it holds at a time.
    fn expr(&mut self, expr: &Expr) -> Option<usize> {
        match expr {
            Expr::Group(group) => self.expr(&group.expr),
            Expr::Paren(paren) => self.expr(&paren.expr),
            Expr::Lit(syn::ExprLit { lit: Lit::Int(int), .. }) => {
                let number = self.cx.ok(int.base10_parse::<i64>())?;
                self.value("Number", 0, number)
            }
            Expr::Binary(binary) => {
                let op = match binary.op {
                    BinOp::Add(_) => "Add",
                    BinOp::Sub(_) => "Sub",
                    BinOp::Mul(_) => "Mul",
                    BinOp::Div(_) => "Div",
                    _ => return self.fail(&binary.op, USAGE),
                };
                if let (Expr::Lit(syn::ExprLit { lit: Lit::Int(int), .. }), "Div") = (&*binary.right, op)
                    && int.base10_digits() == "0"
                {
                    return self.fail(int, "a dimension is not divided by 0");
                }
                self.both(&binary.left, &binary.right, op)
            }
            Expr::MethodCall(call) if call.method == "dim" => self.dim(call),
            Expr::MethodCall(call) => match (call.method.to_string().as_str(), call.args.first()) {
                ("min", Some(other)) if call.args.len() == 1 => self.both(&call.receiver, other, "Min"),
                ("max", Some(other)) if call.args.len() == 1 => self.both(&call.receiver, other, "Max"),
                _ => self.fail(&call.method, USAGE),
            },
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => self.name(name),
                None => self.fail(path, USAGE),
            },
            other => self.fail(other, USAGE),
        }
    }

    fn both(&mut self, left: &Expr, right: &Expr, op: &'static str) -> Option<usize> {
        let (left, right) = (self.expr(left)?, self.expr(right)?);
        self.value(op, 0, 0)?;
        Some(left.max(right + 1))
    }

    /// A tile constant or a parameter.
    fn name(&mut self, name: &Ident) -> Option<usize> {
        if let Some(tile) = self.sig.types.constant(name) {
            return self.value("Tile", tile, 0);
        }
        match self.sig.params().enumerate().find(|(_, (_, arg, _))| arg.name == *name) {
            Some((index, (_, _, param))) if param.kind == ParamKind::Int => self.value("Param", index, 0),
            Some(_) => self.fail(name, &format!("`{name}` is no integer: a grid is computed from integers")),
            None => self.fail(
                name,
                &format!("the kernel has no tile constant and no parameter `{name}`: `tile({name} = 8)`, `#[param] {name}: i64`"),
            ),
        }
    }

    fn dim(&mut self, call: &syn::ExprMethodCall) -> Option<usize> {
        let operands = self.sig.operands();
        let name = match &*call.receiver {
            Expr::Path(path) => path.path.get_ident().map(Ident::to_string).unwrap_or_default(),
            other => return self.fail(other, USAGE),
        };
        let Some(operand) = operands.iter().position(|o| o.name == name) else {
            return self.fail(&call.receiver, &format!("the kernel has no tensor `{name}`"));
        };
        let dim = match call.args.first() {
            Some(Expr::Lit(syn::ExprLit { lit: Lit::Int(int), .. })) if call.args.len() == 1 => {
                self.cx.ok(int.base10_parse::<u32>())?
            }
            _ => return self.fail(&call.args, USAGE),
        };
        let arg = operands.get(operand).and_then(|o| self.sig.args.get(o.arg?));
        if arg.is_some_and(crate::signature::ast::Arg::is_optional) {
            let text = format!("`{name}` may be absent: the grid is that of an operand that is there");
            return self.fail(&call.receiver, &text);
        }
        if let Some(rank) = operands.get(operand).and_then(|o| o.rank).filter(|rank| dim >= *rank) {
            return self.fail(&call.args, &format!("`{name}` has rank {rank}: its dimensions are 0 to {}", rank - 1));
        }
        self.value("Dim", operand, i64::from(dim))
    }
}
