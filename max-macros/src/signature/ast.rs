//! The signature of a kernel, typed, with the author's tokens kept for their spans.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{FnArg, GenericParam, Ident, ItemFn, Pat, ReturnType, Safety, TypeParamBound};

use crate::ctxt::{Ctxt, nearest};
use crate::dtype::{Bound, Class, Dtype};
use crate::level::BuildLevels;
use crate::signature::attr::{KernelAttr, ParamAttr};
use crate::signature::types::{DtypeOf, DtypeUse, Generic, TensorKind, Ty, TypeScope};

/// What a kernel function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Called by other kernels only.
    Helper,
    /// An op: a function of elements.
    Elementwise,
    /// An op: a grid of program instances.
    Program,
}

/// A kernel's signature.
pub struct Signature<'a> {
    /// The function as it was written.
    pub original: &'a ItemFn,
    /// The arguments of `#[kernel(...)]`.
    pub attr: KernelAttr,
    /// What it is.
    pub kind: Kind,
    /// Its generics.
    pub types: TypeScope,
    /// The const generics of a helper, as they were written.
    pub const_params: Vec<TokenStream>,
    /// Its arguments.
    pub args: Vec<Arg>,
    /// Names of arguments that could not be read.
    pub unread: Vec<Ident>,
    /// Its return type.
    pub output: Option<Ty>,
    /// The CPU levels that the build asks for.
    pub levels: BuildLevels,
}

/// An argument.
pub struct Arg {
    /// Its name.
    pub name: Ident,
    /// Whether it is declared `mut`.
    pub mutable: bool,
    /// Its type.
    pub ty: Ty,
    /// What `#[param]` says, where it stands.
    pub param: Option<Param>,
}

impl Arg {
    /// Whether it may be absent.
    pub fn is_optional(&self) -> bool {
        matches!(self.ty, Ty::Tensor { optional: true, .. })
    }
}

/// A parameter.
pub struct Param {
    /// Its kind.
    pub kind: ParamKind,
    /// The bits and the text of its default.
    pub default: Option<(u64, String)>,
    /// The strings it may be.
    pub choices: Vec<syn::LitStr>,
}

/// The kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    Int,
    Bool,
    Float,
    String,
}

/// A tensor operand, in the order of the kernel table.
pub struct Operand<'a> {
    /// Its name: an argument's, or `out`, `out0`, `out1`, ….
    pub name: String,
    /// How it is accessed.
    pub access: Access,
    /// Its dtype.
    pub dtype: &'a DtypeUse,
    /// Its rank; `None` for an element.
    pub rank: Option<u32>,
    /// The index of its argument; `None` for a result.
    pub arg: Option<usize>,
}

/// How a kernel accesses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    In,
    Out,
    InOut,
}

