//! Attention over paged caches, and what is written to them. Tables, offsets and lengths are drawn at random: few of them are
//! those of a batch, and all of them must be harmless.

use max::dtype::DType;
use max::kernel::ParamArg;

use super::rows::exact;
use crate::case::{Case, Problem, elements};
use crate::number::{Num, Values, Want};

/// Integers of an operand.
pub fn integers(p: &Problem, operand: usize) -> Vec<i64> {
    p.values[operand].iter().map(|v| v.int() as i64).collect()
}

/// The dims of an operand.
pub fn dims<const N: usize>(p: &Problem, operand: usize) -> [usize; N] {
    std::array::from_fn(|i| p.dims(operand)[i] as usize)
}

/// The page and the row in it of a token; operands from `table` on are the table, offsets and lengths.
fn place(p: &Problem, table: usize, token: usize, page_size: usize) -> Option<(usize, usize)> {
    let ([batch, columns], offsets) = (dims(p, table), integers(p, table + 1));
    let sequence = (0..batch).rev().find(|&b| offsets[b] <= token as i64)?;
    if token as i64 >= offsets[sequence + 1] {
        return None;
    }
    let position = (integers(p, table + 2)[sequence] + token as i64 - offsets[sequence]) as usize;
    let column = position.checked_div(page_size).filter(|column| *column < columns)?;
    Some((integers(p, table)[sequence * columns + column] as usize, position % page_size))
}

/// The cache of `operand`, with what `row` gives for a token and a head in its place.
fn stored(
    p: &Problem,
    operand: usize,
    table: usize,
    tokens: usize,
    row: impl Fn(usize, usize) -> Vec<Want>,
) -> Vec<Want> {
    let [pages, heads, page_size, size] = dims(p, operand);
    let mut cache = exact(p.values[operand].iter().copied());
    for t in 0..tokens {
        let Some((page, at)) = place(p, table, t, page_size).filter(|(page, _)| *page < pages) else { continue };
        for h in 0..heads {
            for (i, want) in row(t, h).into_iter().enumerate() {
                cache[((page * heads + h) * page_size + at) * size + i] = want;
            }
        }
    }
    cache
}

fn store(p: &Problem) -> Vec<Vec<Want>> {
    let [tokens, heads, size] = dims(p, 1);
    let row = |t, h| exact(p.values[1][(t * heads + h) * size..][..size].iter().copied());
    vec![stored(p, 0, 2, tokens, row)]
}

/// What is in the cache of operand 1 for the tokens of the result; operands from `table` on are the table, offsets and lengths.
fn cached(p: &Problem, table: usize) -> Vec<Num> {
    let ([tokens, heads, size], [pages, _, page_size, _]) = (dims(p, 0), dims::<4>(p, 1));
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let element = |i: usize| {
        let (t, h, i) = (i / size / heads, i / size % heads, i % size);
        match place(p, table, t, page_size).filter(|(page, _)| *page < pages) {
            Some((page, at)) => p.values[1][((page * heads + h) * page_size + at) * size + i],
            None => zero,
        }
    };
    (0..tokens * heads * size).map(element).collect()
}

fn read(p: &Problem) -> Vec<Vec<Want>> {
    vec![exact(cached(p, 2))]
}

/// What is in the cache, and what is added to the tokens from those of a sequence on.
fn radd(p: &Problem) -> Vec<Vec<Want>> {
    let ([_, heads, size], rows) = (dims(p, 0), dims::<3>(p, 2)[0] as i64);
    let (a, offsets) = (p.floats(2), integers(p, 4));
    let first = offsets.get(p.number("batch_offset") as usize).copied().unwrap_or_default();
    let added = |(i, x): (usize, Num)| {
        let (row, within) = ((i / (heads * size)) as i64 - first, i % (heads * size));
        let more = if (0..rows).contains(&row) { a[row as usize * heads * size + within] } else { 0.0 };
        Want { value: Num::Float(x.float() + more), scale: x.float().abs() + more.abs() }
    };
    vec![cached(p, 3).into_iter().enumerate().map(added).collect()]
}

