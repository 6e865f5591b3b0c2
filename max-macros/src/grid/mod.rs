//! The grid of a program kernel, and which of its outputs are written whole.
//!
//! Unless the attribute gives a grid, it follows from where the kernel writes: `y.row(program_id(0)).write(…)` makes
//! axis 0 run over the rows of `y`. The types of the language make sure that a program writes only where its ids tell; this
//! file finds out which part that is, from the ids that stand in the chain of calls before a write, and makes sure that it is
//! another one for each program, whether the grid is given or not. The same chains tell which part of an operand a program
//! reads, by which the compiler knows what it can run beside it.
//!
//! The analysis is complete: an output stands only where this file follows it, as the receiver of a method that is known to be the
//! language's own, or as what a `let` names. Whatever else it could do (be handed to a function, a tuple, a block's value) is an
//! error. Each access that was checked is marked, and the printer unlocks it; the language's types have no other way to memory.

mod access;
mod expression;
mod lanes;

use std::collections::HashMap;

use proc_macro2::Span;
use syn::Ident;

use self::access::{Access, Shape};
pub use self::expression::Term;
use self::lanes::Lazy;
use crate::body::{Block, Expr, GenericArg, LocalKind, Pat, Stmt};
use crate::ctxt::Ctxt;
use crate::methods::Method;
use crate::signature::ast::Signature;
use crate::signature::check::NOTHING_ATOMIC;
use crate::signature::types::{TensorKind, Ty};

/// The extent of a grid axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// A number.
    Fixed(u64),
    /// A dimension of an operand, divided by a size and rounded up.
    Dim { operand: usize, dim: u32, by: Size },
    /// So many [terms](Grid::terms) from one on.
    Expression { first: u32, count: u32 },
}

/// What divides a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Fixed(u64),
    /// The tile constant of that index.
    Tile(usize),
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// The axes.
    pub axes: Vec<Axis>,
    /// The terms of axes that are expressions.
    pub terms: Vec<Term>,
    /// For each operand, the part that every program writes whole; `None` where elements of it may stay unwritten.
    pub written: Vec<Option<Vec<PartDim>>>,
    /// For each operand, the part that is all that a program touches of it; `None` where that is not known.
    pub parts: Vec<Option<Vec<PartDim>>>,
}

/// A dimension along which each program has a block of its own, at its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartDim {
    /// The grid axis; `None` where all programs have the first block.
    pub axis: Option<usize>,
    /// The dimension.
    pub dim: u32,
    /// The size of the block.
    pub by: Size,
}

