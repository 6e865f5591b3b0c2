//! The code of the guide (`docs/guide`): each Rust block of a page stands in the module of that page, where it is compiled and
//! run.

mod control_flow;
mod debugging;
mod dtypes;
mod eager;
mod elementwise;
mod gpu;
mod graphs;
mod in_place;
mod ir_and_ptx;
mod language_models;
mod math;
mod notebooks;
mod numerics;
mod parameters;
mod recurrences_and_stencils;
mod rows;
mod scatter;
mod tiles;

use max::prelude::*;

/// A vector.
fn f32s(x: &[f32]) -> Tensor {
    Tensor::from_slice(x, [x.len()]).unwrap()
}

/// The results of an op whose results have the shape of its first operand.
fn run(op: &str, operands: &[Tensor], dtypes: &[DType], parameters: impl Into<Parameters>) -> Vec<Tensor> {
    let shape: Vec<i64> = operands[0].shape().iter().map(|n| *n as i64).collect();
    let results: Vec<_> = dtypes.iter().map(|dtype| (*dtype, &shape[..])).collect();
    run_as(op, operands, &results, parameters)
}

/// The results of an op, of these dtypes and shapes. The reference form of the kernel has to give the same, and so do
/// simulated GPUs.
fn run_as(
    op: &str,
    operands: &[Tensor],
    results: &[(DType, &[i64])],
    parameters: impl Into<Parameters>,
) -> Vec<Tensor> {
    let parameters = parameters.into();
    let outputs_in = |session: InferenceSession| {
        let device = session.devices()[0];
        let place = DeviceRef::from(&device);
        let shape = |x: &Tensor| x.shape().iter().map(|n| *n as i64).collect::<Vec<_>>();
        let types: Vec<TensorType> = operands.iter().map(|x| TensorType::new(x.dtype(), shape(x), place)).collect();
        let results: Vec<TensorType> =
            results.iter().map(|(dtype, shape)| TensorType::new(*dtype, *shape, place)).collect();
        let graph =
            Graph::build("guide", &types, |_, inputs| ops::custom(op, place, inputs, &results, parameters.clone()));
        let operands: Vec<Tensor> = operands.iter().map(|x| x.to(&device).unwrap()).collect();
        let outputs = session.load(&graph.unwrap()).unwrap().execute(&operands).unwrap();
        outputs.iter().map(|output| output.to(&Device::cpu()).unwrap()).collect::<Vec<Tensor>>()
    };
    let outputs = outputs_in(InferenceSession::new());
    let gpus = max::simulator::gpus().unwrap().map(|gpu| InferenceSession::with_devices([gpu]));
    for other in [InferenceSession::new().reference(true)].into_iter().chain(gpus) {
        let device = other.devices()[0];
        for (output, other) in outputs.iter().zip(outputs_in(other)) {
            match output.dtype() {
                DType::F32 => close(output, other.as_slice::<f32>().unwrap()),
                _ => assert_eq!(output.to_string(), other.to_string(), "{op}, and its reference form or on {device}"),
            }
        }
    }
    outputs
}

/// Checks floats up to the rounding of a few operations.
#[track_caller]
fn close(got: &Tensor, expected: &[f32]) {
    let got = got.as_slice::<f32>().unwrap();
    let near = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().zip(expected).all(|(a, b)| near(*a, *b)), "{got:?} instead of {expected:?}");
}

/// Each page and the file in which its code stands.
const PAGES: &[(&str, &str, &str)] = &[
    ("02-elementwise", include_str!("../../docs/guide/02-elementwise.md"), include_str!("elementwise.rs")),
    ("03-rows", include_str!("../../docs/guide/03-rows.md"), include_str!("rows.rs")),
    ("04-tiles", include_str!("../../docs/guide/04-tiles.md"), include_str!("tiles.rs")),
    ("05-scatter", include_str!("../../docs/guide/05-scatter.md"), include_str!("scatter.rs")),
    ("06-control-flow", include_str!("../../docs/guide/06-control-flow.md"), include_str!("control_flow.rs")),
    ("07-dtypes", include_str!("../../docs/guide/07-dtypes.md"), include_str!("dtypes.rs")),
    ("08-parameters", include_str!("../../docs/guide/08-parameters.md"), include_str!("parameters.rs")),
    ("09-in-place", include_str!("../../docs/guide/09-in-place.md"), include_str!("in_place.rs")),
    ("10-math", include_str!("../../docs/guide/10-math.md"), include_str!("math.rs")),
    ("11-numerics", include_str!("../../docs/guide/11-numerics.md"), include_str!("numerics.rs")),
    ("12-debugging", include_str!("../../docs/guide/12-debugging.md"), include_str!("debugging.rs")),
    ("13-ir-and-ptx", include_str!("../../docs/guide/13-ir-and-ptx.md"), include_str!("ir_and_ptx.rs")),
    ("16-gpu", include_str!("../../docs/guide/16-gpu.md"), include_str!("gpu.rs")),
    ("17-language-models", include_str!("../../docs/guide/17-language-models.md"), include_str!("language_models.rs")),
    (
        "18-control-flow-in-graphs",
        include_str!("../../docs/guide/18-control-flow-in-graphs.md"),
        include_str!("graphs.rs"),
    ),
    ("19-eager", include_str!("../../docs/guide/19-eager.md"), include_str!("eager.rs")),
    // An example, which the tests of its package run.
    (
        "20-models",
        include_str!("../../docs/guide/20-models.md"),
        include_str!("../../max-pipelines/examples/own_architecture.rs"),
    ),
    ("21-notebooks", include_str!("../../docs/guide/21-notebooks.md"), include_str!("notebooks.rs")),
    (
        "22-recurrences-and-stencils",
        include_str!("../../docs/guide/22-recurrences-and-stencils.md"),
        include_str!("recurrences_and_stencils.rs"),
    ),
];

/// The Rust blocks of a page.
fn rust_blocks(page: &str) -> Vec<&str> {
    page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn every_block_is_compiled() {
    for (name, page, code) in PAGES {
        let blocks = rust_blocks(page);
        assert!(!blocks.is_empty(), "{name} has no code");
        for block in blocks {
            assert!(code.contains(block), "this block of docs/guide/{name}.md is not in its test:\n{block}");
        }
    }
}

#[test]
fn every_page_with_code_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        // The first page is a crate of its own: `tests/external_crate.rs`.
        let known = stem == "01-your-own-crate" || PAGES.iter().any(|(name, ..)| *name == stem);
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(known || rust_blocks(&page).is_empty(), "{} has code that nothing compiles", path.display());
    }
}

#[test]
fn every_kernel_writes_ptx() {
    use max::kernel::{ir, ptx};
    let kernels: Vec<_> = KernelLibrary::linked().iter().filter(|def| def.krate.as_str() == "max-tests").collect();
    assert!(kernels.len() > 20, "{} kernels", kernels.len());
    for def in kernels {
        let dtypes: Vec<DType> = def
            .generics
            .as_slice()
            .iter()
            .map(|generic| {
                generic.dtypes.as_slice().iter().filter_map(|code| DType::from_code(*code)).next_back().unwrap()
            })
            .collect();
        let kernel = ir::parse(&def.ir_text(&dtypes, None)).unwrap_or_else(|e| panic!("{}: {e}", def.name.as_str()));
        let target = ptx::Target { sm: 80, arch_specific: false };
        let module = ptx::write(&kernel, ptx::Options::new(target));
        assert!(module.is_ok_and(|m| m.text.contains(".entry")), "{}", def.name.as_str());
    }
}
