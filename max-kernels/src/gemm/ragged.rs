//! Ragged batches: rows of several groups behind each other, of which group `g` has `offsets[g]..offsets[g + 1]`. What experts and
//! adapters of low rank are made of.
//!
//! Offsets and ids are data, and any data is harmless: what is outside of an operand is read as 0, and not written.

use max::kernel::prelude::*;

/// The rows of each group times the transpose of its matrix: `c[r] = a[r] · w[ids[g]]ᵀ` of the rows `r` of group `g`, with `w`
/// `[matrices, n, k]` (Gale et al.: MegaBlocks, 2022; Chen et al.: Punica, 2023). Rows of no group, and those of a group whose id is
/// that of no matrix, are 0; rows of several groups are sums. Products are added in `f32`.
///
/// A program takes a block of rows and walks the groups that have some of them, which is one where groups are large.
#[kernel(
    op = "grouped_matmul_ragged",
    dtypes(T = [f16, bf16, f32]),
    tile(
        BM = 32, BN = 128, BK = 512,
        when(a.dim(0) <= 8, BM = 8, BN = 64, BK = 2048),
        v2(BM = 4, BN = 16, BK = 256),
        gpu(BM = 64, BN = 64, BK = 32),
    )
)]
pub fn grouped_matmul_ragged<T: Float>(c: Out<T, 2>, a: In<T, 2>, w: In<T, 3>, offsets: In<u32, 1>, ids: In<i32, 1>) {
    let [m, n] = program_id();
    let first = m * BM;
    let last = (first + BM).min(a.dim(0));
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for g in 0..ids.dim(0) {
        let begin = offsets.at(g) as i64;
        let end = offsets.at(g + 1) as i64;
        let matrix = ids.at(g) as i64;
        if begin < end && begin < last && end > first && matrix >= 0 && matrix < w.dim(0) {
            let w = w.select(matrix);
            let mut part = Tile::<f32, BM, BN>::zeros();
            for k in range(0, a.dim(1), BK) {
                part = dot(a.tile::<BM, BK>(m, k), w.tile::<BN, BK>(n, k).t(), part);
            }
            if begin > first || end < last {
                part = part.map_indexed(|r, _, v| if first + r >= begin && first + r < end { v } else { 0.0 });
            }
            acc = acc + part;
        }
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

/// Puts tokens in the order of their experts, `ids`, a counting sort. Expert `expert_ids[g]` has the tokens
/// `order[starts[g]..starts[g + 1]]`, and token `i` is in place `restore[i]`. Experts with tokens come first, in ascending order; behind
/// them ids are -1, and groups are empty. `usage` is the most tokens of an expert, and how many experts have tokens.
///
/// Ids of no expert are left out: their place is behind all others, and what is left of the order is 0.
#[kernel(op = "moe_create_indices")]
pub fn moe_create_indices(
    order: Out<i32, 2>,
    starts: Out<u32, 2>,
    restore: Out<i32, 2>,
    expert_ids: Out<i32, 2>,
    usage: Out<u32, 2>,
    ids: In<i32, 2>,
) {
    let row = program_id(0);
    let ids = ids.row(row);
    let tokens = ids.dim(0);
    let experts = expert_ids.dim(1);
    // The counts of experts, then the next place of each, then the ids.
    expert_ids.row(row).write(lanes(experts).map(|_| 0i32));
    order.row(row).write(lanes(tokens).map(|_| 0i32));
    for i in 0..tokens {
        let e = ids.at(i) as i64;
        expert_ids.row(row).set(e, expert_ids.row(row).at(e) + 1);
    }
    let mut place = 0i32;
    let mut groups = 0i64;
    let mut most = 0i32;
    for e in 0..experts {
        let count = expert_ids.row(row).at(e);
        expert_ids.row(row).set(e, place);
        starts.row(row).set(groups, place as u32);
        groups = if count > 0 { groups + 1 } else { groups };
        most = most.max(count);
        place += count;
    }
    for g in groups..starts.dim(1) {
        starts.row(row).set(g, place as u32);
    }
    usage.row(row).set(0, most as u32);
    usage.row(row).set(1, groups as u32);
    for i in 0..tokens {
        let e = ids.at(i) as i64;
        let known = e >= 0 && e < experts;
        let at = if known { expert_ids.row(row).at(e) } else { tokens as i32 };
        order.row(row).set(at as i64, i as i32);
        restore.row(row).set(i, at);
        expert_ids.row(row).set(e, at + 1);
    }
    let mut before = 0i32;
    let mut group = 0i64;
    for e in 0..experts {
        let end = expert_ids.row(row).at(e);
        if end > before {
            expert_ids.row(row).set(group, e as i32);
            group += 1;
        }
        before = end;
    }
    for g in group..experts {
        expert_ids.row(row).set(g, -1);
    }
}

/// The rows of two ragged batches of equally many groups: of each group, those of `a` and then those of `b`.
#[kernel(op = "merge_ragged_tensors")]
pub fn merge_ragged_tensors<T: Any>(
    y: Out<T, 2>,
    a: In<T, 2>,
    b: In<T, 2>,
    a_offsets: In<u32, 1>,
    b_offsets: In<u32, 1>,
) {
    let i = program_id(0);
    let row = i * 1;
    let mut of_a = -1;
    let mut of_b = -1;
    for g in 0..a_offsets.dim(0) - 1 {
        let first_a = a_offsets.at(g) as i64;
        let first_b = b_offsets.at(g) as i64;
        let from_a = a_offsets.at(g + 1) as i64 - first_a;
        let from_b = b_offsets.at(g + 1) as i64 - first_b;
        let within = row - first_a - first_b;
        if within >= 0 && within < from_a + from_b {
            of_a = if within < from_a { first_a + within } else { -1 };
            of_b = if within < from_a { -1 } else { first_b + within - from_a };
        }
    }
    if of_a >= 0 {
        y.row(i).write(a.row(of_a));
    } else {
        y.row(i).write(b.row(of_b));
    }
}
