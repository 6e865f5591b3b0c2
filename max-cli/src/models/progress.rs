//! A bar on the terminal while a model is loaded.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use max::pipelines::LoadProgress;

/// A bar on standard error; none where that is no terminal.
pub fn bar() -> Option<LoadProgress> {
    if !stderr().is_terminal() {
        return None;
    }
    let style = ProgressStyle::with_template("loading [{bar:40}] {bytes} of {total_bytes}").ok()?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style);
    Some(LoadProgress::new(move |read, all| {
        bar.set_length(all);
        bar.set_position(read);
        if read >= all {
            bar.finish_and_clear();
        }
    }))
}
