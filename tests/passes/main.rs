//! The compiler's passes, one text file each: graphs, and what the pass makes of them. `MAX_BLESS=1` rewrites what it makes;
//! read the diff.
//!
//! A file has cases. Each is a graph as [`Graph::parse`] reads it, under comments that say what it shows, and behind a line
//! `=> ` the text that the pass named by the file prints of it. All passes before it have run as well.
//!
//! The compiler prints what passes make where `MAX_DUMP` asks for it, so a child process compiles the graphs: portable code
//! for four threads, which every machine has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use max::prelude::*;

/// Says to the child that it is one.
const CHILD: &str = "PASSES_CHILD";
/// Between a graph and what a pass makes of it, and behind that.
const ARROW: &str = "=>\n";
const END: &str = "\n\n";

/// A case: the text of its graph with the comments, and what the pass is expected to make of it.
struct Case {
    graph: String,
    expected: String,
}

/// The files, by the names of their passes.
fn files() -> BTreeMap<String, PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes");
    let paths = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("a file").path());
    let texts = paths.filter(|path| path.extension().is_some_and(|e| e == "txt"));
    texts.map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), path)).collect()
}

/// The cases of a file.
fn cases(path: &Path) -> Vec<Case> {
    let text = fs::read_to_string(path).expect("a readable file");
    let case = |part: &str| {
        let (graph, expected) = part.split_once(ARROW).unwrap_or((part, ""));
        Case { graph: format!("{}\n", graph.trim()), expected: expected.trim_end().to_owned() }
    };
    // A graph's text has no empty line.
    text.split(END).filter(|part| !part.trim().is_empty()).map(case).collect()
}

/// Compiles the graphs of all files.
fn compile() {
    let session = InferenceSession::with_devices([Device::cpu()]).num_threads(4).expect("four threads");
    for (pass, path) in files() {
        for (i, case) in cases(&path).iter().enumerate() {
            let graph = Graph::parse(&case.graph).unwrap_or_else(|error| panic!("{pass} {i}: {error}"));
            eprintln!("=== {pass} {i}");
            session.load(&graph).unwrap_or_else(|error| panic!("{pass} {i}: {error}"));
        }
    }
    eprintln!("=== end 0");
}

#[test]
fn passes_do_what_their_files_say() {
    if std::env::var_os(CHILD).is_some() {
        return compile();
    }
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["passes_do_what_their_files_say", "--exact", "--nocapture"]).env(CHILD, "1");
    command.env("MAX_DUMP", "all").env("MAX_CPU_LEVEL", "portable").env_remove("MAX_POISON");
    let output = command.output().expect("a child");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");

    let (mut count, mut differing) = (0, Vec::new());
    for (pass, path) in files() {
        let mut text = String::new();
        for (i, case) in cases(&path).iter().enumerate() {
            let of_case = printed.split(&format!("=== {pass} {i}\n")).nth(1).expect("the child compiled it");
            let of_case = of_case.split("=== ").next().unwrap_or_default();
            // The last such section: regions and parts that are folded are compiled before what they are in.
            let made = of_case.rsplit(&format!(" after `{pass}`:")).next().filter(|made| made.len() < of_case.len());
            let made = made.unwrap_or_else(|| panic!("there is no pass `{pass}`, which {} is for", path.display()));
            let made = made.split_once('\n').map_or("", |(_, rest)| rest).split("--- ").next().unwrap_or_default();
            let made = made.trim_end();
            if made != case.expected {
                differing.push(format!("{pass} {i}:\n{}{ARROW}{made}\n", case.graph));
            }
            text += &format!("{}{ARROW}{made}{END}", case.graph);
            count += 1;
        }
        if std::env::var_os("MAX_BLESS").is_some() {
            fs::write(&path, format!("{}\n", text.trim_end())).expect("a writable file");
        }
    }
    assert!(count >= 12, "{count} cases");
    assert!(differing.is_empty(), "MAX_BLESS=1 accepts these:\n{}", differing.join("\n"));
}
