//! `#[derive(Module)]`: the members of a model component, by name.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Fields, GenericParam, Generics, LitStr, parse_quote};

use crate::ctxt::Ctxt;

/// What an attribute `#[module(..)]` says of a field.
#[derive(Default)]
struct FieldAttr {
    skip: bool,
    buffer: bool,
    name: Option<LitStr>,
}

/// A field that is visited: how it is bound, what it is called, and whether it is a buffer.
struct Visited<'a> {
    field: &'a syn::Field,
    binding: syn::Ident,
    name: String,
    buffer: bool,
}

impl FieldAttr {
    fn parse(cx: &Ctxt, field: &syn::Field) -> FieldAttr {
        let mut read = FieldAttr::default();
        for attr in field.attrs.iter().filter(|attr| attr.path().is_ident("module")) {
            cx.ok(attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    read.skip = true;
                } else if meta.path.is_ident("buffer") {
                    read.buffer = true;
                } else if meta.path.is_ident("name") {
                    read.name = Some(meta.value()?.parse()?);
                } else {
                    return Err(meta.error("write `skip`, `buffer` or `name = \"..\"`"));
                }
                Ok(())
            }));
        }
        if read.skip && (read.buffer || read.name.is_some()) {
            cx.error(field, "a field that is skipped has no name and is no buffer");
        }
        read
    }
}

/// The implementations of `Module` and `Field`, or the errors.
pub fn derive(input: &DeriveInput) -> TokenStream {
    let cx = Ctxt::default();
    let arms: Vec<(TokenStream, Vec<Visited>)> = match &input.data {
        Data::Struct(data) => vec![arm(&cx, quote!(Self), &data.fields)],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                arm(&cx, quote!(Self::#name), &variant.fields)
            })
            .collect(),
        Data::Union(_) => {
            cx.error(&input.ident, "a union cannot be a module: make it a struct or an enum");
            Vec::new()
        }
    };
    match cx.finish() {
        Some(error) => error.to_compile_error(),
        None => expand(input, &arms, matches!(input.data, Data::Enum(_))),
    }
}

/// The pattern that binds the fields of a struct or a variant, and those of them that are visited.
fn arm<'a>(cx: &Ctxt, path: TokenStream, fields: &'a Fields) -> (TokenStream, Vec<Visited<'a>>) {
    let mut visited = Vec::new();
    let mut patterns = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let attr = FieldAttr::parse(cx, field);
        let member = field.ident.clone().map_or_else(|| syn::Member::from(index), syn::Member::from);
        let binding = format_ident!("field_{index}");
        if attr.skip {
            continue;
        }
        patterns.push(quote!(#member: #binding));
        let own = field.ident.as_ref().map_or_else(
            || index.to_string(),
            |ident| {
                let ident = ident.to_string();
                ident.strip_prefix("r#").map_or(ident.clone(), str::to_owned)
            },
        );
        let name = attr.name.map_or(own, |name| name.value());
        visited.push(Visited { field, binding, name, buffer: attr.buffer });
    }
    (quote!(#path { #(#patterns,)* .. }), visited)
}

/// ```text
/// impl ::max::nn::Module for Linear {
///     fn type_name(&self) -> &'static str { "Linear" }
///     fn visit(&self, f: &mut dyn FnMut(&str, ::max::nn::Member<'_>)) {
///         match self { Self { weight: field_0, .. } => { ::max::nn::Field::visit(field_0, "weight", false, f); } }
///     }
///     ..
/// }
/// impl ::max::nn::Field for Linear { .. }
/// ```
fn expand(input: &DeriveInput, arms: &[(TokenStream, Vec<Visited>)], is_enum: bool) -> TokenStream {
    let (ident, nn) = (&input.ident, quote!(::max::nn));
    let generics = bounded(&input.generics, arms);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let calls = |visited: &[Visited], mutable: bool| -> TokenStream {
        let method = if mutable { format_ident!("visit_mut") } else { format_ident!("visit") };
        visited
            .iter()
            .map(|Visited { field, binding, name, buffer }| {
                // The variant of an enum is the module itself: its only field adds nothing to the name.
                let only = is_enum && visited.len() == 1 && field.ident.is_none();
                let name = if only { "" } else { name };
                quote_spanned!(field.ty.span()=> #nn::Field::#method(#binding, #name, #buffer, f);)
            })
            .collect()
    };
    let shared = arms.iter().map(|(pattern, visited)| {
        let calls = calls(visited, false);
        quote!(#pattern => { #calls })
    });
    let mutable = arms.iter().map(|(pattern, visited)| {
        let calls = calls(visited, true);
        quote!(#pattern => { #calls })
    });
    let name = ident.to_string();
    quote! {
        #[automatically_derived]
        #[allow(unused_variables, reason = "a module without members asks nothing")]
        impl #impl_generics #nn::Module for #ident #type_generics #where_clause {
            fn type_name(&self) -> &'static str {
                #name
            }

            fn visit(&self, f: &mut dyn ::core::ops::FnMut(&str, #nn::Member<'_>)) {
                match self { #(#shared)* }
            }

            fn visit_mut(&mut self, f: &mut dyn ::core::ops::FnMut(&str, #nn::MemberMut<'_>)) {
                match self { #(#mutable)* }
            }
        }

        #[automatically_derived]
        impl #impl_generics #nn::Field for #ident #type_generics #where_clause {
            fn visit(&self, name: &str, _: bool, f: &mut dyn ::core::ops::FnMut(&str, #nn::Member<'_>)) {
                f(name, #nn::Member::Module(self));
            }

            fn visit_mut(&mut self, name: &str, _: bool, f: &mut dyn ::core::ops::FnMut(&str, #nn::MemberMut<'_>)) {
                f(name, #nn::MemberMut::Module(self));
            }
        }
    }
}

/// The type's generics, with a bound for each field whose type names one of its parameters.
fn bounded(generics: &Generics, arms: &[(TokenStream, Vec<Visited>)]) -> Generics {
    let mut generics = generics.clone();
    let names: Vec<String> = generics
        .params
        .iter()
        .filter_map(|param| match param {
            GenericParam::Type(param) => Some(param.ident.to_string()),
            GenericParam::Lifetime(_) | GenericParam::Const(_) => None,
        })
        .collect();
    for param in &mut generics.params {
        if let GenericParam::Type(param) = param {
            param.bounds.push(parse_quote!('static));
            param.bounds.push(parse_quote!(::core::marker::Send));
            param.bounds.push(parse_quote!(::core::marker::Sync));
        }
    }
    for visited in arms.iter().flat_map(|(_, visited)| visited) {
        let ty = &visited.field.ty;
        let mentions = quote!(#ty).into_iter().any(|token| mentions(&token, &names));
        if mentions {
            generics.make_where_clause().predicates.push(parse_quote!(#ty: ::max::nn::Field));
        }
    }
    generics
}

fn mentions(token: &proc_macro2::TokenTree, names: &[String]) -> bool {
    match token {
        proc_macro2::TokenTree::Ident(ident) => names.iter().any(|name| ident == name),
        proc_macro2::TokenTree::Group(group) => group.stream().into_iter().any(|token| mentions(&token, names)),
        proc_macro2::TokenTree::Punct(_) | proc_macro2::TokenTree::Literal(_) => false,
    }
}
