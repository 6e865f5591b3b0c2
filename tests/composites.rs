//! What a program writes in terms of several ops is one kernel, and computes what the ops compute.

use max::graph::GraphError;
use max::prelude::*;

/// The names of the steps of a graph.
fn steps(graph: &Graph) -> Vec<String> {
    let text = InferenceSession::new().explain(graph, &()).unwrap();
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let name = |line: &str| line.split_once(": ").and_then(|(_, rest)| rest.split_once(" on ")).unwrap().0.to_owned();
    text.lines().filter(begins).map(name).collect()
}

fn f32s(shape: impl Into<max::graph::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape, DeviceRef::CPU)
}

/// Numbers of both signs.
fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0;
    Tensor::from_vec((0..count).map(value).collect(), shape).unwrap()
}

/// The graph is these steps, and computes what `parts` computes, whose values are all returned, so that nothing is one kernel.
fn compare(
    types: &[TensorType],
    expected: &[&str],
    body: impl Fn(&[Value], &mut Vec<TensorValue>) -> Result<TensorValue, GraphError>,
) {
    let build = |all: bool| {
        Graph::build("composite", types.to_vec(), |_, inputs| {
            let mut parts = Vec::new();
            let result = body(inputs, &mut parts)?;
            parts.truncate(if all { parts.len() } else { 0 });
            parts.insert(0, result);
            Ok(parts)
        })
        .unwrap()
    };
    let (whole, parts) = (build(false), build(true));
    assert_eq!(steps(&whole), expected);
    let session = InferenceSession::new();
    let size =
        |ty: &TensorType| -> Vec<usize> { ty.shape.iter().map(|dim| dim.as_static().unwrap_or(5) as usize).collect() };
    let inputs: Vec<Tensor> = types.iter().map(|ty| numbers(&size(ty))).collect();
    let [whole, parts] = [whole, parts].map(|graph| session.load(&graph).unwrap().execute(&inputs[..]).unwrap());
    let [whole, parts] = [&whole[0], &parts[0]].map(|tensor| tensor.to_vec::<f32>().unwrap());
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{whole:?}\n{parts:?}");
    }
}

#[test]
fn norms_and_softmax() {
    compare(&[f32s(("n", 24))], &["softmax"], |x, parts| {
        let e = ops::exp(ops::sub(&x[0], ops::max(&x[0], -1)?)?)?;
        parts.push(e.clone());
        ops::div(&e, ops::sum(&e, -1)?)
    });
    let (x, w) = (f32s(("n", 3, 24)), f32s((24,)));
    compare(&[x.clone(), w.clone()], &["rms_norm"], |x, parts| {
        let mean = ops::mean(ops::mul(&x[0], &x[0])?, -1)?;
        parts.push(mean.clone());
        ops::mul(&x[1], ops::mul(&x[0], ops::rsqrt(ops::add(mean, 1e-3)?)?)?)
    });
    compare(&[x, w.clone(), w], &["layer_norm"], |x, parts| {
        let d = ops::sub(&x[0], ops::mean(&x[0], -1)?)?;
        parts.push(d.clone());
        let y = ops::mul(&d, ops::rsqrt(ops::add(ops::mean(ops::mul(&d, &d)?, -1)?, 1e-3)?)?)?;
        ops::add(ops::mul(y, &x[1])?, &x[2])
    });
}

#[test]
fn attention() {
    let heads = f32s((2, 4, "n", 8));
    let types = [heads.clone(), heads.clone(), heads, f32s(("n", "n"))];
    for masked in [false, true] {
        compare(&types, &["attention"], |x, parts| {
            let keys = ops::transpose(&x[1], -2, -1)?;
            let mut scores = ops::mul(ops::matmul(&x[0], keys)?, 0.25)?;
            if masked {
                scores = ops::add(scores, &x[3])?;
            }
            let weights = ops::softmax(scores, -1)?;
            parts.push(weights.clone());
            ops::matmul(weights, &x[2])
        });
    }
}

/// What a graph of these inputs computes.
fn computed(inputs: &[Tensor], body: impl Fn(&[Value]) -> Result<TensorValue, GraphError>) -> Tensor {
    let sizes = |x: &Tensor| x.shape().iter().map(|size| *size as i64).collect::<Vec<_>>();
    let ty = |x: &Tensor| TensorType::new(x.dtype(), sizes(x), DeviceRef::CPU);
    let graph = Graph::build("g", inputs.iter().map(ty).collect::<Vec<_>>(), |_, x| body(x)).unwrap();
    InferenceSession::new().load(&graph).unwrap().execute(inputs).unwrap().remove(0)
}

