//! `wgmma`: products that the four warps of a warpgroup make together while
//! they go on.
//!
//! Each warp makes its 16 rows of the product when the instruction is issued,
//! and keeps them until it waits for them: until then its sums count as
//! unwritten registers, and what the product reads of shared memory may not be
//! written. That the warps of a warpgroup issue the same is checked as each
//! follows the first one.

use std::collections::HashMap;

use crate::exec::{Halt, Machine, refused, trouble};
use crate::fault::FaultKind;
use crate::memory::descriptor::{Descriptor, STEPS_BYTES};
use crate::memory::shared::Who;
use crate::program::{Op, PredSrc, Reg};
use crate::warp::mma::{self, Element};
use crate::warp::{Row, Warp};

/// Warps of a warpgroup, and the rows of a product that each makes.
const WARPS: usize = 4;
const ROWS: usize = 16;

/// The left factor.
#[derive(Clone, Debug)]
pub(crate) enum Left {
    Descriptor(Reg),
    Registers(Box<[Reg]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub columns: usize,
    /// The types of both factors, whose elements have as many bytes.
    pub elements: [Element; 2],
    pub d: Box<[Reg]>,
    pub a: Left,
    pub b: Reg,
    /// Whether the product is added to what the sums were.
    pub adds: PredSrc,
    /// Whether each factor is negated.
    pub negated: [bool; 2],
    /// Whether each factor lies across the sum in shared memory.
    pub across: [bool; 2],
}

impl Wgmma {
    /// Elements along the sum.
    fn steps(&self) -> usize {
        STEPS_BYTES / self.elements[0].bytes()
    }

    /// A sum as it was, and with so much more.
    fn sum(&self, before: u64, more: f64) -> u64 {
        match self.elements[0].is_integer() {
            // Exact in f64, and wraps around.
            true => u64::from((f64::from(before as i32) + more) as i64 as u32),
            false => u64::from(((f64::from(f32::from_bits(before as u32)) + more) as f32).to_bits()),
        }
    }
}

/// A product that has been issued.
struct Product {
    /// The 16 bytes of shared memory that it reads.
    units: Vec<u64>,
    /// The registers that it reads, as they were.
    factors: Vec<(Reg, Row)>,
}

/// The sums of one or more products that have been issued.
struct Sums {
    registers: Box<[Reg]>,
    values: Vec<Row>,
    /// The group of the last of these products.
    group: usize,
}

/// What a warp has issued.
#[derive(Default)]
pub(crate) struct Products {
    /// The registers that products take, as they were at the last
    /// `wgmma.fence`: the lanes that have written them, and the values.
    fenced: Option<Vec<(Reg, u32, Row)>>,
    /// Groups that are not waited for, the last one still open.
    groups: Vec<Vec<Product>>,
    /// How many groups came before these.
    before: usize,
    sums: Vec<Sums>,
    /// How many products the warp has issued.
    issued: usize,
}

impl Products {
    /// Whether nothing is under way.
    pub fn idle(&self) -> bool {
        self.groups.iter().all(Vec::is_empty)
    }

    /// Whether a register holds sums that are under way.
    pub fn holds(&self, register: Reg) -> bool {
        self.sums.iter().any(|sums| sums.registers.contains(&register))
    }

    fn fenced(&self, register: Reg) -> Option<&(Reg, u32, Row)> {
        self.fenced.as_ref()?.iter().find(|(r, ..)| *r == register)
    }
}

/// What the warps of a warpgroup have issued, as the first of them did.
#[derive(Default)]
pub(crate) struct Warpgroup {
    /// The instruction and the descriptors of each product.
    issued: Vec<(u32, [u64; 2])>,
    /// How many of them each warp has issued.
    by_warp: [usize; WARPS],
}

impl Warpgroup {
    /// The warp that has issued fewer products than another one.
    pub fn behind(&self) -> Option<usize> {
        self.by_warp.iter().position(|&n| n < self.issued.len())
    }
}

impl Machine<'_> {
    /// Executes an instruction of a warpgroup; all lanes are here.
    pub fn warpgroup(&mut self, warp: &mut Warp, op: &Op) -> Result<(), Halt> {
        match op {
            Op::WgmmaFence => {
                let row = |&r: &Reg| (r, warp.written[r as usize], *warp.rows[r as usize]);
                warp.products.fenced = Some(self.program.wgmma_rows.iter().map(row).collect());
            }
            Op::Wgmma(product) => self.issue(warp, product)?,
            Op::WgmmaCommit => warp.products.groups.push(Vec::new()),
            Op::WgmmaWait { pending } => self.wait_for_products(warp, *pending as usize)?,
            _ => {}
        }
        Ok(())
    }

