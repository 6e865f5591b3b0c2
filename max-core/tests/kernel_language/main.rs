//! What `#[kernel]` makes of each construct of the language: every kernel here runs at every level of this machine and
//! in reference form, and must give the same values, written down by hand or computed by plain Rust.

extern crate max_core as max;

#[path = "kernel_language/computed_tiles.rs"]
mod computed_tiles;
#[path = "kernel_language/control.rs"]
mod control;
#[path = "kernel_language/coverage.rs"]
mod coverage;
#[path = "kernel_language/dot_scaled.rs"]
mod dot_scaled;
#[path = "kernel_language/elementwise.rs"]
mod elementwise;
#[path = "kernel_language/grids.rs"]
mod grids;
#[path = "kernel_language/params.rs"]
mod params;
#[path = "kernel_language/rows.rs"]
mod rows;
#[path = "kernel_language/segments.rs"]
mod segments;
#[path = "kernel_language/support.rs"]
mod support;
#[path = "kernel_language/table.rs"]
mod table;
#[path = "kernel_language/tiles.rs"]
mod tiles;