/// Finds the grid of a program kernel; errors are recorded.
pub fn infer(cx: &Ctxt, sig: &Signature, body: &Block) -> Grid {
    let operands = sig.operands();
    let mut finder = Finder {
        cx,
        sig,
        ids: HashMap::new(),
        parts: HashMap::new(),
        stores: Vec::new(),
        loads: Vec::new(),
        shared: HashMap::new(),
        unwritten: Vec::new(),
        touched: HashMap::new(),
        lazy: Lazy::default(),
        atomics: false,
        axes: 0,
    };
    finder.block(body, true);
    if let Some(span) = sig.attr.nondeterministic.filter(|_| !finder.atomics) {
        cx.error_at(span, NOTHING_ATOMIC);
    }
    let Finder { stores, loads, shared: atomics, unwritten, touched, axes, .. } = finder;
    if cx.failed() {
        return Grid::default();
    }
    let mut grid = Grid {
        axes: Vec::new(),
        terms: Vec::new(),
        written: vec![None; operands.len()],
        parts: vec![None; operands.len()],
    };
    let mut shared: Vec<usize> = (0..axes).collect();
    if let Some((_, exprs)) = &sig.attr.grid {
        grid.axes = exprs.iter().filter_map(|e| expression::axis(cx, sig, e, &mut grid.terms)).collect();
        if axes > exprs.len() && grid.axes.len() == exprs.len() {
            let last = axes - 1;
            cx.error(
                sig.name(),
                format!("the kernel uses `program_id({last})`, but its `grid` has {} axes", exprs.len()),
            );
        }
        if cx.failed() {
            return grid;
        }
        // Along an axis of one program, nobody shares anything.
        let is_shared = |axis: &usize| grid.axes.get(*axis) != Some(&Axis::Fixed(1));
        shared = (0..exprs.len().max(axes)).filter(is_shared).collect();
    }
    let mut extents: Vec<Option<Axis>> = vec![None; axes];
    let mut patterns: HashMap<usize, &[Step]> = HashMap::new();
    // What nobody writes, anybody may read.
    let loads = loads.iter().filter(|load| stores.iter().any(|s| s.arg == load.arg) || atomics.contains_key(&load.arg));
    for (access, is_store) in stores.iter().map(|s| (s, true)).chain(loads.map(|l| (l, false))) {
        let own: Vec<&Step> = access.steps.iter().filter(|s| s.axis.is_some()).collect();
        let name = &sig.args.get(access.arg).map_or_else(String::new, |a| a.name.to_string());
        if let Some(atomic) = atomics.get(&access.arg) {
            let does = if is_store { "writes" } else { "reads" };
            let text = format!(
                "`{name}` is written here at any index, and elsewhere this kernel {does} the program's own part of it: another program \
                 would write there at the same time; use `.scatter(…)` and atomics alone, or another output"
            );
            cx.error_at(*atomic, text);
            return grid;
        }
        let verb = if is_store { "writes" } else { "reads" };
        if own.is_empty() {
            let text = format!(
                "it cannot be seen which part of `{name}` each program {verb} here: index it with `program_id(…)` itself, or \
                 write elsewhere by `.scatter(…)` or an atomic"
            );
            cx.error_at(access.span, text);
            return grid;
        }
        if let Some(axis) = shared.iter().find(|k| !own.iter().any(|s| s.axis == Some(**k))) {
            let verb = if is_store { "write" } else { "read" };
            cx.error_at(
                access.span,
                format!(
                    "programs that differ in `program_id({axis})` all {verb} here: index `{name}` with it too, or use \
                     `.scatter(…)` or an atomic"
                ),
            );
            return grid;
        }
        let first = patterns.entry(access.arg).or_insert(&access.steps);
        let same = first.len() == access.steps.len()
            && first.iter().zip(&access.steps).all(|(a, b)| (a.axis, a.dim, a.by) == (b.axis, b.dim, b.by));
        if !same {
            let text = match is_store {
                true => format!(
                    "`{name}` is written in two ways, so that programs would overlap: write the same part of it everywhere"
                ),
                false => format!(
                    "`{name}` is written in another way than it is read here, so that programs would overlap: read the part \
                     that the program writes"
                ),
            };
            cx.error_at(access.span, text);
        }
        if !is_store {
            continue;
        }
        let store = access;
        let operand = operands.iter().position(|o| o.arg == Some(store.arg));
        for step in own {
            if let (Some(operand), Some(axis)) = (operand, step.axis)
                && let Some(slot @ None) = extents.get_mut(axis)
            {
                *slot = Some(Axis::Dim { operand, dim: step.dim, by: step.by });
            }
        }
        if let Some(written) = operand.and_then(|o| grid.written.get_mut(o))
            && !unwritten.contains(&store.arg)
        {
            let parts = store.steps.iter().map(Step::part);
            match store.surely {
                Extent::All => *written = Some(parts.collect()),
                Extent::First(dim) if written.is_none() => {
                    *written = Some(parts.chain([PartDim { axis: None, dim, by: Size::Fixed(1) }]).collect());
                }
                Extent::First(_) | Extent::Unknown => {}
            }
        }
    }
    if sig.attr.grid.is_some() {
        return grid;
    }
    grid.axes = extents.iter().copied().flatten().collect();
    let part = |o: &crate::signature::ast::Operand| touched.get(&o.arg?).cloned().flatten();
    grid.parts = operands.iter().map(part).collect();
    if grid.axes.len() < axes.max(1) && !cx.failed() {
        cx.error(
            sig.name(),
            "the grid cannot be inferred, since nothing is written at a program id: name it, `#[kernel(op = …, grid(x.dim(0)))]`",
        );
    }
    grid
}

