//! Threads that pack tiles, and need what others pack.

use std::sync::Arc;

use loom::cell::Cell;

use super::cooperative::{Claims, MAX_CHUNKS};
use crate::kernel::model;
use crate::kernel::threads::sync::AtomicU16;

/// A tile, of which each chunk is written by whoever packs it.
struct Tile {
    state: AtomicU16,
    chunks: Vec<Cell<usize>>,
}

// SAFETY: loom says so where two threads access a cell, and nothing orders them.
unsafe impl Sync for Tile {}
// SAFETY: cells belong to no thread.
unsafe impl Send for Tile {}

impl Tile {
    fn new(chunks: usize) -> Tile {
        assert!(chunks <= MAX_CHUNKS);
        Tile { state: AtomicU16::new(0), chunks: (0..chunks).map(|_| Cell::new(0)).collect() }
    }

    fn claims(&self) -> Claims<'_> {
        Claims::new(&self.state, self.chunks.len())
    }

    fn pack(&self, chunk: usize) {
        self.chunks[chunk].set(self.chunks[chunk].get() + 1);
        if chunk == 1 {
            self.claims().mark();
        }
        self.claims().done();
    }

    /// Packs what nobody has claimed, waits for the rest, and reads all.
    fn get(&self) {
        while let Some(chunk) = self.claims().claim(true) {
            self.pack(chunk);
        }
        assert!(self.chunks.iter().all(|chunk| chunk.get() == 1), "each chunk is packed once, and seen");
        assert_eq!(self.claims().is_marked(), self.chunks.len() > 1);
    }
}

/// Runs `f` on so many threads beside this one, and here.
fn together(threads: usize, f: impl Fn() + Send + Sync + 'static) {
    let f = Arc::new(f);
    let others: Vec<_> = (0..threads)
        .map(|_| {
            let f = Arc::clone(&f);
            loom::thread::spawn(move || f())
        })
        .collect();
    f();
    others.into_iter().for_each(|other| other.join().unwrap());
}

#[test]
fn each_chunk_is_packed_once_and_waited_for() {
    for chunks in [1, 2, 3] {
        model(3, move || {
            let tile = Tile::new(chunks);
            together(1, move || tile.get());
        });
    }
}

#[test]
fn three_threads_need_a_tile() {
    model(2, || {
        let tile = Tile::new(2);
        together(2, move || tile.get());
    });
}

#[test]
fn what_is_packed_ahead_is_done_before_another_tile_is_waited_for() {
    model(2, || {
        let tiles = [Tile::new(2), Tile::new(2)];
        together(1, move || {
            tiles[0].get();
            // Beside the product by the first tile, as much of the second as is there to take.
            if let Some(chunk) = tiles[1].claims().claim(false) {
                tiles[1].pack(chunk);
            }
            tiles[1].get();
        });
    });
}

#[test]
fn threads_that_pack_ahead_for_each_other_do_not_wait_for_ever() {
    model(2, || {
        let tiles = Arc::new([Tile::new(1), Tile::new(1)]);
        let cross = |ahead: usize, tiles: &[Tile; 2]| {
            if let Some(chunk) = tiles[ahead].claims().claim(false) {
                tiles[ahead].pack(chunk);
            }
            tiles[1 - ahead].get();
        };
        let others = Arc::clone(&tiles);
        let other = loom::thread::spawn(move || cross(0, &others));
        cross(1, &tiles);
        other.join().unwrap();
    });
}

/// That the models find it when threads wait for each other.
#[test]
#[should_panic = "exceeded maximum number of branches"]
fn to_wait_with_a_chunk_at_hand_is_noticed() {
    model(2, || {
        let tiles = Arc::new([Tile::new(1), Tile::new(1)]);
        let cross = |ahead: usize, tiles: &[Tile; 2]| {
            let chunk = tiles[ahead].claims().claim(false);
            tiles[1 - ahead].get();
            if let Some(chunk) = chunk {
                tiles[ahead].pack(chunk);
            }
        };
        let others = Arc::clone(&tiles);
        let other = loom::thread::spawn(move || cross(0, &others));
        cross(1, &tiles);
        other.join().unwrap();
    });
}
