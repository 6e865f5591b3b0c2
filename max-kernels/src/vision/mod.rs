//! Images: convolutions, resizing, and blocks put together.

pub mod conv;
pub mod fold;
pub mod resize;
