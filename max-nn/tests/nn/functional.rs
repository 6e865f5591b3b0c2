//! Every function of `functional` in both worlds, by one body, against golden values.

use std::collections::BTreeMap;
use std::path::Path;

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::functional as F;
use max::graph::{Graph, TensorType};
use max::tensor::Tensor;
use serde_json::Value as Json;

use crate::golden::{Arguments, Case, FUNCTIONS, apply, cases, difference};

/// MAX's functions without a golden file, which other tests of this crate run, and how each is called here.
const ELSEWHERE: [&str; 5] = ["constant", "constant_external", "custom", "functional", "transfer_to"];

/// Ops of golden files that are no functions of `functional`.
const OTHER_OPS: [&str; 4] = ["cond", "dequantize", "qmatmul", "while_loop"];

/// What has no operands of a graph, or depends on values, has no value in a graph.
fn is_eager_only(op: &str) -> bool {
    matches!(op, "hann_window" | "range" | "nonzero")
}

/// Runs a case in one world: the results, or `None` without such a function.
fn run(
    op: &str,
    a: &Arguments,
    inputs: &[driver::Tensor],
    in_graph: bool,
) -> Result<Option<Vec<driver::Tensor>>, max::Error> {
    if !in_graph {
        let x: Vec<Tensor> = inputs.iter().map(Tensor::from).collect();
        let Some(results) = apply(op, a, &x)? else { return Ok(None) };
        return Ok(Some(results.iter().map(Tensor::driver_tensor).collect::<max::Result<_>>()?));
    }
    let types: Vec<TensorType> = inputs.iter().map(TensorType::from).collect();
    let graph = Graph::new(op, types);
    let x: Vec<Tensor> = graph.inputs().iter().map(|x| x.tensor().map(Tensor::from)).collect::<max::Result<_>>()?;
    let Some(results) = apply(op, a, &x)? else { return Ok(None) };
    graph.output(results)?;
    Ok(Some(max::engine::InferenceSession::new().load(&graph)?.execute(inputs)?))
}

#[test]
fn both_worlds_reproduce_golden_values() {
    let (mut passed, mut failed) = (BTreeMap::<String, usize>::new(), Vec::new());
    for Case { json, inputs, wanted } in cases() {
        let (id, op) = (json["id"].as_str().expect("an id"), json["op"].as_str().expect("an op"));
        let tolerance = |key: &str| json[key].as_f64().expect("a tolerance");
        let worlds = [("eager", false), ("graph", true)];
        for (world, in_graph) in worlds.into_iter().filter(|(_, in_graph)| !(*in_graph && is_eager_only(op))) {
            let got = match run(op, &Arguments(&json["params"], DeviceRef::CPU), &inputs, in_graph) {
                Err(error) => {
                    failed.push(format!("{id}, {world}: {error}"));
                    continue;
                }
                Ok(None) => {
                    assert!(OTHER_OPS.contains(&op), "no function `{op}`");
                    continue;
                }
                Ok(Some(got)) => got,
            };
            assert_eq!(got.len(), wanted.len(), "{id}, {world}");
            let far = |(got, want)| difference(got, want, tolerance("rtol"), tolerance("atol"));
            match got.iter().zip(&wanted).find_map(far) {
                Some(far) => failed.push(format!("{id}, {world}: {far}")),
                None => *passed.entry(op.to_owned()).or_default() += 1,
            }
        }
    }
    assert!(failed.is_empty(), "{} cases failed:\n{}", failed.len(), failed.join("\n"));
    let missing: Vec<&str> =
        FUNCTIONS.split_whitespace().filter(|name| !passed.contains_key(*name) && !ELSEWHERE.contains(name)).collect();
    assert!(missing.is_empty(), "functions without a case: {missing:?}");
    assert!(passed.values().sum::<usize>() > 400, "{passed:?}");
}

