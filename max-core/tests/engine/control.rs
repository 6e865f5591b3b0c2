//! Control flow in graphs: branches, loops, subgraphs, and what they change.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{CancellationToken, EngineError, ExecuteOptions, InferenceSession};
use max::graph::{Dim, Graph, GraphError, GraphErrorKind, TensorType, TensorValue, Weight, ops};
use max::kernel;

#[kernel(op = "greater")]
fn greater<T: Number>(x: T, y: T) -> bool {
    x > y
}

#[kernel(op = "sub", dtypes(T = [f32, f64, i32, i64]))]
fn sub<T: Number>(x: T, y: T) -> T {
    x - y
}

#[kernel(op = "logical_and")]
fn and(x: bool, y: bool) -> bool {
    x && y
}

const NONE: [TensorType; 0] = [];

fn flag() -> TensorType {
    TensorType::new(DType::Bool, (), DeviceRef::CPU)
}

fn i32s(shape: impl Into<max::graph::Shape>) -> TensorType {
    TensorType::new(DType::I32, shape, DeviceRef::CPU)
}

fn scalar<T: max::dtype::Element>(value: T) -> Tensor {
    Tensor::from_slice(&[value], [0; 0]).unwrap()
}

fn accumulate(buffer: &max::graph::Value, x: &TensorValue) -> Result<(), GraphError> {
    ops::inplace_custom("accumulate", DeviceRef::CPU, (buffer, x), NONE, max::graph::Parameters::new()).map(drop)
}

