//! Ops that are more than their kernel, against their definitions.

use max::graph::ops::{self, AttentionOptions};
use max::prelude::*;

use crate::random::Rng;

type GraphResult<T> = Result<T, max::graph::GraphError>;

/// The results of a graph of one op on inputs.
pub fn run(inputs: &[Tensor], op: impl FnOnce(&[Value]) -> GraphResult<Vec<TensorValue>>) -> Vec<Tensor> {
    let types: Vec<TensorType> = inputs.iter().map(TensorType::from).collect();
    let graph = Graph::build("op", types, |_, x| op(x)).expect("a graph");
    InferenceSession::new().load(&graph).expect("a model").execute(inputs).expect("results")
}

/// Numbers between -1 and 1.
pub fn numbers(shape: &[usize], rng: &mut Rng) -> Tensor {
    let values = (0..shape.iter().product()).map(|_| rng.uniform(-1.0, 1.0) as f32).collect::<Vec<f32>>();
    Tensor::from_vec(values, shape).expect("a tensor")
}

/// Attention by its definition, of `[batch, heads, queries, size]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: AttentionOptions) -> Vec<f64> {
    masked_attention([q, k, v], options, |_| 0.0)
}

/// The same with a number added to each score: that of an image, a head, a query and a key.
fn masked_attention([q, k, v]: [&Tensor; 3], options: AttentionOptions, mask: impl Fn([usize; 4]) -> f64) -> Vec<f64> {
    let (sizes, keys) = (q.shape().to_vec(), k.shape()[2]);
    let [batch, heads, queries, d] = sizes[..] else { panic!("four axes") };
    let (shared, width) = (k.shape()[1], v.shape()[3]);
    let floats = |t: &Tensor| t.to_vec::<f32>().expect("floats").into_iter().map(f64::from).collect::<Vec<f64>>();
    let (q, k, v) = (floats(q), floats(k), floats(v));
    let mut all = Vec::new();
    for row in 0..batch * heads * queries {
        let (b, h, i) = (row / queries / heads, row / queries % heads, row % queries);
        let head = b * shared + h / (heads / shared);
        let own = if options.queries_last { (i + keys + 1).saturating_sub(queries) } else { i + 1 };
        let seen = if options.causal { keys.min(own) } else { keys };
        let score = |j: usize| (0..d).map(|c| q[row * d + c] * k[(head * keys + j) * d + c]).sum::<f64>();
        let weight = |j: usize| (score(j) / (d as f64).sqrt() + mask([b, h, i, j])).exp();
        let weights: Vec<f64> = (0..seen).map(weight).collect();
        let total: f64 = weights.iter().sum();
        for c in 0..width {
            let sum = (0..seen).map(|j| weights[j] * v[(head * keys + j) * width + c]).sum::<f64>();
            all.push(if total == 0.0 { 0.0 } else { sum / total });
        }
    }
    all
}

#[test]
fn attention_is_as_defined_however_heads_share_keys() {
    let mut rng = Rng(11);
    // Batch, heads, key heads, queries, keys, head size, value size.
    for [b, heads, shared, queries, keys, d, width] in [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 8, 2, 1, 300, 128, 128],
        [1, 8, 1, 1, 40, 64, 64],
        [1, 3, 3, 2, 9, 257, 30],
        [2, 6, 2, 5, 70, 33, 300],
        [1, 4, 2, 30, 30, 64, 64],
        [1, 4, 2, 40, 11, 64, 64],
        [1, 2, 2, 70, 300, 40, 40],
    ] {
        let q = numbers(&[b, heads, queries, d], &mut rng);
        let k = numbers(&[b, shared, keys, d], &mut rng);
        let v = numbers(&[b, shared, keys, width], &mut rng);
        for (causal, queries_last) in [(false, false), (true, false), (true, true), (false, true)] {
            let options = AttentionOptions { causal, queries_last, ..AttentionOptions::default() };
            let want = attention(&q, &k, &v, options);
            let got =
                run(&[q.clone(), k.clone(), v.clone()], |x| Ok(vec![ops::attention(&x[0], &x[1], &x[2], options)?]));
            assert_eq!(got[0].shape(), [b, heads, queries, width]);
            for (got, want) in got[0].to_vec::<f32>().expect("floats").into_iter().zip(want) {
                assert!((f64::from(got) - want).abs() < 1e-5, "{got}, not {want}: {:?}", (heads, queries, d, options));
            }
        }
    }
}

