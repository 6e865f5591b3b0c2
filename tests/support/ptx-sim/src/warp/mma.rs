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
use crate::ops::half::{Float16, Half, odd_f32};
use crate::ops::softfloat::{E4M3, E5M2, F64, Format, Round};
use crate::program::Reg;
use crate::types::Ty;
use crate::warp::{Row, Warp};

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

    /// Element `i` of a register, of each lane.
    fn values(self, row: &Row, i: usize) -> [f64; 32] {
        // Of a known type each, so that they are loops of a few instructions.
        macro_rules! of {
            ($($element:ident),+) => {
                match self {
                    $(Element::$element => row.map(|register| Element::$element.value(register, i)),)+
                }
            };
        }
        of!(F16, Bf16, Tf32, E4m3, E5m2, S8, U8, F64)
    }

    /// Element `i` of a register, as an exact f64.
    #[inline]
    pub fn value(self, register: u64, i: usize) -> f64 {
        let byte = || (register >> (8 * i)) as u8;
        let half = || register >> (16 * i) & 0xffff;
        match self {
            Element::F16 => f64::from(Float16::widen(half())),
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

/// Room for the factors and sums of a product.
pub(crate) struct Fragments {
    /// By row.
    a: [f64; MOST_A],
    /// A row each, for one step along the sum.
    b: [[f64; 8]; MOST_K],
    c: [[f64; 8]; MOST_M],
}

impl Default for Fragments {
    fn default() -> Self {
        Fragments { a: [0.0; MOST_A], b: [[0.0; 8]; MOST_K], c: [[0.0; 8]; MOST_M] }
    }
}

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
    pub fn run(&self, warp: &mut Warp, Fragments { a, b, c }: &mut Fragments) {
        let (m, k) = (self.m, self.k);
        let per = self.a_type.per_register();
        for (i, reg) in self.a.iter().enumerate() {
            let (down, along) = (8 * (i % (m / 8)), 4 * per * (i / (m / 8)));
            for e in 0..per {
                let values = self.a_type.values(&warp.rows[*reg as usize], e);
                for (g, values) in values.as_chunks::<4>().0.iter().enumerate() {
                    let row = &mut a[(g + down) * k + along..][..4 * per];
                    values.iter().zip(row.chunks_exact_mut(per)).for_each(|(value, part)| part[e] = *value);
                }
            }
        }
        let per = self.b_type.per_register();
        for (i, reg) in self.b.iter().enumerate() {
            for e in 0..per {
                let values = self.b_type.values(&warp.rows[*reg as usize], e);
                for (g, values) in values.as_chunks::<4>().0.iter().enumerate() {
                    values.iter().enumerate().for_each(|(t, value)| b[per * (t + 4 * i) + e][g] = *value);
                }
            }
        }
        for (i, (reg, shift)) in places(self.c_type, &self.c).enumerate() {
            let values = addends(self.c_type, shift, &warp.rows[reg as usize]);
            for (values, row) in values.as_chunks::<4>().0.iter().zip(&mut c[8 * (i / 2)..]) {
                values.iter().enumerate().for_each(|(t, value)| row[2 * t + i % 2] = *value);
            }
        }
        for (row, sums) in a[..m * k].chunks_exact(k).zip(c.iter_mut()) {
            if self.d_type == Ty::F64 {
                for (x, column) in row.iter().zip(b.iter()) {
                    sums.iter_mut().zip(column).for_each(|(sum, y)| *sum = x.mul_add(*y, *sum));
                }
            } else {
                let products = product(row, &b[..]);
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
            }
        }
        for (i, (reg, shift)) in places(self.d_type, &self.d).enumerate() {
            let mut sums = [0.0; 32];
            for (sums, row) in sums.as_chunks_mut::<4>().0.iter_mut().zip(&c[8 * (i / 2)..]) {
                sums.iter_mut().enumerate().for_each(|(t, sum)| *sum = row[2 * t + i % 2]);
            }
            let row = &mut warp.rows[reg as usize];
            for (value, sum) in row.iter_mut().zip(self.results(&sums)) {
                *value = if shift == 0 { sum } else { *value | sum << shift };
            }
            warp.written[reg as usize] = u32::MAX;
        }
    }

    fn results(&self, sums: &[f64; 32]) -> Row {
        match self.d_type {
            Ty::F16 => sums.map(|v| Float16::narrow(odd_f32(v))),
            Ty::F32 => sums.map(|v| u64::from(if v.is_nan() { 0x7fff_ffff } else { (v as f32).to_bits() })),
            // Sums of at most 32 products of bytes and an i32 are exact.
            Ty::S32 if self.satfinite => sums.map(|v| u64::from(v as i32 as u32)),
            Ty::S32 => sums.map(|v| u64::from(v as i64 as u32)),
            _ => sums.map(f64::to_bits),
        }
    }
}

/// What all lanes have of C in a register, shifted down.
fn addends(ty: Ty, shift: u32, row: &Row) -> [f64; 32] {
    match ty {
        Ty::F16 => row.map(|bits| f64::from(Float16::widen(bits >> shift))),
        Ty::F32 => row.map(|bits| f64::from(f32::from_bits(bits as u32))),
        Ty::S32 => row.map(|bits| f64::from(bits as i32)),
        _ => row.map(f64::from_bits),
    }
}

/// Register and shift of each element of C or D that a lane holds: element `i` is in row `lane / 4 + 8 * (i / 2)` and column
/// `2 * (lane % 4) + i % 2`.
fn places(ty: Ty, regs: &[Reg]) -> impl Iterator<Item = (Reg, u32)> {
    let shifts: &[u32] = if ty == Ty::F16 { &[0, 16] } else { &[0] };
    regs.iter().flat_map(move |reg| shifts.iter().map(move |shift| (*reg, *shift)))
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
