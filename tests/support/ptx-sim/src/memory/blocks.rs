//! Which blocks of a launch have accessed a piece of global memory: races between blocks.
//!
//! Blocks run one after another here. On a device they run in any order and at the same time, and nothing orders what two
//! of them do: if both access a byte, one of them writes it, and not both accesses are atomic (or volatile, relaxed,
//! acquire, release), then what is read, or stays, depends on who comes first.
//!
//! Since blocks run in the order of their numbers, the first and the last one that accessed a piece in some way say whether
//! any other than the present one did.

use crate::program::Program;

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

/// Of a piece of memory: the first and the last block that accessed it, in each [way](way), or 0.
pub(crate) type Seen = [[u32; 2]; 4];

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

    /// Notes an access to some pieces by the block that is running; gives one by another that it races with.
    #[inline]
    pub fn note(&self, pieces: &mut [Seen], writes: bool, strong: bool) -> Option<Earlier> {
        let way = way(writes, strong);
        // Since the block last did the same, no other has come between.
        pieces.iter_mut().filter(|seen| seen[way][1] != self.running).find_map(|seen| self.note_first(seen, way))
    }

    /// Notes the first access of its way by the block that is running.
    fn note_first(&self, seen: &mut Seen, way: usize) -> Option<Earlier> {
        for &earlier in RACES_WITH[way] {
            let is_other = |block: &u32| *block != 0 && *block != self.running;
            if let Some(other) = seen[earlier].into_iter().find(is_other) {
                return Some(Earlier { block: self.at(other), wrote: earlier >= self::way(true, false) });
            }
        }
        let [first, last] = &mut seen[way];
        if *first == 0 {
            *first = self.running;
        }
        *last = self.running;
        None
    }

    /// `%ctaid` of a block.
    fn at(&self, number: u32) -> [u32; 3] {
        let [x, y] = self.grid;
        let before = number - 1;
        [before % x, before / x % y, before / x / y]
    }
}
