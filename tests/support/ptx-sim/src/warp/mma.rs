//! Matrix fragments: `mma.sync`, and which lane holds which element.
//!
//! With `g = lane / 4` and `t = lane % 4`, and `n` elements in one register:
//! register `i` of A holds row `g + 8 * (i % (m / 8))` and the columns from
//! `n * (t + 4 * (i / (m / 8)))` on; register `i` of B holds column `g` and
//! the rows from `n * (t + 4 * i)` on; C and D hold rows `g` and `g + 8`,
//! columns `2 * t` and `2 * t + 1`.
//!
//! Products are exact and summed in f64 with the addend, then rounded once.
//! A device sums in an order and with a precision that the ISA leaves open.

use std::sync::LazyLock;

use crate::ops::convert::format;
use crate::ops::softfloat::{E4M3, E5M2, F16, F32, F64, Format, Num, Round};
use crate::program::Reg;
use crate::types::Ty;
use crate::warp::Warp;

/// The type of the elements of A or B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    F64,
}

impl Element {
    /// Elements in one register.
    pub fn per_register(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::Tf32 | Element::F64 => 1,
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => 4,
        }
    }

    /// Bytes of an element in memory.
    pub fn bytes(self) -> usize {
        4 / self.per_register()
    }

    pub fn is_float8(self) -> bool {
        matches!(self, Element::E4m3 | Element::E5m2)
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Element::S8 | Element::U8)
    }

    /// Element `i` of a register, as an exact f64.
    pub fn value(self, register: u64, i: usize) -> f64 {
        let byte = || (register >> (8 * i)) as u8;
        let half = || register >> (16 * i) & 0xffff;
        match self {
            Element::F16 => half::f16::from_bits(half() as u16).to_f64(),
            Element::Bf16 => f64::from(f32::from_bits((half() as u32) << 16)),
            // The low 13 bits of a tf32 register are not looked at.
            Element::Tf32 => f64::from(f32::from_bits(register as u32 & !0x1fff)),
            Element::E4m3 => EXACT[0][usize::from(byte())],
            Element::E5m2 => EXACT[1][usize::from(byte())],
            Element::S8 => f64::from(byte() as i8),
            Element::U8 => f64::from(byte()),
            Element::F64 => f64::from_bits(register),
        }
    }
}

/// The values of all 8-bit floats: of E4M3, and of E5M2.
static EXACT: LazyLock<[[f64; 256]; 2]> = LazyLock::new(|| {
    let exact = |format: Format, bits| f64::from_bits(F64.round(format.unpack(bits), Round::Near, false));
    [E4M3, E5M2].map(|format| std::array::from_fn(|bits| exact(format, bits as u64)))
});

#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub m: usize,
    pub k: usize,
    pub a_type: Element,
    pub b_type: Element,
    pub c_type: Ty,
    pub d_type: Ty,
    pub satfinite: bool,
    pub d: Box<[Reg]>,
    pub a: Box<[Reg]>,
    pub b: Box<[Reg]>,
    pub c: Box<[Reg]>,
}

/// The most rows of A, steps along the sum, and elements of A.
const MOST_M: usize = 16;
const MOST_K: usize = 32;
const MOST_A: usize = MOST_M * MOST_K;

/// A row times so many columns, each summed in order.
pub(crate) fn product<const N: usize>(row: &[f64], columns: &[[f64; N]]) -> [f64; N] {
    // What an empty sum of floats is.
    let mut sums = [-0.0; N];
    for (x, column) in row.iter().zip(columns) {
        sums.iter_mut().zip(column).for_each(|(sum, y)| *sum += x * y);
    }
    sums
}

impl Mma {
    /// Registers of A, B, and of C or D by its type.
    pub fn registers(&self) -> (usize, usize, usize, usize) {
        let cd = |ty: Ty| self.m * 8 / 32 / if ty == Ty::F16 { 2 } else { 1 };
        (
            self.m * self.k / 32 / self.a_type.per_register(),
            self.k * 8 / 32 / self.b_type.per_register(),
            cd(self.c_type),
            cd(self.d_type),
        )
    }

