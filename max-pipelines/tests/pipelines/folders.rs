//! Folders of models as a hub has them, of weights that are made of their names: see `golden/make_expected.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use max_core::driver::Tensor;
use max_core::graph::weights::save_safetensors;
use max_pipelines::{PipelineConfig, TextGenerationPipeline};
use serde_json::Value;
use tempfile::TempDir;

/// A model, and what transformers computes with it.
pub struct Expected {
    folder: TempDir,
    values: Value,
}

impl Expected {
    /// Of a file of `golden`.
    pub fn new(name: &str) -> Expected {
        max_kernels::link();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let text = std::fs::read_to_string(golden.join(name).with_extension("json")).unwrap();
        let values: Value = serde_json::from_str(&text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let model = Expected { folder, values };
        model.write_config(|_| {});
        model.write_weights(|_| {});
        model
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes `config.json`, changed.
    pub fn write_config(&self, change: impl FnOnce(&mut Value)) {
        let mut config = self.values["config"].clone();
        change(&mut config);
        std::fs::write(self.file("config.json"), config.to_string()).unwrap();
    }

    /// Writes the weights, changed.
    pub fn write_weights(&self, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
        let tied =
            self.values["config"]["tie_word_embeddings"] == Value::Bool(true) && self.values["tokens"].is_array();
        let shapes = self.values["weights"].as_object().unwrap();
        let tensor = |(name, shape): (&String, &Value)| (name.clone(), weight(name, &numbers(shape), tied));
        let mut tensors: BTreeMap<String, Tensor> = shapes.iter().map(tensor).collect();
        change(&mut tensors);
        let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        save_safetensors(self.file("model.safetensors"), named, &BTreeMap::new()).unwrap();
    }

    /// A tokenizer of bytes: the token of a byte is `first` and its value.
    pub fn write_tokenizer(&self, first: usize) {
        // The letters that byte-level tokenizers write for bytes: those that print, and others for the rest.
        let prints = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let mut others = 256;
        let letters = (0..256u32).map(|byte| {
            let code = if prints(byte) { byte } else { others };
            others += u32::from(!prints(byte));
            char::from_u32(code).unwrap().to_string()
        });
        let mut vocab: BTreeMap<String, usize> = letters.enumerate().map(|(i, letter)| (letter, first + i)).collect();
        for i in 0..first {
            vocab.insert(format!("<{i}>"), i);
        }
        let special = |i: usize| {
            serde_json::json!({
                "id": i, "content": format!("<{i}>"), "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            })
        };
        let byte_level = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": (0..first).map(special).collect::<Vec<_>>(),
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "fuse_unk": false, "byte_fallback": false},
        });
        std::fs::write(self.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    }

    pub fn ids(&self) -> Vec<u32> {
        numbers(&self.values["ids"]).into_iter().map(|id| id as u32).collect()
    }

    pub fn tokens(&self) -> Vec<u32> {
        numbers(&self.values["tokens"]).into_iter().map(|id| id as u32).collect()
    }

    /// `logits` or `hidden`.
    pub fn rows(&self, key: &str) -> Vec<f32> {
        let rows = self.values[key].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        rows.map(|x| x.as_f64().unwrap() as f32).collect()
    }

    pub fn config(&self) -> PipelineConfig {
        PipelineConfig::new(self.path())
    }

    pub fn pipeline(&self) -> TextGenerationPipeline {
        TextGenerationPipeline::new(&self.config()).unwrap()
    }
}

fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// The weight of that name, as the script makes it.
fn weight(name: &str, shape: &[usize], tied: bool) -> Tensor {
    let state = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let uniform = |i: u64| {
        let mut bits = state.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    let value = |x: f64| {
        if name.to_lowercase().contains("norm") && name.ends_with("weight") {
            0.2 * x + 1.0
        } else if shape.len() < 2 {
            0.1 * x
        } else if name.contains("embed") {
            (if tied { 0.02 } else { 0.8 }) * x
        } else {
            x * 2.2 / (shape[shape.len() - 1] as f64).sqrt()
        }
    };
    let count: usize = shape.iter().product();
    Tensor::from_vec((0..count as u64).map(|i| value(uniform(i)) as f32).collect(), shape).unwrap()
}

/// The largest difference, relative to the largest expected value.
pub fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f32::max)
}
