//! Instructions in which the lanes of a warp work together: shuffles, votes,
//! matches, reductions and matrix instructions.

use crate::exec::{Halt, Machine, operand, refused, trouble};
use crate::fault::FaultKind;
use crate::memory::access::Addresses;
use crate::program::{Address, Op, ReduxOp, Reg, Shfl, ShflMode, VoteMode};
use crate::warp::{Warp, lanes};

impl Machine<'_> {
    /// The member mask of each lane, once all members are here; `None` while
    /// some are still on their way.
    fn members(&self, warp: &Warp, mask: u32, row: Reg) -> Result<Option<[u32; 32]>, Halt> {
        let rows = operand(self.program, warp, row, mask)?;
        let same = rows[0] as u32;
        if rows.iter().all(|members| *members == rows[0]) && mask & !same == 0 {
            return Ok(self.all_here(warp, mask, same & warp.live)?.then_some([same; 32]));
        }
        let mut out = [0; 32];
        // Mostly all lanes name the same.
        let mut here = None;
        for lane in lanes(mask) {
            let members = warp.get(row, lane) as u32;
            if members >> lane & 1 == 0 {
                let kind = FaultKind::NotAMember { lane: lane as u32, mask: members };
                return Err(trouble(kind, lane as u32));
            }
            if here != Some(members) && !self.all_here(warp, mask, members & warp.live)? {
                return Ok(None);
            }
            here = Some(members);
            out[lane] = members;
        }
        Ok(Some(out))
    }

    /// Whether all of `wanted` take part. False while some may still come; a
    /// fault if a guard keeps them away.
    fn all_here(&self, warp: &Warp, mask: u32, wanted: u32) -> Result<bool, Halt> {
        let missing = wanted & !mask;
        if missing & (warp.active | !warp.live) != 0 {
            let kind = FaultKind::MissingLanes { arrived: mask, missing };
            return Err(trouble(kind, mask.trailing_zeros()));
        }
        Ok(missing == 0)
    }

    /// False: the lanes must wait for others.
    pub fn warp_wide(&mut self, warp: &mut Warp, mask: u32, op: &Op, line: u32) -> Result<bool, Halt> {
        match op {
            Op::ActiveMask { d } => {
                for lane in lanes(mask) {
                    warp.set(*d, lane, u64::from(mask));
                }
                return Ok(true);
            }
            Op::SetMaxRegisters(op) => {
                return Ok(self.all_here(warp, mask, u32::MAX)? && self.set_max_registers(warp, *op)?);
            }
            Op::WgmmaFence | Op::Wgmma(_) | Op::WgmmaCommit | Op::WgmmaWait { .. } => {
                if !self.all_here(warp, mask, u32::MAX)? {
                    return Ok(false);
                }
                self.warpgroup(warp, op)?;
                return Ok(true);
            }
            Op::LdMatrix { .. } | Op::StMatrix { .. } | Op::MovMatrix { .. } | Op::Mma(_) => {
                if !self.all_here(warp, mask, u32::MAX)? {
                    return Ok(false);
                }
                self.matrix(warp, op, line)?;
                return Ok(true);
            }
            _ => {}
        }
        let row = match op {
            Op::WarpBarrier { mask } | Op::Vote { mask, .. } | Op::Redux { mask, .. } => *mask,
            Op::MatchAny { mask, .. } | Op::MatchAll { mask, .. } => *mask,
            Op::Elect { mask, .. } => *mask,
            Op::Shfl(shfl) => shfl.mask,
            _ => return Ok(true),
        };
        let Some(members) = self.members(warp, mask, row)? else {
            return Ok(false);
        };
        match op {
            Op::WarpBarrier { .. } => self.shared.warp_barrier(warp.index),
            Op::Shfl(shfl) => self.shuffle(warp, mask, shfl, &members)?,
            Op::Vote { mode, d, p, a, .. } => {
                self.need_pred(warp, *a, mask)?;
                let bits = warp.pred(*a) & mask;
                let mut result = 0;
                for lane in lanes(mask) {
                    let of = members[lane] & mask;
                    let yes = bits & of;
                    let hit = match mode {
                        VoteMode::Ballot => {
                            warp.set(*d, lane, u64::from(yes));
                            continue;
                        }
                        VoteMode::All => yes == of,
                        VoteMode::Any => yes != 0,
                        VoteMode::Uni => yes == of || yes == 0,
                    };
                    result |= u32::from(hit) << lane;
                }
                if *mode != VoteMode::Ballot {
                    warp.set_pred(*p, mask, result);
                }
            }
            Op::MatchAny { d, a, .. } => {
                self.need(warp, *a, mask)?;
                for lane in lanes(mask) {
                    let value = warp.get(*a, lane);
                    let same = lanes(members[lane] & mask).filter(|j| warp.get(*a, *j) == value);
                    let bits = same.fold(0u64, |bits, j| bits | 1 << j);
                    warp.set(*d, lane, bits);
                }
            }
            Op::MatchAll { d, p, a, .. } => {
                self.need(warp, *a, mask)?;
                let mut result = 0;
                for lane in lanes(mask) {
                    let of = members[lane] & mask;
                    let value = warp.get(*a, lane);
                    let all = lanes(of).all(|j| warp.get(*a, j) == value);
                    warp.set(*d, lane, if all { u64::from(of) } else { 0 });
                    result |= u32::from(all) << lane;
                }
                if let Some(p) = p {
                    warp.set_pred(*p, mask, result);
                }
            }
            Op::Redux { op, d, a, .. } => {
                self.need(warp, *a, mask)?;
                let values = *warp.rows[*a as usize];
                for lane in lanes(mask) {
                    let of = lanes(members[lane] & mask).map(|j| values[j] as u32);
                    let result = of.reduce(|x, y| reduce(*op, x, y)).unwrap_or(0);
                    warp.set(*d, lane, u64::from(result));
                }
            }
            Op::Elect { d, p, .. } => {
                let mut result = 0;
                for lane in lanes(mask) {
                    let leader = (members[lane] & mask).trailing_zeros();
                    warp.set(*d, lane, u64::from(leader));
                    result |= u32::from(leader == lane as u32) << lane;
                }
                warp.set_pred(*p, mask, result);
            }
            _ => {}
        }
        Ok(true)
    }

    fn shuffle(&mut self, warp: &mut Warp, mask: u32, s: &Shfl, members: &[u32; 32]) -> Result<(), Halt> {
        let values = operand(self.program, warp, s.a, mask)?;
        let (b, c) = (operand(self.program, warp, s.b, mask)?, operand(self.program, warp, s.c, mask)?);
        let mut in_range = 0;
        for lane in lanes(mask) {
            let me = lane as i32;
            let (b, c) = (b[lane] as i32 & 31, c[lane] as i32);
            let (clamp, segment) = (c & 31, c >> 8 & 31);
            let max = (me & segment) | (clamp & !segment);
            let min = me & segment;
            let (j, ok) = match s.mode {
                ShflMode::Up => (me - b, me - b >= max),
                ShflMode::Down => (me + b, me + b <= max),
                ShflMode::Bfly => (me ^ b, me ^ b <= max),
                ShflMode::Idx => {
                    let j = min | (b & !segment);
                    (j, j <= max)
                }
            };
            let j = if ok { j as usize } else { lane };
            if (members[lane] & mask) >> j & 1 == 0 {
                return Err(trouble(FaultKind::InactiveLane { lane: j as u32 }, lane as u32));
            }
            self.result[lane] = values[j];
            in_range |= u32::from(ok) << lane;
        }
        warp.take(mask, s.d, &mut self.result);
        if let Some(p) = s.p {
            warp.set_pred(p, mask, in_range);
        }
        Ok(())
    }

    /// Instructions of a whole warp on fragments.
    fn matrix(&mut self, warp: &mut Warp, op: &Op, line: u32) -> Result<(), Halt> {
        match op {
            Op::Mma(mma) => {
                for row in mma.a.iter().chain(&mma.b).chain(&mma.c) {
                    self.need(warp, *row, u32::MAX)?;
                }
                mma.run(warp, &mut self.fragments);
            }
            Op::MovMatrix { d, a } => {
                self.need(warp, *a, u32::MAX)?;
                let rows = std::array::from_fn(|row| std::array::from_fn(|pair| warp.get(*a, 4 * row + pair) as u32));
                for lane in 0..32 {
                    warp.set(*d, lane, fragment(&rows, lane, true));
                }
            }
            Op::LdMatrix { dst, at, trans } => {
                let (mask, addresses) = self.rows(warp, *at, dst.len(), line)?;
                let all = self.gather::<16>(warp, mask, &addresses, false)?;
                for (matrix, dst) in all.chunks_exact(8).zip(dst) {
                    let word = |row: usize, i: usize| matrix[row].as_chunks().0[i];
                    let rows: [[u32; 4]; 8] =
                        std::array::from_fn(|row| std::array::from_fn(|i| u32::from_le_bytes(word(row, i))));
                    for lane in 0..32 {
                        warp.set(*dst, lane, fragment(&rows, lane, *trans));
                    }
                }
            }
            Op::StMatrix { src, at, trans } => {
                let addresses = self.rows(warp, *at, src.len(), line)?.1.at;
                for (i, src) in src.iter().enumerate() {
                    self.need(warp, *src, u32::MAX)?;
                    let held: [[u32; 4]; 8] =
                        std::array::from_fn(|row| std::array::from_fn(|pair| warp.get(*src, 4 * row + pair) as u32));
                    for r in 0..8 {
                        let lane = 8 * i + r;
                        let who = Self::who(warp, lane, false);
                        let bytes =
                            self.shared.store(addresses[lane], 16, who, false).map_err(|r| refused(r, lane as u32))?;
                        for (pair, part) in bytes.chunks_exact_mut(4).enumerate() {
                            let word = fragment(&held, 4 * r + pair, *trans) as u32;
                            part.copy_from_slice(&word.to_le_bytes());
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The row addresses of `count` matrices: lane `8 * i + r` has row `r` of
    /// matrix `i`, and the lanes beyond are not looked at.
    fn rows(&mut self, warp: &Warp, at: Address, count: usize, line: u32) -> Result<(u32, Addresses), Halt> {
        let lanes = u32::MAX >> (32 - 8 * count);
        Ok((lanes, self.addresses(warp, lanes, at, 16, line)?))
    }
}

/// What a lane holds of an 8 by 8 matrix of 16-bit elements given by its rows
/// of four pairs: elements `2 * t` and `2 * t + 1` of row `g`, or of column
/// `g` if transposed.
fn fragment(rows: &[[u32; 4]; 8], lane: usize, trans: bool) -> u64 {
    let (g, t) = (lane / 4, lane % 4);
    if !trans {
        return u64::from(rows[g][t]);
    }
    let element = |row: usize| u64::from(rows[row][g / 2] >> (16 * (g % 2)) & 0xffff);
    element(2 * t) | element(2 * t + 1) << 16
}

fn reduce(op: ReduxOp, x: u32, y: u32) -> u32 {
    match op {
        ReduxOp::Add => x.wrapping_add(y),
        ReduxOp::MinS => (x as i32).min(y as i32) as u32,
        ReduxOp::MaxS => (x as i32).max(y as i32) as u32,
        ReduxOp::MinU => x.min(y),
        ReduxOp::MaxU => x.max(y),
        ReduxOp::And => x & y,
        ReduxOp::Or => x | y,
        ReduxOp::Xor => x ^ y,
    }
}
