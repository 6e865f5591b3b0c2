//! Executes the instructions of one warp until it waits, ends or has had its
//! turn.

use crate::fault::FaultKind;
use crate::memory::Memory;
use crate::memory::mbarrier::Mbarriers;
use crate::memory::shared::{Conflict, Known, Refused, Shared};
use crate::parse::syntax::Space;
use crate::program::{BarrierKind, Compare, Join, Op, PredSrc, Program, Reg};
use crate::stats::Stats;
use crate::warp::mma::Fragments;
use crate::warp::warpgroup::Warpgroup;
use crate::warp::{Row, State, Warp, blend, lanes};

/// Where shared, local and parameter memory appear among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 1 << 32;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 32;
pub(crate) const PARAM_WINDOW: u64 = 3 << 32;

/// Warp instructions before another warp gets its turn.
const TURN: u32 = 50_000;

/// A barrier of the block.
#[derive(Clone, Default)]
pub(crate) struct Barrier {
    /// Warps that wait, as bits.
    pub waiting: u32,
    /// Warps that have arrived, waiting or not.
    pub arrived: u32,
    /// Threads that have arrived: 32 for each warp.
    pub threads: u32,
    /// How many are expected; `None` means the whole block.
    pub expected: Option<u32>,
    /// What all that have arrived know.
    pub joined: Known,
    pub popc: u32,
    pub any: bool,
    /// Whether a predicate was false.
    pub any_false: bool,
}

/// What a block of threads runs on.
pub(crate) struct Machine<'a> {
    pub program: &'a Program,
    pub memory: &'a mut Memory,
    pub shared: Shared,
    pub local: Vec<u8>,
    pub local_written: Vec<bool>,
    /// Bytes of local memory of one thread.
    pub local_size: usize,
    pub params: Vec<u8>,
    pub barriers: Vec<Barrier>,
    pub warpgroups: Vec<Warpgroup>,
    pub mbarriers: Mbarriers,
    pub registers: crate::warp::registers::Registers,
    /// Warps of 32 threads.
    pub full_warps: usize,
    pub stats: Stats,
    /// Executions of each instruction, in lanes.
    pub counts: Vec<u64>,
    pub steps: u64,
    pub step_limit: u64,
    /// Where a result is put before it changes places with the row that it is for.
    pub result: Box<Row>,
    pub fragments: Box<Fragments>,
}

/// Something wrong in a lane.
pub(crate) struct Trouble {
    pub kind: Box<FaultKind>,
    pub lane: u32,
}

/// A race, whose other thread is named once the block's shape is known.
pub(crate) enum Halt {
    Trouble(Trouble),
    Race(Conflict, u32),
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Self {
        Halt::Trouble(trouble)
    }
}

pub(crate) fn trouble(kind: FaultKind, lane: u32) -> Halt {
    Halt::Trouble(Trouble { kind: Box::new(kind), lane })
}

pub(crate) fn refused(refused: Refused, lane: u32) -> Halt {
    match refused {
        Refused::Fault(kind) => Halt::Trouble(Trouble { kind, lane }),
        Refused::Race(conflict) => Halt::Race(conflict, lane),
    }
}

/// Why `run_warp` came back.
pub(crate) enum Stop {
    /// It waits, or has ended: see its state.
    Waits,
    /// It could go on.
    Turn,
}

type Step<T> = Result<T, Halt>;

/// A row that has been written in every lane of `mask`.
#[inline]
pub(crate) fn operand<'w>(program: &Program, warp: &'w Warp, row: Reg, mask: u32) -> Step<&'w Row> {
    let missing = mask & !warp.written[row as usize];
    if missing != 0 {
        return Err(unwritten(program, warp, row, missing));
    }
    Ok(&warp.rows[row as usize])
}

#[cold]
fn unwritten(program: &Program, warp: &Warp, row: Reg, missing: u32) -> Halt {
    let register = program.row_names[row as usize].clone();
    let lane = missing.trailing_zeros();
    match warp.products.holds(row) {
        true => trouble(FaultKind::PendingSum { register }, lane),
        false => trouble(FaultKind::UninitialisedRegister { register }, lane),
    }
}

