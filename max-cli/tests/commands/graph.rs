//! `max run`, `max compile` and `max graph`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::max;
use max::graph::Weight;
use max::graph::weights::{SafetensorWeights, save_safetensors};
use max::prelude::*;

/// A graph with a weight, a buffer and a loop, in files of a folder.
fn files(folder: &Path) -> [String; 3] {
    let x = TensorType::new(DType::F32, ("n", 3), DeviceRef::CPU);
    let count = BufferType::new(DType::I64, (1,), DeviceRef::CPU);
    let graph = Graph::build("net", (&x, &count), |graph, inputs| {
        let weight = graph.add_weight(&Weight::new("w", DType::F32, [3], DeviceRef::CPU))?;
        let count = inputs[1].buffer()?;
        count.store(ops::add(count.load()?, 1)?)?;
        let y = ops::add(ops::mul(&inputs[0], weight)?, 0.5)?;
        y.print("y")?;
        let one = ops::shape_to_tensor(graph, [1])?;
        let doubled = ops::while_loop(
            (one, &y),
            |v| ops::greater(4, &v[0]),
            |v| Ok((ops::mul(&v[0], 2)?, ops::add(&v[1], &v[1])?)),
        )?;
        Ok((doubled[1].clone(), ops::softmax(&y, -1)?))
    });
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let [graph_path, inputs, weights] = ["net.max", "in.safetensors", "w.safetensors"].map(path);
    graph.unwrap().save(&graph_path).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [1, 3]).unwrap();
    let count = Tensor::from_slice(&[41i64], [1]).unwrap();
    save_safetensors(&inputs, [("input0", &x), ("input1", &count)], &BTreeMap::new()).unwrap();
    let w = Tensor::from_slice(&[1.0f32, 0.0, -1.0], [3]).unwrap();
    save_safetensors(&weights, [("w", &w)], &BTreeMap::new()).unwrap();
    [graph_path, inputs, weights]
}

#[test]
fn graphs_are_executed_on_files() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, inputs, weights] = files(folder.path());
    let [output, trace] =
        ["out.safetensors", "trace.json"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let args =
        ["run", &graph, "--weights", &weights, "--input", &inputs, "--output", &output, "--trace", &trace, "--profile"];
    let text = max(&args).success();
    assert!(text.starts_with("y = "), "{text}");
    assert!(text.contains("ms in all"), "{text}");
    let results = SafetensorWeights::open([&output]).unwrap();
    assert_eq!(results.tensor("output0").unwrap().to_vec::<f32>().unwrap(), [6.0, 2.0, -10.0]);
    assert_eq!(results.tensor("input1").unwrap().to_vec::<i64>().unwrap(), [42]);
    let spans: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let spans = spans["traceEvents"].as_array().unwrap();
    assert!(spans.iter().any(|span| span["name"] == "softmax"), "{spans:?}");
    assert!(spans.iter().any(|span| span["name"] == "while_loop"), "{spans:?}");
    let printed = max(&["run", &graph, "--weights", &weights, "--input", &inputs]).success();
    assert!(printed.contains("output0 = "), "{printed}");
}

#[test]
fn graphs_are_shown_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, _, weights] = files(folder.path());
    let text = max(&["graph", &graph]).success();
    assert!(text.starts_with("graph net(%0: float32[n, 3], %1: buffer int64[1]) {\n"), "{text}");
    assert!(text.contains("graph net.body("), "{text}");
    let dot = max(&["graph", &graph, "--format", "dot"]).success();
    assert!(dot.starts_with("digraph {") && dot.contains("subgraph cluster"), "{dot}");
    let signature = max(&["compile", &graph, "--weights", &weights]).success();
    assert!(signature.starts_with("net(input0: float32[n, 3], "), "{signature}");
    let explained = max(&["compile", &graph, "--weights", &weights, "--explain"]).success();
    assert!(explained.contains("while_loop on cpu") && explained.contains("net.body:"), "{explained}");
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, inputs, weights] = files(folder.path());
    assert!(max(&["run", &graph, "--input", &inputs]).failure(1).contains("`w`"));
    assert!(max(&["run", &graph, "--weights", &weights]).failure(2).contains("no file has the input input0"));
    assert!(max(&["run", "no/such.max"]).failure(1).contains("no/such.max"));
    assert!(max(&["graph", &weights]).failure(1).contains("no file of `Graph::save`"));
}
