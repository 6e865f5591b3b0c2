//! Scratch memory of a thread: a bump arena for row caches, buffers for packed tiles, and slices of fused operands.
//!
//! It exists so that programs allocate nothing in the steady state. All of it is in whole cache lines.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::thread::LocalKey;

/// The unit of memory.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [MaybeUninit<u8>; 64],
}

/// Lines for so many bytes.
fn lines(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<Line>())
}

/// Where line `from` of a chunk begins, of which there are that many.
fn line(chunk: &mut Vec<Line>, from: usize) -> *mut u8 {
    chunk.as_mut_ptr().wrapping_add(from).cast()
}

thread_local! {
    /// Bytes that there was no memory for, since somebody asked.
    static UNAVAILABLE: Cell<usize> = const { Cell::new(0) };
    /// Lines of the newest chunk that the running program has taken.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    /// What was allocated for programs. The older chunks are of the running program alone.
    static CHUNKS: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
    /// What was allocated for the two operands of a GEMM, for each `Side`.
    static TILES: RefCell<[Vec<Line>; 5]> = const { RefCell::new([const { Vec::new() }; 5]) };
    /// The buffers for slices of fused operands, and for both operands of a product of scaled integers, while nobody uses them.
    static SLICES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static ROWS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static COLUMNS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// The launch that a thread runs programs of, in which operands that are read do not change; 0 for none that is known.
    static LAUNCH: Cell<u64> = const { Cell::new(0) };
}

/// The launch whose programs a thread runs, until it is dropped.
pub(in crate::kernel) struct InLaunch {
    /// The one before, of whose programs one may be waiting.
    before: u64,
}

impl InLaunch {
    /// By a number that no other launch has, or 0: then nothing that programs make of operands is kept for others.
    pub(in crate::kernel) fn enter(launch: u64) -> Self {
        InLaunch { before: LAUNCH.replace(launch) }
    }
}

impl Drop for InLaunch {
    fn drop(&mut self) {
        LAUNCH.set(self.before);
    }
}

/// The launch whose programs this thread runs.
#[cfg(target_arch = "x86_64")]
pub(super) fn current_launch() -> u64 {
    LAUNCH.get()
}

/// Reports that there was no memory for `bytes` bytes, so that the launch is an error.
#[cold]
#[inline(never)]
pub(in crate::kernel) fn report_out_of_memory(bytes: usize) {
    UNAVAILABLE.set(bytes.max(UNAVAILABLE.get()).max(1));
}

/// Takes the report: the bytes that programs on this thread lacked since the last call. What these wrote means nothing.
pub(in crate::kernel) fn take_out_of_memory() -> Option<usize> {
    Some(UNAVAILABLE.replace(0)).filter(|bytes| *bytes > 0)
}

/// The smallest chunk, in lines.
const MIN_LINES: usize = (64 << 10) / size_of::<Line>();
/// Lines that a thread retains, whatever is needed next.
const MAX_RETAINED: usize = (1 << 20) / size_of::<Line>();

/// The arena of the thread that asked for it, as loops over programs hold it: to find a thread's own variable is a call, which would be
/// made for each program.
pub(super) struct Arena {
    allocated: *const Cell<usize>,
}

impl Arena {
    #[inline(never)]
    pub(super) fn of_thread() -> Self {
        Arena { allocated: ALLOCATED.with(std::ptr::from_ref) }
    }

    /// A program begins.
    #[inline(always)]
    pub(super) fn reset(&self) {
        // SAFETY: the variable needs no drop, and so it is there as long as its thread, which an arena does not leave.
        unsafe { &*self.allocated }.set(0);
    }
}

/// Allocates from the arena until the program ends; `None` if there is no memory.
#[inline(never)]
pub(super) fn allocate(bytes: usize) -> Option<*mut u8> {
    let lines = lines(bytes);
    let from = ALLOCATED.get();
    CHUNKS.with_borrow_mut(|chunks| {
        if from == 0 {
            // A chunk that is much too large is given back.
            chunks.drain(..chunks.len().saturating_sub(1));
            chunks.retain(|chunk| chunk.capacity() <= MAX_RETAINED.max(lines.saturating_mul(4)));
        }
        let size = chunks.last().map_or(0, Vec::capacity);
        let from = if lines <= size.saturating_sub(from) { from } else { 0 };
        if lines > size || ALLOCATED.get() > 0 && from == 0 {
            // Room for all that is taken so far, so that the next program like this one finds it in one chunk.
            let all = chunks.iter().map(Vec::capacity).fold(lines, usize::saturating_add);
            let mut chunk = Vec::new();
            let fits = |chunk: &mut Vec<Line>, lines: usize| chunk.try_reserve_exact(lines).is_ok();
            if chunks.try_reserve(1).is_err() || !fits(&mut chunk, all.max(MIN_LINES)) && !fits(&mut chunk, lines) {
                return None;
            }
            chunks.push(chunk);
        }
        ALLOCATED.set(from + lines);
        chunks.last_mut().map(|chunk| line(chunk, from))
    })
}

/// Which operand of a GEMM.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Lhs,
    Rhs,
    /// The left one, converted before it is packed.
    ConvertedLhs,
    /// The right one, converted before it is packed.
    ConvertedRhs,
    /// A panel of the right one, packed while it is multiplied.
    #[cfg(target_arch = "x86_64")]
    Panel,
}

/// Memory for a packed tile, valid until the next call for the same side; `None` if there is none.
#[inline(never)]
pub(super) fn tile(side: Side, bytes: usize) -> Option<*mut u8> {
    TILES.with_borrow_mut(|tiles| {
        let room = &mut tiles[side as usize];
        room.try_reserve(lines(bytes)).ok()?;
        Some(line(room, 0))
    })
}

/// Memory that is the owner's until it is dropped: code of kernels may run meanwhile, and take more of the same.
pub(in crate::kernel) struct OwnedScratch {
    room: Vec<Line>,
    first: *mut u8,
    /// Where it goes when it is dropped.
    home: &'static LocalKey<Cell<Vec<Line>>>,
}

/// Lines that a thread retains for each of them.
const OWNED_RETAINED: usize = (4 << 20) / size_of::<Line>();

impl OwnedScratch {
    /// Room for so many bytes of slices of fused operands, of any contents; `None` if there is no memory for them.
    pub(in crate::kernel) fn for_slices(bytes: usize) -> Option<Self> {
        Self::take(&SLICES, bytes)
    }

    /// The same for unpacked rows of a product.
    pub(super) fn for_rows(bytes: usize) -> Option<Self> {
        Self::take(&ROWS, bytes)
    }

    /// The same for what they are multiplied with.
    pub(super) fn for_columns(bytes: usize) -> Option<Self> {
        Self::take(&COLUMNS, bytes)
    }

    fn take(home: &'static LocalKey<Cell<Vec<Line>>>, bytes: usize) -> Option<Self> {
        let mut room = home.take();
        if room.try_reserve(lines(bytes)).is_err() {
            report_out_of_memory(bytes);
            return None;
        }
        let first = line(&mut room, 0);
        Some(OwnedScratch { room, first, home })
    }

    /// The byte of that number.
    pub(in crate::kernel) fn at(&self, byte: usize) -> *mut u8 {
        self.first.wrapping_add(byte)
    }
}

impl Drop for OwnedScratch {
    fn drop(&mut self) {
        if self.room.capacity() <= OWNED_RETAINED {
            // Where the thread ends, its variable may be gone.
            let _ = self.home.try_with(|home| home.set(std::mem::take(&mut self.room)));
        }
    }
}
