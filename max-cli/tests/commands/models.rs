//! `max generate`, `max logits`, `max embed`, `max quantize` and `max info --model`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::max;
use max::graph::weights::{SafetensorWeights, save_safetensors};
use max::prelude::*;

const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 64,
    "tie_word_embeddings": true, "eos_token_id": 1
}"#;

/// A folder with a Llama of one layer.
fn model(folder: &Path) -> String {
    let shapes: [(&str, &[usize]); 11] = [
        ("model.embed_tokens.weight", &[32, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
    ];
    let weight = |shape: &[usize], step: usize| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| ((i * (step * 2 + 7) + step) % 23) as f32 / 23.0 - 0.4).collect();
        Tensor::from_vec(values, shape).unwrap()
    };
    let tensors: Vec<Tensor> = shapes.iter().enumerate().map(|(i, (_, shape))| weight(shape, i)).collect();
    let named = shapes.iter().map(|(name, _)| *name).zip(&tensors);
    save_safetensors(folder.join("model.safetensors"), named, &BTreeMap::new()).unwrap();
    std::fs::write(folder.join("config.json"), CONFIG).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn tokens_are_continued() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let run = |more: &[&str]| {
        let args = ["generate", "--model", &model, "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"];
        max(&[&args, more].concat()).success()
    };
    let report: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let tokens: Vec<String> = report["tokens"].as_array().unwrap().iter().map(|token| token.to_string()).collect();
    assert_eq!((tokens.len(), &report["prompt_tokens"]), (5, &serde_json::json!(3)));
    assert_eq!(report["final_status"], "maximum_length");
    for key in ["load_ms", "prefill_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(run(&[]).trim(), tokens.join(","));
    assert_eq!(run(&["--temperature", "2", "--seed", "3"]), run(&["--temperature", "2", "--seed", "3"]));
    let speed = max(&["generate", "--model", &model, "--bench-prompt", "20", "--max-new-tokens", "8", "--ignore-eos"]);
    let speed: serde_json::Value = serde_json::from_str(&speed.success()).unwrap();
    assert_eq!(speed["prompt_tokens"], 20);
}

#[test]
fn logits_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (model(folder.path()), folder.path().join("out.safetensors"));
    let text = max(&["logits", "--model", &model, "--ids", "4,5,6", "--out", out.to_str().unwrap()]).success();
    assert_eq!(text, "logits: float32 [3, 32]\n");
    let logits = SafetensorWeights::open([&out]).unwrap().tensor("logits").unwrap();
    assert_eq!(logits.shape(), [3, 32]);
}

#[test]
fn a_model_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let text = max(&["info", "--model", &model(folder.path())]).success();
    for part in
        ["LlamaForCausalLM, for text generation", "0.0 million", "64 tokens", "MB of float32", "0.0 kB for each"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let error = max(&["generate", "--model", &model]).failure(2);
    assert!(error.contains("say what the model is given"), "{error}");
    let error = max(&["generate", "--model", &model, "--prompt", "Hi"]).failure(1);
    assert!(error.contains("there is no tokenizer.json"), "{error}");
    let error = max(&["embed", "--model", &model, "--ids", "4"]).failure(1);
    assert!(error.contains("is a model for text generation, not for embeddings"), "{error}");
    let error = max(&["generate", "--model", "/nowhere", "--ids", "4"]).failure(1);
    assert!(error.contains("there is no such file or folder"), "{error}");
    let error = max(&["generate", "--model", &model, "--ids", "4", "--top-p", "2"]).failure(1);
    assert!(error.contains("top_p: 2 is not above 0 and at most 1"), "{error}");
}

#[test]
fn folders_become_gguf_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let out = folder.path().join("model.gguf");
    let out = out.to_str().unwrap();
    let said = max(&["quantize", &model, out, "--type", "f32"]).success();
    assert!(said.starts_with(&format!("{out}: 0.0 MB of f32")), "{said}");
    let tokens = |model: &str| {
        max(&["generate", "--model", model, "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"]).success()
    };
    assert_eq!(tokens(out), tokens(&model));
    // Rows of 8 and 16 elements are no whole blocks of any encoding.
    max(&["quantize", &model, out, "--type", "q4_k"]).success();
    let info = max(&["info", "--model", out]).success();
    assert!(info.contains("of float16") && info.contains("of float32"), "{info}");
}
