//! Attention of ragged batches over a paged cache of keys and values (Kwon et al.: PagedAttention, 2023).
//!
//! The new tokens of all sequences lie behind each other; those of sequence `b` are `offsets[b]..offsets[b + 1]`, and
//! `lengths[b]` tokens of it are in the cache before them. Position `p` of the sequence is row `p % page size` of page
//! `table[b, p / page size]`. Caches are `[pages, key heads, page size, head size]`, so that a page of a head is a matrix.
//!
//! Offsets, lengths and tables are data, and any data is harmless: a page that does not exist is read as if it had no keys,
//! and what would be written to it is dropped.

use max::kernel::prelude::*;

/// The page and the row in it of a new token: those of the last sequence that begins at or before it. There is no such page,
/// `-1`, where the token is behind the end of the sequence, or the table ends before it.
#[kernel]
fn place(token: i64, offsets: In<u32, 1>, lengths: In<u32, 1>, table: In<u32, 2>, page_size: i64) -> (i64, i64) {
    let mut sequence = -1;
    for b in 0..lengths.dim(0) {
        sequence = if offsets.at(b) as i64 <= token { b } else { sequence };
    }
    let position = lengths.at(sequence) as i64 + token - offsets.at(sequence) as i64;
    let page = position / page_size;
    let exists = sequence >= 0 && token < offsets.at(sequence + 1) as i64 && page < table.dim(1);
    (if exists { table.at(sequence, page) as i64 } else { -1 }, position % page_size)
}

/// Writes keys, or values, of new tokens, `[tokens, key heads, head size]`, to their places in a cache.
#[kernel(op = "kv_cache_ragged_store", grid(x.dim(0), x.dim(1)))]
pub fn kv_cache_ragged_store<T: Any>(
    cache: &mut Buffer<T, 4>,
    x: In<T, 3>,
    table: In<u32, 2>,
    offsets: In<u32, 1>,
    lengths: In<u32, 1>,
) {
    let [t, h] = program_id();
    let (t, h) = (t * 1, h * 1);
    let (page, row) = place(t, offsets, lengths, table, cache.dim(2));
    x.select(t).row(h).enumerate().for_each(|(v, i)| cache.scatter([page, h, row, i], v));
}

/// Keys, or values, of new tokens, `[tokens, key heads, head size]`, from their places in a cache; 0 where there is no page.
#[kernel(op = "kv_cache_ragged_read")]
pub fn kv_cache_ragged_read<T: Any>(
    y: Out<T, 3>,
    cache: In<T, 4>,
    table: In<u32, 2>,
    offsets: In<u32, 1>,
    lengths: In<u32, 1>,
) {
    let [t, h] = program_id();
    let (page, row) = place(t * 1, offsets, lengths, table, cache.dim(2));
    y.select(t).row(h).write(cache.select(page).select(h).row(row));
}

/// Keys, or values, of new tokens as [`kv_cache_ragged_read`] gives them, plus `a`, `[tokens, key heads, head size]`, which has the
/// tokens from those of sequence `batch_offset` on.
#[kernel(op = "kv_cache_ragged_radd")]
pub fn kv_cache_ragged_radd<T: Float>(
    y: Out<T, 3>,
    cache: In<T, 4>,
    a: In<T, 3>,
    table: In<u32, 2>,
    offsets: In<u32, 1>,
    lengths: In<u32, 1>,
    #[param] batch_offset: i64,
) {
    let [t, h] = program_id();
    let (page, row) = place(t * 1, offsets, lengths, table, cache.dim(2));
    let more = a.select(t * 1 - offsets.at(batch_offset) as i64).row(h);
    y.select(t).row(h).write(cache.select(page).select(h).row(row).zip(more).map(|(x, more)| x + more));
}

/// Element `i` of a head that is rotated by the angles of `cos` and `sin`, one for each pair; what is behind the pairs stays.
#[kernel]
fn rotated<T: Float>(x: In<T, 1>, cos: In<f32, 1>, sin: In<f32, 1>, i: i64, interleaved: bool) -> f32 {
    let half = cos.dim(0);
    let first = if interleaved { i % 2 == 0 } else { i < half };
    let apart = if interleaved { 1 as i64 } else { half };
    let other = if first { i + apart } else { i - apart };
    let pair = if interleaved { i / 2 } else { i.min(other) };
    let s = sin.at(pair);
    let turned = (x.at(i) as f32) * cos.at(pair) + (x.at(other) as f32) * (if first { -s } else { s });
    if i < 2 * half { turned } else { x.at(i) as f32 }
}