#[test]
fn products_of_integers_wrap_around() {
    let values = |count: usize, step: i64| (0..count as i64).map(|i| (i * step + 11) % 251 - 99).collect::<Vec<_>>();
    let (batch, m, k, n) = (2, 3, 40, 5);
    let (a, b) = (values(batch * m * k, 37), values(batch * k * n, 53));
    for dtype in [DType::I8, DType::U8, DType::I16, DType::I32, DType::U32, DType::I64] {
        for stacked in [false, true] {
            let b = if stacked { &b[..] } else { &b[..k * n] };
            let b_shape = if stacked { vec![batch, k, n] } else { vec![k, n] };
            let inputs = [Tensor::from_slice(&a, [batch, m, k]).unwrap(), Tensor::from_slice(b, b_shape).unwrap()];
            // Of the low bits alone, as all sums and products of them.
            let low = |x: &Value| ops::cast(x, dtype);
            let found = computed(&inputs, |x| ops::cast(ops::matmul(low(&x[0])?, low(&x[1])?)?, DType::I64));
            let exact = computed(&inputs, |x| ops::cast(ops::cast(ops::matmul(&x[0], &x[1])?, dtype)?, DType::I64));
            assert_eq!(found.to_vec::<i64>().unwrap(), exact.to_vec::<i64>().unwrap(), "{dtype}");
            for (at, sum) in
                computed(&inputs, |x| ops::matmul(&x[0], &x[1])).to_vec::<i64>().unwrap().iter().enumerate()
            {
                let (i, row, column) = (at / n / m, at / n % m, at % n);
                let from = if stacked { i * k * n } else { 0 };
                let naive: i64 = (0..k).map(|j| a[(i * m + row) * k + j] * b[from + j * n + column]).sum();
                assert_eq!(*sum, naive);
            }
        }
    }
}

#[test]
fn groups_of_transposed_convolutions_are_convolutions_of_their_own() {
    let (image, filter) = (numbers(&[2, 4, 5, 6]), numbers(&[3, 2, 4, 6]));
    let options = ops::ConvOptions::<2> { stride: [2, 1], padding: [[1, 0], [0, 1]], ..Default::default() };
    let whole = computed(&[image.clone(), filter.clone()], |x| {
        ops::conv2d_transpose(&x[0], &x[1], None, ops::ConvOptions { groups: 3, ..options }, [1, 0])
    });
    let parts = computed(&[image, filter], |x| {
        let of = |x: &Value, group: i64| {
            let all = || max::graph::DimSlice::from(..);
            ops::slice_tensor(x, [all(), all(), all(), (2 * group..2 * group + 2).into()])
        };
        let group = |i| ops::conv2d_transpose(of(&x[0], i)?, of(&x[1], i)?, None, options, [1, 0]);
        ops::concat([group(0)?, group(1)?, group(2)?], 3)
    });
    assert_eq!(whole.shape(), [2, 9, 5, 12]);
    for (a, b) in whole.to_vec::<f32>().unwrap().iter().zip(parts.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-5, "{a} {b}");
    }
}