#[test]
fn masks_are_added_to_scores_however_they_broadcast() {
    let mut rng = Rng(12);
    // Batch, heads, key heads, queries, keys, head size.
    for [b, heads, shared, queries, keys, d] in
        [[2, 4, 2, 5, 70, 33], [1, 3, 3, 1, 300, 64], [2, 2, 1, 40, 11, 130], [2, 2, 2, 3, 0, 8], [0, 2, 2, 3, 4, 8]]
    {
        let [q, k, v] = [[heads, queries], [shared, keys], [shared, keys]]
            .map(|[heads, rows]| numbers(&[b, heads, rows, d], &mut rng));
        let all = [b, heads, queries, keys];
        for own in [&[2, 3][..], &[3], &[2], &[0, 2, 3], &[1, 2, 3], &[0, 1, 2, 3], &[0, 3]] {
            // The axes that the mask has; without those before the first, in one case.
            let shape: Vec<usize> = (0..4).map(|axis| if own.contains(&axis) { all[axis] } else { 1 }).collect();
            let elements = shape.iter().product::<usize>();
            // The first row sees nothing, if it is one of the mask's.
            let values: Vec<f32> = (0..elements)
                .map(|i| match (own.contains(&2) && (i / shape[3]).is_multiple_of(shape[2]), rng.below(3)) {
                    (true, _) | (_, 0) => f32::NEG_INFINITY,
                    _ => rng.uniform(-2.0, 2.0) as f32,
                })
                .collect();
            let at = |index: [usize; 4]| {
                let place = (0..4).fold(0, |at, axis| at * shape[axis] + index[axis].min(shape[axis] - 1));
                f64::from(values[place])
            };
            let mask = Tensor::from_slice(&values, if own == [2, 3] { &shape[2..] } else { &shape[..] });
            let inputs = [q.clone(), k.clone(), v.clone(), mask.expect("a tensor")];
            for causal in [false, true] {
                let options = AttentionOptions { causal, queries_last: keys > queries, ..AttentionOptions::default() };
                let want = masked_attention([&q, &k, &v], options, at);
                let got = run(&inputs, |x| Ok(vec![ops::attention_masked(&x[0], &x[1], &x[2], &x[3], options)?]));
                for (got, want) in got[0].to_vec::<f32>().expect("floats").into_iter().zip(want) {
                    assert!((f64::from(got) - want).abs() < 1e-5, "{got}, not {want}: {all:?} {own:?} {options:?}");
                }
            }
        }
    }
}

#[test]
fn masks_that_do_not_fit_are_errors() {
    let of = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape, &Device::cpu()).expect("a tensor");
    let fails = |mask: Tensor, text: &str| {
        let inputs = [of(DType::F32, &[1, 2, 3, 8]), of(DType::F32, &[1, 2, 5, 8]), mask];
        let types = inputs.each_ref().map(TensorType::from);
        let graph = Graph::build("g", types, |_, x| {
            ops::attention_masked(&x[0], &x[1], &x[1], &x[2], AttentionOptions::default())
        });
        let error = graph.expect_err("an error").to_string();
        assert!(error.starts_with("`attention_masked` at tests/kernels/ops.rs:") && error.contains(text), "{error}");
    };
    fails(of(DType::F32, &[3, 4]), "[3, 4] does not broadcast to [1, 2, 3, 5]");
    fails(of(DType::Bool, &[3, 5]), "the mask has dtype bool, but the op takes floats, which are added to scores");
    fails(of(DType::F32, &[1, 1, 1, 3, 5]), "[1, 1, 1, 3, 5] does not broadcast to [1, 2, 3, 5]");
}