/// Queries with rotary embeddings, `[key heads, tokens, queries of a key head, head size]` of `[tokens, heads, head size]`; keys,
/// rotated as well, and values of new tokens are written to their places in the caches (Su et al.: RoFormer, 2021).
///
/// `cos` and `sin` have the angles of each token, `[tokens, rotated / 2]`; elements of a head behind the rotated ones stay. Pairs
/// are neighbours if `interleaved`, else they lie half of the rotated part apart.
///
/// Values in the cache are finite: of a token whose values are not, these are 0, and the key is NaN. So what sees the token is
/// NaN, and what does not see it, but multiplies its value by a weight of 0, stays as it is.
#[kernel(op = "fused_qk_ragged_rope", dtypes(T = [f16, bf16, f32]))]
#[allow(clippy::too_many_arguments, reason = "the operands of a layer, and where its caches are")]
pub fn fused_qk_ragged_rope<T: Float>(
    out: Out<T, 4>,
    keys: &mut Buffer<T, 4>,
    values: &mut Buffer<T, 4>,
    q: In<T, 3>,
    k: In<T, 3>,
    v: In<T, 3>,
    cos: In<f32, 2>,
    sin: In<f32, 2>,
    table: In<u32, 2>,
    offsets: In<u32, 1>,
    lengths: In<u32, 1>,
    #[param(default = false)] interleaved: bool,
) {
    let [h, t, g] = program_id();
    let cos = cos.row(t);
    let sin = sin.row(t);
    let x = q.select(t).row(h * out.dim(2) + g);
    let turned = lanes(q.dim(2)).map(|i| rotated(x, cos, sin, i, interleaved).cast::<T>());
    out.select(h).select(t).row(g).write(turned);
    if g * 1 == 0 {
        let head = h * 1;
        let (page, row) = place(t * 1, offsets, lengths, table, keys.dim(2));
        let x = k.select(t).row(h);
        let v = v.select(t).row(h);
        let finite = v.map(|v| if v - v == 0 { 0i32 } else { 1 }).sum() == 0;
        v.enumerate().for_each(|(v, i)| values.scatter([page, head, row, i], if v - v == 0 { v } else { T::ZERO }));
        lanes(k.dim(2)).for_each(|i| {
            let turned = rotated(x, cos, sin, i, interleaved).cast::<T>();
            keys.scatter([page, head, row, i], if finite { turned } else { T::NAN });
        });
    }
}

