//! Which bodies can run neighbouring programs side by side: those whose control flow, and whose places in rows, are the
//! same for all programs.
//!
//! Such a body reads and writes whole rows at `program_id(0)`. It assigns nothing, loops over nothing but lanes, and calls
//! no other kernel function, of which nothing is known here.

use std::collections::HashSet;

use super::{Block, Expr, LocalKind, Pat, Stmt};
use crate::signature::types::Ty;

/// Of such a body: by how many elements its longest row that goes across is longer than that of one without reductions. `params` are the
/// arguments that are parameters.
pub fn runs_across(body: &Block, params: impl Iterator<Item = usize>) -> Option<u32> {
    let mut rules = Rules { ids: HashSet::new(), uniform: params.collect(), longer: 0 };
    rules.block(body).then_some(rules.longer)
}

/// How many elements of a row take as long across vector lanes as what a method does at a row's end within them, by measurement
/// (docs/performance/row-kernels.md): a reduction combines the lanes of its vectors, and one of positions or with exponentials has
/// more to combine.
fn longer_by(method: &str, args: &[Expr]) -> u32 {
    match method {
        // Of two numbers, and of no row.
        "max" | "min" if !args.is_empty() => 0,
        "argmax" | "argmin" => 64,
        "shifted_exp" | "max_exp_sum" => 48,
        "mean_variance" => 16,
        "all" | "any" | "fold" | "max" | "mean" | "min" | "prod" | "reduce" | "sum" => 8,
        "write_any_scan" | "write_exclusive_scan" | "write_scan" => 8,
        _ => 0,
    }
}

/// Methods of numbers, lanes and operands that do the same for all programs, given arguments that do.
const METHODS: &str = "abs all any argmax argmin ceil clamp convert cos dim enumerate erf exp exp2 floor fold fold_with is_finite is_infinite \
                       is_nan len ln log log1p map materialize max max_exp_sum mean mean_variance min mul_add powf prod recip reduce reverse round \
                       round_ties_even rsqrt shifted_exp sigmoid sign sin sqrt sum tanh trunc write write_any_scan write_exclusive_scan write_scan zip";

/// What is known of the variables in scope, by their ids.
struct Rules {
    /// The ids of programs along the first axis.
    ids: HashSet<usize>,
    /// Numbers that are the same for all programs.
    uniform: HashSet<usize>,
    /// What [`longer_by`] gives for the methods of a program.
    longer: u32,
}

impl Rules {
    fn block(&mut self, block: &Block) -> bool {
        block.stmts.iter().all(|stmt| self.stmt(stmt)) && block.tail.as_ref().is_none_or(|tail| self.expr(tail))
    }

    fn stmt(&mut self, stmt: &Stmt) -> bool {
        match stmt {
            Stmt::Let { pat: Pat::Value(local), init, .. } if is_id(init) => {
                self.ids.insert(local.id);
                true
            }
            Stmt::Let { pat: Pat::Value(local), init, .. } => {
                if self.is_uniform(init) {
                    self.uniform.insert(local.id);
                }
                self.expr(init)
            }
            Stmt::Let { pat: pat @ Pat::Tuple(..), init, .. } => is_plain(pat) && self.expr(init),
            Stmt::Expr { expr, .. } => self.expr(expr),
            Stmt::Let { .. } | Stmt::Assign { .. } | Stmt::AssignTuple { .. } => false,
        }
    }