    fn issue(&mut self, warp: &mut Warp, product: &Wgmma) -> Result<(), Halt> {
        let fail = |kind: FaultKind| Err(trouble(kind, 0));
        let diverges = |reason: String| Err(trouble(FaultKind::WarpgroupDiverges { reason }, 0));
        if warp.index - warp.index % WARPS + WARPS > self.full_warps {
            return diverges("the block has no four whole warps there".into());
        }
        if warp.products.groups.is_empty() {
            warp.products.groups.push(Vec::new());
        }
        let uniform = |row: Reg, what: &str| -> Result<u64, Halt> {
            self.need(warp, row, u32::MAX)?;
            let value = warp.get(row, 0);
            match (1..32).find(|&lane| warp.get(row, lane) != value) {
                Some(lane) => Err(trouble(FaultKind::NotUniform { what: what.into() }, lane as u32)),
                None => Ok(value),
            }
        };
        let left = match product.a {
            Left::Descriptor(row) => uniform(row, "the left descriptor")?,
            Left::Registers(_) => 0,
        };
        let right = uniform(product.b, "the right descriptor")?;
        self.need_pred(warp, product.adds, u32::MAX)?;
        let adds = warp.pred(product.adds);
        if adds != 0 && adds != u32::MAX {
            return fail(FaultKind::NotUniform { what: "whether the product is added".into() });
        }

        let group = &mut self.warpgroups[warp.index / WARPS];
        let issued = (warp.pc, [left, right]);
        match group.issued.get(warp.products.issued) {
            None => group.issued.push(issued),
            Some(first) if *first == issued => {}
            Some((pc, _)) => {
                let line = self.program.instrs[*pc as usize].line;
                let what = if *pc == warp.pc { "with other descriptors" } else { "not" };
                return diverges(format!("another warp has issued the product of line {line} here, this one {what}"));
            }
        }
        warp.products.issued += 1;
        group.by_warp[warp.index % WARPS] = warp.products.issued;

        // Registers that products take are to be left alone from the fence on.
        let pending = warp.products.sums.iter().position(|sums| sums.registers == product.d);
        let mut taken: Vec<Reg> = if let Left::Registers(a) = &product.a { a.to_vec() } else { Vec::new() };
        taken.iter().try_for_each(|&r| self.need(warp, r, u32::MAX))?;
        if pending.is_none() {
            if adds != 0 {
                product.d.iter().try_for_each(|&r| self.need(warp, r, u32::MAX))?;
            }
            taken.extend(&product.d);
        }
        for &row in &taken {
            let now = (row, warp.written[row as usize], *warp.rows[row as usize]);
            let register = self.program.row_names[row as usize].clone();
            if warp.products.fenced(row) != Some(&now) {
                return fail(FaultKind::Unfenced { register });
            }
            if warp.products.holds(row) {
                return fail(FaultKind::PendingSum { register });
            }
        }
        if pending.is_some()
            && let Some(&row) = product.d.iter().find(|&&r| warp.written[r as usize] != 0)
        {
            let register = self.program.row_names[row as usize].clone();
            return fail(FaultKind::PendingSum { register });
        }

        let mut units = Vec::new();
        let first = warp.index % WARPS * ROWS;
        let who = Self::who(warp, 0, false);
        let a = match &product.a {
            Left::Descriptor(_) => {
                let at = (left, 4 * ROWS, first..first + ROWS);
                self.factor(at, product, 0, who, &mut units)?
            }
            Left::Registers(registers) => left_of_registers(warp, registers, product.elements[0]),
        };
        let b = self.factor((right, product.columns, 0..product.columns), product, 1, who, &mut units)?;
        let mut values = match pending {
            Some(i) => std::mem::take(&mut warp.products.sums[i].values),
            None => product.d.iter().map(|&r| *warp.rows[r as usize]).collect(),
        };
        let sign = if product.negated[0] != product.negated[1] { -1.0 } else { 1.0 };
        let steps = product.steps();
        // Products of eight columns each, by row; their elements in the order of the sum.
        let mut products = vec![[[0.0; 8]; ROWS]; product.columns / 8];
        for (columns, products) in b.chunks_exact(8 * steps).zip(&mut products) {
            let columns: Vec<[f64; 8]> = (0..steps).map(|k| std::array::from_fn(|c| columns[c * steps + k])).collect();
            for (row, product) in a.chunks_exact(steps).zip(products) {
                *product = mma::product(row, &columns);
            }
        }
        for (i, row) in values.iter_mut().enumerate() {
            for (lane, value) in row.iter_mut().enumerate() {
                let more = products[i / 4][lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2];
                // All types of sums have zero bits for 0.
                *value = product.sum(if adds != 0 { *value } else { 0 }, sign * more);
            }
        }
        let products = &mut warp.products;
        let group = products.before + products.groups.len() - 1;
        let sums = Sums { registers: product.d.clone(), values, group };
        match pending {
            Some(i) => products.sums[i] = sums,
            None => products.sums.push(sums),
        }
        let factors = match &product.a {
            Left::Registers(a) => a.iter().map(|&r| (r, *warp.rows[r as usize])).collect(),
            Left::Descriptor(_) => Vec::new(),
        };
        if let Some(open) = products.groups.last_mut() {
            open.push(Product { units, factors });
        }
        product.d.iter().for_each(|&r| warp.written[r as usize] = 0);
        Ok(())
    }