/// Attention of the new tokens of a ragged batch over a paged cache, which holds their own keys and values as well: prefill,
/// chunked prefill and decode. Scores are computed a block of keys at a time, as in [`attention`](crate::attention::attention).
///
/// `q` is `[key heads, rows, head size]`, of as many `group` queries for each token as heads share a key head (Ainslie et al.,
/// 2023); so is the result. A program takes a block of rows, which may be of several sequences, and walks the keys of each of
/// them; a row sees those of its own. If no sequence has more new tokens than `longest` has rows, and that is 1, blocks are
/// small.
///
/// A sequence with fewer keys than new tokens has a negative length, in the two's complement: cross attention, whose keys are of other
/// tokens.
///
/// The result may have several times as many heads as there are key heads: then programs divide the keys of each sequence into as
/// many parts of whole runs of 128 keys (Dao et al.: Flash-Decoding, 2023). Behind the results of the first part of all heads are
/// those of the second, and so on. `sums` has the logarithm to base 2 of the sum of weights of each row, by which
/// [`flash_attention_ragged_combine`] weighs the parts.
///
/// * `causal`: a query sees keys up to its own position; else all of its sequence, to its new tokens' end.
/// * `window`: of those it sees the last `window`, its own position's included; all for 0. If `chunked`, the window begins at a
///   multiple of `window`.
/// * `softcap`: scores become `softcap · tanh(score / softcap)`; not for 0.
/// * `sinks`, `[heads]`: a score more for each head, without a value (Xiao et al.: attention sinks, 2023); none if it is empty.
#[kernel(
    op = "flash_attention_ragged",
    dtypes(T = [f16, bf16, f32]),
    tile(
        BM = 24, BN = 128, D = 256,
        when(longest.dim(0) <= 1, BM = 4),
        when(q.dim(2) <= 64, D = 64),
        when(q.dim(2) <= 128, D = 128),
        v4(BM = 32),
        v2(BM = 8, BN = 64),
        gpu(BM = 64, BN = 64, D = 128),
        gpu(longest.dim(0) <= 1, q.dim(2) <= 64, T = [f16, bf16], BM = 16, D = 64),
        gpu(longest.dim(0) <= 1, T = [f16, bf16], BM = 16),
        gpu(q.dim(2) <= 64, D = 64),
    )
)]
#[allow(clippy::too_many_arguments, reason = "the operands of a layer, where its caches are, and the mask")]
#[allow(unused_variables, reason = "of `longest`, tile sizes read a dim")]
pub fn flash_attention_ragged<T: Float>(
    out: Out<T, 3>,
    sums: Out<f32, 3>,
    q: In<T, 3>,
    keys: In<T, 4>,
    values: In<T, 4>,
    table: In<u32, 2>,
    offsets: In<u32, 1>,
    lengths: In<u32, 1>,
    sinks: In<f32, 1>,
    longest: In<u8, 2>,
    #[param] scale: f64,
    #[param] group: i64,
    #[param(default = true)] causal: bool,
    #[param(default = 0)] window: i64,
    #[param(default = false)] chunked: bool,
    #[param(default = 0.0)] softcap: f64,
) {
    let [head, m, column] = program_id();
    let heads = q.dim(0);
    let (h, part, parts) = (head * 1 % heads, head * 1 / heads, out.dim(0) / heads);
    let rows = q.select(h);
    let q = rows.tile::<BM, D>(m, 0).load();
    let page_size = keys.dim(2);
    let pages = keys.dim(0);
    let blocks = ceildiv(page_size, BN);
    let first = m * BM;
    let last = (first + BM).min(rows.dim(0)) - 1;
    let first_token = first / group;
    let last_token = last / group;
    // Scores are powers of 2: those of e differ by a factor.
    let scale = (if softcap > 0.0 { scale / softcap } else { scale * std::f64::consts::LOG2_E }) as f32;
    let cap = (softcap * std::f64::consts::LOG2_E) as f32;
    let sinks = sinks.pad(f32::NEG_INFINITY);
    let mut acc = Tile::<f32, BM, D>::zeros();
    // Finite, so that the weights of a row that has seen no key are 0.
    let mut largest = Tile::<f32, BM, 1>::zeros().map_indexed(|r, _, _| {
        let sink = if part == 0 { sinks.at(h * group + (first + r) % group) } else { f32::NEG_INFINITY };
        (sink * std::f64::consts::LOG2_E).max(f32::MIN)
    });
    let mut total = largest.map(|x| if x > f32::MIN { 1.0 as f32 } else { 0.0 });
    for b in 0..lengths.dim(0) {
        let begin = offsets.at(b) as i64;
        let stop = offsets.at(b + 1) as i64;
        // What is added to a token for its position, and the keys that there are.
        let past = lengths.at(b) as i32 as i64 - begin;
        let all = (stop + past).min(table.dim(1) * page_size);
        // The block's tokens of this sequence, and the keys that these see.
        let low = begin.max(first_token);
        let high = stop.min(last_token + 1);
        let oldest = if chunked { (low + past) / window * window } else { low + past + 1 - window };
        let from = if window > 0 { oldest.max(0) } else { 0 };
        let end = if low < high { if causal { all.min(high + past) } else { all } } else { 0 };
        let newest = end - 1;
        let to = if end > from { newest / page_size * blocks + newest % page_size / BN + 1 } else { 0 };
        let from = from / page_size * blocks + from % page_size / BN;
        // Of what any of the sequence's new tokens sees, this part: so many runs of keys of a page, and the blocks that begin there.
        let eldest = if chunked { (begin + past) / window * window } else { begin + past + 1 - window };
        let eldest = if window > 0 { eldest.max(0) } else { 0 };
        let latest = all - 1;
        let runs = ceildiv(page_size, 128);
        let run = eldest / page_size * runs + eldest % page_size / 128;
        let count = if all > eldest { latest / page_size * runs + latest % page_size / 128 + 1 - run } else { 0 };
        let (lowest, highest) = (run + count * part / parts, run + count * (part + 1) / parts);
        let begin_block = lowest / runs * blocks + ceildiv(lowest % runs * 128, BN);
        let end_block = highest / runs * blocks + ceildiv(highest % runs * 128, BN);
        for i in range(from.max(begin_block), to.min(end_block), 1) {
            let page = table.at(b, i / blocks) as i64;
            let offset = i % blocks * BN;
            let start = i / blocks * page_size + offset;
            let k = keys.select(page).select(h);
            let v = values.select(page).select(h);
            let mut s = Tile::<f32, BM, BN>::zeros();
            s = dot(q, k.tile::<BN, D>(offset, 0).t(), s);
            for d in range(D, rows.dim(1), D) {
                let more = rows.tile::<BM, D>(first, d).load();
                s = dot(more, k.tile::<BN, D>(offset, d).t(), s);
            }
            if softcap > 0.0 {
                s = s.map(|x| (x * scale).tanh() * cap);
            } else {
                s = s.map(|x| x * scale);
            }
            // Nothing is left out of blocks that all rows see.
            let seen = if causal { all.min(low + past + 1) } else { all };
            let begins = high - 1 + past;
            let begins = if chunked { begins / window * window } else { begins + 1 - window };
            if first_token < begin
                || last_token >= stop
                || start + BN > seen
                || offset + BN > page_size
                || page >= pages
                || (window > 0 && start < begins)
            {
                s = s.map_indexed(|r, c, x| {
                    let token = (first + r) / group;
                    let position = token + past;
                    let key = start + c;
                    let oldest = if chunked { position / window * window } else { position + 1 - window };
                    let seen = token >= begin
                        && token < stop
                        && key < all
                        && offset + c < page_size
                        && page < pages
                        && (!causal || key <= position)
                        && (window <= 0 || key >= oldest);
                    if seen { x } else { f32::NEG_INFINITY }
                });
            }
            let larger = largest.max(s.row_max());
            // Weights are of the operands' dtype, as tensor cores take them.
            s = s.zip_map(larger, |x, largest| (x - largest).exp2_as::<T>().cast::<T>().cast::<f32>());
            let rescale = (largest - larger).map(|x| x.exp2());
            total = total * rescale + s.row_sum();
            acc = acc.zip_map(rescale, |a, r| a * r);
            acc = dot(s, v.tile::<BN, D>(offset, column), acc);
            largest = larger;
        }
    }
    // The largest score adds 1 to the total, so that this changes nothing where there are keys.
    // A division for each row: of vectors they take as long as ten products.
    let weight = total.map(|total| 1.0 / total.max(1.0));
    acc = acc.zip_map(weight, |a, weight| a * weight);
    out.select(head).tile::<BM, D>(m, column).write(acc.cast());
    sums.select(head).tile::<BM, 1>(m, column).write(largest.zip_map(total, |largest, total| largest + total.log2()));
}

