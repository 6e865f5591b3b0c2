//! Building and loading graphs.

use criterion::Criterion;
use max::graph::GraphError;
use max::prelude::*;

pub fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load");
    let session = InferenceSession::new();
    for count in [1, 10, 100] {
        group.bench_function(format!("build_{count}_ops"), |bencher| {
            bencher.iter(|| graph_of(count).expect("the graph has no mistake"));
        });
        let graph = graph_of(count).expect("the graph has no mistake");
        group.bench_function(format!("load_{count}_ops"), |bencher| {
            bencher.iter(|| session.load(&graph).expect("it loads"));
        });
    }
}

/// A graph of that many ops of different kinds.
fn graph_of(count: usize) -> Result<Graph, GraphError> {
    let ty = TensorType::new(DType::F32, [64, 64], DeviceRef::CPU);
    Graph::build("load", [&ty, &ty], |_, inputs| {
        let (mut x, w) = (inputs[0].tensor()?.clone(), inputs[1].tensor()?);
        for i in 0..count {
            x = match i % 6 {
                0 => ops::relu(x)?,
                1 => ops::add(x, w)?,
                2 => ops::softmax(x, -1)?,
                3 => ops::matmul(x, w)?,
                4 => ops::reshape(x, [64 * 64])?,
                _ => ops::reshape(x, [64, 64])?,
            };
        }
        Ok(x)
    })
}
