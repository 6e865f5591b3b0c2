//! The types that a kernel can name, in its signature and in its body.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{GenericArgument, Ident, LitInt, PathArguments, Type};

use crate::ctxt::{Ctxt, nearest};
use crate::dtype::{Bound, Dtype};

/// A dtype generic of a kernel.
pub struct Generic {
    /// Its name.
    pub name: Ident,
    /// Its bound, as the author spelled it.
    pub bound: (Bound, Ident),
    /// The dtypes it ranges over.
    pub dtypes: Vec<&'static Dtype>,
}

/// The generics that types can refer to.
#[derive(Default)]
pub struct TypeScope {
    /// The dtype generics.
    pub generics: Vec<Generic>,
    /// The tile constants of an op, or the const generics of a helper.
    pub consts: Vec<Ident>,
}

impl TypeScope {
    /// The index of the dtype generic `name`.
    pub fn generic(&self, name: &Ident) -> Option<usize> {
        self.generics.iter().position(|g| g.name == *name)
    }

    /// The index of the tile constant `name`.
    pub fn constant(&self, name: &Ident) -> Option<usize> {
        self.consts.iter().position(|c| c == name)
    }

    /// The dtype that `name` stands for.
    pub fn dtype(&self, name: &Ident) -> Option<DtypeUse> {
        let of = match self.generic(name) {
            Some(index) => DtypeOf::Generic(index),
            None => DtypeOf::Fixed(Dtype::find(&name.to_string())?),
        };
        Some(DtypeUse { ident: name.clone(), of })
    }
}

/// A dtype at one place of the source.
#[derive(Clone)]
pub struct DtypeUse {
    /// The author's token.
    pub ident: Ident,
    /// What it stands for.
    pub of: DtypeOf,
}

/// What a dtype's name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DtypeOf {
    /// The kernel's generic of that index.
    Generic(usize),
    /// A dtype written out.
    Fixed(&'static Dtype),
}

/// How a kernel names a tensor operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    In,
    Out,
    Buffer,
}

/// A type, with the author's tokens.
#[derive(Clone)]
pub enum Ty {
    /// `f32`, `T`
    Scalar(DtypeUse),
    /// `&mut T`
    ScalarMut(DtypeUse),
    /// `Tile<T, R, C>`; `ScaledTile<R, K, G>`, which has no dtype
    Tile { ident: Ident, dtype: Option<DtypeUse>, sizes: Vec<TokenStream> },
    /// `In<T, R>`, `Out<T, R>`, `&mut Buffer<T, R>`; `optional`, if it is an `Option<In<T, R>>`
    Tensor { kind: TensorKind, ident: Ident, dtype: DtypeUse, rank: LitInt, optional: bool },
    /// `(A, B)`
    Tuple(Vec<Ty>, Span),
    /// `&str`
    Str(Span),
    /// `_`
    Infer(Span),
}

impl Ty {
    /// Reads a type; an error is recorded for anything that is not a kernel's type.
    pub fn parse(cx: &Ctxt, scope: &TypeScope, ty: &Type) -> Option<Ty> {
        match ty {
            Type::Group(group) => Ty::parse(cx, scope, &group.elem),
            Type::Paren(paren) => Ty::parse(cx, scope, &paren.elem),
            Type::Infer(infer) => Some(Ty::Infer(infer.span())),
            Type::Tuple(tuple) => {
                let items: Vec<_> = tuple.elems.iter().map(|t| Ty::parse(cx, scope, t)).collect();
                Some(Ty::Tuple(items.into_iter().collect::<Option<_>>()?, tuple.span()))
            }
            Type::Reference(reference) => parse_reference(cx, scope, reference),
            Type::Path(path) if path.qself.is_none() => parse_path(cx, scope, &path.path),
            Type::Slice(_) | Type::Array(_) | Type::Ptr(_) => {
                cx.error(ty, "a kernel has no slices, arrays or pointers: take a tensor, `x: In<f32, 1>`");
                None
            }
            Type::ImplTrait(_) | Type::TraitObject(_) => {
                cx.error(ty, "a kernel is generic over dtypes alone: write a dtype, or a generic such as `T: Float`");
                None
            }
            _ => {
                cx.error(ty, format!("this is not a type of kernels: {TYPES}"));
                None
            }
        }
    }
}

const TYPES: &str = "write a dtype (such as f32), a generic, `Tile<T, R, C>` or a tuple of those";

