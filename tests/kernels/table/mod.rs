//! The table: what each kernel must compute.

mod columns;
mod convolutions;
mod elementwise;
mod matrices;
mod rows;

use crate::case::Case;

/// All rows.
pub fn cases() -> Vec<Case> {
    max::kernels::link();
    let families = [elementwise::cases(), rows::cases(), columns::cases(), matrices::cases(), convolutions::cases()];
    families.into_iter().flatten().collect()
}
