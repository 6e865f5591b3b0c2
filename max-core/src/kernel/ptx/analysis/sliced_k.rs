//! Sliced-K: `dot`s of few rows, whose K the threads of a block divide (CUTLASS's name for it; a GEMV with one row).
//!
//! It exists because such a tile has fewer elements than a block has threads: with an element for each, most threads would
//! have none. Here each thread adds up the products of some of K for a few columns. Its partial sums stay in registers while
//! a loop over K runs, and are combined behind it.
//!
//! A thread reads vectors of 16 bytes of the right operand: along K if that is K-major, else along its columns. Threads side
//! by side have vectors side by side. Both numbers of threads are powers of two, so lanes are combined by shuffles.

use std::collections::HashMap;
use std::ops::Range;

use super::super::machine::Class;
use super::super::memory::shared_tile::VECTOR_BYTES;
use super::super::{BLOCK_SIZE, WARPS};
use super::plan::{Uses, shape};
use crate::kernel::abi::Access;
use crate::kernel::ir::{Inst, Kernel, Op, Type, Value};

/// The most rows of such a `dot`: what a thread reads of the right operand serves that many.
const MAX_ROWS: u32 = 8;
/// The most partial sums of a thread.
const MAX_PARTIALS: u32 = 64;
/// The most bytes of an operand that is computed, and has to be written to shared memory in each step.
const MAX_STAGED_BYTES: u64 = 64 << 10;

/// How threads divide a `dot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::ptx) struct SlicedK {
    pub rows: u32,
    pub columns: u32,
    pub inner: u32,
    /// Whether vectors lie along K.
    pub k_major: bool,
    /// Elements of a vector.
    pub vector: u32,
    /// Threads side by side, with vectors side by side.
    pub neighbours: u32,
}

impl SlicedK {
    /// The division for a right operand of elements of `size` bytes, if there is one.
    fn new([rows, columns, inner]: [u32; 3], size: u32, k_major: bool) -> Option<SlicedK> {
        let vector = VECTOR_BYTES / size;
        let powers = [columns, inner].iter().all(|n| n.is_power_of_two());
        if rows == 0 || rows > MAX_ROWS || !powers || (if k_major { inner } else { columns }) < vector {
            return None;
        }
        // Whole warps along K, unless there are too few columns for them.
        let neighbours = if k_major { (inner / vector).min((BLOCK_SIZE / columns).max(32)) } else { columns / vector };
        let sliced = SlicedK { rows, columns, inner, k_major, vector, neighbours };
        let divides =
            neighbours <= BLOCK_SIZE && sliced.across() <= columns && sliced.along_k() * sliced.run() <= inner;
        (divides && rows * sliced.own_columns() <= MAX_PARTIALS).then_some(sliced)
    }

    /// How many threads divide the columns, of which each has those so far apart (of whole vectors, if these lie along
    /// columns).
    pub fn across(&self) -> u32 {
        if self.k_major { BLOCK_SIZE / self.neighbours } else { self.neighbours }
    }

    /// How many threads divide K.
    pub fn along_k(&self) -> u32 {
        BLOCK_SIZE / self.across()
    }

    /// Neighbours along K that a thread takes at a time.
    pub fn run(&self) -> u32 {
        if self.k_major { self.vector } else { 1 }
    }

    /// How many of these a thread takes.
    pub fn runs(&self) -> u32 {
        self.inner / (self.along_k() * self.run())
    }

    /// Columns of a thread.
    pub fn own_columns(&self) -> u32 {
        if self.k_major { self.columns / self.across() } else { self.vector }
    }

    /// The bits of a lane's number in its warp by which lanes of the same columns differ.
    pub fn lane_bits(&self) -> Range<u32> {
        let bits = self.neighbours.ilog2().min(5);
        if self.k_major { 0..bits } else { bits..5 }
    }

    /// How many warps have the same columns.
    pub fn slices(&self) -> u32 {
        (self.along_k() >> self.lane_bits().len()).clamp(1, WARPS)
    }
}

