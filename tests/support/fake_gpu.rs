//! Tests on the fake driver: each runs in a child process of the test, in which `tests/support/fake-cuda` stands as
//! `libcuda.so.1` in the loader's path.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Says to a child that it is one.
pub const CHILD: &str = "FAKE_GPU_CHILD";

/// The driver, which cargo builds in the folder of this test.
pub fn library() -> PathBuf {
    std::env::current_exe().expect("a path").with_file_name("libfake_cuda.so")
}

/// The name by which the driver is looked for first.
pub const NAME: &str = "libcuda.so.1";

/// Runs a test of this binary in a process whose loader finds `driver`, if there is one, under that name.
pub fn child(test: &str, driver: Option<(&Path, &str)>, environment: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some((driver, name)) = driver {
        std::os::unix::fs::symlink(driver, folder.path().join(name)).expect("a link");
    }
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", folder.path()).env(CHILD, "1").env_remove("MAX_POISON");
    command.envs(environment.iter().copied()).output().expect("a child")
}

/// Runs `body` here if this is a child, and else this test in a child, which has to pass.
pub fn on_fake_gpu(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    with_driver(test, Some((&library(), NAME)), environment, body);
}

/// As [`on_fake_gpu`], with another library, or another name, in the driver's place, or none.
pub fn with_driver(test: &str, driver: Option<(&Path, &str)>, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    // The name within the crate.
    let test = test.split_once("::").map_or(test, |(_, name)| name);
    let output = child(test, driver, environment);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "`{test}` was not run:\n{out}\n{err}");
}

/// A test on the fake driver: `gpu_test! { /// What it shows. fn name("VARIABLE" = "value") { … } }`.
macro_rules! gpu_test {
    ($($(#[$attribute:meta])* fn $name:ident($($variable:literal = $value:expr),*) $body:block)+) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            let test = concat!(module_path!(), "::", stringify!($name));
            $crate::fake_gpu::on_fake_gpu(test, &[$(($variable, $value)),*], || $body);
        }
    )+};
}
