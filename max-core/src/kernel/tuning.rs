//! Numbers that decide how work is divided and stored: values that measurements gave, or parts of the machine's last-level
//! cache. Tile sizes are not here: they stand in each kernel's attribute, and are compiled in.
//!
//! Nothing changes them by itself. `max bench --tune` tries others and shows what they would give. No result depends on
//! them, but for the last bits of reductions of rows that run across vector lanes or within them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::cpu_caches;

/// Where a number comes from unless it is set.
#[derive(Clone, Copy)]
enum Source {
    /// From measurements.
    Measured(usize),
    /// Five eighths of the last-level cache; the number where the machine does not say how large that is.
    OfCache(usize),
}

/// What the parameter holds that nobody has set or asked for.
const UNSET: usize = usize::MAX;

/// A number that may be tuned.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it decides, in a line.
    pub doc: &'static str,
    source: Source,
    value: AtomicUsize,
}

impl Parameter {
    const fn new(name: &'static str, default: usize, doc: &'static str) -> Self {
        Parameter { name, doc, source: Source::Measured(default), value: AtomicUsize::new(UNSET) }
    }

    const fn of_cache(name: &'static str, unknown: usize, doc: &'static str) -> Self {
        Parameter { name, doc, source: Source::OfCache(unknown), value: AtomicUsize::new(UNSET) }
    }

    /// Its value unless it is set.
    pub fn default(&self) -> usize {
        match self.source {
            Source::Measured(value) => value,
            Source::OfCache(unknown) => cpu_caches::last_level().map_or(unknown, |bytes| bytes / 8 * 5),
        }
    }

    /// Its present value.
    #[inline]
    pub fn get(&self) -> usize {
        match self.value.load(Ordering::Relaxed) {
            UNSET => {
                let default = self.default();
                self.set(default);
                default
            }
            value => value,
        }
    }

    /// Sets it for the whole process, from the next launch on.
    pub fn set(&self, value: usize) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Other values that are worth a try.
    pub fn others(&self) -> Vec<usize> {
        match self.default() {
            // Forms of a kernel, by number.
            0 => (1..=4).collect(),
            n => vec![n / 4, n / 2, n * 2, n * 4],
        }
    }
}

/// Elements that are worth another thread, of elementwise kernels.
pub static GRAIN_ELEMENTS: Parameter =
    Parameter::new("grain_elements", 16 << 10, "elements that are worth another thread, of elementwise kernels");

/// Bytes that are worth another thread, of programs that do little but read and write.
pub static GRAIN_BYTES: Parameter = Parameter::new(
    "grain_bytes",
    64 << 10,
    "bytes that are worth another thread, of programs that do little but read and write",
);

/// Nanoseconds of work that are worth another thread, where its cost is known: what is handed over takes a few hundred.
pub static GRAIN_NS: Parameter =
    Parameter::new("grain_ns", 3000, "nanoseconds of work that are worth another thread, once its cost is known");

/// Bytes that are worth another thread, of copies.
pub static GRAIN_COPY_BYTES: Parameter =
    Parameter::new("grain_copy_bytes", 256 << 10, "bytes that are worth another thread, of copies");

/// Bytes of operands and results from which on the cache does not hold results until they are read: they are written by non-temporal
/// stores.
pub static STREAM_BYTES: Parameter = Parameter::of_cache(
    "stream_bytes",
    12 << 20,
    "bytes of operands and results from which on these are written by non-temporal stores",
);

/// The same, for results of kernels with `dot`: little of their time goes into reading such results again.
pub static STREAM_PRODUCT_BYTES: Parameter = Parameter::new(
    "stream_product_bytes",
    1 << 20,
    "bytes from which on results of GEMM are written by non-temporal stores",
);

/// Elements of the longest row of which neighbouring programs run side by side in vector lanes.
pub static ACROSS_ROW: Parameter = Parameter::new(
    "across_row",
    32,
    "elements of the longest row that runs across vector lanes, not within them; reductions add to it",
);

/// Which of the tile sizes that a kernel was compiled with it takes: 0 for those that its attribute's conditions tell, `n`
/// for the nth.
pub static TILE_FORM: Parameter =
    Parameter::new("tile_form", 0, "which of a kernel's tile sizes it takes: 0 as its attribute says, n the nth");

/// All of them.
pub static PARAMETERS: [&Parameter; 8] = [
    &GRAIN_ELEMENTS,
    &GRAIN_BYTES,
    &GRAIN_NS,
    &GRAIN_COPY_BYTES,
    &STREAM_BYTES,
    &STREAM_PRODUCT_BYTES,
    &ACROSS_ROW,
    &TILE_FORM,
];
