//! Ragged batches whose groups have matrices of their own, and attention over keys of their own. Offsets and ids are drawn at random: few of them are those of a batch, and all
//! of them must be harmless.

use max::dtype::DType;
use max::kernel::ParamArg;

use super::paged_attention::{dims, integers};
use super::rows::exact;
use crate::case::{Case, Problem, elements};
use crate::number::{Num, Values, Want};

/// Sums over the groups that a row is in.
fn grouped(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, k], [matrices, n, _]) = (dims(p, 1), dims::<3>(p, 2));
    let (a, w, offsets, ids) = (p.floats(1), p.floats(2), integers(p, 3), integers(p, 4));
    let mut all = Vec::new();
    for row in 0..rows {
        let has = |g: &usize| (offsets[*g]..offsets[g + 1]).contains(&(row as i64));
        let own: Vec<usize> = (0..ids.len()).filter(has).filter_map(|g| usize::try_from(ids[g]).ok()).collect();
        for column in 0..n {
            let of = |matrix: usize| (0..k).map(move |i| (row * k + i, (matrix * n + column) * k + i));
            let terms = own.iter().filter(|matrix| **matrix < matrices).flat_map(|matrix| of(*matrix));
            let terms: Vec<f64> = terms.map(|(i, j)| a[i] * w[j]).collect();
            let scale = terms.iter().map(|v| v.abs()).sum::<f64>() * (2.0 + terms.len() as f64 / 16.0);
            all.push(Want { value: Num::Float(terms.iter().fold(0.0, |a, v| a + v)), scale });
        }
    }
    vec![all]
}

/// Groups that share the rows, in order; one of them has no matrix.
fn as_batch(p: &mut Problem) {
    let (rows, matrices, groups) = (dims::<2>(p, 1)[0], dims::<3>(p, 2)[0], dims::<1>(p, 4)[0]);
    p.set(3, |g| Num::Int((rows * g / groups.max(1)) as i128));
    p.set(4, |g| Num::Int(if g == 2 { -1 } else { (g * 7 % matrices.max(1)) as i128 }));
}

fn indices(p: &Problem) -> Vec<Vec<Want>> {
    let (ids, [rows, experts]) = (integers(p, 5), dims(p, 3));
    let tokens = dims::<2>(p, 5)[1];
    let mut all = vec![Vec::new(); 5];
    for row in 0..rows {
        let ids = &ids[row * tokens..][..tokens];
        let of = |expert: usize| (0..tokens).filter(move |i| ids[*i] == expert as i64).collect::<Vec<_>>();
        let active: Vec<usize> = (0..experts).filter(|expert| !of(*expert).is_empty()).collect();
        let mut order: Vec<usize> = active.iter().flat_map(|expert| of(*expert)).collect();
        let starts = (0..=experts).map(|g| active.iter().take(g).map(|expert| of(*expert).len()).sum::<usize>());
        let place = |i: usize| order.iter().position(|token| *token == i).unwrap_or(tokens);
        let restore: Vec<usize> = (0..tokens).map(place).collect();
        let most = active.iter().map(|expert| of(*expert).len()).max().unwrap_or(0);
        order.resize(tokens, 0);
        let int = |i: usize| Num::Int(i as i128);
        all[0].extend(order.iter().map(|i| int(*i)));
        all[1].extend(starts.map(int));
        all[2].extend(restore.iter().map(|i| int(*i)));
        all[3].extend((0..experts).map(|g| active.get(g).map_or(Num::Int(-1), |expert| int(*expert))));
        all[4].extend([int(most), int(active.len())]);
    }
    all.into_iter().map(exact).collect()
}

fn merged(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, columns], [a_rows, _], [b_rows, _]) = (dims(p, 0), dims::<2>(p, 1), dims::<2>(p, 2));
    let (of_a, of_b) = (integers(p, 3), integers(p, 4));
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let mut all = Vec::new();
    for row in 0..rows as i64 {
        // Of several groups the last one.
        let (mut from_a, mut from_b) = (None, None);
        for g in 0..of_a.len() - 1 {
            let (a, b) = (of_a[g + 1] - of_a[g], of_b[g + 1] - of_b[g]);
            let within = row - of_a[g] - of_b[g];
            if (0..a + b).contains(&within) {
                (from_a, from_b) = match within < a {
                    true => (usize::try_from(of_a[g] + within).ok(), None),
                    false => (None, usize::try_from(of_b[g] + within - a).ok()),
                };
            }
        }
        let element = |i: usize| match (from_a, from_b) {
            (Some(from), _) if from < a_rows => p.values[1][from * columns + i],
            (None, Some(from)) if from < b_rows => p.values[2][from * columns + i],
            _ => zero,
        };
        all.extend((0..columns).map(element));
    }
    vec![exact(all)]
}

