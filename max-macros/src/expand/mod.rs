//! Prints what a kernel expands to. Nothing here reports an error.

mod abi;
mod across;
mod body;
mod fallback;
mod names;

pub use self::fallback::fallback;
pub use self::names::Names;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Attribute;

use self::body::{Printer, hidden};
use self::names::{machine, machine_type};
use crate::body::{Block, Local};
use crate::grid::Grid;
use crate::level::{Level, VARIABLE};
use crate::signature::ast::{Access, Kind, ParamKind, Signature};
use crate::signature::types::{TensorKind, Ty};

/// A kernel, ready to be printed.
pub struct Kernel<'a> {
    /// Its signature.
    pub sig: &'a Signature<'a>,
    /// Its body, or `None` after an error in it.
    pub body: Option<&'a Block>,
    /// Its arguments, as the body refers to them.
    pub locals: &'a [Local],
    /// Its grid.
    pub grid: &'a Grid,
}

/// A kernel for operands that lie otherwise, printed.
pub struct Form {
    /// The field of the kernel table that points at its own table.
    pub name: &'static str,
    /// What [`items`] made.
    pub items: TokenStream,
}

/// Prints everything.
pub fn expand(kernel: &Kernel, forms: &[Form]) -> TokenStream {
    let names = Names::new(kernel.sig.attr.krate.as_ref());
    match kernel.sig.kind {
        Kind::Helper => helper(&names, kernel),
        Kind::Elementwise | Kind::Program => op(&names, kernel, forms),
    }
}

/// Lints that the printed form would trip, although the author's code is fine.
fn allow() -> TokenStream {
    quote! {
        #[allow(
            clippy::all, clippy::pedantic, unused_parens, unused_braces, unused_labels, unused_must_use, non_snake_case,
            unreachable_pub
        )]
    }
}

/// ```text
/// #[inline(always)]
/// pub fn gelu<Machine: lang::Target, T: lang::Float>(
///     OnlyForKernelFunctions(__m): lang::OnlyForKernelFunctions<Machine>, x: lang::Val<Machine, T>
/// ) -> lang::Val<Machine, T> { .. }
/// ```
fn helper(names: &Names, kernel: &Kernel) -> TokenStream {
    let attrs = attributes(&kernel.sig.original.attrs, &["doc", "deprecated", "must_use", "cfg"]);
    let (vis, allow) = (&kernel.sig.original.vis, allow());
    let function = function(names, kernel, vis);
    quote!(#(#attrs)* #allow #function)
}

/// ```text
/// pub use __kernel_add::add;
/// mod __kernel_add {
///     use super::*;
///     pub enum add {}
///     impl ::max::kernel::Kernel for add { .. }
///     pub fn add<Machine: lang::Target, T: lang::Number>(OnlyForKernelFunctions(__m): .., ..) { .. }
///     fn __call<..>(__m: Machine) { .. }
///     mod __v4 { unsafe extern "C" fn __v4<T>(..) { .. } }      // and __v3, __v2, or __portable
///     unsafe extern "C" fn __record(..) { .. }
///     unsafe extern "C" fn __reference(..) { .. }
///     const __INSTANCES: &[Instance] = &[..];
///     pub static __DEF: KernelDef = KernelDef { .. };
///     ::max::kernel::inventory::submit! { ::max::kernel::Registration(&__DEF) }
/// }
/// ```
/// The module makes the kernel a codegen unit of its own.
fn op(names: &Names, kernel: &Kernel, forms: &[Form]) -> TokenStream {
    let sig = kernel.sig;
    let (vis, name) = (&sig.original.vis, sig.name());
    let module = format_ident!("__kernel_{}", name, span = Span::call_site());
    let cfg: Vec<_> = attributes(&sig.original.attrs, &["cfg"]);
    let docs = attributes(&sig.original.attrs, &["doc", "deprecated"]);
    let path = names.kernel(Span::call_site());
    let form_module = |form: &Form| format_ident!("__{}_of_{}", form.name, name, span = Span::call_site());
    let tables: Vec<_> = forms
        .iter()
        .map(|form| {
            let module = form_module(form);
            (form.name, quote!(super::#module::__DEF))
        })
        .collect();
    let items = items(names, kernel, &tables);
    let forms = forms.iter().map(|form| hidden_module(&cfg, &form_module(form), &form.items));
    let own = hidden_module(
        &cfg,
        &module,
        &quote! {
            #(#docs)*
            pub enum #name {}
            impl #path::Kernel for #name {
                fn def() -> &'static #path::abi::KernelDef {
                    &__DEF
                }
            }
            #items
            // rustc notes that this build depends on the variable.
            const _: ::core::option::Option<&str> = ::core::option_env!(#VARIABLE);
            #path::inventory::submit! { #path::Registration(&__DEF) }
        },
    );
    // A kernel that is linked, and found by its op, need not be named.
    quote! {
        #(#cfg)*
        #[allow(unused_imports)]
        #vis use #module::#name;
        #own
        #(#forms)*
    }
}

/// A module beside the author's function, which sees what that sees: for some kernels nothing that they use.
fn hidden_module(cfg: &[&Attribute], name: &Ident, items: &TokenStream) -> TokenStream {
    quote! {
        #(#cfg)*
        #[doc(hidden)]
        #[allow(non_camel_case_types, non_snake_case, dead_code)]
        mod #name {
            #[allow(unused_imports)]
            use super::*;
            #items
        }
    }
}

/// The function, its instances, and the table of them; `forms` are the tables of other forms, by the names of their fields.
pub fn items(names: &Names, kernel: &Kernel, forms: &[(&str, TokenStream)]) -> TokenStream {
    let (sig, allow) = (kernel.sig, allow());
    // A program's body writes where the grid of its own kernel says: no other kernel calls it.
    let visible = match sig.kind {
        Kind::Program => syn::Visibility::Inherited,
        Kind::Elementwise | Kind::Helper => syn::parse_quote!(pub),
    };
    let body = function(names, kernel, &visible);
    let call = match sig.kind {
        Kind::Program => call_program(names, sig),
        Kind::Elementwise | Kind::Helper => call_elements(names, sig),
    };
    // What is printed is printed in order, one element at a time: in the reference form, without compiled ones.
    let compiled = !kernel.body.is_some_and(Block::prints);
    let across = across::rows(kernel);
    let entries = entries(names, sig, compiled, across.as_ref());
    let instances = abi::instances(names, sig, compiled, across.is_some());
    let may_hold_tiles = kernel.body.is_some_and(Block::may_hold_tiles);
    let table = abi::table(names, sig, kernel.grid, may_hold_tiles, forms);
    quote! {
        #[doc(hidden)]
        #allow
        #body
        #call
        #entries
        #instances
        #table
    }
}

/// The attributes of those names.
fn attributes<'a>(attrs: &'a [Attribute], names: &[&str]) -> Vec<&'a Attribute> {
    attrs.iter().filter(|a| names.iter().any(|n| a.path().is_ident(n))).collect()
}

