//! Products of tiles by warpgroups: `wgmma`, for which four warps together name both factors in shared memory.
//!
//! A factor lies there in panels of up to 128 bytes a row, eight rows of which make a pattern of places for their units.
//! That is the order in which tiles lie anyway ([`home`](super::home)), so that all it takes is a descriptor: where the
//! factor begins, how far it is from eight rows to the next eight and from a panel to the next, and how long a panel's rows
//! are. Each warpgroup has 64 rows of the sums, and all their columns or half of them.
//!
//! An instruction takes 32 bytes of a factor's rows: 16 halves, 8 numbers of tf32 or 32 bytes. Halves alone may lie across the sum.
//! 8-bit floats are left to warps ([`bytes`](super::bytes)): NVIDIA does not say how warpgroups add their products, and those
//! who have measured it on Hopper found sums with 13 bits behind the point (Zhang et al., SageAttention2, 2024; DeepSeek-V3, 2024), where ours
//! are of `f32`. What warps do is what is promised: there `ptxas` makes halves of them, whose products are added as `f32`.
//!
//! Products read shared memory asynchronously. What threads wrote there must be fenced off before the barrier that all
//! pass, and may be written again when the products have been waited for. A loop that only adds to its sums lets the
//! products of one step run while it begins the next ([`ahead`](super::ahead)).

use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::{SharedTile, UNIT};
use super::layout::Kind;
use super::tensor::{braced, factor_type};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of the sums of a warpgroup.
const ROWS: u32 = 64;
/// Bytes of the steps of the sum that one instruction makes.
const STEPS_BYTES: u32 = 32;
/// Rows of a pattern.
const PATTERN_ROWS: u32 = 8;

/// A factor as its descriptors tell it.
struct Described {
    tile: SharedTile,
    /// Whether the axis that is summed runs down the rows in shared memory.
    sums_down: bool,
    /// The descriptor of the first steps.
    first: Reg,
}

impl Gen<'_> {
    /// Makes what this thread has written to shared memory known to products of warpgroups. A barrier follows.
    pub fn fence_for_products(&mut self) {
        if self.plan.has_warpgroups() {
            emit!(self, "fence.proxy.async.shared::cta;");
        }
    }

    /// Waits until at most so many groups of products are under way.
    pub fn wait_for_products(&mut self, under_way: u32) {
        emit!(self, "wgmma.wait_group.sync.aligned {under_way};");
    }

    /// `result = a · b + acc`, of factors that tensor cores take as these dtypes, of one size.
    pub fn warpgroup_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, dtypes: [DType; 2]) {
        let l = self.layout(result);
        let Kind::Fragments { warp_columns, .. } = l.kind else { return };
        let inner = self.layout(a).columns;
        let width = l.columns / warp_columns;
        let per_step = STEPS_BYTES / dtypes[0].size_in_bytes() as u32;
        let [left, right] = self.factors(result, [a, b], dtypes[0]);
        // The warpgroups stand below each other, or side by side.
        let left = self.described(left, false, if warp_columns == 1 { ROWS } else { 0 });
        let right = self.described(right, true, if warp_columns == 1 { 0 } else { width });
        let steps: Vec<[Reg; 2]> =
            (0..inner / per_step).map(|k| [&left, &right].map(|factor| self.descriptor(factor, k))).collect();

        let in_place = self.plan.stays_in_place(result);
        let sums = self.all(acc);
        let sums: Vec<Reg> = if in_place { sums } else { sums.into_iter().map(|r| self.copy(r)).collect() };
        let in_order =
            (0..l.own_columns() / 2).flat_map(|j| [0, 1].map(|i| [2 * j, 2 * j + 1].map(|j| l.register(i, j))));
        let sums_in_order: Vec<Reg> = in_order.flatten().map(|register| sums[register]).collect();
        let (d, [of_a, of_b]) = (braced(&sums_in_order), dtypes.map(factor_type));
        let [down_a, down_b] = [&left, &right].map(|factor| u32::from(factor.sums_down));
        // Products are added to the sums; factors of floats may be negated, and of halves lie across the sum.
        let (sum, how) = match dtypes[0].size_in_bytes() {
            1 => ("s32", "1".to_owned()),
            2 => ("f32", format!("1, 1, 1, {down_a}, {down_b}")),
            _ => ("f32", "1, 1, 1".to_owned()),
        };
        let kind = format!("wgmma.mma_async.sync.aligned.m64n{width}k{per_step}.{sum}.{of_a}.{of_b}");
        emit!(self, "wgmma.fence.sync.aligned;");
        for [a, b] in steps {
            emit!(self, "{kind} {d}, {a}, {b}, {how};");
        }
        emit!(self, "wgmma.commit_group.sync.aligned;");
        if !in_place {
            self.wait_for_products(0);
        }
        self.set_all(result, sums);
    }

    /// The descriptor of a factor; warpgroups have rows (or columns) of the product so far from each other.
    fn described(&mut self, (start, tile, transposed): (Reg, SharedTile, bool), right: bool, apart: u32) -> Described {
        let sums_down = transposed != right;
        let bytes =
            if sums_down { apart * tile.size / UNIT / tile.panel() * tile.panel_bytes() } else { apart * tile.pitch() };
        let start = if bytes > 0 {
            let group = self.fixed(Fixed::Warpgroup);
            let own = self.reg(Class::B32);
            emit!(self, "mad.lo.u32 {own}, {group}, {bytes}, {start};");
            own
        } else {
            start
        };
        // Offsets are in units; that between panels matters only where they follow each other along rows of the product.
        let between_panels = if sums_down { tile.panel_bytes() / UNIT } else { 1 };
        let swizzle = match tile.panel() {
            8 => 1,
            4 => 2,
            _ => 3,
        };
        let high = (swizzle << 30) | (PATTERN_ROWS * tile.pitch() / UNIT);
        let unit = self.op2(Class::B32, "shr.u32", start, UNIT.ilog2());
        let low = self.op2(Class::B32, "or.b32", unit, between_panels << 16);
        let high = self.immediate(Class::B32, high);
        let first = self.reg(Class::B64);
        emit!(self, "mov.b64 {first}, {{{low}, {high}}};");
        Described { tile, sums_down, first }
    }

    /// The descriptor of the `k`-th steps.
    fn descriptor(&mut self, factor: &Described, k: u32) -> Reg {
        let tile = factor.tile;
        let bytes = if factor.sums_down {
            k * STEPS_BYTES / tile.size * tile.pitch()
        } else {
            let unit = k * STEPS_BYTES / UNIT;
            unit / tile.panel() * tile.panel_bytes() + unit % tile.panel() * UNIT
        };
        if bytes == 0 { factor.first } else { self.op2(Class::B64, "add.s64", factor.first, bytes / UNIT) }
    }
}
