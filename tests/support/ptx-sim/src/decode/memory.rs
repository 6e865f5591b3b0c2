//! Loads, stores, atomics, address conversion and asynchronous copies.

use super::convert::extension;
use super::{Decoded, Decoder, Symbol, Words, operands};
use crate::ops::{F2, float, half, integer};
use crate::parse::syntax::{Literal, Operand, Space};
use crate::program::{Address, Atom, Load, Op, Reg, Store};
use crate::types::{Class, Mods, Ty};

/// Hints that change where data is cached, not what is read.
const CACHE: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

fn space(words: &mut Words) -> Space {
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("local", Space::Local),
        ("param", Space::Param),
        ("param::entry", Space::Param),
        ("const", Space::Const),
    ];
    let found = spaces.iter().find(|(word, _)| words.flag(word));
    found.map_or(Space::Generic, |(_, space)| *space)
}

impl Decoder {
    /// `[base+offset]` as an address of `space`.
    pub(super) fn address(&mut self, op: &Operand, space: Space) -> Decoded<Address> {
        let Operand::Address(base, offset) = op else {
            return Err(format!("an address in brackets is needed, not {op:?}"));
        };
        let Some(name) = base else {
            if space != Space::Local {
                return Err(format!("a literal is no address in {space} memory"));
            }
            return Ok(Address { space, base: self.constant(0), offset: *offset });
        };
        let base = match self.lookup(name)? {
            Symbol::Reg(row, ty) => {
                let small = matches!(space, Space::Shared | Space::Local | Space::Param);
                let fits = ty.bytes() == 8 || ty.bytes() == 4 && small;
                if !fits || ty.class() == Class::Float {
                    return Err(format!("`{name}` of type {ty:?} is no address in {space} memory"));
                }
                row
            }
            Symbol::Var(var, at) if var == space => self.constant(at),
            Symbol::Global(var, index) if var == space => self.global(name, index),
            Symbol::Var(var, _) | Symbol::Global(var, _) => {
                return Err(format!("`{name}` is in {var} memory, the access is {space}"));
            }
            Symbol::Argument(at) if space == Space::Param => {
                return Ok(Address { space: Space::Local, base: self.constant(at), offset: *offset });
            }
            Symbol::Argument(_) => return Err(format!("`{name}` is in param memory, the access is {space}")),
            Symbol::Pred(_) => return Err(format!("`{name}` is a predicate")),
        };
        Ok(Address { space, base, offset: *offset })
    }

    fn touches(&mut self, bytes: u32) {
        self.program.granule = self.program.granule.min(bytes);
    }

    pub(super) fn memory(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        match opcode {
            "ld" | "ldu" | "st" => self.load_store(opcode, words, ops),
            "atom" | "red" => self.atomic(opcode == "red", words, ops),
            "cvta" => {
                let to = words.flag("to");
                let space = space(words);
                if space == Space::Generic || words.ty()? != Ty::U64 {
                    return Err("a state space and .u64 are needed".into());
                }
                let [d, a] = operands(ops)?;
                let d = self.dst(d, Ty::U64)?;
                let a = match a {
                    Operand::Offset(name, _) | Operand::Name(name) => {
                        let extra = if let Operand::Offset(_, v) = a { *v as u64 } else { 0 };
                        match self.lookup(name)? {
                            Symbol::Var(s, at) if s == space => self.constant(at.wrapping_add(extra)),
                            Symbol::Global(s, index) if s == space && extra == 0 => self.global(name, index),
                            _ => self.src(a, Ty::U64)?,
                        }
                    }
                    _ => self.src(a, Ty::U64)?,
                };
                Ok(match to {
                    true => Op::FromGeneric { space, d, a },
                    false => Op::ToGeneric { space, d, a },
                })
            }
            "isspacep" => {
                let space = space(words);
                let [p, a] = operands(ops)?;
                Ok(Op::IsSpace { space, p: self.pred_reg(p)?, a: self.src(a, Ty::U64)? })
            }
            "prefetch" | "prefetchu" => {
                let at = space(words);
                words.need(&["L1", "L2", "L2::evict_last", "L2::evict_normal"])?;
                let [a] = operands(ops)?;
                self.address(a, at)?;
                Ok(Op::Nop)
            }
            _ => self.copy_async(words, ops),
        }
    }