fn parse_reference(cx: &Ctxt, scope: &TypeScope, reference: &syn::TypeReference) -> Option<Ty> {
    if let Some(lifetime) = &reference.lifetime {
        cx.error(lifetime, "a kernel has no lifetimes: leave it out");
    }
    if reference.mutability.is_some() {
        if last_ident(&reference.elem).is_some_and(|i| i == "Buffer") {
            return match &*reference.elem {
                Type::Path(path) => parse_tensor(cx, scope, &path.path, TensorKind::Buffer),
                _ => None,
            };
        }
        return match Ty::parse(cx, scope, &reference.elem)? {
            Ty::Scalar(dtype) => Some(Ty::ScalarMut(dtype)),
            Ty::Tensor { kind: TensorKind::Out, .. } => {
                cx.error(reference, "an `Out` is written by its methods: remove `&mut`");
                None
            }
            Ty::Tensor { kind: TensorKind::In, .. } => {
                cx.error(reference, "an `In` is read only: write `&mut Buffer<T, R>` for a tensor updated in place");
                None
            }
            _ => {
                cx.error(reference, "`&mut` marks what a kernel updates in place: `&mut T` or `&mut Buffer<T, R>`");
                None
            }
        };
    }
    if let Type::Slice(_) | Type::Array(_) = &*reference.elem {
        return Ty::parse(cx, scope, &reference.elem);
    }
    match last_ident(&reference.elem) {
        Some(ident) if ident == "str" => Some(Ty::Str(reference.span())),
        _ => {
            cx.error(reference, "there are no references in a kernel: values are copied, leave out the `&`");
            None
        }
    }
}

fn last_ident(ty: &Type) -> Option<&Ident> {
    match ty {
        Type::Group(group) => last_ident(&group.elem),
        Type::Path(path) => path.path.segments.last().map(|s| &s.ident),
        _ => None,
    }
}

fn parse_path(cx: &Ctxt, scope: &TypeScope, path: &syn::Path) -> Option<Ty> {
    let segment = path.segments.last()?;
    let ident = &segment.ident;
    let name = ident.to_string();
    match name.as_str() {
        "In" => return parse_tensor(cx, scope, path, TensorKind::In),
        "Out" => return parse_tensor(cx, scope, path, TensorKind::Out),
        "Buffer" => {
            cx.error(path, "a `Buffer` is updated in place: write `&mut Buffer<T, R>`");
            return None;
        }
        "Tile" | "ScaledTile" => return parse_tile(cx, scope, segment),
        "Option" => return parse_optional(cx, scope, segment),
        _ => {}
    }
    if let Some(dtype) = scope.dtype(ident)
        && let PathArguments::None = segment.arguments
    {
        return Some(Ty::Scalar(dtype));
    }
    cx.error(path, unknown_type(scope, &name));
    None
}

/// The message for a type that kernels do not have.
fn unknown_type(scope: &TypeScope, name: &str) -> String {
    match name {
        "usize" | "isize" => {
            return format!("`{name}` differs between machines: sizes and indices in kernels are `i64`");
        }
        "i128" | "u128" | "char" | "String" | "Vec" | "Box" => {
            return format!("kernels have no `{name}`: {TYPES}");
        }
        "str" => return "a string parameter is a `&str`".to_string(),
        _ => {}
    }
    let generics: Vec<String> = scope.generics.iter().map(|g| g.name.to_string()).collect();
    let known = crate::dtype::DTYPES.iter().map(|d| d.name).chain(["In", "Out", "Tile", "ScaledTile"]);
    match nearest(name, known.chain(generics.iter().map(String::as_str))) {
        Some(near) => format!("`{name}` is not a type of kernels: did you mean `{near}`?"),
        None => format!("`{name}` is not a type of kernels: {TYPES}"),
    }
}

fn arguments(segment: &syn::PathSegment) -> Vec<&GenericArgument> {
    match &segment.arguments {
        PathArguments::AngleBracketed(args) => args.args.iter().collect(),
        PathArguments::None | PathArguments::Parenthesized(_) => Vec::new(),
    }
}

