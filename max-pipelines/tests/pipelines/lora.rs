//! Adapters of low rank: what is merged when a model is loaded, and adapters that do not fit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::driver::Tensor;
use max_core::graph::weights::save_safetensors;
use max_pipelines::{
    GenerationStatus, KvCacheConfig, LoadProgress, LoraOperation, LoraRequest, LoraStatus, PipelineConfig,
    SamplingParams, TextGenerationPipeline, TextGenerationRequest,
};
use tempfile::TempDir;

use crate::folders::Expected;

const TARGETS: [(&str, usize, usize); 2] =
    [("model.layers.0.self_attn.q_proj", 32, 32), ("model.layers.1.mlp.down_proj", 32, 48)];

/// The name of an adapter: that of its folder.
fn name(adapter: &TempDir) -> String {
    adapter.path().file_name().unwrap().to_string_lossy().into_owned()
}

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
fn requests_of_a_batch_have_adapters_of_their_own() {
    let model = Expected::new("llama");
    let first = adapter(SETTINGS, |_| {});
    // Of rank 1, for one of the two layers.
    let second = adapter(r#"{"r": 1, "lora_alpha": 2}"#, |tensors| {
        tensors.retain(|name, _| name.contains("q_proj"));
        for tensor in tensors.values_mut() {
            let [rows, columns] = [tensor.shape()[0].min(32), tensor.shape()[1]];
            let [rows, columns] = if rows == 2 { [1, columns] } else { [rows, 1] };
            *tensor = Tensor::from_vec(values(rows * columns, 11), [rows, columns]).unwrap();
        }
    });
    let kv_cache = KvCacheConfig { kv_cache_page_size: 4, ..KvCacheConfig::default() };
    let (params, prompt) = (SamplingParams::greedy().max_new_tokens(12), model.ids());
    let merged = |path: Option<&TempDir>| {
        let config = PipelineConfig { lora_path: path.map(|path| path.path().into()), ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        pipeline.generate(std::slice::from_ref(&prompt), &params, |_, _| {}).unwrap().0.remove(0).tokens
    };
    let expected = [merged(None), merged(Some(&first)), merged(Some(&second))];
    assert!(expected[0] != expected[1] && expected[0] != expected[2]);
    let config = PipelineConfig {
        lora_paths: vec![first.path().into(), second.path().into()],
        max_num_loras: 3,
        max_batch_size: 3,
        kv_cache,
        ..model.config()
    };
    let mut pipeline = TextGenerationPipeline::new(&config).unwrap();
    let request = |lora: Option<String>| TextGenerationRequest {
        lora,
        ..TextGenerationRequest::new(prompt.as_slice(), params.clone())
    };
    let requests = [None, Some(name(&first)), Some(name(&second))].map(request);
    // The second time, prefixes are in the cache: each those of its own adapter.
    for _ in 0..2 {
        let (outputs, _) = pipeline.generate_requests(&requests, |_, _| {}).unwrap();
        for (output, expected) in outputs.iter().zip(&expected) {
            assert_eq!(output.tokens, *expected);
        }
    }
    assert!(pipeline.cache_metrics().prefix_hit_tokens > 0);
    // Another name for the same, then one of them goes while it is in use.
    pipeline.load_lora("third", first.path()).unwrap();
    assert_eq!(pipeline.lora_names().len(), 3);
    let (outputs, _) = pipeline.generate_requests(&[request(Some("third".into()))], |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, expected[1]);
    let mut going = pipeline.new_context(&request(Some("third".into()))).unwrap();
    let mut plain = pipeline.new_context(&request(None)).unwrap();
    pipeline.step(&mut [&mut going, &mut plain]).unwrap();
    let error = pipeline.load_lora("fourth", second.path()).unwrap_err().to_string();
    assert!(error.contains("`fourth`: all 3 slots are taken"), "{error}");
    pipeline.unload_lora("third").unwrap();
    pipeline.load_lora("fourth", second.path()).unwrap();
    pipeline.step(&mut [&mut going, &mut plain]).unwrap();
    assert_eq!((going.status(), plain.generated().len()), (GenerationStatus::Failed, 2));
    assert!(going.error().unwrap().to_string().contains("`third`: it is not loaded"));
    drop((going, plain));
    // What does not fit.
    let error = pipeline.new_context(&request(Some("nobody".into()))).err().unwrap().to_string();
    assert!(error.contains("`nobody`: it is not loaded; loaded are") && error.contains("fourth"), "{error}");
    assert!(pipeline.load_lora("fourth", first.path()).unwrap_err().to_string().contains("of that name already"));
    assert!(pipeline.unload_lora("third").unwrap_err().to_string().contains("it is not loaded"));
    pipeline.unload_lora("fourth").unwrap();
    let other = adapter(SETTINGS, |tensors| {
        for (kind, shape) in [("lora_A", [2, 32]), ("lora_B", [16, 2])] {
            let name = format!("base_model.model.model.layers.1.self_attn.k_proj.{kind}.weight");
            tensors.insert(name, Tensor::full(0.0f32, shape).unwrap());
        }
    });
    let error = pipeline.load_lora("other", other.path()).unwrap_err().to_string();
    assert!(error.contains("it changes model.layers.1.self_attn.k_proj.weight, which no adapter did"), "{error}");
    // The same as requests.
    let ask = |operation, name: Option<&str>, folder: Option<&TempDir>| LoraRequest {
        operation,
        lora_name: name.map(str::to_owned),
        lora_path: folder.map(|folder| folder.path().into()),
    };
    for (operation, name, folder, status) in [
        (LoraOperation::Load, Some("again"), Some(&second), LoraStatus::Success),
        (LoraOperation::Load, Some("again"), Some(&second), LoraStatus::LoadNameExists),
        (LoraOperation::Load, Some("full"), Some(&second), LoraStatus::LoadError),
        (LoraOperation::Unload, Some("again"), None, LoraStatus::Success),
        (LoraOperation::Unload, Some("again"), None, LoraStatus::UnloadNameNonexistent),
        (LoraOperation::Unload, None, None, LoraStatus::UnloadError),
        (LoraOperation::Load, None, Some(&other), LoraStatus::LoadInvalidAdapter),
        (LoraOperation::Load, Some("none"), None, LoraStatus::LoadInvalidPath),
    ] {
        assert_eq!(pipeline.lora(&ask(operation, name, folder)).status, status, "{operation:?} {name:?}");
    }
    let nowhere = LoraRequest { lora_path: Some("/nowhere".into()), ..ask(LoraOperation::Load, Some("x"), None) };
    assert_eq!(pipeline.lora(&nowhere).status, LoraStatus::LoadInvalidPath);
    assert_eq!(pipeline.lora(&ask(LoraOperation::List, None, None)).message, [name(&first), name(&second)]);
    let error = model.pipeline().new_context(&request(Some("x".into()))).err().unwrap().to_string();
    assert!(error.contains("`x`: the model was loaded without `lora_paths`"), "{error}");
    let small = PipelineConfig { max_lora_rank: Some(1), ..config };
    let error = TextGenerationPipeline::new(&small).err().unwrap().to_string();
    assert!(error.contains("its rank is 2, and `max_lora_rank` is 1"), "{error}");
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
