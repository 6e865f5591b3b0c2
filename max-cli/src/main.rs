//! The `max` command.
fn main() {}
