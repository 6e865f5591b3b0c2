//! The guide's first page, done as it says: a crate outside of this workspace, with a kernel of twelve lines, that runs on the
//! CPU, prints its PTX and is benchmarked.

use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../docs/guide/01-your-own-crate.md");

/// The page's blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// The packages of this workspace that a program depends on.
const COMPILED_AGAIN: [&str; 8] =
    ["max-core", "max-kernels", "max-nn", "max-pipelines", "max-ptx-sim", "max-cuda-sim", "max-engine", "max-cli"];

/// Runs cargo in the crate, and returns what it printed on standard output.
fn cargo(folder: &Path, arguments: &str) -> String {
    // What is built for other crates of this workspace is used again, as far as cargo allows it.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut words = arguments.split(' ');
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(words.next()).arg("--offline").current_dir(folder).env("CARGO_TARGET_DIR", target);
    // Crates of the registry are those of this workspace's profile; its own are compiled once more, as they are of another workspace
    // here: what they do is of interest, not how fast.
    command.arg("--config").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
    for package in COMPILED_AGAIN {
        for setting in ["opt-level=0", "codegen-units=16"] {
            command.arg("--config").arg(format!("profile.release.package.{package}.{setting}"));
        }
    }
    let output = command.args(words).env("MAX_BUILD_LEVELS", "native").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_first_page_works_as_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in the workspace's folder");
    let (manifest, code) = (blocks("toml"), blocks("rust"));
    assert_eq!((manifest.len(), code.len()), (1, 3), "the page has one manifest, the kernel, its test, and a program");
    assert!(code[0].lines().count() <= 12, "the page promises twelve lines");

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(!folder.starts_with(root));
    fs::create_dir(folder.join("src")).unwrap();
    fs::write(folder.join("Cargo.toml"), manifest[0].replace("../max", &root.display().to_string())).unwrap();
    fs::write(folder.join("src/main.rs"), code[..2].join("\n")).unwrap();
    // The same versions as here: they are the ones that are there without a network.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();

    // In release, since the page's commands are: the test of the CPU's result first.
    let tested = cargo(folder, "test --release");
    assert!(tested.contains("runs_in_a_graph ... ok"), "{tested}");

    // The page's commands, as they stand there.
    let printed = |command: &str| {
        let lines = blocks("sh").concat();
        let line = lines.lines().find(|line| line.contains(command)).expect("the page has this command");
        cargo(folder, line.strip_prefix("cargo ").expect("it is one of cargo's"))
    };
    let described = printed("-- ops");
    assert!(described.contains("leaky_relu<T: Float>(x: T, #[param(default = 0.01)] slope: f64) -> T"), "{described}");
    assert!(described.contains("my-kernels"), "{described}");
    let ir = printed("-- ir");
    assert!(ir.contains("kernel \"leaky_relu\" elementwise"), "{ir}");
    let ptx = printed("-- ptx");
    assert!(ptx.contains(".target sm_90") && ptx.contains(".entry"), "{ptx}");
    let checked = printed("-- check");
    assert!(checked.contains("sm_80, sm_90, sm_100 agree with the reference form"), "{checked}");
    let measured = printed("-- bench");
    assert!(measured.contains("leaky_relu"), "{measured}");

    // The kernel in a library, and a program that names it.
    let kernel = code[0].split("fn main()").next().unwrap();
    fs::write(folder.join("src/lib.rs"), kernel).unwrap();
    fs::write(folder.join("src/main.rs"), code[2]).unwrap();
    let described = printed("-- ops");
    assert!(described.contains("leaky_relu<T: Float>(x: T, #[param(default = 0.01)] slope: f64) -> T"), "{described}");
}