/// One call that narrows an output down.
#[derive(Clone)]
struct Step {
    /// The grid axis that indexes it, if a program id does.
    axis: Option<usize>,
    /// The dimension it indexes.
    dim: u32,
    /// The size of a part.
    by: Size,
}

impl Step {
    fn part(&self) -> PartDim {
        PartDim { axis: self.axis, dim: self.dim, by: self.by }
    }
}

/// A part of an output.
#[derive(Clone)]
struct Part {
    /// The index of the argument.
    arg: usize,
    /// How it was narrowed down.
    steps: Vec<Step>,
    /// How many dimensions were taken away in front.
    selected: u32,
    /// The dimension that is left of a row or a column.
    line: Option<u32>,
    /// What it is: which methods it has.
    shape: Shape,
    /// Whether it is columns, whose rows lie too far from each other for anything to be run beside the program.
    columns: bool,
    /// Whether it is all that the program ids name.
    whole: bool,
}

/// A write to a part, or a read of one.
#[derive(Clone)]
struct Store {
    arg: usize,
    steps: Vec<Step>,
    /// What of the part is written, whatever happens.
    surely: Extent,
    span: Span,
}

/// How much of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    Unknown,
    /// The first element of this dimension: of a row of one element, all.
    First(u32),
    All,
}

struct Finder<'a> {
    cx: &'a Ctxt,
    sig: &'a Signature<'a>,
    /// Variables that hold a program id: their axis.
    ids: HashMap<usize, usize>,
    /// Variables that hold a part of an operand.
    parts: HashMap<usize, Part>,
    stores: Vec<Store>,
    /// Reads of what is written.
    loads: Vec<Store>,
    /// The outputs that are written at any index, and where.
    shared: HashMap<usize, Span>,
    /// The outputs that are read before they are written whole.
    unwritten: Vec<usize>,
    /// What is touched of each tensor, by the index of its argument; `None` where that is more than one part.
    touched: HashMap<usize, Option<Vec<PartDim>>>,
    lazy: Lazy,
    /// Whether there are atomics.
    atomics: bool,
    /// The number of axes used.
    axes: usize,
}