impl<'a> Signature<'a> {
    /// Reads the signature of `original`.
    pub fn parse(cx: &Ctxt, attr: KernelAttr, original: &'a ItemFn) -> Signature<'a> {
        let sig = &original.sig;
        no_qualifiers(cx, original);
        let mut types =
            TypeScope { consts: attr.tile.iter().map(|t| t.name.clone()).collect(), ..TypeScope::default() };
        let mut const_params = Vec::new();
        for param in &sig.generics.params {
            match param {
                GenericParam::Type(param) => types.generics.push(generic(cx, param)),
                GenericParam::Const(param) => {
                    if attr.op.is_some() {
                        let name = &param.ident;
                        cx.error(
                            param,
                            format!("an op's constants have values in the attribute: `tile({name} = 8)` instead of `const {name}: usize`"),
                        );
                    }
                    if param.ty.to_token_stream().to_string() != "usize" {
                        cx.error(&param.ty, "a constant of a kernel is a `usize`");
                    }
                    types.consts.push(param.ident.clone());
                    const_params.push(param.to_token_stream());
                }
                GenericParam::Lifetime(param) => cx.error(param, "a kernel has no lifetimes: leave it out"),
            }
        }
        if let Some(clause) = &sig.generics.where_clause {
            cx.error(clause, "a kernel has no `where`: write the bound at the generic, `<T: Float>`");
        }
        override_dtypes(cx, &attr, &mut types);
        let is_op = attr.op.is_some() || attr.unread;
        let (mut args, mut unread) = (Vec::new(), Vec::new());
        for arg in &sig.inputs {
            match argument(cx, &types, is_op, arg) {
                Some(arg) => args.push(arg),
                None => unread.extend(names(arg)),
            }
        }
        let output = match &sig.output {
            ReturnType::Default => None,
            ReturnType::Type(_, ty) => match Ty::parse(cx, &types, ty) {
                Some(Ty::Tuple(items, _)) if items.is_empty() => None,
                ty => ty,
            },
        };
        let levels = BuildLevels::requested().unwrap_or_else(|message| {
            cx.error_at(Span::call_site(), message);
            BuildLevels::All
        });
        let kind = Kind::Helper;
        let mut signature = Signature { original, attr, kind, types, const_params, args, unread, output, levels };
        signature.kind = signature.find_kind();
        signature
    }

    fn find_kind(&self) -> Kind {
        if self.attr.op.is_none() {
            return Kind::Helper;
        }
        let tensors = self.args.iter().any(|a| matches!(a.ty, Ty::Tensor { .. }));
        if tensors { Kind::Program } else { Kind::Elementwise }
    }

    /// Its name.
    pub fn name(&self) -> &Ident {
        &self.original.sig.ident
    }

    /// Whether the whole body runs per element.
    pub fn is_lane(&self) -> bool {
        match self.kind {
            Kind::Elementwise => true,
            Kind::Program => false,
            Kind::Helper => self.args.iter().all(|a| matches!(a.ty, Ty::Scalar(_) | Ty::Str(_))),
        }
    }

    /// The types of the results.
    pub fn results(&self) -> Vec<&Ty> {
        match &self.output {
            None => Vec::new(),
            Some(Ty::Tuple(items, _)) => items.iter().collect(),
            Some(ty) => vec![ty],
        }
    }

    /// The operands of an op.
    pub fn operands(&self) -> Vec<Operand<'_>> {
        let args = self.args.iter().enumerate().filter(|(_, a)| a.param.is_none()).filter_map(|(i, arg)| {
            let (access, dtype, rank) = match &arg.ty {
                Ty::Scalar(dtype) => (Access::In, dtype, None),
                Ty::ScalarMut(dtype) => (Access::InOut, dtype, None),
                Ty::Tensor { kind, dtype, rank, .. } => {
                    let access = match kind {
                        TensorKind::In => Access::In,
                        TensorKind::Out => Access::Out,
                        TensorKind::Buffer => Access::InOut,
                    };
                    (access, dtype, rank.base10_parse().ok())
                }
                Ty::Tile { .. } | Ty::Tuple(..) | Ty::Str(_) | Ty::Infer(_) => return None,
            };
            Some(Operand { name: arg.name.to_string(), access, dtype, rank, arg: Some(i) })
        });
        let results = self.results();
        let numbered = results.len() > 1;
        let outs = results.iter().enumerate().filter_map(|(i, ty)| match ty {
            Ty::Scalar(dtype) => {
                let name = if numbered { format!("out{i}") } else { "out".to_string() };
                Some(Operand { name, access: Access::Out, dtype, rank: None, arg: None })
            }
            _ => None,
        });
        args.chain(outs).collect()
    }

    /// The arguments that may be absent. Each has a bool parameter behind the author's, of its name: whether it is there.
    pub fn optional(&self) -> impl Iterator<Item = (usize, &Arg)> {
        self.args.iter().enumerate().filter(|(_, arg)| arg.is_optional())
    }

    /// The parameters, with the index of each one's argument.
    pub fn params(&self) -> impl Iterator<Item = (usize, &Arg, &Param)> {
        self.args.iter().enumerate().filter_map(|(i, arg)| Some((i, arg, arg.param.as_ref()?)))
    }
}

