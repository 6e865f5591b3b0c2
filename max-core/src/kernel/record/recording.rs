//! [`Recording`]: what recording a kernel gives, as IR within this crate, and as text between crates.

use std::cell::{Cell, RefCell};

use super::super::ir;

thread_local! {
    /// Whether the next recording is wanted as a kernel, and not as text.
    static WANTED: Cell<bool> = const { Cell::new(false) };
    /// That kernel, and the bytes of its tiles if they are more than any stack has room for.
    static RECORDED: RefCell<Option<(ir::Kernel, u64)>> = const { RefCell::new(None) };
}

/// What the last line of a kernel's text begins with, a comment, if it holds more bytes of tiles than any stack has room for: their
/// number follows.
const TILES: &str = "// bytes of tiles: ";

/// What a kernel's record function made. An extension has a copy of this crate, so its kernels come as text.
pub(in crate::kernel) enum Recording {
    Kernel(Box<ir::Kernel>, u64),
    Text(String),
}

impl Recording {
    /// What `record` records, which also returns it as text where it was not built by this copy of the crate. Text that is written and
    /// read again takes longer than recording does.
    pub fn of(record: impl FnOnce() -> String) -> Recording {
        WANTED.set(true);
        let text = record();
        WANTED.set(false);
        RECORDED.take().map_or(Recording::Text(text), |(kernel, bytes)| Recording::Kernel(Box::new(kernel), bytes))
    }

    /// The bytes of the tiles that a CPU holds for a program, if they are more than any stack has room for; else 0.
    pub fn tile_bytes(&self) -> u64 {
        match self {
            Recording::Kernel(_, bytes) => *bytes,
            Recording::Text(text) => {
                let last = text.trim_end().lines().next_back().and_then(|line| line.strip_prefix(TILES));
                last.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
            }
        }
    }

    /// The kernel.
    ///
    /// # Errors
    /// If the text is none.
    pub fn kernel(self) -> Result<ir::Kernel, ir::ParseError> {
        match self {
            Recording::Kernel(kernel, _) => Ok(*kernel),
            Recording::Text(text) => ir::parse(&text),
        }
    }
}

/// Whether this recording is wanted as a kernel. It is asked once.
pub(super) fn is_wanted() -> bool {
    WANTED.take()
}

/// Hands a kernel to whoever wants it.
pub(super) fn hand_over(kernel: ir::Kernel, tile_bytes: u64) {
    RECORDED.set(Some((kernel, tile_bytes)));
}

/// The kernel as text, with the bytes of its tiles if they are not 0.
pub(super) fn text(kernel: &ir::Kernel, tile_bytes: u64) -> String {
    match tile_bytes {
        0 => kernel.to_string(),
        bytes => format!("{kernel}{TILES}{bytes}\n"),
    }
}
