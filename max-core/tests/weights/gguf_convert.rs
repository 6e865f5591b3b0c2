//! Blocks that become others when they are read: see `make_ggml_types.py`.

use std::path::Path;

use max::dtype::DType;
use max::graph::quantization::QuantizationEncoding::{Q6_K, Q8_0};
use max::graph::weights::GgufWeights;
use serde_json::Value;

/// A file with one tensor, of two rows of `rows` blocks each.
fn file(number: u32, row: u64, blocks: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(*b"GGUF");
    bytes.extend(3u32.to_le_bytes());
    bytes.extend([1u64, 0].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b'w');
    bytes.extend(2u32.to_le_bytes());
    bytes.extend([row, 2].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend([blocks, blocks].concat());
    bytes
}

#[test]
fn blocks_become_others_of_the_same_numbers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("weights/ggml_types.json");
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cases = cases.as_object().unwrap();
    assert_eq!(cases.len(), 7);
    for (name, case) in cases {
        let list = |key: &str| case[key].as_array().unwrap();
        let blocks: Vec<u8> = list("blocks").iter().map(|byte| byte.as_u64().unwrap() as u8).collect();
        let expected: Vec<f32> = list("values").iter().map(|value| value.as_f64().unwrap() as f32).collect();
        let path = folder.path().join(name);
        let number = case["number"].as_u64().unwrap() as u32;
        std::fs::write(&path, file(number, expected.len() as u64, &blocks)).unwrap();
        // SAFETY: nobody else has the file.
        for weights in [GgufWeights::open([&path]).unwrap(), unsafe { GgufWeights::mmap([&path]) }.unwrap()] {
            let data = weights.data("w").unwrap();
            let becomes = match name.as_str() {
                "Q5_0" | "IQ4_NL" => Some(Q8_0),
                "Q3_K" => Some(Q6_K),
                _ => None,
            };
            assert_eq!(data.quantization_encoding, becomes, "{name}");
            assert_eq!(data.logical_shape(), [2, expected.len()], "{name}");
            assert_eq!(weights.ty("w").unwrap().shape, data.data.shape(), "{name}");
            let found = data.astype(DType::F32).unwrap().data.to_vec::<f32>().unwrap();
            for (i, (found, expected)) in found.iter().zip(expected.iter().cycle()).enumerate() {
                assert!((found - expected).abs() <= expected.abs() * 1e-6, "{name} {i}: {found} {expected}");
            }
        }
    }
}
