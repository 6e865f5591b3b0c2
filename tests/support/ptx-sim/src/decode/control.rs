//! Branches, barriers and the instructions by which the lanes of a warp talk.

use super::{Decoded, Decoder, Symbol, Words, operands};
use crate::parse::syntax::Operand;
use crate::program::{BarrierKind, Op, Pred, ReduxOp, Reg, Shfl, ShflMode, VoteMode};
use crate::types::Ty;

impl Decoder {
    pub(super) fn control(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        match opcode {
            "bra" => {
                // `.uni` is a promise to the assembler.
                words.flag("uni");
                let [Operand::Name(label)] = operands(ops)? else {
                    return Err("a label is needed".into());
                };
                match self.labels.get(label) {
                    Some(target) => Ok(Op::Bra { target: *target }),
                    None => Err(format!("the label `{label}` is not declared")),
                }
            }
            "exit" | "ret" => {
                words.flag("uni");
                operands::<0>(ops)?;
                Ok(Op::Exit)
            }
            "trap" => {
                operands::<0>(ops)?;
                Ok(Op::Trap)
            }
            "membar" => {
                let scope = words.need(&["cta", "gl", "sys"])?;
                self.program.orders_blocks |= scope != "cta";
                operands::<0>(ops)?;
                Ok(Op::Nop)
            }
            "fence" if words.flag("mbarrier_init") => {
                words.need(&["release"])?;
                words.need(&["cluster"])?;
                operands::<0>(ops)?;
                Ok(Op::Nop)
            }
            "fence" if words.flag("proxy") => {
                words.need(&["async"])?;
                words.choice(&["global", "shared::cta", "shared::cluster"]);
                operands::<0>(ops)?;
                Ok(Op::ProxyFence)
            }
            "fence" => {
                words.choice(&["sc", "acq_rel", "acquire", "release"]);
                let scope = words.need(&["cta", "cluster", "gpu", "sys"])?;
                self.program.orders_blocks |= scope != "cta";
                operands::<0>(ops)?;
                Ok(Op::Nop)
            }
            "nanosleep" => {
                words.flag("u32");
                let [t] = operands(ops)?;
                self.src(t, Ty::U32)?;
                Ok(Op::Nop)
            }
            "griddepcontrol" => {
                words.need(&["launch_dependents", "wait"])?;
                Ok(Op::Nop)
            }
            "bar" | "barrier" => self.barrier(words, ops),
            "call" => {
                words.flag("uni");
                let [Operand::List(results), Operand::Name(function), Operand::List(given)] = operands(ops)? else {
                    return Err("a result, a function and its arguments are needed".into());
                };
                if function != "vprintf" {
                    return Err(format!("the function `{function}` is not simulated"));
                }
                let [_] = self.arguments(results)?;
                let [format, values] = self.arguments(given)?;
                Ok(Op::Print { format, values })
            }
            "shfl" => self.shfl(words, ops),
            "vote" => self.vote(words, ops),
            "match" => {
                let all = words.need(&["all", "any"])? == "all";
                sync(words)?;
                let ty = words.ty()?;
                if !matches!(ty, Ty::B32 | Ty::B64) {
                    return Err(format!("no match of {ty:?}"));
                }
                let [d, a, mask] = operands(ops)?;
                let (a, mask) = (self.src(a, ty)?, self.src(mask, Ty::B32)?);
                if !all {
                    return Ok(Op::MatchAny { d: self.dst(d, Ty::B32)?, a, mask });
                }
                let (d, p) = self.value_and_pred(d)?;
                Ok(Op::MatchAll { d, p, a, mask })
            }
            "redux" => {
                sync(words)?;
                let name = words.need(&["add", "min", "max", "and", "or", "xor"])?;
                let ty = words.ty()?;
                let op = match (name, ty) {
                    ("add", Ty::U32 | Ty::S32) => ReduxOp::Add,
                    ("min", Ty::S32) => ReduxOp::MinS,
                    ("max", Ty::S32) => ReduxOp::MaxS,
                    ("min", Ty::U32) => ReduxOp::MinU,
                    ("max", Ty::U32) => ReduxOp::MaxU,
                    ("and", Ty::B32) => ReduxOp::And,
                    ("or", Ty::B32) => ReduxOp::Or,
                    ("xor", Ty::B32) => ReduxOp::Xor,
                    _ => return Err(format!("no .{name} of {ty:?}")),
                };
                let [d, a, mask] = operands(ops)?;
                let (d, a) = (self.dst(d, ty)?, self.src(a, ty)?);
                Ok(Op::Redux { op, d, a, mask: self.src(mask, Ty::B32)? })
            }
            "activemask" => {
                words.need(&["b32"])?;
                let [d] = operands(ops)?;
                Ok(Op::ActiveMask { d: self.dst(d, Ty::B32)? })
            }
            _ => {
                sync(words)?;
                let [d, mask] = operands(ops)?;
                let (d, p) = self.value_and_pred(d)?;
                let p = p.ok_or("elect gives `d|p`")?;
                Ok(Op::Elect { d, p, mask: self.src(mask, Ty::B32)? })
            }
        }
    }