    fn load_store(&mut self, opcode: &str, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        let strong = match words.choice(&["weak", "volatile", "relaxed", "acquire", "release"]) {
            None | Some("weak") => false,
            Some("volatile") => true,
            Some(order) => {
                if order == if opcode == "st" { "acquire" } else { "release" } {
                    return Err(format!(".{order} does not go with {opcode}"));
                }
                let scope = words.need(&["cta", "cluster", "gpu", "sys"])?;
                self.program.orders_blocks |= order != "relaxed" && scope != "cta";
                true
            }
        };
        let space = space(words);
        while words.choice(CACHE).is_some() {}
        let lanes = match words.choice(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        };
        let ty = words.ty()?;
        // ld and st name no half types: those move as .b16 and .b32.
        let ok = ty.is_integer() || matches!(ty, Ty::F32 | Ty::F64);
        if !ok || u64::from(ty.bytes()) * lanes > 32 {
            return Err(format!("no access of {lanes} elements of {ty:?}"));
        }
        let [first, second] = operands(ops)?;
        let (at, data) = if opcode == "st" { (first, second) } else { (second, first) };
        let at = self.address(at, space)?;
        if opcode == "st" && matches!(at.space, Space::Param | Space::Const) {
            return Err(format!("{space} memory is read only"));
        }
        self.touches(ty.bytes());
        let items: Vec<&Operand> = match data {
            Operand::Vector(items) => items.iter().collect(),
            one => vec![one],
        };
        if items.len() as u64 != lanes {
            return Err(format!("{lanes} registers are needed, {} are given", items.len()));
        }
        // A register may be wider than the access, but a float must match.
        let fits =
            |r: Ty| super::fits(r, ty) || (r.bytes() >= ty.bytes() && r.is_integer() && ty.class() != Class::Float);
        let bytes = ty.bytes();
        if opcode == "st" {
            let src: Vec<Reg> = items.iter().map(|o| self.src_where(o, ty, fits)).collect::<Decoded<_>>()?;
            return Ok(Op::Store(Box::new(Store { at, bytes, src: src.into(), strong })));
        }
        let mut dst = Vec::new();
        let (mut sign_shift, mut mask) = extension(ty, ty);
        for item in items {
            let (row, reg) = self.dst_where(item, fits)?;
            if *item != Operand::Sink {
                (sign_shift, mask) = extension(ty, reg);
            }
            dst.push(row);
        }
        let dst = dst.into();
        Ok(Op::Load(Box::new(Load { at, bytes, sign_shift, mask, dst, strong })))
    }