/// Longer than a matrix of constants allows: of two factors, and a prime number.
#[test]
fn long_transforms() {
    use max::graph::ops::Normalization;
    for (n, given, complex) in [(4500usize, 2251usize, true), (5000, 2400, true), (4224, 3000, false), (4099, 40, true)]
    {
        let x = numbers(&if complex { vec![2, given, 2] } else { vec![2, given] });
        let y = computed(std::slice::from_ref(&x), |v| {
            ops::irfft(&v[0], Some(n), if complex { 1 } else { -1 }, Normalization::Ortho, complex)
        });
        assert_eq!(y.shape(), [2, n]);
        let (x, y) = (x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
        for (row, j) in [(0, 0), (0, 1), (1, 17), (1, n / 2), (0, n - 1)] {
            let number = |k: usize| match complex {
                true => (x[(row * given + k) * 2] as f64, x[(row * given + k) * 2 + 1] as f64),
                false => (x[row * given + k] as f64, 0.0),
            };
            let term = |k: usize| {
                let (re, im) = number(k);
                let angle = 2.0 * std::f64::consts::PI * (k * j % n) as f64 / n as f64;
                let alone = k == 0 || 2 * k == n;
                if alone { re * angle.cos() } else { 2.0 * (re * angle.cos() - im * angle.sin()) }
            };
            let sum: f64 = (0..given.min(n / 2 + 1)).map(term).sum::<f64>() / (n as f64).sqrt();
            let found = f64::from(y[row * n + j]);
            assert!((found - sum).abs() < 2e-3, "{n}: {found} {sum}");
        }
    }
}

#[test]
fn products_of_8_bit_floats_with_scales_of_blocks() {
    let (m, n, k) = (3, 4, 64);
    let scales = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        Tensor::from_vec((0..count).map(|i| 0.25 + (i % 5) as f32).collect(), shape).unwrap()
    };
    let inputs = [numbers(&[m, k]), numbers(&[n, k]), scales(&[4, m]), scales(&[2, 4])];
    let found = computed(&inputs, |x| {
        let [a, b] = [0, 1].map(|i| ops::cast(&x[i], DType::F8E4M3FN));
        ops::dynamic_scaled_matmul(a?, b?, &x[2], &x[3], DType::F32)
    });
    // The numbers are sixteenths below 2, of which 8 bits hold some: the same are multiplied here.
    let rounded = |x: &Tensor| {
        let x = computed(std::slice::from_ref(x), |x| ops::cast(ops::cast(&x[0], DType::F8E4M3FN)?, DType::F32));
        x.to_vec::<f32>().unwrap()
    };
    let [a, b] = [&inputs[0], &inputs[1]].map(rounded);
    let [a_scales, b_scales] = [&inputs[2], &inputs[3]].map(|x| x.to_vec::<f32>().unwrap());
    for (at, found) in found.to_vec::<f32>().unwrap().iter().enumerate() {
        let (i, j) = (at / n, at % n);
        let scale = |l: usize| f64::from(a_scales[l / 16 * m + i] * b_scales[j / 2 * 4 + l / 16]);
        let sum: f64 = (0..k).map(|l| f64::from(a[i * k + l] * b[j * k + l]) * scale(l)).sum();
        assert!((f64::from(*found) - sum).abs() <= 1e-5 * sum.abs().max(10.0), "{found} {sum}");
    }
}

#[test]
fn inputs_have_names() {
    let graph = Graph::new("sum", [f32s(("n",)), f32s(("n",))]);
    graph.name_inputs(["prices", "fees"]).unwrap();
    graph.output(ops::sub(&graph.inputs()[0], &graph.inputs()[1]).unwrap()).unwrap();
    let graph = Graph::parse(&graph.to_string()).unwrap();
    let model = InferenceSession::new().load(&graph).unwrap();
    assert_eq!(model.signature(), "sum(prices: float32[n], fees: float32[n]) -> (output0: float32[n])");
    let (a, b) = (numbers(&[3]), Tensor::full(1.0f32, [3]).unwrap());
    let named = model.execute_named([("fees", &b), ("prices", &a)]).unwrap();
    assert_eq!(named[0].to_vec::<f32>().unwrap(), model.execute([&a, &b]).unwrap()[0].to_vec::<f32>().unwrap());
    let error = model.execute([&a]).unwrap_err().to_string();
    assert!(error.contains("prices"), "{error}");
}

#[path = "../max-cli/src/bench/decoder.rs"]
mod decoder;

/// A layer of a decoder in plain ops is few steps, and computes what the ops compute.
#[test]
fn a_layer_of_a_llama_is_nine_steps() {
    let sizes = decoder::Sizes { layers: 2, heads: 4, head_dim: 16, feed_forward: 96 };
    let (graph, weights) = (decoder::decoder(sizes).unwrap(), decoder::weights(sizes).unwrap());
    let text = InferenceSession::new().explain(&graph, &weights).unwrap();
    let steps = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
    assert!(steps <= 2 * 9 + 1, "{steps} steps:\n{text}");
}

