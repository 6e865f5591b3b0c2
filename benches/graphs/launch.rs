//! What a call costs when there is next to nothing to compute.

use criterion::Criterion;
use max::prelude::*;

use crate::{Work, bench};

pub fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("launch");
    bench(&mut group, "relu_5", Work::Bytes(40), DType::F32, &[&[5]], |x| ops::relu(&x[0]));
    bench(&mut group, "scalar_add", Work::Bytes(12), DType::F32, &[&[], &[]], |x| ops::add(&x[0], &x[1]));
    bench(&mut group, "ten_ops_5", Work::Bytes(40), DType::F32, &[&[5]], |x| {
        (0..10).try_fold(x[0].clone(), |x, i| if i % 2 == 0 { ops::relu(x) } else { ops::add(x, 1.0) })
    });

    // A size that is bound when the model executes.
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("symbolic", [ty], |_, inputs| ops::relu(&inputs[0])).expect("the graph has no mistake");
    let model = InferenceSession::new().load(&graph).expect("it loads");
    let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0, -4.0, 5.0], [5]).expect("there is memory for it");
    group.bench_function("relu_symbolic_5", |bencher| bencher.iter(|| model.execute(&x).expect("it executes")));
}
