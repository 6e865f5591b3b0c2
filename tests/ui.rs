//! What the author of a kernel reads after a mistake: each file of `tests/ui` is one, its `.stderr` the message.
//!
//! `TRYBUILD=overwrite cargo test -p max-tests --test ui` writes the messages anew; read the difference before committing it. The
//! messages are rustc's as well as ours, so they are compared on the compiler that CI uses.

use std::path::{Path, PathBuf};

#[test]
fn mistakes_are_reported_on_the_authors_line() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/*/*.rs");
}

/// Names of the implementation, which mean nothing to an author.
const PRIVATE: [&str; 6] = ["__", "max_core::", "max_macros", "lang::tensors", "lang::scalar", "syn::"];

#[test]
fn messages_use_the_authors_words() {
    for path in files("ui", "stderr") {
        let text = std::fs::read_to_string(&path).expect("a message is readable");
        // Where rustc shows our source, it shows what stands there.
        let shown = text.lines().filter(|line| !line.contains('|') && !line.contains("-->"));
        // One case reaches for the hidden module itself.
        for line in shown.map(|line| line.replace("max::kernel::__private::", "")) {
            if let Some(name) = PRIVATE.iter().find(|name| line.contains(**name)) {
                panic!("{}: `{name}` in: {line}", path.display());
            }
        }
    }
}

#[test]
fn every_mistake_has_its_message_on_its_own_file() {
    for path in files("ui", "rs") {
        let message = std::fs::read_to_string(path.with_extension("stderr")).expect("each case has a message");
        let name = path.strip_prefix("ui").map(Path::to_path_buf).expect("a case stands in tests/ui");
        let place = format!("--> ui/{}:", name.display());
        assert!(message.contains(&place), "{}: no error in the author's file", path.display());
        // The attribute itself is not the place of a mistake in the body.
        if !path.starts_with("ui/attribute") && !message.contains("in this macro invocation") {
            let source = std::fs::read_to_string(&path).expect("a case is readable");
            let attribute = source.lines().position(|l| l.starts_with("#[kernel(op")).map(|l| l + 1);
            let at_attribute = attribute.map(|line| format!("{place}{line}:1\n"));
            assert!(
                at_attribute.is_none_or(|at| !message.contains(&at)),
                "{}: reported at the attribute",
                path.display()
            );
        }
    }
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).expect("the folder of cases is there").flatten();
    let mut found: Vec<PathBuf> = folders
        .filter(|folder| folder.path().is_dir())
        .flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder of cases is readable").flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    assert!(found.len() >= 30, "{folder} has {} files *.{extension}", found.len());
    found
}
