//! `mma.sync` and the instructions that move 8 by 8 matrices.

use super::{Decoded, Decoder, Words, operands};
use crate::parse::syntax::{Operand, Space};
use crate::program::{Op, Reg};
use crate::types::Ty;
use crate::warp::mma::{Element, Mma, accumulates, element, shapes};

impl Decoder {
    pub(super) fn tensor(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        words.need(&["sync"])?;
        words.need(&["aligned"])?;
        if opcode == "mma" {
            return self.mma(words, ops);
        }
        words.need(&["m8n8"])?;
        if opcode == "movmatrix" {
            words.need(&["trans"])?;
            words.need(&["b16"])?;
            let [d, a] = operands(ops)?;
            return Ok(Op::MovMatrix { d: self.dst(d, Ty::B32)?, a: self.src(a, Ty::B32)? });
        }
        let count = match words.need(&["x1", "x2", "x4"])? {
            "x1" => 1,
            "x2" => 2,
            _ => 4,
        };
        let trans = words.flag("trans");
        if !words.flag("shared") && !words.flag("shared::cta") {
            return Err("only the .shared form is simulated".into());
        }
        words.need(&["b16"])?;
        self.program.granule = self.program.granule.min(2);
        let (list, at) = match (opcode, ops) {
            ("ldmatrix", [list, at]) | ("stmatrix", [at, list]) => (list, at),
            _ => return Err("registers and an address are needed".into()),
        };
        let at = self.address(at, Space::Shared)?;
        if opcode == "ldmatrix" {
            let dst = self.list(list, count, Ty::B32, true)?;
            return Ok(Op::LdMatrix { dst, at, trans });
        }
        let src = self.list(list, count, Ty::B32, false)?;
        Ok(Op::StMatrix { src, at, trans })
    }

    /// A list of registers of a known length.
    pub(super) fn list(&mut self, op: &Operand, count: usize, ty: Ty, dst: bool) -> Decoded<Box<[Reg]>> {
        let one = std::slice::from_ref(op);
        let items = if let Operand::Vector(items) = op { items } else { one };
        if items.len() != count {
            return Err(format!("{count} registers are needed, {} are given", items.len()));
        }
        items.iter().map(|i| if dst { self.dst(i, ty) } else { self.src(i, ty) }).collect()
    }

    fn mma(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let shape = words.need(&["m8n8k4", "m8n8k16", "m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"])?;
        words.need(&["row"])?;
        words.need(&["col"])?;
        let satfinite = words.flag("satfinite");
        let &[d_word, a_word, b_word, c_word] = words.rest.as_slice() else {
            return Err("the types of d, a, b and c are needed".into());
        };
        words.rest.clear();
        let named = |word: &str| Ty::named(word).filter(|t| accumulates(*t));
        let (Some(d_type), Some(c_type)) = (named(d_word), named(c_word)) else {
            return Err(format!("no accumulation of .{d_word} from .{c_word}"));
        };
        let (Some(a_type), Some(b_type)) = (element(a_word), element(b_word)) else {
            return Err(format!("no product of .{a_word} and .{b_word}"));
        };
        let size = match shape {
            "m8n8k4" => (8, 8, 4),
            "m8n8k16" => (8, 8, 16),
            "m16n8k4" => (16, 8, 4),
            "m16n8k8" => (16, 8, 8),
            "m16n8k16" => (16, 8, 16),
            _ => (16, 8, 32),
        };
        let types_fit = match a_type {
            Element::F16 => matches!((c_type, d_type), (Ty::F16 | Ty::F32, Ty::F16 | Ty::F32)) && b_type == a_type,
            Element::E4m3 | Element::E5m2 => {
                matches!((c_type, d_type), (Ty::F32, Ty::F32) | (Ty::F16, Ty::F16))
                    && matches!(b_type, Element::E4m3 | Element::E5m2)
            }
            Element::Bf16 | Element::Tf32 => (c_type, d_type) == (Ty::F32, Ty::F32) && b_type == a_type,
            Element::S8 | Element::U8 => (c_type, d_type) == (Ty::S32, Ty::S32) && b_type.is_integer(),
            Element::F64 => (c_type, d_type) == (Ty::F64, Ty::F64) && b_type == a_type,
        };
        if !types_fit || !shapes(a_type).contains(&size) || satfinite && !a_type.is_integer() {
            return Err("this combination of shape and types does not exist".into());
        }
        let [d, a, b, c] = operands(ops)?;
        let empty: Box<[Reg]> = Box::new([]);
        let mut mma = Mma {
            m: size.0,
            k: size.2,
            a_type,
            b_type,
            c_type,
            d_type,
            satfinite,
            d: empty.clone(),
            a: empty.clone(),
            b: empty.clone(),
            c: empty,
        };
        let (in_a, in_b, in_c, in_d) = mma.registers();
        let factor = if a_type == Element::F64 { Ty::F64 } else { Ty::B32 };
        let sum = |ty: Ty| if ty == Ty::F16 { Ty::B32 } else { ty };
        mma.a = self.list(a, in_a, factor, false)?;
        mma.b = self.list(b, in_b, factor, false)?;
        mma.c = self.list(c, in_c, sum(c_type), false)?;
        mma.d = self.list(d, in_d, sum(d_type), true)?;
        Ok(Op::Mma(Box::new(mma)))
    }
}
