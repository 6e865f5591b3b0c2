//! The code of `docs/guide/08-parameters.md`.

use max::prelude::*;

use crate::{close, f32s, run, run_as};

/// Limits `x` to a range, and optionally counts from its middle.
#[kernel(op = "guide_limit")]
fn limit<T: Float>(x: T, #[param] low: f64, #[param] high: f64, #[param(default = false)] centered: bool) -> T {
    let y = x.clamp(low as T, high as T);
    if centered { y - ((low + high) / 2.0) as T } else { y }
}

/// An activation function by name.
#[kernel(op = "guide_activate", dtypes(T = [f32, bf16]))]
fn activate<T: Float>(x: T, #[param(default = "relu", choices("relu", "silu", "tanh"))] kind: &str) -> T {
    if kind == "tanh" {
        x.tanh()
    } else if kind == "silu" {
        x * x.sigmoid()
    } else {
        x.max(0)
    }
}

fn limited(centered: bool) -> max::Result<Model> {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("limited", [&ty], |_, inputs| {
        let parameters = Parameters::new().with("low", -1.0).with("high", 3.0).with("centered", centered);
        ops::custom("guide_limit", DeviceRef::CPU, inputs, &ty, parameters)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

/// Rows times a number, and a bias added to each, if there is one.
#[kernel(op = "guide_scale_rows", dtypes(T = [bf16, f32]))]
fn scale_rows<T: Float>(y: Out<T, 2>, x: In<T, 2>, bias: Option<In<T, 1>>, #[param] factor: f64) {
    let i = program_id(0);
    let x = x.row(i);
    if let Some(bias) = bias {
        y.row(i).write(x.zip(bias).map(|(x, b)| x * factor as T + b));
    } else {
        y.row(i).write(x.map(|x| x * factor as T));
    }
}

fn scaled(values: &[&TensorValue], rows: &TensorType) -> max::Result<Value> {
    let parameters = Parameters::new().with("factor", 2.0).with("bias", values.len() == 2);
    Ok(ops::custom("guide_scale_rows", DeviceRef::CPU, values, rows, parameters)?.remove(0))
}

/// A product of matrices.
#[kernel(
    op = "guide_product",
    dtypes(T = [bf16, f32]),
    tile(
        BM = 64, BN = 64, BK = 64,
        when(a.dim(0) <= 8, BM = 8, BN = 256),
        v2(BM = 4, BN = 16),
        gpu(BM = 64, BN = 64, BK = 32),
        gpu(a.dim(0) <= 1, BM = 1, BN = 32, BK = 128),
        sm_90a(T = [bf16], BM = 128, BN = 256, BK = 64),
        sm_90a(T = [bf16], BM = 128, BN = 128, BK = 64),
    )
)]
fn product<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

#[test]
fn tile_sizes_are_of_the_target() {
    let product = product::def();
    assert_eq!(product.gpu_tile.as_slice(), [64, 64, 32]);
    let special: Vec<&[u64]> = product.gpu_tiles.as_slice().iter().map(|tile| tile.tile.as_slice()).collect();
    assert_eq!(special, [[1, 32, 128], [128, 256, 64], [128, 128, 64]]);
    assert_eq!(product.conditions_of(&product.gpu_tiles.as_slice()[0]), "a.dim(0) <= 1");
    for (sm, arch_specific, dtype, expected) in [
        (90, true, DType::BF16, "128x256"),
        (90, true, DType::F32, "64x64"),
        (90, false, DType::BF16, "64x64"),
        (80, false, DType::BF16, "64x64"),
    ] {
        let text = product.ir_text_on(max::kernel::ptx::Target { sm, arch_specific }, &[dtype], None).unwrap();
        assert!(text.contains(&format!("tile<f32, {expected}>")), "{sm} {dtype}: {text}");
    }
    let (a, b) = (f32s(&[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]).unwrap(), f32s(&[5.0, 6.0, 7.0, 8.0]));
    let results = run("guide_product", &[a, b.reshape([2, 2]).unwrap()], &[DType::F32], ());
    close(&results[0], &[19.0, 22.0, 43.0, 50.0]);
}

#[test]
fn parameters_reach_the_kernel() {
    let x = f32s(&[-5.0, 0.0, 5.0]);
    for (centered, expected) in [(false, [-1.0, 0.0, 3.0]), (true, [-2.0, -1.0, 2.0])] {
        let y = limited(centered).unwrap().execute(&x).unwrap().remove(0);
        assert_eq!(y.as_slice::<f32>().unwrap(), expected);
    }
}

#[test]
fn operands_may_be_absent() {
    let (x, bias) = (f32s(&[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]).unwrap(), f32s(&[10.0, 20.0]));
    let factor = [("factor", 2.0)];
    close(&run("guide_scale_rows", &[x.clone(), bias.clone()], &[DType::F32], factor)[0], &[12.0, 24.0, 16.0, 28.0]);
    close(&run("guide_scale_rows", std::slice::from_ref(&x), &[DType::F32], factor)[0], &[2.0, 4.0, 6.0, 8.0]);
    // A value of an operand that is said to be absent is not read.
    let without = Parameters::new().with("factor", 2.0).with("bias", false);
    let nan = f32s(&[f32::NAN, f32::NAN]);
    close(&run("guide_scale_rows", &[x.clone(), nan], &[DType::F32], without)[0], &[2.0, 4.0, 6.0, 8.0]);
    let (rows, row) =
        (TensorType::new(DType::F32, ("n", 2), DeviceRef::CPU), TensorType::new(DType::F32, (2,), DeviceRef::CPU));
    let graph = Graph::build("scaled", [&rows, &row], |_, x| {
        let (x, bias) = (x[0].tensor().unwrap(), x[1].tensor().unwrap());
        let [a, b] = [scaled(&[x], &rows), scaled(&[x, bias], &rows)].map(|y| y.expect("an op"));
        Ok::<_, max::graph::GraphError>(vec![a, b])
    });
    let y = InferenceSession::new().load(&graph.unwrap()).unwrap().execute((&x, &bias)).unwrap();
    close(&y[0], &[2.0, 4.0, 6.0, 8.0]);
    close(&y[1], &[12.0, 24.0, 16.0, 28.0]);
    // Too few values, and one that the kernel does not do without.
    let short = Graph::build("short", [&rows], |graph, _| {
        let none: [&Value; 0] = [];
        graph.custom("guide_scale_rows", DeviceRef::CPU, none, &rows, [("factor", 2.0)])
    });
    let error = short.unwrap_err().to_string();
    assert!(error.contains("the kernel takes 2 values, got 1") && error.contains("bias: Option<In<T, 1>>"), "{error}");
}

#[test]
fn strings_choose() {
    let x = [-1.0f32, 2.0];
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], ())[0], &[0.0, 2.0]);
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], [("kind", "tanh")])[0], &x.map(f32::tanh));
    let silu = x.map(|x| x / (1.0 + (-x).exp()));
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], [("kind", "silu")])[0], &silu);
    let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let graph = Graph::build("unknown", [&ty], |_, inputs| {
        ops::custom("guide_activate", DeviceRef::CPU, inputs, &ty, [("kind", "gelu")])
    });
    let error = graph.unwrap_err().to_string();
    assert!(error.contains("gelu") && error.contains("silu"), "{error}");
}

