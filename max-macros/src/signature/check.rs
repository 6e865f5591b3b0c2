//! Rules across several parts of a signature.

use crate::ctxt::Ctxt;
use crate::signature::ast::{Access, Arg, Kind, Signature, output_span};
use crate::signature::attr::AtMost;
use crate::signature::types::{DtypeOf, TensorKind, Ty};

/// What is wrong with `nondeterministic` where there are no atomics.
pub const NOTHING_ATOMIC: &str =
    "nothing here depends on the order of programs, as atomics on floats do: remove `nondeterministic`";

/// Checks a signature.
pub fn check(cx: &Ctxt, sig: &Signature) {
    duplicate_names(cx, sig);
    conditions(cx, sig);
    gpu_tiles(cx, sig);
    if let Some(span) = sig.attr.nondeterministic.filter(|_| sig.kind != Kind::Program) {
        cx.error_at(span, NOTHING_ATOMIC);
    }
    match sig.kind {
        Kind::Helper => helper(cx, sig),
        Kind::Elementwise => elementwise(cx, sig),
        Kind::Program => program(cx, sig),
    }
    if sig.kind != Kind::Helper {
        // What no operand tells is a parameter of the op, and a parameter that shapes code has its values declared.
        let untold = sig.types.generics.iter().enumerate().filter(|(i, _)| !is_used(sig, *i)).map(|(_, g)| &g.name);
        for name in untold.filter(|name| !sig.attr.dtypes.iter().any(|(listed, _)| listed == *name)) {
            cx.error(
                name,
                format!(
                    "no operand of the op has dtype `{name}`: to make it a parameter, list the dtypes that it can be, \
                     `dtypes({name} = [f32, f64])`"
                ),
            );
        }
    }
}

fn duplicate_names(cx: &Ctxt, sig: &Signature) {
    for (i, arg) in sig.args.iter().enumerate() {
        if sig.args.iter().take(i).any(|other| other.name == arg.name) {
            cx.error(&arg.name, format!("there are two arguments `{}`", arg.name));
        }
    }
    for tile in &sig.attr.tile {
        if sig.types.generics.iter().any(|g| g.name == tile.name) {
            cx.error(&tile.name, format!("`{}` is a generic of the kernel already", tile.name));
        }
    }
}

/// The conditions of `when(...)` and of shapes for GPUs name dimensions that are there.
fn conditions(cx: &Ctxt, sig: &Signature) {
    let operands = sig.operands();
    let of_variants = sig.attr.variants.iter().flat_map(|variant| &variant.conditions);
    for AtMost { operand: name, dim, max } in of_variants.chain(sig.attr.gpu_tiles.iter().flat_map(|t| &t.conditions)) {
        let Some(operand) = operands.iter().find(|o| *name == o.name) else {
            cx.error(name, format!("there is no operand `{name}`"));
            continue;
        };
        if operand.arg.and_then(|i| sig.args.get(i)).is_some_and(Arg::is_optional) {
            cx.error(name, format!("`{name}` may be absent: name an operand that is there"));
        }
        let rank = operand.rank.unwrap_or(0);
        match cx.ok(dim.base10_parse::<u32>()) {
            Some(number) if number >= rank => {
                cx.error(dim, format!("`{name}` has rank {rank}: its dimensions count from 0"));
            }
            Some(_) | None => {}
        }
        cx.ok(max.base10_parse::<u64>());
    }
}

/// The shapes of tiles for a kind of GPU name generics that are there, and dtypes of which these can be.
fn gpu_tiles(cx: &Ctxt, sig: &Signature) {
    for (generic, dtypes) in sig.attr.gpu_tiles.iter().filter_map(|tile| tile.dtypes.as_ref()) {
        let Some(known) = sig.types.generics.iter().find(|g| g.name == *generic) else {
            cx.error(generic, format!("the kernel has no generic `{generic}`"));
            continue;
        };
        for (ident, _) in dtypes.iter().filter(|(_, dtype)| !known.dtypes.contains(dtype)) {
            let names: Vec<&str> = known.dtypes.iter().map(|dtype| dtype.name).collect();
            cx.error(ident, format!("`{generic}` of this kernel is never {ident}: write one of {}", names.join(", ")));
        }
    }
}

