//! Sizes that data decide, dims as operands and as parameters of kernels.

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::EngineError;
use max::graph::{Dim, DimSlice, Graph, GraphErrorKind, Parameters, Shape, TensorType, ops};
use max::kernel;

#[kernel(op = "cumsum", dtypes(T = [i64]))]
fn cumsum<T: Number>(
    y: Out<T, 2>,
    x: In<T, 2>,
    #[param(default = false)] exclusive: bool,
    #[param(default = false)] reverse: bool,
) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let shift = if exclusive { 1 } else { 0 };
    if reverse {
        y.row(row).reverse().write_scan(x.reverse().slice(-shift, n), 0, |a, b| a + b);
    } else {
        y.row(row).write_scan(x.slice(-shift, n), 0, |a, b| a + b);
    }
}

#[kernel(op = "scatter", dtypes(T = [i64]))]
fn scatter<T: Number>(y: Out<T, 2>, x: In<T, 2>, updates: In<T, 2>, indices: In<i64, 2>) {
    let row = program_id(0);
    let updates = updates.row(row);
    let indices = indices.row(row);
    y.row(row).write(x.row(row));
    for k in 0..indices.len() {
        y.row(row).set(indices.at(k), updates.at(k));
    }
}

#[kernel(op = "scatter_reduce", dtypes(T = [i64]))]
fn scatter_add<T: Number>(
    y: Out<T, 2>,
    x: In<T, 2>,
    updates: In<T, 2>,
    indices: In<i64, 2>,
    #[param(choices("add"))] by: &str,
) {
    let row = program_id(0);
    let updates = updates.row(row);
    let indices = indices.row(row);
    y.row(row).write(x.row(row));
    for k in 0..indices.len() {
        let i = indices.at(k);
        let a = if by == "add" { y.row(row).at(i) } else { 0 };
        y.row(row).set(i, a + updates.at(k));
    }
}

#[kernel(op = "gather", dtypes(T = [f32, i64]))]
fn gather<T: Number>(y: Out<T, 3>, x: In<T, 3>, indices: In<i64, 1>) {
    let [o, i] = program_id();
    let index = indices.at(i);
    y.select(o).row(i).write(x.select(o).row(index));
}

#[kernel(op = "cast", dtypes(T = [bool, f32, f64, i32, i64], U = [bool, f32, f64, i32, i64]))]
fn cast<T: Scalar, U: Scalar>(x: T) -> U {
    x as U
}

#[kernel(op = "where", dtypes(T = [f32, i64]))]
fn choose<T: Number>(condition: bool, x: T, y: T) -> T {
    if condition { x } else { y }
}

#[kernel(op = "not_equal", dtypes(T = [f32, i64]))]
fn not_equal<T: Number>(x: T, y: T) -> bool {
    x != y
}

#[kernel(op = "div", dtypes(T = [f64, i64]))]
fn div<T: Number>(x: T, y: T) -> T {
    x / y
}

#[kernel(op = "mod", dtypes(T = [i64]))]
fn modulo<T: Number>(x: T, y: T) -> T {
    x % y
}

#[kernel(op = "max", dtypes(T = [f32, i64]))]
fn max_of<T: Number>(x: T, y: T) -> T {
    x.max(y)
}

#[kernel(op = "ceil", dtypes(T = [f64]))]
fn ceil<T: Float>(x: T) -> T {
    x.ceil()
}

/// How far into an image of `width` columns each element is.
#[kernel(op = "t_place", dtypes(T = [f32]))]
fn place<T: Number>(y: Out<T, 1>, x: In<T, 1>, #[param] width: i64) {
    let row = program_id(0);
    y.set(row, x.at(row) + (row / width) as T);
}

/// As much as there is of what is larger than 0, in front, and how much that is.
#[kernel(op = "t_compact", dtypes(T = [f32]))]
fn compact<T: Number>(y: Out<T, 2>, count: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let mut n = 0 as i64;
    y.row(row).write(x.map(|_| 0 as T));
    for i in 0..x.len() {
        let v = x.at(i);
        if v > 0 {
            y.row(row).set(n, v);
            n += 1;
        }
    }
    count.row(row).set(0, n);
}

fn i64s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::I64, shape, DeviceRef::CPU)
}

fn ints(tensor: &Tensor) -> Vec<i64> {
    tensor.to_vec().unwrap()
}

fn scalar(value: i64) -> Tensor {
    Tensor::from_slice(&[value], [0; 0]).unwrap()
}