/// The dtypes of data that a function takes in both worlds: its first golden case, converted.
fn dtypes(case: &Json, inputs: &[driver::Tensor]) -> Vec<&'static str> {
    const ALL: [(DType, &str); 13] = [
        (DType::Bool, "bool"),
        (DType::U8, "u8"),
        (DType::U16, "u16"),
        (DType::U32, "u32"),
        (DType::U64, "u64"),
        (DType::I8, "i8"),
        (DType::I16, "i16"),
        (DType::I32, "i32"),
        (DType::I64, "i64"),
        (DType::F16, "f16"),
        (DType::BF16, "bf16"),
        (DType::F32, "f32"),
        (DType::F64, "f64"),
    ];
    let op = case["op"].as_str().expect("an op");
    let data = inputs.iter().find(|input| input.dtype().is_float()).or(inputs.first()).map(driver::Tensor::dtype);
    let takes = |dtype: DType| {
        let cast = |input: &driver::Tensor| match Some(input.dtype()) == data {
            true => Tensor::from(input).cast(dtype)?.driver_tensor(),
            false => Ok(input.clone()),
        };
        let Ok(inputs) = inputs.iter().map(cast).collect::<max::Result<Vec<_>>>() else { return false };
        let a = Arguments(&case["params"], DeviceRef::CPU);
        let eager = run(op, &a, &inputs, false);
        let in_graph = is_eager_only(op) || run(op, &a, &inputs, true).is_ok();
        assert_eq!(eager.is_ok(), in_graph, "{op} of {dtype} in one world alone");
        eager.is_ok()
    };
    ALL.iter().filter(|(dtype, _)| takes(*dtype)).map(|(_, name)| *name).collect()
}

/// MAX's names of what its modules `tensor` and `random` have, what it is here, and what that is in a graph. One body runs each of
/// them in both worlds: `methods_do_the_same_in_both_worlds`.
const MEMBERS: [(&str, &str, &str); 46] = [
    ("Tensor.T", "`Tensor::t`", "yes"),
    ("Tensor.arange", "`Tensor::arange`", "as a constant"),
    ("Tensor.argmax", "`Tensor::argmax`", "yes"),
    ("Tensor.cast", "`Tensor::cast`", "yes"),
    ("Tensor.constant", "`Tensor::constant`", "as a constant"),
    ("Tensor.device", "`Tensor::device`", "yes"),
    ("Tensor.driver_tensor", "`Tensor::driver_tensor`", "an error: it has no value"),
    ("Tensor.dtype", "`Tensor::dtype`", "yes"),
    ("Tensor.from_dlpack", "`dlpack::from_dlpack`", "as a constant"),
    ("Tensor.from_tensor_value", "`Tensor::from`", "yes"),
    ("Tensor.full", "`Tensor::full`", "as a constant"),
    ("Tensor.full_like", "`Tensor::full_like`", "as a constant"),
    ("Tensor.item", "`Tensor::item`", "an error: it has no value"),
    ("Tensor.max", "`Tensor::max`", "yes"),
    ("Tensor.num_elements", "`Tensor::num_elements`", "yes"),
    ("Tensor.ones", "`Tensor::ones`", "as a constant"),
    ("Tensor.ones_like", "`Tensor::ones_like`", "as a constant"),
    ("Tensor.permute", "`Tensor::permute`", "yes"),
    ("Tensor.rank", "`Tensor::rank`", "yes"),
    ("Tensor.real", "`Tensor::is_realized`", "false"),
    ("Tensor.realize", "`Tensor::realize`", "an error: it has no value"),
    ("Tensor.reshape", "`Tensor::reshape`", "yes"),
    ("Tensor.shape", "`Tensor::shape`", "yes"),
    ("Tensor.to", "`Tensor::to`", "yes"),
    ("Tensor.transpose", "`Tensor::transpose`", "yes"),
    ("Tensor.type", "`Tensor::ty`", "yes"),
    ("Tensor.zeros", "`Tensor::zeros`", "as a constant"),
    ("Tensor.zeros_like", "`Tensor::zeros_like`", "as a constant"),
    ("ComputeGraph", "the ops that are not computed", "the graph"),
    ("ComputeGraph.add_source", "`Tensor::from` a tensor of the driver", "as a constant"),
    ("ComputeGraph.evaluate", "`realize_all`", "`Model::execute`"),
    ("ComputeGraph.graph", "`{:?}` tells the op", "`Graph`"),
    ("ComputeGraph.sources", "operands live as long as who needs them", "`Graph::inputs`"),
    ("ComputeGraph.unrealized", "`Tensor::is_realized`", "all"),
    ("contextvar_context", "`default_device`, `default_dtype`", "yes"),
    ("default_device", "`default_device`", "yes"),
    ("default_dtype", "`default_dtype`", "yes"),
    ("defaults", "`defaults`", "yes"),
    ("driver_tensor_type", "`driver_tensor_type`", "yes"),
    ("random.gaussian", "`random::gaussian`", "as a constant"),
    ("random.gaussian_like", "`random::gaussian_like`", "as a constant"),
    ("random.normal", "`random::normal`", "as a constant"),
    ("random.normal_like", "`random::normal_like`", "as a constant"),
    ("random.uniform", "`random::uniform`", "as a constant"),
    ("random.uniform_like", "`random::uniform_like`", "as a constant"),
    ("random.set_seed", "`random::set_seed`", "of what is drawn then"),
];

