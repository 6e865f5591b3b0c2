//! Ctrl-C: the first asks a command to end, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// The exit code of a command that Ctrl-C ended: 128 and the number of the signal, as shells have it.
pub const EXIT_CODE: u8 = 130;

static WAS_PRESSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, Ctrl-C is noticed by [`was_pressed`]; pressed once more, it ends the process.
pub fn listen() {
    WAS_PRESSED.get_or_init(|| {
        let pressed = Arc::new(AtomicBool::new(false));
        // Where no handler can be set, Ctrl-C ends the process as ever. The first of them sees what earlier presses set.
        let _ = flag::register_conditional_shutdown(SIGINT, EXIT_CODE.into(), pressed.clone())
            .and_then(|_| flag::register(SIGINT, pressed.clone()));
        pressed
    });
}

/// Whether Ctrl-C was pressed.
pub fn was_pressed() -> bool {
    WAS_PRESSED.get().is_some_and(|pressed| pressed.load(Ordering::Relaxed))
}
