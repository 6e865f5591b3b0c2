//! Kernels are compiled once, whatever is built next: every selection of packages that the documentation names compiles
//! `max-core` and what it depends on with the same features. So is what the `max` command takes of the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What is built, and the words by which `cargo tree` selects the same.
const SELECTIONS: [(&str, &[&str]); 14] = [
    ("cargo build", &["-p", "max-engine", "-e", "normal,build"]),
    ("cargo run --example", &["-p", "max-engine", "-e", "normal,build,dev"]),
    ("cargo run -p max-cli", &["-p", "max-cli", "-e", "normal,build"]),
    ("cargo build -p ops-crate", &["-p", "ops-crate", "-e", "normal,build"]),
    ("cargo test -p max-pipelines", &["-p", "max-pipelines", "-e", "normal,build,dev"]),
    (
        "cargo test -p max-pipelines --features structured_output",
        &["-p", "max-pipelines", "--features", "structured_output", "-e", "normal,build,dev"],
    ),
    (
        "cargo test -p max-cli -p max-pipelines --features hf_hub",
        &["-p", "max-cli", "-p", "max-pipelines", "--features", "hf_hub", "-e", "normal,build,dev"],
    ),
    ("cargo test -p max-core-tests", &["-p", "max-core-tests", "-e", "normal,build,dev"]),
    ("cargo test -p kernel-language-tests", &["-p", "kernel-language-tests", "-e", "normal,build,dev"]),
    ("cargo test -p max-kernels-tests", &["-p", "max-kernels-tests", "-e", "normal,build,dev"]),
    ("cargo test -p max-nn-tests", &["-p", "max-nn-tests", "-e", "normal,build,dev"]),
    ("cargo test -p gpu-tests", &["-p", "gpu-tests", "-e", "normal,build,dev"]),
    ("cargo test --workspace", &["--workspace", "-e", "normal,build,dev"]),
    ("cargo bench -p max-benches", &["-p", "max-benches", "-e", "normal,build,dev"]),
];

/// The one of these that has the `max` command.
const COMMAND: &[&str] = SELECTIONS[2].1;

/// The features of each crate that a selection compiles. One that is compiled for the host and for the target has two sets.
fn features(selection: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["tree", "--offline", "--locked", "--no-dedupe", "--prefix", "none", "-f", "{p}|{f}"]);
    command.args(selection).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if let Some((package, features)) = line.split_once('|') {
            // Behind the version stands what kind of crate it is, and where.
            let package = package.split(' ').take(2).collect::<Vec<_>>().join(" ");
            found.entry(package).or_default().insert(features.trim_end_matches(" (*)").to_owned());
        }
    }
    found
}

#[test]
fn kernels_are_compiled_once() {
    let (first, expected) = (SELECTIONS[0].0, features(SELECTIONS[0].1));
    let core = features(&["-p", "max-core", "-e", "normal,build"]);
    assert!(core.len() > 20 && core.keys().all(|package| expected.contains_key(package)), "{core:#?}");
    let mut different = Vec::new();
    for (name, selection) in &SELECTIONS[1..] {
        let found = features(selection);
        for package in core.keys() {
            let (a, b) = (&expected[package], &found[package]);
            if a != b {
                different.push(format!("{package}: {a:?} in `{first}`, {b:?} in `{name}`"));
            }
        }
    }
    assert!(different.is_empty(), "crates are compiled again for their features:\n  {}", different.join("\n  "));
}

/// So is the command itself, and what it depends on: tests of downloads are built with their feature alone.
#[test]
fn crates_of_the_command_are_compiled_once() {
    let (command, tests) = (features(COMMAND), features(&["--workspace", "-e", "normal,build,dev"]));
    let different: Vec<String> = (command.iter())
        .filter(|(package, features)| tests[*package] != **features)
        .map(|(package, features)| format!("{package}: {features:?} and {:?}", tests[package]))
        .collect();
    assert!(command.len() > 60, "{command:#?}");
    assert!(different.is_empty(), "crates are compiled again for their features:\n  {}", different.join("\n  "));
}
