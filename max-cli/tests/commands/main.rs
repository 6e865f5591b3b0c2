//! The `max` command as a user runs it: what it prints, where, and with which exit code.

mod bench;
mod check;
#[cfg(feature = "hf_hub")]
mod download;
mod graph;
mod info;
mod models;
mod ops;
mod ptx;
mod usage;

use std::process::{Command, Output, Stdio};

/// What a run of the command gave.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Run {
    /// Fails the test unless the command succeeded, then gives what it printed.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self.out
    }

    /// Fails the test unless the command failed with this code and printed nothing but an error, then gives that.
    #[track_caller]
    pub fn failure(self, code: i32) -> String {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert_eq!(self.out, "");
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.err
    }
}

/// Runs `max` with these arguments.
pub fn max(args: &[&str]) -> Run {
    max_in(args, &[])
}

/// Runs `max` with these arguments and environment variables.
pub fn max_in(args: &[&str], variables: &[(&str, &str)]) -> Run {
    finished(command(args, variables).output().expect("the command starts"))
}

/// Runs `max`, reads `bytes` bytes of what it prints, and closes the pipe.
pub fn max_until(args: &[&str], bytes: usize) -> Run {
    use std::io::Read;
    let mut child = command(args, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut start = vec![0; bytes];
    child.stdout.take().expect("it is piped").read_exact(&mut start).expect("it prints that much");
    finished(child.wait_with_output().expect("it ends"))
}

/// `max` with these arguments and environment variables, yet to be started.
pub fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_max"));
    command.args(args).env_remove("MAX_CPU_LEVEL").env_remove("MAX_SERVE_MODEL_PATH").envs(variables.iter().copied());
    command
}

fn finished(output: Output) -> Run {
    Run {
        code: output.status.code().expect("it ends by itself"),
        out: String::from_utf8(output.stdout).expect("it prints UTF-8"),
        err: String::from_utf8(output.stderr).expect("it prints UTF-8"),
    }
}
