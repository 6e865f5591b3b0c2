//! Bytes as a file of `torch.save`.

#![no_main]

extern crate max_core as max;

#[path = "../../../max-core/tests/fuzz/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::ALL[5].1(bytes));