/// `docs/functional.md`: which functions there are, and what they take. `MAX_BLESS=1` writes it.
#[test]
fn the_table_of_functions_is_true() {
    let mut text = String::from(
        "# Functions of both worlds\n\nEach function of `max::functional` is defined once, and takes eager tensors and values \
         of a graph. The dtypes are those of its data that\nrun in both worlds on the CPU; on GPUs, a test runs all of them on a \
         simulated one. This page is written by a test of\n`max-nn` (`MAX_BLESS=1`).\n\n\
         | function | eager | graph | devices | dtypes of data |\n| --- | --- | --- | --- | --- |\n",
    );
    let cases = cases();
    for name in FUNCTIONS.split_whitespace() {
        let case = cases.iter().find(|case| case.json["op"] == name);
        let dtypes = match case {
            Some(case) if case.inputs.is_empty() => "as asked for".to_owned(),
            Some(case) => dtypes(&case.json, &case.inputs).join(" "),
            None => match name {
                "functional" => "a region, of any".to_owned(),
                _ => "any".to_owned(),
            },
        };
        let ours = match name {
            "mod" => "mod_",
            "where" => "where_",
            name => name,
        };
        let [eager, graph] = match name {
            "nonzero" => ["yes", "its size is that of its data"],
            "constant_external" => ["`Tensor::from_weights`", "yes"],
            "hann_window" | "range" | "constant" => ["yes", "as a constant"],
            _ => ["yes", "yes"],
        };
        text += &format!("| `{ours}` | {eager} | {graph} | CPU, GPU | {dtypes} |\n");
    }
    text += "\n## Tensors and random numbers\n\nWhat MAX's modules `tensor` and `random` have. Random numbers are f16, bf16, f32 or \
             f64, and the same on all devices.\n\n| MAX | here, eager | in a graph |\n| --- | --- | --- |\n";
    for (name, ours, graph) in MEMBERS {
        text += &format!("| `{name}` | {ours} | {graph} |\n");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/functional.md");
    if std::env::var_os("MAX_BLESS").is_some() {
        std::fs::write(&path, &text).expect("a writable page");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text, "MAX_BLESS=1 writes docs/functional.md");
}

/// All methods, on a tensor of either world.
fn methods(x: &Tensor) -> max::Result<Vec<Tensor>> {
    assert_eq!((x.rank(), x.dtype(), x.device(), x.num_elements()), (2, DType::F32, DeviceRef::CPU, 6.into()));
    assert_eq!(
        (x.shape().to_string(), x.ty()),
        ("[2, 3]".to_owned(), &TensorType::new(DType::F32, (2, 3), x.device()))
    );
    let row = Tensor::arange(0, 3, 1)?;
    let lent = max::dlpack::to_dlpack(&row)?;
    // SAFETY: just made, and taken once.
    let foreign = unsafe { max::dlpack::from_dlpack(lent) }?;
    Ok(vec![
        x.t()?,
        x.argmax(1)?,
        x.argmin(0)?,
        x.max(-1)?,
        x.min(0)?,
        x.mean(0)?,
        x.sum(1)?,
        x.prod(1)?,
        x.cast(DType::F64)?,
        x.permute([1, 0])?,
        x.transpose(0, 1)?,
        x.reshape([3, 2])?,
        x.reshape([-1])?,
        x.flatten(0, 1)?,
        x.unsqueeze(0)?.squeeze(0)?,
        x.unsqueeze(1)?.broadcast_to([2, 4, 3])?,
        x.to(DeviceRef::CPU)?,
        x.i((.., -1))?,
        x.i((max::driver::SliceIndex::Ellipsis, max::driver::SliceIndex::NewAxis, ..2))?,
        x + row,
        x - foreign,
        x * Tensor::full([2, 3], 2.5)?,
        x / Tensor::full_like(x, 4.0)?,
        x + Tensor::constant([[1.0f32], [2.0]])? + Tensor::ones([3])? + Tensor::ones_like(x)?,
        x * Tensor::zeros([3])? + Tensor::zeros_like(x.ty())?,
        x.pow(2.0)?.maximum(0.5)?.minimum(x)?,
        x.greater(0.0)? & x.not_equal(1.0)? | !x.equal(x)?,
        -x % 3.0,
    ])
}

#[test]
fn methods_do_the_same_in_both_worlds() -> Result<(), max::Error> {
    max_kernels::link();
    let values = driver::Tensor::from_slice(&[1.0f32, -2.0, 0.5, f32::NAN, 4.0, -0.0], [2, 3])?;
    let graph = Graph::new("methods", [TensorType::new(DType::F32, (2, 3), DeviceRef::CPU)]);
    let of_graph = Tensor::from(graph.inputs()[0].tensor()?);
    assert!(of_graph.realize().is_err() && of_graph.item::<f32>().is_err() && of_graph.driver_tensor().is_err());
    assert!(!of_graph.is_realized() && of_graph.graph_value().is_some());
    graph.output(methods(&of_graph)?)?;
    let in_graph = max::engine::InferenceSession::new().load(&graph)?.execute(&values)?;
    let eager = methods(&Tensor::from(&values))?;
    max::tensor::realize_all(&eager)?;
    assert_eq!(eager.len(), in_graph.len());
    for (i, (eager, in_graph)) in eager.iter().zip(&in_graph).enumerate() {
        assert!(eager.is_realized());
        assert_eq!(max::tensor::driver_tensor_type(in_graph), *eager.ty(), "{i}");
        assert_eq!(difference(&eager.driver_tensor()?, in_graph, 0.0, 0.0), None, "{i}");
    }
    let single = Tensor::constant(7i64)?;
    assert_eq!((single.item::<i64>()?, single.rank()), (7, 0));
    Ok(())
}

/// What is drawn while a graph is built is a constant there.
#[test]
fn draws_are_the_same_in_both_worlds() -> Result<(), max::Error> {
    max_kernels::link();
    let ty = TensorType::new(DType::F32, (4,), DeviceRef::CPU);
    let draws = |x: &Tensor| -> max::Result<Tensor> {
        max::random::set_seed(5);
        let all = [
            max::random::gaussian([4], 1.0, 2.0)?,
            max::random::gaussian_like(&ty, 0.0, 1.0)?,
            max::random::normal([4], 0.0, 1.0)?,
            max::random::normal_like(x.ty(), -1.0, 0.5)?,
            max::random::uniform([4], 0.0..1.0)?,
            max::random::uniform_like(x.ty(), -1.0..1.0)?,
        ];
        all.iter().try_fold(x.clone(), |sum, drawn| F::add(sum * 0.5, drawn))
    };
    let model = || max::nn::compile("draws", &ty, |x| draws(&x[0]));
    let values = driver::Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4])?;
    // The counter is the process's: other tests that draw may come between.
    let same = (0..20).any(|_| {
        let eager = draws(&Tensor::from(&values)).and_then(|y| y.to_vec::<f32>());
        let in_graph = model().ok().and_then(|model| model.execute(&values).ok());
        let in_graph = in_graph.and_then(|outputs| outputs[0].to_vec::<f32>().ok());
        eager.is_ok() && eager.ok() == in_graph
    });
    assert!(same);
    Ok(())
}