    /// The elements of a factor in shared memory, along the sum for each row
    /// (or column); notes what is read.
    fn factor(
        &mut self,
        (bits, extent, rows): (u64, usize, std::ops::Range<usize>),
        product: &Wgmma,
        side: usize,
        who: Who,
        units: &mut Vec<u64>,
    ) -> Result<Vec<f64>, Halt> {
        let (across, element, steps) = (product.across[side], product.elements[side], product.steps());
        let descriptor = Descriptor::read(bits, extent, across)
            .map_err(|reason| trouble(FaultKind::BadDescriptor { bits, reason }, 0))?;
        let first = units.len();
        let mut elements = Vec::with_capacity(rows.len() * steps);
        let mut read: HashMap<u64, [u8; 16]> = HashMap::new();
        let mut last = (u64::MAX, [0; 16]);
        let (per_unit, mut address, mut i) = (16 / element.bytes(), 0, 0);
        for row in rows {
            for k in 0..steps {
                // Elements of a unit that lies along the sum follow each other.
                (address, i) = match across || k % per_unit == 0 {
                    true => descriptor.at(row, k, across, element.bytes()),
                    false => (address, i + 1),
                };
                if last.0 != address {
                    let unit = match read.get(&address) {
                        Some(unit) => *unit,
                        None => {
                            let unit = self.shared.product_reads(address, who).map_err(|r| refused(r, 0))?;
                            units.push(address);
                            read.insert(address, unit);
                            unit
                        }
                    };
                    last = (address, unit);
                }
                let bytes = &last.1[i * element.bytes()..][..element.bytes()];
                let bits = bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
                elements.push(element.value(bits, 0));
            }
        }
        for &address in &units[first..] {
            self.shared.product_begins(address);
        }
        Ok(elements)
    }

    /// Ends the products of all groups but the last `pending` closed ones and
    /// the open one.
    fn wait_for_products(&mut self, warp: &mut Warp, pending: usize) -> Result<(), Halt> {
        let who = Self::who(warp, 0, false);
        let closed = warp.products.groups.len().saturating_sub(1);
        let done: Vec<Product> = warp.products.groups.drain(..closed.saturating_sub(pending)).flatten().collect();
        warp.products.before += closed.saturating_sub(pending);
        for product in done {
            product.units.iter().for_each(|&address| self.shared.product_ends(address, who));
            if let Some((row, _)) = product.factors.iter().find(|(r, before)| *warp.rows[*r as usize] != *before) {
                let register = self.program.row_names[*row as usize].clone();
                return Err(trouble(FaultKind::PendingSum { register }, 0));
            }
        }
        let before = warp.products.before;
        let (done, rest): (Vec<Sums>, Vec<Sums>) =
            std::mem::take(&mut warp.products.sums).into_iter().partition(|sums| sums.group < before);
        warp.products.sums = rest;
        for sums in done {
            for (&row, values) in sums.registers.iter().zip(sums.values) {
                if warp.written[row as usize] != 0 {
                    let register = self.program.row_names[row as usize].clone();
                    return Err(trouble(FaultKind::PendingSum { register }, 0));
                }
                *warp.rows[row as usize] = values;
                warp.written[row as usize] = u32::MAX;
            }
        }
        Ok(())
    }
}

/// The 16 rows of a left factor that a warp holds in registers: register `i`
/// has row `lane / 4 + 8 * (i % 2)`, and as many neighbours as it has room for
/// from column `lane % 4 + 4 * (i / 2)` times that number on.
fn left_of_registers(warp: &Warp, registers: &[Reg], element: Element) -> Vec<f64> {
    let (steps, count) = (STEPS_BYTES / element.bytes(), element.per_register());
    let mut a = vec![0.0; ROWS * steps];
    for (i, &register) in registers.iter().enumerate() {
        for lane in 0..32 {
            let (row, column) = (lane / 4 + i % 2 * 8, count * (lane % 4 + i / 2 * 4));
            for e in 0..count {
                a[row * steps + column + e] = element.value(warp.get(register, lane), e);
            }
        }
    }
    a
}
