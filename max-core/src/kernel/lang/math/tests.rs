//! Checks of the math functions on every CPU level, in the reference form and in the IR.

mod accuracy;
mod levels;
mod power;