/// The one function that all forms instantiate.
fn function(names: &Names, kernel: &Kernel, vis: &syn::Visibility) -> TokenStream {
    let sig = kernel.sig;
    let name = sig.name();
    let span = name.span();
    let (lang, m, mt) = (names.lang(span), machine(span), machine_type(span));
    let lints = attributes(&sig.original.attrs, &["allow", "expect", "warn", "deny", "forbid"]);
    let generics = generics(names, sig);
    let args = sig.args.iter().map(|arg| {
        let (name, ty) = (&arg.name, names.ty(&arg.ty));
        quote_spanned!(name.span()=> #name: #ty)
    });
    let output = output(names, sig);
    let unread = kernel.body.is_none().then(|| quote!(#[allow(unused)]));
    let body = match kernel.body {
        Some(body) => function_body(names, kernel, body),
        None => quote!(::core::unreachable!()),
    };
    quote! {
        #(#lints)*
        #unread
        #[inline(always)]
        #vis fn #name<#mt: #lang::Target, #generics>(
            #lang::OnlyForKernelFunctions(#m): #lang::OnlyForKernelFunctions<#mt>, #(#args),*
        ) #output {
            #[allow(unused_imports)]
            use #lang::{
                BoolLanes as _, ColumnLanes as _, FloatColumns as _, FloatLanes as _, Lanes as _, NumberColumns as _,
                NumberLanes as _,
            };
            #body
        }
    }
}

