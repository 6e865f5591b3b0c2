//! Integer arithmetic, comparison, logic, shifts and bit fields.

use super::{F1, F2, F3, F4};
use crate::types::{Mods, Ty};

/// `value` of an integer type, widened by its sign.
pub(crate) fn extend(ty: Ty, value: u64) -> i128 {
    match ty {
        Ty::S8 => i128::from(value as i8),
        Ty::S16 => i128::from(value as i16),
        Ty::S32 => i128::from(value as i32),
        Ty::S64 => i128::from(value as i64),
        Ty::U8 | Ty::B8 => i128::from(value as u8),
        Ty::U16 | Ty::B16 => i128::from(value as u16),
        Ty::U32 | Ty::B32 => i128::from(value as u32),
        _ => i128::from(value),
    }
}

/// Chooses `$body` for the Rust type `T` of an integer PTX type of 16 to 64
/// bits, or returns `None`.
macro_rules! by_type {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => {
                type $T = u16;
                $body
            }
            Ty::U32 | Ty::B32 => {
                type $T = u32;
                $body
            }
            Ty::U64 | Ty::B64 => {
                type $T = u64;
                $body
            }
            Ty::S16 => {
                type $T = i16;
                $body
            }
            Ty::S32 => {
                type $T = i32;
                $body
            }
            Ty::S64 => {
                type $T = i64;
                $body
            }
            _ => return None,
        }
    };
}

/// Integers of one width as register bits.
trait Word: Copy {
    fn bits(self) -> u64;
}

