//! Layout variants: the forms of kernels for rows that are columns and for transposed operands, and a user's kernels of such names.

use max::graph::{GraphError, Parameters, ops};
use max::kernel::KernelLibrary;
use max::prelude::*;

/// A name that a form of the library's `sum` has, and no sum.
#[kernel(op = "sum_columns", dtypes(T = [f32]))]
fn sum_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
    let [outer, part] = program_id();
    y.select(outer).block::<64>(part).write(x.select(outer).columns::<64>(part).max());
}

/// The same of each row, which is a column elsewhere.
#[kernel(op = "spread")]
fn spread<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param] times: i64) {
    let row = program_id(0);
    let x = x.row(row);
    let (least, most) = x
        .fold_with((T::INFINITY, T::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
        .reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    let mean = x.mean();
    let scale = times as T / (most - least);
    y.row(row).write(x.map(|v| (v - mean) * scale));
}

/// `a · (b + 1)`.
#[kernel(op = "product_of_more", tile(B = 8), transposed, dtypes(T = [f32, f64]))]
fn product_of_more<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, B, B>::zeros();
    for k in range(0, b.dim(0), B) {
        acc = dot(a.tile::<B, B>(m, k), b.tile::<B, B>(k, n).load().map(|v| v + 1.0), acc);
    }
    c.tile::<B, B>(m, n).write(acc);
}

#[test]
fn products_have_a_transposed_form() {
    let library = KernelLibrary::linked();
    for name in ["matmul", "batch_matmul", "product_of_more"] {
        let def = library.get(name).unwrap().transposed.unwrap_or_else(|| panic!("`{name}` has none"));
        assert_eq!(def.name.as_str(), format!("{name}_transposed"));
        assert!(def.transposed.is_none() && library.get(def.name.as_str()).is_err());
    }
    assert!(library.get("sum").unwrap().transposed.is_none());
}

/// No op that goes along an axis has a second kernel: its own has the form.
#[test]
fn kernels_of_rows_have_a_form_for_columns() {
    let library = KernelLibrary::linked();
    let maps = ["softmax", "logsoftmax", "cumsum", "spread"];
    let reductions = ["sum", "mean", "prod", "reduce_max", "reduce_min", "argmax", "var"];
    for (name, rank) in maps.map(|name| (name, 3)).into_iter().chain(reductions.map(|name| (name, 2))) {
        let columns = library.get(name).unwrap().columns.unwrap_or_else(|| panic!("`{name}` has none"));
        assert_eq!(columns.name.as_str(), format!("{name}_columns"));
        let ranks: Vec<i32> = columns.operands.as_slice().iter().map(|operand| operand.rank).collect();
        assert!(columns.columns.is_none() && ranks == [rank, 3], "{name}: {ranks:?}");
    }
    assert!(library.get("matmul").unwrap().columns.is_none() && library.get("top_k").unwrap().columns.is_none());
}

/// The forms of a user's kernels compute what the kernels do, of every shape, as the graph chooses them and by their own tables.
#[test]
fn forms_agree_with_their_kernels() {
    let (rows, columns) = (37, 70);
    let x = TensorType::new(DType::F32, (rows, columns), DeviceRef::CPU);
    let graph = Graph::build("forms", [&x], |graph, x| {
        let x = x[0].tensor()?.clone();
        let custom = |name: &str, inputs: &[TensorValue], shape: (i64, i64)| {
            let params = if name == "spread" { Parameters::from([("times", 3)]) } else { Parameters::from(()) };
            let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
            Ok::<_, GraphError>(ops::custom(name, DeviceRef::CPU, inputs, ty, params)?[0].clone())
        };
        // What lies transposed, and the same copied.
        let t = x.t()?;
        let copied = ops::mul(&t, ops::constant(graph, 1.0f32, DType::F32, DeviceRef::CPU)?)?;
        Ok([
            custom("spread", std::slice::from_ref(&t), (columns, rows))?,
            custom("spread", std::slice::from_ref(&copied), (columns, rows))?,
            custom("product_of_more", &[x.clone(), t], (rows, rows))?,
            custom("product_of_more", &[x, copied], (rows, rows))?,
        ])
    });
    let values: Vec<f32> = (0..rows * columns).map(|i| (i * i % 101) as f32 / 7.0).collect();
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let outputs = model.execute(&Tensor::from_slice(&values, [rows as usize, columns as usize]).unwrap()).unwrap();
    let outputs: Vec<Vec<f32>> = outputs.iter().map(|output| output.to_vec().unwrap()).collect();
    for pair in outputs.chunks(2) {
        let largest = pair[0].iter().fold(0.0f32, |a, v| a.max(v.abs()));
        for (i, (a, b)) in pair[0].iter().zip(&pair[1]).enumerate() {
            assert!((a - b).abs() <= 1e-5 * largest, "element {i}: {a} {b}");
        }
    }
    let expected = |i: usize, j: usize| -> f32 {
        let at = |i: usize, k: usize| values[i * columns as usize + k];
        (0..columns as usize).map(|k| at(i, k) * (at(j, k) + 1.0)).sum()
    };
    let got = outputs[2][5 * rows as usize + 9];
    assert!((got - expected(5, 9)).abs() <= 1e-4 * got, "{got} {}", expected(5, 9));
}

/// A kernel of a user's that has the name of a form is one of its own, and no op takes it for the form.
#[test]
fn a_user_s_kernel_takes_no_op_s_place() {
    let x = TensorType::new(DType::F32, (1, 3, 100), DeviceRef::CPU);
    let shown = TensorType::new(DType::F32, (1, 100), DeviceRef::CPU);
    let graph = Graph::build("sums", [&x], |_, x| {
        let own = ops::custom("sum_columns", DeviceRef::CPU, [&x[0]], &shown, ())?[0].tensor()?.clone();
        Ok([ops::sum(x[0].tensor()?, 1)?, own])
    });
    let values: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let outputs = model.execute(&Tensor::from_slice(&values, [1, 3, 100]).unwrap()).unwrap();
    let column = |f: fn(usize) -> usize| (0..100).map(|j| f(j) as f32).collect::<Vec<_>>();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), column(|j| 3 * j + 300));
    assert_eq!(outputs[1].to_vec::<f32>().unwrap(), column(|j| j + 200));
}