impl Finder<'_> {
    /// `top` says whether the block runs exactly once.
    fn block(&mut self, block: &Block, top: bool) {
        for stmt in &block.stmts {
            match stmt {
                Stmt::Let { pat, init, .. } => {
                    self.named(pat, init);
                    self.bind(pat, init);
                }
                Stmt::Assign { value, .. } | Stmt::AssignTuple { value, .. } => self.expr(value, false),
                Stmt::Expr { expr, .. } => self.expr(expr, top),
            }
        }
        if let Some(tail) = &block.tail {
            self.expr(tail, top);
        }
    }

    /// What a `let` gives a name: a part of an output may stand here.
    fn named(&mut self, pat: &Pat, init: &Expr) {
        match (pat, init) {
            (Pat::Value(_) | Pat::Wild(_), init) if self.written(init).is_some() => _ = self.touch(init),
            (Pat::Tuple(pats, _), Expr::Tuple(values, _)) if pats.len() == values.len() => {
                pats.iter().zip(values).for_each(|(pat, value)| self.named(pat, value));
            }
            _ => self.expr(init, false),
        }
    }

    fn bind(&mut self, pat: &Pat, init: &Expr) {
        match (pat, init) {
            (Pat::Value(local), init) => {
                if let Some(axis) = self.axis(init) {
                    self.ids.insert(local.id, axis);
                } else if let Some(part) = self.part(init) {
                    self.parts.insert(local.id, part);
                } else {
                    self.bind_lanes(local, init);
                }
            }
            (Pat::Array(items, _), Expr::ProgramIds { function, .. }) if function == "program_id" => {
                for (axis, item) in items.iter().enumerate() {
                    if let Pat::Value(local) = item {
                        self.ids.insert(local.id, axis);
                    }
                }
            }
            (Pat::Tuple(items, _), Expr::Tuple(values, _)) => {
                for (item, value) in items.iter().zip(values) {
                    self.bind(item, value);
                }
            }
            _ => {}
        }
    }

    fn expr(&mut self, expr: &Expr, top: bool) {
        match expr {
            Expr::ProgramId { function, axis } if function == "program_id" => {
                self.axes = self.axes.max(axis.base10_parse::<usize>().map_or(0, |a| a + 1));
            }
            Expr::ProgramIds { function, count } if function == "program_id" => self.axes = self.axes.max(*count),
            Expr::Method { receiver, method, args, checked, .. } if self.part(expr).is_none() => {
                if let Some(part) = self.written(receiver) {
                    let access =
                        self.kind(part.arg).and_then(|kind| access::access(kind, part.shape, &method.to_string()));
                    checked.set(access.is_some_and(|access| access != Access::Size));
                    return self.access(access, &part, receiver, method, args, top);
                }
            }
            _ => {}
        }
        if let Some(part) = self.written(expr) {
            return self.leaves(&part, expr);
        }
        if self.touch(expr) {
            return;
        }
        for child in expr.children() {
            self.expr(child, false);
        }
        // After what it is made of, which may say why it is no part.
        if let Expr::Method { receiver, method, .. } = expr {
            self.no_store(receiver, method);
        }
        if let (true, Expr::If { then, otherwise: Some(otherwise), .. }) = (top, expr) {
            return self.either(then, otherwise);
        }
        let top = top && matches!(expr, Expr::Block(..));
        for block in expr.blocks() {
            self.block(block, top);
        }
    }

    /// Notes which part of a tensor `expr` is; false if it is none, and what it is made of has to be looked at.
    fn touch(&mut self, expr: &Expr) -> bool {
        match expr {
            // What a tensor's size is says nothing of its elements.
            Expr::Method { receiver, method, args, .. } if method == "dim" => {
                let tensor = matches!(receiver.unparenthesized(), Expr::Local(_)) && self.part(receiver).is_some();
                args.iter().for_each(|arg| self.expr(arg, false));
                return tensor || {
                    self.expr(receiver, false);
                    true
                };
            }
            Expr::Local(_) | Expr::Method { .. } => {}
            _ => return false,
        }
        let Some(part) = self.part(expr) else { return false };
        let own: Vec<PartDim> = part.steps.iter().filter(|s| s.axis.is_some()).map(Step::part).collect();
        let known = self.touched.entry(part.arg).or_insert_with(|| Some(own.clone()));
        if own.is_empty() || part.columns || known.as_ref().is_some_and(|known| *known != own) {
            *known = None;
        }
        // The indices in the chain.
        let mut link = expr.unparenthesized();
        while let Expr::Method { receiver, args, .. } = link {
            args.iter().for_each(|arg| self.expr(arg, false));
            link = receiver.unparenthesized();
        }
        true
    }

    /// Two blocks, one of which runs exactly once: what both write whole is written whole.
    fn either(&mut self, then: &Block, otherwise: &Block) {
        let first = self.stores.len();
        self.block(then, true);
        let middle = self.stores.len();
        self.block(otherwise, true);
        let (left, right) = self.stores.split_at_mut(middle);
        let Some(left) = left.get_mut(first..) else { return };
        let most = |stores: &[Store], arg| stores.iter().filter(|s| s.arg == arg).map(|s| s.surely).max();
        let (in_left, in_right) = (left.to_vec(), right.to_vec());
        left.iter_mut().for_each(|s| s.surely = s.surely.min(most(&in_right, s.arg).unwrap_or(Extent::Unknown)));
        right.iter_mut().for_each(|s| s.surely = s.surely.min(most(&in_left, s.arg).unwrap_or(Extent::Unknown)));
    }

    /// Notes a read of an output that nothing has written whole yet.
    fn unwritten(&mut self, arg: usize) {
        if !self.stores.iter().any(|store| store.arg == arg && store.surely == Extent::All) {
            self.unwritten.push(arg);
        }
    }

    /// The part of an output that `expr` is.
    fn written(&self, expr: &Expr) -> Option<Part> {
        self.part(expr).filter(|part| self.is_written(part.arg))
    }

    /// Reports an output where it is a value, which nothing follows.
    fn leaves(&self, part: &Part, expr: &Expr) {
        let text = format!(
            "`{}` is written by its methods, in the kernel itself: it is no argument of a function or a method, no part of a tuple \
             and no value of a block; compute values there, and write them here",
            self.name(part.arg)
        );
        self.cx.error_at(expr.span(), text);
    }

    /// Reports a method that writes, of what is no part of an operand that is followed.
    fn no_store(&self, receiver: &Expr, method: &Ident) {
        let writes = method == "set" || Method::of(method) == Some(Method::Writes);
        if writes && self.part(receiver).is_none() && !self.cx.failed() {
            let text = "it cannot be seen which output this writes: call it on `y.row(…)` and the like, or on a variable that holds \
                        just that";
            self.cx.error_at(method.span(), text);
        }
    }

    /// A method of an output that does not narrow it down.
    fn access(
        &mut self,
        access: Option<Access>,
        part: &Part,
        receiver: &Expr,
        method: &Ident,
        args: &[Expr],
        top: bool,
    ) {
        match access {
            Some(Access::Store) => return self.store(receiver, method, args, top),
            Some(Access::Load) => self.load(part, method, args),
            Some(Access::Shared) => {
                self.atomics |= method != "scatter";
                _ = self.shared.entry(part.arg).or_insert(method.span());
            }
            Some(Access::Size) => {}
            None => self.unknown(part, method),
        }
        // What a tensor's size is says nothing of its elements.
        let whole = matches!(receiver.unparenthesized(), Expr::Local(_));
        if !(whole && method == "dim") {
            self.touch(receiver);
        }
        args.iter().for_each(|arg| self.expr(arg, false));
    }

    /// Reports a method that outputs do not have.
    fn unknown(&self, part: &Part, method: &Ident) {
        let Some(kind) = self.kind(part.arg).filter(|_| !self.cx.failed()) else { return };
        let (what, methods) = access::usage(kind, part.shape);
        let text = match access::narrowed(kind, part.shape, &method.to_string()) {
            Some(_) => {
                "the size of a written part is a literal or a tile constant, and stands here: `y.block::<64>(i)`, \
                        `y.tile::<BM, BN>(i, j)`"
                    .to_string()
            }
            None => {
                format!("`{method}` is no method of {what}, which `{}` is here: it has {methods}", self.name(part.arg))
            }
        };
        self.cx.error_at(method.span(), text);
    }

    /// A read of what is written.
    fn load(&mut self, part: &Part, method: &Ident, args: &[Expr]) {
        let mut steps = part.steps.clone();
        // What a buffer holds is there before it is written.
        if method == "at" || self.kind(part.arg) == Some(TensorKind::Out) {
            self.unwritten(part.arg);
        }
        if let (Shape::Tensor(_), Some(index)) = (part.shape, args.first()) {
            steps.push(Step { axis: self.axis(index), dim: part.selected, by: Size::Fixed(1) });
        }
        self.loads.push(Store { arg: part.arg, steps, surely: Extent::Unknown, span: method.span() });
    }

    fn store(&mut self, receiver: &Expr, method: &Ident, args: &[Expr], top: bool) {
        let Some(mut part) = self.written(receiver) else { return };
        let all = method != "set";
        if args.iter().any(|arg| self.read_by_lanes(arg, false).contains(&part.arg)) {
            let name = self.name(part.arg);
            let text = format!(
                "lanes of `{name}` are written that read it, so that what they read depends on the machine: read what is needed \
                 before, or write something else"
            );
            self.cx.error_at(method.span(), text);
        }
        self.touch(receiver);
        args.iter().for_each(|arg| self.expr(arg, false));
        // `y.set(i, v)` on a tensor indexes it; on a row it is one of the row's elements.
        let indexes = method == "set" && matches!(part.shape, Shape::Tensor(_));
        if indexes && let Some(index) = args.first() {
            part.steps.push(Step { axis: self.axis(index), dim: part.selected, by: Size::Fixed(1) });
        }
        let surely = match (args.first().map(Expr::unparenthesized), part.line) {
            _ if !top || !part.whole => Extent::Unknown,
            _ if all || indexes => Extent::All,
            (Some(Expr::Literal(place)), Some(dim)) if place.tokens.to_string() == "0" => Extent::First(dim),
            _ => Extent::Unknown,
        };
        self.stores.push(Store { arg: part.arg, steps: part.steps, surely, span: method.span() });
    }

    /// The axis whose id `expr` is.
    fn axis(&self, expr: &Expr) -> Option<usize> {
        match expr.unparenthesized() {
            Expr::ProgramId { function, axis } if function == "program_id" => axis.base10_parse().ok(),
            Expr::Local(local) => self.ids.get(&local.id).copied(),
            _ => None,
        }
    }

    /// What kind of tensor the argument is.
    fn kind(&self, arg: usize) -> Option<TensorKind> {
        match self.sig.args.get(arg)?.ty {
            Ty::Tensor { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// Whether the argument is a tensor that is written.
    fn is_written(&self, arg: usize) -> bool {
        matches!(self.kind(arg), Some(TensorKind::Out | TensorKind::Buffer))
    }

    fn name(&self, arg: usize) -> String {
        self.sig.args.get(arg).map_or_else(String::new, |a| a.name.to_string())
    }

    /// The part of a tensor that `expr` is.
    fn part(&self, expr: &Expr) -> Option<Part> {
        match expr.unparenthesized() {
            Expr::Local(local) => match local.kind {
                LocalKind::Tensor(arg) => {
                    let Ty::Tensor { rank, .. } = &self.sig.args.get(arg)?.ty else { return None };
                    let shape = Shape::Tensor(rank.base10_parse().ok()?);
                    Some(Part { arg, steps: Vec::new(), selected: 0, line: None, shape, columns: false, whole: true })
                }
                _ => self.parts.get(&local.id).cloned(),
            },
            Expr::Method { receiver, method, turbofish, args, .. } => {
                let mut part = self.part(receiver)?;
                let (first, written) = (part.selected, self.is_written(part.arg));
                part.shape = access::narrowed(self.kind(part.arg)?, part.shape, &method.to_string())?;
                let line = part.line.unwrap_or(first);
                let mut step = |finder: &Self, index: usize, dim: u32, by: Size| {
                    let axis = args.get(index).and_then(|i| finder.axis(i));
                    part.steps.push(Step { axis, dim, by });
                };
                match method.to_string().as_str() {
                    "row" => {
                        step(self, 0, first, Size::Fixed(1));
                        part.line = Some(first + 1);
                    }
                    "column" => {
                        step(self, 0, first + 1, Size::Fixed(1));
                        part.line = Some(first);
                    }
                    "block" => step(self, 0, line, self.size(turbofish.first(), written)?),
                    "columns" => {
                        step(self, 0, first + 1, self.size(turbofish.first(), written)?);
                        part.columns = true;
                    }
                    "rows" => {
                        step(self, 0, first, self.size(turbofish.first(), written)?);
                        // Columns behind these are not written.
                        part.steps.push(Step { axis: None, dim: first + 1, by: self.size(turbofish.get(1), written)? });
                    }
                    "tile" => {
                        step(self, 0, first, self.size(turbofish.first(), written)?);
                        step(self, 1, first + 1, self.size(turbofish.get(1), written)?);
                    }
                    "select" => {
                        step(self, 0, first, Size::Fixed(1));
                        part.selected += 1;
                    }
                    "slice" | "shift" => part.whole = false,
                    "reverse" => {}
                    _ => return None,
                }
                Some(part)
            }
            _ => None,
        }
    }

    fn size(&self, arg: Option<&GenericArg>, written: bool) -> Option<Size> {
        let GenericArg::Const(tokens) = arg? else { return None };
        if let Ok(literal) = syn::parse2::<syn::LitInt>(tokens.clone()) {
            return literal.base10_parse().ok().map(Size::Fixed);
        }
        let tile = syn::parse2::<Ident>(tokens.clone()).ok().and_then(|name| self.sig.types.constant(&name));
        if tile.is_none() && written {
            self.cx.error(tokens, "the size of a written part is a literal or a tile constant: `tile(BM = 8)`");
        }
        tile.map(Size::Tile)
    }
}