/// Reports what functions may have and kernels may not.
fn no_qualifiers(cx: &Ctxt, original: &ItemFn) {
    let sig = &original.sig;
    if let Some(token) = &sig.asyncness {
        cx.error(token, "a kernel is not async");
    }
    if let Some(token) = &sig.constness {
        cx.error(token, "a kernel is not `const`: it runs in several forms");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        cx.error(token, "a kernel needs no `unsafe`: it cannot touch memory that is not its own");
    }
    if let Some(abi) = &sig.abi {
        cx.error(abi, "a kernel has no ABI of its own: remove `extern`");
    }
    if let Some(variadic) = &sig.variadic {
        cx.error(variadic, "a kernel has a fixed number of arguments");
    }
    const KEPT: [&str; 10] =
        ["doc", "allow", "expect", "warn", "deny", "forbid", "cfg", "cfg_attr", "deprecated", "must_use"];
    for attr in &original.attrs {
        let name = attr.path().get_ident().map(Ident::to_string).unwrap_or_default();
        if name == "inline" {
            cx.error(attr, "every kernel function is inlined: remove this");
        } else if !KEPT.contains(&name.as_str()) {
            cx.error(attr, "this attribute has no meaning on a kernel");
        }
    }
}

/// A dtype generic. After an error it ranges over all dtypes, so that its uses are no errors as well.
fn generic(cx: &Ctxt, param: &syn::TypeParam) -> Generic {
    let name = &param.ident;
    if let Some((_, default)) = &param.default {
        cx.error(default, "a kernel's generics have no defaults");
    }
    let (bound, ident) = bound(cx, param).unwrap_or((Bound::Scalar, name.clone()));
    Generic { name: name.clone(), bound: (bound, ident), dtypes: bound.dtypes().collect() }
}

fn bound(cx: &Ctxt, param: &syn::TypeParam) -> Option<(Bound, Ident)> {
    let bounds: Vec<&TypeParamBound> = param.bounds.iter().collect();
    let [TypeParamBound::Trait(bound)] = bounds[..] else {
        let name = &param.ident;
        let message = format!("a generic has one bound, a set of dtypes: `{name}: Number` (or {})", others("Number"));
        match bounds[..] {
            [] => cx.error(param, message),
            _ => cx.error(&param.bounds, message),
        }
        return None;
    };
    let ident = &bound.path.segments.last()?.ident;
    let Some(known) = Bound::find(&ident.to_string()) else {
        let hint = match nearest(&ident.to_string(), Bound::NAMES) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("write one of {}", Bound::NAMES.join(", ")),
        };
        cx.error(bound, format!("`{ident}` is not a set of dtypes: {hint}"));
        return None;
    };
    Some((known, ident.clone()))
}

/// The names that an argument defines.
fn names(arg: &FnArg) -> Vec<Ident> {
    fn of(pat: &Pat) -> Vec<Ident> {
        match pat {
            Pat::Ident(pat) => vec![pat.ident.clone()],
            Pat::Tuple(pat) => pat.elems.iter().flat_map(of).collect(),
            _ => Vec::new(),
        }
    }
    match arg {
        FnArg::Receiver(_) => Vec::new(),
        FnArg::Typed(arg) => of(&arg.pat),
    }
}

fn others(name: &str) -> String {
    Bound::NAMES.into_iter().filter(|n| *n != name).collect::<Vec<_>>().join(", ")
}

/// Applies `dtypes(T = [..])`.
fn override_dtypes(cx: &Ctxt, attr: &KernelAttr, types: &mut TypeScope) {
    for (name, dtypes) in &attr.dtypes {
        let Some(generic) = types.generics.iter_mut().find(|g| g.name == *name) else {
            cx.error(name, format!("the kernel has no generic `{name}`"));
            continue;
        };
        let (bound, _) = generic.bound;
        for dtype in dtypes.iter().filter(|d| !bound.contains(d)) {
            cx.error(name, format!("`{name}: {}` does not range over {}", bound.name(), dtype.name));
        }
        generic.dtypes = dtypes.clone();
    }
}

