//! `mbarrier` and bulk copies of tensors.

use super::{Decoded, Decoder, Words, operands};
use crate::memory::mbarrier::{CopyTensor, MbarrierKind, MbarrierOp};
use crate::parse::syntax::{Operand, Space};
use crate::program::Op;
use crate::types::Ty;

impl Decoder {
    pub(super) fn mbarrier(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        self.program.uses_async_proxy = true;
        self.program.granule = self.program.granule.min(8);
        let what = words.need(&["init", "inval", "arrive", "expect_tx", "try_wait", "test_wait"])?;
        let expects = what == "arrive" && words.flag("expect_tx");
        let parity = words.flag("parity");
        if parity && !what.ends_with("wait") {
            return Err(".parity goes with waiting".into());
        }
        if what != "init" && what != "inval" {
            words.choice(&["release", "acquire", "relaxed"]);
            words.choice(&["cta", "cluster"]);
        }
        words.need(&["shared", "shared::cta"])?;
        words.need(&["b64"])?;
        let at = |g: &mut Self, op: &Operand| g.address(op, Space::Shared);
        let (at, kind) = match (what, ops) {
            ("init", [a, count]) => (at(self, a)?, MbarrierKind::Init { count: self.src(count, Ty::U32)? }),
            ("inval", [a]) => (at(self, a)?, MbarrierKind::Inval),
            ("expect_tx", [a, bytes]) => (at(self, a)?, MbarrierKind::Expect { bytes: self.src(bytes, Ty::U32)? }),
            ("arrive", [state, a, rest @ ..]) => {
                let at = at(self, a)?;
                let state = if *state == Operand::Sink { None } else { Some(self.dst(state, Ty::B64)?) };
                let one = self.constant(1);
                let kind = match (expects, rest) {
                    (true, [bytes]) => {
                        MbarrierKind::Arrive { state, count: one, bytes: Some(self.src(bytes, Ty::U32)?) }
                    }
                    (false, []) => MbarrierKind::Arrive { state, count: one, bytes: None },
                    (false, [count]) => MbarrierKind::Arrive { state, count: self.src(count, Ty::U32)?, bytes: None },
                    _ => return Err("the number of operands is wrong".into()),
                };
                (at, kind)
            }
            ("try_wait" | "test_wait", [p, a, phase]) => {
                let phase = self.src(phase, if parity { Ty::U32 } else { Ty::B64 })?;
                (at(self, a)?, MbarrierKind::Wait { p: self.pred_reg(p)?, phase, parity })
            }
            _ => return Err("the number of operands is wrong".into()),
        };
        Ok(Op::Mbarrier(Box::new(MbarrierOp { at, kind })))
    }

    /// `cp.async.bulk.tensor`, after `bulk`.
    pub(super) fn copy_tensor(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        self.program.uses_async_proxy = true;
        if !words.flag("tensor") {
            return Err("only the copies of tensors are simulated".into());
        }
        let axes = match words.need(&["1d", "2d", "3d", "4d", "5d"])? {
            "1d" => 1,
            "2d" => 2,
            "3d" => 3,
            "4d" => 4,
            _ => 5,
        };
        let to = words.need(&["shared::cluster", "shared::cta"])?;
        if words.rest.first() != Some(&"global") {
            return Err(format!("it copies from .global to .{to}"));
        }
        words.flag("global");
        words.flag("tile");
        words.need(&["mbarrier::complete_tx::bytes"])?;
        let [dst, Operand::Tensor(map, offset, coordinates), barrier] = operands(ops)? else {
            return Err("[dst], [map, {coordinates}] and [barrier] are needed".into());
        };
        if coordinates.len() != axes {
            return Err(format!("{axes} coordinates are needed"));
        }
        let map = self.address(&Operand::Address(Some(map.clone()), *offset), Space::Generic)?;
        let coordinates = coordinates.iter().map(|c| self.src(c, Ty::S32)).collect::<Decoded<_>>()?;
        let (dst, barrier) = (self.address(dst, Space::Shared)?, self.address(barrier, Space::Shared)?);
        Ok(Op::CopyTensor(Box::new(CopyTensor { dst, map, coordinates, barrier })))
    }
}
