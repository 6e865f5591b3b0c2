//! Register layouts: how the elements of a tile are distributed over the threads of a block.
//!
//! It exists so that tiles of one shape meet element by element in the same thread. Triton calls these the blocked, the
//! MMA and the slice encodings.
//!
//! A thread holds the elements in some rows and some columns of the tile: those at a first row and column of its own,
//! which depend on the thread, plus offsets that are the same for all threads. The layout follows from the tile's shape
//! and the kernel.

use super::super::{BLOCK_SIZE, WARPS};

/// The place of a tile's elements in the threads' registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::kernel::ptx) struct Layout {
    pub rows: u32,
    pub columns: u32,
    pub kind: Kind,
}

/// How threads share out the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::kernel::ptx) enum Kind {
    /// The threads form a grid of rows and columns, both powers of two; a thread holds the elements whose row and
    /// column are its own, modulo the grid's size.
    Cyclic {
        /// Rows of threads.
        thread_rows: u32,
        /// Columns of threads; the product is the block's size.
        thread_columns: u32,
    },
    /// Each thread has runs of neighbours: of a row, or of a column where they lie so in memory. Computed operands of
    /// `dot`s are so, as they are read and passed on in vectors.
    Runs {
        /// Threads that follow each other along a row (or column), a power of two.
        threads: u32,
        /// How many neighbours.
        count: u32,
        /// Whether they are of a column.
        down: bool,
    },
    /// As the tensor cores leave accumulators: the warps form a grid, in which they follow each other down the columns;
    /// each has a rectangle, and in every 16 rows and 8 columns of it lane `l` holds rows `l / 4` and `l / 4 + 8`,
    /// columns `2 (l % 4)` and the next one.
    Fragments {
        /// Rows of warps.
        warp_rows: u32,
        /// Columns of warps; the product is the number of warps.
        warp_columns: u32,
    },
    /// As tensor cores leave accumulators of bytes ([`int8`](super::super::mma::int8)): the same, but in every 16 rows
    /// and 16 columns lane `l` holds four neighbours, from column `4 (l % 4)` on.
    Quads {
        /// Rows of warps.
        warp_rows: u32,
        /// Columns of warps; the product is the number of warps.
        warp_columns: u32,
    },
    /// One value a row, for tiles of fragments: each thread holds those of its rows, as others do that share these.
    RowCache {
        /// Rows of warps.
        warp_rows: u32,
        /// Columns of warps, which hold the same.
        warp_columns: u32,
    },
}

/// Grids of warps, from one column of them to one row, as rows and columns.
fn grids() -> impl Iterator<Item = (u32, u32)> {
    (0..=WARPS.ilog2()).rev().map(|log| (1 << log, WARPS >> log))
}

/// Whether each warp of a grid gets a rectangle that tensor cores make.
fn fits(rows: u32, columns: u32, (r, c): (u32, u32)) -> bool {
    rows * columns > 0 && rows.is_multiple_of(16 * r) && columns.is_multiple_of(8 * c)
}

impl Layout {
    /// The layout of a shape that no tensor core meets.
    pub fn cyclic(rows: u32, columns: u32) -> Layout {
        // 16 threads side by side, more where there are too few rows for the others, fewer for few columns.
        let side = 16;
        let thread_columns = match (rows, columns) {
            (0..16, _) => BLOCK_SIZE / rows.next_power_of_two(),
            (_, 0..16) => columns.next_power_of_two(),
            (_, _) => side,
        };
        Layout { rows, columns, kind: Kind::Cyclic { thread_rows: BLOCK_SIZE / thread_columns, thread_columns } }
    }

    /// The layout of runs of so many neighbours, with so many threads along these.
    pub fn runs(rows: u32, columns: u32, threads: u32, count: u32, down: bool) -> Layout {
        Layout { rows, columns, kind: Kind::Runs { threads, count, down } }
    }

