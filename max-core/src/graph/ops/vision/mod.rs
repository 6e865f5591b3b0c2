//! Ops over images: convolutions, pools and resizing.

pub(super) mod conv;
pub(super) mod pool;
pub(super) mod resize;
