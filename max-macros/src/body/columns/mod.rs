//! The body of a row kernel, rewritten for rows that are columns in memory.
//!
//! A program of a row kernel takes a row, `x.row(program_id(0))`, and a number that it makes of the row, such as its sum, is one
//! number. A program of the rewritten body takes neighbouring columns side by side, `x.select(outer).columns::<N>(part)`: the
//! elements of a row are those of each column, and a number of the row is a sequence with a number for each column. So where a
//! closure captures numbers of the row, the columns are zipped with them, and arithmetic of such numbers stands in a closure:
//!
//! ```text
//! let x = x.row(row);                  let x = x.select(outer).columns::<N>(part);
//! let (m, s) = x.max_exp_sum();        let sums = x.max_exp_sum();
//! let shift = m + s.log();             let shift = sums.map(|(m, s)| m + s.log());
//! y.row(row).write(x.map(|v| v - shift));
//!                                      y.select(outer).columns::<N>(part).write(x.zip(shift).map(|(v, shift)| v - shift));
//! ```
//!
//! What is a row, a number of the row, or the same for all rows follows from where it comes from. There is a rewritten body where
//! that can be followed: of kernels with one operand that is read and one that is written, without loops, assignments and
//! control flow that depends on elements.

mod tree;

use std::collections::{HashMap, HashSet};

use proc_macro2::Span;
use quote::quote;
use syn::Ident;

pub use self::tree::COLUMNS;
use self::tree::{
    bind, closure, columns_const, hidden, is, locals, method, names, pruned, rebuilt, renamed, renamed_pat, sized,
};
use super::{Block, Expr, GenericArg, Local, LocalKind, Pat, Stmt};

/// A rewritten body.
pub struct Columns {
    /// The body.
    pub body: Block,
    /// Whether a program writes whole columns, not a number for each.
    pub maps: bool,
}

/// Rewrites the body of a kernel that reads the operand `x` and writes `y`, if it can be; `params` are its other arguments.
pub fn columns(body: &Block, y: &Local, x: &Local, params: impl Iterator<Item = usize>) -> Option<Columns> {
    let local = |name: &str, i: usize| Local { ident: hidden(name), id: usize::MAX - i, kind: LocalKind::Value };
    let mut rewriter = Rewriter {
        x: x.clone(),
        y: y.clone(),
        matrix: local("__matrix", 0),
        outer: local("__outer", 1),
        part: local("__strip", 2),
        values: params.map(|id| (id, Value::Param)).collect(),
        definitions: Vec::new(),
        numbers: Vec::new(),
        at: Span::call_site(),
        stmts: Vec::new(),
        names: 3,
        maps: None,
    };
    let (outer, part) = (rewriter.outer.clone(), rewriter.part.clone());
    rewriter.stmts.push(bind(
        Pat::Array(vec![Pat::Value(outer.clone()), Pat::Value(part)], Span::call_site()),
        Expr::ProgramIds { function: Ident::new("program_id", Span::call_site()), count: 2 },
    ));
    let matrix = method(Expr::Local(x.clone()), "select", vec![Expr::Local(outer)], Span::call_site());
    rewriter.stmts.push(bind(Pat::Value(rewriter.matrix.clone()), matrix));
    rewriter.block(body)?;
    let mut body = Block { stmts: rewriter.stmts, tail: None };
    let mut read = Vec::new();
    body.exprs().for_each(|expr| locals(expr, &mut read));
    let often = |id: usize| read.iter().filter(|local| local.id == id).count() > 1;
    materialize(&mut body, &rewriter.numbers.into_iter().filter(|id| often(*id)).collect());
    Some(Columns { maps: rewriter.maps?, body })
}

/// What an expression is.
#[derive(Clone)]
enum Value {
    /// The program's row.
    Id,
    /// A parameter,
    Param,
    /// or another number that is the same for all rows.
    Same,
    /// A number of the row: the same for all of its elements.
    Number,
    /// A row of what is read.
    Row(Row),
    /// A row of what is written; `true` from its end.
    Written(bool),
}

