//! The text form and the verifier: every `tests/ir/*.ir` is read, printed, read back and verified.
//!
//! A file holds any number of kernels. `// error: …` at the end of a line says what the verifier must have against that
//! line (several messages are separated by `; `); errors about the header and the body's yields belong to the kernel's
//! first line. With `MAX_BLESS=1` the comments are written anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use max_core::kernel::ir::{Kernel, VerifyErrors, parse, parse_file, verify};

/// The kernels of a text, each with the (0-based) line that it starts on.
pub fn kernels(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.starts_with("kernel ") {
            found.push((i, String::new()));
        }
        if let Some((_, kernel)) = found.last_mut() {
            kernel.push_str(line);
            kernel.push('\n');
        }
    }
    found
}

pub fn files() -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../ir");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("tests/ir is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "ir"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files.into_iter().map(|p| (p.clone(), fs::read_to_string(&p).expect("a readable file"))).collect()
}

pub fn without_comment(line: &str) -> &str {
    line.split(" // error: ").next().unwrap_or(line)
}

/// The verifier's messages by line of the kernel's text, without the places that the messages repeat.
fn messages(errors: &VerifyErrors) -> BTreeMap<usize, Vec<String>> {
    let mut lines = BTreeMap::<usize, Vec<String>>::new();
    for error in &errors.0 {
        lines.entry(error.line.max(1) as usize - 1).or_default().push(error.fault.to_string());
    }
    lines
}

#[test]
fn the_verifier_says_what_the_comments_say() {
    for (path, text) in files() {
        let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
        let mut lines: Vec<String> = text.lines().map(|l| without_comment(l).to_owned()).collect();
        for (start, source) in kernels(&text) {
            let kernel = parse_file(name, &source).unwrap_or_else(|e| panic!("{name}, line {}: {e}", start + 1));
            if !kernel.files.iter().all(|file| file == name) {
                assert_eq!(verify(&kernel), Ok(()), "{name}");
                continue;
            }
            let found = verify(&kernel).err().map(|e| messages(&e)).unwrap_or_default();
            for (line, found) in found {
                lines[start + line] += &format!(" // error: {}", found.join("; "));
            }
        }
        let blessed = lines.join("\n") + "\n";
        if std::env::var_os("MAX_BLESS").is_some() {
            fs::write(&path, &blessed).expect("a writable file");
        }
        // What a file says may be a part of each message.
        for (i, (said, found)) in text.lines().zip(blessed.lines()).enumerate() {
            let said_messages = said.split_once(" // error: ").map_or("", |(_, m)| m);
            let found_messages = found.split_once(" // error: ").map_or("", |(_, m)| m);
            let (said_list, found_list): (Vec<_>, Vec<_>) =
                (said_messages.split("; ").collect(), found_messages.split("; ").collect());
            let agree = said_messages.is_empty() == found_messages.is_empty()
                && said_list.len() == found_list.len()
                && said_list.iter().zip(&found_list).all(|(s, f)| f.contains(s));
            assert!(agree, "{name}:{}: expected `{said_messages}`, found `{found_messages}`", i + 1);
        }
    }
}

fn same(a: &Kernel, b: &Kernel) -> bool {
    (&a.values, &a.body, &a.operands, &a.params, &a.elements, &a.files)
        == (&b.values, &b.body, &b.operands, &b.params, &b.elements, &b.files)
        && a.name == b.name
        && a.kind == b.kind
        && format!("{:?}", a.grid) == format!("{:?}", b.grid)
}

#[test]
fn what_is_printed_parses_back() {
    for (path, text) in files() {
        for (start, source) in kernels(&text) {
            for kernel in [parse(&source), parse_file("a \"file\"\\.rs", &source)] {
                let kernel = kernel.unwrap_or_else(|e| panic!("{}, line {}: {e}", path.display(), start + 1));
                let printed = kernel.to_string();
                let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
                assert!(same(&kernel, &again), "{printed}\n{again}");
                assert_eq!(again.to_string(), printed);
            }
        }
    }
}

#[test]
fn files_are_as_printed() {
    for (path, text) in files() {
        for (_, source) in kernels(&text) {
            let plain: String = source.lines().map(|l| without_comment(l).to_owned() + "\n").collect();
            let printed = parse(&plain).expect("checked by other tests").to_string();
            assert_eq!(printed, plain, "{}", path.display());
        }
    }
}

#[track_caller]
fn fails(text: &str, message: &str) {
    assert_eq!(parse(text).expect_err("no kernel").to_string(), message);
}

#[test]
fn parse_errors_name_the_place() {
    fails("", "1:1: expected `kernel`, found the end of the text");
    fails("kernel \"k", "1:8: expected a quoted string, found `\"`");
    fails("kernel \"k\" tile", "1:12: expected `elementwise` or `program`, found `tile`");
    fails("kernel \"k\" program (out y: f31)", "1:28: expected a dtype, found `f31`");
    fails("kernel \"k\" program ()\n{\n  %0: i8 = const 128 }", "3:18: expected a constant of dtype i8, found `128`");
    fails("kernel \"k\" program () { frobnicate %0 }", "1:25: expected an instruction, found `frobnicate`");
    fails(
        "kernel \"k\" program () { %99999999: i8 = const 1 }",
        "1:25: expected a value below `%1056`, found `%99999999`",
    );
    fails("kernel \"k\" program () { store y[%0] = %1 }", "1:31: expected an operand, found `y`");
    fails("kernel \"k\" program () {} x", "1:26: expected the end of the text, found `x`");
    let deep = format!("kernel \"k\" program () {{ {}", "if %0 { ".repeat(1000));
    assert!(parse(&deep).expect_err("too deep").to_string().contains("nested at most"));
}