macro_rules! word {
    ($($signed:ty, $unsigned:ty);*) => {$(
        impl Word for $signed {
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
        impl Word for $unsigned {
            fn bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
word!(i8, u8; i16, u16; i32, u32; i64, u64);

/// Both halves of 32 bits by the function of the 16-bit type.
macro_rules! halves {
    ($f:expr) => {
        &|m, a, b| {
            let f: fn(&Mods, u64, u64) -> u64 = $f;
            f(m, a & 0xffff, b & 0xffff) | f(m, a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
        }
    };
}

pub(crate) fn unary(op: &str, ty: Ty) -> Option<F1> {
    Some(match op {
        "neg" if ty.is_signed() => by_type!(ty, T => &|_, a| (a as T).wrapping_neg().bits()),
        "abs" => match ty {
            Ty::S16 => &|_, a| (a as i16).wrapping_abs().bits(),
            Ty::S32 => &|_, a| (a as i32).wrapping_abs().bits(),
            Ty::S64 => &|_, a| (a as i64).wrapping_abs().bits(),
            _ => return None,
        },
        "not" => match ty {
            Ty::B16 => &|_, a| (!(a as u16)).bits(),
            Ty::B32 => &|_, a| (!(a as u32)).bits(),
            Ty::B64 => &|_, a| !a,
            _ => return None,
        },
        "cnot" => match ty {
            Ty::B16 => &|_, a| u64::from(a as u16 == 0),
            Ty::B32 => &|_, a| u64::from(a as u32 == 0),
            Ty::B64 => &|_, a| u64::from(a == 0),
            _ => return None,
        },
        "popc" => match ty {
            Ty::B32 => &|_, a| u64::from((a as u32).count_ones()),
            Ty::B64 => &|_, a| u64::from(a.count_ones()),
            _ => return None,
        },
        "clz" => match ty {
            Ty::B32 => &|_, a| u64::from((a as u32).leading_zeros()),
            Ty::B64 => &|_, a| u64::from(a.leading_zeros()),
            _ => return None,
        },
        "brev" => match ty {
            Ty::B32 => &|_, a| u64::from((a as u32).reverse_bits()),
            Ty::B64 => &|_, a| a.reverse_bits(),
            _ => return None,
        },
        "bfind" => match ty {
            Ty::U32 => &|m, a| bfind(m, u64::from(a as u32), 31),
            Ty::S32 => &|m, a| bfind(m, (a as i32 ^ (a as i32 >> 31)).bits(), 31),
            Ty::U64 => &|m, a| bfind(m, a, 63),
            Ty::S64 => &|m, a| bfind(m, (a as i64 ^ (a as i64 >> 63)).bits(), 63),
            _ => return None,
        },
        _ => return None,
    })
}

/// `table` is 1 for `.shiftamt`.
fn bfind(m: &Mods, a: u64, msb: u32) -> u64 {
    if a == 0 {
        return u64::from(u32::MAX);
    }
    let found = 63 - a.leading_zeros();
    u64::from(if m.table == 1 { msb - found } else { found })
}

pub(crate) fn binary(op: &str, ty: Ty) -> Option<F2> {
    if ty == Ty::U16x2 {
        return Some(match op {
            "add" => halves!(|_, a, b| (a as u16).wrapping_add(b as u16).bits()),
            "min" => halves!(|_, a, b| (a as u16).min(b as u16).bits()),
            "max" => halves!(|_, a, b| (a as u16).max(b as u16).bits()),
            _ => return None,
        });
    }
    if ty == Ty::S16x2 {
        return Some(match op {
            "add" => halves!(|_, a, b| (a as i16).wrapping_add(b as i16).bits()),
            "min" => halves!(|m, a, b| relu(m, i64::from((a as i16).min(b as i16))) & 0xffff),
            "max" => halves!(|m, a, b| relu(m, i64::from((a as i16).max(b as i16))) & 0xffff),
            _ => return None,
        });
    }
    let arithmetic = !matches!(ty, Ty::B16 | Ty::B32 | Ty::B64);
    Some(match op {
        "add" if arithmetic => match ty {
            Ty::S32 => &|m, a, b| match m.sat {
                true => (a as i32).saturating_add(b as i32).bits(),
                false => (a as i32).wrapping_add(b as i32).bits(),
            },
            _ => by_type!(ty, T => &|_, a, b| (a as T).wrapping_add(b as T).bits()),
        },
        "sub" if arithmetic => match ty {
            Ty::S32 => &|m, a, b| match m.sat {
                true => (a as i32).saturating_sub(b as i32).bits(),
                false => (a as i32).wrapping_sub(b as i32).bits(),
            },
            _ => by_type!(ty, T => &|_, a, b| (a as T).wrapping_sub(b as T).bits()),
        },
        "min" if arithmetic => match ty {
            Ty::S32 => &|m, a, b| relu(m, i64::from((a as i32).min(b as i32))) & 0xffff_ffff,
            _ => by_type!(ty, T => &|_, a, b| (a as T).min(b as T).bits()),
        },
        "max" if arithmetic => match ty {
            Ty::S32 => &|m, a, b| relu(m, i64::from((a as i32).max(b as i32))) & 0xffff_ffff,
            _ => by_type!(ty, T => &|_, a, b| (a as T).max(b as T).bits()),
        },
        "mul.lo" if arithmetic => by_type!(ty, T => &|_, a, b| (a as T).wrapping_mul(b as T).bits()),
        "mul.hi" => match ty {
            Ty::U16 => &|_, a, b| ((a as u16 as u32 * b as u16 as u32) >> 16).bits(),
            Ty::S16 => &|_, a, b| ((a as i16 as i32 * b as i16 as i32) >> 16).bits() & 0xffff,
            Ty::U32 => &|_, a, b| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32,
            Ty::S32 => &|_, a, b| (a as i32 as i64 * b as i32 as i64) as u64 >> 32,
            Ty::U64 => &|_, a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64,
            Ty::S64 => &|_, a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
            _ => return None,
        },
        "mul.wide" => match ty {
            Ty::U16 => &|_, a, b| (a as u16 as u32 * b as u16 as u32).bits(),
            Ty::S16 => &|_, a, b| (a as i16 as i32 * b as i16 as i32).bits(),
            Ty::U32 => &|_, a, b| (a & 0xffff_ffff) * (b & 0xffff_ffff),
            Ty::S32 => &|_, a, b| (a as i32 as i64 * b as i32 as i64) as u64,
            _ => return None,
        },
        "mul24.lo" => match ty {
            Ty::U32 => &|_, a, b| ((a & 0xff_ffff) * (b & 0xff_ffff)) & 0xffff_ffff,
            Ty::S32 => &|_, a, b| (low24(a).wrapping_mul(low24(b)) as u64) & 0xffff_ffff,
            _ => return None,
        },
        "mul24.hi" => match ty {
            Ty::U32 => &|_, a, b| (((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16) & 0xffff_ffff,
            Ty::S32 => &|_, a, b| ((low24(a) * low24(b)) >> 16) as u64 & 0xffff_ffff,
            _ => return None,
        },
        // The quotient by zero is unspecified: all ones, as devices answer.
        "div" if arithmetic => by_type!(ty, T => &|_, a, b| match b as T {
            0 => (!(0 as T)).bits(),
            b => (a as T).wrapping_div(b).bits(),
        }),
        "rem" if arithmetic => by_type!(ty, T => &|_, a, b| match b as T {
            0 => (a as T).bits(),
            b => (a as T).wrapping_rem(b).bits(),
        }),
        "and" if !arithmetic => &|_, a, b| a & b,
        "or" if !arithmetic => &|_, a, b| a | b,
        "xor" if !arithmetic => &|_, a, b| a ^ b,
        "shl" => match ty {
            Ty::B16 => &|_, a, b| {
                if b as u32 > 15 { 0 } else { (a << (b as u32)) & 0xffff }
            },
            Ty::B32 => &|_, a, b| {
                if b as u32 > 31 { 0 } else { (a << (b as u32)) & 0xffff_ffff }
            },
            Ty::B64 => &|_, a, b| if b as u32 > 63 { 0 } else { a << (b as u32) },
            _ => return None,
        },
        "shr" => match ty {
            Ty::B16 | Ty::U16 => &|_, a, b| if b as u32 > 15 { 0 } else { a >> (b as u32) },
            Ty::B32 | Ty::U32 => &|_, a, b| if b as u32 > 31 { 0 } else { a >> (b as u32) },
            Ty::B64 | Ty::U64 => &|_, a, b| if b as u32 > 63 { 0 } else { a >> (b as u32) },
            Ty::S16 => &|_, a, b| (a as i16 >> (b as u32).min(15)).bits(),
            Ty::S32 => &|_, a, b| (a as i32 >> (b as u32).min(31)).bits(),
            Ty::S64 => &|_, a, b| (a as i64 >> (b as u32).min(63)).bits(),
            _ => return None,
        },
        "bmsk" if ty == Ty::B32 => &|m, a, b| bmsk(m, a as u32, b as u32),
        _ => return None,
    })
}

fn relu(m: &Mods, v: i64) -> u64 {
    (if m.relu { v.max(0) } else { v }) as u64
}

fn low24(v: u64) -> i64 {
    i64::from((v as i32) << 8 >> 8)
}

/// `table` is 1 for `.wrap`.
fn bmsk(m: &Mods, a: u32, b: u32) -> u64 {
    let (start, width) = if m.table == 1 { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
    (((1u64 << width) - 1) << start) & 0xffff_ffff
}

pub(crate) fn ternary(op: &str, ty: Ty) -> Option<F3> {
    Some(match op {
        "mad.lo" => by_type!(ty, T => &|_, a, b, c| {
            (a as T).wrapping_mul(b as T).wrapping_add(c as T).bits()
        }),
        "mad.hi" => match ty {
            Ty::U32 => &|_, a, b, c| (((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32).wrapping_add(c) & 0xffff_ffff,
            Ty::S32 => &|m, a, b, c| {
                let high = ((a as i32 as i64 * b as i32 as i64) >> 32) as i32;
                match m.sat {
                    true => high.saturating_add(c as i32).bits(),
                    false => high.wrapping_add(c as i32).bits(),
                }
            },
            Ty::U64 => &|_, a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c),
            Ty::S64 => &|_, a, b, c| (((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64).wrapping_add(c),
            _ => return None,
        },
        "mad.wide" => match ty {
            Ty::U16 => &|_, a, b, c| (a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32).bits(),
            Ty::S16 => &|_, a, b, c| (a as i16 as i32 * b as i16 as i32).wrapping_add(c as i32).bits(),
            Ty::U32 => &|_, a, b, c| ((a & 0xffff_ffff) * (b & 0xffff_ffff)).wrapping_add(c),
            Ty::S32 => &|_, a, b, c| ((a as i32 as i64 * b as i32 as i64) as u64).wrapping_add(c),
            _ => return None,
        },
        "mad24.lo" => match ty {
            Ty::U32 => &|_, a, b, c| ((a & 0xff_ffff) * (b & 0xff_ffff)).wrapping_add(c) & 0xffff_ffff,
            Ty::S32 => &|_, a, b, c| (low24(a).wrapping_mul(low24(b)) as u64).wrapping_add(c) & 0xffff_ffff,
            _ => return None,
        },
        "sad" => match ty {
            Ty::S16 => &|_, a, b, c| (a as i16).abs_diff(b as i16).wrapping_add(c as u16).bits(),
            Ty::S32 => &|_, a, b, c| (a as i32).abs_diff(b as i32).wrapping_add(c as u32).bits(),
            Ty::S64 => &|_, a, b, c| (a as i64).abs_diff(b as i64).wrapping_add(c),
            Ty::U16 => &|_, a, b, c| (a as u16).abs_diff(b as u16).wrapping_add(c as u16).bits(),
            Ty::U32 => &|_, a, b, c| (a as u32).abs_diff(b as u32).wrapping_add(c as u32).bits(),
            Ty::U64 => &|_, a, b, c| a.abs_diff(b).wrapping_add(c),
            _ => return None,
        },
        "shf.l" if ty == Ty::B32 => &|m, a, b, c| {
            let n = if m.table == 1 { c as u32 & 31 } else { (c as u32).min(32) };
            ((a & 0xffff_ffff | b << 32) << n) >> 32
        },
        "shf.r" if ty == Ty::B32 => &|m, a, b, c| {
            let n = if m.table == 1 { c as u32 & 31 } else { (c as u32).min(32) };
            ((a & 0xffff_ffff | b << 32) >> n) & 0xffff_ffff
        },
        "bfe" => match ty {
            Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 => match ty {
                Ty::U32 => &|_, a, b, c| bfe(u128::from(a as u32), false, 31, b, c),
                Ty::S32 => &|_, a, b, c| bfe(u128::from(a as u32), true, 31, b, c) & 0xffff_ffff,
                Ty::U64 => &|_, a, b, c| bfe(u128::from(a), false, 63, b, c),
                _ => &|_, a, b, c| bfe(u128::from(a), true, 63, b, c),
            },
            _ => return None,
        },
        "prmt" if ty == Ty::B32 => &|m, a, b, c| prmt(m.table, a as u32, b as u32, c as u32),
        "lop3" if ty == Ty::B32 => &|m, a, b, c| {
            let t = |bit: u8| if m.table >> bit & 1 == 1 { u64::MAX } else { 0 };
            let low = (t(0) & !a & !b & !c) | (t(1) & !a & !b & c) | (t(2) & !a & b & !c);
            let mid = (t(3) & !a & b & c) | (t(4) & a & !b & !c) | (t(5) & a & !b & c);
            (low | mid | (t(6) & a & b & !c) | (t(7) & a & b & c)) & 0xffff_ffff
        },
        "slct.s32" => &|_, a, b, c| if c as i32 >= 0 { a } else { b },
        _ => return None,
    })
}

fn bfe(a: u128, signed: bool, msb: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let field = if pos > msb { 0 } else { (a >> pos) as u64 };
    let have = len.min((msb + 1).saturating_sub(pos));
    let field = if have >= 64 { field } else { field & ((1 << have) - 1) };
    if signed && a >> (pos + len - 1).min(msb) & 1 == 1 && have < 64 { field | u64::MAX << have } else { field }
}

fn prmt(mode: u8, a: u32, b: u32, c: u32) -> u64 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let n = (c & 3) as usize;
    let pick: [usize; 4] = match mode {
        0 => {
            return (0..4).fold(0, |out, i| {
                let select = c >> (4 * i) & 0xf;
                let byte = bytes[(select & 7) as usize];
                let byte = if select & 8 == 0 { byte } else { 0xff * (byte >> 7) };
                out | u64::from(byte) << (8 * i)
            });
        }
        1 => [n, n + 1, n + 2, n + 3],
        2 => [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8],
        3 => [n; 4],
        4 => [n, n.max(1), n.max(2), 3],
        5 => [0, n.min(1), n.min(2), n],
        _ => {
            let low = 2 * (n & 1);
            [low, low + 1, low, low + 1]
        }
    };
    (0..4).fold(0, |out, i| out | u64::from(bytes[pick[i]]) << (8 * i))
}

pub(crate) fn quaternary(op: &str, ty: Ty) -> Option<F4> {
    Some(match (op, ty) {
        ("bfi", Ty::B32) => &|_, a, b, c, d| bfi(a, b, c, d, 31) & 0xffff_ffff,
        ("bfi", Ty::B64) => &|_, a, b, c, d| bfi(a, b, c, d, 63),
        _ => return None,
    })
}

fn bfi(a: u64, b: u64, pos: u64, len: u64, msb: u64) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 || pos > msb {
        return b;
    }
    let len = len.min(msb + 1 - pos);
    let mask = if len >= 64 { u64::MAX } else { ((1 << len) - 1) << pos };
    (b & !mask) | ((a << pos) & mask)
}

/// The byte dot products, by the signs of both factors.
pub(crate) fn dp4a(a_signed: bool, b_signed: bool) -> F3 {
    fn dot(a: u64, b: u64, c: u64, a_signed: bool, b_signed: bool) -> u64 {
        let byte = |v: u64, i: u32, signed: bool| {
            let v = (v >> (8 * i)) as u8;
            if signed { i32::from(v as i8) } else { i32::from(v) }
        };
        let sum = (0..4).map(|i| byte(a, i, a_signed).wrapping_mul(byte(b, i, b_signed)));
        sum.fold(c as i32, i32::wrapping_add).bits()
    }
    match (a_signed, b_signed) {
        (false, false) => &|_, a, b, c| dot(a, b, c, false, false),
        (false, true) => &|_, a, b, c| dot(a, b, c, false, true),
        (true, false) => &|_, a, b, c| dot(a, b, c, true, false),
        (true, true) => &|_, a, b, c| dot(a, b, c, true, true),
    }
}

/// An integer comparison, as 0 or 1.
pub(crate) fn compare(op: &str, ty: Ty) -> Option<F2> {
    let signed = ty.is_signed();
    let unsigned = matches!(ty, Ty::U16 | Ty::U32 | Ty::U64);
    Some(match op {
        "eq" => by_type!(ty, T => &|_, a, b| u64::from(a as T == b as T)),
        "ne" => by_type!(ty, T => &|_, a, b| u64::from(a as T != b as T)),
        "lt" if signed || unsigned => by_type!(ty, T => &|_, a, b| u64::from((a as T) < b as T)),
        "le" if signed || unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T <= b as T)),
        "gt" if signed || unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T > b as T)),
        "ge" if signed || unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T >= b as T)),
        "lo" if unsigned => by_type!(ty, T => &|_, a, b| u64::from((a as T) < b as T)),
        "ls" if unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T <= b as T)),
        "hi" if unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T > b as T)),
        "hs" if unsigned => by_type!(ty, T => &|_, a, b| u64::from(a as T >= b as T)),
        _ => return None,
    })
}
