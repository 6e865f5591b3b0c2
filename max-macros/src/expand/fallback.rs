//! What stands in for a kernel whose signature cannot be read, so that the author sees that error and no other.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use super::names::Names;

/// An item of the same name that every use of the kernel accepts.
///
/// ```text
/// fn add(_: impl Sized, _: impl Sized) -> ! { unreachable!() }
/// enum add {}
/// impl ::max::kernel::Kernel for add { .. }
/// ```
pub fn fallback(names: &Names, original: &ItemFn) -> TokenStream {
    let (vis, name) = (&original.vis, &original.sig.ident);
    if original.sig.receiver().is_some() {
        // A method: its callers see the signature that the author wrote.
        let mut sig = original.sig.clone();
        for arg in &mut sig.inputs {
            if let syn::FnArg::Typed(arg) = arg {
                arg.attrs.clear();
            }
        }
        return quote!(#[allow(unused)] #vis #sig { ::core::unreachable!() });
    }
    let kernel = names.kernel(proc_macro2::Span::call_site());
    let any = quote!(impl ::core::marker::Sized);
    let args = original.sig.inputs.iter().map(|_| &any);
    quote! {
        #[doc(hidden)]
        #[allow(dead_code, missing_docs, clippy::all)]
        #vis fn #name(_: #any, #(_: #args),*) -> ! { ::core::unreachable!() }
        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, missing_docs)]
        #vis enum #name {}
        impl #kernel::Kernel for #name {
            fn def() -> &'static #kernel::abi::KernelDef { ::core::unreachable!() }
        }
    }
}