impl Uses<'_> {
    /// The `dot`s that are sliced, of those for which `is_free` holds.
    pub fn sliced_k(&self, kernel: &Kernel, is_free: impl Fn(Value) -> bool) -> HashMap<Value, SlicedK> {
        let of = |inst: &&Inst| Some((inst.results[0], self.division(kernel, inst)?));
        let mut sliced: HashMap<Value, SlicedK> =
            self.dots.iter().filter(|inst| is_free(inst.results[0])).filter_map(of).collect();
        // An operand that is loaded for several of them lies in one way.
        let all_are = |sliced: &HashMap<Value, SlicedK>, inst: &Inst| {
            let Op::Dot(_, b, _) = inst.op else { return false };
            !self.lives_in_memory(kernel, b) || self.dot_operand_of[&b].iter().all(|dot| sliced.contains_key(dot))
        };
        loop {
            let left_out: Vec<Value> =
                self.dots.iter().filter(|i| !all_are(&sliced, i)).map(|i| i.results[0]).collect();
            if !left_out.iter().any(|dot| sliced.remove(dot).is_some()) {
                return sliced;
            }
        }
    }

    /// Whether a tile is loaded from an operand that is not written, for `dot`s alone.
    fn lives_in_memory(&self, kernel: &Kernel, tile: Value) -> bool {
        let is_read = |operand: u32| kernel.operands[operand as usize].access == Access::In;
        let load = self.defs.get(tile).map(|inst| &inst.op);
        matches!(load, Some(Op::TileLoad { operand, .. }) if is_read(*operand)) && !self.others.contains_key(&tile)
    }

    fn division(&self, kernel: &Kernel, dot: &Inst) -> Option<SlicedK> {
        let Op::Dot(a, b, _) = dot.op else { return None };
        let ((rows, columns), (_, inner)) = (shape(kernel, dot.results[0]), shape(kernel, a));
        let bytes = |tile: Value| match kernel.ty(tile) {
            Type::Tile(dtype, ..) => Class::of(dtype).shared_bytes(),
            Type::Scalar(_) | Type::Var(_) | Type::TileVar(..) => 0,
        };
        let staged = |tile: Value, elements: u32| {
            if self.lives_in_memory(kernel, tile) { 0 } else { u64::from(elements) * u64::from(bytes(tile)) }
        };
        if staged(a, rows * inner) + staged(b, inner * columns) > MAX_STAGED_BYTES {
            return None;
        }
        let (size, k_major) = match self.defs.get(b).map(|inst| &inst.op) {
            Some(Op::TileLoad { operand, transpose, .. }) if self.lives_in_memory(kernel, b) => {
                (kernel.operands[*operand as usize].dtype.size_in_bytes() as u32, *transpose)
            }
            Some(_) | None => (bytes(b), false),
        };
        // Threads read vectors of both along K, or elements of the left one.
        let lies_down = k_major && self.lives_in_memory(kernel, a) && self.is_of_transposed(kernel, a);
        SlicedK::new([rows, columns, inner], size, k_major).filter(|_| !lies_down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which thread adds which products: each exactly once, and lanes that are combined have the same columns.
    #[test]
    fn products_are_made_once() {
        let mut found = 0;
        for (rows, columns, inner) in [(1, 16, 512), (8, 32, 256), (4, 8, 64), (1, 1, 4096), (3, 64, 128), (8, 256, 32)]
        {
            for (size, k_major) in [(1, true), (2, true), (4, false), (8, true), (2, false), (1, false)] {
                let Some(s) = SlicedK::new([rows, columns, inner], size, k_major) else { continue };
                found += 1;
                let mut made = vec![0; (columns * inner) as usize];
                let mut columns_of = vec![Vec::new(); BLOCK_SIZE as usize];
                for thread in 0..BLOCK_SIZE {
                    let (side, other) = (thread % s.neighbours, thread / s.neighbours);
                    let (k, n) = if k_major { (side, other) } else { (other, side) };
                    let own = |j: u32| if k_major { n + s.across() * j } else { n * s.vector + j };
                    for (run, j) in (0..s.runs()).flat_map(|run| (0..s.own_columns()).map(move |j| (run, j))) {
                        for e in 0..s.run() {
                            made[((k + s.along_k() * run) * s.run() + e + own(j) * inner) as usize] += 1;
                        }
                    }
                    columns_of[thread as usize] = (0..s.own_columns()).map(own).collect();
                }
                assert!(made.iter().all(|&count| count == 1), "{s:?}");
                for (thread, bit) in (0..BLOCK_SIZE).flat_map(|thread| s.lane_bits().map(move |bit| (thread, bit))) {
                    assert_eq!(columns_of[thread as usize], columns_of[(thread ^ 1 << bit) as usize], "{s:?}");
                }
                assert_eq!(s.slices() * (1 << s.lane_bits().len()), s.along_k(), "{s:?}");
            }
        }
        assert!(found > 20, "{found}");
        // Too many rows, no power of two, and less of K than there are threads for it.
        for shape in [[9, 32, 256], [1, 24, 256], [1, 32, 96], [4, 16, 16]] {
            assert_eq!(SlicedK::new(shape, 4, false), None, "{shape:?}");
        }
    }
}
