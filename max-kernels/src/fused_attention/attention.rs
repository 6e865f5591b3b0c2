//! Attention.

use max::kernel::prelude::*;

/// `softmax(q · kᵀ * scale + mask) · v` of each head, without the matrix of scores in memory: scores are computed a block
/// of keys at a time, and what was added up before is rescaled when a larger score appears (Dao et al., 2022). A program
/// makes `D` columns of the result; of longer heads it adds up the scores a part of the head after the other. Without
/// keys the result is 0.
///
/// Where there are fewer heads of keys than of queries, as many neighbouring heads of queries share one (Ainslie et al.,
/// 2023). Their rows may stand below each other as if they were one head, `queries` of each: then the keys are read once
/// for all of them. `causal` lets a query see the keys up to its own position; `queries_last` says that the last query stands
/// at the last key, and not the first at the first. A key whose `mask`, `[heads, queries, keys]`, is negative infinity is not
/// seen. Queries that see no keys have the result 0.
#[kernel(
    op = "attention",
    dtypes(T = [f16, bf16, f32]),
    tile(
        BM = 24, BN = 256, D = 256,
        when(q.dim(1) <= 8, BM = 4),
        when(q.dim(1) <= 16, k.dim(1) <= 64, q.dim(2) <= 128, BM = 16, BN = 32, D = 128),
        when(k.dim(1) <= 32, q.dim(2) <= 64, BN = 32, D = 64),
        when(k.dim(1) <= 32, q.dim(2) <= 128, BM = 32, BN = 32, D = 128),
        when(k.dim(1) <= 48, q.dim(2) <= 64, BM = 48, BN = 48, D = 64),
        when(k.dim(1) <= 64, q.dim(2) <= 64, BM = 64, BN = 64, D = 64),
        when(k.dim(1) <= 48, q.dim(2) <= 128, BM = 48, BN = 48, D = 128),
        when(k.dim(1) <= 192, q.dim(2) <= 64, BN = 96, D = 64),
        when(k.dim(1) <= 128, q.dim(2) <= 128, BN = 128, D = 128),
        when(k.dim(1) <= 256, q.dim(2) <= 64, D = 64),
        when(k.dim(1) <= 384, q.dim(2) <= 64, BN = 96, D = 64),
        when(k.dim(1) <= 512, q.dim(2) <= 64, D = 64),
        when(k.dim(1) <= 576, q.dim(2) <= 64, BN = 96, D = 64),
        when(q.dim(2) <= 64, D = 64),
        when(k.dim(1) <= 256, q.dim(2) <= 128, D = 128),
        when(k.dim(1) <= 384, q.dim(2) <= 128, BN = 128, D = 128),
        when(k.dim(1) <= 512, q.dim(2) <= 128, D = 128),
        when(k.dim(1) <= 640, q.dim(2) <= 128, BN = 128, D = 128),
        when(q.dim(2) <= 128, D = 128),
        v4(BM = 32),
        v2(BM = 8, BN = 64),
        gpu(BM = 64, BN = 64, D = 128),
        gpu(q.dim(2) <= 64, D = 64),
        sm_90a(T = [f16, bf16], BM = 128, BN = 128),
    )
)]
pub fn attention<T: Float>(
    out: Out<T, 3>,
    q: In<T, 3>,
    k: In<T, 3>,
    v: In<T, 3>,
    mask: Option<In<f32, 3>>,
    #[param] scale: f64,
    #[param(default = false)] causal: bool,
    #[param(default = 0)] queries: i64,
    #[param(default = false)] queries_last: bool,
) {
    let [h, m, part] = program_id();
    let shared = h / (q.dim(0) / k.dim(0));
    // Scores are powers of 2: those of e differ by a factor.
    let scale = (scale * std::f64::consts::LOG2_E) as f32;
    let queries = if queries > 0 { queries } else { q.dim(1) };
    let rows = q.select(h);
    let q = rows.tile::<BM, D>(m, 0).load();
    let k = k.select(shared);
    let v = v.select(shared);
    let n = k.dim(0);
    let first = m * BM;
    let last = (first + BM).min(rows.dim(0)) - 1;
    // The positions of the rows; those of two heads may be among them.
    let one = first / queries == last / queries;
    let past = if queries_last { n - queries } else { 0 };
    let from = if one { first % queries + past } else { past };
    let end = if causal && one { n.min(last % queries + past + 1) } else { n };
    let mut acc = Tile::<f32, BM, D>::zeros();
    // Finite, so that the weights of a row that has seen no key are 0.
    let mut largest = Tile::<f32, BM, 1>::full(f32::MIN);
    let mut total = Tile::<f32, BM, 1>::zeros();
    for j in range(0, end, BN) {
        let mut s = Tile::<f32, BM, BN>::zeros();
        s = dot(q, k.tile::<BN, D>(j, 0).t(), s);
        for d in range(D, rows.dim(1), D) {
            let more = rows.tile::<BM, D>(first, d).load();
            s = dot(more, k.tile::<BN, D>(j, d).t(), s);
        }
        if let Some(mask) = mask {
            let mask = mask.select(h);
            s = s.zip_map(mask.tile::<BM, BN>(first, j).load(), |x, mask| {
                // Finite numbers stay finite: the smallest of them is no negative infinity.
                let power = (mask * std::f64::consts::LOG2_E).clamp(f32::MIN, f32::MAX);
                x * scale + if mask.is_finite() { power } else { mask }
            });
        } else {
            s = s.map(|x| x * scale);
        }
        // Only the last block of keys, and of causal attention those around the diagonal, have keys to leave out.
        if j + BN > n || (causal && j + BN > from + 1) {
            s = s.map_indexed(|r, c, x| {
                if j + c < n && (!causal || j + c <= (first + r) % queries + past) { x } else { f32::NEG_INFINITY }
            });
        }
        let larger = largest.max(s.row_max());
        // Weights are of the operands' dtype, as tensor cores take them.
        s = s.zip_map(larger, |x, largest| (x - largest).exp2_as::<T>().cast::<T>().cast::<f32>());
        let rescale = (largest - larger).map(|x| x.exp2());
        total = total * rescale + s.row_sum();
        acc = acc.zip_map(rescale, |a, r| a * r);
        acc = dot(s, v.tile::<BN, D>(j, part), acc);
        largest = larger;
    }
    // The largest score adds 1 to the total, so that this changes nothing where there are keys.
    // A division for each row: of vectors they take as long as ten products.
    let weight = total.map(|total| 1.0 / total.max(1.0));
    acc = acc.zip_map(weight, |a, weight| a * weight);
    out.select(h).tile::<BM, D>(m, part).write(acc.cast());
}

