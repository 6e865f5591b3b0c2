//! Which blocks of a launch have accessed a piece of global memory: races between blocks.
//!
//! Blocks run one after another here. On a device they run in any order and at the same time, and nothing orders what two
//! of them do: if both access a byte, one of them writes it, and not both accesses are atomic (or volatile, relaxed,
//! acquire, release), then what is read, or stays, depends on who comes first.
//!
//! Since blocks run in the order of their numbers, the first and the last one that accessed a piece in some way say whether
//! any other than the present one did.

use crate::program::Program;
use std::ops::Range;

/// The block that is running, as accesses to global memory see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    /// Its number, from 1 on; 0 where races are not looked for.
    pub running: u32,
    looks: bool,
    /// Blocks of the launch in x and y.
    grid: [u32; 2],
    /// log2 of the bytes of a piece: of the narrowest access.
    pub shift: u32,
}

/// Of the pieces of an allocation: which blocks accessed them, in each [way](way).
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen([Accesses; 4]);

/// The first and the last block that accessed each piece in one way, or 0; empty until one does.
#[derive(Clone, Debug, Default)]
struct Accesses {
    first: Vec<u32>,
    last: Vec<u32>,
}

/// The index of a way of access in [`Seen`].
#[inline]
fn way(writes: bool, strong: bool) -> usize {
    2 * usize::from(writes) + usize::from(strong)
}

/// The ways that each way races with, those that write before those that read.
const RACES_WITH: [&[usize]; 4] = [&[3, 2], &[2], &[3, 2, 1, 0], &[2, 0]];

/// An earlier access by another block.
pub(crate) struct Earlier {
    /// `%ctaid` of that block.
    pub block: [u32; 3],
    /// Whether it wrote.
    pub wrote: bool,
}

impl Blocks {
    /// Those of a launch, of which the first is the next. Of blocks that order each other's accesses, by fences and flags in
    /// memory, none is looked at: that order is not followed here.
    pub fn of(program: &Program, grid: [u32; 3]) -> Blocks {
        let several = grid.iter().any(|&n| n > 1);
        Blocks {
            running: 0,
            looks: several && !program.orders_blocks,
            grid: [grid[0], grid[1]],
            shift: program.granule.trailing_zeros(),
        }
    }

    /// The next block begins.
    pub fn next(&mut self) {
        self.running += u32::from(self.looks);
    }

    /// Notes an access by the block that is running to some of so many pieces, unless it races with one by another: then it
    /// gives that, of the first piece of which there is one.
    #[inline]
    pub fn note(
        &self,
        seen: &mut Seen,
        count: usize,
        pieces: Range<usize>,
        writes: bool,
        strong: bool,
    ) -> Option<Earlier> {
        let way = way(writes, strong);
        // Since the block last did the same, no other has come between.
        if seen.0[way].last.get(pieces.clone()).is_some_and(|last| last.iter().all(|block| *block == self.running)) {
            return None;
        }
        let races = |blocks: &[u32]| blocks.iter().any(|block| self.is_other(*block));
        for earlier in RACES_WITH[way].iter().map(|earlier| &seen.0[*earlier]) {
            if let (Some(first), Some(last)) = (earlier.first.get(pieces.clone()), earlier.last.get(pieces.clone()))
                && (races(first) || races(last))
            {
                return self.earlier(seen, pieces, way);
            }
        }
        let Accesses { first, last } = &mut seen.0[way];
        if first.is_empty() {
            (*first, *last) = (vec![0; count], vec![0; count]);
        }
        for block in &mut first[pieces.clone()] {
            *block = if *block == 0 { self.running } else { *block };
        }
        last[pieces].fill(self.running);
        None
    }

    #[inline]
    fn is_other(&self, block: u32) -> bool {
        block != 0 && block != self.running
    }

    /// The access by another block that one to the first possible of these pieces races with.
    #[cold]
    fn earlier(&self, seen: &Seen, pieces: Range<usize>, way: usize) -> Option<Earlier> {
        pieces.flat_map(|piece| RACES_WITH[way].iter().map(move |earlier| (piece, *earlier))).find_map(
            |(piece, earlier)| {
                let Accesses { first, last } = &seen.0[earlier];
                let blocks = [*first.get(piece)?, *last.get(piece)?];
                let other = blocks.into_iter().find(|block| self.is_other(*block))?;
                Some(Earlier { block: self.at(other), wrote: earlier >= self::way(true, false) })
            },
        )
    }

    /// `%ctaid` of a block.
    fn at(&self, number: u32) -> [u32; 3] {
        let [x, y] = self.grid;
        let before = number - 1;
        [before % x, before / x % y, before / x / y]
    }
}