    fn atomic(&mut self, red: bool, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        // Blocks and warps take turns at whole instructions: every order holds.
        let order = words.choice(&["relaxed", "acquire", "release", "acq_rel"]);
        let scope = words.choice(&["cta", "cluster", "gpu", "sys"]);
        self.program.orders_blocks |= order.is_some_and(|order| order != "relaxed") && scope != Some("cta");
        let space = space(words);
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(format!("no atomics in {space} memory"));
        }
        let op = words.need(&["and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max"])?;
        let noftz = words.flag("noftz");
        let lanes = match words.choice(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        };
        let ty = words.ty()?;
        let half_type = matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2);
        if half_type != noftz || (lanes > 1 && space == Space::Shared) {
            return Err(".noftz goes with the 16-bit floats, vectors with global memory".into());
        }
        let f: Option<F2> = match (op, ty) {
            ("cas", Ty::B16 | Ty::B32 | Ty::B64) | ("exch", Ty::B32 | Ty::B64) => Some(&|_, _, b| b),
            ("inc", Ty::U32) => Some(&|_, r, s| if r >= s { 0 } else { r + 1 }),
            ("dec", Ty::U32) => Some(&|_, r, s| if r == 0 || r > s { s } else { r - 1 }),
            ("and" | "or" | "xor", Ty::B32 | Ty::B64) => integer::binary(op, ty),
            ("add" | "min" | "max", _) if half_type => half::binary(op, ty),
            ("add", Ty::F32 | Ty::F64) => float::binary(op, ty),
            ("add", Ty::U32 | Ty::S32 | Ty::U64) => integer::binary(op, ty),
            ("min" | "max", Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) => integer::binary(op, ty),
            _ => None,
        };
        let Some(f) = f else {
            return Err(format!("no .{op} of {ty:?}"));
        };
        if lanes > 1 && !(half_type || ty == Ty::F32 && op == "add") {
            return Err(format!("no vector .{op} of {ty:?}"));
        }
        let list = |op: &Operand| match op {
            Operand::Vector(items) => items.clone(),
            one => vec![one.clone()],
        };
        let (d, at, b, c) = match (red, op, ops) {
            (true, "cas" | "exch", _) => return Err(format!("red has no .{op}")),
            (true, _, [at, b]) => (None, at, b, None),
            (false, "cas", [d, at, b, c]) => (Some(d), at, b, Some(c)),
            (false, _, [d, at, b]) => (Some(d), at, b, None),
            _ => return Err("the number of operands is wrong".into()),
        };
        let at = self.address(at, space)?;
        self.touches(ty.bytes());
        let dst: Vec<Reg> = match d {
            Some(d) => list(d).iter().map(|o| self.dst(o, ty)).collect::<Decoded<_>>()?,
            None => Vec::new(),
        };
        let src: Vec<Reg> = list(b).iter().map(|o| self.src(o, ty)).collect::<Decoded<_>>()?;
        if src.len() != lanes || !(dst.is_empty() || dst.len() == lanes) {
            return Err(format!("{lanes} registers are needed"));
        }
        let swap = c.map(|c| self.src(c, ty)).transpose()?;
        let (dst, src, bytes) = (dst.into(), src.into(), ty.bytes());
        Ok(Op::Atom(Box::new(Atom { at, bytes, f, mods: Mods::default(), dst, src, swap })))
    }

    fn copy_async(&mut self, words: &mut Words, ops: &[Operand]) -> Decoded<Op> {
        if !words.flag("async") {
            return Err("only cp.async is simulated".into());
        }
        if words.flag("bulk") {
            return self.copy_tensor(words, ops);
        }
        self.program.uses_copy_async = true;
        if words.flag("commit_group") {
            operands::<0>(ops)?;
            return Ok(Op::CopyCommit);
        }
        if words.flag("wait_all") {
            operands::<0>(ops)?;
            return Ok(Op::CopyWait { pending: None });
        }
        if words.flag("wait_group") {
            let [Operand::Literal(Literal::Int(n))] = operands(ops)? else {
                return Err("a number of groups is needed".into());
            };
            return Ok(Op::CopyWait { pending: Some(*n as u32) });
        }
        let cache = words.need(&["ca", "cg"])?;
        let to_shared = words.flag("shared") || words.flag("shared::cta");
        if !to_shared || !words.flag("global") {
            return Err("it copies from .global to .shared".into());
        }
        while words.choice(&["L2::64B", "L2::128B", "L2::256B"]).is_some() {}
        let (dst, src, size, rest) = match ops {
            [dst, src, Operand::Literal(Literal::Int(size)), rest @ ..] => (dst, src, *size, rest),
            _ => return Err("[dst], [src] and a constant size are needed".into()),
        };
        if !matches!((cache, size), (_, 16) | ("ca", 4 | 8)) {
            return Err(format!("a copy of {size} bytes by .{cache}"));
        }
        let src_bytes = match rest {
            [] => None,
            [size] => Some(self.src(size, Ty::U32)?),
            _ => return Err("the number of operands is wrong".into()),
        };
        self.touches(4);
        let (dst, src) = (self.address(dst, Space::Shared)?, self.address(src, Space::Global)?);
        Ok(Op::CopyAsync { dst, src, bytes: size as u32, src_bytes })
    }
}