/// A head of an operand, rotated for a token.
fn rotated(p: &Problem, operand: usize, token: usize, head: usize) -> Vec<Want> {
    let ([_, heads, size], half) = (dims(p, operand), dims::<2>(p, 6)[1]);
    let x = &p.values[operand][(token * heads + head) * size..][..size];
    let [cos, sin] = [6, 7].map(|table| &p.values[table][token * half..][..half]);
    let interleaved = p.flag("interleaved");
    let element = |i: usize| {
        if i >= 2 * half {
            return Want::exact(x[i]);
        }
        let (pair, first) = if interleaved { (i / 2, i.is_multiple_of(2)) } else { (i % half, i < half) };
        let other = if interleaved {
            i ^ 1
        } else if first {
            i + half
        } else {
            i - half
        };
        let (a, b) = (x[i].float() * cos[pair].float(), x[other].float() * sin[pair].float());
        Want { value: Num::Float(if first { a - b } else { a + b }), scale: a.abs() + b.abs() }
    };
    (0..size).map(element).collect()
}

fn rope(p: &Problem) -> Vec<Vec<Want>> {
    let [key_heads, tokens, group, _] = dims(p, 0);
    let mut queries = Vec::new();
    for h in 0..key_heads {
        for t in 0..tokens {
            queries.extend((0..group).flat_map(|g| rotated(p, 3, t, h * group + g)));
        }
    }
    // Where there are no queries, nobody writes.
    let tokens = if group == 0 { 0 } else { tokens };
    let size = dims::<4>(p, 2)[3];
    let values = |t: usize, h: usize| &p.values[5][(t * key_heads + h) * size..][..size];
    // Values that are no numbers become 0, and their keys are none.
    let is_finite = |v: &Num| v.float().is_finite();
    let keys = stored(p, 1, 8, tokens, |t, h| match values(t, h).iter().all(is_finite) {
        true => rotated(p, 4, t, h),
        false => vec![Want::exact(Num::Float(f64::NAN)); size],
    });
    let finite =
        |t: usize, h: usize| exact(values(t, h).iter().map(|v| if is_finite(v) { *v } else { Num::Float(0.0) }));
    vec![queries, keys, stored(p, 2, 8, tokens, finite)]
}

/// The keys that a token sees of one of so many parts, as indices of their pages' rows; in order.
fn seen(p: &Problem, token: i64, [part, parts]: [i64; 2]) -> Vec<usize> {
    let ([batch, columns], [pages, heads, page_size, _]) = (dims(p, 5), dims::<4>(p, 3));
    let [table, offsets, lengths] = [5, 6, 7].map(|operand| integers(p, operand));
    // Those of cross attention may be negative, in the two's complement.
    let lengths: Vec<i64> = lengths.into_iter().map(|length| i64::from(length as u32 as i32)).collect();
    let (window, chunked, causal) = (p.number("window") as i64, p.flag("chunked"), p.flag("causal"));
    let mut all = Vec::new();
    for b in 0..batch {
        if !(offsets[b]..offsets[b + 1]).contains(&token) {
            continue;
        }
        let position = token - offsets[b] + lengths[b];
        let first = if window == 0 {
            0
        } else if chunked {
            position / window * window
        } else {
            position + 1 - window
        };
        let keys = (offsets[b + 1] - offsets[b] + lengths[b]).min((columns * page_size) as i64);
        let end = if causal { position + 1 } else { keys };
        // The runs of 128 keys that any new token of the sequence sees are divided evenly.
        let run = |key: i64| {
            let (page, row) = (key / page_size as i64, key % page_size as i64);
            page * page_size.div_ceil(128) as i64 + row / 128
        };
        let eldest = if window == 0 {
            0
        } else if chunked {
            lengths[b] / window * window
        } else {
            lengths[b] + 1 - window
        };
        let eldest = eldest.max(0);
        let count = if keys > eldest { run(keys - 1) + 1 - run(eldest) } else { 0 };
        let own = |key: i64| {
            let at = run(key) - run(eldest);
            (count * part / parts..count * (part + 1) / parts).contains(&at)
        };
        for key in (first.max(0)..end.min((columns * page_size) as i64)).filter(|&key| own(key)) {
            let page = table[b * columns + key as usize / page_size] as usize;
            if page < pages {
                all.push(page * heads * page_size + key as usize % page_size);
            }
        }
    }
    all
}

