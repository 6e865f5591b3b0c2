//! Convolutions, pooling and gathers of many forms, against their definitions.

use max::graph::ops::{self, ConvOptions, PoolOptions};
use max::prelude::*;

/// Elements that are not alike, small enough for sums of them to be exact.
fn count(shape: &[usize]) -> Tensor {
    let elements = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..elements).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
    Tensor::from_slice(&values, shape).unwrap()
}

fn run(
    inputs: &[Tensor],
    op: impl Fn(&[Value]) -> Result<TensorValue, max::graph::GraphError>,
) -> (Vec<usize>, Vec<f32>) {
    let types: Vec<TensorType> = inputs.iter().map(TensorType::from).collect();
    let graph = Graph::build("images", types, |_, x| op(x)).unwrap();
    let outputs = InferenceSession::new().load(&graph).unwrap().execute(inputs).unwrap();
    (outputs[0].shape().to_vec(), outputs[0].to_vec::<f32>().unwrap())
}

/// An image or a filter: four sizes, and its elements, which are 0 outside.
struct Four(Vec<usize>, Vec<f32>);

impl Four {
    fn of(tensor: &Tensor) -> Four {
        Four(tensor.shape().to_vec(), tensor.to_vec::<f32>().unwrap())
    }

    fn at(&self, index: [i64; 4]) -> Option<f32> {
        let inside = index.iter().zip(&self.0).all(|(i, size)| (0..*size as i64).contains(i));
        let at = index.iter().zip(&self.0).fold(0, |at, (i, size)| at * *size as i64 + i);
        inside.then(|| self.1[at as usize])
    }
}

/// Calls `f` for every index of a shape, and collects what it gives.
fn collect(shape: &[usize], f: impl Fn([i64; 4]) -> f32) -> Vec<f32> {
    let total = shape.iter().product::<usize>();
    let index = |mut i: usize| {
        let mut index = [0; 4];
        for (slot, size) in index.iter_mut().zip(shape).rev() {
            (*slot, i) = ((i % size) as i64, i / size);
        }
        index
    };
    (0..total).map(|i| f(index(i))).collect()
}

#[test]
fn convolutions_of_all_options() {
    let mut forms = 0;
    for (height, width) in [(7, 9), (5, 70), (6, 4)] {
        for (channels, features, groups) in
            [(4, 6, 1), (4, 6, 2), (3, 3, 3), (3, 6, 3), (1, 65, 1), (70, 2, 1), (5, 130, 1), (4, 130, 2)]
        {
            for (rows, columns) in [(1, 1), (3, 2), (3, 1)] {
                for (stride, dilation, padding) in [
                    ([1, 1], [1, 1], [[0, 0], [0, 0]]),
                    ([2, 3], [1, 2], [[1, 2], [3, 0]]),
                    ([1, 2], [2, 1], [[0, 1], [1, 1]]),
                ] {
                    let options = ConvOptions { stride, dilation, padding, groups, ..ConvOptions::default() };
                    let (x, w) = (
                        count(&[2, height, width, channels]),
                        count(&[rows, columns, channels / groups as usize, features]),
                    );
                    let (shape, got) = run(&[x.clone(), w.clone()], |v| ops::conv2d(&v[0], &v[1], None, options));
                    let (x, w) = (Four::of(&x), Four::of(&w));
                    let own = channels as i64 / groups;
                    let want = collect(&shape, |[n, y, x_, f]| {
                        let mut sum = 0.0;
                        for r in 0..rows as i64 {
                            for s in 0..columns as i64 {
                                let row = y * stride[0] + r * dilation[0] - padding[0][0];
                                let column = x_ * stride[1] + s * dilation[1] - padding[1][0];
                                for c in 0..own {
                                    let group = f / (features as i64 / groups);
                                    let pixel = x.at([n, row, column, group * own + c]).unwrap_or(0.0);
                                    sum += pixel * w.at([r, s, c, f]).unwrap();
                                }
                            }
                        }
                        sum
                    });
                    assert_eq!(got, want, "{height}x{width}x{channels} {rows}x{columns}x{features} {options:?}");
                    forms += 1;
                }
            }
        }
    }
    assert_eq!(forms, 216);
}

#[test]
fn transposed_convolutions_scatter_what_convolutions_gather() {
    for (stride, dilation, padding, extra, features) in [
        ([1, 1], [1, 1], [[0, 0], [0, 0]], [0, 0]),
        ([2, 3], [1, 2], [[1, 0], [0, 2]], [1, 0]),
        ([3, 1], [2, 1], [[2, 2], [1, 1]], [0, 2]),
        // More is cut off than the filter reaches.
        ([2, 2], [1, 1], [[3, 0], [2, 1]], [0, 0]),
    ]
    .into_iter()
    .flat_map(|options| [(options, 6), (options, 129)])
    .map(|((stride, dilation, padding, extra), features)| (stride, dilation, padding, extra, features))
    {
        let options = ConvOptions { stride, dilation, padding, ..ConvOptions::default() };
        let (x, w) = (count(&[2, 4, 5, 3]), count(&[3, 2, features, 3]));
        let (shape, got) = run(&[x.clone(), w.clone()], |v| ops::conv2d_transpose(&v[0], &v[1], None, options, extra));
        let (x, w) = (Four::of(&x), Four::of(&w));
        let want = collect(&shape, |[n, row, column, f]| {
            let mut sum = 0.0;
            for (r, s) in (0..3).flat_map(|r| (0..2).map(move |s| (r, s))) {
                let (y, x_) = (row + padding[0][0] - r * dilation[0], column + padding[1][0] - s * dilation[1]);
                if y.rem_euclid(stride[0]) == 0 && x_.rem_euclid(stride[1]) == 0 {
                    for c in 0..3 {
                        let pixel = x.at([n, y.div_euclid(stride[0]), x_.div_euclid(stride[1]), c]).unwrap_or(0.0);
                        sum += pixel * w.at([r, s, f, c]).unwrap();
                    }
                }
            }
            sum
        });
        assert_eq!(got, want, "{features} features, {options:?}");
    }
}

