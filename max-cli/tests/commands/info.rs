//! `max info`.

use crate::{max, max_in};

/// What stands in the row of that name.
#[track_caller]
fn row<'a>(info: &'a str, name: &str) -> &'a str {
    let line = info.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in:\n{info}"));
    line[name.len()..].trim()
}

#[test]
fn info_says_what_is_used_and_what_decides_it() {
    let info = max(&["info"]).success();
    assert_eq!(row(&info, "version"), format!("max {}", env!("CARGO_PKG_VERSION")));
    assert!(row(&info, "CPU level").contains("the highest that this machine has"), "{info}");
    assert!(info.contains("MAX_CPU_LEVEL chooses"), "{info}");
    assert!(row(&info, "threads").contains("RAYON_NUM_THREADS"), "{info}");
    assert!(!row(&info, "AMX").is_empty());
    assert!(!row(&info, "GPUs").is_empty());
    assert!(row(&info, "kernels").contains(" in max-kernels"), "{info}");
}

#[test]
fn the_environment_decides() {
    let info = max_in(&["info"], &[("MAX_CPU_LEVEL", "reference"), ("RAYON_NUM_THREADS", "3")]).success();
    assert_eq!(row(&info, "CPU level"), "reference, scalar and bounds-checked: MAX_CPU_LEVEL=reference");
    assert_eq!(row(&info, "threads"), "3, RAYON_NUM_THREADS=3");
}

#[test]
fn a_level_that_is_not_there_is_an_error_and_the_rest_is_still_shown() {
    let run = max_in(&["info"], &[("MAX_CPU_LEVEL", "v9")]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("error: MAX_CPU_LEVEL=v9 is not one of"), "{}", run.err);
    assert!(row(&run.out, "CPU level").contains("unknown"), "{}", run.out);
    assert!(row(&run.out, "kernels").contains("max-kernels"), "{}", run.out);
}

#[test]
fn kernels_that_were_built_unoptimized_are_warned_of() {
    let info = max(&["info"]).success();
    let advised = info.contains("[profile.dev.package.max-kernels]\n    opt-level = 3");
    assert_eq!(advised, cfg!(debug_assertions), "{info}");
}