fn attention(p: &Problem) -> Vec<Vec<Want>> {
    let ([key_heads, rows, d], page_size) = (dims(p, 2), dims::<4>(p, 3)[2]);
    let parts = dims::<3>(p, 0)[0].checked_div(key_heads).unwrap_or(0);
    let (scale, group, cap) = (p.number("scale"), p.number("group") as usize, p.number("softcap"));
    let (q, k, v, all_sinks) = (p.floats(2), p.floats(3), p.floats(4), p.floats(8));
    // Weights are rounded to the dtype: by that much relative to themselves, and below the normal numbers.
    let (step, least) = match p.dtypes[0] {
        DType::F16 => (16384.0, 0.5),
        DType::BF16 => (131072.0, 0.0),
        _ => (0.0, 0.0),
    };
    let (mut all, mut sums) = (Vec::new(), Vec::new());
    for (part, h) in (0..parts).flat_map(|part| (0..key_heads).map(move |h| (part, h))) {
        // A sink is of the first part.
        let sinks = if part == 0 { &all_sinks[..] } else { &[] };
        for i in 0..rows {
            let seen = seen(p, (i / group) as i64, [part as i64, parts as i64]);
            let q = &q[(h * rows + i) * d..][..d];
            let row = |at: usize| (at + h * page_size) * d;
            let capped = |x: f64| if cap > 0.0 { (x / cap).tanh() * cap } else { x };
            let products = |at: usize| q.iter().zip(&k[row(at)..][..d]).map(|(a, b)| a * b * scale);
            let scores: Vec<f64> = seen.iter().map(|&at| capped(products(at).sum())).collect();
            let steepest = seen.iter().map(|&at| products(at).map(f64::abs).sum::<f64>()).fold(0.0, f64::max);
            let sink = sinks.get(h * group + i % group).copied();
            let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
            let sum =
                if total == 0.0 { f64::from(f32::MIN) } else { largest * std::f64::consts::LOG2_E + total.log2() };
            let total = if total == 0.0 { 1.0 } else { total };
            let error = 4.0 + seen.len() as f64 / 16.0 + steepest * (2.0 + d as f64 / 16.0) + 8.0 * cap + step;
            sums.push(Want { value: Num::Float(sum), scale: 2.0 * error + sum.abs() });
            for c in 0..d {
                let terms = || weights.iter().zip(&seen).map(|(w, &at)| w / total * v[row(at) + c]);
                let magnitude = terms().map(f64::abs).sum::<f64>();
                let all_keys = seen.iter().map(|&at| v[row(at) + c].abs()).sum::<f64>() / total;
                let scale = magnitude * error + all_keys * least;
                all.push(Want { value: Num::Float(terms().fold(0.0, |a, v| a + v)), scale });
            }
        }
    }
    vec![all, sums]
}

/// Parts, by the logarithms to base 2 of their weights.
fn combine(p: &Problem) -> Vec<Vec<Want>> {
    let [heads, rows, d] = dims(p, 0);
    let parts = dims::<3>(p, 1)[0].checked_div(heads).unwrap_or(0);
    let (values, sums) = (p.floats(1), p.floats(2));
    let mut all = Vec::new();
    for (h, i) in (0..heads).flat_map(|h| (0..rows).map(move |i| (h, i))) {
        let at = |part: usize| (part * heads + h) * rows + i;
        let largest = (0..parts).map(|part| sums[at(part)]).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = (0..parts).map(|part| (sums[at(part)] - largest).exp2()).collect();
        let total: f64 = weights.iter().sum();
        for c in 0..d {
            let terms = || weights.iter().enumerate().map(|(part, w)| w / total * values[at(part) * d + c]);
            let scale = terms().map(f64::abs).sum::<f64>() * (8.0 + parts as f64);
            all.push(Want { value: Num::Float(terms().fold(0.0, |a, v| a + v)), scale });
        }
    }
    vec![all]
}

