//! Ops of symbolic sizes give what they give of the same sizes as numbers.

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::graph::ops::{ConvInputLayout, ConvOptions, FilterLayout, FoldOptions, Normalization, PoolOptions};
use max::graph::{Dim, Graph, GraphError, Shape, TensorType, TensorValue, ops};
use max::kernel;

#[kernel(op = "conv", dtypes(T = [f32]), tile(BM = 4, BN = 16, BK = 16))]
#[allow(clippy::too_many_arguments, reason = "three axes have a stride, a dilation and a padding each")]
fn conv<T: Float>(
    y: Out<T, 3>,
    x: In<T, 5>,
    w: In<T, 5>,
    #[param] groups: i64,
    #[param] depth: i64,
    #[param] depth_out: i64,
    #[param] height_out: i64,
    #[param] stride_depth: i64,
    #[param] stride_height: i64,
    #[param] dilation_depth: i64,
    #[param] dilation_height: i64,
    #[param] dilation_width: i64,
    #[param] padding_depth: i64,
    #[param] padding_height: i64,
    #[param] lead: i64,
    #[param] offset: i64,
) {
    let [i, m, n] = program_id();
    let row = i % height_out;
    let plane = i / height_out;
    let image = plane / depth_out;
    let group = image / (x.dim(0) / depth / groups);
    let taps = w.dim(0) / groups;
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for q in range(0, taps, 1) {
        let z = plane % depth_out * stride_depth + q * dilation_depth - padding_depth;
        let volume = x.select(if z >= 0 && z < depth { image * depth + z } else { -1 });
        let filter = w.select(group * taps + q);
        for r in range(0, w.dim(1), 1) {
            let line = volume.select(row * stride_height + r * dilation_height - padding_height);
            let tap_row = filter.select(r);
            for s in range(0, w.dim(2), 1) {
                let from = s * dilation_width + offset;
                let columns = line.select(from % x.dim(2));
                let first = m * BM + from / x.dim(2) - lead;
                let tap = tap_row.select(s);
                for k in range(0, x.dim(4), BK) {
                    acc = dot(columns.tile::<BM, BK>(first, k), tap.tile::<BK, BN>(k, n), acc);
                }
            }
        }
    }
    y.select(i).tile::<BM, BN>(m, n).write(acc.cast());
}

/// Blocks of single pixels, side by side.
#[kernel(op = "fold", dtypes(T = [f32]))]
#[allow(clippy::too_many_arguments, reason = "two axes have a stride, a dilation and a padding each")]
fn fold<T: Float>(
    y: Out<T, 3>,
    x: In<T, 3>,
    #[param] taps_width: i64,
    #[param] across: i64,
    #[param] stride_height: i64,
    #[param] stride_width: i64,
    #[param] dilation_height: i64,
    #[param] dilation_width: i64,
    #[param] padding_height: i64,
    #[param] padding_width: i64,
) {
    let [image, row] = program_id();
    let x = x.select(image);
    let taps = x.dim(0);
    let down = x.dim(1) / across;
    y.select(image).row(row).write(lanes(y.dim(2)).map(|column| {
        let mut sum = T::ZERO;
        for tap in 0..taps {
            let top = row + padding_height - tap / taps_width * dilation_height;
            let side = column + padding_width - tap % taps_width * dilation_width;
            let (i, j) = (top / stride_height, side / stride_width);
            let meets =
                top >= 0 && side >= 0 && top % stride_height == 0 && side % stride_width == 0 && i < down && j < across;
            sum += if meets { x.at(tap, i * across + j) } else { T::ZERO };
        }
        sum
    }));
}

