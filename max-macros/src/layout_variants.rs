//! Forms of a kernel for operands that lie otherwise in memory: kernels of their own, made of the same function.
//!
//! * Rows that are columns: of a row kernel, whose operands `[rows, axis]` are `[outer, axis, inner]` there, and `[outer, inner]` where
//!   a row has one element ([`body::columns`]).
//! * A last operand that is transposed: of a kernel that says `transposed(..)` ([`body::transposed`]).

use proc_macro2::Span;
use syn::{FnArg, GenericArgument, Ident, ItemFn, LitInt, LitStr, PathArguments, Type};

use crate::body::{self, COLUMNS, Columns};
use crate::ctxt::Ctxt;
use crate::expand::{self, Form, Kernel, Names};
use crate::grid;
use crate::signature::ast::{Access, Kind, Operand, Signature};
use crate::signature::attr::{KernelAttr, TileConst};

/// Columns of a program on a CPU, which reads memory fastest where it reads on for a page,
const CPU_COLUMNS: u64 = 1024;
/// and on a GPU, each of whose threads takes one.
const GPU_COLUMNS: u64 = 256;

/// The forms of a kernel.
pub fn forms(cx: &Ctxt, kernel: &Kernel) -> Vec<Form> {
    [columns(kernel), transposed(cx, kernel)].into_iter().flatten().collect()
}

fn columns(kernel: &Kernel) -> Option<Form> {
    let sig = kernel.sig;
    let is_plain = sig.kind == Kind::Program && sig.attr.tile.is_empty() && sig.attr.grid.is_none();
    let body = kernel.body.filter(|body| is_plain && !body.prints())?;
    let operands = sig.operands();
    let [
        Operand { access: Access::Out, rank: Some(2), arg: Some(y), .. },
        Operand { access: Access::In, rank: Some(2), arg: Some(x), .. },
    ] = operands[..]
    else {
        return None;
    };
    let params = sig.params().filter_map(|(i, ..)| Some(kernel.locals.get(i)?.id));
    let Columns { body, maps } = body::columns(body, kernel.locals.get(y)?, kernel.locals.get(x)?, params)?;
    let mut original = sig.original.clone();
    ranks(&mut original, &[(x, 3), (y, if maps { 3 } else { 2 })])?;
    let size = TileConst {
        name: Ident::new(COLUMNS, Span::call_site()),
        default: CPU_COLUMNS,
        overrides: vec![("gpu", GPU_COLUMNS)],
    };
    let attr = KernelAttr { tile: vec![size], transposed: None, ..sig.attr.clone() };
    // What could not be followed after all is no mistake of the author's.
    let cx = Ctxt::default();
    let form = form(&cx, kernel, attr, &original, &body, "columns");
    form.filter(|_| !cx.failed())
}

fn transposed(cx: &Ctxt, kernel: &Kernel) -> Option<Form> {
    let sig = kernel.sig;
    let (span, attr) = sig.attr.transposed.as_ref()?;
    let operands = sig.operands();
    let Some(Operand { access: Access::In, rank: Some(rank @ 2..), arg: Some(arg), name, .. }) = operands.last() else {
        cx.error_at(*span, "`transposed` is of kernels whose last operand is read and has rank 2 or more");
        return None;
    };
    let body = kernel.body?;
    let body = match body::transposed(body, kernel.locals.get(*arg)?, *rank) {
        Ok(body) => body,
        Err(at) => {
            let text = format!(
                "`{name}` cannot be read transposed here: of a kernel with `transposed` it is read by `.tile::<..>(..)` alone"
            );
            cx.error_at(at, text);
            return None;
        }
    };
    let mut attr = KernelAttr { transposed: None, ..(**attr).clone() };
    let conditions = attr.gpu_tiles.iter_mut().flat_map(|tile| &mut tile.conditions);
    for condition in conditions.chain(attr.variants.iter_mut().flat_map(|variant| &mut variant.conditions)) {
        let dim = condition.dim.base10_parse::<u32>().ok().filter(|_| condition.operand == name.as_str());
        if let Some(dim) = dim.filter(|dim| dim + 2 >= *rank && dim < rank) {
            condition.dim = LitInt::new(&(2 * rank - 3 - dim).to_string(), condition.dim.span());
        }
    }
    form(cx, kernel, attr, sig.original, &body, "transposed")
}

/// A form with another signature and body.
fn form(
    cx: &Ctxt,
    kernel: &Kernel,
    mut attr: KernelAttr,
    original: &ItemFn,
    body: &body::Block,
    name: &'static str,
) -> Option<Form> {
    attr.op = attr.op.map(|op| LitStr::new(&format!("{}_{name}", op.value()), op.span()));
    let sig = Signature::parse(cx, attr, original);
    let grid = grid::infer(cx, &sig, body);
    let form = Kernel { sig: &sig, body: Some(body), locals: kernel.locals, grid: &grid };
    (!cx.failed()).then(|| Form { name, items: expand::items(&Names::new(sig.attr.krate.as_ref()), &form, &[]) })
}

/// Gives operands other ranks.
fn ranks(original: &mut ItemFn, ranks: &[(usize, u32)]) -> Option<()> {
    for (arg, rank) in ranks {
        let FnArg::Typed(arg) = original.sig.inputs.iter_mut().nth(*arg)? else { return None };
        let mut ty = &mut *arg.ty;
        while let Type::Group(syn::TypeGroup { elem, .. }) | Type::Paren(syn::TypeParen { elem, .. }) = ty {
            ty = &mut **elem;
        }
        let Type::Path(path) = ty else { return None };
        let PathArguments::AngleBracketed(args) = &mut path.path.segments.last_mut()?.arguments else { return None };
        let last = args.args.last_mut()?;
        let rank = LitInt::new(&rank.to_string(), Span::call_site());
        *last = GenericArgument::Const(syn::parse_quote!(#rank));
    }
    Some(())
}