/// The most sequences, pages of one, tokens of a page and pages, from sizes.
fn paging(s: &[i64]) -> [i64; 4] {
    [s[4] % 5, s[1] % 4, 1 + s[1] % 140, 1 + s[0] % 5]
}

/// A batch whose sequences share the tokens evenly, and have all the keys that their pages hold.
fn as_batch(p: &mut Problem) {
    let ([_, rows, _], [pages, _, page_size, _], [batch, columns]) = (dims(p, 2), dims::<4>(p, 3), dims(p, 5));
    let tokens = rows / p.number("group") as usize;
    let int = |i: usize| Num::Int(i as i128);
    p.set(5, |i| int(i % pages));
    p.set(6, |b| int(tokens * b / batch.max(1)));
    p.set(7, |_| int((columns * page_size).saturating_sub(tokens / batch.max(1))));
}

/// As [`as_batch`], with some keys of other tokens: fewer than there are new tokens, or more.
fn as_cross(p: &mut Problem) {
    as_batch(p);
    let ([_, rows, _], [batch, columns], page_size) = (dims(p, 2), dims(p, 5), dims::<4>(p, 3)[2]);
    let tokens = rows / p.number("group") as usize;
    let new = |b: usize| tokens * (b + 1) / batch.max(1) - tokens * b / batch.max(1);
    let keys = |b: usize| (columns * page_size).min([3, 40, 17][b % 3]);
    p.set(7, |b| Num::Int(i128::from((keys(b) as u32).wrapping_sub(new(b) as u32))));
}

/// Sizes of batches: several sequences in a block of rows, several pages, and blocks of keys in each; heads of several tiles.
const BATCHES: [[i64; 5]; 4] = [[70, 67, 64, 1, 2], [20, 131, 257, 1, 2], [70, 67, 130, 1, 2], [9, 131, 300, 1, 3]];

/// Lengths of pages, at borders of blocks of keys, and heads of all kinds: `[rows, page size, head size, key heads, sequences]`.
const SIZES: [[i64; 5]; 12] = [
    [1, 127, 64, 1, 1],
    [4, 127, 64, 2, 4],
    [8, 15, 128, 1, 2],
    [25, 131, 33, 1, 3],
    [61, 63, 64, 2, 4],
    [70, 127, 80, 1, 1],
    [33, 127, 256, 1, 2],
    [7, 31, 257, 1, 3],
    [40, 7, 1, 1, 4],
    [50, 127, 96, 1, 0],
    [97, 139, 64, 1, 4],
    [30, 126, 128, 2, 3],
];