/// How many elements of its run of 512 come before each one.
#[kernel(op = "rank_runs", dtypes(T = [f32]))]
fn rank_runs<T: Number>(ranks: Out<i32, 2>, x: In<T, 2>, #[param] descending: bool) {
    let [row, part] = program_id();
    let run = x.row(row).block::<512>(part);
    for i in 0..run.len() {
        let v = run.at(i);
        let rank = run
            .enumerate()
            .map(|(u, j)| {
                let before = if descending { u > v } else { u < v };
                if before || (u == v && j < i) { 1i32 } else { 0 }
            })
            .sum();
        ranks.select(row).block::<512>(part).set(i, rank);
    }
}

/// Runs of 512 elements by their ranks.
#[kernel(op = "sort_runs", dtypes(T = [f32]))]
fn sort_runs<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    x: In<T, 2>,
    ranks: In<i32, 2>,
    at: Option<In<i64, 2>>,
) {
    let [row, part] = program_id();
    let run = x.row(row).block::<512>(part);
    for i in 0..run.len() {
        let place = ranks.row(row).at(part * 512 + i) as i64;
        let mut position = part * 512 + i;
        if let Some(at) = at {
            position = at.row(row).at(position);
        }
        values.select(row).block::<512>(part).set(place, run.at(i));
        positions.select(row).block::<512>(part).set(place, position);
    }
}

/// Pairs of runs merged: each element goes behind those of the other run that come before it.
#[kernel(op = "merge_runs", dtypes(T = [f32]))]
fn merge_runs<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    x: In<T, 2>,
    at: In<i64, 2>,
    #[param] run: i64,
    #[param] descending: bool,
) {
    let row = program_id(0);
    let x = x.row(row);
    let at = at.row(row);
    let n = x.len();
    for i in 0..n {
        let v = x.at(i);
        let pair = i / (2 * run) * (2 * run);
        let is_left = i < pair + run;
        let first = if is_left { pair + run } else { pair };
        let end = if is_left { (pair + 2 * run).min(n) } else { pair + run };
        let mut place = if is_left { i } else { i - run };
        let mut j = first;
        while j < end {
            let u = x.at(j);
            let before = if descending { u > v } else { u < v };
            place += if before || (u == v && !is_left) { 1 } else { 0 };
            j += 1;
        }
        values.row(row).set(place, v);
        positions.row(row).set(place, at.at(i));
    }
}

#[kernel(op = "replace_rows", dtypes(T = [f32]))]
fn replace_rows<T: Number>(y: Out<T, 2>, x: In<T, 2>, updates: In<T, 2>, from: In<i64, 1>) {
    let row = program_id(0);
    let update = from.at(row);
    if update >= 0 {
        y.row(row).write(updates.row(update));
    } else {
        y.row(row).write(x.row(row));
    }
}

#[kernel(op = "greater_equal", dtypes(T = [i64]))]
fn greater_equal<T: Number>(x: T, y: T) -> bool {
    x >= y
}

#[kernel(op = "equal", dtypes(T = [i64]))]
fn equal<T: Number>(x: T, y: T) -> bool {
    x == y
}

#[kernel(op = "logical_or")]
fn or(x: bool, y: bool) -> bool {
    x || y
}

#[kernel(op = "sqrt", dtypes(T = [f64]))]
fn sqrt<T: Float>(x: T) -> T {
    x.sqrt()
}

#[kernel(op = "cos", dtypes(T = [f64]))]
fn cos<T: Float>(x: T) -> T {
    x.cos()
}

#[kernel(op = "sin", dtypes(T = [f64]))]
fn sin<T: Float>(x: T) -> T {
    x.sin()
}

