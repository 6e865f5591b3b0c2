//! The table: what each kernel must compute.

mod convolutions;
mod elementwise;
mod matrices;
mod rows;

use crate::case::Case;

/// All rows.
pub fn cases() -> Vec<Case> {
    max::kernels::link();
    [elementwise::cases(), rows::cases(), matrices::cases(), convolutions::cases()].into_iter().flatten().collect()
}
