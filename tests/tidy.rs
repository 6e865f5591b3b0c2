//! Rules of this repository that no compiler checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The most lines of a file.
const LINES: usize = 800;

/// The most lines of a file that is mainly a table.
const TABLE_LINES: usize = 900;

/// Files that are mainly tables (one small function for each operation), and longer than others may be.
const TABLES: &[&str] = &["max-core/src/kernel/cpu/mod.rs"];

/// The most files of sources in a folder.
const FILES: usize = 12;

/// Names that say nothing of what is in a file.
const EMPTY_NAMES: &[&str] = &["base.rs", "common.rs", "helpers.rs", "misc.rs", "util.rs", "utils.rs"];

/// What does not stand in code that is finished. (Split, so that this file is not found itself.)
const UNFINISHED: &[&str] =
    &[concat!("#[ig", "nore"), concat!("todo", "!("), concat!("unimplemented", "!("), concat!("```ig", "nore")];

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in the workspace's folder")
}

/// The repository's files with one of these extensions, by their paths in it.
fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let root = root();
    let (mut folders, mut found) = (vec![root.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                // A crate in the tree may have been built on its own.
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
                found.push(path.strip_prefix(root).unwrap().to_path_buf());
            }
        }
    }
    assert!(found.len() > 10, "found {} files in {}", found.len(), root.display());
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[track_caller]
fn none(what: &str, mistakes: Vec<String>) {
    assert!(mistakes.is_empty(), "{what}:\n  {}", mistakes.join("\n  "));
}

#[test]
fn files_are_short() {
    let limit = |path: &Path| if TABLES.iter().any(|t| path == Path::new(t)) { TABLE_LINES } else { LINES };
    let lines = files(&["rs", "md"]).into_iter().map(|path| (read(&path).lines().count(), path));
    let long = lines.filter(|(lines, path)| *lines > limit(path));
    none("files too long", long.map(|(lines, path)| format!("{} has {lines} lines", path.display())).collect());
}

#[test]
fn folders_of_sources_are_small() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in files(&["rs"]) {
        let folder = path.parent().expect("a file is in a folder");
        if folder.components().any(|part| part.as_os_str() == "src") {
            *counts.entry(folder.to_path_buf()).or_default() += 1;
        }
    }
    assert!(counts.len() > 10, "found {} folders of sources", counts.len());
    let full = counts.into_iter().filter(|(_, count)| *count > FILES);
    none("too many files in a folder", full.map(|(path, n)| format!("{} has {n} files", path.display())).collect());
}

#[test]
fn names_say_what_is_in_a_file() {
    let empty = files(&["rs"]).into_iter().filter(|path| EMPTY_NAMES.iter().any(|name| path.ends_with(name)));
    none("names that say nothing", empty.map(|path| path.display().to_string()).collect());
}

#[test]
fn files_say_what_they_are() {
    // The inputs of UI tests are compared with what the compiler prints, and need no head.
    let code = files(&["rs"]).into_iter().filter(|path| !path.components().any(|part| part.as_os_str() == "ui"));
    let headless =
        code.filter(|path| !["//!", "#![doc = include_str!"].iter().any(|head| read(path).starts_with(head)));
    none("files without a `//!` head", headless.map(|path| path.display().to_string()).collect());
}