#[test]
fn one_branch_is_executed() {
    let graph = Graph::build("choose", [f32s(("n", 2)), flag()], |_, inputs| {
        let x = inputs[0].tensor()?;
        let sum = ops::add(x, 10.0)?;
        // A view, a constant, a value of the graph around, and what a branch computes.
        let types = [x.ty().clone(), x.ty().clone(), f32s(()), f32s(("n", 2))];
        let then = || {
            Ok([x.clone(), ops::mul(&sum, 2.0)?, ops::sum(ops::reshape(x, (1, -1))?, -1)?.reshape(())?, sum.clone()])
        };
        let otherwise = || Ok([ops::mul(x, -1.0)?, x.clone(), sum.slice_tensor([0, 0])?, x + &sum]);
        ops::cond(&inputs[1], types, then, otherwise)
    });
    let model = load(&graph.unwrap());
    let x = count(&[2, 2]);
    let results = model.execute([&x, &scalar(true)]).unwrap();
    let all: Vec<Vec<f32>> = results.iter().map(values).collect();
    assert_eq!(all[0], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(all[1], [20.0, 22.0, 24.0, 26.0]);
    assert_eq!(all[2], [6.0]);
    assert_eq!(all[3], [10.0, 11.0, 12.0, 13.0]);
    let results = model.execute([&x, &scalar(false)]).unwrap();
    let all: Vec<Vec<f32>> = results.iter().map(values).collect();
    assert_eq!(all[0], [-0.0, -1.0, -2.0, -3.0]);
    assert_eq!(all[1], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(all[2], [10.0]);
    assert_eq!(all[3], [10.0, 12.0, 14.0, 16.0]);
    // A matrix without rows.
    let none = model.execute([&count(&[0, 2]), &scalar(true)]).unwrap();
    assert_eq!((none[1].shape(), values(&none[2])), (&[0, 2][..], vec![0.0]));
}

#[test]
fn branches_change_buffers() {
    let graph = Graph::build("g", (f32_buffer((3,)), f32s((3,)), flag()), |_, inputs| {
        let (buffer, x) = (inputs[0].buffer()?, inputs[1].tensor()?);
        let before = buffer.load()?;
        let then = || accumulate(&inputs[0], x);
        let otherwise = || buffer.store(ops::mul(buffer.load()?, 2.0)?);
        ops::cond(&inputs[2], (), then, otherwise)?;
        Ok([before, buffer.load()?])
    });
    let graph = graph.unwrap();
    let model = load(&graph);
    let mut buffer = Tensor::full(1.0f32, [3]).unwrap();
    let results = model.execute((&mut buffer, &count(&[3]), &scalar(true))).unwrap();
    assert_eq!((values(&results[0]), values(&results[1])), (vec![1.0; 3], vec![1.0, 2.0, 3.0]));
    let results = model.execute((&mut buffer, &count(&[3]), &scalar(false))).unwrap();
    assert_eq!((values(&results[0]), values(&results[1])), (vec![1.0, 2.0, 3.0], vec![2.0, 4.0, 6.0]));
    assert_eq!(values(&buffer), [2.0, 4.0, 6.0]);
}

/// Powers of two and the number of doublings, for 0, 1, 2 and more rounds.
#[test]
fn loops_carry_several_values() {
    let graph = Graph::build("grow", [i32s(()), i32s(("n",)), i32s(())], |_, inputs| {
        let limit = inputs[2].tensor()?;
        let initial = (&inputs[0], &inputs[1]);
        ops::while_loop(initial, |v| ops::greater(limit, &v[0]), |v| Ok([ops::add(&v[0], 1)?, ops::add(&v[1], &v[1])?]))
    });
    let model = load(&graph.unwrap());
    let x = Tensor::from_slice(&[1i32, 3], [2]).unwrap();
    for rounds in [0, 1, 2, 3, 8] {
        let results = model.execute([&scalar(0i32), &x, &scalar(rounds)]).unwrap();
        assert_eq!(results[0].to_vec::<i32>().unwrap(), [rounds]);
        assert_eq!(results[1].to_vec::<i32>().unwrap(), [1 << rounds, 3 << rounds], "{rounds} rounds");
    }
}

/// Carried values that change places, one that stays, and one that a body gives twice.
#[test]
fn carried_values_change_places() {
    let types = [i32s(()), f32s((2,)), f32s((2,)), f32s((2,))];
    let graph = Graph::build("swap", types, |_, inputs| {
        let initial: Vec<_> = inputs.to_vec();
        ops::while_loop(
            initial,
            |v| ops::greater(&v[0], 0),
            |v| Ok([ops::sub(&v[0], 1)?, v[2].clone(), v[1].clone(), v[1].clone()]),
        )
    });
    let model = load(&graph.unwrap());
    let [a, b, c] = [1.0f32, 2.0, 3.0].map(|v| Tensor::full(v, [2]).unwrap());
    for (rounds, expected) in [(0, [1.0, 2.0, 3.0]), (1, [2.0, 1.0, 1.0]), (2, [1.0, 2.0, 2.0]), (3, [2.0, 1.0, 1.0])] {
        let results = model.execute([&scalar(rounds), &a, &b, &c]).unwrap();
        let found: Vec<f32> = results[1..].iter().map(|result| values(result)[0]).collect();
        assert_eq!(found, expected, "{rounds} rounds");
    }
}

/// A loop in a loop, with a branch inside, that changes a buffer of the graph.
#[test]
fn loops_nest() {
    let graph = Graph::build("nested", (f32_buffer((1,)), i32s(()), i32s(()), f32s((1,))), |_, inputs| {
        let (rows, columns) = (inputs[1].tensor()?, inputs[2].tensor()?);
        let one = inputs[3].tensor()?;
        let zero = ops::sub(rows, rows)?;
        ops::while_loop(
            &zero,
            |i| ops::greater(rows, &i[0]),
            |i| {
                let i = &i[0];
                ops::while_loop(
                    &zero,
                    |j| ops::greater(columns, &j[0]),
                    |j| {
                        ops::cond(ops::greater(i, &j[0])?, (), || accumulate(&inputs[0], one), || Ok(()))?;
                        ops::add(&j[0], 1)
                    },
                )?;
                ops::add(i, 1)
            },
        )
    });
    let model = load(&graph.unwrap());
    let mut pairs = Tensor::full(0.0f32, [1]).unwrap();
    let rounds =
        model.execute((&mut pairs, &scalar(4i32), &scalar(3i32), &Tensor::full(1.0f32, [1]).unwrap())).unwrap();
    assert_eq!(rounds[0].to_vec::<i32>().unwrap(), [4]);
    // Of 4 times 3 pairs, those of which the first is larger: 0 + 1 + 2 + 3.
    assert_eq!(values(&pairs), [6.0]);
}

#[test]
fn a_loop_without_end_is_stopped() {
    let build = |empty: bool| {
        Graph::build("forever", [i32s(()), flag()], |_, inputs| {
            let go = inputs[1].tensor()?;
            ops::while_loop(&inputs[0], |_| Ok(go), |v| if empty { Ok(v[0].clone()) } else { ops::add(&v[0], 1) })
        })
    };
    for empty in [false, true] {
        let model = load(&build(empty).unwrap());
        let options = ExecuteOptions::new().timeout(Duration::from_millis(20));
        let begin = Instant::now();
        let error = model.execute_with([&scalar(0i32), &scalar(true)], &options).unwrap_err();
        assert!(begin.elapsed() >= Duration::from_millis(20));
        let EngineError::Stopped { op, .. } = &error else { panic!("{error}") };
        assert!(op.location.file().ends_with("control.rs"), "{error}");
        assert!(error.to_string().contains("its time is over"), "{error}");
        let token = CancellationToken::new();
        let options = ExecuteOptions::new().cancellation(&token);
        let stopped = std::thread::scope(|scope| {
            let run = scope.spawn(|| model.execute_with([&scalar(0i32), &scalar(true)], &options));
            std::thread::sleep(Duration::from_millis(10));
            token.cancel();
            run.join().unwrap()
        });
        assert!(stopped.unwrap_err().to_string().contains("it was cancelled"));
        // What ends in time is not stopped.
        let options = ExecuteOptions::new().timeout(Duration::from_secs(3600));
        assert_eq!(
            model.execute_with([&scalar(5i32), &scalar(false)], &options).unwrap()[0].to_vec::<i32>().unwrap(),
            [5]
        );
    }
}

#[test]
fn subgraphs_are_called_with_weights_of_their_own() {
    let x = f32s(("batch", 2));
    let graph = Graph::build("model", [&x], |graph, inputs| {
        let layer = graph.add_subgraph("layer", [f32s(("rows", 2))], |layer, inputs| {
            let weight = layer.add_weight(&Weight::new("weight", DType::F32, [2], DeviceRef::CPU))?;
            ops::add(&inputs[0], weight)
        })?;
        let twice = graph.add_subgraph("twice", [f32s(("rows", 2))], |_, inputs| {
            let once = ops::call(&layer, &inputs[0], "a.")?;
            ops::call(&layer, &once[0], "b.")
        })?;
        let first = ops::call(&twice, &inputs[0], "layers.0.")?;
        let both = ops::concat([&first[0], &inputs[0]], 0)?;
        ops::call(&twice, &both, "layers.1.")
    });
    let graph = graph.unwrap();
    assert_eq!(graph.output_types()[0].to_string(), "float32[batch * 2, 2]");
    let weight = |value: f32| Tensor::full(value, [2]).unwrap();
    let names = [
        ("layers.0.a.weight", 1.0),
        ("layers.0.b.weight", 10.0),
        ("layers.1.a.weight", 100.0),
        ("layers.1.b.weight", 1000.0),
    ];
    let weights: HashMap<String, Tensor> = names.iter().map(|(name, v)| (name.to_string(), weight(*v))).collect();
    let model = InferenceSession::new().load_with_weights(&graph, &weights).unwrap();
    let results = model.execute(&Tensor::full(0.0f32, [1, 2]).unwrap()).unwrap();
    assert_eq!(values(&results[0]), [1111.0, 1111.0, 1100.0, 1100.0]);
}

#[test]
fn a_region_knows_the_sizes_around_it() {
    let graph = Graph::build("sizes", [f32s(("n", "m")), flag()], |graph, inputs| {
        let x = inputs[0].tensor()?;
        let wide = Dim::from("n") * Dim::from("m") * 2;
        let then = || ops::shape_to_tensor(graph, [wide.clone(), Dim::from("m") + 1]);
        let otherwise = || ops::shape_to_tensor(graph, [Dim::from("n"), ops::reshape(x, (-1,))?.shape()[0].clone()]);
        ops::cond(&inputs[1], TensorType::new(DType::I64, [2], DeviceRef::CPU), then, otherwise)
    });
    let model = load(&graph.unwrap());
    for (flag, expected) in [(true, [12, 4]), (false, [2, 6])] {
        let results = model.execute([&count(&[2, 3]), &scalar(flag)]).unwrap();
        assert_eq!(results[0].to_vec::<i64>().unwrap(), expected);
    }
}

#[test]
fn mistakes_are_at_the_callers_line() {
    let graph = Graph::new("g", [f32s((2,)), flag(), f32s((3,)), i32s(())]);
    let [x, flag, y, i] = [0, 1, 2, 3].map(|i| graph.inputs()[i].tensor().unwrap().clone());
    let line = |error: &GraphError, expected: u32| {
        assert!(error.location().file().ends_with("control.rs"), "{error}");
        assert_eq!(error.location().line(), expected, "{error}");
    };
    let ty = f32s((2,));
    let error = ops::cond(&flag, &ty, || Ok(&x), || Ok(&y)).unwrap_err();
    line(&error, line!() - 1);
    assert!(error.to_string().contains("the second branch"), "{error}");
    let error = ops::cond(&flag, (), || Ok(()), || Ok(&y)).unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::ValueCount { expected: 0, actual: 1, .. }), "{error}");
    let error = ops::cond(&x, (), || Ok(()), || Ok(())).unwrap_err();
    assert!(error.to_string().contains("the predicate has dtype float32"), "{error}");
    let error = ops::while_loop(&i, |_| Ok(&flag), |_| Ok(&x)).unwrap_err();
    line(&error, line!() - 1);
    assert!(error.to_string().contains("the body"), "{error}");
    let error = ops::while_loop((), |_| Ok(&flag), |_| Ok(&x)).unwrap_err();
    assert!(error.to_string().contains("at least one value"), "{error}");
    // An error of a closure leaves the graph as it was.
    let error = ops::cond(&flag, &ty, || ops::add(&x, &y), || Ok(&x)).unwrap_err();
    assert_eq!(error.op(), "add");
    // A value that leaves its region.
    let mut inside = None;
    ops::cond(
        &flag,
        &ty,
        || {
            inside = Some(ops::add(&x, 1.0)?);
            Ok(&x)
        },
        || Ok(&x),
    )
    .unwrap();
    let inside = inside.unwrap();
    let error = ops::add(&inside, 1.0).unwrap_err();
    line(&error, line!() - 1);
    assert!(matches!(error.kind(), GraphErrorKind::EndedRegion), "{error}");
    let error = graph.output(&inside).unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::EndedRegion), "{error}");
    // Outputs are set outside.
    let error = ops::cond(&flag, (), || graph.output(&x), || Ok(())).unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::OutputInRegion), "{error}");
    graph.output(ops::add(&x, 1.0).unwrap()).unwrap();
    let results = load(&graph).execute([&count(&[2]), &scalar(true), &count(&[3]), &scalar(0i32)]).unwrap();
    assert_eq!(values(&results[0]), [1.0, 2.0]);
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let graph = Graph::new("g", [f32s(("a", "b")), f32s((2, 3)), i32s(())]);
    let layer = graph.add_subgraph("layer", [f32s(("n", "n"))], |_, inputs| Ok(inputs[0].clone())).unwrap();
    let error = ops::call(&layer, &graph.inputs()[0], "").unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::CallArgument { index: 0, .. }), "{error}");
    assert!(error.to_string().contains("with n = a"), "{error}");
    assert!(ops::call(&layer, &graph.inputs()[1], "").is_err());
    assert!(ops::call(&layer, &graph.inputs()[2], "").is_err());
    let error = ops::call(&layer, (), "").unwrap_err();
    assert!(error.to_string().contains("Graph::call"), "{error}");
    let error = graph.call(&layer, (), "").unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::ValueCount { expected: 1, actual: 0, .. }), "{error}");
    let error = ops::call(&graph, &graph.inputs()[0], "").unwrap_err();
    assert!(error.to_string().contains("another graph"), "{error}");
}

#[test]
fn chains_join() {
    let graph = Graph::build("g", (f32_buffer((2,)), f32s((2,))), |graph, inputs| {
        assert!(graph.device_chains().is_empty() && graph.always_ready_chain().after.is_empty());
        accumulate(&inputs[0], inputs[1].tensor()?)?;
        graph.merge_device_chains();
        let behind = ops::fence((&inputs[1], inputs[0].buffer()?.load()?))?;
        assert_eq!(graph.device_chains().len(), 1);
        Ok(behind)
    });
    let graph = graph.unwrap();
    let text = graph.to_string();
    assert!(text.contains("merge_device_chains effect n3 after n2"), "{text}");
    assert!(text.contains("= fence(%1, %2) : float32[2], float32[2] effect n5 after n4"), "{text}");
    let mut buffer = Tensor::full(1.0f32, [2]).unwrap();
    let results = load(&graph).execute((&mut buffer, &count(&[2]))).unwrap();
    assert_eq!((values(&results[0]), values(&results[1])), (vec![0.0, 1.0], vec![1.0, 2.0]));
}