/// A row of what is read, with functions applied to its elements one after the other.
#[derive(Clone, Default)]
struct Row {
    reversed: bool,
    functions: Vec<(Pat, Expr)>,
}

/// Where numbers of the row come from.
enum Source {
    /// The variable holds a sequence with what the pattern takes apart, for each column.
    Sequence(Local),
    /// An expression of other numbers of the row.
    Expr(Expr),
}

struct Rewriter {
    /// The operand that is read,
    x: Local,
    /// and the one that is written.
    y: Local,
    /// The matrix that a program reads from.
    matrix: Local,
    /// The matrix' number.
    outer: Local,
    /// The number of the program's columns in it.
    part: Local,
    /// What variables are, by their ids.
    values: HashMap<usize, Value>,
    /// The numbers of the row, in order.
    definitions: Vec<(Pat, Source)>,
    /// The sequences of which each has one number for each column, by their ids.
    numbers: Vec<usize>,
    /// Where the author's method stands that is being rewritten: what is printed for it stands there.
    at: Span,
    /// What has been rewritten of the current block.
    stmts: Vec<Stmt>,
    /// How many names were made.
    names: usize,
    /// Whether whole columns are written.
    maps: Option<bool>,
}

impl Rewriter {
    fn block(&mut self, block: &Block) -> Option<()> {
        for stmt in &block.stmts {
            match stmt {
                Stmt::Let { pat, ty: None, init, .. } => self.define(pat, init)?,
                Stmt::Expr { expr, .. } => self.effect(expr)?,
                Stmt::Let { .. } | Stmt::Assign { .. } | Stmt::AssignTuple { .. } => return None,
            }
        }
        block.tail.as_ref().map_or(Some(()), |tail| self.effect(tail))
    }

    /// `let pat = init;`
    fn define(&mut self, pat: &Pat, init: &Expr) -> Option<()> {
        // `let (e, sum) = x.shifted_exp();`
        if let (Expr::Method { receiver, method, args, .. }, Pat::Tuple(pats, span)) = (init.unparenthesized(), pat)
            && method == "shifted_exp"
            && args.is_empty()
            && let [Pat::Value(e), sum @ (Pat::Value(_) | Pat::Wild(_))] = &pats[..]
        {
            let row = self.row(receiver)?;
            let (largest, v) = (self.fresh("__largest"), self.fresh("__v"));
            let both = Pat::Tuple(vec![Pat::Value(largest.clone()), renamed_pat(sum)?], *span);
            self.reduced(&row, "max_exp_sum", both)?;
            self.numbers(sum);
            let less = Expr::Binary {
                op: quote!(-),
                left: Box::new(Expr::Local(v.clone())),
                right: Box::new(Expr::Local(largest)),
                span: *span,
            };
            let less = tree::method(Expr::Paren(Box::new(less), *span), "exp", Vec::new(), self.at);
            let mut functions = row.functions;
            functions.push((Pat::Value(v), less));
            self.values.insert(e.id, Value::Row(Row { functions, ..row }));
            return Some(());
        }
        if let Some(row) = self.row(init) {
            let Pat::Value(local) = pat else { return None };
            self.values.insert(local.id, Value::Row(row));
            return Some(());
        }
        let (Pat::Value(_) | Pat::Tuple(..) | Pat::Wild(_)) = pat else { return None };
        if let (Pat::Value(local), Some(value @ (Value::Id | Value::Written(_)))) = (pat, self.place(init)) {
            self.values.insert(local.id, value);
            return Some(());
        }
        let renamed = renamed_pat(pat)?;
        // What is the sequence itself needs no other one.
        if let Some(()) = self.reduction(init, renamed.clone()) {
            self.numbers(pat);
            return Some(());
        }
        let (value, of_row) = self.number(init)?;
        if of_row {
            self.definitions.push((renamed, Source::Expr(value)));
            self.numbers(pat);
        } else {
            self.stmts.push(bind(renamed, value));
            self.each_local(pat, &Value::Same);
        }
        Some(())
    }