#[test]
fn nonzero_finds_places() {
    let graph = Graph::build("find", [f32s(("rows", "columns"))], |graph, inputs| {
        let x = inputs[0].tensor()?;
        let places = ops::nonzero(x, "found")?;
        // What follows knows the size.
        let wide = ops::add(&places, Dim::from("found"))?;
        let flat = ops::reshape(&places, (-1,))?;
        let sizes = ops::shape_to_tensor(graph, [Dim::from("found") * 2])?;
        Ok([places, wide, flat, sizes])
    });
    let graph = graph.unwrap();
    assert_eq!(graph.output_types()[2].to_string(), "int64[found * 2]");
    let model = load(&graph);
    for (elements, shape, expected) in [
        (vec![0.0f32, 1.0, 0.0, 2.0, 3.0, 0.0], [2, 3], vec![0, 1, 1, 0, 1, 1]),
        (vec![0.0; 4], [2, 2], vec![]),
        (vec![-0.0, f32::NAN], [2, 1], vec![1, 0]),
        (vec![], [0, 3], vec![]),
    ] {
        let results = model.execute(&Tensor::from_vec(elements, shape).unwrap()).unwrap();
        let found = expected.len() as i64 / 2;
        assert_eq!(results[0].shape(), [found as usize, 2]);
        assert_eq!(ints(&results[0]), expected);
        assert_eq!(ints(&results[1]), expected.iter().map(|v| v + found).collect::<Vec<_>>());
        assert_eq!(ints(&results[2]), expected);
        assert_eq!(ints(&results[3]), [found * 2]);
    }
}

#[test]
fn a_custom_op_says_how_much_it_wrote() {
    let graph = Graph::build("positive", [f32s((1, "n"))], |_, inputs| {
        let types = [f32s((1, "n")), i64s((1, 1))];
        let parts = ops::custom("t_compact", DeviceRef::CPU, &inputs[0], types, Parameters::new())?;
        let count = ops::to_dims(ops::reshape(&parts[1], (1,))?, ("used",))?;
        let used = ops::slice_tensor(&parts[0], [DimSlice::from(..), DimSlice::from(..count[0].clone())])?;
        // Twice: sizes of a second stage that depends on the first.
        let doubled = ops::mul(&used, 2.0)?;
        let again = ops::nonzero(&doubled, "again")?;
        Ok((used, doubled, again))
    });
    let model = load(&graph.unwrap());
    let x = Tensor::from_slice(&[-1.0f32, 3.0, 0.0, 5.0], [1, 4]).unwrap();
    let results = model.execute(&x).unwrap();
    assert_eq!((values(&results[0]), values(&results[1])), (vec![3.0, 5.0], vec![6.0, 10.0]));
    assert_eq!((results[0].shape(), ints(&results[2])), (&[1, 2][..], vec![0, 0, 0, 1]));
}

#[test]
fn sizes_that_are_not_as_declared_are_errors() {
    let build =
        |dim: Dim| Graph::build("g", [f32s(("n",)), f32s(("m",))], |_, inputs| ops::nonzero(&inputs[0], dim)).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 0.0, 2.0], [3]).unwrap();
    for (dim, other, fits) in
        [(Dim::from(2), 1, true), (Dim::from(3), 1, false), (Dim::from("m"), 2, true), (Dim::from("m"), 3, false)]
    {
        let result = load(&build(dim)).execute([&x, &count(&[other])]);
        match result {
            Ok(results) => assert!(fits && results[0].shape() == [2, 1]),
            Err(error) => {
                assert!(!fits && matches!(error, EngineError::BoundDims { .. }), "{error}");
                assert!(error.to_string().contains("dynamic.rs"), "{error}");
            }
        }
    }
    // More than there is.
    let graph = Graph::build("g", [f32s((4,)), i64s(())], |_, inputs| {
        let dims = ops::to_dims(&inputs[1], ("used",))?;
        ops::slice_tensor(&inputs[0], [..dims[0].clone()])
    });
    let model = load(&graph.unwrap());
    for (size, fits) in [(0, true), (4, true), (5, false), (-1, false), (i64::MAX, false), (i64::MIN, false)] {
        assert_eq!(model.execute([&count(&[4]), &scalar(size)]).is_ok(), fits, "{size}");
    }
    let graph = Graph::new("g", [f32s((4,)), i64s((2,))]);
    assert!(ops::to_dims(&graph.inputs()[0], ("a",)).is_err());
    let error = ops::to_dims(&graph.inputs()[1], ("a",)).unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::Rank { .. }), "{error}");
    assert!(ops::to_dims(&graph.inputs()[1], (Dim::from("a"), Dim::from("b") + 1)).is_err());
}

