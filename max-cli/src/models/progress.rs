//! Bars on the terminal while a model is downloaded and loaded.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use max::pipelines::{DownloadProgress, LoadProgress};

/// A bar on standard error of the weights that are read; none where that is no terminal.
pub fn bar() -> Option<LoadProgress> {
    let bar = on_terminal("loading [{bar:40}] {bytes} of {total_bytes}")?;
    Some(LoadProgress::new(move |read, all| show(&bar, read, all)))
}

/// A bar on standard error of the file that is downloaded; none where that is no terminal.
pub fn download_bar() -> Option<DownloadProgress> {
    let bar = on_terminal("{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left")?;
    Some(DownloadProgress::new(move |file, received, all| {
        if bar.message() != file {
            bar.set_message(file.to_owned());
            bar.reset();
        }
        show(&bar, received, all);
    }))
}

fn on_terminal(template: &str) -> Option<ProgressBar> {
    if !stderr().is_terminal() {
        return None;
    }
    let style = ProgressStyle::with_template(template).ok()?;
    Some(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style))
}

fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
    if done >= all {
        bar.finish_and_clear();
    }
}
