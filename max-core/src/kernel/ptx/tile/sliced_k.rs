//! Sliced-K `dot`s ([`sliced_k`](super::super::analysis::sliced_k)): partial sums of each thread, and how they are combined.
//!
//! Both operands are read from shared memory, where a pipelined loop has copied them several steps ahead. The sums of a
//! column are combined in a fixed tree: those of a warp's lanes by shuffles, which also share out who has which sum, and
//! those of warps through shared memory, in the order of the warps.

use super::super::analysis::hazards::{READ, WRITE};
use super::super::analysis::layout::Layout;
use super::super::analysis::plan::InPlace;
use super::super::analysis::sliced_k::SlicedK;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem_at, one_or_vector};
use super::super::memory::shared_tile::VECTOR_BYTES;
use super::super::memory::vectorize::vector_suffix;
use super::ops::Staged;
use crate::kernel::ir::{BinaryOp, Value};

/// An operand as a thread reads it: from its first element on, as it lies in memory or in the class of registers.
#[derive(Clone, Copy)]
struct Side {
    first: Reg,
    at: Staged,
    operand: Option<u32>,
    class: Class,
}

impl Gen<'_> {
    /// Begins the partial sums that stay in registers while a loop runs.
    pub fn begin_partials(&mut self, partial: &[InPlace]) {
        for InPlace { dot, .. } in partial {
            if let Some(sliced) = self.plan.sliced_k(*dot) {
                let sums = self.partial_sums(*dot, sliced);
                self.partials.insert(*dot, sums);
            }
        }
    }

    /// Adds them to the variables that the loop's `dot`s add to.
    pub fn end_partials(&mut self, partial: &[InPlace]) {
        for InPlace { dot, before } in partial {
            if let (Some(sliced), Some(sums)) = (self.plan.sliced_k(*dot), self.partials.remove(dot)) {
                let to = self.all(*before);
                self.combine_partials(*dot, sliced, sums, &to);
            }
        }
    }

    fn partial_sums(&mut self, dot: Value, sliced: SlicedK) -> Vec<Reg> {
        let class = Class::of(self.dtype(dot));
        (0..sliced.rows * sliced.own_columns()).map(|_| self.zero(class)).collect()
    }

    pub fn sliced_dot(&mut self, result: Value, operands: [Value; 2], acc: Value, sliced: SlicedK) {
        let sides = self.sides(operands, sliced);
        let kept = self.partials.get(&result).cloned();
        let sums = kept.clone().unwrap_or_else(|| self.partial_sums(result, sliced));
        self.add_products(sides, sliced, &sums);
        let accumulators = match kept {
            Some(_) => self.all(acc),
            None => {
                let accumulators: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
                self.combine_partials(result, sliced, sums, &accumulators);
                accumulators
            }
        };
        self.set_all(result, accumulators);
    }

    /// Both operands, where this thread begins to read them. What is computed is written to shared memory first.
    fn sides(&mut self, operands: [Value; 2], sliced: SlicedK) -> [Side; 2] {
        let plan = self.plan.clone();
        let smem_tiles = operands.map(|tile| plan.smem_tile(tile));
        let mut touch = self.smem_reads(operands);
        let next = if smem_tiles.iter().all(Option::is_some) { touch.clone() } else { self.shared_touch(WRITE) };
        self.before(next);
        let mut staged = 0;
        let places = [0, 1].map(|i| match smem_tiles[i] {
            Some(smem_tile) => self.smem_operand(operands[i], &smem_tile),
            None => {
                let l = self.layout(operands[i]);
                let place = self.stage(operands[i], staged, l.rows * l.columns, l.columns);
                staged += (l.rows * place.row).next_multiple_of(VECTOR_BYTES);
                place
            }
        });
        if staged > 0 {
            self.bar();
            touch.touch_shared(READ);
            self.touch(touch);
        }
        let (beside, other) =
            (self.fixed(Fixed::ThreadColumn(sliced.neighbours)), self.fixed(Fixed::ThreadRow(sliced.neighbours)));
        let (along_k, across) = if sliced.k_major { (beside, other) } else { (other, beside) };
        let along_k = self.op2(Class::B32, "mul.lo.u32", along_k, sliced.run());
        let across = if sliced.k_major { across } else { self.op2(Class::B32, "mul.lo.u32", across, sliced.vector) };
        [0, 1].map(|i| {
            let (row, column) = if i == 0 { (None, Some(along_k)) } else { (Some(along_k), Some(across)) };
            Side {
                first: self.staged_address(places[i], row, column),
                at: places[i],
                operand: smem_tiles[i].map(|smem_tile| smem_tile.operand),
                class: Class::of(self.dtype(operands[i])),
            }
        })
    }

    /// Adds this thread's products of a step to its sums.
    fn add_products(&mut self, [left, right]: [Side; 2], sliced: SlicedK, sums: &[Reg]) {
        // A vector along K is of one column, and one along columns of one index of K.
        let vectors = if sliced.k_major { sliced.own_columns() } else { 1 };
        for run in 0..sliced.runs() {
            let k = run * sliced.along_k() * sliced.run();
            let y: Vec<Reg> = (0..vectors)
                .flat_map(|vector| {
                    let offset = k * right.at.row + vector * sliced.across() * right.at.column;
                    self.read_side(right, offset, sliced.vector)
                })
                .collect();
            for (row, sums) in (0..).zip(sums.chunks(sliced.own_columns() as usize)) {
                let x = self.read_side(left, k * left.at.column + row * left.at.row, sliced.run());
                for (&sum, y) in sums.iter().zip(y.chunks(sliced.run() as usize)) {
                    for (&x, &y) in x.iter().zip(y) {
                        self.multiply_add(sum, x, y);
                    }
                }
            }
        }
    }

    /// So many neighbours of an operand, from so many bytes behind this thread's first element on.
    fn read_side(&mut self, side: Side, offset: u32, count: u32) -> Vec<Reg> {
        let offset = side.at.offset + offset;
        let Some(operand) = side.operand else {
            let size = side.class.shared_bytes();
            let regs: Vec<Reg> = (0..count).map(|_| self.reg(side.class)).collect();
            for (i, part) in (0..).zip(regs.chunks((VECTOR_BYTES / size) as usize)) {
                let opcode = format!("ld.shared{}.{}", vector_suffix(part), side.class.ty());
                emit!(self, opcode, one_or_vector(part), mem_at(side.first, offset + i * VECTOR_BYTES));
            }
            return regs;
        };
        let (dtype, (class, _)) = (self.memory_dtype(operand), self.raw_of(operand));
        let raw: Vec<Reg> = (0..count).map(|_| self.reg(class)).collect();
        for (i, part) in (0..).zip(raw.chunks(VECTOR_BYTES as usize / dtype.size_in_bytes())) {
            self.load_neighbours("shared", operand, (side.first, offset + i * VECTOR_BYTES), part, None);
        }
        raw.into_iter().map(|raw| self.decode(dtype, raw)).collect()
    }

    /// Combines the partial sums of all threads, and adds them to the elements of the result that this thread has.
    fn combine_partials(&mut self, dot: Value, sliced: SlicedK, sums: Vec<Reg>, to: &[Reg]) {
        let (l, dtype) = (self.layout(dot), self.dtype(dot));
        let lane = self.fixed(Fixed::Lane);
        let across = sliced.across();
        // Sums have a place for each of a thread's, and in it one for each thread that divides the columns.
        let own = match sliced.k_major {
            true => self.fixed(Fixed::ThreadRow(sliced.neighbours)),
            false => self.fixed(Fixed::ThreadColumn(sliced.neighbours)),
        };
        let place = self.copy(own);
        let (mut sums, mut apart, mut same) = (sums, across, 0);
        for bit in sliced.lane_bits().map(|bit| 1 << bit) {
            if sums.len() % 2 == 1 {
                let all = sums.into_iter().map(|sum| {
                    let other = self.shuffle("bfly", sum, bit, 31);
                    self.binary(BinaryOp::Add, dtype, sum, other)
                });
                sums = all.collect();
                same |= bit;
                continue;
            }
            // Of two lanes, one goes on with the first sum of each pair, and the other with the second one.
            let set = self.op2(Class::B32, "and.b32", lane, bit);
            let is_second = self.op2(Class::Pred, "setp.ne.u32", set, 0);
            let all = sums.chunks(2).map(|pair| {
                let gives = self.selp(pair[0].class, pair[0], pair[1], is_second);
                let keeps = self.selp(pair[0].class, pair[1], pair[0], is_second);
                let gets = self.shuffle("bfly", gives, bit, 31);
                self.binary(BinaryOp::Add, dtype, keeps, gets)
            });
            let all = all.collect();
            sums = all;
            emit!(self, @is_second, "add.u32", place, place, apart);
            apart *= 2;
        }

        let size = Class::of(dtype).shared_bytes();
        let (slices, slice_bytes) = (sliced.slices(), sliced.rows * sliced.columns * size);
        self.need_shared(u64::from(slices) * u64::from(slice_bytes));
        self.before(self.shared_touch(WRITE));
        let shared = self.fixed(Fixed::Shared);
        let address = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", address, place, size, shared);
        if slices > 1 {
            let slice = if sliced.k_major {
                let warp = self.fixed(Fixed::Warp);
                self.op2(Class::B32, "and.b32", warp, slices - 1)
            } else {
                self.fixed(Fixed::ThreadRow(sliced.neighbours.max(32)))
            };
            emit!(self, "mad.lo.u32", address, slice, slice_bytes, address);
        }
        let writes = (same > 0).then(|| {
            let among = self.op2(Class::B32, "and.b32", lane, same);
            self.op2(Class::Pred, "setp.eq.u32", among, 0)
        });
        for (i, sum) in (0..).zip(sums) {
            self.store_shared(address, i * apart * size, sum, writes);
        }
        self.bar();
        self.touch_shared(READ);

        let (row, column) = self.thread_position(l);
        for (i, j) in (0..l.own_rows()).flat_map(|i| (0..l.own_columns()).map(move |j| (i, j))) {
            let place = self.place_of_sum(l, sliced, (row, i), (column, j));
            let address = self.reg(Class::B32);
            emit!(self, "mad.lo.u32", address, place, size, shared);
            let mut sum = to[l.register(i, j)];
            for slice in 0..slices {
                let part = self.load_shared(sum.class, address, slice * slice_bytes);
                sum = self.binary(BinaryOp::Add, dtype, sum, part);
            }
            self.mov(to[l.register(i, j)], sum);
        }
    }

    /// Where the sums of an element of the result are, one of this thread's, or of any where it has none.
    fn place_of_sum(&mut self, l: Layout, sliced: SlicedK, (row, i): (Reg, u32), (column, j): (Reg, u32)) -> Reg {
        let within = |g: &mut Self, first: Reg, offset: u32, extent: u32| {
            let at = if offset == 0 { first } else { g.op2(Class::B32, "add.u32", first, offset) };
            g.op2(Class::B32, "min.u32", at, extent - 1)
        };
        let row = within(self, row, l.row_offset(i), l.rows);
        let column = within(self, column, l.column_offset(j), l.columns);
        let place = self.reg(Class::B32);
        if sliced.k_major {
            emit!(self, "mad.lo.u32", place, row, sliced.columns, column);
            return place;
        }
        let (vector, in_vector) = (
            self.op2(Class::B32, "shr.u32", column, sliced.vector.ilog2()),
            self.op2(Class::B32, "and.b32", column, sliced.vector - 1),
        );
        let sum = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", sum, row, sliced.vector, in_vector);
        emit!(self, "mad.lo.u32", place, sum, sliced.across(), vector);
        place
    }

    /// `sum += x * y`, rounded once.
    pub(super) fn multiply_add(&mut self, sum: Reg, x: Reg, y: Reg) {
        let instruction = match sum.class {
            Class::F32 => "fma.rn.f32",
            Class::F64 => "fma.rn.f64",
            Class::Pred | Class::B16 | Class::B32 | Class::B64 => "mad.lo.s32",
        };
        emit!(self, instruction, sum, x, y, sum);
    }
}
