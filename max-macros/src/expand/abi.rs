//! Prints the kernel table's entry.

use std::collections::BTreeMap;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};

use super::names::Names;
use crate::dtype::{Bound, Class, Dtype};
use crate::grid::{Axis, Grid, PartDim, Size};
use crate::level::Level;
use crate::signature::ast::{Access, Kind, ParamKind, Signature, summary};
use crate::signature::attr::AtMost;
use crate::signature::types::{DtypeOf, DtypeUse, TensorKind, Ty};

/// ```text
/// pub static __DEF: KernelDef = KernelDef { name: Str::new("add"), .. };
/// ```
pub fn table(
    names: &Names,
    sig: &Signature,
    grid: &Grid,
    may_hold_tiles: bool,
    forms: &[(&str, TokenStream)],
) -> TokenStream {
    let name = sig.name();
    let span = name.span();
    let kernel = names.kernel(Span::call_site());
    let t = quote!(#kernel::abi);
    let op = sig.attr.op.as_ref().map(syn::LitStr::value).unwrap_or_default();
    let kind = match sig.kind {
        Kind::Program => quote!(Program),
        Kind::Elementwise | Kind::Helper => quote!(Elementwise),
    };
    let (doc, signature) = (summary(&sig.original.attrs), signature(sig));
    let line = quote_spanned!(span=> ::core::line!());
    let operands = operands(names, sig, grid);
    let generics = sig.types.generics.iter().map(|g| {
        let (name, codes) = (g.name.to_string(), g.dtypes.iter().map(|d| code(names, d)));
        let by_size = g.bound.0 == Bound::Any;
        quote!(#t::GenericDef { name: #t::Str::new(#name), dtypes: #t::List::new(&[#(#codes),*]), by_size: #by_size })
    });
    let params = params(names, sig, &t);
    let tile_names = sig.attr.tile.iter().map(|c| c.name.to_string().trim_start_matches('_').to_owned());
    let gpu = sig.attr.tile.iter().map(|c| c.value("gpu"));
    let gpu_tiles = sig.attr.gpu_tiles.iter().map(|tile| {
        let of = tile.dtypes.as_ref();
        let generic = of.and_then(|(name, _)| sig.types.generics.iter().position(|g| g.name == *name));
        let generic = generic.map_or(-1, |i| i as i32);
        let codes = of.iter().flat_map(|(_, dtypes)| dtypes).map(|(_, d)| code(names, d));
        let value = |(i, c): (usize, &crate::signature::attr::TileConst)| {
            tile.values.iter().rfind(|(constant, _)| *constant == i).map_or(c.value("gpu"), |(_, value)| *value)
        };
        let values = sig.attr.tile.iter().enumerate().map(value);
        let (sm, conditions) = (tile.sm, tile.conditions.iter().filter_map(|at_most| condition(&t, sig, at_most)));
        quote! {
            #t::GpuTile {
                sm: #sm, generic: #generic, dtypes: #t::List::new(&[#(#codes),*]), conditions: #t::List::new(&[#(#conditions),*]),
                tile: #t::List::new(&[#(#values),*])
            }
        }
    });
    let variants = sig.attr.variants.iter().map(|variant| {
        let conditions = variant.conditions.iter().filter_map(|at_most| condition(&t, sig, at_most));
        quote!(#t::Variant { conditions: #t::List::new(&[#(#conditions),*]) })
    });
    let axes = grid.axes.iter().map(|axis| {
        let (operand, dim, tile, size) = match *axis {
            Axis::Fixed(n) => (-1_i32, 0_u32, -1_i32, n),
            Axis::Expression { first, count } => (-2_i32, first, -1_i32, u64::from(count)),
            Axis::Dim { operand, dim, by } => {
                let (tile, size) = divisor(by);
                (operand as i32, dim, tile, size)
            }
        };
        quote!(#t::GridAxis { operand: #operand, dim: #dim, tile: #tile, size: #size })
    });
    let terms = grid.terms.iter().map(|term| {
        let (op, index, value) = (Ident::new(term.op, Span::call_site()), term.index, term.value);
        quote!(#t::GridTerm { op: #t::GridOp::#op, index: #index, value: #value })
    });
    let nondeterministic = sig.attr.nondeterministic.is_some();
    let form = |name: &str| match forms.iter().find(|(form, _)| *form == name) {
        Some((_, def)) => quote!(::core::option::Option::Some(&#def)),
        None => quote!(::core::option::Option::None),
    };
    let (columns, transposed) = (form("columns"), form("transposed"));
    quote! {
        #[doc(hidden)]
        pub static __DEF: #t::KernelDef = #t::KernelDef {
            version: #t::TABLE_VERSION,
            kind: #t::KernelKind::#kind,
            name: #t::Str::new(#op),
            krate: #t::Str::new(::core::env!("CARGO_PKG_NAME")),
            file: #t::Str::new(::core::file!()),
            line: #line,
            doc: #t::Str::new(#doc),
            signature: #t::Str::new(#signature),
            optimized: ::core::cfg!(not(debug_assertions)),
            operands: #t::List::new(const { &[#(#operands),*] }),
            generics: #t::List::new(const { &[#(#generics),*] }),
            params: #t::List::new(const { &[#(#params),*] }),
            may_hold_tiles: #may_hold_tiles,
            tile_names: #t::List::new(const { &[#(#t::Str::new(#tile_names)),*] }),
            gpu_tile: #t::List::new(&[#(#gpu),*]),
            gpu_tiles: #t::List::new(const { &[#(#gpu_tiles),*] }),
            variants: #t::List::new(const { &[#(#variants),*] }),
            grid: #t::List::new(&[#(#axes),*]),
            grid_terms: #t::List::new(&[#(#terms),*]),
            nondeterministic: #nondeterministic,
            columns: #columns,
            transposed: #transposed,
            instances: #t::List::new(__INSTANCES),
            record: __record,
            reference: __reference,
            // SAFETY (of what is printed): all of it is made from one signature and body, which were checked.
            contract: unsafe { #t::Contract::upheld() },
        };
    }
}

fn code(names: &Names, dtype: &Dtype) -> TokenStream {
    let krate = names.krate(Span::call_site());
    let variant = Ident::new(dtype.variant, Span::call_site());
    quote!(#krate::dtype::DType::#variant as u8)
}

/// The size of a block as the table has it: the index of a tile constant, or -1 and a number.
fn divisor(size: Size) -> (i32, u64) {
    match size {
        Size::Fixed(n) => (-1, n),
        Size::Tile(tile) => (tile as i32, 1),
    }
}

fn operands(names: &Names, sig: &Signature, grid: &Grid) -> Vec<TokenStream> {
    let kernel = names.kernel(Span::call_site());
    let (t, krate) = (quote!(#kernel::abi), names.krate(Span::call_site()));
    let operand = |(i, o): (usize, crate::signature::ast::Operand)| {
        let name = o.name;
        let access = match o.access {
            Access::In => quote!(In),
            Access::Out => quote!(Out),
            Access::InOut => quote!(InOut),
        };
        let dtype = match o.dtype.of {
            DtypeOf::Generic(i) => {
                let i = i as i32;
                quote!(#t::DTypeRef::generic(#i))
            }
            DtypeOf::Fixed(dtype) => {
                let variant = Ident::new(dtype.variant, Span::call_site());
                quote!(#t::DTypeRef::fixed(#krate::dtype::DType::#variant))
            }
        };
        let rank = o.rank.map_or(-1, |r| r as i32);
        let written = grid.written.get(i).and_then(Option::as_ref);
        let zero_init = sig.kind == Kind::Program && o.access == Access::Out && written.is_none();
        let dims = |parts: Option<&Vec<PartDim>>| -> Vec<TokenStream> {
            let dim = |own: &PartDim| {
                let (axis, dim) = (own.axis.map_or(-1, |axis| axis as i32), own.dim);
                let (tile, size) = divisor(own.by);
                quote!(#t::PartDim { axis: #axis, dim: #dim, tile: #tile, size: #size })
            };
            parts.into_iter().flatten().map(dim).collect()
        };
        let (part, written) = (dims(grid.parts.get(i).and_then(Option::as_ref)), dims(written));
        quote! {
            #t::OperandDef {
                name: #t::Str::new(#name), access: #t::Access::#access, dtype: #dtype, rank: #rank, zero_init: #zero_init,
                written: #t::List::new(const { &[#(#written),*] }), part: #t::List::new(const { &[#(#part),*] })
            }
        }
    };
    sig.operands().into_iter().enumerate().map(operand).collect()
}

fn params(names: &Names, sig: &Signature, t: &TokenStream) -> Vec<TokenStream> {
    let param = |(_, arg, param): (usize, &crate::signature::ast::Arg, &crate::signature::ast::Param)| {
        let name = arg.name.to_string();
        let dtype = match &arg.ty {
            Ty::Scalar(DtypeUse { of: DtypeOf::Fixed(dtype), .. }) => code(names, dtype),
            _ => quote!(0),
        };
        let kind = match param.kind {
            ParamKind::Int => quote!(Int),
            ParamKind::Bool => quote!(Bool),
            ParamKind::Float => quote!(Float),
            ParamKind::String => quote!(String),
        };
        let has_default = param.default.is_some();
        let (bits, text) = param.default.clone().unwrap_or_default();
        let choices = param.choices.iter().map(syn::LitStr::value);
        quote! {
            #t::ParamDef {
                name: #t::Str::new(#name), kind: #t::ParamKind::#kind, dtype: #dtype, has_default: #has_default, default: #bits,
                default_text: #t::Str::new(#text), choices: #t::List::new(const { &[#(#t::Str::new(#choices)),*] })
            }
        }
    };
    // Whether an operand is there that may be absent.
    let given = |(_, arg): (usize, &crate::signature::ast::Arg)| {
        let (krate, name) = (names.krate(Span::call_site()), arg.name.to_string());
        quote! {
            #t::ParamDef {
                name: #t::Str::new(#name), kind: #t::ParamKind::Bool, dtype: #krate::dtype::DType::Bool as u8,
                has_default: true, default: 0, default_text: #t::Str::new("false"), choices: #t::List::new(&[])
            }
        }
    };
    sig.params().map(param).chain(sig.optional().map(given)).collect()
}

/// The compiled forms: every binding of the generics, at the levels that all of its dtypes have.
///
/// ```text
/// #[cfg(target_arch = "x86_64")]
/// const __INSTANCES: &[Instance] = &[Instance { level: Level::V4, dtypes: .., tile: .., run: __v4::__v4::<f32, 8> }];
/// ```
pub fn instances(names: &Names, sig: &Signature, compiled: bool, across: bool) -> TokenStream {
    let kernel = names.kernel(Span::call_site());
    let t = quote!(#kernel::abi);
    let bindings = if compiled { bindings(sig) } else { Vec::new() };
    let others = &sig.attr.variants;
    let instance = |level: Level, dtypes: &[&'static Dtype], number: usize, part: usize| {
        let across = across && super::across::has(level, dtypes);
        let name = if across { super::across::run_name(level) } else { super::run_name(level) };
        let module = super::module_name(level, part);
        let run = if level == Level::Portable { quote!(#name) } else { quote!(#module::#name) };
        let variant = Ident::new(level.name(), Span::call_site());
        let codes = dtypes.iter().map(|d| code(names, d));
        let types = dtypes.iter().map(|d| names.fixed(d, Span::call_site()));
        let other = number.checked_sub(1).and_then(|i| others.get(i)).map_or(&[][..], |variant| &variant.values);
        let value = |(i, c): (usize, &crate::signature::attr::TileConst)| {
            other.iter().find(|(constant, _)| *constant == i).map_or(c.value(level.attr_name()), |(_, value)| *value)
        };
        let tile: Vec<u64> = sig.attr.tile.iter().enumerate().map(value).collect();
        let number = number as u32;
        let sizes = tile.iter().map(|v| proc_macro2::Literal::u64_unsuffixed(*v));
        quote! {
            #t::Instance {
                level: #t::Level::#variant, dtypes: #t::List::new(&[#(#codes),*]), tile: #t::List::new(&[#(#tile),*]),
                variant: #number, run: #run::<#(#types,)* #(#sizes),*>
            }
        }
    };
    let mut before: BTreeMap<Level, usize> = BTreeMap::new();
    let x86 = bindings.iter().flat_map(|dtypes| {
        let of = levels(sig, dtypes);
        // Levels without AVX2 have one shape of tiles.
        let shapes = |level: &Level| if *level == Level::V2 { 0 } else { others.len() };
        let mut forms = Vec::new();
        for level in of {
            let before = before.entry(level).or_default();
            let part = *before / part_size(sig);
            *before += 1;
            forms.extend((0..=shapes(&level)).map(|v| instance(level, dtypes, v, part)));
        }
        forms
    });
    let portable = bindings.iter().map(|dtypes| instance(Level::Portable, dtypes, 0, 0));
    quote! {
        #[cfg(target_arch = "x86_64")]
        const __INSTANCES: &[#t::Instance] = &[#(#x86),*];
        #[cfg(not(target_arch = "x86_64"))]
        const __INSTANCES: &[#t::Instance] = &[#(#portable),*];
    }
}

/// A condition on a dimension of an operand; none that was found to be wrong before.
fn condition(abi: &TokenStream, sig: &Signature, AtMost { operand, dim, max }: &AtMost) -> Option<TokenStream> {
    let operand = sig.operands().iter().position(|o| *operand == o.name)? as u32;
    let (dim, max): (u32, u64) = (dim.base10_parse().ok()?, max.base10_parse().ok()?);
    Some(quote!(#abi::Condition { operand: #operand, dim: #dim, max: #max }))
}

/// Every combination of the generics' dtypes.
fn bindings(sig: &Signature) -> Vec<Vec<&'static Dtype>> {
    sig.types.generics.iter().fold(vec![Vec::new()], |all, generic| {
        let extend = |binding: &Vec<&'static Dtype>| {
            let binding = binding.clone();
            generic.dtypes.iter().map(move |d| binding.iter().copied().chain([*d]).collect()).collect::<Vec<_>>()
        };
        all.iter().flat_map(extend).collect()
    })
}

/// The x86-64 levels that a binding is compiled for: of those that all of its dtypes have, the ones that the build asks for.
/// Without generics, those of any operand. The highest one, too, have kernels with tiles of 8-bit floats, whose products are
/// several times as fast there, and those that move elements, whatever they index them by: it has masks.
fn levels(sig: &Signature, dtypes: &[&'static Dtype]) -> Vec<Level> {
    let moves = sig.types.generics.iter().any(|generic| generic.bound.0 == Bound::Any);
    let multiplies = |d: &Dtype| d.class == Class::Float8 && !sig.attr.tile.is_empty();
    let has = |level: &Level| {
        if dtypes.is_empty() {
            let operands = sig.operands();
            let mut fixed = operands.iter().filter_map(|o| match o.dtype.of {
                DtypeOf::Fixed(dtype) => Some(dtype),
                DtypeOf::Generic(_) => None,
            });
            return fixed.any(|d| d.levels.contains(level));
        }
        dtypes.iter().all(|d| d.levels.contains(level) || (*level == Level::V4 && (moves || multiplies(d))))
    };
    sig.levels.of(Level::X86.into_iter().filter(has).collect())
}

/// The x86-64 levels of any binding.
pub fn used_levels(sig: &Signature) -> Vec<Level> {
    let all: Vec<Level> = bindings(sig).iter().flat_map(|dtypes| levels(sig, dtypes)).collect();
    Level::X86.into_iter().filter(|level| all.contains(level)).collect()
}

/// The parts that a level's bindings are compiled in.
pub fn parts(sig: &Signature, level: Level) -> usize {
    let of_level = bindings(sig).iter().filter(|dtypes| levels(sig, dtypes).contains(&level)).count();
    of_level.div_ceil(part_size(sig))
}

/// The most bindings that are compiled together.
fn part_size(sig: &Signature) -> usize {
    match sig.kind {
        Kind::Program => 8,
        Kind::Elementwise | Kind::Helper => 64,
    }
}

/// The signature as it was written, on one line: `add<T: Number>(x: T, #[param] value: i64) -> T`.
pub fn signature(sig: &Signature) -> String {
    let generics: Vec<String> =
        sig.types.generics.iter().map(|g| format!("{}: {}", g.name, g.bound.0.name())).collect();
    let generics = if generics.is_empty() { String::new() } else { format!("<{}>", generics.join(", ")) };
    let args: Vec<String> = sig
        .args
        .iter()
        .map(|arg| {
            let param = match &arg.param {
                None => String::new(),
                Some(param) => {
                    let default = param.default.as_ref().map(|(_, text)| match param.kind {
                        ParamKind::String => format!("default = {text:?}"),
                        _ => format!("default = {text}"),
                    });
                    let choices: Vec<String> = param.choices.iter().map(|c| format!("{:?}", c.value())).collect();
                    let choices = (!choices.is_empty()).then(|| format!("choices({})", choices.join(", ")));
                    let items: Vec<String> = default.into_iter().chain(choices).collect();
                    if items.is_empty() { "#[param] ".to_string() } else { format!("#[param({})] ", items.join(", ")) }
                }
            };
            format!("{param}{}: {}", arg.name, spelled(&arg.ty))
        })
        .collect();
    let output = sig.output.as_ref().map_or_else(String::new, |ty| format!(" -> {}", spelled(ty)));
    format!("{}{generics}({}){output}", sig.name(), args.join(", "))
}

fn spelled(ty: &Ty) -> String {
    match ty {
        Ty::Scalar(dtype) => dtype.ident.to_string(),
        Ty::ScalarMut(dtype) => format!("&mut {}", dtype.ident),
        Ty::Tile { ident, dtype, sizes } => {
            let dtype = dtype.iter().map(|dtype| dtype.ident.to_string());
            format!("{ident}<{}>", dtype.chain(sizes.iter().map(ToString::to_string)).collect::<Vec<_>>().join(", "))
        }
        Ty::Tensor { kind, dtype, rank, optional, .. } => {
            let name = match kind {
                TensorKind::In => "In",
                TensorKind::Out => "Out",
                TensorKind::Buffer => "&mut Buffer",
            };
            let tensor = format!("{name}<{}, {rank}>", dtype.ident);
            if *optional { format!("Option<{tensor}>") } else { tensor }
        }
        Ty::Tuple(items, _) => format!("({})", items.iter().map(spelled).collect::<Vec<_>>().join(", ")),
        Ty::Str(_) => "&str".to_string(),
        Ty::Infer(_) => "_".to_string(),
    }
}
