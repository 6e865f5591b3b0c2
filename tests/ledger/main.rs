//! The ledger of generated code: a hash of the PTX of every kernel, dtype and target, and of the plan and the PTX of each
//! golden graph.
//!
//! Four kernels are there as text too, and of some the machine code is counted (`sass.txt`).
//!
//! A commit that only renames or moves code leaves `ledger.txt` as it is. One that changes generated code shows in its
//! diff whose code changed. `MAX_BLESS=1` writes the file anew; `max ptx --all --out DIR` and `MAX_DUMP=memory` give
//! the texts behind the hashes, to compare with those of another commit.

#[cfg(target_os = "linux")]
mod graphs;
#[cfg(target_os = "linux")]
mod plans;
mod ptx;
mod sass;
mod snapshots;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// FNV-1a with 64 bits: the same on every machine and with every release of Rust.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hash(u64);

impl Hash {
    fn of(text: &str) -> Hash {
        Hash(
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)),
        )
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What is hashed, by its name.
type Entries = BTreeMap<String, Hash>;

/// The ledger's file, wherever the package of this test is in the repository.
fn path() -> PathBuf {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let source = packages.map(|folder| folder.join(file!())).find(|path| path.is_file());
    source.expect("the source of this test").with_file_name("ledger.txt")
}

/// Lines of `HASH NAME`, sorted by name.
fn parse(text: &str) -> Entries {
    let entry = |line: &str| {
        let (hash, name) = line.split_once(' ')?;
        Some((name.to_owned(), Hash(u64::from_str_radix(hash, 16).ok()?)))
    };
    text.lines().map(|line| entry(line).unwrap_or_else(|| panic!("`{line}` is no entry of the ledger"))).collect()
}

fn print(entries: &Entries) -> String {
    entries.iter().map(|(name, hash)| format!("{hash} {name}\n")).collect()
}

/// One line for each entry that is new, gone or another, of those that are about `kind`.
fn changes(kind: &str, old: &Entries, new: &Entries) -> Vec<String> {
    let of_kind =
        |entries: &Entries| -> Vec<String> { entries.keys().filter(|name| name.starts_with(kind)).cloned().collect() };
    let mut names = [of_kind(old), of_kind(new)].concat();
    names.sort();
    names.dedup();
    let change = |name: String| match (old.get(&name), new.get(&name)) {
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) => Some(format!("changed: {name} ({a}, now {b})")),
        (Some(_), None) => Some(format!("gone:    {name}")),
        (None, _) => Some(format!("new:     {name}")),
    };
    names.into_iter().filter_map(change).collect()
}

/// Compares entries of one kind, the first word of their names, with those in the file; with `MAX_BLESS=1` replaces these.
fn hold(kind: &str, new: &Entries) {
    // Tests run at the same time, and each replaces only its own entries.
    static FILE: Mutex<()> = Mutex::new(());
    let _one_at_a_time = FILE.lock();
    let path = path();
    let kind = format!("{kind} ");
    assert!(new.keys().all(|name| name.starts_with(&kind)), "entries of another kind than `{kind}`");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let old = parse(&text);
    assert!(text == print(&old), "the entries of {} are not in order", path.display());
    let changes = changes(&kind, &old, new);
    if changes.is_empty() {
        return;
    }
    let (count, changes) = (changes.len(), changes.join("\n  "));
    if std::env::var_os("MAX_BLESS").is_none() {
        panic!("{count} entries of {} changed; MAX_BLESS=1 accepts that:\n  {changes}", path.display());
    }
    println!("{count} entries changed:\n  {changes}");
    let mut all: Entries = old.into_iter().filter(|(name, _)| !name.starts_with(&kind)).collect();
    all.extend(new.iter().map(|(name, hash)| (name.clone(), *hash)));
    std::fs::write(&path, print(&all)).expect("a writable ledger");
}

#[test]
fn hashes_are_those_of_fnv() {
    // From the published test vectors of FNV-1a.
    for (text, hash) in [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)] {
        assert_eq!(Hash::of(text).0, hash, "of {text:?}");
    }
}

#[test]
fn changes_are_told_by_name() {
    let entries = |list: &[(&str, u64)]| list.iter().map(|(name, hash)| (name.to_string(), Hash(*hash))).collect();
    let old: Entries = entries(&[("ptx a", 1), ("ptx b", 2), ("ptx c", 3), ("plan a", 4)]);
    let new: Entries = entries(&[("ptx a", 1), ("ptx b", 5), ("ptx d", 6)]);
    let said = changes("ptx ", &old, &new);
    let changed = "changed: ptx b (0000000000000002, now 0000000000000005)";
    assert_eq!(said, [changed, "gone:    ptx c", "new:     ptx d"]);
}

#[test]
fn entries_read_back() {
    let text = "000000000000000a plan cpu a graph\nffffffffffffffff ptx sm_80 add<f32>\n";
    assert_eq!(print(&parse(text)), text);
}