pub fn cases() -> Vec<Case> {
    let index = |most: f64| Values::Within(0.0, most);
    // One page of one sequence where something is written: what two tokens write to one place is not defined.
    vec![
        Case::program(
            "kv_cache_ragged_store",
            |s| {
                let (batch, heads, size) = (s[4] % 2, s[3] % 3, s[2] % 70);
                vec![
                    vec![1 + s[0] % 3, heads, 1 + s[1] % 40, size],
                    vec![s[0], heads, size],
                    vec![batch, s[1] % 2],
                    vec![batch + 1],
                    vec![batch],
                ]
            },
            store,
        )
        .values(&[Values::Any, Values::Any, index(4.0), index(30.0), index(40.0)]),
        Case::program(
            "kv_cache_ragged_read",
            |s| {
                let (batch, heads, size) = (s[4] % 4, s[3] % 3, s[2] % 70);
                vec![
                    vec![s[0], heads, size],
                    vec![1 + s[0] % 3, heads, 1 + s[1] % 40, size],
                    vec![batch, s[1] % 3],
                    vec![batch + 1],
                    vec![batch],
                ]
            },
            read,
        )
        .values(&[Values::Any, Values::Any, index(4.0), index(30.0), index(60.0)]),
        Case::program(
            "kv_cache_ragged_radd",
            |s| {
                let (batch, heads, size) = (s[4] % 4, s[3] % 3, s[2] % 70);
                vec![
                    vec![s[0], heads, size],
                    vec![1 + s[0] % 3, heads, 1 + s[1] % 40, size],
                    vec![s[0] / 2 + 1, heads, size],
                    vec![batch, s[1] % 3],
                    vec![batch + 1],
                    vec![batch],
                ]
            },
            radd,
        )
        .values(&[
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            index(4.0),
            index(30.0),
            index(60.0),
        ])
        .params(|rng| vec![("batch_offset", ParamArg::Int(rng.one_of(&[0, 0, 1, 3])))]),
        Case::program(
            "fused_qk_ragged_rope",
            |s| {
                let (batch, heads, size, group) = (s[4] % 2, s[3] % 3, s[2] % 140, s[2] % 3 + 1);
                let (cache, half) = (vec![1 + s[0] % 3, heads, 1 + s[1] % 40, size], s[1] % (size / 2 + 1));
                vec![
                    vec![heads, s[0], group, size],
                    cache.clone(),
                    cache,
                    vec![s[0], heads * group, size],
                    vec![s[0], heads, size],
                    vec![s[0], heads, size],
                    vec![s[0], half],
                    vec![s[0], half],
                    vec![batch, s[1] % 2],
                    vec![batch + 1],
                    vec![batch],
                ]
            },
            rope,
        )
        .ulps(2.0)
        .values(&[
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Mostly(-2.0, 2.0),
            Values::Within(-1.0, 1.0),
            Values::Within(-1.0, 1.0),
            index(4.0),
            index(30.0),
            index(40.0),
        ])
        .params(|rng| vec![("interleaved", ParamArg::Bool(rng.below(2) == 1))]),
        Case::program(
            "flash_attention_ragged",
            |s| {
                let [batch, columns, page_size, pages] = paging(s);
                let (heads, size) = (s[3] % 3, s[2].clamp(1, 512));
                let cache = vec![pages, heads, page_size, size];
                let parts = [1, 2, 1, 3][s[1] as usize % 4];
                vec![
                    vec![parts * heads, s[0], size],
                    vec![parts * heads, s[0], 1],
                    vec![heads, s[0], size],
                    cache.clone(),
                    cache,
                    vec![batch, columns],
                    vec![batch + 1],
                    vec![batch],
                    vec![s[3] % 7],
                    vec![s[4] % 3, 0],
                ]
            },
            attention,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| {
            let keys = elements(&shapes[5]) * shapes[3][2];
            2 * elements(&shapes[2]) * keys.max(1) + 2 * elements(&shapes[3])
        })
        .values(&[
            Values::Any,
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            index(6.0),
            index(50.0),
            index(300.0),
            Values::Within(-2.0, 2.0),
            index(1.0),
        ])
        .params(|rng| {
            vec![
                ("scale", ParamArg::Float(rng.uniform(0.05, 0.5))),
                ("group", ParamArg::Int(rng.one_of(&[1, 2, 3, 4, 7]))),
                ("causal", ParamArg::Bool(rng.below(4) > 0)),
                ("window", ParamArg::Int(rng.one_of(&[0, 0, 1, 20, 128, 200]))),
                ("chunked", ParamArg::Bool(rng.below(3) == 0)),
                ("softcap", ParamArg::Float(rng.one_of(&[0.0, 0.0, 2.5]))),
            ]
        })
        .sizes(SIZES)
        .made(BATCHES, |p| if p.flag("causal") { as_batch(p) } else { as_cross(p) }),
        Case::program(
            "flash_attention_ragged_combine",
            |s| {
                let (parts, heads, size) = (1 + s[4] % 9, s[3] % 4, s[2] % 300);
                vec![vec![heads, s[0], size], vec![parts * heads, s[0], size], vec![parts * heads, s[0], 1]]
            },
            combine,
        )
        .reduces()
        .ulps(1.0)
        .values(&[Values::Any, Values::Within(-2.0, 2.0), Values::Within(-9.0, 9.0)]),
    ]
}