fn argument(cx: &Ctxt, types: &TypeScope, is_op: bool, arg: &FnArg) -> Option<Arg> {
    let arg = match arg {
        FnArg::Receiver(receiver) => {
            cx.error(receiver, "a kernel is a free function: it has no `self`");
            return None;
        }
        FnArg::Typed(arg) => arg,
    };
    let mut param = None;
    for attr in &arg.attrs {
        if attr.path().is_ident("param") {
            if !is_op {
                cx.error(attr, "`#[param]` belongs to ops: a function that kernels call takes plain arguments");
            }
            param = Some(ParamAttr::parse(cx, attr));
        } else if !attr.path().is_ident("allow") {
            cx.error(attr, "an argument's only attribute is `#[param]`");
        }
    }
    let ident = match &*arg.pat {
        Pat::Ident(ident) if ident.by_ref.is_none() && ident.subpat.is_none() => ident,
        pat => {
            cx.error(pat, "an argument of a kernel is a name: `x: T`");
            return None;
        }
    };
    let ty = Ty::parse(cx, types, &arg.ty)?;
    if let (false, Ty::Tensor { optional: true, .. }) = (is_op, &ty) {
        cx.error(
            &arg.ty,
            "a function that kernels call takes operands that are there: take an `In`, and let the kernel ask `if let Some(x) = x`",
        );
        return None;
    }
    let param = match param {
        Some(attr) => Some(parameter(cx, &ty, attr, &arg.ty)?),
        None => None,
    };
    if is_op && param.is_none() {
        match ty {
            Ty::Str(_) => {
                cx.error(arg, format!("a string is a parameter: write `#[param] {}: &str`", ident.ident));
                return None;
            }
            Ty::Tile { .. } | Ty::Tuple(..) | Ty::Infer(_) => {
                cx.error(
                    &arg.ty,
                    "an op takes elements (`x: T`), tensors (`x: In<T, 2>`) and parameters (`#[param] n: i64`)",
                );
                return None;
            }
            Ty::Scalar(_) | Ty::ScalarMut(_) | Ty::Tensor { .. } => {}
        }
    }
    if let (Some(token), false) = (&ident.mutability, matches!(ty, Ty::Scalar(_) | Ty::Tile { .. })) {
        cx.error(token, "only a number can be `mut`");
    }
    Some(Arg { name: ident.ident.clone(), mutable: ident.mutability.is_some(), ty, param })
}

fn parameter(cx: &Ctxt, ty: &Ty, attr: ParamAttr, tokens: &syn::Type) -> Option<Param> {
    const TYPES: &str = "a parameter is an integer, `bool`, `f32`, `f64` or `&str`";
    let dtype = match ty {
        Ty::Str(_) => None,
        Ty::Scalar(DtypeUse { of: DtypeOf::Fixed(dtype), .. }) if dtype.is_primitive() => Some(*dtype),
        Ty::Scalar(DtypeUse { of: DtypeOf::Generic(_), ident }) => {
            cx.error(tokens, format!("{TYPES}: take one and convert it, `value as {ident}`"));
            return None;
        }
        _ => {
            cx.error(tokens, TYPES);
            return None;
        }
    };
    let kind = match dtype {
        None => ParamKind::String,
        Some(dtype) if dtype.class == Class::Bool => ParamKind::Bool,
        Some(dtype) if dtype.is_float() => ParamKind::Float,
        Some(_) => ParamKind::Int,
    };
    if kind != ParamKind::String
        && let Some(choice) = attr.choices.first()
    {
        cx.error(choice, "`choices` are for string parameters");
    }
    let default = attr.default.as_ref().and_then(|value| default(cx, kind, dtype, value));
    if let (ParamKind::String, Some((_, text)), Some(value)) = (kind, &default, &attr.default)
        && !attr.choices.is_empty()
        && !attr.choices.iter().any(|c| c.value() == *text)
    {
        cx.error(value, "the default is not one of the choices");
    }
    Some(Param { kind, default, choices: attr.choices })
}