#[test]
fn functions_without_golden_values_compute() -> Result<(), max::Error> {
    let x = F::constant([1.5f32, -2.0], DType::F16, DeviceRef::CPU)?;
    assert_eq!((x.dtype(), x.cast(DType::F32)?.to_vec::<f32>()?), (DType::F16, vec![1.5, -2.0]));
    let y = F::transfer_to(&x, DeviceRef::CPU)?.cast(DType::F64)?;
    assert_eq!(y.to_vec::<f64>()?, [1.5, -2.0]);

    // A weight of a graph, with the eager function's name.
    let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let graph = Graph::new("weights", [&ty]);
    let w = F::constant_external(&graph, "w", ty.clone())?;
    graph.output(F::mul(&graph.inputs()[0], w)?)?;
    let weights = std::collections::HashMap::from([("w".to_owned(), driver::Tensor::full(3.0f32, [2])?)]);
    let model = max::engine::InferenceSession::new().load_with_weights(&graph, &weights)?;
    assert_eq!(model.execute(&driver::Tensor::full(2.0f32, [2])?)?[0].to_vec::<f32>()?, [6.0, 6.0]);
    let in_graph = F::transfer_to(&graph.inputs()[0], DeviceRef::CPU)?;
    assert!(in_graph.graph_value().is_some());
    let custom = F::custom("relu", DeviceRef::CPU, [&graph.inputs()[0]], &ty, ())?;
    assert!(custom[0].graph_value().is_some());
    Ok(())
}