    /// The places of what a call passes.
    fn arguments<const N: usize>(&self, names: &[Operand]) -> Decoded<[u64; N]> {
        let place = |name: &Operand| match name {
            Operand::Name(name) => match self.lookup(name)? {
                Symbol::Argument(at) => Ok(at),
                _ => Err(format!("`{name}` is not declared by `.param` for a call")),
            },
            other => Err(format!("a call passes variables, not {other:?}")),
        };
        let places: Vec<u64> = names.iter().map(place).collect::<Decoded<_>>()?;
        places.try_into().map_err(|_| "the number of arguments is wrong".into())
    }

    /// `d` or `d|p`.
    fn value_and_pred(&mut self, op: &Operand) -> Decoded<(Reg, Option<Pred>)> {
        match op {
            Operand::Pair(d, p) => Ok((self.dst(d, Ty::B32)?, self.pred_dst(p)?)),
            d => Ok((self.dst(d, Ty::B32)?, None)),
        }
    }

    fn barrier(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        words.flag("cta");
        if words.flag("warp") {
            sync(words)?;
            let [mask] = operands(ops)?;
            return Ok(Op::WarpBarrier { mask: self.src(mask, Ty::B32)? });
        }
        words.flag("aligned");
        match words.need(&["sync", "arrive", "red"])? {
            "red" => {
                let op = words.need(&["popc", "and", "or"])?;
                words.need(if op == "popc" { &["u32"] } else { &["pred"] })?;
                let (d, id, threads, p) = match ops {
                    [d, id, p] => (d, id, None, p),
                    [d, id, threads, p] => (d, id, Some(threads), p),
                    _ => return Err("the number of operands is wrong".into()),
                };
                let p = self.pred_src(p)?;
                let kind = match op {
                    "popc" => BarrierKind::Popc { d: self.dst(d, Ty::U32)?, p },
                    "and" => BarrierKind::And { d: self.pred_reg(d)?, p },
                    _ => BarrierKind::Or { d: self.pred_reg(d)?, p },
                };
                let id = self.src(id, Ty::U32)?;
                let threads = threads.map(|t| self.src(t, Ty::U32)).transpose()?;
                Ok(Op::Barrier { id, threads, kind })
            }
            word => {
                let kind = if word == "sync" { BarrierKind::Sync } else { BarrierKind::Arrive };
                let (id, threads) = match ops {
                    [id] if kind == BarrierKind::Sync => (id, None),
                    [id, threads] => (id, Some(self.src(threads, Ty::U32)?)),
                    _ => return Err("the number of operands is wrong".into()),
                };
                Ok(Op::Barrier { id: self.src(id, Ty::U32)?, threads, kind })
            }
        }
    }

    fn shfl(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        sync(words)?;
        let mode = match words.need(&["up", "down", "bfly", "idx"])? {
            "up" => ShflMode::Up,
            "down" => ShflMode::Down,
            "bfly" => ShflMode::Bfly,
            _ => ShflMode::Idx,
        };
        words.need(&["b32"])?;
        let [d, a, b, c, mask] = operands(ops)?;
        let (d, p) = self.value_and_pred(d)?;
        let (a, b, c) = (self.src(a, Ty::B32)?, self.src(b, Ty::B32)?, self.src(c, Ty::B32)?);
        let mask = self.src(mask, Ty::B32)?;
        Ok(Op::Shfl(Box::new(Shfl { mode, d, p, a, b, c, mask })))
    }

    fn vote(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        sync(words)?;
        let mode = match words.need(&["all", "any", "uni", "ballot"])? {
            "all" => VoteMode::All,
            "any" => VoteMode::Any,
            "uni" => VoteMode::Uni,
            _ => VoteMode::Ballot,
        };
        let [d, a, mask] = operands(ops)?;
        let (a, mask) = (self.pred_src(a)?, self.src(mask, Ty::B32)?);
        if mode == VoteMode::Ballot {
            words.need(&["b32"])?;
            return Ok(Op::Vote { mode, d: self.dst(d, Ty::B32)?, p: 0, a, mask });
        }
        words.need(&["pred"])?;
        Ok(Op::Vote { mode, d: 0, p: self.pred_reg(d)?, a, mask })
    }
}

/// The forms without `.sync` are gone from the ISA since sm_70.
fn sync(words: &mut Words) -> Decoded<()> {
    words.need(&["sync"]).map(|_| ())
}