/// Sizes that were computed before are those of their shapes.
#[test]
fn executions_on_shapes_that_came_before() {
    let sizes = decoder::Sizes { layers: 1, heads: 4, head_dim: 16, feed_forward: 96 };
    let (graph, weights) = (decoder::decoder(sizes).unwrap(), decoder::weights(sizes).unwrap());
    let load = || InferenceSession::new().load_with_weights(&graph, &weights).unwrap();
    let run = |model: &max::engine::Model, tokens: usize| {
        let inputs = [[tokens, 64], [tokens, 8], [tokens, 8], [tokens, tokens]].map(|shape| numbers(&shape));
        model.execute(&inputs).unwrap()[0].to_vec::<f32>().unwrap()
    };
    let model = load();
    let fresh: Vec<Vec<f32>> = (1..7).map(|tokens| run(&load(), tokens)).collect();
    for tokens in [3, 5, 3, 3, 5, 1, 5, 1, 6, 1, 3, 2, 2, 2] {
        assert_eq!(run(&model, tokens), fresh[tokens - 1], "{tokens} tokens");
    }
}

/// Indices outside of their axis: nothing, or an error of a session that asks for it.
#[test]
fn indices_are_checked() {
    let i64s = |shape: &[i64]| TensorType::new(DType::I64, shape, DeviceRef::CPU);
    let indices = |values: &[i64]| Tensor::from_slice(values, [values.len()]).unwrap();
    let session = InferenceSession::new().check_indices(true);
    let gather = Graph::build("pick", [f32s((4, 2)), i64s(&[3])], |_, x| ops::gather(ops::exp(&x[0])?, &x[1], 0));
    let gather = gather.unwrap();
    let model = session.load(&gather).unwrap();
    assert!(model.execute([&numbers(&[4, 2]), &indices(&[0, -4, 3])]).is_ok());
    for (index, place) in [(4, 2), (-5, 0)] {
        let mut values = [0; 3];
        values[place] = index;
        let inputs = [numbers(&[4, 2]), indices(&values)];
        let error = model.execute(&inputs).unwrap_err().to_string();
        for part in [format!("index {index} at [{place}]"), "takes -4 to 3".to_owned(), "composites.rs".to_owned()] {
            assert!(error.contains(&part), "{error}");
        }
        assert!(InferenceSession::new().load(&gather).unwrap().execute(&inputs).is_ok());
    }
    let types = [f32s((2, 4)), f32s((2, 2)), i64s(&[2, 2])];
    let scatter = Graph::build("put", types, |_, x| ops::scatter_add(&x[0], &x[1], &x[2], 1)).unwrap();
    let at = |values: &[i64; 4]| Tensor::from_slice(values, [2, 2]).unwrap();
    let model = session.load(&scatter).unwrap();
    let run = |values| model.execute([&numbers(&[2, 4]), &numbers(&[2, 2]), &at(values)]);
    assert!(run(&[0, 1, -4, 3]).is_ok());
    let error = run(&[0, 1, 2, 9]).unwrap_err().to_string();
    assert!(error.contains("`scatter_reduce`") && error.contains("index 9 at [1, 1]"), "{error}");
    // Ops that are made of others name no index that is not there.
    let types = [f32s((4,)), TensorType::new(DType::Bool, [4], DeviceRef::CPU), f32s((1,))];
    let graph = Graph::build("parts", types, |_, x| {
        Ok(vec![ops::nonzero(&x[0], "count")?, ops::masked_scatter(&x[0], &x[1], &x[2])?])
    });
    let model = session.load(&graph.unwrap()).unwrap();
    let x = Tensor::from_slice(&[0.0f32, 5.0, 0.0, 7.0], [4]).unwrap();
    let mask = Tensor::from_slice(&[true, false, true, false], [4]).unwrap();
    let found = model.execute([&x, &mask, &Tensor::full(9.0f32, [1]).unwrap()]).unwrap();
    assert_eq!(found[0].to_vec::<i64>().unwrap(), [1, 3]);
    assert_eq!(found[1].to_vec::<f32>().unwrap(), [9.0, 5.0, 0.0, 7.0]);
}

/// A profile counts the operations of products, and shows times beside what the machine needs at least.
#[test]
fn profiles_count_operations() {
    let graph = Graph::build("product", [f32s((8, 16)), f32s((16, 32))], |_, x| ops::relu(ops::matmul(&x[0], &x[1])?));
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let (_, profile) = model.profile([&numbers(&[8, 16]), &numbers(&[16, 32])]).unwrap();
    let operations: Vec<_> = profile.steps().iter().filter_map(|step| step.operations).collect();
    assert_eq!(operations, [2 * 8 * 16 * 32]);
    assert!(!profile.to_string().contains("of floor"), "{profile}");
    let profile = profile.with_floor(|step| step.time / 2);
    let text = profile.to_string();
    assert!(text.contains("of floor") && text.contains(" 50%  "), "{text}");
}
