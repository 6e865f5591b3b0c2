//! Microbenchmarks of graphs on the CPU: what a call costs, elementwise ops, rows, matrix products, loading.
//!
//! `cargo bench` runs them all, `cargo bench -- softmax` those with that name, `cargo bench -- --test` each once. Rates
//! are of the bytes that an op must move, or of its arithmetic operations. `max bench` times more works, beside the floor
//! that the machine sets; these give criterion's statistics and its comparison with the run before.

mod elementwise;
mod launch;
mod load;
mod matmul;
mod rows;

use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use max::graph::GraphError;
use max::prelude::*;

criterion_group! {
    name = graphs;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = launch::benches, elementwise::benches, rows::benches, matmul::benches, load::benches
}
criterion_main!(graphs);

/// What a benchmark's rate counts.
enum Work {
    /// Bytes read and written.
    Bytes(usize),
    /// Arithmetic operations, shown as elements.
    Flops(usize),
}

/// Times the graph that `body` builds, on operands of these shapes.
fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    work: Work,
    dtype: DType,
    shapes: &[&[usize]],
    body: impl Fn(&[TensorValue]) -> Result<TensorValue, GraphError>,
) {
    let types: Vec<TensorType> = shapes.iter().map(|shape| TensorType::new(dtype, *shape, DeviceRef::CPU)).collect();
    let graph = Graph::build(name, types, |_, inputs| {
        body(&inputs.iter().map(|input| input.tensor().cloned()).collect::<Result<Vec<_>, _>>()?)
    });
    let model = InferenceSession::new().load(&graph.expect("the graph has no mistake")).expect("it loads");
    let inputs: Vec<Tensor> = shapes.iter().zip(1..).map(|(shape, seed)| normal(dtype, shape, seed)).collect();
    group.throughput(match work {
        Work::Bytes(bytes) => Throughput::BytesDecimal(bytes as u64),
        Work::Flops(flops) => Throughput::Elements(flops as u64),
    });
    group.bench_function(name, |bencher| bencher.iter(|| model.execute(&inputs).expect("it executes")));
}

/// Numbers with mean 0 and deviation 1: sums of twelve that are equally likely from -1/2 to 1/2.
fn normal(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    use max::dtype::Element;
    let mut state = seed;
    let mut uniform = move || {
        // The generator of Knuth's MMIX; its high bits are good.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64 - 0.5
    };
    let mut next = || (0..12).map(|_| uniform()).sum::<f64>();
    let count = shape.iter().product();
    max::dispatch!(dtype, T => {
        let values: Vec<T> = (0..count).map(|_| T::from_f64(next())).collect();
        Tensor::from_vec(values, shape).expect("there is memory for it")
    })
}
