//! Pooling of images.

mod avg_pool2d;
mod max_pool2d;

pub use avg_pool2d::AvgPool2d;
pub use max_pool2d::MaxPool2d;
