//! [`Remainder`]: how a loop over blocks of lanes does the lanes that are no whole block.

/// How a loop over blocks does its remainder, which decides how many copies of a block's code there are. Much code has few, so that it is
/// compiled fast and stays small.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Remainder {
    /// In the loop itself, whose blocks are all masked (LLVM calls it tail folding): for lanes that are computed one after the other, of
    /// which a masked block is as fast. One copy.
    Folded,
    /// By narrow blocks. Two copies.
    Narrow,
    /// By a masked block where all lanes can be read and are more than a narrow one has; else by narrow blocks. Three copies.
    Columns,
    /// By a masked block, compiled once more for lanes that can all be read. Three copies.
    Masked,
}

impl Remainder {
    /// That of sequences that are read together.
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Remainder::Folded, Remainder::Folded) => Remainder::Folded,
            (Remainder::Masked, Remainder::Masked) => Remainder::Masked,
            (Remainder::Columns, Remainder::Columns | Remainder::Masked) | (Remainder::Masked, Remainder::Columns) => {
                Remainder::Columns
            }
            _ => Remainder::Narrow,
        }
    }
}