    fn numbers(&mut self, pat: &Pat) {
        self.each_local(pat, &Value::Number);
    }

    fn each_local(&mut self, pat: &Pat, value: &Value) {
        match pat {
            Pat::Value(local) => _ = self.values.insert(local.id, value.clone()),
            Pat::Tuple(items, _) => items.iter().for_each(|item| self.each_local(item, value)),
            Pat::Wild(_) | Pat::Var(_) | Pat::Array(..) | Pat::Typed(..) => {}
        }
    }

    /// The program's row, or the row that it writes.
    fn place(&self, expr: &Expr) -> Option<Value> {
        match expr.unparenthesized() {
            Expr::ProgramId { function, axis } if function == "program_id" && axis.base10_digits() == "0" => {
                Some(Value::Id)
            }
            Expr::Local(local) => match self.values.get(&local.id)? {
                value @ (Value::Id | Value::Written(_)) => Some(value.clone()),
                Value::Param | Value::Same | Value::Number | Value::Row(_) => None,
            },
            Expr::Method { receiver, method, args, .. } => match (&*method.to_string(), &args[..]) {
                ("row", [id]) if is(receiver, &self.y) && matches!(self.place(id)?, Value::Id) => {
                    Some(Value::Written(false))
                }
                ("reverse", []) => match self.place(receiver)? {
                    Value::Written(reversed) => Some(Value::Written(!reversed)),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }

    /// The row that an expression is.
    fn row(&self, expr: &Expr) -> Option<Row> {
        match expr.unparenthesized() {
            Expr::Local(local) => match self.values.get(&local.id)? {
                Value::Row(row) => Some(row.clone()),
                _ => None,
            },
            Expr::Method { receiver, method, args, .. } => match (&*method.to_string(), &args[..]) {
                ("row", [id]) if is(receiver, &self.x) && matches!(self.place(id)?, Value::Id) => Some(Row::default()),
                ("reverse", []) => {
                    let row = self.row(receiver)?;
                    Some(Row { reversed: !row.reversed, ..row })
                }
                // Columns are computed again: there is no place for all of their elements.
                ("materialize", []) => self.row(receiver),
                ("map", [Expr::Closure { inputs, value, .. }]) => {
                    let [input] = &inputs[..] else { return None };
                    let mut row = self.row(receiver)?;
                    row.functions.push((renamed_pat(input)?, self.lane(value, &mut names(input))?));
                    Some(row)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// A reduction of a row, if the expression is one: its results are numbers of the row, named by `pat`.
    fn reduction(&mut self, expr: &Expr, pat: Pat) -> Option<()> {
        let Expr::Method { receiver, method, args, .. } = expr.unparenthesized() else { return None };
        self.at = method.span();
        match (&*method.to_string(), &args[..]) {
            (
                name
                @ ("sum" | "mean" | "prod" | "max" | "min" | "argmax" | "argmin" | "mean_variance" | "max_exp_sum"),
                [],
            ) => match self.row(receiver) {
                Some(row) => self.reduced(&row, name, pat),
                None => {
                    let combine = |a: Local, b: Local| {
                        let (a, b) = (Box::new(Expr::Local(a)), Box::new(Expr::Local(b)));
                        let span = method.span();
                        match name {
                            "sum" => Some(Expr::Binary { op: quote!(+), left: a, right: b, span }),
                            "prod" => Some(Expr::Binary { op: quote!(*), left: a, right: b, span }),
                            "max" | "min" => Some(tree::method(*a, name, vec![*b], span)),
                            _ => None,
                        }
                    };
                    let (a, b) = (self.fresh("__a"), self.fresh("__b"));
                    let inputs = vec![Pat::Value(a.clone()), Pat::Value(b.clone())];
                    self.folded(receiver, closure(inputs, combine(a, b)?), pat)
                }
            },
            ("reduce", [combine @ Expr::Closure { .. }]) => {
                let combine = self.same_closure(combine)?;
                self.folded(receiver, combine, pat)
            }
            _ => None,
        }
    }

    /// `fold.reduce(combine)`
    fn folded(&mut self, fold: &Expr, combine: Expr, pat: Pat) -> Option<()> {
        let Expr::Method { receiver, method, args, .. } = fold.unparenthesized() else { return None };
        let (name, [init, Expr::Closure { moves, inputs, value, span }]) = (method.to_string(), &args[..]) else {
            return None;
        };
        let row = self.row(receiver)?;
        let (init, false) = self.number(init)? else { return None };
        let [acc, item] = &inputs[..] else { return None };
        let mut bound: HashSet<usize> = names(acc);
        bound.extend(names(item));
        let value = Box::new(self.lane(value, &mut bound)?);
        if self.captured(&value).next().is_some() {
            return None;
        }
        let item = renamed_pat(item)?;
        let item = match &*name {
            "fold" => item,
            "fold_with" => Pat::Tuple(vec![item, Pat::Wild(*span)], *span),
            _ => return None,
        };
        let f = Expr::Closure { moves: *moves, inputs: vec![renamed_pat(acc)?, item], value, span: *span };
        let columns = self.columns(&row)?;
        let reduced =
            tree::method(tree::method(columns, &name, vec![init, f], self.at), "reduce", vec![combine], self.at);
        self.sequence(reduced, pat);
        Some(())
    }

    /// A reduction without arguments of its own.
    fn reduced(&mut self, row: &Row, name: &str, pat: Pat) -> Option<()> {
        let columns = self.columns(row)?;
        self.sequence(method(columns, name, Vec::new(), self.at), pat);
        Some(())
    }

    /// `let sequence = …;`, whose items the pattern takes apart.
    fn sequence(&mut self, value: Expr, pat: Pat) {
        let sequence = self.fresh("__sequence");
        self.stmts.push(bind(Pat::Value(sequence.clone()), value));
        if let Pat::Value(_) = pat {
            self.numbers.push(sequence.id);
        }
        self.definitions.push((pat, Source::Sequence(sequence)));
    }

    /// A number outside of closures, and whether it is one of the row.
    fn number(&mut self, expr: &Expr) -> Option<(Expr, bool)> {
        let result = self.fresh("__result");
        if let Some(()) = self.reduction(expr, Pat::Value(result.clone())) {
            return Some((Expr::Local(result), true));
        }
        let mut of_row = false;
        let value = match expr {
            Expr::Local(local) => {
                let (value, is_number) = self.variable(local)?;
                return Some((value, is_number));
            }
            expr if self.size(expr).is_some() => return Some((self.size(expr)?, false)),
            Expr::If { condition, then, otherwise: Some(otherwise), span, .. } => {
                let (condition, mut is_number) = self.number(condition)?;
                let mut side = |rewriter: &mut Self, block: &Block| {
                    let (true, Some(tail)) = (block.stmts.is_empty(), &block.tail) else { return None };
                    let (value, of_row) = rewriter.number(tail)?;
                    is_number |= of_row;
                    Some(Block { stmts: Vec::new(), tail: Some(Box::new(value)) })
                };
                let (then, otherwise) = (side(self, then)?, side(self, otherwise)?);
                let condition = Box::new(condition);
                let value = Expr::If { condition, then, otherwise: Some(otherwise), lane: is_number, span: *span };
                return Some((value, is_number));
            }
            other => rebuilt(other, &mut |child| {
                let (value, is_number) = self.number(child)?;
                of_row |= is_number;
                Some(value)
            })?,
        };
        Some((value, of_row))
    }

    /// What stands in a closure; `bound` are the variables that it defines itself.
    fn lane(&self, expr: &Expr, bound: &mut HashSet<usize>) -> Option<Expr> {
        match expr {
            Expr::Local(local) if bound.contains(&local.id) => Some(Expr::Local(renamed(local))),
            Expr::Local(local) => Some(self.variable(local)?.0),
            expr if self.size(expr).is_some() => self.size(expr),
            Expr::If { condition, then, otherwise: Some(otherwise), lane, span } => Some(Expr::If {
                condition: Box::new(self.lane(condition, bound)?),
                then: self.lane_block(then, bound)?,
                otherwise: Some(self.lane_block(otherwise, bound)?),
                lane: *lane,
                span: *span,
            }),
            Expr::Block(block, span) => Some(Expr::Block(self.lane_block(block, bound)?, *span)),
            other => rebuilt(other, &mut |child| self.lane(child, bound)),
        }
    }

    fn lane_block(&self, block: &Block, bound: &mut HashSet<usize>) -> Option<Block> {
        let mut stmts = Vec::new();
        for stmt in &block.stmts {
            let Stmt::Let { pat, ty: None, init, span } = stmt else { return None };
            let init = self.lane(init, bound)?;
            bound.extend(names(pat));
            stmts.push(Stmt::Let { pat: renamed_pat(pat)?, ty: None, init, span: *span });
        }
        let tail = block.tail.as_ref()?;
        Some(Block { stmts, tail: Some(Box::new(self.lane(tail, bound)?)) })
    }

    /// A closure that captures no number of the row.
    fn same_closure(&self, expr: &Expr) -> Option<Expr> {
        let Expr::Closure { moves, inputs, value, span } = expr else { return None };
        let mut bound: HashSet<usize> = inputs.iter().flat_map(names).collect();
        let value = self.lane(value, &mut bound)?;
        if self.captured(&value).next().is_some() {
            return None;
        }
        let inputs = inputs.iter().map(renamed_pat).collect::<Option<_>>()?;
        Some(Expr::Closure { moves: *moves, inputs, value: Box::new(value), span: *span })
    }

    /// A variable that is a number, and whether it is one of the row.
    fn variable(&self, local: &Local) -> Option<(Expr, bool)> {
        match self.values.get(&local.id)? {
            Value::Param => Some((Expr::Local(local.clone()), false)),
            Value::Same => Some((Expr::Local(renamed(local)), false)),
            Value::Number => Some((Expr::Local(renamed(local)), true)),
            Value::Id | Value::Row(_) | Value::Written(_) => None,
        }
    }

    /// The length of a row: the number of rows of a matrix.
    fn size(&self, expr: &Expr) -> Option<Expr> {
        let Expr::Method { receiver, method, turbofish, args, .. } = expr else { return None };
        let axis = match (&*method.to_string(), &turbofish[..]) {
            ("len", []) => 0,
            ("dim", [GenericArg::Const(axis)]) => axis.to_string().parse().ok()?,
            _ => return None,
        };
        let is_length = match axis {
            0 => self.row(receiver).is_some(),
            1 => is(receiver, &self.x),
            _ => false,
        };
        let dim = sized(self.located(&self.matrix), "dim", quote!(0), Vec::new(), self.at);
        (is_length && args.is_empty()).then_some(dim)
    }

    /// A write, or a choice between some.
    fn effect(&mut self, expr: &Expr) -> Option<()> {
        match expr.unparenthesized() {
            Expr::If { condition, then, otherwise, span, .. } => {
                let (condition, false) = self.number(condition)? else { return None };
                let then = self.inner(then)?;
                let otherwise = match otherwise {
                    Some(block) => Some(self.inner(block)?),
                    None => None,
                };
                let condition = Box::new(condition);
                let expr = Expr::If { condition, then, otherwise, lane: false, span: *span };
                self.stmts.push(Stmt::Expr { expr, semi: true });
                Some(())
            }
            Expr::Block(block, span) => {
                let block = self.inner(block)?;
                self.stmts.push(Stmt::Expr { expr: Expr::Block(block, *span), semi: true });
                Some(())
            }
            Expr::Method { receiver, method, args, .. } => {
                let Value::Written(reversed) = self.place(receiver)? else { return None };
                self.at = method.span();
                self.write(reversed, &method.to_string(), args)
            }
            _ => None,
        }
    }

    /// A block inside: what it defines is not known behind it.
    fn inner(&mut self, block: &Block) -> Option<Block> {
        let (before, count) = (std::mem::take(&mut self.stmts), self.definitions.len());
        let values = self.values.clone();
        let done = self.block(block);
        self.definitions.truncate(count);
        self.values = values;
        let stmts = std::mem::replace(&mut self.stmts, before);
        done.map(|()| Block { stmts, tail: None })
    }

    fn write(&mut self, reversed: bool, name: &str, args: &[Expr]) -> Option<()> {
        let matrix = method(self.located(&self.y), "select", vec![self.located(&self.outer)], self.at);
        let maps = name != "set";
        if *self.maps.get_or_insert(maps) != maps {
            return None;
        }
        let written = match (name, args) {
            ("set", [Expr::Literal(place), value]) if place.tokens.to_string() == "0" && !reversed => {
                let (value, true) = self.number(value)? else { return None };
                let block = sized(matrix, "block", columns_const(self.at), vec![self.located(&self.part)], self.at);
                method(block, "write", vec![self.sequence_of(value)?], self.at)
            }
            ("write", [row]) => {
                let row = self.row(row)?;
                method(self.own(matrix, reversed), "write", vec![self.columns(&row)?], self.at)
            }
            ("write_scan" | "write_exclusive_scan" | "write_any_scan", [row, others @ .., combine]) => {
                let row = self.row(row)?;
                let mut args = vec![self.columns(&row)?];
                for other in others {
                    let (other, false) = self.number(other)? else { return None };
                    args.push(other);
                }
                args.push(self.same_closure(combine)?);
                method(self.own(matrix, reversed), name, args, self.at)
            }
            _ => return None,
        };
        self.stmts.push(Stmt::Expr { expr: written, semi: true });
        Some(())
    }

    /// The columns that a program writes.
    fn own(&self, matrix: Expr, reversed: bool) -> Expr {
        let columns = sized(matrix, "columns", columns_const(self.at), vec![self.located(&self.part)], self.at);
        if reversed { method(columns, "reverse", Vec::new(), self.at) } else { columns }
    }

    /// The columns that a row is.
    fn columns(&self, row: &Row) -> Option<Expr> {
        let columns = sized(
            self.located(&self.matrix),
            "columns",
            columns_const(self.at),
            vec![self.located(&self.part)],
            self.at,
        );
        let columns = if row.reversed { method(columns, "reverse", Vec::new(), self.at) } else { columns };
        let [(first, _), ..] = &row.functions[..] else { return Some(columns) };
        let mut captured: Vec<Local> = Vec::new();
        for local in row.functions.iter().flat_map(|(_, value)| self.captured(value)) {
            if !captured.iter().any(|other| other.id == local.id) {
                captured.push(local);
            }
        }
        // Each function's result is the next one's argument.
        let mut stmts: Vec<Stmt> = Vec::new();
        let mut value: Option<&Expr> = None;
        for (pat, function) in &row.functions {
            if let Some(before) = value.replace(function) {
                stmts.push(bind(pat.clone(), before.clone()));
            }
        }
        let value = value.cloned()?;
        let value = match stmts.is_empty() {
            true => value,
            false => Expr::Block(Block { stmts, tail: Some(Box::new(value)) }, Span::call_site()),
        };
        let [one, ..] = &captured[..] else {
            return Some(method(columns, "map", vec![closure(vec![first.clone()], value)], self.at));
        };
        let span = Span::call_site();
        let (numbers, pat) = match captured.len() {
            1 => (Expr::Local(one.clone()), Pat::Value(one.clone())),
            _ => (
                Expr::Tuple(captured.iter().cloned().map(Expr::Local).collect(), span),
                Pat::Tuple(captured.iter().cloned().map(Pat::Value).collect(), span),
            ),
        };
        let columns = method(columns, "zip", vec![self.sequence_of(numbers)?], self.at);
        let inputs = vec![Pat::Tuple(vec![first.clone(), pat], span)];
        Some(method(columns, "map", vec![closure(inputs, value)], self.at))
    }

    /// The sequence with what an expression of numbers of the row is for each column.
    fn sequence_of(&self, value: Expr) -> Option<Expr> {
        // The definitions that it needs, from the last one back.
        let mut needed: HashSet<usize> = self.captured(&value).map(|local| local.id).collect();
        let mut sources: Vec<(Expr, Pat)> = Vec::new();
        let mut stmts = Vec::new();
        for (pat, source) in self.definitions.iter().rev() {
            if !names(pat).iter().any(|id| needed.contains(id)) {
                continue;
            }
            let pat = pruned(pat, &needed);
            match source {
                Source::Sequence(sequence) => sources.push((Expr::Local(sequence.clone()), pat)),
                Source::Expr(value) => {
                    needed.extend(self.captured(value).map(|local| local.id));
                    stmts.push(bind(pat, value.clone()));
                }
            }
        }
        stmts.reverse();
        let mut sources = sources.into_iter().rev();
        let (mut sequence, mut pat) = sources.next()?;
        let alone = sources.len() == 0;
        for (other, of_other) in sources {
            sequence = method(sequence, "zip", vec![other], self.at);
            pat = Pat::Tuple(vec![pat, of_other], Span::call_site());
        }
        if let (true, true, Pat::Value(only), Expr::Local(local)) = (alone, stmts.is_empty(), &pat, &value)
            && only.id == local.id
        {
            return Some(sequence);
        }
        let value = match stmts.is_empty() {
            true => value,
            false => Expr::Block(Block { stmts, tail: Some(Box::new(value)) }, Span::call_site()),
        };
        Some(method(sequence, "map", vec![closure(vec![pat], value)], self.at))
    }

    /// The numbers of the row that an expression needs.
    fn captured<'a>(&'a self, expr: &'a Expr) -> impl Iterator<Item = Local> + 'a {
        let mut found = Vec::new();
        locals(expr, &mut found);
        let known = |local: &Local| self.definitions.iter().any(|(pat, _)| names(pat).contains(&local.id));
        found.into_iter().filter(known)
    }

    /// A variable of the rewriter's, as if the author's method that is being rewritten named it.
    fn located(&self, local: &Local) -> Expr {
        let mut local = local.clone();
        local.ident.set_span(local.ident.span().located_at(self.at));
        Expr::Local(local)
    }

    fn fresh(&mut self, name: &str) -> Local {
        self.names += 1;
        // Above the ids of the author's.
        Local { ident: hidden(&format!("{name}{}", self.names)), id: usize::MAX - self.names, kind: LocalKind::Value }
    }
}

/// Materializes sequences: who reads one computes it.
fn materialize(block: &mut Block, sequences: &HashSet<usize>) {
    for stmt in &mut block.stmts {
        match stmt {
            Stmt::Let { pat: Pat::Value(local), init, .. } if sequences.contains(&local.id) => {
                *init = method(std::mem::replace(init, Expr::Error), "materialize", Vec::new(), Span::call_site());
            }
            Stmt::Expr { expr: Expr::If { then, otherwise, .. }, .. } => {
                materialize(then, sequences);
                otherwise.iter_mut().for_each(|block| materialize(block, sequences));
            }
            Stmt::Expr { expr: Expr::Block(block, _), .. } => materialize(block, sequences),
            _ => {}
        }
    }
}
