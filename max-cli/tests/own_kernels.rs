//! The command over kernels of another crate: here this one, which defines two and adds nothing else.

use max::kernel;

/// Adds the rounded half of the element to it.
#[kernel(op = "own_half_more")]
pub fn half_more<T: Float>(x: T, #[param(default = "up", choices("up", "down"))] to: &str) -> T {
    let half = x * 0.5;
    x + if to == "up" { half.ceil() } else { half.floor() }
}

/// Adds one, or another number, to every element of a buffer.
#[kernel(op = "own_count")]
pub fn count(x: &mut f32, #[param(default = 1)] by: u8) {
    *x += by as f32;
}

/// What the command prints for these arguments.
#[track_caller]
fn max(args: &[&str]) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = max_cli::run(["max"].iter().chain(args), &mut out, &mut err);
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    String::from_utf8(out).expect("it prints UTF-8")
}

#[test]
fn own_kernels_are_listed_with_their_crate_and_line() {
    assert!(max(&["ops"]).lines().any(|line| line.starts_with("own_half_more ") && line.contains("max-cli")));
    let text = max(&["ops", "own_half_more"]);
    for part in ["Adds the rounded half", "to: \"up\" or \"down\", default \"up\"", "own_kernels.rs:7"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(max(&["ops", "own_count"]).contains("x: f32, any rank, changed in place"));
}

#[test]
fn own_kernels_become_ptx() {
    let ptx = |to: &str| max(&["ptx", "own_half_more", "--param", to]);
    assert!(ptx("to=up").contains(".visible .entry"));
    assert_ne!(ptx("to=up"), ptx("to=down"));
    let dir = tempfile::tempdir().expect("a directory");
    max(&["ptx", "--all", "--out", dir.path().to_str().expect("a UTF-8 path")]);
    assert!(dir.path().join("own_half_more.f64.sm_80.ptx").exists());
    assert!(dir.path().join("own_count.sm_80.ptx").exists());
}

#[test]
fn parameters_have_numbers_of_their_types() {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = max_cli::run(["max", "ptx", "own_count", "--param", "by=300"], &mut out, &mut err);
    let said = String::from_utf8_lossy(&err);
    assert!(code == 2 && said.contains("parameter `by` is \"300\", but must be 0 to 255"), "{code}: {said}");
    assert!(max(&["ptx", "own_count", "--param", "by=255"]).contains(".visible .entry"));
}

#[test]
fn own_kernels_are_compared_with_their_reference_form() {
    let text = max(&["check"]);
    for line in ["own_half_more  f64     3x5x7", "own_count              257"] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    assert!(text.contains(", sm_80, sm_90, sm_100 agree with the reference form"), "{text}");
}

#[test]
fn own_kernels_are_timed() {
    let text = max(&["bench", "--json", "--runs", "3", "kernel:own_half_more:7x9", "kernel:own_count:100"]);
    let works: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    assert_eq!(works[0]["work"], "kernel:own_half_more:f32:7x9");
    // Read and written.
    assert_eq!((&works[1]["work"], &works[1]["bytes"]), (&"kernel:own_count:100".into(), &800.into()));
}