impl Machine<'_> {
    /// Fails if a row has not been written in every lane of `mask`.
    #[inline]
    pub fn need(&self, warp: &Warp, row: Reg, mask: u32) -> Step<()> {
        operand(self.program, warp, row, mask).map(|_| ())
    }

    #[inline]
    pub fn need_pred(&self, warp: &Warp, p: PredSrc, mask: u32) -> Step<()> {
        let missing = warp.pred_missing(p, mask);
        if missing != 0 {
            let index = p.index.unwrap_or(0) as usize;
            let register = self.program.pred_names[index].clone();
            return Err(trouble(FaultKind::UninitialisedRegister { register }, missing.trailing_zeros()));
        }
        Ok(())
    }

    /// Runs a warp that is ready.
    pub fn run_warp(&mut self, warp: &mut Warp) -> Step<Stop> {
        let program = self.program;
        for _ in 0..TURN {
            if warp.active == 0 || warp.pc >= warp.next_other {
                if warp.active == 0 && warp.others.is_empty() {
                    warp.state = State::Done;
                    return Ok(Stop::Waits);
                }
                if !warp.regroup(false) {
                    return Err(self.stuck(warp));
                }
            }
            let instr = &program.instrs[warp.pc as usize];
            let mut mask = warp.active;
            if let Some(guard) = instr.guard {
                self.need_pred(warp, guard, mask)?;
                mask &= warp.pred(guard);
            }
            self.counts[warp.pc as usize] += u64::from(mask.count_ones());
            self.steps += 1;
            if mask == 0 {
                warp.pc += 1;
                continue;
            }
            match &instr.op {
                Op::Nop => {}
                Op::Un { f, m, d, a } => {
                    f.row(m, &mut self.result, operand(program, warp, *a, mask)?);
                    warp.take(mask, *d, &mut self.result);
                }
                Op::Bin { f, m, d, a, b } => {
                    let a = operand(program, warp, *a, mask)?;
                    f.row(m, &mut self.result, a, operand(program, warp, *b, mask)?);
                    warp.take(mask, *d, &mut self.result);
                }
                Op::Tri { f, m, d, a, b, c } => {
                    let (a, b) = (operand(program, warp, *a, mask)?, operand(program, warp, *b, mask)?);
                    f.row(m, &mut self.result, a, b, operand(program, warp, *c, mask)?);
                    warp.take(mask, *d, &mut self.result);
                }
                Op::Mov { d, a } => {
                    *self.result = *operand(program, warp, *a, mask)?;
                    warp.take(mask, *d, &mut self.result);
                }
                Op::Setp { compare, p, q } => {
                    let (first, second) = self.compare(warp, compare, mask)?;
                    if let Some(p) = p {
                        warp.set_pred(*p, mask, first);
                    }
                    if let Some(q) = q {
                        warp.set_pred(*q, mask, second);
                    }
                }
                Op::Bra { target } => {
                    let stay = warp.active & !mask;
                    if stay != 0 {
                        self.stats.divergent_branches += 1;
                        warp.active = stay;
                        warp.pc += 1;
                        warp.join(crate::warp::Group { pc: *target, mask, blocked: false });
                        warp.regroup(false);
                    } else {
                        let backward = *target <= warp.pc;
                        warp.pc = *target;
                        if backward && !warp.others.is_empty() {
                            warp.regroup(false);
                        }
                    }
                    if self.steps > self.step_limit {
                        let limit = self.step_limit;
                        return Err(trouble(FaultKind::StepLimit { limit }, mask.trailing_zeros()));
                    }
                    continue;
                }
                Op::Exit => {
                    if !warp.products.idle() {
                        return Err(trouble(FaultKind::PendingProducts, mask.trailing_zeros()));
                    }
                    warp.exit(mask);
                    if warp.active != 0 {
                        warp.pc += 1;
                    }
                    continue;
                }
                Op::Barrier { id, threads, kind } => {
                    if self.barrier(warp, mask, *id, *threads, *kind)? {
                        return Ok(Stop::Waits);
                    }
                    continue;
                }
                Op::SetMaxRegisters(_) if warp.active == warp.live && mask == warp.live => {
                    if !self.uncommon(warp, mask, &instr.op, instr.line)? {
                        return Ok(Stop::Waits);
                    }
                }
                Op::Mbarrier(op) => {
                    if !self.mbarrier(warp, mask, op)? {
                        // Lanes that stand elsewhere may be those that it waits for.
                        if warp.others.is_empty() {
                            return Ok(Stop::Waits);
                        }
                        warp.state = State::Ready;
                        warp.polled = None;
                        return Ok(Stop::Turn);
                    }
                }
                op => {
                    if !self.uncommon(warp, mask, op, instr.line)? {
                        // It waits for other lanes: another group runs.
                        if !warp.regroup(true) {
                            return Err(self.stuck(warp));
                        }
                        continue;
                    }
                }
            }
            warp.pc += 1;
        }
        if self.steps > self.step_limit {
            let limit = self.step_limit;
            let lane = warp.active.trailing_zeros() % 32;
            return Err(trouble(FaultKind::StepLimit { limit }, lane));
        }
        Ok(Stop::Turn)
    }

    /// Every group of the warp waits for lanes that are in another group.
    fn stuck(&self, warp: &mut Warp) -> Halt {
        let first = warp.others.iter().min_by_key(|g| g.pc).copied();
        let Some(group) = first else {
            return trouble(FaultKind::Trap, 0);
        };
        warp.pc = group.pc;
        let (arrived, missing) = (group.mask, warp.live & !group.mask);
        let kind = match self.program.instrs[group.pc as usize].op {
            Op::Barrier { .. } => FaultKind::DivergentBarrier { arrived, missing },
            _ => FaultKind::MissingLanes { arrived, missing },
        };
        trouble(kind, arrived.trailing_zeros())
    }

    /// Instructions that are rare, or long enough not to mind a call. False:
    /// the lanes must wait for others.
    fn uncommon(&mut self, warp: &mut Warp, mask: u32, op: &Op, line: u32) -> Step<bool> {
        match op {
            Op::Quad { f, m, d, a, b, c, e } => {
                let (a, b) = (operand(self.program, warp, *a, mask)?, operand(self.program, warp, *b, mask)?);
                let (c, e) = (operand(self.program, warp, *c, mask)?, operand(self.program, warp, *e, mask)?);
                f.row(m, &mut self.result, a, b, c, e);
                warp.take(mask, *d, &mut self.result);
            }
            Op::Convert { c, m, d, a, sign_shift, mask: width } => {
                self.need(warp, *a, mask)?;
                warp.compute(mask, *d, [*a], |[a]| ((c.run(m, a) << sign_shift) as i64 >> sign_shift) as u64 & width);
            }
            Op::Pack { d, parts, bits } => {
                for part in parts {
                    self.need(warp, *part, mask)?;
                }
                for lane in lanes(mask) {
                    let join = |all: u64, part: &Reg| all << bits | warp.get(*part, lane);
                    let value = parts.iter().rev().fold(0, join);
                    warp.set(*d, lane, value);
                }
            }
            Op::Unpack { parts, a, bits } => {
                self.need(warp, *a, mask)?;
                for lane in lanes(mask) {
                    let value = warp.get(*a, lane);
                    for (i, part) in parts.iter().enumerate() {
                        let part_value = value >> (bits * i as u32) & ((1 << bits) - 1);
                        warp.set(*part, lane, part_value);
                    }
                }
            }
            Op::Set { compare, d, one } => {
                let pair = compare.pair;
                let (first, second) = self.compare(warp, compare, mask)?;
                for lane in lanes(mask) {
                    let hit = |bits: u32| if bits >> lane & 1 == 1 { *one } else { 0 };
                    let value = if pair { hit(first) | hit(second) << 16 } else { hit(first) };
                    warp.set(*d, lane, value);
                }
            }
            Op::Testp { f, m, p, a } => {
                f.row(m, &mut self.result, operand(self.program, warp, *a, mask)?);
                warp.set_pred(*p, mask, lowest_bits(&self.result));
            }
            Op::Selp { d, a, b, p } => {
                self.need_pred(warp, *p, mask)?;
                let chosen = warp.pred(*p);
                self.need(warp, *a, mask & chosen)?;
                self.need(warp, *b, mask & !chosen)?;
                *self.result = *warp.rows[*b as usize];
                blend(&mut self.result, chosen, &warp.rows[*a as usize]);
                warp.take(mask, *d, &mut self.result);
            }
            Op::PredLogic { table, p, a, b } => {
                self.need_pred(warp, *a, mask)?;
                self.need_pred(warp, *b, mask)?;
                let (a, b) = (warp.pred(*a), warp.pred(*b));
                let minterms = [!a & !b, !a & b, a & !b, a & b];
                let bits = (0..4).filter(|i| table >> i & 1 == 1).map(|i| minterms[i]);
                let bits = bits.fold(0, |all, m| all | m);
                warp.set_pred(*p, mask, bits);
            }
            Op::Lop3Pred { table, d, p, abc, join, q } => {
                self.need_pred(warp, *q, mask)?;
                for row in abc {
                    self.need(warp, *row, mask)?;
                }
                let m = crate::types::Mods { table: *table, ..Default::default() };
                let f = crate::ops::integer::ternary("lop3", crate::types::Ty::B32);
                let mut bits = 0;
                for lane in lanes(mask) {
                    let [a, b, c] = abc.map(|row| warp.get(row, lane));
                    let value = f.map_or(0, |f| f(&m, a, b, c));
                    warp.set(*d, lane, value);
                    bits |= u32::from(value != 0) << lane;
                }
                let q = warp.pred(*q);
                warp.set_pred(*p, mask, joined(*join, bits, q));
            }
            Op::Carry { sub, carry_in, carry_out, wide, d, a, b } => {
                self.need(warp, *a, mask)?;
                self.need(warp, *b, mask)?;
                let bits = if *wide { 64 } else { 32 };
                for lane in lanes(mask) {
                    let (a, b) = (u128::from(warp.get(*a, lane)), u128::from(warp.get(*b, lane)));
                    let c = if *carry_in { u128::from(warp.carry >> lane & 1) } else { 0 };
                    // Subtraction borrows: its carry flag is the borrow.
                    let all = if *sub { a.wrapping_sub(b).wrapping_sub(c) } else { a + b + c };
                    warp.set(*d, lane, all as u64 & (u64::MAX >> (64 - bits)));
                    if *carry_out {
                        let out = (all >> bits & 1) as u32;
                        warp.carry = warp.carry & !(1 << lane) | out << lane;
                    }
                }
            }
            Op::Clock { d, wide } => {
                let now = if *wide { self.steps } else { self.steps & 0xffff_ffff };
                warp.compute(mask, *d, [], |[]| now);
            }
            Op::Print { format, values } => {
                for lane in lanes(mask) {
                    let line = self.printed(warp, lane, *format, *values)?;
                    self.stats.printed.push_str(&line);
                }
            }
            Op::ToGeneric { space, d, a } => {
                self.need(warp, *a, mask)?;
                warp.compute(mask, *d, [*a], |[a]| a.wrapping_add(window(*space)));
            }
            Op::FromGeneric { space, d, a } => {
                self.need(warp, *a, mask)?;
                warp.compute(mask, *d, [*a], |[a]| a.wrapping_sub(window(*space)));
            }
            Op::IsSpace { space, p, a } => {
                self.need(warp, *a, mask)?;
                let bits = lanes(mask).fold(0, |bits, lane| {
                    let (found, _) = split(Space::Generic, warp.get(*a, lane));
                    bits | u32::from(found == *space) << lane
                });
                warp.set_pred(*p, mask, bits);
            }
            Op::Load(load) => self.load(warp, mask, load, line)?,
            Op::Store(store) => self.store(warp, mask, store, line)?,
            Op::Atom(atom) => self.atom(warp, mask, atom, line)?,
            Op::CopyAsync { dst, src, bytes, src_bytes } => {
                self.copy_async(warp, mask, [*dst, *src], *bytes, *src_bytes, line)?;
            }
            Op::CopyCommit => warp.copies.push(Vec::new()),
            Op::CopyTensor(copy) => self.copy_tensor(warp, mask, copy)?,
            Op::ProxyFence if mask == warp.live => self.shared.proxy_fence(warp.index),
            // Of single lanes nothing is known.
            Op::ProxyFence => {}
            Op::CopyWait { pending } => self.copy_wait(warp, mask, *pending)?,
            Op::Trap => return Err(trouble(FaultKind::Trap, mask.trailing_zeros())),
            op => return self.warp_wide(warp, mask, op, line),
        }
        Ok(true)
    }

    /// Both results of a comparison: `p` and `q`, or the halves of a pair.
    #[inline]
    fn compare(&mut self, warp: &Warp, c: &Compare, mask: u32) -> Step<(u32, u32)> {
        let a = operand(self.program, warp, c.a, mask)?;
        c.f.row(&c.mods, &mut self.result, a, operand(self.program, warp, c.b, mask)?);
        self.need_pred(warp, c.c, mask)?;
        let first = lowest_bits(&self.result);
        let second = if c.pair {
            self.result.iter_mut().for_each(|answer| *answer >>= 1);
            lowest_bits(&self.result)
        } else {
            !first
        };
        let other = warp.pred(c.c);
        Ok((joined(c.join, first, other), joined(c.join, second, other)))
    }

    /// Arrives at a barrier of the block. True: the warp stops here.
    fn barrier(&mut self, warp: &mut Warp, mask: u32, id: Reg, threads: Option<Reg>, kind: BarrierKind) -> Step<bool> {
        if mask != warp.live {
            if mask != warp.active {
                // A guard keeps lanes away: they are past it when these wait.
                let missing = warp.live & !mask;
                let kind = FaultKind::DivergentBarrier { arrived: mask, missing };
                return Err(trouble(kind, mask.trailing_zeros()));
            }
            return if warp.regroup(true) { Ok(false) } else { Err(self.stuck(warp)) };
        }
        let uniform = |row: Reg, what: &str| -> Step<u64> {
            self.need(warp, row, mask)?;
            let first = warp.get(row, mask.trailing_zeros() as usize);
            match lanes(mask).find(|lane| warp.get(row, *lane) != first) {
                Some(lane) => Err(trouble(FaultKind::NotUniform { what: what.into() }, lane as u32)),
                None => Ok(first),
            }
        };
        let id = uniform(id, "the barrier's number")?;
        let threads = threads.map(|t| uniform(t, "the barrier's thread count")).transpose()?;
        let bad = threads.is_some_and(|t| t == 0 || t % 32 != 0 || t > 1024);
        let lane = mask.trailing_zeros();
        if id > 15 || bad {
            return Err(trouble(FaultKind::BadBarrier { id, threads }, lane));
        }
        let expected = threads.map(|t| t as u32);
        if self.barriers[id as usize].arrived != 0 && self.barriers[id as usize].expected != expected {
            return Err(trouble(FaultKind::BadBarrier { id, threads }, lane));
        }
        let pred = match kind {
            BarrierKind::Popc { p, .. } | BarrierKind::And { p, .. } | BarrierKind::Or { p, .. } => {
                self.need_pred(warp, p, mask)?;
                warp.pred(p) & mask
            }
            BarrierKind::Sync | BarrierKind::Arrive => mask,
        };
        let barrier = &mut self.barriers[id as usize];
        barrier.expected = expected;
        barrier.arrived |= 1 << warp.index;
        barrier.threads += 32;
        barrier.popc += pred.count_ones();
        barrier.any |= pred != 0;
        barrier.any_false |= pred != mask;
        self.shared.arrive(warp.index, &mut barrier.joined);
        if kind == BarrierKind::Arrive {
            warp.pc += 1;
            warp.state = State::Ready;
            return Ok(false);
        }
        barrier.waiting |= 1 << warp.index;
        warp.state = State::Waiting(id as usize);
        Ok(true)
    }
}

pub(crate) fn joined(join: Join, bits: u32, other: u32) -> u32 {
    match join {
        Join::None => bits,
        Join::And => bits & other,
        Join::Or => bits | other,
        Join::Xor => bits ^ other,
    }
}

/// The lowest bit of each lane.
fn lowest_bits(row: &Row) -> u32 {
    let (eights, _) = row.as_chunks::<8>();
    eights.iter().rev().fold(0, |all, eight| {
        let bits = u64::from_le_bytes(eight.map(|value| value as u8 & 1));
        // Each byte's bit moves to its place among the upper eight, and nothing else goes there.
        all << 8 | (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    })
}

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Generic | Space::Global | Space::Const => 0,
    }
}

/// The state space of an address, and the address in that space.
#[inline]
pub(crate) fn split(space: Space, address: u64) -> (Space, u64) {
    match space {
        Space::Generic => match address >> 32 {
            1 => (Space::Shared, address - SHARED_WINDOW),
            2 => (Space::Local, address - LOCAL_WINDOW),
            3 => (Space::Param, address - PARAM_WINDOW),
            _ => (Space::Global, address),
        },
        Space::Const => (Space::Global, address),
        other => (other, address),
    }
}
