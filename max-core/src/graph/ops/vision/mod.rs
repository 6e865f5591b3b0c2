//! Ops over images: convolutions, pools and resizing, and the layouts of images and filters.

pub(super) mod conv;
pub(super) mod layout;
pub(super) mod pool;
pub(super) mod resize;
