//! What is decided of a kernel's tiles before any code is written: which products go to the tensor cores, how tiles
//! lie in registers for that, and which tiles are copied from an operand straight to shared memory.

use std::collections::HashMap;

use super::home::SharedTile;
use super::layout::Layout;
use crate::dtype::DType;
use crate::kernel::ir::{Block, Inst, Kernel, Op, Type, Value};
use crate::kernel::table::Access;

/// A tile that lives in shared memory, where products read it: it has no registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// Its index in [`Plan::homes`].
    pub index: usize,
    /// Where it begins, in bytes.
    pub offset: u32,
    /// How it lies there: as in the operand, so the other way round if it is loaded transposed.
    pub tile: SharedTile,
    pub transposed: bool,
}

/// The decisions for a kernel.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many operands the kernel has.
    pub operands: usize,
    pub homes: Vec<Home>,
    by_value: HashMap<Value, usize>,
    layouts: HashMap<(u32, u32), Layout>,
    /// The dtype of the factors of the products that tensor cores make, by the product.
    products: HashMap<Value, DType>,
    /// Bytes of shared memory that homes take.
    pub shared_bytes: u32,
}

/// An instruction that defines a value, and what takes that value.
#[derive(Default)]
struct Uses<'k> {
    makers: HashMap<Value, &'k Inst>,
    /// The products of which a value is a factor.
    factor_of: HashMap<Value, Vec<Value>>,
    /// Values with other uses.
    others: HashMap<Value, u32>,
    products: Vec<&'k Inst>,
    loads: Vec<&'k Inst>,
}

impl<'k> Uses<'k> {
    fn add_block(&mut self, block: &'k Block) {
        for inst in &block.insts {
            self.makers.extend(inst.results.iter().map(|&v| (v, inst)));
            if let Op::Dot(a, b, acc) = &inst.op {
                self.products.push(inst);
                [a, b].into_iter().for_each(|&v| self.factor_of.entry(v).or_default().push(inst.results[0]));
                *self.others.entry(*acc).or_default() += 1;
            } else {
                inst.op.uses().into_iter().for_each(|v| *self.others.entry(v).or_default() += 1);
            }
            if let Op::TileLoad { .. } = &inst.op {
                self.loads.push(inst);
            }
            inst.op.blocks().into_iter().for_each(|(inner, _)| self.add_block(inner));
        }
        block.yields.iter().for_each(|&v| *self.others.entry(v).or_default() += 1);
    }

    /// The half dtype of which all elements of a tile are values.
    fn half(&self, kernel: &Kernel, value: Value) -> Option<DType> {
        let dtype = match &self.makers.get(&value)?.op {
            Op::TileLoad { operand, .. } => kernel.operands[*operand as usize].dtype,
            Op::TileRound(dtype, _) => *dtype,
            Op::TileCast(from) if kernel.ty(*from) == kernel.ty(value) => self.half(kernel, *from)?,
            _ => return None,
        };
        matches!(dtype, DType::F16 | DType::BF16).then_some(dtype)
    }
}

fn shape(kernel: &Kernel, tile: Value) -> (u32, u32) {
    match kernel.ty(tile) {
        Type::Tile(_, r, c) | Type::TileVar(_, r, c) => (r, c),
        Type::Scalar(_) | Type::Var(_) => (1, 1),
    }
}

impl Plan {
    pub fn new(kernel: &Kernel) -> Plan {
        let mut uses = Uses::default();
        uses.add_block(&kernel.body);
        let mut plan = Plan {
            operands: kernel.operands.len(),
            homes: Vec::new(),
            by_value: HashMap::new(),
            layouts: HashMap::new(),
            products: HashMap::new(),
            shared_bytes: 0,
        };
        for inst in &uses.products {
            let Op::Dot(a, b, _) = inst.op else { continue };
            let result = inst.results[0];
            let ((rows, columns), (_, inner)) = (shape(kernel, result), shape(kernel, a));
            let (Some(left), Some(right)) = (uses.half(kernel, a), uses.half(kernel, b)) else { continue };
            if let Some(layout) = Layout::fragments(rows, columns)
                && left == right
                && inner > 0
                && inner.is_multiple_of(16)
            {
                plan.layouts.insert((rows, columns), layout);
                plan.products.insert(result, left);
            }
        }
        for inst in &uses.loads {
            let Op::TileLoad { operand, transpose, .. } = &inst.op else { continue };
            let (value, operand) = (inst.results[0], &kernel.operands[*operand as usize]);
            let Some(products) = uses.factor_of.get(&value) else { continue };
            // What a kernel writes may have changed between the load and the product.
            let lives = operand.access == Access::In
                && !uses.others.contains_key(&value)
                && products.iter().all(|product| plan.products.contains_key(product));
            if lives {
                let (r, c) = shape(kernel, value);
                let (rows, columns) = if *transpose { (c, r) } else { (r, c) };
                let tile = SharedTile { rows, columns, size: operand.dtype.size_in_bytes() as u32 };
                let (index, offset) = (plan.homes.len(), plan.shared_bytes);
                plan.by_value.insert(value, index);
                plan.homes.push(Home { index, offset, tile, transposed: *transpose });
                plan.shared_bytes += tile.bytes();
            }
        }
        plan
    }

    /// How tiles of a shape lie in registers.
    pub fn layout(&self, rows: u32, columns: u32) -> Layout {
        self.layouts.get(&(rows, columns)).copied().unwrap_or_else(|| Layout::cyclic(rows, columns))
    }

    /// Where a tile lives, if in shared memory.
    pub fn home(&self, tile: Value) -> Option<Home> {
        self.by_value.get(&tile).map(|&index| self.homes[index])
    }

    /// The dtype of a product's factors, if a tensor core makes it.
    pub fn tensor_core(&self, product: Value) -> Option<DType> {
        self.products.get(&product).copied()
    }
}