    /// Whether each thread has neighbours of a column together.
    pub fn runs_down(&self) -> bool {
        matches!(self.kind, Kind::Runs { down: true, .. })
    }

    /// The layout of accumulators that tensor cores make, if the shape gives each warp a rectangle of its own: one that
    /// needs few rows and columns of the operands.
    pub fn fragments(rows: u32, columns: u32) -> Option<Layout> {
        let fitting = grids().filter(|&grid| fits(rows, columns, grid));
        let (warp_rows, warp_columns) = fitting.min_by_key(|(r, c)| rows / r + columns / c)?;
        Some(Layout { rows, columns, kind: Kind::Fragments { warp_rows, warp_columns } })
    }

    /// The layout of accumulators that four warps make together, 64 rows, and as many columns as they have.
    pub fn warpgroups(rows: u32, columns: u32) -> Option<Layout> {
        let (warp_rows, warp_columns) = grids().find(|(r, _)| 16 * r == rows)?;
        let l = Layout { rows, columns, kind: Kind::Fragments { warp_rows, warp_columns } };
        (fits(rows, columns, (warp_rows, warp_columns)) && l.by_wgmma()).then_some(l)
    }

    /// Whether warpgroups make `dot`s that lie so: each has 64 rows, and an operand's columns come in whole vectors
    /// even where it lies along them.
    pub fn by_wgmma(&self) -> bool {
        match self.kind {
            Kind::Fragments { warp_rows, warp_columns } => {
                let width = self.columns / warp_columns;
                warp_rows >= 4 && self.rows == 16 * warp_rows && width.is_multiple_of(16) && width <= 256
            }
            Kind::Cyclic { .. } | Kind::Runs { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => false,
        }
    }

    /// The layout of accumulators of bytes, if the shape gives each warp a rectangle of its own.
    pub fn quads(rows: u32, columns: u32) -> Option<Layout> {
        let fitting = grids().filter(|&(r, c)| fits(rows, columns, (r, 2 * c)));
        let (warp_rows, warp_columns) = fitting.min_by_key(|(r, c)| rows / r + columns / c)?;
        Some(Layout { rows, columns, kind: Kind::Quads { warp_rows, warp_columns } })
    }

    /// How many columns side by side each thread holds, if these are several.
    pub fn neighbours(&self) -> Option<u32> {
        match self.kind {
            Kind::Runs { count, down: false, .. } => Some(count),
            Kind::Fragments { .. } => Some(2),
            Kind::Quads { .. } => Some(4),
            Kind::Cyclic { .. } | Kind::Runs { .. } | Kind::RowCache { .. } => None,
        }
    }

    /// The layouts of accumulators with so many rows and columns for which threads hold the same rows in all of them,
    /// and few: of each, and of one value a row.
    pub fn together(rows: u32, columns: &[u32]) -> Option<(Vec<Layout>, Layout)> {
        let (warp_rows, warp_columns) = grids().find(|&grid| columns.iter().all(|&c| fits(rows, c, grid)))?;
        let accumulators = |&columns| Layout { rows, columns, kind: Kind::Fragments { warp_rows, warp_columns } };
        let values = Layout { rows, columns: 1, kind: Kind::RowCache { warp_rows, warp_columns } };
        Some((columns.iter().map(accumulators).collect(), values))
    }

    /// Whether a thread holds the values for its rows of the tile `of` in the order of these rows.
    pub fn is_rows_of(&self, of: Layout) -> bool {
        matches!((self.kind, of.kind), (Kind::RowCache { warp_rows: a, .. }, Kind::Fragments { warp_rows: b, .. }) if a == b)
            && self.rows == of.rows
    }

    /// Rows that each thread holds.
    pub fn own_rows(&self) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_rows, .. } => self.rows.div_ceil(thread_rows),
            Kind::Runs { threads, count, down: true } => (self.rows / count).div_ceil(threads) * count,
            Kind::Runs { threads, .. } => self.rows.div_ceil(BLOCK_SIZE / threads),
            Kind::Fragments { warp_rows, .. } | Kind::Quads { warp_rows, .. } | Kind::RowCache { warp_rows, .. } => {
                self.rows / warp_rows / 8
            }
        }
    }

    /// Columns that each thread holds.
    pub fn own_columns(&self) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_columns, .. } => self.columns.div_ceil(thread_columns),
            Kind::Runs { threads, count, down: false } => (self.columns / count).div_ceil(threads) * count,
            Kind::Runs { threads, .. } => self.columns.div_ceil(BLOCK_SIZE / threads),
            Kind::Fragments { warp_columns, .. } | Kind::Quads { warp_columns, .. } => self.columns / warp_columns / 4,
            Kind::RowCache { .. } => 1,
        }
    }

    /// From a thread's first row to its `i`-th.
    pub fn row_offset(&self, i: u32) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_rows, .. } => i * thread_rows,
            Kind::Runs { threads, count, down: true } => i / count * threads * count + i % count,
            Kind::Runs { threads, .. } => i * (BLOCK_SIZE / threads),
            Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => 8 * i,
        }
    }

    /// From a thread's first column to its `j`-th.
    pub fn column_offset(&self, j: u32) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_columns, .. } => j * thread_columns,
            Kind::Runs { threads, count, down: false } => j / count * threads * count + j % count,
            Kind::Runs { threads, .. } => j * (BLOCK_SIZE / threads),
            Kind::Fragments { .. } => j / 2 * 8 + j % 2,
            Kind::Quads { .. } => j / 4 * 16 + j % 4,
            Kind::RowCache { .. } => 0,
        }
    }

    /// One past the greatest `i`-th row of all threads. Where it is beyond the tile, some threads have no such row.
    pub fn rows_end(&self, i: u32) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_rows, .. } => (i + 1) * thread_rows,
            Kind::Runs { threads, count, down: true } => ((i / count + 1) * threads - 1) * count + i % count + 1,
            Kind::Runs { threads, .. } => (i + 1) * (BLOCK_SIZE / threads),
            Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => self.rows,
        }
    }

    /// The same of columns.
    pub fn columns_end(&self, j: u32) -> u32 {
        match self.kind {
            Kind::Cyclic { thread_columns, .. } => (j + 1) * thread_columns,
            Kind::Runs { threads, count, down: false } => ((j / count + 1) * threads - 1) * count + j % count + 1,
            Kind::Runs { threads, .. } => (j + 1) * (BLOCK_SIZE / threads),
            Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => self.columns,
        }
    }

    /// Registers of each thread: row by row.
    pub fn registers(&self) -> usize {
        self.own_rows() as usize * self.own_columns() as usize
    }

    /// The register of a thread's `i`-th row and `j`-th column.
    pub fn register(&self, i: u32, j: u32) -> usize {
        i as usize * self.own_columns() as usize + j as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_thread() {
        for (rows, columns) in [(1, 1), (1, 1024), (64, 64), (16, 1), (300, 1), (15, 17), (17, 15), (128, 32), (3, 5)] {
            let l = Layout::cyclic(rows, columns);
            let Kind::Cyclic { thread_rows, thread_columns } = l.kind else { panic!("{l:?}") };
            assert_eq!(thread_rows * thread_columns, BLOCK_SIZE, "{l:?}");
            assert!(thread_columns.is_power_of_two(), "{l:?}");
            assert!(l.own_rows() * thread_rows >= rows, "{l:?}");
            assert!(l.own_columns() * thread_columns >= columns, "{l:?}");
        }
        assert_eq!(Layout::cyclic(64, 64).registers(), 16);
        assert_eq!(Layout::cyclic(1, 1024).registers(), 4);
        assert_eq!(Layout::cyclic(300, 1).registers(), 2);
    }

    #[test]
    fn runs_cover_the_tile_once() {
        for (along, across) in [(64, 32), (32, 64), (128, 64), (80, 32), (16, 16), (256, 7), (8, 300), (2048, 1)] {
            for (count, threads, down) in [(8, 8, false), (8, 8, true), (4, 4, false), (4, 16, true), (8, 256, false)] {
                let (rows, columns) = if down { (along, across) } else { (across, along) };
                let l = Layout::runs(rows, columns, threads, count, down);
                let mut held = vec![0; (rows * columns) as usize];
                for thread in 0..BLOCK_SIZE {
                    let own = (thread % threads * count, thread / threads);
                    let (row, column) = if down { own } else { (own.1, own.0) };
                    for i in (0..l.own_rows()).filter(|&i| row + l.row_offset(i) < rows) {
                        for j in (0..l.own_columns()).filter(|&j| column + l.column_offset(j) < columns) {
                            held[((row + l.row_offset(i)) * columns + column + l.column_offset(j)) as usize] += 1;
                            assert!(
                                row + l.row_offset(i) < l.rows_end(i) && column + l.column_offset(j) < l.columns_end(j)
                            );
                        }
                    }
                }
                assert!(held.iter().all(|&count| count == 1), "{l:?}");
            }
        }
    }

    fn covers_once(l: Layout, (warp_rows, warp_columns): (u32, u32), neighbours: u32) {
        let (rows, columns) = (l.rows, l.columns);
        assert_eq!(l.neighbours(), Some(neighbours));
        let mut held = vec![0; (rows * columns) as usize];
        for thread in 0..BLOCK_SIZE {
            let (warp, lane) = (thread / 32, thread % 32);
            let row = warp % warp_rows * (rows / warp_rows) + lane / 4;
            let column = warp / warp_rows * (columns / warp_columns) + lane % 4 * neighbours;
            for i in 0..l.own_rows() {
                for j in 0..l.own_columns() {
                    held[((row + l.row_offset(i)) * columns + column + l.column_offset(j)) as usize] += 1;
                }
            }
        }
        assert!(held.iter().all(|&count| count == 1), "{l:?}");
    }

    #[test]
    fn fragments_cover_the_tile_once() {
        for (rows, columns) in [(64, 64), (128, 128), (16, 64), (128, 8), (64, 128), (48, 64), (32, 32), (128, 256)] {
            let l = Layout::fragments(rows, columns).expect("a grid of warps");
            let Kind::Fragments { warp_rows, warp_columns } = l.kind else { panic!("{l:?}") };
            covers_once(l, (warp_rows, warp_columns), 2);
            if let Some(l) = Layout::quads(rows, columns) {
                let Kind::Quads { warp_rows, warp_columns } = l.kind else { panic!("{l:?}") };
                covers_once(l, (warp_rows, warp_columns), 4);
            }
            assert_eq!(l.registers() as u32, rows * columns / BLOCK_SIZE);
        }
        assert!(Layout::quads(64, 64).is_some() && Layout::quads(128, 8).is_none());
        for (rows, columns) in [(16, 16), (15, 64), (64, 4), (0, 64), (24, 64), (16, 32)] {
            assert_eq!(Layout::fragments(rows, columns), None, "{rows}x{columns}");
        }
    }

    #[test]
    fn values_of_rows_are_where_their_rows_are() {
        let (accumulators, values) = Layout::together(64, &[64, 128]).expect("a grid of warps");
        assert_eq!(values.kind, Kind::RowCache { warp_rows: 4, warp_columns: 2 });
        for l in &accumulators {
            assert!(values.is_rows_of(*l), "{l:?}");
            assert_eq!(values.registers() as u32, l.own_rows());
            assert!((0..l.own_rows()).all(|i| values.row_offset(i) == l.row_offset(i)));
        }
        let one = Layout::fragments(64, 128).expect("a grid of warps");
        assert!(!values.is_rows_of(one) && !values.is_rows_of(Layout::cyclic(64, 64)));
        assert!(Layout::together(16, &[64, 32]).is_none());
    }
}
