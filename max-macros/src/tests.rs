//! What kernels expand to, and what is reported.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing)]

use quote::quote;

use super::*;

#[test]
fn the_three_kernels_of_the_design_expand_to_items() {
    let out = kernel_tokens(
        quote!(op = "softmax_rows"),
        quote! {
            fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
                let row = program_id(0);
                let x = x.row(row);
                let m = x.fold(T::NEG_INFINITY, |m, v| m.max(v)).max();
                let s = x.fold(0.0, |s, v| s + (v - m).exp()).sum();
                y.row(row).write(x.map(|v| (v - m).exp() / s));
            }
        },
    );
    println!("{out}");
    syn::parse2::<syn::File>(out).unwrap();
}
