//! Normalization layers.

mod group_norm;
mod layer_norm;
mod rms_norm;

pub use group_norm::GroupNorm;
pub use layer_norm::LayerNorm;
pub use rms_norm::RmsNorm;