/// Attention of a ragged batch whose keys and values lie behind each other, without a cache: as [`attention`](enum@attention), with a
/// span of rows and of keys for each sequence, and what later keys need to go on.
///
/// `q` is `[key heads, rows, head size]`, of as many `group` queries for each token as heads share a key head, and `k` and `v` are
/// `[key heads, keys, size]`. Row `s` of `spans` says of a sequence: its first token and the one behind its last, its first key and the
/// one behind its last, and the positions of the first token and the first key. Any spans are harmless.
///
/// * `causal`: a query sees keys up to its own position; else all of its sequence.
/// * `window`: of those it sees the last `window`, its own position's included; all for 0. If `chunked`, the window begins at a
///   multiple of `window`.
///
/// `logarithms` are those of the sums of the exponentials of scores, `[key heads, rows, 1]`: of no keys negative infinity, and then the
/// result is 0. Values are finite, as a weight of 0 does not leave out others.
#[kernel(
    op = "attention_ragged",
    dtypes(T = [f16, bf16, f32]),
    grid(q.dim(0), q.dim(1) / BM, out.dim(2) / D),
    tile(
        BM = 24, BN = 128, D = 256,
        when(q.dim(1) <= 8, BM = 4),
        when(q.dim(2) <= 64, D = 64),
        when(q.dim(2) <= 128, D = 128),
        v4(BM = 32),
        v2(BM = 8, BN = 64),
        gpu(BM = 64, BN = 64, D = 128),
    )
)]
#[allow(clippy::too_many_arguments, reason = "what a layer computes, and the mask")]
pub fn attention_ragged<T: Float>(
    out: Out<T, 3>,
    logarithms: Out<f32, 3>,
    q: In<T, 3>,
    k: In<T, 3>,
    v: In<T, 3>,
    spans: In<i64, 2>,
    #[param] scale: f64,
    #[param] group: i64,
    #[param(default = true)] causal: bool,
    #[param(default = 0)] window: i64,
    #[param(default = false)] chunked: bool,
) {
    let [h, m, part] = program_id();
    let rows = q.select(h);
    let q = rows.tile::<BM, D>(m, 0).load();
    let k = k.select(h);
    let v = v.select(h);
    let first = m * BM;
    let last = (first + BM).min(rows.dim(0)) - 1;
    let first_token = first / group;
    let last_token = last / group;
    // Scores are powers of 2: those of e differ by a factor.
    let scale = (scale * std::f64::consts::LOG2_E) as f32;
    let mut acc = Tile::<f32, BM, D>::zeros();
    // Finite, so that the weights of a row that has seen no key are 0.
    let mut largest = Tile::<f32, BM, 1>::full(f32::MIN);
    let mut total = Tile::<f32, BM, 1>::zeros();
    for b in 0..spans.dim(0) {
        let (begin, stop) = (spans.at(b, 0), spans.at(b, 1));
        let (first_key, end_key) = (spans.at(b, 2).max(0), spans.at(b, 3).min(k.dim(0)));
        // What is added to a token, and to a key, for its position.
        let past = spans.at(b, 4) - begin;
        let shift = spans.at(b, 5) - first_key;
        // The block's tokens of this sequence, and the keys that these see.
        let low = begin.max(first_token);
        let high = stop.min(last_token + 1);
        let oldest = if chunked { (low + past) / window * window } else { low + past + 1 - window };
        let from = if window > 0 { first_key.max(oldest - shift) } else { first_key };
        let seen = if causal { end_key.min(low + past + 1 - shift) } else { end_key };
        let end = if low < high { if causal { end_key.min(high + past - shift) } else { end_key } } else { 0 };
        let newest = high - 1 + past;
        let begins = (if chunked { newest / window * window } else { newest + 1 - window }) - shift;
        for j in range(from, end, BN) {
            let mut s = Tile::<f32, BM, BN>::zeros();
            s = dot(q, k.tile::<BN, D>(j, 0).t(), s);
            for d in range(D, rows.dim(1), D) {
                let more = rows.tile::<BM, D>(first, d).load();
                s = dot(more, k.tile::<BN, D>(j, d).t(), s);
            }
            s = s.map(|x| x * scale);
            // Nothing is left out of blocks that all rows see.
            if first_token < begin || last_token >= stop || j + BN > seen || (window > 0 && j < begins) {
                s = s.map_indexed(|r, c, x| {
                    let token = (first + r) / group;
                    let position = token + past;
                    let key = j + c + shift;
                    let oldest = if chunked { position / window * window } else { position + 1 - window };
                    let seen = token >= begin
                        && token < stop
                        && j + c < end_key
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
            acc = dot(s, v.tile::<BN, D>(j, part), acc);
            largest = larger;
        }
    }
    let sums = largest.zip_map(total, |largest, total| {
        if total > 0.0 { (largest + total.log2()) * std::f64::consts::LN_2 } else { f32::NEG_INFINITY }
    });
    logarithms.select(h).tile::<BM, 1>(m, part).write(sums);
    // The largest score adds 1 to the total, so that this changes nothing where there are keys.
    // A division for each row: of vectors they take as long as ten products.
    let weight = total.map(|total| 1.0 / total.max(1.0));
    acc = acc.zip_map(weight, |a, weight| a * weight);
    out.select(h).tile::<BM, D>(m, part).write(acc.cast());
}