/// Two batches of as many groups, whose last offsets are their rows.
fn as_batches(p: &mut Problem) {
    let groups = dims::<1>(p, 3)[0].saturating_sub(1);
    for (rows, offsets) in [(1, 3), (2, 4)] {
        let rows = dims::<2>(p, rows)[0];
        p.set(offsets, |g| Num::Int((rows * g / groups.max(1)) as i128));
    }
}

/// The keys of a row of `attention_ragged`.
fn seen(p: &Problem, token: i64) -> Vec<usize> {
    let ([sequences, _], keys) = (dims(p, 5), dims::<3>(p, 3)[1] as i64);
    let (spans, window) = (integers(p, 5), p.number("window") as i64);
    let (chunked, causal) = (p.flag("chunked"), p.flag("causal"));
    let mut all = Vec::new();
    for span in (0..sequences).map(|s| &spans[s * 6..][..6]).filter(|span| (span[0]..span[1]).contains(&token)) {
        let position = token - span[0] + span[4];
        let oldest = if chunked { position.checked_div(window).unwrap_or(0) * window } else { position + 1 - window };
        let first = span[2].max(0);
        let is_seen = |key: &i64| {
            let at = key - first + span[5];
            (!causal || at <= position) && (window <= 0 || at >= oldest)
        };
        all.extend((first..span[3].min(keys)).filter(is_seen).map(|key| key as usize));
    }
    all
}

/// The results, and the logarithms of the sums.
fn attention(p: &Problem) -> Vec<Vec<Want>> {
    let ([key_heads, rows, d], [_, keys, value_size]) = (dims(p, 2), dims::<3>(p, 4));
    let (scale, group) = (p.number("scale"), p.number("group") as usize);
    let (q, k, v) = (p.floats(2), p.floats(3), p.floats(4));
    // Weights are rounded to the dtype: by that much relative to themselves, and below the normal numbers.
    let (step, least) = match p.dtypes[0] {
        DType::F16 => (16384.0, 0.5),
        DType::BF16 => (131072.0, 0.0),
        _ => (0.0, 0.0),
    };
    let (mut all, mut logarithms) = (Vec::new(), Vec::new());
    for h in 0..key_heads {
        for i in 0..rows {
            let seen = seen(p, (i / group) as i64);
            let q = &q[(h * rows + i) * d..][..d];
            let products = |key: usize| q.iter().zip(&k[(h * keys + key) * d..][..d]).map(|(a, b)| a * b * scale);
            let scores: Vec<f64> = seen.iter().map(|&key| products(key).sum()).collect();
            let steepest = seen.iter().map(|&key| products(key).map(f64::abs).sum::<f64>()).fold(0.0, f64::max);
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let error = 4.0 + seen.len() as f64 / 16.0 + steepest * (2.0 + d as f64 / 16.0);
            for c in 0..value_size {
                let value = |key: usize| v[(h * keys + key) * value_size + c];
                let terms = || weights.iter().zip(&seen).map(|(w, &key)| w / total * value(key));
                let magnitude = terms().map(f64::abs).sum::<f64>();
                let all_keys = seen.iter().map(|&key| value(key).abs()).sum::<f64>() / total.max(1.0);
                let scale = magnitude * (error + step) + all_keys * least;
                all.push(Want { value: Num::Float(terms().fold(0.0, |a, v| a + v)), scale });
            }
            // Of no keys negative infinity.
            let value = if seen.is_empty() { f64::NEG_INFINITY } else { largest + total.ln() };
            let small = if seen.is_empty() { 0.0 } else { least * seen.len() as f64 / total };
            logarithms.push(Want { value: Num::Float(value), scale: error + step + small + value.abs() });
        }
    }
    vec![all, logarithms]
}

