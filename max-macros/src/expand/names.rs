//! The names that expanded code uses, with spans that put rustc's messages on the author's line.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};

use crate::signature::types::{DtypeOf, DtypeUse, TensorKind, Ty};

/// Makes paths into the runtime.
pub struct Names {
    krate: TokenStream,
}

impl Names {
    /// `krate` is the path of the facade crate, if it is not `::max`.
    pub fn new(krate: Option<&syn::Path>) -> Names {
        Names { krate: krate.map_or_else(|| quote!(::max), ToTokens::to_token_stream) }
    }

    /// The facade crate.
    pub fn krate(&self, span: Span) -> TokenStream {
        respan(self.krate.clone(), span)
    }

    /// `::max::kernel`
    pub fn kernel(&self, span: Span) -> TokenStream {
        let krate = self.krate(span);
        quote_spanned!(span=> #krate::kernel)
    }

    /// `::max::kernel::__private`: the language and its targets
    pub fn lang(&self, span: Span) -> TokenStream {
        let krate = self.krate(span);
        quote_spanned!(span=> #krate::kernel::__private)
    }

    /// A dtype's Rust type.
    pub fn dtype(&self, dtype: &DtypeUse) -> TokenStream {
        let span = dtype.ident.span();
        match dtype.of {
            DtypeOf::Generic(_) => dtype.ident.to_token_stream(),
            DtypeOf::Fixed(known) => self.fixed(known, span),
        }
    }

    /// A fixed dtype's Rust type.
    pub fn fixed(&self, dtype: &crate::dtype::Dtype, span: Span) -> TokenStream {
        let name = Ident::new(if dtype.alias.is_empty() { dtype.name } else { dtype.alias }, span);
        if dtype.is_primitive() {
            return quote_spanned!(span=> ::core::primitive::#name);
        }
        let lang = self.lang(span);
        quote_spanned!(span=> #lang::dtypes::#name)
    }

    /// A type.
    pub fn ty(&self, ty: &Ty) -> TokenStream {
        match ty {
            Ty::Scalar(dtype) | Ty::ScalarMut(dtype) => {
                let span = dtype.ident.span();
                let (lang, m, dtype) = (self.lang(span), machine_type(span), self.dtype(dtype));
                quote_spanned!(span=> #lang::Val<#m, #dtype>)
            }
            Ty::Tile { ident, dtype, sizes } => {
                let span = ident.span();
                let (lang, m, dtype) = (self.lang(span), machine_type(span), dtype.as_ref().map(|d| self.dtype(d)));
                // What has no dtype has the closure that gives its rows.
                let dtype = dtype.unwrap_or_else(|| quote_spanned!(span=> _));
                quote_spanned!(span=> #lang::#ident<#m, #dtype, #(#sizes),*>)
            }
            Ty::Tensor { kind, ident, dtype, rank, optional } => {
                let span = ident.span();
                let name = match kind {
                    TensorKind::In if *optional => Ident::new("Optional", span),
                    TensorKind::In => Ident::new("In", span),
                    TensorKind::Out => Ident::new("Out", span),
                    TensorKind::Buffer => Ident::new("Buffer", span),
                };
                let (lang, m, dtype) = (self.lang(span), machine_type(span), self.dtype(dtype));
                quote_spanned!(span=> #lang::#name<#m, #dtype, #rank>)
            }
            Ty::Tuple(items, span) => {
                let items = items.iter().map(|t| self.ty(t));
                quote_spanned!(*span=> (#(#items,)*))
            }
            Ty::Str(span) => {
                let (lang, m) = (self.lang(*span), machine_type(*span));
                quote_spanned!(*span=> #lang::Str<#m>)
            }
            Ty::Infer(span) => quote_spanned!(*span=> _),
        }
    }
}

/// The type parameter that stands for the machine. Its name resolves where the attribute stands, also where the
/// author's tokens come out of a macro.
pub fn machine_type(span: Span) -> Ident {
    Ident::new("Machine", Span::call_site().located_at(span))
}

/// The argument that stands for the machine. No name of the author's is the same, whatever it is.
pub fn machine(span: Span) -> Ident {
    Ident::new("__m", Span::mixed_site().located_at(span))
}

/// `tokens`, all at `span`.
fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    let at = |tree: TokenTree| match tree {
        TokenTree::Group(group) => {
            let mut inner = Group::new(group.delimiter(), respan(group.stream(), span));
            inner.set_span(span);
            TokenTree::Group(inner)
        }
        mut tree => {
            // A `$crate` resolves where it came from; the rest is the author's, so that rustc does not take it for a
            // part of the attribute.
            let resolves = if tree.to_string() == "$crate" { tree.span().located_at(span) } else { span };
            tree.set_span(resolves);
            tree
        }
    };
    tokens.into_iter().map(at).collect()
}
