use max::kernel::prelude::*;

#[kernel(op = "ui")]
struct Ui;

fn main() {}
