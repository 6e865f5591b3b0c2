//! Normalization layers.

mod batch_norm2d;
mod group_norm;
mod layer_norm;
mod rms_norm;

pub use batch_norm2d::BatchNorm2d;
pub use group_norm::GroupNorm;
pub use layer_norm::LayerNorm;
pub use rms_norm::RmsNorm;
