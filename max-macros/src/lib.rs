//! The macros of the crate `max`: the attribute `#[kernel]`, and for models `#[derive(Module)]` and `#[functional]`.
//!
//! A kernel goes through these steps, each a file or folder:
//!
//! 1. `signature::attr`: the attribute's arguments become typed values.
//! 2. `signature::ast` and `signature::types`: the signature becomes a typed tree that keeps the author's tokens.
//! 3. `signature::check`: rules across several parts of the signature.
//! 4. `body`: the body becomes a tree of the language's constructs; what the language lacks is reported.
//! 5. `grid`: the grid follows from where the kernel writes, and so does the part of each operand that a program
//!    touches.
//! 6. `layout_variants`: forms of the same body for operands that lie otherwise in memory.
//! 7. `expand`: everything is printed. The body is printed once, generic over a hidden target (`lang::Target`). Its forms
//!    are instances: one for each dtype and CPU level, the reference form, and the recorder of the tile IR. The kernel
//!    table (the kernel ABI) lists them.
//!
//! Errors are collected (`ctxt`) and reported together; steps 1 to 6 alone report any. Every token that stems from the
//! author is printed with the author's span. So rustc's own errors, and the lines in recorded IR, are the author's.
//! Nothing here panics, whatever the input.

#![deny(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::unimplemented,
    clippy::todo,
    clippy::indexing_slicing
)]

mod body;
mod ctxt;
mod dtype;
mod expand;
mod functional;
mod grid;
mod layout_variants;
mod level;
mod methods;
mod module;
mod signature;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use crate::body::{BodyInput, LocalKind};
use crate::ctxt::Ctxt;
use crate::expand::{Kernel, Names};
use crate::grid::Grid;
use crate::signature::ast::{Kind, Signature};
use crate::signature::attr::KernelAttr;
use crate::signature::types::Ty;

// The examples are tested where the runtime is: in max-core, which re-exports the attribute.
/// Makes a struct, or an enum of structs, a module: a component of a model whose tensors and parts have names.
///
/// Every field is visited by its name, as PyTorch names them: a `Tensor` is a parameter, a module a part, a `Vec` of either
/// numbers them, an `Option` may be absent, and plain numbers, strings and dtypes are shown when the module is printed.
/// `#[module(buffer)]` makes a tensor a buffer, `#[module(name = "..")]` renames a field, `#[module(skip)]` leaves one out.
/// A variant of an enum that holds one module is that module.
#[proc_macro_derive(Module, attributes(module))]
pub fn module(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(item as syn::DeriveInput);
    module::derive(&input).into()
}

/// Makes all ops of a function's body one region: they compile and run as one graph when the function returns.
///
/// The function returns a `Result` of tensors: one, an array, a `Vec`, a tuple or an `Option` of them.
#[proc_macro_attribute]
pub fn functional(attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    functional::expand(attr.into(), item.into()).into()
}

#[cfg_attr(not(doctest), doc = include_str!("kernel.md"))]
#[proc_macro_attribute]
pub fn kernel(attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    kernel_tokens(attr.into(), item.into()).into()
}

/// Attribute and item in, items out.
fn kernel_tokens(attr: TokenStream, item: TokenStream) -> TokenStream {
    let original: ItemFn = match syn::parse2(item.clone()) {
        Ok(original) => original,
        Err(error) => {
            // Of a function that does not parse, rustc's own message is better than ours: give the item back to it.
            let error = match syn::parse2::<syn::Item>(item.clone()) {
                Ok(other) => syn::Error::new_spanned(other, "`#[kernel]` makes a function a kernel: put it on a `fn`"),
                Err(_) => error,
            };
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let cx = Ctxt::default();
    let attr = KernelAttr::parse(&cx, attr);
    let names = Names::new(attr.krate.as_ref());
    let sig = Signature::parse(&cx, attr, &original);
    // Rules across parts hold only where all of them could be read.
    if !cx.failed() {
        signature::check::check(&cx, &sig);
    }
    let readable = !cx.failed();
    let input = BodyInput {
        name: sig.name(),
        args: sig.args.iter().enumerate().map(|(i, arg)| (&arg.name, local_kind(i, arg))).collect(),
        unread: &sig.unread,
        lane: sig.is_lane(),
        in_module: sig.kind != Kind::Helper,
    };
    let (locals, body) = body::parse(&cx, &sig.types, &input, &original.block);
    let grid = match sig.kind {
        Kind::Program if !cx.failed() => grid::infer(&cx, &sig, &body),
        Kind::Program | Kind::Elementwise | Kind::Helper => Grid::default(),
    };
    let body = (!cx.failed()).then_some(&body);
    let items = if readable {
        let kernel = Kernel { sig: &sig, body, locals: &locals, grid: &grid };
        let forms = if cx.failed() { Vec::new() } else { layout_variants::forms(&cx, &kernel) };
        expand::expand(&kernel, &forms)
    } else {
        expand::fallback(&names, &original)
    };
    let errors = cx.finish().map(|error| error.to_compile_error());
    quote!(#errors #items)
}

fn local_kind(index: usize, arg: &signature::ast::Arg) -> LocalKind {
    match &arg.ty {
        Ty::Tensor { optional: true, .. } => LocalKind::Optional(index),
        Ty::Tensor { .. } => LocalKind::Tensor(index),
        Ty::ScalarMut(_) => LocalKind::InOut,
        Ty::Str(_) => LocalKind::Str,
        Ty::Scalar(_) | Ty::Tile { .. } | Ty::Tuple(..) | Ty::Infer(_) if arg.mutable => LocalKind::Var,
        Ty::Scalar(_) | Ty::Tile { .. } | Ty::Tuple(..) | Ty::Infer(_) => LocalKind::Value,
    }
}
