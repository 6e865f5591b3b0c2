//! Elementwise ops that run beside the programs of a kernel: the same bits as one op after the other.

use max::graph::{GraphError, ops};
use max::prelude::*;

/// A program has a block of a row, and reads the same block of `x`.
#[kernel(op = "beside_blocks", dtypes(T = [f32]))]
fn blocks<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let [row, part] = program_id();
    y.select(row).block::<16>(part).write(x.row(row).block::<16>(part).map(|v| v + 1.0));
}

type Value = Result<TensorValue, GraphError>;
/// An op: its name, which earlier values it takes (inputs first), and what it adds to a graph.
type Stage<'a> = (&'a str, &'a [usize], &'a dyn Fn(&[TensorValue]) -> Value);

/// Values of a dtype that no two neighbours share.
fn values(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let elements = shape.iter().product::<usize>();
    let x: Vec<f32> = (0..elements).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect();
    let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let graph = Graph::build("cast", ty, |_, x| ops::cast(x[0].tensor()?, dtype)).unwrap();
    let x = Tensor::from_slice(&x, shape).unwrap();
    InferenceSession::new().load(&graph).unwrap().execute([&x]).unwrap().remove(0)
}

fn ty(tensor: &Tensor) -> TensorType {
    tensor.into()
}

fn run(inputs: &[&Tensor], stages: &[Stage<'_>], outputs: &[usize]) -> Vec<Tensor> {
    let types: Vec<TensorType> = inputs.iter().map(|x| ty(x)).collect();
    let graph = Graph::build("beside", types, |_, x| {
        let mut values: Vec<TensorValue> = x.iter().map(|x| x.tensor().cloned()).collect::<Result<_, _>>()?;
        for (_, takes, stage) in stages {
            let taken: Vec<TensorValue> = takes.iter().map(|i| values[*i].clone()).collect();
            values.push(stage(&taken)?);
        }
        Ok::<_, GraphError>(outputs.iter().map(|i| values[*i].clone()).collect::<Vec<_>>())
    })
    .unwrap();
    InferenceSession::new().load(&graph).unwrap().execute(inputs).unwrap()
}

/// Runs the stages as one graph, with only the last value as its output and with several, and as a graph each.
fn check(inputs: &[Tensor], stages: &[Stage<'_>]) {
    let mut values: Vec<Tensor> = inputs.to_vec();
    for stage in stages {
        let taken: Vec<&Tensor> = stage.1.iter().map(|i| &values[*i]).collect();
        let order: Vec<usize> = (0..taken.len()).collect();
        let result = run(&taken, &[(stage.0, &order, stage.2)], &[taken.len()]).remove(0);
        values.push(result);
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let (first, last) = (inputs.len(), values.len() - 1);
    let every: Vec<usize> = (first..=last).collect();
    let mut sets = vec![vec![last], every];
    sets.extend((first..last).map(|i| vec![i, last]));
    for set in sets {
        for (output, i) in run(&inputs, stages, &set).iter().zip(&set) {
            let names: Vec<&str> = stages.iter().map(|stage| stage.0).collect();
            let shapes: Vec<_> = inputs.iter().map(|x| x.shape()).collect();
            let (dtype, name) = (inputs[0].dtype(), names[i - first]);
            let same = output.view(DType::U8, None).unwrap().to_vec::<u8>().unwrap()
                == values[*i].view(DType::U8, None).unwrap().to_vec::<u8>().unwrap();
            assert!(same, "{name} of {names:?} over {shapes:?} of {dtype}, outputs {set:?}");
        }
    }
}

const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

#[test]
fn a_product_goes_on_with_bias_activation_and_residual() {
    for dtype in DTYPES {
        for [m, k, n] in [[1, 5, 3], [7, 70, 33], [8, 64, 2049], [97, 130, 257], [200, 600, 1000], [0, 4, 5], [5, 0, 9]]
        {
            let x = |shape: &[usize], seed| values(dtype, shape, seed);
            let inputs = [x(&[m, k], 1), x(&[k, n], 2), x(&[n], 3), x(&[m, n], 4), x(&[m, 1], 5)];
            check(
                &inputs,
                &[
                    ("matmul", &[0, 1], &|x| ops::matmul(&x[0], &x[1])),
                    ("bias", &[5, 2], &|x| ops::add(&x[0], &x[1])),
                    ("relu", &[6], &|x| ops::relu(&x[0])),
                    ("scale", &[7, 4], &|x| ops::mul(&x[0], &x[1])),
                    ("residual", &[8, 3], &|x| ops::add(&x[0], &x[1])),
                    ("cast", &[9], &|x| ops::cast(&x[0], DType::F32)),
                ],
            );
        }
    }
}

#[test]
fn batches_of_products_go_on_with_a_broadcast_operand() {
    for [b, m, k, n] in [[3, 5, 8, 7], [2, 97, 64, 300], [5, 1, 33, 64]] {
        let x = |shape: &[usize], seed| values(DType::F32, shape, seed);
        check(
            &[x(&[b, m, k], 1), x(&[b, k, n], 2), x(&[b, 1, n], 3)],
            &[
                ("matmul", &[0, 1], &|x| ops::matmul(&x[0], &x[1])),
                ("add", &[3, 2], &|x| ops::add(&x[0], &x[1])),
                ("tanh", &[4], &|x| ops::tanh(&x[0])),
            ],
        );
    }
}

#[test]
fn rows_are_computed_before_and_after_a_row_kernel() {
    for dtype in DTYPES {
        for [a, b, n] in [[1, 1, 1], [2, 3, 5], [40, 10, 64], [1, 9, 1030], [3, 100, 257], [2, 0, 5], [1, 2, 70_000]] {
            let x = |shape: &[usize], seed| values(dtype, shape, seed);
            check(
                &[x(&[a, b, n], 1), x(&[a, b, n], 2), x(&[n], 3), x(&[b, n], 4)],
                &[
                    ("residual", &[0, 1], &|x| ops::add(&x[0], &x[1])),
                    ("rms_norm", &[4, 2], &|x| ops::rms_norm(&x[0], &x[1], 1e-5)),
                    ("scale", &[5, 3], &|x| ops::mul(&x[0], &x[1])),
                    ("again", &[6, 4], &|x| ops::add(&x[0], &x[1])),
                    ("softmax", &[7], &|x| ops::softmax(&x[0], -1)),
                    ("square", &[8], &|x| ops::mul(&x[0], &x[0])),
                ],
            );
            check(
                &[x(&[a, b, n], 1), x(&[b, n], 2)],
                &[
                    ("mask", &[0, 1], &|x| ops::add(&x[0], &x[1])),
                    ("softmax", &[2], &|x| ops::softmax(&x[0], -1)),
                    ("sum", &[3], &|x| ops::sum(&x[0], -1)),
                    ("sqrt", &[4], &|x| ops::sqrt(&x[0])),
                    ("divide", &[3, 5], &|x| ops::div(&x[0], &x[1])),
                ],
            );
            // Along another axis, in columns.
            check(
                &[x(&[a, b, n], 1), x(&[a, 1, n], 2)],
                &[
                    ("negate", &[0], &|x| ops::negate(&x[0])),
                    ("sum", &[2], &|x| ops::sum(&x[0], 1)),
                    ("add", &[3, 1], &|x| ops::add(&x[0], &x[1])),
                    ("cumsum", &[4], &|x| ops::cumsum(&x[0], 2, false, false)),
                ],
            );
        }
    }
}

#[test]
fn blocks_of_rows_are_the_programs_own() {
    for shape in [[16, 16], [64, 64], [64, 65], [3, 200]] {
        let blocks = |x: &[TensorValue]| {
            let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
            ops::custom("beside_blocks", DeviceRef::CPU, [x[0].clone()], [ty], ())?.remove(0).tensor().cloned()
        };
        check(
            &[values(DType::F32, &shape, 1), values(DType::F32, &[shape[1]], 2)],
            &[
                ("scale", &[0, 1], &|x| ops::mul(&x[0], &x[1])),
                ("blocks", &[2], &blocks),
                ("tanh", &[3], &|x| ops::tanh(&x[0])),
            ],
        );
    }
}
