//! Help, mistakes on the command line, and readers that stop early.

use crate::{max, max_until};

#[test]
fn help_goes_to_standard_output() {
    let help = max(&["--help"]).success();
    for command in ["info", "ops", "ptx", "ir", "bench", "run", "compile", "graph"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    assert!(max(&["ptx", "--help"]).success().contains("--annotate"));
    assert_eq!(max(&["--version"]).success(), format!("max {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn mistakes_on_the_command_line_go_to_standard_error() {
    assert!(max(&[]).failure(2).contains("Usage"));
    assert!(max(&["ptxx"]).failure(2).contains("'ptxx'"));
    assert!(max(&["ir"]).failure(2).contains("<KERNEL>"));
    assert!(max(&["ptx", "relu", "--sm", "ninety"]).failure(2).contains("compute capability"));
    assert!(max(&["ptx", "relu", "--dtype", "f33"]).failure(2).contains("f33"));
    assert!(max(&["ptx", "relu", "--param", "value"]).failure(2).contains("NAME=VALUE"));
    let refused = max(&["generate", "--model", "nowhere", "--prompt", "hi", "--max-new-tokens", "-3"]).failure(2);
    assert!(refused.contains("invalid value '-3' for '--max-new-tokens <N>'"), "{refused}");
}

#[test]
fn an_extension_that_is_not_there_is_an_error() {
    let error = max(&["--extension", "no/such/file.so", "ops"]).failure(1);
    assert!(error.starts_with("error: the extension no/such/file.so cannot be loaded"), "{error}");
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    // More text than a pipe holds.
    let run = max_until(&["ops", "--long"], 10);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
}
