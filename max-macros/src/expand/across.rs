//! The entries of kernels whose programs may also run side by side, each with a row of its own.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};

use super::names::Names;
use super::{Kernel, generic_args, generics};
use crate::body::runs_across;
use crate::dtype::Dtype;
use crate::grid::{Axis, Size};
use crate::level::Level;
use crate::signature::ast::{Access, Kind};

/// Levels with such entries: those whose vectors are worth it.
pub const LEVELS: [Level; 2] = [Level::V3, Level::V4];

/// What the launcher has to know of a kernel whose programs may run side by side.
pub struct Rows {
    /// The ranks of its operands.
    ranks: Vec<u32>,
    /// By how many elements its longest row that goes across is longer than that of a kernel without reductions.
    longer: u32,
}

/// Of a kernel whose programs may run side by side: one program a row, of operands that are rows or vectors.
pub fn rows(kernel: &Kernel) -> Option<Rows> {
    let sig = kernel.sig;
    let is_plain = sig.kind == Kind::Program && sig.attr.tile.is_empty() && sig.const_params.is_empty();
    let one_each = matches!(kernel.grid.axes[..], [Axis::Dim { dim: 0, by: Size::Fixed(1), .. }]);
    if !is_plain || !one_each || sig.types.generics.is_empty() {
        return None;
    }
    let rank = |operand: &crate::signature::ast::Operand| match (operand.access, operand.rank) {
        (Access::In, Some(rank @ (1 | 2))) | (Access::Out, Some(rank @ 2)) => Some(rank),
        _ => None,
    };
    let ranks = sig.operands().iter().map(rank).collect::<Option<Vec<u32>>>()?;
    let params = sig.params().filter_map(|(i, ..)| Some(kernel.locals.get(i)?.id));
    Some(Rows { ranks, longer: runs_across(kernel.body?, params)? })
}

/// Whether a binding of the generics has such an entry: that of the dtypes that models are made of.
pub fn has(level: Level, dtypes: &[&'static Dtype]) -> bool {
    LEVELS.contains(&level) && dtypes.iter().all(|d| matches!(d.variant, "F32" | "F16" | "BF16"))
}

/// The name of a level's entry.
pub fn run_name(level: Level) -> Ident {
    format_ident!("__{}_rows", level.attr_name())
}

/// The entry of a level.
pub fn entry(names: &Names, sig: &crate::signature::ast::Signature, level: Level, rows: &Rows) -> TokenStream {
    let span = Span::call_site();
    let (kernel, lang) = (names.kernel(span), names.lang(span));
    let (generics, generic_args) = (generics(names, sig), generic_args(sig));
    let (name, variant) = (run_name(level), Ident::new(level.name(), span));
    let (ranks, longer) = (rows.ranks.iter().map(|rank| *rank as usize), rows.longer as usize);
    quote! {
        pub unsafe extern "C" fn #name<#generics>(args: *const #kernel::abi::LaunchArgs, first: i64, last: i64) {
            // SAFETY: the caller keeps the promises of the table's function type, which are the same; the table has
            // operands of these ranks.
            unsafe {
                #lang::run_rows::<#lang::#variant, _>(
                    args, first, last, (&[#(#ranks),*], #longer),
                    #[inline(always)] |m| __program::<#lang::Cpu<#lang::#variant>, #generic_args>(m),
                    #[inline(always)] |m| __call::<#lang::Across, #generic_args>(m),
                )
            }
        }
    }
}
