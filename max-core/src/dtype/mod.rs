//! dtype
