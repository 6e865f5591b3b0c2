//! The body of a kernel of products, rewritten for an operand that lies transposed in memory: its tiles are read the other way
//! around, and transposed.

use std::collections::HashMap;

use proc_macro2::{Literal, Span};
use quote::ToTokens;
use syn::Ident;

use super::{Block, Expr, GenericArg, Local, Pat, Stmt};

/// Rewrites a body that reads an operand of that rank by tiles alone; otherwise, where else it is read.
///
/// `b.tile::<K, N>(k, n)` becomes `b.tile::<N, K>(n, k).t()`, and `b.dim(0)` of a matrix `b.dim(1)`.
pub fn transposed(body: &Block, operand: &Local, rank: u32) -> Result<Block, Span> {
    let mut rewriter = Rewriter { selected: HashMap::from([(operand.id, 0)]), rank, other: None };
    let mut body = body.clone();
    rewriter.block(&mut body);
    rewriter.other.map_or(Ok(body), Err)
}

struct Rewriter {
    /// How many dimensions were selected of what a variable holds, if it is the operand or a part of it.
    selected: HashMap<usize, u32>,
    rank: u32,
    /// Where something else is done with it.
    other: Option<Span>,
}

impl Rewriter {
    fn block(&mut self, block: &mut Block) {
        for stmt in &mut block.stmts {
            if let Stmt::Let { pat: Pat::Value(local), init, .. } = stmt
                && let Some(selected) = self.part(init)
            {
                self.selected.insert(local.id, selected);
                continue;
            }
            match stmt {
                Stmt::Let { init: value, .. }
                | Stmt::Assign { value, .. }
                | Stmt::AssignTuple { value, .. }
                | Stmt::Expr { expr: value, .. } => self.expr(value),
            }
        }
        if let Some(tail) = &mut block.tail {
            self.expr(tail);
        }
    }

    /// How many dimensions of the operand are selected, if the expression is it or a part of it.
    fn part(&self, expr: &Expr) -> Option<u32> {
        match expr.unparenthesized() {
            Expr::Local(local) => self.selected.get(&local.id).copied(),
            Expr::Method { receiver, method, .. } if method == "select" => {
                self.part(receiver).map(|selected| selected + 1).filter(|selected| selected + 2 <= self.rank)
            }
            _ => None,
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        if let Expr::Method { receiver, method, turbofish, args, .. } = expr
            && let Some(selected) = self.part(receiver)
        {
            args.iter_mut().for_each(|arg| self.expr(arg));
            match (&*method.to_string(), &mut turbofish[..], &mut args[..]) {
                ("tile", [rows, columns], [row, column]) if selected + 2 == self.rank => {
                    std::mem::swap(rows, columns);
                    std::mem::swap(row, column);
                    let tile = std::mem::replace(expr, Expr::Error);
                    *expr = transpose(tile);
                }
                ("dim", [GenericArg::Const(axis)], []) => {
                    let (rank, of) = (self.rank - selected, axis.to_string().parse::<u32>());
                    let other = of.ok().and_then(|axis| (2 * rank).checked_sub(3 + axis)).filter(|other| *other < rank);
                    if let Some(other) = other.filter(|other| other + 2 >= rank) {
                        *axis = Literal::u32_unsuffixed(other).to_token_stream();
                    }
                }
                _ => self.other = Some(method.span()),
            }
            return;
        }
        if self.part(expr).is_some() {
            self.other = Some(expr.span());
        }
        expr.children_mut().into_iter().for_each(|child| self.expr(child));
        expr.blocks_mut().into_iter().for_each(|block| self.block(block));
        // `b.tile::<N, K>(n, k).t()` reads as it lies.
        if let Expr::Method { receiver, method, .. } = expr
            && method == "t"
            && let Expr::Method { receiver: tile, method: inner, .. } = &mut **receiver
            && inner == "t"
            && self.is_rewritten(tile)
        {
            *expr = std::mem::replace(tile, Expr::Error);
        }
    }

    fn is_rewritten(&self, tile: &Expr) -> bool {
        matches!(tile, Expr::Method { receiver, method, .. } if method == "tile" && self.part(receiver).is_some())
    }
}

fn transpose(tile: Expr) -> Expr {
    let method = Ident::new("t", tile.span());
    Expr::Method { receiver: Box::new(tile), method, turbofish: Vec::new(), args: Vec::new(), checked: false.into() }
}
