//! `cvt` in its scalar and packed forms.

use super::{Decoded, Decoder, Words, operands};
use crate::ops::convert::{self, Convert, format};
use crate::ops::softfloat::Round;
use crate::parse::syntax::Operand;
use crate::program::Op;
use crate::types::{Mods, Ty};

/// Whether every value of `from` is one of `to`.
fn widens(to: Ty, from: Ty) -> bool {
    matches!((to, from), (Ty::F32 | Ty::F64, Ty::F16 | Ty::Bf16) | (Ty::F64, Ty::F32))
}

impl Decoder {
    pub(super) fn cvt(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let mut m = Mods::default();
        let integral = words.choice(&["rni", "rzi", "rmi", "rpi"]);
        let away = words.flag("rna");
        let round = if away { Some(Round::Away) } else { words.round() };
        m.ftz = words.flag("ftz");
        m.sat = words.flag("sat");
        m.relu = words.flag("relu");
        m.finite = words.flag("satfinite");
        let (to, from) = (words.ty()?, words.ty()?);
        if away && to != Ty::Tf32 {
            return Err(".rna is for .tf32".into());
        }
        if integral.is_some() && round.is_some() {
            return Err("two rounding modes".into());
        }
        m.round = match integral {
            Some("rni") => Round::Near,
            Some("rzi") => Round::Zero,
            Some("rmi") => Round::Down,
            Some(_) => Round::Up,
            None => round.unwrap_or(Round::Near),
        };
        let narrow = matches!(to, Ty::E4m3x2 | Ty::E5m2x2);
        if narrow && (!m.finite || round != Some(Round::Near)) {
            return Err(".rn.satfinite is needed".into());
        }
        match (to, from) {
            (Ty::F16x2 | Ty::Bf16x2 | Ty::E4m3x2 | Ty::E5m2x2, Ty::F32) => {
                let [d, a, b] = operands(ops)?;
                if !matches!(round, Some(Round::Near | Round::Zero)) {
                    return Err(".rn or .rz is needed".into());
                }
                let f = convert::pack(to).ok_or("no such conversion")?;
                let (d, a) = (self.dst(d, bits_of(to))?, self.src(a, from)?);
                return Ok(Op::Bin { f, m, d, a, b: self.src(b, from)? });
            }
            (Ty::E4m3x2 | Ty::E5m2x2, Ty::F16x2) | (Ty::F16x2, Ty::E4m3x2 | Ty::E5m2x2) => {
                let [d, a] = operands(ops)?;
                if round != Some(Round::Near) {
                    return Err(".rn is needed".into());
                }
                let f = convert::repack(to, from).ok_or("no such conversion")?;
                let (d, a) = (self.dst(d, bits_of(to))?, self.src(a, bits_of(from))?);
                return Ok(Op::Un { f, m, d, a });
            }
            (Ty::Tf32, Ty::F32) => {
                let [d, a] = operands(ops)?;
                if round.is_none() {
                    return Err(".rna, .rn or .rz is needed".into());
                }
                let (d, a) = (self.dst(d, Ty::B32)?, self.src(a, from)?);
                return Ok(Op::Un { f: &convert::to_tf32, m, d, a });
            }
            _ => {}
        }
        let (to_float, from_float) = (scalar_float(to)?, scalar_float(from)?);
        match (to_float, from_float) {
            (false, false) if integral.is_some() || round.is_some() => {
                return Err("a conversion between integers does not round".into());
            }
            (true, false) if round.is_none() => {
                return Err("a floating rounding mode is needed".into());
            }
            (false, true) if integral.is_none() => {
                return Err("an integer rounding mode is needed".into());
            }
            (true, true) if to == from && round.is_some() => {
                return Err("the same type takes an integer rounding mode or none".into());
            }
            (true, true) if widens(to, from) && round.is_some() => {
                return Err("a widening conversion does not round".into());
            }
            (true, true) if to != from && !widens(to, from) && round.is_none() => {
                return Err("a floating rounding mode is needed".into());
            }
            _ => {}
        }
        if (m.relu || m.finite) && !(to_float && to.bytes() == 2 && from == Ty::F32) {
            return Err(".relu and .satfinite are for narrowing f32".into());
        }
        let [d, a] = operands(ops)?;
        let (d, d_ty) = self.dst_where(d, |r| {
            if to_float { super::fits(r, to) } else { is_integer_register(r) && r.bytes() >= to.bytes() }
        })?;
        let a = self.src_where(a, from, |r| {
            if from_float { super::fits(r, from) } else { is_integer_register(r) && r.bytes() >= from.bytes() }
        })?;
        let c = Convert { to, from, integral: integral.is_some() && to_float };
        if d_ty.bytes() == to.bytes()
            && let Some(f) = convert::scalar(c, &m)
        {
            return Ok(Op::Un { f, m, d, a });
        }
        let (sign_shift, mask) = extension(to, d_ty);
        Ok(Op::Convert { c, m, d, a, sign_shift, mask })
    }
}

/// How a value of type `ty` fills a register of type `reg`: the shift that
/// extends its sign, and the mask of the register.
pub(super) fn extension(ty: Ty, reg: Ty) -> (u32, u64) {
    let mask = if reg.bytes() >= 8 { u64::MAX } else { (1 << (8 * reg.bytes())) - 1 };
    let shift = if ty.is_signed() { 64 - 8 * ty.bytes() } else { 0 };
    (shift, mask)
}

fn is_integer_register(ty: Ty) -> bool {
    ty.is_integer()
}

/// Whether a type is a scalar float; an error for packed types.
fn scalar_float(ty: Ty) -> Decoded<bool> {
    match ty {
        Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::F64 => Ok(true),
        _ if ty.is_integer() && format(ty).is_none() && !matches!(ty, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64) => {
            Ok(false)
        }
        _ => Err(format!("no such conversion with {ty:?}")),
    }
}

/// The register type of a packed format.
fn bits_of(ty: Ty) -> Ty {
    if ty.bytes() == 2 { Ty::B16 } else { Ty::B32 }
}
