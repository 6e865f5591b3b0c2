//! Random programs of elementwise kernels, which run tile by tile in regions, against one op after the other.

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::graph::{Graph, Parameters, TensorType, TensorValue, Value, ops};
use proptest::prelude::*;

/// An op on values picked among those that there are.
#[derive(Clone, Copy, Debug)]
enum Step {
    Relu(usize),
    Add(usize, usize),
    Mul(usize, usize),
    Order(usize, usize),
    Widen(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let n = 0usize..20;
    prop_oneof![
        n.clone().prop_map(Step::Relu),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Add(a, b)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Mul(a, b)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Order(a, b)),
        n.prop_map(Step::Widen),
    ]
}

/// A value of the graph, and its elements.
type Pair = (TensorValue, Vec<f32>);

fn custom(name: &str, operands: &[&TensorValue], dtype: DType, results: usize) -> Vec<TensorValue> {
    let ty = TensorType::new(dtype, operands[0].shape(), DeviceRef::CPU);
    let operands: Vec<Value> = operands.iter().map(|&value| value.into()).collect();
    let values = ops::custom(name, DeviceRef::CPU, operands, vec![ty; results], Parameters::new()).unwrap();
    values.iter().map(|value| value.tensor().unwrap().clone()).collect()
}

fn apply(step: Step, pool: &mut Vec<Pair>) {
    let pick = |i: usize| pool[i % pool.len()].clone();
    let zip = |a: &[f32], b: &[f32], f: fn(f32, f32) -> f32| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
    let new: Vec<Pair> = match step {
        Step::Relu(x) => {
            let (value, elements) = pick(x);
            vec![(ops::relu(value).unwrap(), elements.iter().map(|x| x.max(0.0)).collect())]
        }
        Step::Add(x, y) => {
            let (x, y) = (pick(x), pick(y));
            vec![(ops::add(x.0, y.0).unwrap(), zip(&x.1, &y.1, |a, b| a + b))]
        }
        Step::Mul(x, y) => {
            let (x, y) = (pick(x), pick(y));
            vec![(ops::mul(x.0, y.0).unwrap(), zip(&x.1, &y.1, |a, b| a * b))]
        }
        Step::Order(x, y) => {
            let (x, y) = (pick(x), pick(y));
            let results = custom("order", &[&x.0, &y.0], DType::F32, 2);
            let elements = [zip(&x.1, &y.1, f32::min), zip(&x.1, &y.1, f32::max)];
            results.into_iter().zip(elements).collect()
        }
        Step::Widen(x) => {
            let (value, elements) = pick(x);
            let wide = custom("widen", &[&value], DType::F64, 1);
            let narrow = custom("narrow", &[&wide[0]], DType::F32, 1);
            vec![(narrow[0].clone(), elements)]
        }
    };
    pool.extend(new);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn regions_compute_what_their_kernels_do(
        shape in prop_oneof![
            Just([0usize, 3]), Just([1, 1]), Just([5, 3]), Just([37, 50]), Just([3, 1025]), Just([700, 7]), Just([2, 20_000]), Just([37, 300])
        ],
        symbolic in any::<bool>(),
        program in prop::collection::vec(steps(), 1..24),
        outputs in prop::collection::vec(0usize..40, 1..4),
    ) {
        let [m, n] = shape;
        // A matrix, a row and a column, a scalar, and a matrix in the other order.
        let shapes: [&[usize]; 5] = [&[m, n], &[n], &[m, 1], &[], &[n, m]];
        let inputs = shapes.map(|shape| {
            let tensor = count(shape);
            let small: Vec<f32> = values(&tensor).iter().map(|x| (x * 7.0) % 5.0 - 2.0).collect();
            Tensor::from_slice(&small, shape).unwrap()
        });
        let types = match symbolic {
            false => shapes.map(f32s).to_vec(),
            true => vec![f32s(("m", "n")), f32s(("n",)), f32s(("m", 1)), f32s(()), f32s(("n", "m"))],
        };
        let graph = Graph::new("fused", types);
        let mut pool: Vec<Pair> = Vec::new();
        for (value, tensor) in graph.inputs().iter().zip(&inputs) {
            let value = value.tensor().unwrap();
            let turned = pool.len() == 4;
            let (value, tensor) = if turned { (value.t().unwrap(), tensor.transpose(0, 1).unwrap()) } else { (value.clone(), tensor.clone()) };
            let full = pool.first().map_or(value.shape().clone(), |(first, _)| first.shape().clone());
            pool.push((value.broadcast_to(full).unwrap(), values(&tensor.broadcast_to([m, n]).unwrap())));
        }
        program.iter().for_each(|step| apply(*step, &mut pool));
        let picked: Vec<Pair> = outputs.iter().map(|i| pool[pool.len() - 1 - i % pool.len()].clone()).collect();
        graph.output(picked.iter().map(|(value, _)| value.clone()).collect::<Vec<_>>()).unwrap();
        let results = load(&graph).execute(&inputs).unwrap();
        for (result, (_, expected)) in results.iter().zip(&picked) {
            prop_assert_eq!(result.shape(), shape);
            let bits = |values: &[f32]| values.iter().map(|v| if v.is_nan() { 0 } else { (v + 0.0).to_bits() }).collect::<Vec<_>>();
            prop_assert!(bits(&values(result)) == bits(expected));
        }
    }
}

#[test]
fn rows_of_transposed_operands_are_gathered_together() {
    // Rows and columns behind the last whole square, several tiles in a row, and batches.
    for [b, m, n] in [[1, 16, 512], [2, 37, 300], [3, 15, 257], [1, 5, 2500], [2, 1, 400]] {
        let inputs = [count(&[b, m, n]), count(&[b, n, m]), count(&[b, n, m])];
        let f32s = |shape: [usize; 3]| TensorType::new(DType::F32, shape.map(|n| n as i64), DeviceRef::CPU);
        let graph = Graph::new("transposed", [f32s([b, m, n]), f32s([b, n, m]), f32s([b, n, m])]);
        let [x, y, z] = [0, 1, 2].map(|i| graph.inputs()[i].tensor().unwrap().clone());
        let turned = |x: TensorValue| ops::permute(x, [0, 2, 1]).unwrap();
        let sum = ops::add(ops::mul(x, turned(y)).unwrap(), turned(z)).unwrap();
        graph.output([ops::relu(sum).unwrap()]).unwrap();
        let result = &load(&graph).execute(&inputs).unwrap()[0];
        let [x, y, z] = [0, 1, 2].map(|i| values(&inputs[i]));
        for (at, got) in values(result).into_iter().enumerate() {
            let turned = at / (m * n) * m * n + at % n * m + at / n % m;
            let want = (x[at] * y[turned] + z[turned]).max(0.0);
            assert_eq!(got, want, "element {at} of {b}, {m}, {n}");
        }
    }
}
