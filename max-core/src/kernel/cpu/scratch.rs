//! Memory of a thread's own, in whole cache lines: rows that a program keeps, tiles packed for one product, and the parts of
//! operands that lie beside a program.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

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

/// Where line `from` of a piece begins, of which there are that many.
fn line(piece: &mut Vec<Line>, from: usize) -> *mut u8 {
    piece.as_mut_ptr().wrapping_add(from).cast()
}

thread_local! {
    /// Lines of the newest piece that the running program has taken.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    /// What was allocated for programs. The older pieces are of the running program alone.
    static PIECES: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
    /// What was allocated for the two operands of a product, packed and converted.
    static TILES: RefCell<[Vec<Line>; 4]> = const { RefCell::new([const { Vec::new() }; 4]) };
    /// What was allocated for parts, while nobody uses it.
    static PARTS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Lines that are allocated at least.
const LITTLE: usize = (64 << 10) / size_of::<Line>();
/// Lines that a thread holds on to, whatever is needed next.
const MUCH: usize = (1 << 20) / size_of::<Line>();

/// Says that a program begins: it has taken nothing yet.
#[inline(always)]
pub(super) fn begin() {
    TAKEN.set(0);
}

/// Memory that is the running program's own until it ends.
#[inline(never)]
pub(super) fn take(bytes: usize) -> *mut u8 {
    let lines = lines(bytes);
    let from = TAKEN.get();
    PIECES.with_borrow_mut(|pieces| {
        if from == 0 {
            // A piece that is much too large is given back.
            pieces.drain(..pieces.len().saturating_sub(1));
            pieces.retain(|piece| piece.capacity() <= MUCH.max(lines.saturating_mul(4)));
        }
        let size = pieces.last().map_or(0, Vec::capacity);
        let from = if from + lines <= size { from } else { 0 };
        if from + lines > size || TAKEN.get() > 0 && from == 0 {
            // Room for all that is taken so far, so that the next program like this one finds it in one piece.
            let all = pieces.iter().map(Vec::capacity).sum::<usize>() + lines;
            pieces.push(Vec::with_capacity(all.max(LITTLE)));
        }
        TAKEN.set(from + lines);
        pieces.last_mut().map_or(std::ptr::null_mut(), |piece| line(piece, from))
    })
}

/// Which operand of a product.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Left,
    Right,
    /// The left one, converted before it is packed.
    ConvertedLeft,
    /// The right one, converted before it is packed.
    ConvertedRight,
}

/// Memory for a packed tile, valid until the next call for the same side.
#[inline(never)]
pub(super) fn tile(side: Side, bytes: usize) -> *mut u8 {
    TILES.with_borrow_mut(|tiles| {
        let room = &mut tiles[side as usize];
        room.reserve(lines(bytes));
        line(room, 0)
    })
}

/// Memory for the parts of operands, the owner's until it is dropped.
pub(in crate::kernel) struct Parts {
    room: Vec<Line>,
    first: *mut u8,
}

/// Lines that a thread holds on to for parts.
const PARTS_KEPT: usize = (4 << 20) / size_of::<Line>();

impl Parts {
    /// Room for so many bytes, of any contents.
    pub(in crate::kernel) fn take(bytes: usize) -> Self {
        let mut room = PARTS.take();
        room.reserve(lines(bytes));
        let first = line(&mut room, 0);
        Parts { room, first }
    }

    /// The byte of that number.
    pub(in crate::kernel) fn at(&self, byte: usize) -> *mut u8 {
        self.first.wrapping_add(byte)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if self.room.capacity() <= PARTS_KEPT {
            PARTS.set(std::mem::take(&mut self.room));
        }
    }
}
