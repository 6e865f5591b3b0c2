//! [`TensorMapStats`]: what became of tensor maps.

/// What became of the tensor maps of a device since the program began: descriptions by which kernels let the GPU's tensor
/// memory accelerator (TMA, from sm_90 on) copy tiles. Without them threads copy, which takes longer and gives the same results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorMapStats {
    /// Maps that the driver made.
    pub encoded: u64,
    /// Maps that the driver refused, although the tensor lies as maps demand. The first one is said on standard error.
    pub refused: u64,
    /// Launches of kernels that take maps, with maps.
    pub mapped_launches: u64,
    /// Such launches without: an operand does not lie as maps demand, or the driver refused one.
    pub unmapped_launches: u64,
}
