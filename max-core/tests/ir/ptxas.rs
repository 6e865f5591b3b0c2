//! Finds NVIDIA's assembler, and assembles.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

/// The assembler: the one that `PTXAS` names, or that is in `PATH`, or that Python's package `nvidia-cuda-nvcc` brings.
fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PTXAS") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "PTXAS names {}, which is no file", path.display());
        return Some(path);
    }
    let in_path = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|dir| dir.join("ptxas")).find(|file| file.is_file()));
    in_path.or_else(|| {
        let output = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output().ok()?;
        let folders = String::from_utf8(output.stdout).ok()?;
        let below = ["nvidia/cu13/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas"];
        folders.lines().flat_map(|dir| below.map(|file| Path::new(dir).join(file))).find(|file| file.is_file())
    })
}

/// The assembler, if there is one.
pub fn ptxas() -> Option<&'static PathBuf> {
    static PTXAS: OnceLock<Option<PathBuf>> = OnceLock::new();
    PTXAS.get_or_init(find).as_ref()
}

/// Modules as few files, each given by a name, its text and its entry, which gets its number among all: a file has one header, so
/// those of the same version of PTX stand together. It declares shared memory once, and the source files of its modules are
/// numbered through.
pub fn together(modules: impl IntoIterator<Item = (String, String, String)>) -> Vec<String> {
    let mut files: Vec<(String, String, usize)> = Vec::new();
    for (i, (name, text, entry)) in modules.into_iter().enumerate() {
        let (header, code) = text.split_at(text.find(".visible").expect("an entry"));
        let dropped = [".file", ".extern"];
        let kept = header.lines().filter(|line| !line.is_empty() && !dropped.iter().any(|word| line.starts_with(word)));
        let kept = kept.collect::<Vec<_>>().join("\n");
        let known = files.iter().position(|(header, ..)| *header == kept).unwrap_or_else(|| {
            let start = format!("{kept}\n.extern .shared .align 1024 .b8 shared[];\n");
            files.push((kept, start, 0));
            files.len() - 1
        });
        let (_, whole, sources) = &mut files[known];
        let before = *sources;
        let numbered = |text: &str| -> Option<String> {
            let (file, rest) = text.split_once(' ')?;
            Some(format!("{} {rest}\n", before + file.parse::<usize>().ok()?))
        };
        *whole += &format!("// {name}\n");
        for file in header.lines().filter_map(|line| numbered(line.strip_prefix(".file ")?)) {
            *sources += 1;
            *whole += &format!(".file {file}");
        }
        for line in code.replace(&format!("{entry}("), &format!("{entry}_{i}(")).lines() {
            match line.trim_start().strip_prefix(".loc ").and_then(numbered) {
                Some(place) => *whole += &format!(".loc {place}"),
                None => *whole += &format!("{line}\n"),
            }
        }
    }
    files.into_iter().map(|(_, text, _)| text).collect()
}

/// Assembles PTX for an architecture and gives what `ptxas -v` says; `None`, said on standard error once a process,
/// where there is no assembler.
///
/// # Panics
/// If the assembler has an error or a warning.
pub fn assemble(name: &str, arch: &str, text: &str) -> Option<String> {
    let Some(ptxas) = ptxas() else {
        static SAID: Once = Once::new();
        let why = "SKIPPED: no PTX is assembled: there is no ptxas (set PTXAS, or install nvidia-cuda-nvcc)";
        // By `eprintln`, the harness would keep it to itself.
        SAID.call_once(|| _ = writeln!(std::io::stderr(), "{why}"));
        return None;
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (source, object) = (dir.path().join("kernel.ptx"), dir.path().join("kernel.cubin"));
    std::fs::write(&source, text).expect("a writable file");
    let output = Command::new(ptxas)
        .args(["-v", "--warning-as-error", "-lineinfo", "-arch", arch, "-o"])
        .args([&object, &source])
        .output()
        .expect("ptxas runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let numbered: String = text.lines().enumerate().map(|(i, line)| format!("{:4} {line}\n", i + 1)).collect();
    // Where products of warpgroups wait for each other needlessly, it is no warning that it gives.
    let slow = said.contains("Potential Performance Loss");
    assert!(output.status.success() && !said.contains("warning") && !slow, "{name}, {arch}: {said}\n{numbered}");
    Some(said)
}
