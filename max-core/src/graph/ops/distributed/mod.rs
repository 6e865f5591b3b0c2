//! Several devices: collectives, and the parts of weights.

pub(super) mod collective;
mod sharding;