/// Runs an op on tensors of these shapes, once with numbers as dims, and then with names for those that have one.
fn check(
    name: &str,
    shapes: &[&[usize]],
    names: &[&[Option<&str>]],
    indices: &[usize],
    op: impl Fn(&[TensorValue], bool) -> Result<TensorValue, GraphError>,
) {
    let results = [false, true].map(|symbolic| {
        let dims = |i: usize| -> Shape {
            let named = shapes[i].iter().zip(names[i]);
            named.map(|(size, name)| name.filter(|_| symbolic).map_or(Dim::from(*size), Dim::from)).collect()
        };
        let dtype = |i: usize| if indices.contains(&i) { DType::I64 } else { DType::F32 };
        let types: Vec<TensorType> =
            (0..shapes.len()).map(|i| TensorType::new(dtype(i), dims(i), DeviceRef::CPU)).collect();
        let graph = Graph::build(name, types, |_, inputs| {
            let values = inputs.iter().map(|value| value.tensor().cloned()).collect::<Result<Vec<_>, _>>()?;
            op(&values, symbolic)
        });
        let graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        let inputs: Vec<Tensor> = (0..shapes.len())
            .map(|i| {
                let elements: usize = shapes[i].iter().product();
                match indices.contains(&i) {
                    true => Tensor::from_vec((0..elements as i64).map(|v| v * 5 % 4 - 1).collect(), shapes[i]).unwrap(),
                    false => Tensor::from_vec(
                        (0..elements).map(|v| ((v * 37 + 11) % 64) as f32 / 8.0 - 4.0).collect(),
                        shapes[i],
                    )
                    .unwrap(),
                }
            })
            .collect();
        let result = load(&graph).execute(&inputs).unwrap_or_else(|error| panic!("{name}: {error}\n{graph}")).remove(0);
        (result.shape().to_vec(), result)
    });
    let [(shape, expected), (other, found)] = &results;
    assert_eq!(shape, other, "{name}");
    match expected.dtype() {
        DType::I64 => assert_eq!(expected.to_vec::<i64>().unwrap(), found.to_vec::<i64>().unwrap(), "{name}"),
        _ => {
            let (expected, found) = (values(expected), values(found));
            let close = expected.iter().zip(&found).all(|(a, b)| (a - b).abs() <= 1e-4 * a.abs().max(1.0));
            assert!(close, "{name}: {expected:?} and {found:?}");
        }
    }
}

#[test]
fn images_of_any_size() {
    let plain = [&[None, Some("h"), Some("w"), None][..], &[None; 4]];
    for (stride, padding, dilation) in
        [([1, 1], [[0, 0]; 2], [1, 1]), ([2, 3], [[1, 0], [2, 1]], [1, 1]), ([1, 2], [[2, 2]; 2], [2, 1])]
    {
        let options = ConvOptions { stride, padding, dilation, ..ConvOptions::default() };
        for image in [[2usize, 7, 8, 3], [1, 5, 11, 3]] {
            check("conv2d", &[&image, &[3, 2, 3, 4]], &plain, &[], |v, _| ops::conv2d(&v[0], &v[1], None, options));
            check("conv2d_transpose", &[&image, &[3, 2, 4, 3]], &plain, &[], |v, _| {
                ops::conv2d_transpose(&v[0], &v[1], None, options, [0, 1])
            });
        }
        let pool = PoolOptions { stride, padding: [1, 1], dilation, ..PoolOptions::default() };
        check("max_pool2d", &[&[2, 9, 8, 3]], &plain, &[], |v, _| ops::max_pool2d(&v[0], [3, 2], pool));
        let ceil = PoolOptions { ceil_mode: true, padding: [1, 0], ..pool };
        check("max_pool2d", &[&[2, 9, 8, 3]], &plain, &[], |v, _| ops::max_pool2d(&v[0], [3, 3], ceil));
    }
    let options = ConvOptions { groups: 2, ..ConvOptions::default() };
    check("groups", &[&[2, 5, 6, 4], &[2, 2, 2, 6]], &plain, &[], |v, _| ops::conv2d(&v[0], &v[1], None, options));
    let names = [&[None, Some("h"), Some("w")][..]];
    check("fold", &[&[2, 4, 12]], &[&[None, None, None]], &[], |v, _| {
        ops::fold(&v[0], [4, 5], [2, 2], FoldOptions::default())
    });
    let sizes = [names[0], &[Some("height"), Some("width")]];
    check("fold", &[&[2, 4, 12], &[4, 5]], &[&[None, None, None], sizes[1]], &[], |v, symbolic| {
        let blocks = if symbolic {
            ops::rebind(&v[0], [Dim::from(2), Dim::from(4), (Dim::from("height") - 1) * (Dim::from("width") - 1)], "")?
        } else {
            v[0].clone()
        };
        ops::fold(&blocks, v[1].shape().clone(), [2, 2], FoldOptions::default())
    });
}

