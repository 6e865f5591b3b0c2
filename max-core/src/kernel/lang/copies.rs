//! [`Copies`]: how often a loop over blocks of lanes has the code of a block.

/// How many copies of a block's code a loop over blocks has: of much code fewer, so that it is compiled fast and stays small.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Copies {
    /// One alone: lanes are computed one after the other, and blocks of fewer are as fast.
    One,
    /// One of whole blocks, and one of a few lanes at the ends.
    Two,
    /// Of the ends one for lanes that can all be read, too.
    All,
}

impl Copies {
    /// Of sequences that are read together.
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Copies::One, Copies::One) => Copies::One,
            (Copies::All, Copies::All) => Copies::All,
            _ => Copies::Two,
        }
    }
}