/// Positions in order, of elements by their positions; equal ones stay as they are, and NaN is above infinity.
fn ordered(n: usize, at: impl Fn(usize) -> f64, ascending: bool) -> Vec<i64> {
    let key = |i: &i64| if at(*i as usize).is_nan() { (1, 0.0) } else { (0, at(*i as usize)) };
    let mut order: Vec<i64> = (0..n as i64).collect();
    order.sort_by(|a, b| {
        let order = key(a).partial_cmp(&key(b)).expect("numbers");
        if ascending { order } else { order.reverse() }
    });
    order
}

/// Numbers of few values, and of those that have no order.
fn ties(n: usize, rng: &mut Rng) -> Vec<f32> {
    (0..n).map(|_| rng.one_of(&[f32::NAN, f32::INFINITY, -0.0, 0.0, 1.5, -2.0, 7.0, f32::NEG_INFINITY])).collect()
}

#[test]
fn argsort_keeps_equal_elements_in_order() {
    let mut rng = Rng(3);
    for (n, columns) in [(0, 1), (1, 1), (63, 2), (64, 1), (65, 3), (1000, 2), (1024, 1), (1025, 1), (5000, 3)] {
        let values =
            if n == 1000 { ties(n * columns, &mut rng) } else { numbers(&[n * columns], &mut rng).to_vec().unwrap() };
        let x = Tensor::from_vec(values.clone(), [n, columns]).expect("a tensor");
        for ascending in [true, false] {
            let got = run(std::slice::from_ref(&x), |x| Ok(vec![ops::argsort(&x[0], ascending)?]));
            let got = got[0].to_vec::<i64>().expect("positions");
            for column in 0..columns {
                let want = ordered(n, |i| f64::from(values[i * columns + column]), ascending);
                let got: Vec<i64> = (0..n).map(|i| got[i * columns + column]).collect();
                assert_eq!(got, want, "{n} of {columns} columns, ascending: {ascending}");
            }
        }
    }
}