fn parse_tensor(cx: &Ctxt, scope: &TypeScope, path: &syn::Path, kind: TensorKind) -> Option<Ty> {
    let segment = path.segments.last()?;
    let ident = segment.ident.clone();
    let [dtype, rank] = arguments(segment)[..] else {
        cx.error(path, format!("write the dtype and the rank: `{ident}<f32, 2>`"));
        return None;
    };
    let dtype = dtype_argument(cx, scope, dtype);
    let rank = match rank {
        GenericArgument::Const(syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(rank), .. }))
            if matches!(rank.base10_parse::<u32>(), Ok(1..=5)) =>
        {
            Some(rank.clone())
        }
        other => {
            cx.error(other, "the rank is a literal between 1 and 5");
            None
        }
    };
    Some(Ty::Tensor { kind, ident, dtype: dtype?, rank: rank?, optional: false })
}

/// `Option<In<T, R>>`, an operand that may be absent.
fn parse_optional(cx: &Ctxt, scope: &TypeScope, segment: &syn::PathSegment) -> Option<Ty> {
    const USAGE: &str = "an operand that is read may be absent, and nothing else: `Option<In<f32, 2>>`";
    let [GenericArgument::Type(of)] = arguments(segment)[..] else {
        cx.error(segment, USAGE);
        return None;
    };
    match Ty::parse(cx, scope, of)? {
        Ty::Tensor { kind: kind @ TensorKind::In, ident, dtype, rank, optional: false } => {
            Some(Ty::Tensor { kind, ident, dtype, rank, optional: true })
        }
        _ => {
            cx.error(of, USAGE);
            None
        }
    }
}

fn parse_tile(cx: &Ctxt, scope: &TypeScope, segment: &syn::PathSegment) -> Option<Ty> {
    let sizes = |sizes: &[&GenericArgument]| {
        let sizes: Vec<_> = sizes.iter().map(|size| const_argument(cx, scope, size)).collect();
        sizes.into_iter().collect::<Option<Vec<_>>>()
    };
    let ident = segment.ident.clone();
    match (ident == "Tile", &arguments(segment)[..]) {
        (true, [dtype, rest @ ..]) if rest.len() == 2 => {
            let (dtype, sizes) = (dtype_argument(cx, scope, dtype), sizes(rest));
            Some(Ty::Tile { ident, dtype: Some(dtype?), sizes: sizes? })
        }
        (true, _) => {
            cx.error(segment, "write the dtype and the two sizes: `Tile<f32, 8, 16>`");
            None
        }
        (false, all) if all.len() == 3 => Some(Ty::Tile { ident, dtype: None, sizes: sizes(all)? }),
        (false, _) => {
            cx.error(segment, "write rows, integers of a row and scales of a row: `ScaledTile<64, 256, 8>`");
            None
        }
    }
}

/// A dtype as a generic argument.
pub fn dtype_argument(cx: &Ctxt, scope: &TypeScope, arg: &GenericArgument) -> Option<DtypeUse> {
    if let GenericArgument::Type(ty) = arg {
        return match Ty::parse(cx, scope, ty)? {
            Ty::Scalar(dtype) => Some(dtype),
            _ => {
                cx.error(arg, "a dtype must stand here, such as f32, or a generic of the kernel");
                None
            }
        };
    }
    cx.error(arg, "a dtype must stand here, such as f32, or a generic of the kernel");
    None
}

/// A size as a generic argument: a literal, a tile constant, or a constant of the author's.
pub fn const_argument(cx: &Ctxt, scope: &TypeScope, arg: &GenericArgument) -> Option<TokenStream> {
    match arg {
        GenericArgument::Const(syn::Expr::Lit(lit)) => return Some(lit.to_token_stream()),
        GenericArgument::Type(Type::Path(path)) if path.qself.is_none() => {
            if let Some(ident) = path.path.get_ident()
                && scope.constant(ident).is_some()
            {
                return Some(ident.to_token_stream());
            }
            if path.path.segments.last().is_some_and(|s| is_constant_name(&s.ident)) {
                return Some(path.to_token_stream());
            }
        }
        GenericArgument::Type(Type::Group(group)) => {
            return const_argument(cx, scope, &GenericArgument::Type((*group.elem).clone()));
        }
        GenericArgument::Const(_) => {
            cx.error(arg, "a size is a literal or the name of a tile constant: Rust does not compute with it here");
            return None;
        }
        _ => {}
    }
    cx.error(arg, "a size must stand here: a literal, or a tile constant, `#[kernel(op = \"name\", tile(BM = 8))]`");
    None
}

/// Whether a name is spelled as constants are.
pub fn is_constant_name(ident: &Ident) -> bool {
    let name = ident.to_string();
    name.chars().any(|c| c.is_ascii_uppercase()) && !name.chars().any(|c| c.is_ascii_lowercase())
}