#[test]
fn layouts_are_orders_of_axes() {
    let none = [&[None; 4][..], &[None; 4]];
    let options = ConvOptions { stride: [2, 1], ..ConvOptions::default() };
    check("layouts", &[&[2, 7, 8, 3], &[3, 2, 3, 4]], &none, &[], |v, other| {
        if !other {
            return ops::conv2d(&v[0], &v[1], None, options);
        }
        let layouts = (ConvInputLayout::Nchw, FilterLayout::Fcrs);
        let planes = ConvOptions { input_layout: layouts.0, filter_layout: layouts.1, ..options };
        let y = ops::conv2d(v[0].permute([0, 3, 1, 2])?, v[1].permute([3, 2, 0, 1])?, None, planes)?;
        y.permute([0, 2, 3, 1])
    });
    let pool = PoolOptions { stride: [2, 1], ..PoolOptions::default() };
    check("pools", &[&[2, 7, 8, 3]], &none, &[], |v, other| {
        if !other {
            return ops::max_pool2d(&v[0], [2, 3], pool);
        }
        let planes = PoolOptions { input_layout: ConvInputLayout::Nchw, ..pool };
        ops::max_pool2d(v[0].permute([0, 3, 1, 2])?, [2, 3], planes)?.permute([0, 2, 3, 1])
    });
}

#[test]
fn orders_and_places_of_any_size() {
    for size in [1usize, 63, 64, 65, 130, 300] {
        for ascending in [true, false] {
            check("argsort", &[&[size, 2]], &[&[Some("n"), None]], &[], |v, _| ops::argsort(&v[0], ascending));
        }
    }
    check("band_part", &[&[2, 4, 5]], &[&[None, Some("h"), Some("w")]], &[], |v, _| {
        ops::band_part(&v[0], Some(1), Some(2), false)
    });
    let names = [&[Some("a"), Some("b"), Some("c")][..], &[Some("k"), None]];
    check("gather_nd", &[&[4, 3, 2], &[6, 2]], &names, &[1], |v, _| ops::gather_nd(&v[0], &v[1], 0));
    let names = [&[Some("a"), Some("b"), Some("c")][..], &[Some("a"), Some("k"), None]];
    check("gather_nd", &[&[4, 3, 2], &[4, 5, 1]], &names, &[1], |v, _| ops::gather_nd(&v[0], &v[1], 1));
    let names = [&[Some("a"), Some("b")][..], &[Some("k"), Some("b")], &[Some("k"), None]];
    check("scatter_nd", &[&[5, 3], &[4, 3], &[4, 1]], &names, &[2], |v, _| ops::scatter_nd(&v[0], &v[1], &v[2]));
}

#[test]
fn transforms_of_any_size() {
    for normalization in [Normalization::Backward, Normalization::Ortho, Normalization::Forward] {
        let names = [&[Some("b"), Some("k"), None][..]];
        check("irfft", &[&[2, 5, 2]], &names, &[], |v, _| ops::irfft(&v[0], None, -1, normalization, true));
        check("irfft", &[&[2, 5, 2]], &names, &[], |v, _| ops::irfft(&v[0], Some(7), -1, normalization, true));
        check("irfft", &[&[2, 5]], &names, &[], |v, _| ops::irfft(&v[0], Some(6), -1, normalization, false));
    }
}