#[test]
fn the_first_elements_in_order_are_found_however_many() {
    let mut rng = Rng(4);
    // Values far apart, where the middle is next to the larger one; all the same; a row in order already.
    let apart =
        |n: usize| (0..n).map(|i| (-((i * 7 % n) as f32)).exp2() * if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let masked = |n: usize| (0..n).map(|i| if i % 5 == 0 { i as f32 } else { f32::NEG_INFINITY }).collect();
    for n in [17, 64, 65, 1000, 2049] {
        let rows: [Vec<f32>; 5] = [
            numbers(&[n], &mut rng).to_vec().unwrap(),
            ties(n, &mut rng),
            apart(n),
            masked(n),
            (0..n).map(|i| i as f32).collect(),
        ];
        for k in [16, 17, 100, n - 1, n].into_iter().filter(|k| *k <= n) {
            for (largest, by_rows) in [(true, true), (false, true), (true, false), (false, false)] {
                let at = |row: usize, i: usize| if by_rows { row * n + i } else { i * rows.len() + row };
                let mut all = vec![0.0; rows.len() * n];
                (0..rows.len() * n).for_each(|i| all[at(i / n, i % n)] = rows[i / n][i % n]);
                let x = Tensor::from_vec(all, if by_rows { [rows.len(), n] } else { [n, rows.len()] }).unwrap();
                let got = run(&[x], |x| {
                    let axis = if by_rows { -1 } else { 0 };
                    let first = if largest { ops::top_k(&x[0], k, axis)? } else { ops::bottom_k(&x[0], k, axis)? };
                    Ok(vec![first.0, first.1])
                });
                let (values, places) = (got[0].to_vec::<f32>().unwrap(), got[1].to_vec::<i64>().unwrap());
                for (r, row) in rows.iter().enumerate() {
                    let at = |i: usize| if by_rows { r * k + i } else { i * rows.len() + r };
                    let want = &ordered(n, |i| f64::from(row[i]), !largest)[..k];
                    let got: Vec<i64> = (0..k).map(|i| places[at(i)]).collect();
                    assert_eq!(got, want, "{k} of {n}, largest: {largest}, by rows: {by_rows}, row {r}");
                    let bits = |i: usize| row[want[i] as usize].to_bits();
                    assert!((0..k).all(|i| values[at(i)].to_bits() == bits(i)), "{k} of {n}, row {r}");
                }
            }
        }
    }
}

#[test]
fn the_first_elements_of_symbolic_rows_are_found() {
    let mut rng = Rng(5);
    // One after the other, and together.
    for k in [9, 20] {
        let ty = TensorType::new(DType::F32, ("rows", "n"), DeviceRef::CPU);
        let graph = Graph::build("top", [ty], |_, x| {
            let (values, positions) = ops::top_k(&x[0], k, -1)?;
            Ok::<_, max::graph::GraphError>(vec![values, positions])
        });
        let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
        for (rows, n) in [(1, 20), (3, 100), (3, 1000), (2, 7), (4, 0), (0, 30)] {
            let x = numbers(&[rows, n], &mut rng);
            let (all, got) = (x.to_vec::<f32>().unwrap(), model.execute(&x).unwrap());
            let places = got[1].to_vec::<i64>().unwrap();
            for r in 0..rows {
                let mut want = ordered(n, |i| f64::from(all[r * n + i]), false);
                // Past the end of a row.
                want.resize(want.len().max(k), n as i64);
                assert_eq!(&places[r * k..][..k], &want[..k], "{k} of {rows} rows of {n}");
            }
        }
    }
}

#[test]
fn scatters_make_updates_in_order_along_every_axis() {
    let x = Tensor::from_vec((0..12).map(|v| v as f32).collect::<Vec<f32>>(), [3, 4]).expect("a tensor");
    let u = Tensor::from_vec(vec![10.0f32, 20.0, 30.0, 40.0, 50.0, 60.0], [3, 2]).expect("a tensor");
    let i = Tensor::from_vec(vec![1i64, 1, -1, 9, 0, -4], [3, 2]).expect("a tensor");
    let all = [x.clone(), u, i];
    let values = |t: &[Tensor]| t[0].to_vec::<f32>().expect("floats");
    let got = run(&all, |x| Ok(vec![ops::scatter(&x[0], &x[1], &x[2], 1)?]));
    assert_eq!(values(&got), [0.0, 20.0, 2.0, 3.0, 4.0, 5.0, 6.0, 30.0, 60.0, 9.0, 10.0, 11.0]);
    let got = run(&all, |x| Ok(vec![ops::scatter_add(&x[0], &x[1], &x[2], 1)?]));
    assert_eq!(values(&got), [0.0, 31.0, 2.0, 3.0, 4.0, 5.0, 6.0, 37.0, 118.0, 9.0, 10.0, 11.0]);

    let u = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [1, 4]).expect("a tensor");
    let i = Tensor::from_vec(vec![2i32, 0, -1, 3], [1, 4]).expect("a tensor");
    let got = run(&[x.clone(), u, i], |x| Ok(vec![ops::scatter_mul(&x[0], &x[1], &x[2], 0)?]));
    assert_eq!(values(&got), [0.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 30.0, 11.0]);

    // Of two updates of one element the last stands; an index outside of its axis names nothing.
    let u = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [4]).expect("a tensor");
    let i = Tensor::from_vec(vec![0i64, 1, 0, 1, 2, 4, -1, -1], [4, 2]).expect("a tensor");
    let got = run(&[x.clone(), u, i], |x| Ok(vec![ops::scatter_nd(&x[0], &x[1], &x[2])?]));
    assert_eq!(values(&got), [0.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 4.0]);

    let mask = Tensor::from_vec(vec![true, false, true, false], [4]).expect("a tensor");
    let u = Tensor::from_vec((1..=5).map(|v| v as f32 * 10.0).collect::<Vec<f32>>(), [5]).expect("a tensor");
    let got = run(&[x, mask, u], |x| Ok(vec![ops::masked_scatter(&x[0], &x[1], &x[2])?]));
    assert_eq!(values(&got), [10.0, 1.0, 20.0, 3.0, 30.0, 5.0, 40.0, 7.0, 50.0, 9.0, 0.0, 11.0]);
}

