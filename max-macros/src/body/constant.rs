//! Conditions of tile constants and integers alone, which are decided when a kernel is compiled for a CPU.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};

use super::Expr;
use super::literal::{Literal, LiteralClass};

/// A condition of which something is known where tile constants are.
pub enum Decided {
    /// The Rust expression of all of it.
    Whole(TokenStream),
    /// Of `a && b` that of the left side.
    Left(TokenStream),
}

impl Expr {
    /// What of a condition is known when the kernel is compiled.
    pub fn decided(&self) -> Option<Decided> {
        if let Some((tokens, _)) = self.constant().filter(|(_, names_tile)| *names_tile) {
            return Some(Decided::Whole(tokens));
        }
        match self {
            Expr::Paren(value, _) => value.decided(),
            Expr::Binary { op, left, .. } if op.to_string() == "&" => match left.decided()? {
                Decided::Whole(tokens) | Decided::Left(tokens) => Some(Decided::Left(tokens)),
            },
            _ => None,
        }
    }

    /// The Rust expression, of type `i128` or `bool`, and whether it names a tile constant.
    fn constant(&self) -> Option<(TokenStream, bool)> {
        match self {
            Expr::TileConst(ident) => Some((quote_spanned!(ident.span()=> (#ident as i128)), true)),
            Expr::Literal(Literal { class: LiteralClass::Int, tokens, dtype: None, .. }) => {
                Some((quote!(#tokens), false))
            }
            Expr::Paren(value, _) => value.constant(),
            Expr::Compare { function, left, right, span } => {
                let op = match *function {
                    "eq" => quote!(==),
                    "ne" => quote!(!=),
                    "lt" => quote!(<),
                    "le" => quote!(<=),
                    "gt" => quote!(>),
                    "ge" => quote!(>=),
                    _ => return None,
                };
                let ((left, a), (right, b)) = (left.constant()?, right.constant()?);
                Some((quote_spanned!(*span=> (#left #op #right)), a || b))
            }
            Expr::Binary { op, left, right, span } if matches!(&*op.to_string(), "&" | "|" | "+" | "-" | "*") => {
                let ((left, a), (right, b)) = (left.constant()?, right.constant()?);
                Some((quote_spanned!(*span=> (#left #op #right)), a || b))
            }
            _ => None,
        }
    }
}