/// The kernel's own generics, with their bounds.
fn generics(names: &Names, sig: &Signature) -> TokenStream {
    let dtypes = sig.types.generics.iter().map(|g| {
        let (name, (bound, ident)) = (&g.name, &g.bound);
        let (lang, bound) = (names.lang(ident.span()), Ident::new(bound.name(), ident.span()));
        quote_spanned!(name.span()=> #name: #lang::#bound)
    });
    let tiles = sig.attr.tile.iter().map(|c| {
        let name = &c.name;
        quote_spanned!(name.span()=> const #name: ::core::primitive::usize)
    });
    let consts = &sig.const_params;
    quote!(#(#dtypes,)* #(#tiles,)* #(#consts,)*)
}

/// The return type: of an elementwise kernel, the elements updated in place come first.
fn output(names: &Names, sig: &Signature) -> Option<TokenStream> {
    let in_place: Vec<&Ty> = in_place(sig).map(|(_, ty)| ty).collect();
    if in_place.is_empty() {
        let ty = names.ty(sig.output.as_ref()?);
        return Some(quote!(-> #ty));
    }
    let all: Vec<TokenStream> = in_place.into_iter().chain(sig.results()).map(|ty| names.ty(ty)).collect();
    Some(match &all[..] {
        [one] => quote!(-> #one),
        all => quote!(-> (#(#all),*)),
    })
}

/// The `&mut T` arguments.
fn in_place<'a>(sig: &'a Signature) -> impl Iterator<Item = (&'a Ident, &'a Ty)> {
    sig.args.iter().filter(|a| matches!(a.ty, Ty::ScalarMut(_))).map(|a| (&a.name, &a.ty))
}

fn function_body(names: &Names, kernel: &Kernel, body: &Block) -> TokenStream {
    let sig = kernel.sig;
    let unordered = sig.attr.nondeterministic.is_some();
    let printer = Printer { names, generics: &sig.types.generics, unordered };
    let vars = sig
        .args
        .iter()
        .zip(kernel.locals)
        .filter(|(arg, _)| arg.mutable || matches!(arg.ty, Ty::ScalarMut(_)))
        .map(|(_, local)| printer.shadow(&local.ident));
    let vars: TokenStream = vars.collect();
    let block = printer.block(body);
    let updated: Vec<TokenStream> = in_place(sig).map(|(name, _)| quote_spanned!(name.span()=> #name.get())).collect();
    if updated.is_empty() {
        // Parameters that a grid takes are used, whatever the body does.
        let of_grid = kernel.grid.terms.iter().filter(|term| term.op == "Param");
        let names = of_grid.filter_map(|term| sig.params().nth(term.index as usize)).map(|(_, arg, _)| &arg.name);
        return quote!(#(let _ = #names;)* #vars #block);
    }
    let results: Vec<Ident> =
        (0..sig.results().len()).map(|i| hidden(&format!("__out{i}"), Span::call_site())).collect();
    match (&results[..], &updated[..]) {
        ([], [one]) => quote!(#vars { #block } #one),
        ([], all) => quote!(#vars { #block } (#(#all),*)),
        ([out], all) => quote!(#vars let #out = { #block }; (#(#all,)* #out)),
        (outs, all) => quote!(#vars let (#(#outs),*) = { #block }; (#(#all,)* #(#outs),*)),
    }
}

/// The arguments of the generic lists: `T, BM`.
fn generic_args(sig: &Signature) -> TokenStream {
    let dtypes = sig.types.generics.iter().map(|g| &g.name);
    let tiles = sig.attr.tile.iter().map(|c| &c.name);
    quote!(#(#dtypes,)* #(#tiles,)*)
}

/// Parameter `index`, read from the launch's arguments.
fn param(names: &Names, sig: &Signature, arg: usize) -> Option<TokenStream> {
    let index = sig.params().position(|(i, ..)| i == arg)? as u32;
    let (_, arg, param) = sig.params().find(|(i, ..)| *i == arg)?;
    let span = arg.name.span();
    let (lang, m, mt) = (names.lang(span), machine(span), machine_type(span));
    let dtype = match &arg.ty {
        Ty::Scalar(dtype) => names.dtype(dtype),
        _ => TokenStream::new(),
    };
    let index = quote_spanned!(span=> #index);
    Some(match param.kind {
        ParamKind::Int => quote_spanned!(span=> #lang::param_int::<#mt, #dtype>(#m, #index)),
        ParamKind::Float => quote_spanned!(span=> #lang::param_float::<#mt, #dtype>(#m, #index)),
        ParamKind::Bool => quote_spanned!(span=> #lang::param_bool::<#mt>(#m, #index)),
        ParamKind::String => quote_spanned!(span=> #lang::param_str::<#mt>(#m, #index)),
    })
    // SAFETY (of what is printed): the parameter of that index is the argument, as the table says.
    .map(|value| quote!(unsafe { #value }))
}

/// ```text
/// fn __program<Machine: lang::Target, T: lang::Float>(__m: Machine) -> impl Fn(Machine) {
///     let (__a0, __a1) = (unsafe { lang::Out::operand(__m, 0) }, unsafe { lang::In::operand(__m, 1) });
///     lang::program(move |__m| softmax::<Machine, T>(lang::OnlyForKernelFunctions(__m), __a0, __a1))
/// }
/// fn __call<Machine: lang::Target, T: lang::Float>(__m: Machine) {
///     __program::<Machine, T>(__m)(__m)
/// }
/// ```
/// The arguments are read before the loop over programs: what follows from them alone is loop-invariant then, which the
/// optimizer cannot know of what a store to an output might change.
fn call_program(names: &Names, sig: &Signature) -> TokenStream {
    let name = sig.name();
    let span = Span::call_site();
    let (lang, m, mt) = (names.lang(span), machine(span), machine_type(span));
    let operands = sig.operands();
    let values = sig.args.iter().enumerate().map(|(i, arg)| {
        if arg.param.is_some() {
            return param(names, sig, i).unwrap_or_default();
        }
        let operand = operands.iter().position(|o| o.arg == Some(i)).unwrap_or(0) as u32;
        match &arg.ty {
            // SAFETY (of what is printed): the operand of that index has the type of the argument, as the table says; so has
            // the parameter that tells whether it is there, behind those of the author's.
            Ty::Tensor { optional: true, .. } => {
                let given = sig.optional().position(|(at, _)| at == i).unwrap_or(0) + sig.params().count();
                let given = given as u32;
                quote!(unsafe { #lang::Optional::operand(#m, #operand, #given) })
            }
            Ty::Tensor { kind: TensorKind::In, .. } => quote!(unsafe { #lang::In::operand(#m, #operand) }),
            Ty::Tensor { kind: TensorKind::Out, .. } => quote!(unsafe { #lang::Out::operand(#m, #operand) }),
            _ => quote!(unsafe { #lang::Buffer::operand(#m, #operand) }),
        }
    });
    let args: Vec<_> = (0..sig.args.len()).map(|i| format_ident!("__a{i}")).collect();
    let (generics, generic_args) = (generics(names, sig), generic_args(sig));
    quote! {
        #[inline(always)]
        fn __program<#mt: #lang::Target, #generics>(#m: #mt) -> impl Fn(#mt) {
            #(let #args = #values;)*
            #lang::program(#[inline(always)] move |#m: #mt| {
                #name::<#mt, #generic_args>(#lang::OnlyForKernelFunctions(#m), #(#args),*)
            })
        }
        #[inline(always)]
        fn __call<#mt: #lang::Target, #generics>(#m: #mt) {
            __program::<#mt, #generic_args>(#m)(#m)
        }
    }
}

/// ```text
/// fn __call<Machine: lang::Target, T: lang::Number>(__m: Machine) {
///     let __p1 = unsafe { lang::param_int::<Machine, i64>(__m, 0) };
///     lang::elementwise(
///         __m,
///         (unsafe { lang::elem_out::<Machine, T>(__m, 1) },),
///         lang::Map::new::<Machine, _>(
///             (unsafe { lang::elem_in::<Machine, T>(__m, 0) },), move |(__e0,)| (add::<Machine, T>(.., __e0, __p1),),
///         ),
///     )
/// }
/// ```
fn call_elements(names: &Names, sig: &Signature) -> TokenStream {
    let name = sig.name();
    let span = Span::call_site();
    let (lang, m, mt) = (names.lang(span), machine(span), machine_type(span));
    let operands = sig.operands();
    let read = operands.iter().enumerate().filter(|(_, o)| o.access != Access::Out);
    let (mut ins, mut elements) = (Vec::new(), Vec::new());
    for (i, operand) in read {
        let (i, dtype) = (i as u32, names.dtype(operand.dtype));
        // SAFETY (of what is printed): the operand of that index has this dtype, as the table says.
        ins.push(quote!(unsafe { #lang::elem_in::<#mt, #dtype>(#m, #i) }));
        elements.push(element(operand.arg.unwrap_or(0)));
    }
    let element_out = |(i, o): (usize, &crate::signature::ast::Operand)| {
        let (i, dtype) = (i as u32, names.dtype(o.dtype));
        quote!(unsafe { #lang::elem_out::<#mt, #dtype>(#m, #i) })
    };
    // As the function returns them: updated elements, then results; in the order of the operands, since results are last.
    let written = |access| operands.iter().enumerate().filter(move |(_, o)| o.access == access);
    let outs: Vec<_> = written(Access::InOut).chain(written(Access::Out)).map(element_out).collect();
    let params: TokenStream = sig
        .params()
        .filter_map(|(i, ..)| {
            let (name, value) = (format_ident!("__p{i}"), param(names, sig, i)?);
            Some(quote!(let #name = #value;))
        })
        .collect();
    let args = sig.args.iter().enumerate().map(|(i, arg)| match arg.param {
        Some(_) => format_ident!("__p{i}"),
        None => element(i),
    });
    let (generics, generic_args) = (generics(names, sig), generic_args(sig));
    let mut value = quote!(#name::<#mt, #generic_args>(#lang::OnlyForKernelFunctions(#m), #(#args),*));
    if outs.len() == 1 {
        value = quote!((#value,));
    }
    let pattern = match &elements[..] {
        [] => quote!(()),
        all => quote!((#(#all,)*)),
    };
    quote! {
        #[inline(always)]
        fn __call<#mt: #lang::Target, #generics>(#m: #mt) {
            #params
            #lang::elementwise(
                #m,
                (#(#outs,)*),
                #lang::Map::new::<#mt, _>((#(#ins,)*), #[inline(always)] move |#pattern| #value),
            )
        }
    }
}

fn element(arg: usize) -> Ident {
    format_ident!("__e{arg}")
}

/// The name of a level's entry.
fn run_name(level: Level) -> Ident {
    format_ident!("__{}", level.attr_name())
}

/// The module that holds a part of a level's forms.
fn module_name(level: Level, part: usize) -> Ident {
    if part == 0 { run_name(level) } else { format_ident!("__{}_{part}", level.attr_name()) }
}

/// The functions that the kernel table points at.
fn entries(names: &Names, sig: &Signature, compiled: bool, across: Option<&across::Rows>) -> TokenStream {
    let span = Span::call_site();
    let kernel = names.kernel(span);
    let lang = names.lang(span);
    let (generics, generic_args) = (generics(names, sig), generic_args(sig));
    let (run, inferred, body) = match sig.kind {
        Kind::Program => (quote!(run_programs), quote!(, _), quote!(__program)),
        Kind::Elementwise | Kind::Helper => (quote!(run_elements), quote!(), quote!(__call)),
    };
    let entry = |level: Level| {
        let (name, variant) = (run_name(level), Ident::new(level.name(), span));
        quote! {
            pub unsafe extern "C" fn #name<#generics>(args: *const #kernel::abi::LaunchArgs, first: i64, last: i64) {
                // SAFETY: the caller keeps the promises of the table's function type, which are the same.
                unsafe {
                    #lang::#run::<#lang::#variant #inferred>(
                        args, first, last,
                        #[inline(always)] |m| #body::<#lang::Cpu<#lang::#variant>, #generic_args>(m),
                    )
                }
            }
        }
    };
    let used = if compiled { abi::used_levels(sig) } else { Vec::new() };
    let x86 = used.into_iter().flat_map(|level| {
        let (features, entry) = (level.features(), entry(level));
        let rows = across.filter(|_| across::LEVELS.contains(&level)).map(|rows| {
            let entry = across::entry(names, sig, level, rows);
            quote!(#[target_feature(enable = #features)] #entry)
        });
        // In a module of its own, each level is a unit of its own for the compiler, and each part of one with many forms:
        // a change of a large kernel takes half the time.
        let part = move |part: usize| {
            let module = module_name(level, part);
            quote! {
                #[cfg(target_arch = "x86_64")]
                mod #module {
                    use super::*;
                    #[target_feature(enable = #features)]
                    #entry
                    #rows
                }
            }
        };
        (0..abi::parts(sig, level)).map(part)
    });
    let portable = compiled.then(|| {
        let entry = entry(Level::Portable);
        quote!(#[cfg(not(target_arch = "x86_64"))] #entry)
    });
    let symbols = (0..sig.types.generics.len()).map(|i| quote!(#lang::Sym<#i>));
    let sizes = (0..sig.attr.tile.len()).map(|i| quote!({ #lang::sym_tile(#i) }));
    let symbolic: TokenStream = quote!(#(#symbols,)* #(#sizes,)*);
    let table = quote!(#kernel::abi);
    quote! {
        #(#x86)*
        #portable
        unsafe extern "C" fn __record(
            binding: *const #table::Binding,
            context: *mut ::core::ffi::c_void,
            sink: unsafe extern "C" fn(*mut ::core::ffi::c_void, *const u8, usize),
        ) {
            // SAFETY: the caller keeps the promises of the table's function type, which are the same.
            unsafe {
                #lang::record_kernel(&__DEF, binding, context, sink, || __call::<#lang::Record, #symbolic>(#lang::Record))
            }
        }
        unsafe extern "C" fn __reference(
            binding: *const #table::Binding,
            args: *const #table::LaunchArgs,
            first: i64,
            last: i64,
        ) {
            // SAFETY: the caller keeps the promises of the table's function type, which are the same.
            unsafe {
                #lang::run_reference(&__DEF, binding, args, first, last, |m| __call::<#lang::Reference, #symbolic>(m))
            }
        }
    }
}
