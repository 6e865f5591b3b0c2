//! Golden values, read from `tests/golden` of the repository, or the folder that `MAX_GOLDEN_DIR` names: `OP.safetensors`,
//! whose metadata lists the cases, their tensors and tolerances.

use std::path::Path;

use max::dtype::DType;
use max::kernel::{Form, KernelLibrary};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::{compute, kernels};

/// Ops and the functions that compute them.
const OPS: &[(&str, &str)] = &[
    ("acos", "acos"),
    ("atanh", "atanh"),
    ("cos", "cos"),
    ("erf", "erf"),
    ("exp", "exp"),
    ("log", "log"),
    ("log1p", "log1p"),
    ("pow", "powf"),
    ("rsqrt", "rsqrt"),
    ("sigmoid", "sigmoid"),
    ("sin", "sin"),
    ("tanh", "tanh"),
];

struct Tensor {
    values: Vec<f32>,
    shape: Vec<usize>,
}

fn tensor(file: &SafeTensors, name: &Value) -> Tensor {
    let view = file.tensor(name.as_str().expect("a name")).expect("the tensor");
    assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
    Tensor {
        values: view.data().chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        shape: view.shape().to_vec(),
    }
}

impl Tensor {
    /// Its values, repeated to fill `shape`.
    fn broadcast(&self, shape: &[usize]) -> Vec<f32> {
        let value = |flat: usize| {
            let (mut rest, mut index, mut step) = (flat, 0, 1);
            for (axis, &n) in shape.iter().enumerate().rev() {
                let i = rest % n;
                rest /= n;
                if let Some(own) = (axis + self.shape.len()).checked_sub(shape.len()) {
                    index += i.min(self.shape[own] - 1) * step;
                    step *= self.shape[own];
                }
            }
            self.values[index]
        };
        (0..shape.iter().product()).map(value).collect()
    }
}

#[test]
fn golden_values_are_reproduced() {
    let in_repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/golden");
    let folder = std::env::var_os("MAX_GOLDEN_DIR").unwrap_or_else(|| in_repository.into());
    for (op, function) in OPS {
        let path = Path::new(&folder).join(format!("{op}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("its header");
        let cases = &metadata.metadata().as_ref().expect("its metadata")["cases"];
        let cases: Vec<Value> = serde_json::from_str(cases).expect("a list");
        assert!(!cases.is_empty(), "{op}");
        for case in cases {
            let number = |key: &str| case[key].as_f64().expect("a number") as f32;
            let (rtol, atol) = (number("rtol"), number("atol"));
            let inputs: Vec<_> = case["inputs"].as_array().expect("a list").iter().map(|i| tensor(&file, i)).collect();
            let want = tensor(&file, &case["outputs"][0]);
            let args: Vec<_> = inputs.iter().map(|i| i.broadcast(&want.shape)).collect();
            let args: Vec<&[f32]> = args.iter().map(Vec::as_slice).collect();
            for level in KernelLibrary::linked().levels() {
                let got = compute(kernels::get(function), DType::F32, Form::Compiled(level), &args);
                for (i, (&got, &want)) in got.iter().zip(&want.values).enumerate() {
                    let near = (got - want).abs() <= atol + rtol * want.abs();
                    let same = got == want || got.is_nan() && want.is_nan();
                    assert!(near || same, "{} at {}: element {i} is {got}, not {want}", case["id"], level.name());
                }
            }
        }
    }
}