#[test]
fn nothing_is_unfinished() {
    let mut found = Vec::new();
    for path in files(&["rs", "md"]) {
        for (number, line) in read(&path).lines().enumerate() {
            if UNFINISHED.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    none("unfinished", found);
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in files(&["md"]) {
        let text = read(&path);
        for (i, _) in text.match_indices("](") {
            let target: String = text[i + 2..].chars().take_while(|c| !matches!(c, ')' | '\n')).collect();
            let file = target.split('#').next().unwrap_or_default();
            let outside = ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme));
            if !outside && !file.is_empty() && !root().join(&path).with_file_name(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    none("broken links", broken);
}

/// Each of its blocks of code stands in the file that is named last before it.
#[test]
fn the_worked_example_is_what_the_repository_has() {
    let text = read(Path::new("CONTRIBUTING.md"));
    let section = text.split_once("## My first kernel").and_then(|(_, rest)| rest.split("\n## ").next());
    let pieces: Vec<&str> = section.expect("the section is there").split("```rust\n").collect();
    let mut wrong = Vec::new();
    for pair in pieces.windows(2) {
        let file = pair[0].split('`').rfind(|word| word.ends_with(".rs")).expect("a file before each block");
        let block = pair[1].split("```").next().unwrap_or_default();
        if block.is_empty() || !read(Path::new(file)).contains(block) {
            wrong.push(format!("not in {file}:\n{block}"));
        }
    }
    assert_eq!(pieces.len(), 4, "the kernel, the op and the test");
    none("the worked example differs", wrong);
}

/// Cargo does not look for them: the packages' folders are those of the tests.
#[test]
fn every_test_is_a_target() {
    let mut unnamed = Vec::new();
    // Of packages whose profiles differ, the targets are in one folder.
    for (folder, packages, least) in [
        ("tests", &["", "kernels"][..], 11),
        ("max-core/tests", &["", "kernel_language"], 9),
        ("max-nn/tests", &[""], 3),
    ] {
        let folder = root().join(folder);
        let mut named = Vec::new();
        for package in packages {
            let manifest = read(&folder.join(package).join("Cargo.toml"));
            let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
            named.extend(paths.filter_map(|path| folder.join(package).join(path).canonicalize().ok()));
        }
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let targets = entries.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
        let targets: Vec<PathBuf> =
            targets.filter(|path| path.extension().is_some_and(|e| e == "rs") && path.exists()).collect();
        assert!(targets.len() >= least, "{targets:?}");
        let missing = targets.iter().filter(|path| !named.contains(&path.canonicalize().unwrap()));
        unnamed.extend(missing.map(|path| path.display().to_string()));
    }
    none("no target", unnamed);
}

#[test]
fn faults_that_tests_make_are_listed() {
    let tests = ["tests/kernels/mutations.rs", "max-core/tests/ir/mma_operands.rs"].map(|path| read(Path::new(path)));
    let mut made: Vec<&str> = tests
        .iter()
        .flat_map(|text| text.split("    Fault(\"").skip(1).filter_map(|rest| rest.split('"').next()))
        .collect();
    let text = read(Path::new("tests/kernels/faults.md"));
    let table =
        text.split_once("| Fault | Kernel |").and_then(|(_, rest)| rest.split("\n\n").next()).unwrap_or_default();
    let mut listed: Vec<&str> =
        table.lines().skip(2).filter_map(|row| row.strip_prefix("| ")?.split(" | ").next()).collect();
    made.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, made);
}

#[test]
fn counts_of_the_coverage_are_those_of_its_rows() {
    let text = read(Path::new("docs/coverage.md"));
    let statuses = ["HAVE", "PART", "NONE", "N/A"];
    let (head, modules) = text.split_once("\n## ").expect("a module");
    let mut found = Vec::new();
    for module in modules.split("\n## ") {
        let (name, rows) = module.split_once('\n').expect("a table");
        let rows: Vec<Vec<&str>> = rows
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|row| row.trim_matches('|').splitn(3, " | ").map(str::trim).collect())
            .collect();
        for row in &rows {
            assert!(row.len() == 3 && statuses.contains(&row[1]), "{name}: {row:?}");
            assert!(row[1] == "HAVE" || !row[2].is_empty(), "{name}: {} says not what is absent", row[0]);
        }
        let count = |status| rows.iter().filter(|row| row[1] == status).count().to_string();
        found.push(format!("| {name} | {} |", statuses.map(count).join(" | ")));
    }
    let listed: Vec<&str> = head.lines().skip_while(|line| !line.starts_with("| module")).skip(2).collect();
    assert_eq!(listed.iter().filter(|line| !line.is_empty()).collect::<Vec<_>>(), found.iter().collect::<Vec<_>>());
}
