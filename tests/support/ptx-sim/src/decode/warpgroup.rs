//! The instructions of a warpgroup.

use super::{Decoded, Decoder, Words, operands};
use crate::memory::descriptor::STEPS_BYTES;
use crate::parse::syntax::{Literal, Operand};
use crate::program::{Op, Reg};
use crate::types::Ty;
use crate::warp::mma::{Element, element};
use crate::warp::registers::SetMaxRegisters;
use crate::warp::warpgroup::{Left, Wgmma};

impl Decoder {
    pub(super) fn warpgroup(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        self.program.uses_async_proxy = true;
        let what = words.need(&["fence", "mma_async", "commit_group", "wait_group"])?;
        words.need(&["sync"])?;
        words.need(&["aligned"])?;
        match what {
            "fence" => operands::<0>(ops).map(|_| Op::WgmmaFence),
            "commit_group" => operands::<0>(ops).map(|_| Op::WgmmaCommit),
            "wait_group" => match operands(ops)? {
                [Operand::Literal(Literal::Int(n))] if *n < 8 => Ok(Op::WgmmaWait { pending: *n as u32 }),
                _ => Err("a number of groups from 0 to 7 is needed".into()),
            },
            _ => self.wgmma(words, ops),
        }
    }

    /// `setmaxnreg.inc.sync.aligned.u32 232`
    pub(super) fn set_max_registers(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let increase = words.need(&["inc", "dec"])? == "inc";
        words.need(&["sync"])?;
        words.need(&["aligned"])?;
        words.need(&["u32"])?;
        let [Operand::Literal(Literal::Int(count))] = operands(ops)? else {
            return Err("a number is needed".into());
        };
        if !(24..=256).contains(count) || !count.is_multiple_of(8) {
            return Err("the number is a multiple of 8 from 24 to 256".into());
        }
        Ok(Op::SetMaxRegisters(SetMaxRegisters { increase, count: *count as u32 }))
    }

    fn wgmma(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let &[shape, d_word, a_word, b_word] = words.rest.as_slice() else {
            return Err("a shape and the types of d, a and b are needed".into());
        };
        words.rest.clear();
        let pair = element(a_word).zip(element(b_word)).filter(|(a, b)| multiplies(*a, *b));
        let sums = pair.map(|(a, _)| if a.is_integer() { ("s32", Ty::S32) } else { ("f32", Ty::F32) });
        let (Some((left, right)), Some((_, sum))) = (pair, sums.filter(|(word, _)| *word == d_word)) else {
            return Err(format!("sums of .{d_word} from .{a_word} and .{b_word} are not simulated"));
        };
        let steps = format!("k{}", STEPS_BYTES / left.bytes());
        let columns =
            shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix(&steps)).and_then(|n| n.parse().ok());
        // Integers have some widths only.
        let has = |n: &usize| n.is_multiple_of(if left.is_integer() && *n != 8 && *n != 24 { 16 } else { 8 });
        let columns = columns.filter(|n| has(n) && (8..=256).contains(n));
        let columns = columns.ok_or_else(|| format!("no shape .{shape} of factors of .{a_word}"))?;
        let (d, a, b, adds, rest) = match ops {
            [d, a, b, adds, rest @ ..] => (d, a, b, adds, rest),
            _ => return Err("the number of operands is wrong".into()),
        };
        let numbers: Vec<u64> = rest
            .iter()
            .map(|op| match op {
                Operand::Literal(Literal::Int(v)) => Ok(*v),
                other => Err(format!("a number is needed, not {other:?}")),
            })
            .collect::<Decoded<_>>()?;
        let in_registers = matches!(a, Operand::Vector(_));
        // Halves alone may lie across the sum, and integers are not negated.
        let (scales, across) = match (&numbers[..], left.bytes(), in_registers) {
            (&[x, y, a, b], 2, false) => ([x, y], [a, b]),
            (&[x, y, b], 2, true) => ([x, y], [0, b]),
            (&[x, y], 1 | 4, _) if !left.is_integer() => ([x, y], [0, 0]),
            (&[], 1, _) if left.is_integer() => ([1, 1], [0, 0]),
            _ => return Err("the number of operands is wrong".into()),
        };
        if scales.iter().any(|&s| s != 1 && s != u64::MAX) || across.iter().any(|&t| t > 1) {
            return Err("scales are 1 or -1, transpositions 0 or 1".into());
        }
        let d = self.list(d, columns / 2, sum, true)?;
        let mut distinct = d.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < d.len() {
            return Err("a register has two sums".into());
        }
        let a = match in_registers {
            true => Left::Registers(self.list(a, 4, Ty::B32, false)?),
            false => Left::Descriptor(self.src(a, Ty::B64)?),
        };
        let b = self.src(b, Ty::B64)?;
        let adds = self.pred_src(adds)?;
        let taken: Vec<Reg> = match &a {
            Left::Registers(a) => d.iter().chain(a.iter()).copied().collect(),
            Left::Descriptor(_) => d.to_vec(),
        };
        for row in taken {
            if !self.program.wgmma_rows.contains(&row) {
                self.program.wgmma_rows.push(row);
            }
        }
        self.program.granule = self.program.granule.min(left.bytes() as u32);
        let (negated, across) = (scales.map(|s| s != 1), across.map(|t| t == 1));
        Ok(Op::Wgmma(Box::new(Wgmma { columns, elements: [left, right], d, a, b, adds, negated, across })))
    }
}

/// Whether a warpgroup multiplies elements of these types.
fn multiplies(a: Element, b: Element) -> bool {
    let same = matches!(a, Element::F16 | Element::Bf16 | Element::Tf32) && a == b;
    same || (a.is_float8() && b.is_float8()) || (a.is_integer() && b.is_integer())
}