/// The sums of windows of `size` elements, the next one `step` further on.
#[kernel(op = "guide_windows", grid((x.dim(0) - size) / step + 1))]
fn windows<T: Number>(y: Out<T, 1>, x: In<T, 1>, #[param] size: i64, #[param(default = 1)] step: i64) {
    let i = program_id(0);
    y.set(i, x.slice(i * step, size).sum());
}

fn halves() -> max::Result<Model> {
    let ty = |n: Dim| TensorType::new(DType::F32, [n], DeviceRef::CPU);
    let graph = Graph::build("halves", [ty(Dim::from("n"))], |_, inputs| {
        // Two windows, each of half of the elements.
        let half = Dim::from("n") / 2;
        let parameters = Parameters::new().with("size", half.clone()).with("step", half);
        ops::custom("guide_windows", DeviceRef::CPU, inputs, ty(Dim::from(2)), parameters)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

#[test]
fn grids_depend_on_dims_of_each_execution() {
    let model = halves().unwrap();
    for n in [10, 4, 7] {
        let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        let half = n / 2;
        let expected = [x[..half].iter().sum::<f32>(), x[half..2 * half].iter().sum()];
        assert_eq!(model.execute(&f32s(&x)).unwrap()[0].as_slice::<f32>().unwrap(), expected);
    }
    let windows = run_as("guide_windows", &[f32s(&[1.0, 2.0, 3.0, 4.0])], &[(DType::F32, &[3])], [("size", 2)]);
    assert_eq!(windows[0].as_slice::<f32>().unwrap(), [3.0, 5.0, 7.0]);
}
