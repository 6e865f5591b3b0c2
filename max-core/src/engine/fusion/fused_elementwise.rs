//! How a [`Region`] runs: several elementwise kernels, tile by tile.
//!
//! A tile is [`TILE`] elements. All kernels run on one tile before the next one begins, so that what only they read stays
//! in scratch memory in the first-level cache; each result is rounded to its dtype as if it had gone through memory. Where
//! operands are broadcast along short rows, or transposed, their part of a tile is gathered to scratch memory first, so
//! that the kernels always run over long dense rows. Of transposed operands with long rows, parts of some rows are gathered together,
//! square by square, since they share cache lines. Results that lie otherwise, as parts of a concatenation do, are
//! scattered from there.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::kernel::abi::RawTensor;
use crate::kernel::cpu::transpose::{LINE, Strip, Word, copy_run, fence, prefetch, transpose};
use crate::kernel::ir::Place;
use crate::kernel::tuning::{GRAIN_ELEMENTS, STREAM_BYTES};
use crate::kernel::{Part, TensorArg, collapse, distinct_bytes, is_measured, parallel, rows_begin_at_lines};
use crate::plan::fusion::{MAX_OPERANDS, MAX_SCRATCH, Region, RegionKernel};

/// Elements of a tile: one store to the first-level cache for each kernel, against the cost of a call.
pub(crate) const TILE: usize = 1024;
/// Rows of at least this many elements are walked where they are.
const LONG_ROW: i64 = 256;
/// Rows of transposed operands that are gathered together: as many as share a cache line, of four bytes an element.
const SQUARE_ROWS: i64 = 16;
/// Operands of this size and more are fetched ahead.
const FAR_BYTES: usize = 1 << 20;

/// Scratch memory of one thread: the values inside the region, then gathered operands.
#[repr(align(64))]
struct Scratch {
    _slots: [MaybeUninit<u8>; (MAX_SCRATCH + MAX_OPERANDS) * TILE * 8],
}

impl Scratch {
    /// By pointer, since bound operands point there as well.
    fn slot(scratch: *mut Scratch, slot: usize) -> *mut u8 {
        scratch.cast::<u8>().wrapping_add(slot * TILE * 8)
    }
}

/// The operands of all kernels, one kernel's after the other's. From tile to tile only pointers change, and those of few.
type RawTensors = SmallVec<[RawTensor; 24]>;

/// An operand, walked along the merged dims.
struct Walk {
    first: *mut u8,
    strides: SmallVec<[i64; 6]>,
    element_size: usize,
    /// Whether its elements lie in the order of the tiles.
    is_linear: bool,
    is_written: bool,
    /// Where in scratch memory parts of its rows are gathered together, in bytes behind the first slot of operands.
    squares: Option<usize>,
    /// Whether it comes from memory: it is read in the order of the tiles, and too large for the caches of a core.
    is_far: bool,
}

// SAFETY: threads write disjoint tiles of operands that whoever launches the region vouches for.
unsafe impl Sync for Walk {}

/// What is the same for all tiles of a region.
pub(crate) struct Run {
    walks: SmallVec<[Walk; MAX_OPERANDS]>,
    /// The merged dims.
    dims: SmallVec<[i64; 6]>,
    /// The number of elements, and of those in a row.
    total: i64,
    inner: i64,
    /// Whether tiles lie within rows.
    by_rows: bool,
    /// The columns of tiles whose transposed operands are gathered for several rows together.
    square_columns: Option<i64>,
    /// Whether any operand is far.
    is_far: bool,
    /// Whether results are written by non-temporal stores. A fence is then made once for many tiles, since each waits until all
    /// that was written has reached memory.
    pub stream: bool,
}

/// Elements that all kernels run on before the next ones.
struct RunTile {
    start: i64,
    count: i64,
    /// Their row in what was gathered of several rows.
    square_row: i64,
}

static DENSE: i64 = 1;
static REPEATED: i64 = 0;