    fn expr(&mut self, expr: &Expr) -> bool {
        match expr {
            Expr::Literal(_)
            | Expr::Bool(..)
            | Expr::Path(_)
            | Expr::DtypeConst { .. }
            | Expr::IsGiven(_)
            | Expr::Given(_) => true,
            Expr::Local(local) => {
                matches!(local.kind, LocalKind::Value | LocalKind::Tensor(_) | LocalKind::Str)
                    && !self.ids.contains(&local.id)
            }
            Expr::Unary { .. }
            | Expr::Binary { .. }
            | Expr::Compare { .. }
            | Expr::StrEq { .. }
            | Expr::Cast { .. }
            | Expr::Paren(..)
            | Expr::Field { .. }
            | Expr::Tuple(..)
            | Expr::TypeCall { ty: Ty::Scalar(_), .. } => expr.children().into_iter().all(|e| self.expr(e)),
            Expr::Builtin { function, args } => match &*function.to_string() {
                "select" => args.iter().all(|e| self.expr(e)),
                "lanes" => args.iter().all(|e| self.is_uniform(e) && self.expr(e)),
                _ => false,
            },
            Expr::Method { receiver, method, args, .. } => self.method(receiver, &method.to_string(), args),
            Expr::Closure { inputs, value, .. } => inputs.iter().all(is_plain) && self.expr(value),
            Expr::If { condition, then, otherwise, lane, .. } => {
                if !(*lane || self.is_uniform(condition)) || !self.expr(condition) {
                    return false;
                }
                // A program takes one branch.
                let before = self.longer;
                let runs = self.block(then);
                let after_then = std::mem::replace(&mut self.longer, before);
                let runs = runs && otherwise.as_ref().is_none_or(|block| self.block(block));
                self.longer = self.longer.max(after_then);
                runs
            }
            Expr::Block(block, _) => self.block(block),
            Expr::TileConst(_)
            | Expr::ProgramId { .. }
            | Expr::ProgramIds { .. }
            | Expr::Call { .. }
            | Expr::TypeCall { .. }
            | Expr::Raw(_)
            | Expr::For { .. }
            | Expr::While { .. }
            | Expr::Array(..)
            | Expr::Error => false,
        }
    }

    fn method(&mut self, receiver: &Expr, method: &str, args: &[Expr]) -> bool {
        match method {
            "row" => {
                let is_own = |e: &Expr| is_id(e) || matches!(e, Expr::Local(local) if self.ids.contains(&local.id));
                is_tensor(receiver) && args.iter().all(is_own)
            }
            "slice" | "shift" | "pad" => self.expr(receiver) && args.iter().all(|e| self.is_uniform(e) && self.expr(e)),
            "set" => {
                let place = args.first().is_some_and(|e| self.is_uniform(e));
                place && self.expr(receiver) && args.iter().all(|e| self.expr(e))
            }
            _ => {
                self.longer += longer_by(method, args);
                METHODS.split_whitespace().any(|name| name == method)
                    && self.expr(receiver)
                    && args.iter().all(|e| self.expr(e))
            }
        }
    }

    /// Whether a number is the same for all programs.
    fn is_uniform(&self, expr: &Expr) -> bool {
        let all = |exprs: Vec<&Expr>| exprs.into_iter().all(|e| self.is_uniform(e));
        match expr {
            Expr::Literal(_) | Expr::Bool(..) | Expr::Path(_) | Expr::DtypeConst { .. } | Expr::IsGiven(_) => true,
            Expr::Local(local) => self.uniform.contains(&local.id),
            // All rows of an operand are as long.
            Expr::Method { method, args, .. } if args.is_empty() && (method == "len" || method == "dim") => true,
            Expr::Method { method, args, .. } if method == "dim" => all(args.iter().collect()),
            Expr::Unary { .. }
            | Expr::Binary { .. }
            | Expr::Compare { .. }
            | Expr::StrEq { .. }
            | Expr::Cast { .. }
            | Expr::Paren(..)
            | Expr::TypeCall { ty: Ty::Scalar(_), .. } => all(expr.children()),
            Expr::If { condition, then, otherwise, .. } => {
                let side =
                    |block: &Block| block.stmts.is_empty() && block.tail.as_ref().is_some_and(|e| self.is_uniform(e));
                self.is_uniform(condition) && side(then) && otherwise.as_ref().is_some_and(side)
            }
            _ => false,
        }
    }
}

/// `program_id(0)`
fn is_id(expr: &Expr) -> bool {
    matches!(expr, Expr::ProgramId { function, axis } if function == "program_id" && axis.base10_digits() == "0")
}

fn is_tensor(expr: &Expr) -> bool {
    matches!(expr, Expr::Local(local) if matches!(local.kind, LocalKind::Tensor(_)))
}

/// Whether a pattern defines no variable that is assigned.
fn is_plain(pat: &Pat) -> bool {
    match pat {
        Pat::Value(_) | Pat::Wild(_) => true,
        Pat::Tuple(items, _) => items.iter().all(is_plain),
        Pat::Typed(pat, _) => is_plain(pat),
        Pat::Var(_) | Pat::Array(..) => false,
    }
}
