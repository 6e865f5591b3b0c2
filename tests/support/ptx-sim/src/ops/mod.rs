//! The scalar meaning of each arithmetic instruction: plain functions on the
//! bits of registers, chosen once when an instruction is decoded.
//!
//! A register holds its value in the low bits of a `u64`, zero above its
//! width. A function reads only the bits of its type and returns a value that
//! is zero above its result's width.

use crate::types::Mods;

pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod softfloat;

pub(crate) type F1 = fn(&Mods, u64) -> u64;
pub(crate) type F2 = fn(&Mods, u64, u64) -> u64;
pub(crate) type F3 = fn(&Mods, u64, u64, u64) -> u64;
pub(crate) type F4 = fn(&Mods, u64, u64, u64, u64) -> u64;