impl Region {
    /// Runs all kernels over all elements.
    ///
    /// # Safety
    /// As for [`BoundKernel::launch`], where a result may lie in the place of an operand if it is written by the last
    /// kernel that reads the operand or a later one, and is contiguous then.
    // Not inlined: the pages of scratch memory would be probed in each execution of any plan.
    #[inline(never)]
    pub unsafe fn launch(&self, operands: &[TensorArg<'_>]) {
        let Some(mut run) = self.prepare(operands) else { return };
        run.find_squares();
        let run = run;
        // Tiles lie within rows, or the rows are put end to end and cut.
        let row = if run.by_rows { run.inner } else { run.total };
        let columns = run.square_columns.unwrap_or(TILE as i64);
        let tiles_in_row = (row as usize).div_ceil(columns as usize);
        // Rows of a square lie side by side in transposed operands.
        let (rows, height) = match (run.square_columns, run.dims.as_slice()) {
            (Some(_), [.., rows, _]) => (*rows, SQUARE_ROWS),
            _ => (run.total / row, 1),
        };
        let squares = (rows as usize).div_ceil(height as usize);
        let tiles = (run.total / row / rows) as usize * squares * tiles_in_row;
        let some = |first: usize, last: usize| {
            let mut scratch = MaybeUninit::<Scratch>::uninit();
            let scratch = scratch.as_mut_ptr();
            let mut raw = RawTensors::new();
            self.bind(&run, scratch, &mut raw);
            for tile in first..last {
                let (square, left) = (tile / tiles_in_row, (tile % tiles_in_row) as i64 * columns);
                let top = (square % squares) as i64 * height;
                let start = ((square / squares) as i64 * rows + top) * row + left;
                let (count, height) = ((row - left).min(columns), (rows - top).min(height));
                if run.square_columns.is_some() {
                    // SAFETY: by the contract above; these are elements of the dims.
                    unsafe { run.gather_squares(start, [count, height], scratch) };
                }
                for i in 0..height {
                    let tile = RunTile { start: start + i * row, count, square_row: i };
                    // SAFETY: as above.
                    unsafe { self.run_tile(&run, tile, std::ptr::null_mut(), scratch, &mut raw) };
                }
            }
            if run.stream {
                fence();
            }
        };
        let (total, most) = (run.total as usize, GRAIN_ELEMENTS.get());
        let grain = match self.is_serial() {
            true => tiles,
            false => (self.cost.grain(most) * tiles).div_ceil(total).max(1),
        };
        parallel(tiles, grain, |first, last| match is_measured(total, most) {
            true => self.cost.measure((total * (last - first)).div_ceil(tiles), || some(first, last)),
            false => some(first, last),
        });
    }

    fn is_serial(&self) -> bool {
        self.kernels.iter().any(|kernel| kernel.kernel.serial())
    }

    /// What is the same for all tiles; `None` if there are none. Without operands in memory, a region has no elements.
    pub fn prepare(&self, operands: &[TensorArg<'_>]) -> Option<Run> {
        let (dims, strides) = collapse(operands.first()?.dims, operands);
        let (total, inner) = (dims.iter().product::<i64>(), dims.last().copied().unwrap_or(1));
        if total <= 0 {
            return None;
        }
        let mut dense: SmallVec<[i64; 6]> = SmallVec::from_elem(1, dims.len());
        for axis in (1..dims.len()).rev() {
            dense[axis - 1] = dense[axis] * dims[axis];
        }
        let mut walks: SmallVec<[Walk; MAX_OPERANDS]> = SmallVec::new();
        for (index, (operand, strides)) in operands.iter().zip(strides).enumerate() {
            let (element_size, written) = (self.dtypes[index].size_in_bytes(), self.written[index]);
            let is_linear = strides == dense;
            let is_far = is_linear && !written && element_size * total as usize >= FAR_BYTES;
            walks.push(Walk {
                first: operand.ptr,
                strides,
                element_size,
                is_linear,
                is_written: written,
                squares: None,
                is_far,
            });
        }
        let bytes = walks.iter().map(|walk| distinct_bytes(&dims, &walk.strides, walk.element_size));
        let exceeds_cache = bytes.fold(0, usize::saturating_add) >= STREAM_BYTES.get();
        // Kernels write dense rows.
        let is_scattered = |walk: &Walk| walk.is_written && walk.strides.last().is_some_and(|stride| *stride != 1);
        let by_rows = (dims.len() <= 1 || inner >= LONG_ROW) && !walks.iter().any(is_scattered);
        let mut written = walks.iter().filter(|walk| walk.is_written);
        let stream = exceeds_cache
            && match by_rows {
                true => written.all(|walk| rows_begin_at_lines(walk.first, &walk.strides, walk.element_size)),
                false => written.all(|walk| walk.is_linear),
            };
        let is_far = walks.iter().any(|walk| walk.is_far);
        Some(Run { walks, by_rows, square_columns: None, is_far, dims, total, inner, stream })
    }

    /// Runs all kernels over a part of the operand of a program, `element_size` being that of its elements. A fence is the
    /// caller's to make.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch); the operand must have as many elements as the region's dims, and the part must be
    /// readable or writable as the region's kernels do.
    pub unsafe fn run_part(&self, run: &Run, part: &Part<'_>, element_size: usize, copy: bool) {
        thread_local! {
            static SCRATCH: RefCell<Option<Box<MaybeUninit<Scratch>>>> = const { RefCell::new(None) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let scratch = scratch.get_or_insert_with(|| Box::new(MaybeUninit::uninit())).as_mut_ptr();
            let mut raw = RawTensors::new();
            self.bind(run, scratch, &mut raw);
            part.runs(|ptr, start, count| {
                let mut done = 0;
                while done < count {
                    let start = start + done;
                    let row = if run.by_rows { run.inner - start % run.inner } else { run.total };
                    let tile = (count - done).min(row).min(TILE as i64);
                    let ptr = ptr.wrapping_add(done as usize * element_size);
                    // SAFETY: by the contract above; these are elements of the dims.
                    unsafe {
                        self.run_tile(run, RunTile { start, count: tile, square_row: 0 }, ptr, scratch, &mut raw)
                    };
                    if let Some(copy) = self.copy.filter(|_| copy) {
                        let to = run.walks[copy].first.wrapping_add(start as usize * element_size);
                        // SAFETY: as above; what is written is in row-major order.
                        unsafe { copy_run(to, ptr, tile as usize * element_size, run.stream) };
                    }
                    done += tile;
                }
            });
        });
    }

    /// Appends the operands of all kernels, but for what differs between tiles.
    fn bind(&self, run: &Run, scratch: *mut Scratch, raw: &mut RawTensors) {
        for place in self.kernels.iter().flat_map(|kernel| &kernel.places) {
            let (ptr, strides) = match *place {
                Place::Memory(index) => (std::ptr::null_mut(), run.walks[index].stride(run.by_rows)),
                Place::Scratch(slot) => (Scratch::slot(scratch, slot), &raw const DENSE),
                Place::Program => (std::ptr::null_mut(), &raw const DENSE),
                // Where lanes have such bytes, the first ones of a number are its low ones.
                Place::Constant(ref bits) => ((&raw const *bits).cast_mut().cast(), &raw const REPEATED),
            };
            raw.push(RawTensor { ptr, dims: std::ptr::null(), strides, pack: std::ptr::null() });
        }
    }

    /// `program` is where the elements of the operand of a program are; `raw` are the bound operands.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch); `start..start + count` are elements of the dims, in one row if tiles lie within
    /// rows. The scratch memory is this thread's.
    unsafe fn run_tile(
        &self,
        run: &Run,
        RunTile { start, count, square_row }: RunTile,
        program: *mut u8,
        scratch: *mut Scratch,
        raw: &mut RawTensors,
    ) {
        let Run { walks, dims, by_rows, .. } = run;
        let mut memory: SmallVec<[*mut u8; MAX_OPERANDS]> = SmallVec::new();
        for (index, walk) in walks.iter().enumerate() {
            let size = walk.element_size;
            memory.push(if walk.is_linear {
                walk.first.wrapping_add(start as usize * size)
            } else if let (Some(at), Some(columns)) = (walk.squares, run.square_columns) {
                Scratch::slot(scratch, MAX_SCRATCH).wrapping_add(at + (square_row * columns) as usize * size)
            } else if *by_rows {
                walk.first.wrapping_offset(walk.offset(dims, start) as isize * size as isize)
            } else {
                let slot = Scratch::slot(scratch, MAX_SCRATCH + index);
                if !walk.is_written {
                    // SAFETY: by the contract above; a slot has room for a tile of any dtype.
                    unsafe { walk.gather_any(dims, start, count, slot) };
                }
                slot
            });
        }
        let mut rest = raw.as_mut_slice();
        for (step, RegionKernel { kernel, places, may_stream }) in self.kernels.iter().enumerate() {
            // Before each kernel but the first, which reads this tile, a part of the next one is asked for, and comes from
            // memory while the kernel computes.
            // A part's next row is another thread's, or far off.
            if let Some(step) = step.checked_sub(1).filter(|_| run.is_far && program.is_null()) {
                for walk in walks.iter().filter(|walk| walk.is_far) {
                    let part = (TILE * walk.element_size).div_ceil(self.kernels.len() - 1).next_multiple_of(LINE);
                    let next = (start as usize + TILE) * walk.element_size + step * part;
                    prefetch(walk.first.wrapping_add(next), part);
                }
            }
            let Some((operands, behind)) = rest.split_at_mut_checked(places.len()) else { return };
            rest = behind;
            for (operand, place) in operands.iter_mut().zip(places) {
                operand.dims = &raw const count;
                match *place {
                    Place::Memory(index) => operand.ptr = memory[index],
                    Place::Program => operand.ptr = program,
                    Place::Scratch(_) | Place::Constant(_) => (),
                }
            }
            // SAFETY: by the contract above; scratch memory was written by an earlier kernel before it is read.
            unsafe { kernel.run(operands, run.stream && *may_stream, 0, count) };
        }
        if *by_rows {
            return;
        }
        for (index, walk) in walks.iter().enumerate().filter(|(_, walk)| walk.is_written && !walk.is_linear) {
            // SAFETY: as above; the slot was written by the kernels.
            unsafe { walk.scatter_any(dims, start, count, Scratch::slot(scratch, MAX_SCRATCH + index)) };
        }
    }
}

impl Run {
    /// Finds operands whose rows lie side by side, and that are not written: parts of [`SQUARE_ROWS`] rows of these are gathered together, as
    /// wide as there is room for in the slots of operands, which are not gathered otherwise where tiles lie in rows.
    fn find_squares(&mut self) {
        let transposed = self.walks.iter().filter(|walk| walk.is_transposed());
        let bytes = transposed.map(|walk| walk.element_size).sum::<usize>() * SQUARE_ROWS as usize;
        if !self.by_rows || bytes == 0 {
            return;
        }
        // In whole lines.
        let columns = (MAX_OPERANDS * TILE * 8 / bytes / LINE * LINE).min(TILE);
        let mut at = 0;
        for walk in self.walks.iter_mut().filter(|walk| walk.is_transposed()) {
            walk.squares = Some(at);
            at += columns * SQUARE_ROWS as usize * walk.element_size;
        }
        // What is next is another row.
        self.is_far = false;
        self.square_columns = Some(columns as i64);
    }

    /// Gathers some columns of some rows of transposed operands, from element `start` on.
    ///
    /// # Safety
    /// They must be elements of the dims; the scratch memory is this thread's.
    // Not inlined: the pages of a strip would be probed in each launch of any region.
    #[inline(never)]
    unsafe fn gather_squares(&self, start: i64, sides: [i64; 2], scratch: *mut Scratch) {
        let mut strip = Strip::new();
        let columns = self.square_columns.unwrap_or(1);
        for walk in &self.walks {
            let Some(at) = walk.squares else { continue };
            let target = Scratch::slot(scratch, MAX_SCRATCH).wrapping_add(at);
            let first = walk.offset(&self.dims, start);
            // SAFETY: by the contract above; there is room for so many columns of all rows.
            unsafe {
                match walk.element_size {
                    1 => walk.gather_square::<u8>(first, sides, (target, columns), &mut strip),
                    2 => walk.gather_square::<u16>(first, sides, (target, columns), &mut strip),
                    4 => walk.gather_square::<u32>(first, sides, (target, columns), &mut strip),
                    _ => walk.gather_square::<u64>(first, sides, (target, columns), &mut strip),
                }
            }
        }
    }
}

impl Walk {
    /// Whether it is read, and its rows lie side by side.
    fn is_transposed(&self) -> bool {
        !self.is_written && matches!(self.strides.as_slice(), [.., 1, column] if !matches!(column, 0 | 1))
    }

    /// Copies some columns of some rows, which lie side by side, from element `first` of the operand on, to rows so far apart.
    ///
    /// # Safety
    /// They must be elements of the operand, of the size of `W`; there must be room for them.
    unsafe fn gather_square<W: Word>(
        &self,
        first: i64,
        [columns, rows]: [i64; 2],
        (target, pitch): (*mut u8, i64),
        strip: &mut Strip,
    ) {
        let source = self.first.cast::<W>().wrapping_offset(first as isize).cast_const();
        let step = self.strides.last().copied().unwrap_or(1) as isize;
        let sides = (columns as usize, rows as usize);
        // SAFETY: by the contract above; scratch memory is none of the operand's.
        unsafe { transpose((target.cast::<W>(), pitch as isize), (source, step), sides, false, strip) };
    }

    /// The stride of a tile's elements, which are gathered if tiles do not lie in rows, or rows lie side by side.
    fn stride(&self, by_rows: bool) -> *const i64 {
        let is_in_place = by_rows && !self.is_linear && self.squares.is_none();
        self.strides.last().filter(|_| is_in_place).map_or(&raw const DENSE, |stride| &raw const *stride)
    }

    /// The offset of the element number `index`, in elements.
    fn offset(&self, dims: &[i64], mut index: i64) -> i64 {
        let mut offset = 0;
        for (dim, stride) in dims.iter().zip(&self.strides).rev() {
            offset += index % dim * stride;
            index /= dim;
        }
        offset
    }

    /// Copies the elements `start..start + count` to `target`.
    ///
    /// # Safety
    /// They must be elements of the operand; `target` must have room for them.
    unsafe fn gather_any(&self, dims: &[i64], start: i64, count: i64, target: *mut u8) {
        // SAFETY: by the contract above.
        unsafe {
            match self.element_size {
                1 => self.gather::<u8>(dims, start, count, target.cast()),
                2 => self.gather::<u16>(dims, start, count, target.cast()),
                4 => self.gather::<u32>(dims, start, count, target.cast()),
                _ => self.gather::<u64>(dims, start, count, target.cast()),
            }
        }
    }

    /// Copies the elements `start..start + count` from `source` to where the operand has them.
    ///
    /// # Safety
    /// They must be elements of the operand, no two in one place, and `source` must have as many.
    unsafe fn scatter_any(&self, dims: &[i64], start: i64, count: i64, source: *const u8) {
        // SAFETY: by the contract above.
        unsafe {
            match self.element_size {
                1 => self.scatter::<u8>(dims, start, count, source.cast()),
                2 => self.scatter::<u16>(dims, start, count, source.cast()),
                4 => self.scatter::<u32>(dims, start, count, source.cast()),
                _ => self.scatter::<u64>(dims, start, count, source.cast()),
            }
        }
    }

    /// # Safety
    /// As for [`scatter_any`](Self::scatter_any), of elements of the size of `W`.
    unsafe fn scatter<W: Copy>(&self, dims: &[i64], start: i64, count: i64, source: *const W) {
        let (Some(&inner), Some(&stride)) = (dims.last(), self.strides.last()) else { return };
        let mut done = 0;
        while done < count {
            let at = start + done;
            let length = (inner - at % inner).min(count - done);
            let target = self.first.cast::<W>().wrapping_offset(self.offset(dims, at) as isize);
            // SAFETY: by the contract above: the rest of a row.
            unsafe {
                let source = source.offset(done as isize);
                match stride {
                    1 => target.copy_from_nonoverlapping(source, length as usize),
                    _ => (0..length as isize).for_each(|i| *target.offset(i * stride as isize) = *source.offset(i)),
                }
            }
            done += length;
        }
    }

    /// Copies the elements `start..start + count` to `target`.
    ///
    /// # Safety
    /// They must be elements of the operand, of the size of `W`; `target` must have room for them.
    unsafe fn gather<W: Copy>(&self, dims: &[i64], start: i64, count: i64, target: *mut W) {
        let (Some((&inner, outer)), Some((&stride, jumps))) = (dims.split_last(), self.strides.split_last()) else {
            return;
        };
        // Rows that are all the same need to be read once; the rest is copied from what is there.
        let repeats = jumps.iter().all(|jump| *jump == 0);
        let distinct = if repeats { count.min(inner) } else { count };
        let mut index: SmallVec<[i64; 6]> = SmallVec::from_elem(0, outer.len());
        let mut rest = start / inner;
        for (slot, dim) in index.iter_mut().zip(outer).rev() {
            *slot = rest % dim;
            rest /= dim;
        }
        let mut row: i64 = index.iter().zip(jumps).map(|(i, jump)| i * jump).sum();
        let mut column = start % inner;
        let mut done = 0;
        while done < distinct {
            let length = (inner - column).min(distinct - done);
            let source = self.first.cast::<W>().wrapping_offset((row + column * stride) as isize);
            // SAFETY: by the contract above: the rest of a row.
            unsafe {
                let target = target.offset(done as isize);
                match stride {
                    0 => {
                        let value = *source;
                        (0..length as usize).for_each(|i| *target.add(i) = value);
                    }
                    _ => (0..length).for_each(|i| *target.offset(i as isize) = *source.offset((i * stride) as isize)),
                }
            }
            done += length;
            column = 0;
            // The next row.
            for ((slot, dim), jump) in index.iter_mut().zip(outer).zip(jumps).rev() {
                *slot += 1;
                row += jump;
                if *slot < *dim {
                    break;
                }
                *slot = 0;
                row -= jump * dim;
            }
        }
        while done < count {
            let length = done.min(count - done);
            // SAFETY: what is copied was written, and `done` is a multiple of the period.
            unsafe { target.offset(done as isize).copy_from_nonoverlapping(target, length as usize) };
            done += length;
        }
    }
}