/// Sequences that share tokens and keys evenly; the tokens are their last ones, or some in the middle.
fn as_spans(p: &mut Problem) {
    let ([_, rows, _], [_, keys, _], [sequences, _]) = (dims(p, 2), dims::<3>(p, 3), dims(p, 5));
    let tokens = rows / p.number("group") as usize;
    let part = |all: usize, sequence: usize| (all * sequence / sequences.max(1)) as i128;
    p.set(5, |i| {
        let (sequence, new) = (i / 6, |s: usize| part(tokens, s + 1) - part(tokens, s));
        let of_keys = part(keys, sequence + 1) - part(keys, sequence);
        Num::Int(match i % 6 {
            0 | 1 => part(tokens, sequence + i % 6),
            2 | 3 => part(keys, sequence + i % 6 - 2),
            4 => 3 + (of_keys - new(sequence)).max(0) / (1 + sequence as i128 % 2),
            _ => 3,
        })
    });
}

pub fn cases() -> Vec<Case> {
    let index = |most: f64| Values::Within(0.0, most);
    vec![
        Case::program(
            "grouped_matmul_ragged",
            |s| {
                let (matrices, groups) = (s[3] % 5, s[4] % 7);
                vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![matrices, s[1], s[2]], vec![groups + 1], vec![groups]]
            },
            grouped,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| elements(&shapes[0]) * shapes[1][1].max(1) * shapes[4][0].max(1) + elements(&shapes[2]))
        .values(&[
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            index(80.0),
            Values::Within(-1.0, 5.0),
        ])
        .sizes([[1, 70, 40, 3, 2], [8, 65, 33, 2, 3], [9, 5, 70, 4, 4]])
        .made([[70, 130, 65, 3, 4], [8, 66, 40, 4, 6], [67, 40, 513, 2, 3]], as_batch),
        Case::program(
            "moe_create_indices",
            |s| {
                let (rows, tokens, experts) = (s[2] % 3, s[0], s[1] % 20);
                let of = |size: i64| vec![rows, size];
                vec![of(tokens), of(experts + 1), of(tokens), of(experts), of(2), of(tokens)]
            },
            indices,
        )
        .values(&[Values::Any, Values::Any, Values::Any, Values::Any, Values::Any, Values::Within(-2.0, 19.0)]),
        Case::program(
            "merge_ragged_tensors",
            |s| {
                let (a, b, columns, groups) = (s[0] % 60, s[1] % 60, s[2] % 70, s[3] % 6);
                vec![vec![a + b, columns], vec![a, columns], vec![b, columns], vec![groups + 1], vec![groups + 1]]
            },
            merged,
        )
        .values(&[Values::Any, Values::Any, Values::Any, index(60.0), index(60.0)])
        .made([[40, 50, 33, 4, 0], [3, 0, 5, 2, 0]], as_batches),
        Case::program(
            "attention_ragged",
            |s| {
                let (heads, size) = (s[3] % 3, s[2].clamp(1, 512));
                let values = (s[2] + s[4]) % 300;
                vec![
                    vec![heads, s[0], values],
                    vec![heads, s[0], 1],
                    vec![heads, s[0], size],
                    vec![heads, s[1], size],
                    vec![heads, s[1], values],
                    vec![s[4] % 5, 6],
                ]
            },
            attention,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| 2 * elements(&shapes[2]) * shapes[3][1].max(1) + 2 * elements(&shapes[3]))
        .values(&[
            Values::Any,
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(-5.0, 60.0),
        ])
        .params(|rng| {
            vec![
                ("scale", ParamArg::Float(rng.uniform(0.05, 0.5))),
                ("group", ParamArg::Int(rng.one_of(&[1, 2, 3, 4, 7]))),
                ("causal", ParamArg::Bool(rng.below(4) > 0)),
                ("window", ParamArg::Int(rng.one_of(&[0, 0, 1, 20, 128, 200]))),
                ("chunked", ParamArg::Bool(rng.below(3) == 0)),
            ]
        })
        .sizes([[1, 127, 64, 1, 1], [25, 131, 33, 1, 3], [70, 127, 80, 1, 1], [33, 127, 256, 1, 2], [7, 31, 257, 1, 3]])
        .made([[70, 268, 64, 1, 2], [40, 131, 257, 1, 2], [70, 67, 130, 1, 4]], as_spans),
    ]
}
