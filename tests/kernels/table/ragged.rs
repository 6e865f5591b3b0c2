//! Ragged batches whose groups have matrices of their own. Offsets and ids are drawn at random: few of them are those of a batch, and all
//! of them must be harmless.

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
    ]
}
