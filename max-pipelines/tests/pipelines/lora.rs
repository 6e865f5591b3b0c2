//! Adapters of low rank: what is merged when a model is loaded, and adapters that do not fit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::driver::Tensor;
use max_core::graph::weights::save_safetensors;
use max_pipelines::{LoadProgress, PipelineConfig, TextGenerationPipeline};
use tempfile::TempDir;

use crate::folders::Expected;

const TARGETS: [(&str, usize, usize); 2] =
    [("model.layers.0.self_attn.q_proj", 32, 32), ("model.layers.1.mlp.down_proj", 32, 48)];

fn values(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * step + 3) % 17) as f32 / 17.0 - 0.5).collect()
}

/// An adapter of rank 2 for [`TARGETS`], with other settings and matrices.
fn adapter(settings: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), settings).unwrap();
    let mut tensors = BTreeMap::new();
    for (i, (name, rows, columns)) in TARGETS.iter().enumerate() {
        let name = |kind: &str| format!("base_model.model.{name}.{kind}.weight");
        tensors.insert(name("lora_A"), Tensor::from_vec(values(2 * columns, 5 + i), [2, *columns]).unwrap());
        tensors.insert(name("lora_B"), Tensor::from_vec(values(rows * 2, 7 + i), [*rows, 2]).unwrap());
    }
    change(&mut tensors);
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_safetensors(folder.path().join("adapter_model.safetensors"), named, &BTreeMap::new()).unwrap();
    folder
}

const SETTINGS: &str = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none"}"#;

#[test]
fn adapters_are_added_to_weights() {
    let (model, adapter) = (Expected::new("llama"), adapter(SETTINGS, |_| {}));
    let config = PipelineConfig { lora_path: Some(adapter.path().into()), ..model.config() };
    let adapted = TextGenerationPipeline::new(&config).unwrap().logits(&model.ids()).unwrap();
    // The same sums, written to the model's file.
    model.write_weights(|weights| {
        for (i, (name, rows, columns)) in TARGETS.iter().enumerate() {
            let (a, b) = (values(2 * columns, 5 + i), values(rows * 2, 7 + i));
            let name = format!("{name}.weight");
            let mut weight = weights[&name].to_vec::<f32>().unwrap();
            for (at, weight) in weight.iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                *weight += 1.5 * (b[2 * row] * a[column] + b[2 * row + 1] * a[columns + column]);
            }
            weights.insert(name, Tensor::from_vec(weight, [*rows, *columns]).unwrap());
        }
    });
    let expected = model.pipeline().logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
    let difference = crate::folders::difference(&adapted.to_vec::<f32>().unwrap(), &expected);
    assert!(difference < 1e-5, "{difference}");
    let plain = model.rows("logits");
    assert!(crate::folders::difference(&plain, &expected) > 1e-2);
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let model = Expected::new("llama");
    let fails = |adapter: &TempDir, parts: &[&str]| {
        let config = PipelineConfig { lora_path: Some(adapter.path().into()), ..model.config() };
        let error = TextGenerationPipeline::new(&config).err().unwrap().to_string();
        for part in parts {
            assert!(error.contains(part), "{error}\ndoes not contain `{part}`");
        }
    };
    let wrong = adapter(SETTINGS, |tensors| {
        let a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        tensors.insert(a.into(), Tensor::full(0.0f32, [3, 32]).unwrap());
        let none = "base_model.model.model.layers.7.mlp.up_proj.lora_A.weight";
        tensors.insert(none.into(), Tensor::full(0.0f32, [2, 32]).unwrap());
        tensors.insert("lm_head.modules_to_save".into(), Tensor::full(0.0f32, [2]).unwrap());
    });
    fails(
        &wrong,
        &[
            "adapter_model.safetensors",
            "q_proj.weight is [32, 32], and there are A, [3, 32], and B, [32, 2]",
            "the model has no model.layers.7.mlp.up_proj.weight",
            "lm_head.modules_to_save is no `lora_A` or `lora_B`",
        ],
    );
    let dora = adapter(r#"{"r": 2, "lora_alpha": 3, "use_dora": true}"#, |_| {});
    fails(&dora, &["adapter_config.json", "`use_dora` is true"]);
    fails(&adapter(r#"{"r": 2}"#, |_| {}), &["adapter_config.json", "`lora_alpha` is missing"]);
    std::fs::remove_file(dora.path().join("adapter_config.json")).unwrap();
    fails(&dora, &["adapter_config.json"]);
}

#[test]
fn progress_is_heard_until_all_is_read() {
    let model = Expected::new("llama");
    let (last, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let heard = (last.clone(), calls.clone());
    let progress = LoadProgress::new(move |read, all| {
        assert!(read <= all);
        heard.0.store(all - read, Ordering::Relaxed);
        heard.1.fetch_add(1, Ordering::Relaxed);
    });
    let config = PipelineConfig { load_progress: Some(progress), ..model.config() };
    TextGenerationPipeline::new(&config).unwrap();
    assert_eq!(last.load(Ordering::Relaxed), 0);
    assert!(calls.load(Ordering::Relaxed) > 10);
}