/// The bits and the text of a default.
fn default(cx: &Ctxt, kind: ParamKind, dtype: Option<&Dtype>, value: &syn::Expr) -> Option<(u64, String)> {
    let (negative, literal) = match value {
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => (true, &**expr),
        value => (false, value),
    };
    let syn::Expr::Lit(syn::ExprLit { lit, .. }) = literal else {
        cx.error(value, "the default is a literal");
        return None;
    };
    let sign = if negative { "-" } else { "" };
    match (kind, lit) {
        (ParamKind::Int, syn::Lit::Int(int)) => {
            let number: i128 =
                cx.ok(format!("{sign}{}", int.base10_digits()).parse().map_err(|e| syn::Error::new_spanned(int, e)))?;
            let (min, max) = match dtype {
                Some(Dtype { class: Class::Unsigned, bits, .. }) => (0, (1_i128 << bits) - 1),
                Some(Dtype { bits, .. }) => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
                None => (i128::MIN, i128::MAX),
            };
            if !(min..=max).contains(&number) {
                cx.error(value, format!("the default is outside the parameter's type, {min} to {max}"));
                return None;
            }
            Some((number as u64, number.to_string()))
        }
        (ParamKind::Float, syn::Lit::Int(_) | syn::Lit::Float(_)) => {
            let digits = match lit {
                syn::Lit::Int(int) => int.base10_digits().to_string(),
                syn::Lit::Float(float) => float.base10_digits().to_string(),
                _ => String::new(),
            };
            let number: f64 = cx.ok(format!("{sign}{digits}").parse().map_err(|e| syn::Error::new_spanned(lit, e)))?;
            // A literal is finite, so what is not became so.
            let (max, text) = match dtype {
                Some(Dtype { bits: 32, .. }) => (f32::MAX.into(), format!("{:e} to {:e}", f32::MIN, f32::MAX)),
                _ => (f64::MAX, format!("{:e} to {:e}", f64::MIN, f64::MAX)),
            };
            if number.abs() > max {
                cx.error(value, format!("the default is outside the parameter's type, {text}"));
                return None;
            }
            Some((number.to_bits(), format!("{number:?}")))
        }
        (ParamKind::Bool, syn::Lit::Bool(b)) if !negative => Some((u64::from(b.value), b.value.to_string())),
        (ParamKind::String, syn::Lit::Str(s)) if !negative => Some((hash_str(&s.value()), s.value())),
        _ => {
            let wanted = match kind {
                ParamKind::Int => "an integer",
                ParamKind::Float => "a number",
                ParamKind::Bool => "`true` or `false`",
                ParamKind::String => "a string",
            };
            cx.error(value, format!("the default of this parameter is {wanted}"));
            None
        }
    }
}

/// The hash of a string parameter, as the kernel table defines it.
pub fn hash_str(s: &str) -> u64 {
    s.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The first paragraph of the doc comment, on one line.
pub fn summary(attrs: &[syn::Attribute]) -> String {
    let mut lines = Vec::new();
    for attr in attrs.iter().filter(|a| a.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attr.meta else { continue };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value else { continue };
        lines.extend(text.value().lines().map(|l| l.trim().to_string()).collect::<Vec<_>>());
        if text.value().is_empty() {
            lines.push(String::new());
        }
    }
    let paragraph: Vec<String> =
        lines.into_iter().skip_while(String::is_empty).take_while(|line| !line.is_empty()).collect();
    paragraph.join(" ")
}

/// Where a signature's results stand, for errors about them.
pub fn output_span(original: &ItemFn) -> Span {
    match &original.sig.output {
        ReturnType::Default => original.sig.ident.span(),
        ReturnType::Type(_, ty) => ty.span(),
    }
}