#[test]
fn dims_are_operands() {
    let graph = Graph::build("g", [f32s(("past",)), i64s(("new",))], |graph, inputs| {
        let (past, new) = (Dim::from("past"), Dim::from("new"));
        let positions = ops::range(graph, &past, &past + &new, 1, DType::I64, DeviceRef::CPU)?;
        let down = ops::range(graph, &new * 2, 0, -3, DType::I32, DeviceRef::CPU)?;
        let shape = ops::add(ops::slice_tensor(&inputs[1], [..2])?, Shape::from([past.clone(), new.clone()]))?;
        Ok((ops::add(&inputs[1], &past)?, positions, down, shape, ops::mul(&inputs[0], &new)?))
    });
    let graph = graph.unwrap();
    let types: Vec<String> = graph.output_types().iter().map(ToString::to_string).collect();
    assert_eq!(types[1..3], ["int64[new]", "int32[(new * 2 + 2) / 3]"]);
    let model = load(&graph);
    let new = Tensor::from_slice(&[10i64, 20, 30, 40], [4]).unwrap();
    let results = model.execute([&count(&[3]), &new]).unwrap();
    assert_eq!(ints(&results[0]), [13, 23, 33, 43]);
    assert_eq!(ints(&results[1]), [3, 4, 5, 6]);
    assert_eq!(results[2].to_vec::<i32>().unwrap(), [8, 5, 2]);
    assert_eq!(ints(&results[3]), [13, 24]);
    assert_eq!(values(&results[4]), [0.0, 4.0, 8.0]);
    let error = Graph::build("g", [f32s(("n",))], |graph, _| {
        ops::range(graph, Dim::from("other"), 3, 1, DType::I64, DeviceRef::CPU)
    });
    assert!(error.unwrap_err().to_string().contains("other"));
}

#[test]
fn parameters_of_kernels_are_dims() {
    let graph = Graph::build("g", [f32s(("h", "w"))], |_, inputs| {
        let flat = ops::reshape(&inputs[0], (-1,))?;
        let ty = flat.ty().clone();
        let parameters = Parameters::new().with("width", Dim::from("w"));
        let placed = ops::custom("t_place", DeviceRef::CPU, &flat, [&ty], parameters)?;
        // Two with other parameters are two values.
        let parameters = Parameters::new().with("width", Dim::from("w") * 2);
        let other = ops::custom("t_place", DeviceRef::CPU, &flat, [&ty], parameters)?;
        let scaled = ops::custom("scale", DeviceRef::CPU, &flat, [&ty], Parameters::new().with("by", Dim::from("h")))?;
        Ok((placed[0].clone(), other[0].clone(), scaled[0].clone()))
    });
    let model = load(&graph.unwrap());
    for (h, w) in [(2, 3), (3, 1), (1, 4), (0, 2)] {
        let results = model.execute(&Tensor::full(1.0f32, [h, w]).unwrap()).unwrap();
        let place = |width: usize| (0..h * w).map(|i| 1.0 + (i / width) as f32).collect::<Vec<_>>();
        assert_eq!(values(&results[0]), place(w));
        assert_eq!(values(&results[1]), place(2 * w));
        assert_eq!(values(&results[2]), vec![h as f32; h * w]);
    }
}

#[test]
fn tensors_say_where_parts_begin() {
    let types = (f32_buffer((6,)), f32s((5, "n")), i64s(()));
    let graph = Graph::build("g", types, |_, inputs| {
        let (x, at) = (inputs[1].tensor()?, inputs[2].tensor()?);
        let row = ops::slice_tensor(x, [DimSlice::from(at)])?;
        let window = ops::slice_tensor(x, [DimSlice::at(at, 2)])?;
        let back = ops::slice_tensor(x, [DimSlice::at(at, 2).step_by(-1)])?;
        inputs[0].buffer()?.store_slice(
            ops::reshape(ops::slice_tensor(&window, [DimSlice::from(..), DimSlice::from(0)])?, (2,))?,
            [DimSlice::at(at, 2)],
        )?;
        Ok([row, window, back])
    });
    let model = load(&graph.unwrap());
    let x = count(&[5, 2]);
    let mut buffer = Tensor::full(-1.0f32, [6]).unwrap();
    let results = model.execute((&mut buffer, &x, &scalar(1))).unwrap();
    assert_eq!((results[0].shape(), values(&results[0])), (&[2][..], vec![2.0, 3.0]));
    assert_eq!(values(&results[1]), [2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&results[2]), [2.0, 3.0, 0.0, 1.0]);
    assert_eq!(values(&buffer), [-1.0, 2.0, 4.0, -1.0, -1.0, -1.0]);
    // From the end: of the rows the fourth, of the buffer the fifth.
    let results = model.execute((&mut buffer, &x, &scalar(-2))).unwrap();
    assert_eq!(values(&results[0]), [6.0, 7.0]);
    assert_eq!(values(&buffer), [-1.0, 2.0, 4.0, -1.0, 6.0, 8.0]);
    for outside in [4, 5, -6, i64::MIN] {
        let error = model.execute((&mut buffer, &x, &scalar(outside))).unwrap_err();
        assert!(matches!(error, EngineError::Slice { .. } | EngineError::Size { .. }), "{outside}: {error}");
    }
}

