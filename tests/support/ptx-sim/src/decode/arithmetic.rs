//! Arithmetic, logic, comparison and selection.

use super::{Decoded, Decoder, Words, operands};
use crate::ops::softfloat::Round;
use crate::ops::{F2, float, half, integer};
use crate::parse::syntax::{Literal, Operand};
use crate::program::{Compare, Join, Op, PredSrc, Reg};
use crate::types::{Class, Mods, Ty};

const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// f32, f64 and the halves, also where their class is bits.
fn is_float(ty: Ty) -> bool {
    is_half(ty) || matches!(ty, Ty::F32 | Ty::F64)
}

fn is_half(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2)
}

fn unknown<T>(ty: Ty) -> Decoded<T> {
    Err(format!("no such instruction for {ty:?}"))
}

impl Decoder {
    pub(super) fn arithmetic(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        match opcode {
            "add" | "sub" if words.rest.contains(&"cc") => self.carry(opcode, false, words, ops),
            "addc" | "subc" => self.carry(opcode, true, words, ops),
            "add" | "sub" | "mul" | "mul24" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl" | "shr"
            | "copysign" | "bmsk" => self.binary(opcode, words, ops),
            "neg" | "abs" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "sqrt" | "rcp" | "rsqrt" | "ex2"
            | "lg2" | "sin" | "cos" | "tanh" => self.unary(opcode, words, ops),
            "mad" | "mad24" | "fma" | "sad" | "shf" | "bfe" | "prmt" | "slct" => self.ternary(opcode, words, ops),
            "dp4a" => {
                let (a_ty, b_ty) = (words.ty()?, words.ty()?);
                if [a_ty, b_ty].iter().any(|t| !matches!(t, Ty::U32 | Ty::S32)) {
                    return unknown(a_ty);
                }
                let [d, a, b, c] = operands(ops)?;
                let f = integer::dp4a(a_ty == Ty::S32, b_ty == Ty::S32);
                let ty = Ty::B32;
                let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
                Ok(Op::Tri { f, m: Mods::default(), d, a, b, c: self.src(c, ty)? })
            }
            "lop3" => self.lop3(words, ops),
            "bfi" => {
                let ty = words.ty()?;
                let Some(f) = integer::quaternary("bfi", ty) else {
                    return unknown(ty);
                };
                let [d, a, b, c, e] = operands(ops)?;
                let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
                let (c, e) = (self.src(c, Ty::U32)?, self.src(e, Ty::U32)?);
                Ok(Op::Quad { f, m: Mods::default(), d, a, b, c, e })
            }
            "testp" => {
                let what = words.need(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])?;
                let ty = words.ty()?;
                let Some(f) = float::unary(&format!("testp.{what}"), ty) else {
                    return unknown(ty);
                };
                let [p, a] = operands(ops)?;
                let (p, a) = (self.pred_reg(p)?, self.src(a, ty)?);
                Ok(Op::Testp { f, m: Mods::default(), p, a })
            }
            "setp" => self.setp(words, ops),
            "set" => self.set(words, ops),
            "selp" => {
                let ty = words.ty()?;
                let [d, a, b, p] = operands(ops)?;
                let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
                Ok(Op::Selp { d, a, b, p: self.pred_src(p)? })
            }
            other => Err(format!("the instruction `{other}` is not simulated")),
        }
    }

    fn unary(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let shift_amount = opcode == "bfind" && words.flag("shiftamt");
        let mut m = Mods { table: u8::from(shift_amount), ..Mods::default() };
        let approx = words.flag("approx");
        let round = words.round();
        m.ftz = words.flag("ftz");
        let ty = words.ty()?;
        let name = match opcode {
            "sqrt" | "rcp" if !approx => {
                m.round = round.ok_or("a rounding mode or .approx is needed")?;
                format!("{opcode}.round")
            }
            "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => {
                if !approx || round.is_some() {
                    return Err(".approx is needed".into());
                }
                format!("{opcode}.approx")
            }
            _ if approx || round.is_some() => return Err("it does not round".into()),
            _ => opcode.to_owned(),
        };
        if m.ftz && !(ty == Ty::F32 || is_half(ty) || ty == Ty::F64 && approx) {
            return Err(format!(".ftz does not go with {ty:?}"));
        }
        let f = if is_half(ty) {
            half::unary(&name, ty)
        } else if is_float(ty) {
            float::unary(&name, ty)
        } else {
            integer::unary(&name, ty)
        };
        let [d, a] = operands(ops)?;
        if ty == Ty::Pred && opcode == "not" {
            let (p, a) = (self.pred_reg(d)?, self.pred_src(a)?);
            return Ok(Op::PredLogic { table: 0b0011, p, a, b: a });
        }
        let Some(f) = f else { return unknown(ty) };
        let d_ty = if matches!(opcode, "popc" | "clz" | "bfind") { Ty::U32 } else { ty };
        Ok(Op::Un { f, m, d: self.dst(d, d_ty)?, a: self.src(a, ty)? })
    }

    /// The modifiers of a floating `add`, `sub`, `mul` or `div`.
    fn float_modifiers(&mut self, words: &mut Words, ty: Ty) -> Decoded<Mods> {
        let Some(round) = words.round() else {
            return Err("write the rounding mode: without it the assembler may contract to fma, \
                 and the result is not determined"
                .into());
        };
        if round != Round::Near && is_half(ty) {
            return Err(format!("{ty:?} only rounds by .rn"));
        }
        let mut m = Mods { round, ..Mods::default() };
        m.ftz = words.flag("ftz");
        m.sat = words.flag("sat");
        if (m.ftz && matches!(ty, Ty::F64 | Ty::Bf16 | Ty::Bf16x2))
            || (m.sat && matches!(ty, Ty::F64 | Ty::Bf16 | Ty::Bf16x2))
        {
            return Err(format!(".ftz and .sat do not go with {ty:?}"));
        }
        Ok(m)
    }

    fn binary(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let mut m = Mods::default();
        let part = match opcode {
            "mul" | "mul24" => words.choice(&["lo", "hi", "wide"]),
            "div" => words.choice(&["approx", "full"]),
            "bmsk" => {
                m.table = u8::from(words.need(&["clamp", "wrap"])? == "wrap");
                None
            }
            _ => None,
        };
        let mut extremum = false;
        if matches!(opcode, "min" | "max") {
            m.relu = words.flag("relu");
            m.nan = words.flag("NaN");
            m.xorsign = words.flag("xorsign");
            m.abs = words.flag("abs");
            m.ftz = words.flag("ftz");
            extremum = true;
            if m.xorsign != m.abs {
                return Err(".xorsign and .abs go together".into());
            }
        }
        // The type is read ahead: what else is allowed hangs on it.
        let ty = words.ty()?;
        if extremum {
            let relu = matches!(ty, Ty::S32 | Ty::S16x2);
            if m.relu && !relu
                || (m.nan || m.ftz || m.abs) && !is_float(ty)
                || ty == Ty::F64 && (m.nan || m.ftz || m.abs)
            {
                return Err(format!("a modifier does not go with {ty:?}"));
            }
        } else if is_float(ty) && !matches!(opcode, "copysign") && part.is_none() {
            m = self.float_modifiers(words, ty)?;
        } else if is_float(ty) && opcode == "div" {
            m.ftz = words.flag("ftz");
        } else if ty == Ty::S32 && matches!(opcode, "add" | "sub") {
            m.sat = words.flag("sat");
        }
        let name = match (opcode, part) {
            ("div", None) if is_float(ty) => "div.round".to_owned(),
            ("mul" | "mul24", None) if !is_float(ty) => {
                return Err("one of .lo, .hi, .wide is needed".into());
            }
            (_, Some(part)) => format!("{opcode}.{part}"),
            _ => opcode.to_owned(),
        };
        let f = if is_half(ty) {
            half::binary(&name, ty)
        } else if is_float(ty) {
            float::binary(&name, ty)
        } else {
            integer::binary(&name, ty)
        };
        let [d, a, b] = operands(ops)?;
        if ty == Ty::Pred && matches!(opcode, "and" | "or" | "xor") {
            let table = match opcode {
                "and" => 0b1000,
                "or" => 0b1110,
                _ => 0b0110,
            };
            let (p, a, b) = (self.pred_reg(d)?, self.pred_src(a)?, self.pred_src(b)?);
            return Ok(Op::PredLogic { table, p, a, b });
        }
        let Some(f) = f else { return unknown(ty) };
        let d_ty = if part == Some("wide") { wider(ty)? } else { ty };
        let b_ty = if matches!(opcode, "shl" | "shr") { Ty::U32 } else { ty };
        Ok(Op::Bin { f, m, d: self.dst(d, d_ty)?, a: self.src(a, ty)?, b: self.src(b, b_ty)? })
    }

    fn ternary(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let mut m = Mods::default();
        let part = match opcode {
            "mad" | "mad24" => words.choice(&["lo", "hi", "wide"]),
            "shf" => Some(words.need(&["l", "r"])?),
            _ => None,
        };
        match opcode {
            "shf" => m.table = u8::from(words.need(&["clamp", "wrap"])? == "wrap"),
            "prmt" => {
                let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
                let mode = words.choice(&modes);
                m.table = mode.and_then(|w| modes.iter().position(|x| *x == w)).map_or(0, |i| i as u8 + 1);
            }
            "slct" => m.ftz = words.flag("ftz"),
            _ => {}
        }
        let ty = words.ty()?;
        if opcode == "slct" {
            let by = words.ty()?;
            let f = match by {
                Ty::S32 => integer::ternary("slct.s32", ty),
                Ty::F32 => float::ternary("slct.f32", ty),
                _ => None,
            };
            let Some(f) = f else { return unknown(by) };
            let [d, a, b, c] = operands(ops)?;
            let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
            return Ok(Op::Tri { f, m, d, a, b, c: self.src(c, by)? });
        }
        let f = if is_float(ty) {
            if !matches!(opcode, "fma" | "mad") {
                return unknown(ty);
            }
            m.round = words.round().ok_or("a rounding mode is needed")?;
            m.ftz = words.flag("ftz");
            m.sat = words.flag("sat");
            m.relu = words.flag("relu");
            if is_half(ty) {
                if m.round != Round::Near || opcode == "mad" {
                    return unknown(ty);
                }
                half::ternary("fma", ty)
            } else if m.relu || ty == Ty::F64 && (m.ftz || m.sat) {
                return Err(format!("a modifier does not go with {ty:?}"));
            } else {
                float::ternary("fma", ty)
            }
        } else {
            if ty == Ty::S32 && part == Some("hi") {
                m.sat = words.flag("sat");
            }
            let name = match part {
                Some(part) => format!("{opcode}.{part}"),
                None => opcode.to_owned(),
            };
            integer::ternary(&name, ty)
        };
        let Some(f) = f else { return unknown(ty) };
        let [d, a, b, c] = operands(ops)?;
        let (d_ty, b_ty, c_ty) = match (opcode, part) {
            ("mad", Some("wide")) => (wider(ty)?, ty, wider(ty)?),
            ("bfe", _) => (ty, Ty::U32, Ty::U32),
            ("shf", _) => (ty, ty, Ty::U32),
            ("sad", _) => (ty, ty, ty),
            _ => (ty, ty, ty),
        };
        let (d, a, b) = (self.dst(d, d_ty)?, self.src(a, ty)?, self.src(b, b_ty)?);
        Ok(Op::Tri { f, m, d, a, b, c: self.src(c, c_ty)? })
    }

    fn carry(&mut self, op: &str, carry_in: bool, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let carry_out = words.flag("cc");
        let ty = words.ty()?;
        if !matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) {
            return unknown(ty);
        }
        let [d, a, b] = operands(ops)?;
        let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
        let (sub, wide) = (op.starts_with("sub"), ty.bytes() == 8);
        Ok(Op::Carry { sub, carry_in, carry_out, wide, d, a, b })
    }

    fn lop3(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let join = match words.choice(&["or", "and"]) {
            Some("or") => Join::Or,
            Some(_) => Join::And,
            None => Join::None,
        };
        let ty = words.ty()?;
        let Some(f) = integer::ternary("lop3", ty) else {
            return unknown(ty);
        };
        let Some(Operand::Literal(Literal::Int(table))) = ops.get(4) else {
            return Err("the table is an integer from 0 to 255".into());
        };
        let table = u8::try_from(*table).map_err(|_| "the table is an integer from 0 to 255")?;
        if join == Join::None {
            let [d, a, b, c, _] = operands(ops)?;
            let m = Mods { table, ..Mods::default() };
            let (d, a, b) = (self.dst(d, ty)?, self.src(a, ty)?, self.src(b, ty)?);
            return Ok(Op::Tri { f, m, d, a, b, c: self.src(c, ty)? });
        }
        let [Operand::Pair(d, p), a, b, c, _, q] = operands(ops)? else {
            return Err("a predicate result is written `d|p`".into());
        };
        let abc: [Reg; 3] = [self.src(a, ty)?, self.src(b, ty)?, self.src(c, ty)?];
        let (d, p, q) = (self.dst(d, ty)?, self.pred_reg(p)?, self.pred_src(q)?);
        Ok(Op::Lop3Pred { table, d, p, abc, join, q })
    }

    /// The comparison that `set` and `setp` share, after its operators.
    fn comparison(&mut self, words: &mut Words, set: bool, ops: &[&Operand]) -> Decoded<(Compare, Option<Ty>, Ty)> {
        let op = words.need(COMPARISONS)?;
        let join = match words.choice(&["and", "or", "xor"]) {
            Some("and") => Join::And,
            Some("or") => Join::Or,
            Some(_) => Join::Xor,
            None => Join::None,
        };
        let mods = Mods { ftz: words.flag("ftz"), ..Mods::default() };
        let result = if set { Some(words.ty()?) } else { None };
        let ty = words.ty()?;
        if mods.ftz && !matches!(ty, Ty::F32 | Ty::F16 | Ty::F16x2) {
            return Err(format!(".ftz does not go with {ty:?}"));
        }
        let f: Option<F2> = if is_half(ty) {
            half::compare(op, ty)
        } else if is_float(ty) {
            float::compare(op, ty)
        } else {
            integer::compare(op, ty)
        };
        let Some(f) = f else {
            return Err(format!(".{op} does not compare {ty:?}"));
        };
        let always = PredSrc { index: None, negated: false };
        let (a, b, c) = match (ops, join) {
            ([a, b], Join::None) => (a, b, always),
            ([_, _], _) => return Err("a third operand is needed: the predicate to join".into()),
            ([a, b, c], j) if j != Join::None => (a, b, self.pred_src(c)?),
            _ => return Err("the number of operands is wrong".into()),
        };
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        let pair = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
        Ok((Compare { f, mods, a, b, join, c, pair }, result, ty))
    }

    fn setp(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let Some((d, rest)) = ops.split_first() else {
            return Err("no operands".into());
        };
        let rest: Vec<&Operand> = rest.iter().collect();
        let (compare, _, _) = self.comparison(words, false, &rest)?;
        let (p, q) = match d {
            Operand::Pair(p, q) => (self.pred_dst(p)?, self.pred_dst(q)?),
            p => (self.pred_dst(p)?, None),
        };
        Ok(Op::Setp { compare, p, q })
    }

    fn set(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let Some((d, rest)) = ops.split_first() else {
            return Err("no operands".into());
        };
        let rest: Vec<&Operand> = rest.iter().collect();
        let (compare, result, ty) = self.comparison(words, true, &rest)?;
        let result = result.unwrap_or(Ty::U32);
        let one = match (result, compare.pair) {
            (Ty::F32, false) => u64::from(1f32.to_bits()),
            (Ty::F16, false) | (Ty::F16x2, true) => 0x3c00,
            (Ty::Bf16, false) | (Ty::Bf16x2, true) => 0x3f80,
            (Ty::U32 | Ty::S32, true) => 0xffff,
            (Ty::U32 | Ty::S32, false) => 0xffff_ffff,
            (Ty::U16 | Ty::S16, false) if is_half(ty) => 0xffff,
            _ => return unknown(result),
        };
        Ok(Op::Set { compare, d: self.dst(d, result)?, one })
    }
}

fn wider(ty: Ty) -> Decoded<Ty> {
    Ok(match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        Ty::S32 => Ty::S64,
        _ => {
            return Err(format!(".wide does not go with {:?} ({:?})", ty, Class::Bits));
        }
    })
}