#[test]
fn pooling_of_all_options() {
    pooling([3, 2], [2, 8, 9, 5]);
}

/// Long windows are made of runs of other windows.
#[test]
fn pooling_of_long_windows() {
    pooling([21, 17], [1, 44, 40, 2]);
    pooling([16, 31], [1, 44, 64, 1]);
}

fn pooling(size: [i64; 2], image: [usize; 4]) {
    for (stride, dilation, padding, ceil_mode) in
        [([1, 1], [1, 1], [0, 0], false), ([2, 3], [1, 2], [1, 0], true), ([2, 2], [2, 1], [1, 1], false)]
    {
        let options = PoolOptions { stride, dilation, padding, ceil_mode, ..PoolOptions::default() };
        let x = count(&image);
        let image = Four::of(&x);
        // What the window meets inside the image.
        let window = |[n, y, x, c]: [i64; 4]| -> Vec<f32> {
            let taps = (0..size[0]).flat_map(|r| (0..size[1]).map(move |s| (r, s)));
            let place = move |(r, s)| {
                [n, y * stride[0] + r * dilation[0] - padding[0], x * stride[1] + s * dilation[1] - padding[1], c]
            };
            taps.filter_map(|tap| image.at(place(tap))).collect()
        };
        let (shape, got) = run(std::slice::from_ref(&x), |v| ops::max_pool2d(&v[0], size, options));
        assert_eq!(
            got,
            collect(&shape, |at| window(at).into_iter().fold(f32::NEG_INFINITY, f32::max)),
            "{size:?} {options:?}"
        );
        for counted in [true, false] {
            let (shape, got) = run(std::slice::from_ref(&x), |v| ops::avg_pool2d(&v[0], size, options, counted));
            let want = collect(&shape, |at| {
                let window = window(at);
                window.iter().sum::<f32>() / if counted { (size[0] * size[1]) as f32 } else { window.len() as f32 }
            });
            assert_eq!(got, want, "{size:?} {options:?} {counted}");
        }
    }
}

#[test]
fn vectors_of_indices_name_parts() {
    let x = count(&[2, 3, 4, 5]);
    let image = Four::of(&x);
    let indices = [[[0i64, 3], [2, -1]], [[-3, 0], [1, 1]]];
    let flat: Vec<i64> = indices.as_flattened().as_flattened().to_vec();
    let indices_tensor = Tensor::from_slice(&flat, [2, 2, 2]).unwrap();
    let (shape, got) = run(&[x, indices_tensor], |v| ops::gather_nd(&v[0], &v[1], 1));
    assert_eq!(shape, [2, 2, 5]);
    let want = collect(&[1, 2, 2, 5], |[_, n, i, k]| {
        let [a, b] = indices[n as usize][i as usize];
        image.at([n, a.rem_euclid(3), b.rem_euclid(4), k]).unwrap()
    });
    assert_eq!(got, want);
}

#[test]
fn indices_are_integers_of_any_dtype() {
    let x = count(&[4, 3]);
    let rows = |picked: &[Option<usize>]| -> Vec<f32> {
        let all = x.as_slice::<f32>().unwrap();
        picked.iter().flat_map(|row| (0..3).map(move |k| row.map_or(0.0, |row| all[row * 3 + k]))).collect()
    };
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integral()) {
        // Of unsigned dtypes, the last is the largest number, outside of the axis.
        let last = if dtype.is_signed_integral() { Some(3) } else { None };
        let index = Tensor::from_slice(&[2i64, 0, -1], [3, 1]).unwrap();
        let (inputs, cast) = ([x.clone(), index.clone(), count(&[3, 3])], |v: &Value| ops::cast(v, dtype));
        let flat = |v: &Value| cast(v)?.reshape((3,));
        let (_, got) = run(&inputs, |v| ops::gather(&v[0], flat(&v[1])?, 0));
        assert_eq!(got, rows(&[Some(2), Some(0), last]), "{dtype}");
        let (_, got) = run(&inputs, |v| ops::gather_nd(&v[0], cast(&v[1])?, 0));
        assert_eq!(got, rows(&[Some(2), Some(0), last]), "{dtype}");
        let updates = inputs[2].to_vec::<f32>().unwrap();
        let mut expected = x.to_vec::<f32>().unwrap();
        for (row, update) in [Some(2), Some(0), last].into_iter().zip(updates.chunks(3)) {
            if let Some(row) = row {
                expected[row * 3..][..3].copy_from_slice(update);
            }
        }
        let (_, got) = run(&inputs, |v| ops::scatter_nd(&v[0], &v[2], cast(&v[1])?));
        assert_eq!(got, expected, "{dtype}");
        let (_, got) = run(&inputs, |v| ops::scatter(&v[0], &v[2], cast(&v[1])?.broadcast_to([3, 3])?, 0));
        assert_eq!(got, expected, "{dtype}");
    }
}