#[test]
fn tensors_say_how_much_there_is() {
    let types = [f32s(("n",)), i64s(("n",)), i64s(()), i64s((2,)), f32s(())];
    let graph = Graph::build("g", types, |_, inputs| {
        let repeated = ops::repeat_interleave_tensor(&inputs[0], &inputs[1], Some(0), "repeated")?;
        let same = ops::repeat_interleave_tensor(&inputs[0], &inputs[2], None, "same")?;
        let numbers = ops::range_tensor(&inputs[2], 20, 7, "numbers", DType::I32)?;
        let wide = ops::broadcast_to_tensor(&inputs[0], &inputs[3], ("a", "n"))?;
        let padded = ops::pad_tensor(&inputs[0], [Dim::from(1), Dim::from("n")], &inputs[4])?;
        let tiled = ops::tile(&inputs[0], [Dim::from("n")])?;
        Ok([repeated, same, numbers, wide, padded, tiled])
    });
    let model = load(&graph.unwrap());
    let (x, repeats) = (count(&[3]), Tensor::from_slice(&[2i64, 0, 1], [3]).unwrap());
    let shape = Tensor::from_slice(&[2i64, 3], [2]).unwrap();
    let value = Tensor::full(9.0f32, [0; 0]).unwrap();
    let results = model.execute([&x, &repeats, &scalar(2), &shape, &value]).unwrap();
    assert_eq!(values(&results[0]), [0.0, 0.0, 2.0]);
    assert_eq!(values(&results[1]), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(results[2].to_vec::<i32>().unwrap(), [2, 9, 16]);
    assert_eq!((results[3].shape(), values(&results[3])), (&[2, 3][..], vec![0.0, 1.0, 2.0, 0.0, 1.0, 2.0]));
    assert_eq!(values(&results[4]), [9.0, 0.0, 1.0, 2.0, 9.0, 9.0, 9.0]);
    assert_eq!(values(&results[5]), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    // No repetitions at all; none for the last.
    let none = Tensor::from_slice(&[0i64, -4, 0], [3]).unwrap();
    let results = model.execute([&x, &none, &scalar(0), &shape, &value]).unwrap();
    assert_eq!((values(&results[0]), values(&results[1])), (vec![], vec![]));
    assert_eq!(results[2].to_vec::<i32>().unwrap(), [0, 7, 14]);
}

/// Sizes that a body finds are its own: the second round has others.
#[test]
fn loops_find_sizes_of_their_own() {
    let graph = Graph::build("g", [f32s((1, "n")), i64s((1,))], |_, inputs| {
        let x = inputs[0].tensor()?;
        ops::while_loop(
            &inputs[1],
            |v| ops::greater(7, &v[0]),
            |v| {
                // Of the first `v` elements, those that are positive, and one more.
                let dims = ops::to_dims(&v[0], ("until",))?;
                let part = ops::slice_tensor(x, [DimSlice::from(..), DimSlice::from(..dims[0].clone())])?;
                let found = ops::nonzero(part, "found")?;
                let ones = ops::add(ops::sub(ops::reshape(&found, (-1,))?, ops::reshape(&found, (-1,))?)?, 1)?;
                ops::add(&v[0], ops::maximum(ops::sum(ones, 0)?, 1)?)
            },
        )
    });
    let model = load(&graph.unwrap());
    let x = Tensor::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0], [1, 8]).unwrap();
    // 1 -> 2 (none) -> 4 (one place, of two numbers) -> 6 -> 10.
    let results = model.execute([&x, &Tensor::from_slice(&[1i64], [1]).unwrap()]).unwrap();
    assert_eq!(ints(&results[0]), [10]);
}
