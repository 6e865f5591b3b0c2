//! Lazy lanes: they are computed where they are written, block by block, so that what they read of an output by then depends on
//! the size of a block, unless it is the element of their own index.

use std::collections::HashMap;

use super::Finder;
use crate::body::{Block, Expr, Local, Stmt};
use crate::methods::Method;

/// What variables hold that is not computed yet.
#[derive(Default)]
pub(super) struct Lazy {
    /// Lanes: the outputs that are read when these are computed.
    lanes: HashMap<usize, Vec<usize>>,
    /// The elements of a buffer's own part: its argument.
    readers: HashMap<usize, usize>,
}

impl Finder<'_> {
    /// Notes what a variable holds that is no program id and no part of an operand.
    pub(super) fn bind_lanes(&mut self, local: &Local, init: &Expr) {
        match self.reader(init) {
            Some(arg) => _ = self.lazy.readers.insert(local.id, arg),
            None => _ = self.lazy.lanes.insert(local.id, self.read_by_lanes(init, false)),
        }
    }

    /// The outputs of which elements are read when `expr` is computed, if it is lanes; `in_lanes` says that it is what makes one.
    pub(super) fn read_by_lanes(&self, expr: &Expr, in_lanes: bool) -> Vec<usize> {
        let in_lanes = match expr {
            Expr::Local(local) => return self.lazy.lanes.get(&local.id).cloned().unwrap_or_default(),
            // What was written, and elements of a buffer's own part at other places than where they are written.
            Expr::Method { receiver, method, .. }
                if in_lanes && method == "at" && self.written(receiver).is_some()
                    || (in_lanes && method == "at" || Method::of(method) == Some(Method::Reorders))
                        && self.reader(receiver).is_some() =>
            {
                let written = self.written(receiver).map(|part| part.arg);
                return written.or_else(|| self.reader(receiver)).into_iter().collect();
            }
            // Numbers, for which lanes are computed where these are.
            Expr::Method { method, args, .. } if Method::of(method) == Some(Method::Reduces) && args.len() < 2 => {
                let is_number = args.is_empty() || method == "reduce";
                if is_number && !in_lanes {
                    return Vec::new();
                }
                in_lanes
            }
            Expr::Closure { .. } => true,
            _ => in_lanes,
        };
        let in_block = |block: &Block| -> Vec<usize> {
            let stmts = block.stmts.iter().map(|stmt| match stmt {
                Stmt::Let { init: value, .. } | Stmt::Assign { value, .. } | Stmt::AssignTuple { value, .. } => value,
                Stmt::Expr { expr, .. } => expr,
            });
            stmts.chain(block.tail.as_deref()).flat_map(|expr| self.read_by_lanes(expr, in_lanes)).collect()
        };
        let children = expr.children().into_iter().flat_map(|child| self.read_by_lanes(child, in_lanes));
        children.chain(expr.blocks().into_iter().flat_map(in_block)).collect()
    }

    /// The buffer whose own part's elements `expr` is.
    fn reader(&self, expr: &Expr) -> Option<usize> {
        match expr.unparenthesized() {
            Expr::Local(local) => self.lazy.readers.get(&local.id).copied(),
            Expr::Method { receiver, method, .. } if method == "read" => self.written(receiver).map(|part| part.arg),
            _ => None,
        }
    }
}
