//! The code of `docs/guide/18-control-flow-in-graphs.md`.

use std::collections::HashMap;
use std::time::Duration;

use max::engine::ExecuteOptions;
use max::graph::{GraphError, Weight};
use max::prelude::*;

type GraphResult<T> = Result<T, GraphError>;

/// The square root of each element, by Newton's rule, until a round changes little.
fn square_root(x: &TensorValue) -> GraphResult<Vec<TensorValue>> {
    let start = ops::add(ops::mul(x, 0.5)?, 0.5)?;
    let far = ops::abs(ops::sub(&start, x)?)?;
    ops::while_loop(
        (&start, &far),
        |v| ops::greater(ops::max(&v[1], 0)?, 1e-6),
        |v| {
            let next = ops::mul(ops::add(&v[0], ops::div(x, &v[0])?)?, 0.5)?;
            let change = ops::abs(ops::sub(&next, &v[0])?)?;
            Ok((next, change))
        },
    )
}

/// Counts what is negative in a batch, if anything is.
fn count_negative(x: &TensorValue, count: &BufferValue) -> GraphResult<()> {
    let negative = ops::cast(ops::greater(0, x)?, DType::I64)?;
    let found = ops::sum(negative, 0)?;
    let any = ops::greater(&found, 0)?;
    ops::cond(&any, (), || count.store(ops::add(count.load()?, &found)?), || Ok(()))?;
    Ok(())
}

fn bounded(model: &Model, x: &Tensor) -> Result<Vec<Tensor>, max::engine::EngineError> {
    let options = ExecuteOptions::new().timeout(Duration::from_secs(5));
    model.execute_with(x, &options)
}

/// `layers` residual layers with a scale each.
fn layers(graph: &Graph, x: &TensorValue, layers: usize) -> GraphResult<TensorValue> {
    let layer = graph.add_subgraph("layer", x.ty(), |layer, inputs| {
        let x = inputs[0].tensor()?;
        let scale = layer.add_weight(&Weight::new("scale", DType::F32, [4], DeviceRef::CPU))?;
        ops::add(x, ops::tanh(ops::mul(x, scale)?)?)
    })?;
    let mut x = x.clone();
    for index in 0..layers {
        x = ops::call(&layer, &x, &format!("layers.{index}."))?[0].tensor()?.clone();
    }
    Ok(x)
}

/// The positive elements, doubled, and their positions behind those that were seen before.
fn positive(graph: &Graph, x: &TensorValue) -> GraphResult<(TensorValue, TensorValue)> {
    let places = ops::nonzero(ops::relu(x)?, "found")?;
    let found = ops::gather(x, ops::reshape(&places, (-1,))?, 0)?;
    let seen = Dim::from("seen");
    let positions = ops::range(graph, &seen, &seen + Dim::from("found"), 1, DType::I64, DeviceRef::CPU)?;
    Ok((ops::mul(found, 2.0)?, positions))
}

fn there_and_back(graph: &Graph, path: &std::path::Path) -> GraphResult<Graph> {
    graph.save(path)?;
    Graph::load(path)
}

fn load(graph: GraphResult<Graph>) -> Model {
    InferenceSession::new().load(&graph.unwrap()).unwrap()
}

#[test]
fn loops_and_branches() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let model = load(Graph::build("roots", &ty, |_, inputs| Ok(square_root(inputs[0].tensor()?)?.remove(0))));
    let x = crate::f32s(&[1.0, 2.0, 144.0, 0.25]);
    let roots = bounded(&model, &x).unwrap()[0].to_vec::<f32>().unwrap();
    for (root, x) in roots.iter().zip(x.to_vec::<f32>().unwrap()) {
        assert!((root * root - x).abs() < 1e-3 * x, "{root} of {x}");
    }
    let count = BufferType::new(DType::I64, (1,), DeviceRef::CPU);
    let model = load(Graph::build("count", (&ty, &count), |_, inputs| {
        count_negative(inputs[0].tensor()?, inputs[1].buffer()?)
    }));
    let mut count = Tensor::from_slice(&[10i64], [1]).unwrap();
    for (x, expected) in [(vec![1.0, 2.0], 10), (vec![-1.0, 2.0, -3.0], 12), (vec![], 12)] {
        model.execute((&crate::f32s(&x), &mut count)).unwrap();
        assert_eq!(count.to_vec::<i64>().unwrap(), [expected]);
    }
}

#[test]
fn subgraphs_and_sizes() {
    let ty = TensorType::new(DType::F32, ("n", 4), DeviceRef::CPU);
    let graph = Graph::build("net", &ty, |graph, inputs| layers(graph, inputs[0].tensor()?, 3)).unwrap();
    let weights: HashMap<String, Tensor> =
        (0..3).map(|i| (format!("layers.{i}.scale"), Tensor::full(i as f32, [4]).unwrap())).collect();
    let model = InferenceSession::new().load_with_weights(&graph, &weights).unwrap();
    let y = model.execute(&Tensor::full(1.0f32, [1, 4]).unwrap()).unwrap()[0].to_vec::<f32>().unwrap();
    let expected = (0..3).fold(1.0f64, |x, i| x + (x * f64::from(i)).tanh());
    assert!(y.iter().all(|v| (f64::from(*v) - expected).abs() < 1e-5), "{y:?} and {expected}");
    let types =
        [TensorType::new(DType::F32, ("n",), DeviceRef::CPU), TensorType::new(DType::F32, ("seen",), DeviceRef::CPU)];
    let graph = Graph::build("positive", types, |graph, inputs| positive(graph, inputs[0].tensor()?)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let graph = there_and_back(&graph, &folder.path().join("positive.max")).unwrap();
    let x = crate::f32s(&[-1.0, 2.0, 0.0, 3.0]);
    let results = load(Ok(graph)).execute([&x, &crate::f32s(&[0.0; 5])]).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [4.0, 6.0]);
    assert_eq!(results[1].to_vec::<i64>().unwrap(), [5, 6]);
}
