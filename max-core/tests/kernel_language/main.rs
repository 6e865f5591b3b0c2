//! What `#[kernel]` makes of each construct of the language: every kernel here runs at every level of this machine and
//! in reference form, and must give the same values, written down by hand or computed by plain Rust.

extern crate max_core as max;

mod computed_tiles;
mod control;
mod coverage;
mod dot_scaled;
mod elementwise;
mod grids;
mod params;
mod rows;
mod segments;
mod support;
mod table;
mod tiles;
