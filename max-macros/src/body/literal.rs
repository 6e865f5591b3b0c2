//! Numbers known when the kernel is compiled, and the expressions of numbers alone, which Rust itself computes.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{LitFloat, LitInt};

use crate::ctxt::Ctxt;
use crate::dtype::Dtype;

/// What a literal expression is made of, in ascending order of what decides its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LiteralClass {
    /// Integer literals.
    Int,
    /// A float literal.
    Float,
    /// A constant of the author's.
    Const,
}

/// An expression of literals and constants, which Rust computes.
#[derive(Clone)]
pub struct Literal {
    /// What it is made of.
    pub class: LiteralClass,
    /// The Rust expression, of type `i128`, `f64` or the constant's.
    pub tokens: TokenStream,
    /// The dtype of a suffix.
    pub dtype: Option<&'static Dtype>,
    /// Where it stands.
    pub span: Span,
}

impl Literal {
    /// An integer literal. A float suffix makes it a float.
    pub fn int(cx: &Ctxt, lit: &LitInt) -> Option<Literal> {
        let span = lit.span();
        let dtype = suffix(cx, lit.suffix(), span)?;
        let digits = lit.base10_digits();
        if dtype.is_some_and(Dtype::is_float) {
            let tokens = LitFloat::new(&format!("{digits}.0"), span).into_token_stream();
            return Some(Literal { class: LiteralClass::Float, tokens, dtype, span });
        }
        let Ok(value) = digits.parse::<i128>() else {
            cx.error(lit, "this literal is larger than any integer of kernels");
            return None;
        };
        if let Some(dtype) = dtype {
            let bits = if dtype.class == crate::dtype::Class::Signed { dtype.bits - 1 } else { dtype.bits };
            // One more than the maximum, since a minus sign may stand before it.
            if value > 1_i128 << bits {
                cx.error(lit, format!("this literal does not fit in {}", dtype.name));
                return None;
            }
        }
        Some(Literal { class: LiteralClass::Int, tokens: LitInt::new(digits, span).into_token_stream(), dtype, span })
    }

    /// A float literal.
    pub fn float(cx: &Ctxt, lit: &LitFloat) -> Option<Literal> {
        let span = lit.span();
        let dtype = suffix(cx, lit.suffix(), span)?;
        let digits = lit.base10_digits();
        let text = if digits.contains(['.', 'e', 'E']) { digits.to_string() } else { format!("{digits}.0") };
        Some(Literal {
            class: LiteralClass::Float,
            tokens: LitFloat::new(&text, span).into_token_stream(),
            dtype,
            span,
        })
    }

    /// A constant of the author's.
    pub fn constant(path: &syn::Path, span: Span) -> Literal {
        Literal { class: LiteralClass::Const, tokens: path.to_token_stream(), dtype: None, span }
    }

    /// `-self`
    pub fn negated(self, span: Span) -> Literal {
        let tokens = self.tokens;
        Literal { tokens: quote_spanned!(span=> (-#tokens)), ..self }
    }

    /// `self op other`, or `None` if their suffixes differ, which rustc reports better.
    pub fn combine(&self, op: &TokenStream, other: &Literal, span: Span) -> Option<Literal> {
        if self.dtype.is_some() && other.dtype.is_some() && self.dtype != other.dtype {
            return None;
        }
        let (left, right) = (&self.tokens, &other.tokens);
        Some(Literal {
            class: self.class.max(other.class),
            tokens: quote_spanned!(span=> (#left #op #right)),
            dtype: self.dtype.or(other.dtype),
            span: self.span,
        })
    }

    /// The same number where the author used its name.
    pub fn at(&self, span: Span) -> Literal {
        Literal { span, ..self.clone() }
    }
}

/// The dtype of a suffix; `None` inside for no suffix, `None` outside after an error.
fn suffix(cx: &Ctxt, suffix: &str, span: Span) -> Option<Option<&'static Dtype>> {
    if suffix.is_empty() {
        return Some(None);
    }
    match Dtype::find(suffix) {
        Some(dtype) if dtype.is_primitive() => Some(Some(dtype)),
        _ => {
            let hint = match suffix {
                "usize" | "isize" => "sizes and indices in kernels are `i64`",
                _ => "write a dtype, such as `2.0_f32` or `2_i64`",
            };
            cx.error_at(span, format!("kernels have no `{suffix}`: {hint}"));
            None
        }
    }
}