/// Weights in `f32` beside halves are not rounded: the result is, once.
#[test]
fn norms_of_halves_take_wider_weights_as_they_are() {
    let mut rng = Rng(6);
    let x = numbers(&[5, 40], &mut rng).to_vec::<f32>().expect("floats");
    let x: Vec<bf16> = x.into_iter().map(bf16::from_f32).collect();
    let weight: Vec<f32> = (0..40).map(|i| 1.0 + i as f32 / 1024.0).collect();
    let inputs =
        [Tensor::from_slice(&x, [5, 40]).expect("a tensor"), Tensor::from_slice(&weight, [40]).expect("a tensor")];
    let got = run(&inputs, |x| {
        let groups = ops::group_norm(&x[0], &x[1], &x[1], 1, 1e-5)?;
        Ok(vec![ops::rms_norm(&x[0], &x[1], 1e-5)?, ops::layer_norm(&x[0], &x[1], &x[1], 1e-5)?, groups])
    });
    for (row, x) in x.chunks(40).enumerate() {
        let x: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
        let of = |f: &dyn Fn(f64) -> f64| x.iter().map(|v| f(*v)).sum::<f64>() / 40.0;
        let (mean, square) = (of(&|v| v), of(&|v| v * v));
        let deviation = of(&|v| (v - mean).powi(2));
        for (at, (v, w)) in x.iter().zip(&weight).enumerate() {
            let w = f64::from(*w);
            let normed = (v - mean) / (deviation + 1e-5).sqrt() * w + w;
            for (got, want) in got.iter().zip([v / (square + 1e-5).sqrt() * w, normed, normed]) {
                let got = got.as_slice::<bf16>().expect("the input's dtype")[row * 40 + at].to_f64();
                // Half of the last place of a `bf16`, and a little for sums.
                assert!((got - want).abs() <= want.abs() / 256.0 + 1e-6, "element {at} of {row}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn groups_of_channels_are_normalized_apart() {
    let mut rng = Rng(5);
    for (shape, groups) in [(vec![2, 6], 3), (vec![1, 4, 5], 1), (vec![3, 8, 9, 11], 4)] {
        let (channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
        let (x, gamma) = (numbers(&shape, &mut rng), numbers(&[channels], &mut rng));
        let beta = numbers(&[channels], &mut rng);
        let got = run(&[x.clone(), gamma.clone(), beta.clone()], |x| {
            Ok(vec![ops::group_norm(&x[0], &x[1], &x[2], groups, 1e-5)?])
        });
        let floats = |t: &Tensor| t.to_vec::<f32>().expect("floats").into_iter().map(f64::from).collect::<Vec<f64>>();
        let (x, gamma, beta) = (floats(&x), floats(&gamma), floats(&beta));
        let size = channels / groups as usize * inner;
        for (at, got) in floats(&got[0]).into_iter().enumerate() {
            let group = &x[at / size * size..][..size];
            let mean = group.iter().sum::<f64>() / size as f64;
            let variance = group.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / size as f64;
            let channel = at / inner % channels;
            let want = (x[at] - mean) / (variance + 1e-5).sqrt() * gamma[channel] + beta[channel];
            assert!((got - want).abs() < 1e-4, "element {at} of {shape:?}: {got}, not {want}");
        }
    }
}
