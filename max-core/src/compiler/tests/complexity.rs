//! How what `load` does grows with the graph: all passes and the plan, of graphs that are twice as large.

use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::engine::InferenceSession;
use crate::graph::{
    BufferType, Dim, DimSlice, Graph, GraphError, Parameters, TensorType, TensorValue, Type, Value, ops,
};
use crate::kernel::kernel;
use crate::steps;

type Built = Result<TensorValue, GraphError>;

#[kernel(op = "growth_scaled", dtypes(T = [f32]))]
fn scaled<T: Number>(x: T, #[param(default = 1)] by: i64) -> T {
    x * T::from_i64(by)
}

#[kernel(op = "growth_row", dtypes(T = [f32]))]
fn row<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let total = x.sum();
    y.row(row).write(x.map(|v| v - total));
}

#[kernel(op = "growth_sum", dtypes(T = [f32]))]
fn sum<T: Number>(x: T, y: T) -> T {
    x + y
}

fn added(x: &TensorValue, y: &TensorValue) -> Built {
    let ty = TensorType::new(DType::F32, x.shape(), DeviceRef::CPU);
    ops::custom("growth_sum", DeviceRef::CPU, [x, y], [ty], ())?.remove(0).tensor().cloned()
}

fn custom(name: &'static str, x: &TensorValue, parameters: impl Into<Parameters>) -> Built {
    let ty = TensorType::new(DType::F32, x.shape(), DeviceRef::CPU);
    ops::custom(name, DeviceRef::CPU, [x], [ty], parameters)?.remove(0).tensor().cloned()
}

fn elementwise(x: &TensorValue) -> Built {
    custom("growth_scaled", x, [("by", 2)])
}

fn rows(x: &TensorValue) -> Built {
    custom("growth_row", x, ())
}

/// As many links as asked for, each made of the one before, and maybe all of them put together.
fn chain(x: &TensorValue, n: usize, all: bool, link: impl Fn(usize, &TensorValue) -> Built) -> Built {
    let (mut x, mut made) = (x.clone(), Vec::new());
    for i in 0..n {
        x = link(i, &x)?;
        made.push(x.clone());
    }
    if all { ops::concat(made, 0) } else { Ok(x) }
}

/// As many values as asked for, each made of the input, and put together.
fn fan(x: &TensorValue, n: usize, of: impl Fn(usize, &TensorValue) -> Built) -> Built {
    ops::concat((0..n).map(|i| of(i, x)).collect::<Result<Vec<_>, _>>()?, 0)
}

fn buffers(values: &[Value], n: usize) -> Built {
    let (buffer, mut x) = (values[1].buffer()?, values[0].tensor()?.clone());
    for _ in 0..n {
        let loaded = buffer.load()?;
        buffer.store(elementwise(&loaded)?)?;
        x = added(&x, &loaded)?;
    }
    Ok(x)
}

/// The steps that loading takes; the graph is built before.
fn steps_of(shape: &[Dim], n: usize, body: impl Fn(&Graph, &[Value], usize) -> Built) -> usize {
    let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let buffer = BufferType::new(DType::F32, shape, DeviceRef::CPU);
    let inputs: [Type; 2] = [ty.into(), buffer.into()];
    let graph = Graph::build("growth", inputs, |graph, values| body(graph, values, n)).unwrap();
    let session = InferenceSession::new();
    // What is done once, and not for each graph, is done.
    session.load(&graph).unwrap();
    steps::of(|| session.load(&graph).unwrap())
}

#[test]
fn loading_takes_steps_in_proportion_to_the_graph() {
    type Body = (&'static str, fn(&Graph, &[Value], usize) -> Built);
    let bodies: [Body; 12] = [
        ("elementwise", |_, v, n| chain(v[0].tensor()?, n, false, |_, x| elementwise(x))),
        ("elementwise, all needed", |_, v, n| chain(v[0].tensor()?, n, true, |_, x| elementwise(x))),
        ("rows", |_, v, n| chain(v[0].tensor()?, n, false, |_, x| rows(x))),
        ("rows, all needed", |_, v, n| chain(v[0].tensor()?, n, true, |_, x| rows(x))),
        ("rows and elementwise", |_, v, n| {
            chain(v[0].tensor()?, n, false, |i, x| if i % 2 == 0 { rows(x) } else { elementwise(x) })
        }),
        ("transposes", |_, v, n| chain(v[0].tensor()?, n, false, |_, x| rows(&x.t()?))),
        ("parameters", |_, v, n| fan(v[0].tensor()?, n, |i, x| custom("growth_scaled", x, [("by", i as i64)]))),
        ("equal", |_, v, n| fan(v[0].tensor()?, n, |_, x| elementwise(x))),
        ("slices", |_, v, n| {
            let wide = ops::broadcast_to(v[0].tensor()?, (n, 8, 8))?;
            fan(&elementwise(&wide)?, n, |i, x| {
                elementwise(&x.slice_tensor([DimSlice::range(i as i64, i as i64 + 1)])?)
            })
        }),
        ("constants", |g, v, n| {
            chain(v[0].tensor()?, n, false, |i, x| {
                let constant = Tensor::full(i as f32, [8, 8]).unwrap();
                added(x, &ops::constant(g, constant, DType::F32, DeviceRef::CPU)?)
            })
        }),
        ("buffers", |_, v, n| buffers(v, n)),
        ("shapes", |_, v, n| {
            let flat = ops::broadcast_to(v[0].tensor()?, (2 * n, 8, 8))?;
            fan(&elementwise(&flat)?, n, |i, x| {
                elementwise(&ops::flatten(x.slice_tensor([DimSlice::range(0, i as i64 + 1)])?, 0, 1)?)
            })
        }),
    ];
    for (name, body) in bodies {
        let [few, many] = [200, 400].map(|n| steps_of(&[8.into(), 8.into()], n, body));
        assert!(many <= few * 5 / 2, "{name}: {few} steps, then {many}");
    }
}
