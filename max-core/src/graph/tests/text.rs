//! The text form, whole graphs at a time: what each op adds.

use super::*;
use crate::driver::SliceIndex;

#[track_caller]
fn check(graph: &Graph, expected: &str) {
    assert_eq!(graph.to_string().trim_end(), expected.trim());
}

#[test]
fn linear_relu_with_symbolic_batch() {
    let graph = Graph::build("linear", [f32_type(("batch", 4)), f32_type((4, 2)), f32_type((2,))], |_, x| {
        ops::relu(ops::matmul(&x[0], &x[1])? + &x[2])
    });
    check(
        &graph.unwrap(),
        "
graph linear(%0: float32[batch, 4], %1: float32[4, 2], %2: float32[2]) {
  %3 = matmul(%0, %1) : float32[batch, 2]
  %4 = broadcast_to(%2) : float32[batch, 2]
  %5 = add(%3, %4) : float32[batch, 2]
  %6 = relu(%5) : float32[batch, 2]
  return %6
}",
    );
}

#[test]
fn batched_matmul_is_between_reshapes() {
    let (graph, [a, b]) = inputs([f32_type(("n", 1, 4, 5)), f32_type((3, 5, 6))]);
    graph.output(a.matmul(&b).unwrap()).unwrap();
    check(
        &graph,
        "
graph test(%0: float32[n, 1, 4, 5], %1: float32[3, 5, 6]) {
  %2 = broadcast_to(%0) : float32[n, 3, 4, 5]
  %3 = reshape(%2) : float32[n * 3, 4, 5]
  %4 = broadcast_to(%1) : float32[n, 3, 5, 6]
  %5 = reshape(%4) : float32[n * 3, 5, 6]
  %6 = batch_matmul(%3, %5) : float32[n * 3, 4, 6]
  %7 = reshape(%6) : float32[n, 3, 4, 6]
  return %7
}",
    );
}

#[test]
fn side_effects_show_their_chain() {
    let ty = BufferType::new(DType::I64, [4], DeviceRef::CPU);
    let graph = Graph::build("counter", [ty], |_, x| {
        let counter = x[0].buffer()?;
        let old = counter.load()?;
        counter.store(&old + 1)?;
        counter.store_slice(old.slice_tensor([2..])?, [..2])?;
        ops::sum(counter.load()?, 0)
    });
    check(
        &graph.unwrap(),
        "
graph counter(%0: buffer int64[4]) {
  %1 = buffer_load(%0) : int64[4] effect n1
  %2 = constant 1 : int64[]
  %3 = broadcast_to(%2) : int64[4]
  %4 = add(%1, %3) : int64[4]
  buffer_store(%0, %4) effect n5 after n1
  %5 = slice(%1) {start = [2 step 1]} : int64[2]
  buffer_store_slice(%0, %5) {start = [0 step 1]} effect n7 after n5
  %6 = buffer_load(%0) : int64[4] effect n8 after n7
  %7 = sum(%6) {axis = 0} : int64[1]
  return %7
}",
    );
}

#[test]
fn attributes_constants_and_several_results() {
    let (graph, [x]) = inputs([f32_type((2, 6))]);
    let (values, positions) = ops::top_k(&x, 3, 1).unwrap();
    let norm = ops::layer_norm(&x, 1.0, 0.0, 1e-5);
    assert!(norm.is_err(), "a weight is a vector");
    let weight = ops::constant(&graph, [0.5; 6], DType::F32, DeviceRef::CPU).unwrap();
    let norm = ops::rms_norm(&x, &weight, 1e-6).unwrap();
    let total = ops::cumsum(&norm, -1, true, false).unwrap();
    let part = ops::slice_tensor(&total, [SliceIndex::from(1..)]).unwrap();
    let all = ops::concat([&part, &total], 0).unwrap();
    graph.output([&values, &positions, &all.t().unwrap()]).unwrap();
    check(
        &graph,
        "
graph test(%0: float32[2, 6]) {
  %1, %2, %3 = top_k(%0) {axis = 1} : float32[2, 3], int64[2, 3], float32[2, 1]
  %4 = constant 1.0 : float32[]
  %5 = constant 0.0 : float32[]
  %6 = constant [0.5, 0.5, 0.5, 0.5, 0.5, 0.5] : float32[6]
  %7 = rms_norm(%0, %6) {axis = 1, epsilon = 1e-6} : float32[2, 6]
  %8 = cumsum(%7) {axis = 1, exclusive = true, reverse = false} : float32[2, 6]
  %9 = slice(%8) {start = [1 step 1, 0 step 1]} : float32[1, 6]
  %10 = concat(%9, %8) {axis = 0} : float32[3, 6]
  %11 = permute(%10) {dims = [1, 0]} : float32[6, 3]
  return %1, %2, %11
}",
    );
}

#[test]
fn the_alternate_form_has_source_lines() {
    let (graph, [x]) = inputs([f32_type((2,))]);
    let line = line!() + 1;
    graph.output(-&x).unwrap();
    let text = format!("{graph:#}");
    let expected = format!("%1 = negate(%0) : float32[2]  // {}:{line}:", file!());
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn a_graph_without_outputs_says_so() {
    let ty = BufferType::new(DType::F32, (), DeviceRef::gpu(1));
    let graph = Graph::build("reset", [&ty], |g, x| {
        let zero = ops::constant(g, 0, DType::F32, DeviceRef::gpu(1))?;
        x[0].buffer()?.store(zero)
    });
    check(
        &graph.unwrap(),
        "
graph reset(%0: buffer float32[] on gpu:1) {
  %1 = constant 0.0 : float32[] on gpu:1
  buffer_store(%0, %1) effect n2
  return
}",
    );
}
