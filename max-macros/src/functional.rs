//! `#[functional]`: a function whose ops compile and run as one graph.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ItemFn, ReturnType};

/// The function with its body in `max::functional::functional(|| ..)`.
///
/// ```text
/// fn forward(&self, x: &Tensor) -> Result<Tensor> { ::max::functional::functional(|| -> Result<Tensor> { .. }) }
/// ```
pub fn expand(attr: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(_) => {
            let error = syn::Error::new(proc_macro2::Span::call_site(), "`#[functional]` goes on a `fn` with a body");
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let complaint = if !attr.is_empty() {
        Some(syn::Error::new_spanned(&attr, "`#[functional]` takes no arguments"))
    } else if let Some(token) = function.sig.asyncness {
        Some(syn::Error::new_spanned(token, "a region of ops cannot wait: make the function an ordinary one"))
    } else if let ReturnType::Default = function.sig.output {
        Some(syn::Error::new_spanned(
            &function.sig,
            "a region returns a `Result` of its tensors: write `-> Result<Tensor>`",
        ))
    } else {
        None
    };
    if let Some(error) = complaint {
        let error = error.to_compile_error();
        return quote!(#error #item);
    }
    let ItemFn { attrs, vis, sig, block, .. } = &function;
    let output = &sig.output;
    quote! {
        #(#attrs)*
        #vis #sig {
            ::max::functional::functional(|| #output #block)
        }
    }
}