    /// Multiplies; all 32 lanes take part.
    pub fn run(&self, warp: &mut Warp) {
        let (m, k) = (self.m, self.k);
        let (mut a, mut b, mut c) = ([0f64; MOST_A], [[0f64; 8]; MOST_K], [[0f64; 8]; MOST_M]);
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            let per = self.a_type.per_register();
            for (i, reg) in self.a.iter().enumerate() {
                let (row, col) = (g + 8 * (i % (m / 8)), per * (t + 4 * (i / (m / 8))));
                for e in 0..per {
                    a[row * k + col + e] = self.a_type.value(warp.get(*reg, lane), e);
                }
            }
            let per = self.b_type.per_register();
            for (i, reg) in self.b.iter().enumerate() {
                for e in 0..per {
                    b[per * (t + 4 * i) + e][g] = self.b_type.value(warp.get(*reg, lane), e);
                }
            }
            for (row, col, reg, shift) in places(self.c_type, lane, &self.c) {
                let bits = warp.get(reg, lane) >> shift;
                c[row][col] = match self.c_type {
                    Ty::F16 => half::f16::from_bits(bits as u16).to_f64(),
                    Ty::F32 => f64::from(f32::from_bits(bits as u32)),
                    Ty::S32 => f64::from(bits as i32),
                    _ => f64::from_bits(bits),
                };
            }
        }
        for (row, sums) in a[..m * k].chunks_exact(k).zip(&mut c) {
            if self.d_type == Ty::F64 {
                for (x, column) in row.iter().zip(&b) {
                    sums.iter_mut().zip(column).for_each(|(sum, y)| *sum = x.mul_add(*y, *sum));
                }
            } else {
                let products = product(row, &b);
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
            }
        }
        for lane in 0..32 {
            for (row, col, reg, shift) in places(self.d_type, lane, &self.d) {
                let bits = self.result(c[row][col]);
                let old = if shift == 0 { 0 } else { warp.get(reg, lane) };
                warp.set(reg, lane, old | bits << shift);
            }
        }
    }

    fn result(&self, v: f64) -> u64 {
        match self.d_type {
            Ty::F16 => round(F16, v),
            Ty::F32 if v.is_nan() => round(F32, v),
            Ty::F32 => u64::from((v as f32).to_bits()),
            // Sums of at most 32 products of bytes and an i32 are exact.
            Ty::S32 if self.satfinite => u64::from(v as i32 as u32),
            Ty::S32 => u64::from(v as i64 as u32),
            _ => v.to_bits(),
        }
    }
}

fn round(to: Format, v: f64) -> u64 {
    let num = if v.is_nan() { Num::Nan } else { F64.unpack(v.to_bits()) };
    to.round(num, Round::Near, false)
}

/// Row, column, register and shift of each element of C or D that a lane
/// holds.
fn places(ty: Ty, lane: usize, regs: &[Reg]) -> impl Iterator<Item = (usize, usize, Reg, u32)> + '_ {
    let (g, t) = (lane / 4, lane % 4);
    let packed = ty == Ty::F16;
    let count = regs.len() * if packed { 2 } else { 1 };
    (0..count).map(move |i| {
        let (reg, shift) = if packed { (regs[i / 2], 16 * (i as u32 % 2)) } else { (regs[i], 0) };
        (g + 8 * (i / 2), 2 * t + i % 2, reg, shift)
    })
}

/// The element type of a modifier of `mma`.
pub(crate) fn element(word: &str) -> Option<Element> {
    Some(match word {
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "tf32" => Element::Tf32,
        "e4m3" => Element::E4m3,
        "e5m2" => Element::E5m2,
        "s8" => Element::S8,
        "u8" => Element::U8,
        "f64" => Element::F64,
        _ => return None,
    })
}

/// The shapes that exist for an element type.
pub(crate) fn shapes(ty: Element) -> &'static [(usize, usize, usize)] {
    match ty {
        Element::F16 | Element::Bf16 => &[(16, 8, 8), (16, 8, 16)],
        Element::Tf32 => &[(16, 8, 4), (16, 8, 8)],
        Element::E4m3 | Element::E5m2 => &[(16, 8, 16), (16, 8, 32)],
        Element::S8 | Element::U8 => &[(8, 8, 16), (16, 8, 16), (16, 8, 32)],
        Element::F64 => &[(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)],
    }
}

/// Keeps the format table in one place: accumulators are PTX types.
pub(crate) fn accumulates(ty: Ty) -> bool {
    ty == Ty::S32 || matches!(ty, Ty::F16 | Ty::F32 | Ty::F64) && format(ty).is_some()
}
