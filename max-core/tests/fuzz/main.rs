//! The entries of the fuzzer, with the inputs that are saved, with changed ones, and with any bytes. `tests/fuzz` of the repository
//! runs the same entries for as long as one likes.

extern crate max_core as max;

mod entries;

use std::path::PathBuf;

use proptest::prelude::*;

/// The saved inputs of an entry.
fn saved(name: &str) -> Vec<Vec<u8>> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(tests.join("fuzz/corpus").join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    if name == "ir_text" {
        // The kernels of other tests are inputs too.
        let all = std::fs::read_dir(tests.join("ir")).unwrap().map(|entry| entry.unwrap().path());
        files.extend(all.filter(|path| path.extension().is_some_and(|extension| extension == "ir")));
    }
    files.sort();
    assert!(!files.is_empty(), "{name}");
    files.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// What inputs are made of: numbers at the ends of their ranges, and what opens and closes.
const WORDS: [&str; 24] = [
    "0",
    "-1",
    "64",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "\"",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ":",
    ",",
    "%",
    "%0",
    "i64",
    "f32",
    "null",
    "\\",
];

#[derive(Clone, Debug)]
enum Change {
    Byte(u8),
    Cut(usize),
    Repeat(usize),
    Word(usize),
    /// Puts a word in the place of a number or name.
    Replace(usize),
    Truncate,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<u8>().prop_map(Change::Byte),
        (1usize..40).prop_map(Change::Cut),
        (1usize..80).prop_map(Change::Repeat),
        (0..WORDS.len()).prop_map(Change::Word),
        (0..WORDS.len()).prop_map(Change::Replace),
        (0..WORDS.len()).prop_map(Change::Replace),
        Just(Change::Truncate),
    ]
}

/// The input with some changes, each at a place between 0 and 1.
fn changed(mut input: Vec<u8>, changes: &[(f64, Change)]) -> Vec<u8> {
    for (place, change) in changes {
        let at = (input.len() as f64 * place) as usize;
        let end = |length: usize| (at + length).min(input.len());
        match change {
            Change::Byte(byte) if at < input.len() => input[at] = *byte,
            Change::Byte(byte) => input.push(*byte),
            Change::Cut(length) => drop(input.drain(at..end(*length))),
            Change::Repeat(length) => {
                let part = input[at..end(*length)].to_vec();
                drop(input.splice(at..at, part));
            }
            Change::Word(word) => drop(input.splice(at..at, WORDS[*word].bytes())),
            Change::Replace(word) => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let from = input[..at].iter().rposition(|byte| !is_part(byte)).map_or(0, |i| i + 1);
                let to = input[at..].iter().position(|byte| !is_part(byte)).map_or(input.len(), |i| at + i);
                drop(input.splice(from..to, WORDS[*word].bytes()));
            }
            Change::Truncate => input.truncate(at),
        }
    }
    input
}

#[test]
fn saved_inputs() {
    for (name, entry) in entries::ALL {
        saved(name).iter().for_each(|input| entry(input));
    }
}

/// Nothing that an entry refuses or takes may be all that it is tested with.
#[test]
fn saved_kernels_are_kernels() {
    let kernels = saved("ir_text");
    let read = |text: &Vec<u8>| max::kernel::ir::parse(&String::from_utf8_lossy(text)).is_ok();
    assert!(kernels.iter().filter(|text| read(text)).count() * 2 > kernels.len());
}

fn changes() -> impl Strategy<Value = Vec<(f64, Change)>> {
    prop::collection::vec((0.0..1.0, change()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn changed_inputs(which in any::<prop::sample::Index>(), changes in changes()) {
        for (name, entry) in entries::ALL {
            let saved = saved(name);
            entry(&changed(which.get(&saved).clone(), &changes));
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for (_, entry) in entries::ALL {
            entry(&bytes);
        }
    }
}
