//! Bytes as the text of a graph.

#![no_main]

extern crate max_core as max;

#[path = "../../../max-core/tests/fuzz/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::ALL[6].1(bytes));
