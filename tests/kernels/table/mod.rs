//! The table: what each kernel must compute.

mod columns;
mod convolutions;
mod elementwise;
mod group_quantized;
mod images;
mod matrices;
mod order;
mod paged_attention;
mod quantized;
mod ragged;
pub mod random;
mod rows;
mod sampling;

use crate::case::Case;

/// All rows.
pub fn cases() -> Vec<Case> {
    max_kernels::link();
    let families = [
        elementwise::cases(),
        rows::cases(),
        columns::cases(),
        order::cases(),
        matrices::cases(),
        paged_attention::cases(),
        quantized::cases(),
        group_quantized::cases(),
        ragged::cases(),
        convolutions::cases(),
        images::cases(),
        random::cases(),
        sampling::cases(),
    ];
    families.into_iter().flatten().collect()
}