/// The result of attention of whose keys there are `parts` results, `[parts · key heads, rows, head size]`, with the logarithms to
/// base 2 of their sums of weights, `[parts · key heads, rows, 1]`: added up by these weights, from the first part to the last.
#[kernel(op = "flash_attention_ragged_combine", dtypes(T = [f16, bf16, f32]))]
pub fn flash_attention_ragged_combine<T: Float>(y: Out<T, 3>, parts: In<T, 3>, sums: In<f32, 3>) {
    let [h, r] = program_id();
    let (row, heads) = (r * 1, y.dim(0));
    let count = parts.dim(0) / heads;
    let mut largest = f32::NEG_INFINITY;
    for part in 0..count {
        largest = largest.max(sums.select(part * heads + h).row(row).at(0));
    }
    let mut total = 0.0 as f32;
    for part in 0..count {
        total = total + (sums.select(part * heads + h).row(row).at(0) - largest).exp2();
    }
    y.select(h).row(r).write(lanes(y.dim(2)).map(|i| {
        let mut sum = 0.0 as f32;
        for part in 0..count {
            let weight = (sums.select(part * heads + h).row(row).at(0) - largest).exp2();
            sum = sum + (parts.select(part * heads + h).row(row).at(i) as f32) * weight;
        }
        (sum / total).cast::<T>()
    }));
}