fn is_used(sig: &Signature, generic: usize) -> bool {
    sig.operands().iter().any(|o| o.dtype.of == DtypeOf::Generic(generic))
}

fn helper(cx: &Ctxt, sig: &Signature) {
    let only_ops = "without `op = \"name\"` this is a function that kernels call, which takes these from its caller";
    if let Some(tile) = sig.attr.tile.first() {
        cx.error(&tile.name, format!("only an op has tile constants: {only_ops} (`const {}: usize`)", tile.name));
    }
    if let Some((span, _)) = &sig.attr.grid {
        cx.error_at(*span, format!("only an op has a grid: {only_ops}"));
    }
    if let Some((generic, _)) = sig.attr.dtypes.first() {
        cx.error(generic, format!("only an op has a list of dtypes: {only_ops}"));
    }
    for arg in &sig.args {
        match &arg.ty {
            Ty::Tensor { kind: TensorKind::Out | TensorKind::Buffer, ident, .. } => {
                cx.error(ident, "a function that kernels call gives its result back: write it in the kernel itself");
            }
            Ty::ScalarMut(dtype) => {
                cx.error(&dtype.ident, "a function that kernels call gives its result back: return the new value");
            }
            Ty::Infer(span) => cx.error_at(*span, "the type of an argument is written out"),
            Ty::Tile { ident, dtype: None, .. } => cx.error(ident, "a `ScaledTile` is made where it is multiplied"),
            Ty::Scalar(_) | Ty::Tile { .. } | Ty::Tensor { .. } | Ty::Tuple(..) | Ty::Str(_) => {}
        }
    }
}

fn elementwise(cx: &Ctxt, sig: &Signature) {
    if let Some((span, _)) = &sig.attr.grid {
        cx.error_at(*span, "an elementwise op has no grid: it runs once per element");
    }
    if let Some(tile) = sig.attr.tile.first() {
        cx.error(&tile.name, "an elementwise op has no tile constants: it runs once per element");
    }
    let in_place = sig.args.iter().any(|a| a.param.is_none() && matches!(a.ty, Ty::ScalarMut(_)));
    let results = sig.results();
    if results.is_empty() && !in_place {
        cx.error(
            sig.name(),
            "this op has no result: return one (`-> T`), update an element (`x: &mut T`), or write a tensor (`y: Out<T, 1>`)",
        );
    }
    for result in results {
        if !matches!(result, Ty::Scalar(_)) {
            cx.error_at(
                output_span(sig.original),
                "the results of an elementwise op are elements: `-> T` or `-> (T, U)`",
            );
            break;
        }
    }
    let operands = sig.operands();
    let inputs = operands.iter().filter(|o| o.access != Access::Out).count();
    let outputs = operands.iter().filter(|o| o.access != Access::In).count();
    if inputs > MAX_ELEMENTS || outputs > MAX_ELEMENTS {
        cx.error(sig.name(), format!("an elementwise op has at most {MAX_ELEMENTS} inputs and {MAX_ELEMENTS} results"));
    }
}

/// The largest tuple that the language's element functions take.
const MAX_ELEMENTS: usize = 8;

fn program(cx: &Ctxt, sig: &Signature) {
    for arg in &sig.args {
        let Arg { name, ty, param, .. } = arg;
        if let (None, Ty::Scalar(dtype) | Ty::ScalarMut(dtype)) = (param, ty) {
            cx.error(
                &dtype.ident,
                format!(
                    "an op takes elements or tensors, not both: write `{name}: In<{0}, 1>`, or `#[param] {name}: …` for a \
                     value fixed when the graph is built",
                    dtype.ident
                ),
            );
        }
    }
    if sig.output.is_some() {
        cx.error_at(
            output_span(sig.original),
            "an op on tensors writes its results: take `y: Out<T, 1>` as an argument instead of returning a value",
        );
    }
    let writes = |ty: &Ty| matches!(ty, Ty::Tensor { kind: TensorKind::Out | TensorKind::Buffer, .. });
    if !sig.args.iter().any(|a| writes(&a.ty)) {
        cx.error(sig.name(), "this op writes nothing: take a result, `y: Out<T, 1>`, or `&mut Buffer<T, 1>`");
    }
}
